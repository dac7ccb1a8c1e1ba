//! Jinja's filters and tests, those that chat templates could want. Unknown names are errors when reached.

use super::call::{Call, count, flag, required};
use super::limits::{Buffer, Meter, Outcome, SLOT_BYTES, fail, limit};
use super::methods;
use super::ops;
use super::value::{Json, Str, Value, compare, equal, json, order, print, printed};
use std::cmp::Ordering;

/// Deepest `map('map', 'map', …)`: each level recurses.
const FILTER_DEPTH_MAX: usize = 8;

/// Item or attribute by name, as `map(attribute=…)` and `|attr` look it up; a dot goes deeper.
pub fn lookup(meter: &Meter, value: &Value, path: &str) -> Outcome<Value> {
    let mut value = value.clone();
    for part in path.split('.') {
        meter.work(part.len())?;
        value = match &value {
            Value::Dict(dict) => dict.get(meter, &Value::given(part))?.cloned(),
            Value::List(list) => {
                let index = part.parse::<usize>().ok();
                index.and_then(|i| list.items.get(i)).cloned()
            }
            Value::Namespace(ns) => {
                let fields = ns.fields.borrow();
                let found = fields.iter().find(|(name, ..)| **name == *part);
                found.map(|(_, value, _)| value.clone())
            }
            Value::Undefined(name) => return fail(format!("'{name}' is undefined")),
            _ => None,
        }
        .unwrap_or_else(|| Value::undefined(part));
    }
    Ok(value)
}

/// What a filter with `attribute=` looks at: that part of the item, or without one the item.
fn part(meter: &Meter, item: &Value, path: Option<&Value>, name: &str) -> Outcome<Value> {
    match path {
        Some(path) => lookup(meter, item, path.str_arg(name)?),
        None => Ok(item.clone()),
    }
}

fn text_of(meter: &Meter, value: &Value) -> Outcome<Str> {
    match value {
        Value::Str(s) => Ok(s.clone()),
        _ => Str::made(meter, printed(meter, value)?),
    }
}

pub fn apply(meter: &Meter, name: &str, value: Value, args: Call, depth: usize) -> Outcome<Value> {
    meter.step(1)?;
    limit(depth > FILTER_DEPTH_MAX, "filters are nested too deep")?;
    match name {
        "default" | "d" => {
            let [default, boolean] = args.bind(name, ["default_value", "boolean"])?;
            if matches!(value, Value::Undefined(_)) || (flag(boolean) && !value.truth()) {
                return Ok(default.unwrap_or_else(|| Value::given("")));
            }
            Ok(value)
        }
        "length" | "count" => {
            args.none(name)?;
            Ok(Value::int(value.length(meter)?))
        }
        "string" | "safe" | "forceescape" => {
            args.none(name)?;
            text_of(meter, &value).map(Value::Str)
        }
        "trim" => {
            let [chars] = args.bind(name, ["chars"])?;
            let text = text_of(meter, &value)?;
            methods::strip(meter, &text, chars, true, true)
        }
        "upper" | "lower" | "title" | "capitalize" => {
            args.none(name)?;
            let text = text_of(meter, &value)?;
            meter.work(text.len())?;
            methods::plain(meter, &text, name)
        }
        "center" => {
            let [width] = args.bind(name, ["width"])?;
            let width = width.map_or(Ok(80), |width| width.int_arg(name))?;
            methods::padded(meter, &text_of(meter, &value)?, name, width, ' ')
        }
        "replace" => {
            let [old, new, max] = args.bind(name, ["old", "new", "count"])?;
            let (old, new) = (required(old, name)?, required(new, name)?);
            let max = count(max.filter(|max| !max.is_none()), name)?;
            let text = text_of(meter, &value)?;
            methods::replace(meter, &text, old.str_arg(name)?, new.str_arg(name)?, max)
        }
        "escape" | "e" => {
            args.none(name)?;
            let text = text_of(meter, &value)?;
            let mut out = Buffer::new(meter);
            for c in text.chars() {
                match c {
                    '&' => out.push("&amp;")?,
                    '<' => out.push("&lt;")?,
                    '>' => out.push("&gt;")?,
                    '"' => out.push("&#34;")?,
                    '\'' => out.push("&#39;")?,
                    c => out.push_char(c)?,
                }
            }
            Value::written(out)
        }
        "format" => ops::percent(meter, &text_of(meter, &value)?, &args.positional),
        "indent" => indent(meter, &value, args),
        "tojson" => to_json(meter, &value, args),
        "abs" => {
            args.none(name)?;
            match (value.as_int(), value.as_float()) {
                (Some(i), _) if i < 0 => ops::negate(value),
                (Some(i), _) => Ok(Value::Int(i)),
                (_, Some(f)) => Ok(Value::Float(f.abs())),
                _ => fail(format!("abs needs a number, not a {}", value.type_name())),
            }
        }
        "int" => {
            let [default, _base] = args.bind(name, ["default", "base"])?;
            let parsed = match &value {
                Value::Float(f) if f.is_finite() && f.abs() < 9e18 => Some(*f as i64),
                Value::Str(s) => {
                    let float = || s.trim().parse::<f64>().ok().filter(|f| f.abs() < 9e18);
                    let whole = s.trim().parse::<i64>().ok();
                    whole.or_else(|| float().map(|f| f as i64))
                }
                _ => value.as_int(),
            };
            Ok(parsed.map_or(default.unwrap_or(Value::Int(0)), Value::Int))
        }
        "float" => {
            let [default] = args.bind(name, ["default"])?;
            let parsed = match &value {
                Value::Str(s) => s.trim().parse::<f64>().ok(),
                _ => value.as_float(),
            };
            Ok(parsed.map_or(default.unwrap_or(Value::Float(0.0)), Value::Float))
        }
        "round" => {
            let [precision, method] = args.bind(name, ["precision", "method"])?;
            let Some(f) = value.as_float() else {
                return fail("round needs a number");
            };
            let digits = precision.map_or(Ok(0), |p| p.int_arg(name))?;
            let digits = digits.clamp(-300, 300) as i32;
            let scale = 10f64.powi(digits);
            let scaled = f * scale;
            let rounded = match method.as_ref().and_then(Value::as_str) {
                Some("ceil") => scaled.ceil(),
                Some("floor") => scaled.floor(),
                _ => scaled.round_ties_even(),
            };
            Ok(Value::Float(rounded / scale))
        }
        "attr" => {
            let attr = args.one(name, "name")?;
            let attr = attr.str_arg(name)?;
            // Python's attr never looks at items; on a mapping only its methods are left.
            match (&value, methods::find(&value, attr)) {
                (_, Some(method)) => Value::method(&value, method),
                (Value::Namespace(_), None) => lookup(meter, &value, attr),
                _ => Ok(Value::undefined(attr)),
            }
        }
        "items" => match &value {
            Value::Dict(dict) => methods::items(meter, dict),
            Value::Undefined(_) => Value::list(meter, Vec::new()),
            _ => fail("items needs a mapping"),
        },
        "dictsort" => {
            let [case, by, reverse] = args.bind(name, ["case_sensitive", "by", "reverse"])?;
            let Value::Dict(dict) = &value else {
                return fail("dictsort needs a mapping");
            };
            let by_value = by.as_ref().and_then(Value::as_str) == Some("value");
            let fold = !flag(case);
            let mut keyed = Vec::new();
            for (k, v) in &dict.entries {
                let pair = Value::tuple(meter, vec![k.clone(), v.clone()])?;
                keyed.push((sort_key(meter, if by_value { v } else { k }, fold)?, pair));
            }
            sorted(meter, keyed, flag(reverse))
        }
        "first" | "last" | "list" | "reverse" | "join" | "map" | "select" | "reject"
        | "selectattr" | "rejectattr" | "sort" | "unique" | "sum" | "min" | "max" | "batch" => {
            over_items(meter, name, value, args, depth)
        }
        _ => fail(format!("unknown filter '{name}'")),
    }
}

/// The filters that walk a sequence.
fn over_items(meter: &Meter, name: &str, value: Value, args: Call, depth: usize) -> Outcome<Value> {
    let lenient = ["map", "select", "reject", "selectattr", "rejectattr"];
    if lenient.contains(&name) && !value.truth() {
        // These ask for truth before they iterate; templates select from `tools` when it is none.
        return Value::list(meter, Vec::new());
    }
    let list = value.iterate(meter)?;
    let items = &list.items;
    meter.step(items.len() / 4)?;
    match name {
        "first" | "last" => {
            args.none(name)?;
            let item = if name == "first" {
                items.first()
            } else {
                items.last()
            };
            let missing = || Value::Undefined(format!("the {name} item").into());
            Ok(item.cloned().unwrap_or_else(missing))
        }
        "list" => {
            args.none(name)?;
            if list.tuple {
                return Value::list(meter, items.clone());
            }
            Ok(Value::List(list))
        }
        "reverse" => {
            args.none(name)?;
            if let Value::Str(s) = &value {
                return Value::text(meter, s.chars().rev().collect());
            }
            meter.fits(items.len().saturating_mul(SLOT_BYTES))?;
            Value::list(meter, items.iter().rev().cloned().collect())
        }
        "join" => {
            let [separator, attribute] = args.bind(name, ["d", "attribute"])?;
            let separator = separator.unwrap_or_else(|| Value::given(""));
            let mut out = Buffer::new(meter);
            for (i, item) in items.iter().enumerate() {
                meter.step(1)?;
                if i > 0 {
                    print(&separator, &mut out)?;
                }
                print(&part(meter, item, attribute.as_ref(), name)?, &mut out)?;
            }
            Value::written(out)
        }
        "map" => map(meter, items, args, depth),
        "select" | "reject" | "selectattr" | "rejectattr" => select(meter, name, items, args),
        "sort" => {
            let [reverse, case, attribute] =
                args.bind(name, ["reverse", "case_sensitive", "attribute"])?;
            let fold = !flag(case);
            let mut keyed = Vec::new();
            for item in items {
                let key = part(meter, item, attribute.as_ref(), name)?;
                keyed.push((sort_key(meter, &key, fold)?, item.clone()));
            }
            sorted(meter, keyed, flag(reverse))
        }
        "unique" => {
            let [_case, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
            let mut seen: Vec<Value> = Vec::new();
            let mut kept = Vec::new();
            'items: for item in items {
                let key = part(meter, item, attribute.as_ref(), name)?;
                let key = sort_key(meter, &key, true)?;
                for have in &seen {
                    if equal(meter, have, &key)? {
                        continue 'items;
                    }
                }
                seen.push(key);
                kept.push(item.clone());
            }
            Value::list(meter, kept)
        }
        "sum" => {
            let [attribute, start] = args.bind(name, ["attribute", "start"])?;
            let mut total = start.unwrap_or(Value::Int(0));
            for item in items {
                let item = part(meter, item, attribute.as_ref(), name)?;
                total = ops::binary(meter, "+", total, item)?;
            }
            Ok(total)
        }
        "min" | "max" => {
            let is_better = if name == "min" {
                Ordering::is_lt
            } else {
                Ordering::is_gt
            };
            let mut best: Option<&Value> = None;
            for item in items {
                if best.map_or(Ok(true), |b| order(meter, item, b).map(is_better))? {
                    best = Some(item);
                }
            }
            let missing = || Value::Undefined("the largest item".into());
            Ok(best.cloned().unwrap_or_else(missing))
        }
        _ => {
            let [size, fill] = args.bind(name, ["linecount", "fill_with"])?;
            let size = required(size, name)?.int_arg(name)?;
            let size = usize::try_from(size).unwrap_or(0).max(1);
            let mut rows = Vec::new();
            for chunk in items.chunks(size) {
                let mut row = chunk.to_vec();
                if let Some(fill) = &fill {
                    meter.fits((size - row.len()).saturating_mul(SLOT_BYTES))?;
                    row.resize(size, fill.clone());
                }
                rows.push(Value::list(meter, row)?);
            }
            Value::list(meter, rows)
        }
    }
}

/// Strings are sorted and compared without case unless asked otherwise.
fn sort_key(meter: &Meter, value: &Value, fold: bool) -> Outcome<Value> {
    match value.as_str() {
        Some(s) if fold => methods::plain(meter, s, "lower"),
        _ => Ok(value.clone()),
    }
}

/// A stable merge sort whose comparison may fail; the library's sort may not stop half-way.
fn sorted(meter: &Meter, mut keyed: Vec<(Value, Value)>, reverse: bool) -> Outcome<Value> {
    let take_right = if reverse {
        Ordering::is_lt
    } else {
        Ordering::is_gt
    };
    let mut width = 1;
    while width < keyed.len() {
        let mut merged = Vec::with_capacity(keyed.len());
        for pair in keyed.chunks(2 * width) {
            let (mut left, mut right) = pair.split_at(width.min(pair.len()));
            while let (Some(a), Some(b)) = (left.first(), right.first()) {
                let is_right = take_right(order(meter, &a.0, &b.0)?);
                let side = if is_right { &mut right } else { &mut left };
                if let Some((first, rest)) = side.split_first() {
                    merged.push(first.clone());
                    *side = rest;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        meter.step(keyed.len())?;
        keyed = merged;
        width *= 2;
    }
    Value::list(meter, keyed.into_iter().map(|(_, value)| value).collect())
}

fn map(meter: &Meter, items: &[Value], mut args: Call, depth: usize) -> Outcome<Value> {
    let mut mapped = Vec::new();
    let mut names = args.named.iter().map(|(name, _)| &**name);
    if let Some(at) = names.position(|name| name == "attribute") {
        let (_, path) = args.named.swap_remove(at);
        let [default] = args.bind("map", ["default"])?;
        for item in items {
            let found = lookup(meter, item, path.str_arg("map")?)?;
            mapped.push(match (&found, &default) {
                (Value::Undefined(_), Some(default)) => default.clone(),
                _ => found,
            });
        }
        return Value::list(meter, mapped);
    }
    let filter = required(args.shift(), "map")?;
    for item in items {
        meter.step(args.positional.len())?;
        let name = filter.str_arg("map")?;
        mapped.push(apply(meter, name, item.clone(), args.clone(), depth + 1)?);
    }
    Value::list(meter, mapped)
}

fn select(meter: &Meter, name: &str, items: &[Value], mut args: Call) -> Outcome<Value> {
    let wanted = name.starts_with("select");
    let mut path = None;
    if name.ends_with("attr") {
        path = Some(required(args.shift(), name)?);
    }
    let check = args.shift();
    let mut kept = Vec::new();
    for item in items {
        let subject = part(meter, item, path.as_ref(), name)?;
        let holds = match &check {
            Some(check) => {
                meter.step(args.positional.len())?;
                test(meter, check.str_arg(name)?, &subject, &args.positional)?
            }
            None => subject.truth(),
        };
        if holds == wanted {
            kept.push(item.clone());
        }
    }
    Value::list(meter, kept)
}

fn indent(meter: &Meter, value: &Value, args: Call) -> Outcome<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let prefix = match &width {
        Some(Value::Str(s)) => s.clone(),
        other => {
            let count = other.as_ref().map_or(Ok(4), |w| w.int_arg("indent"))?;
            let mut out = Buffer::new(meter);
            out.pad(' ', usize::try_from(count).unwrap_or(0))?;
            Str::made(meter, out.into_string())?
        }
    };
    let (first, blank) = (flag(first), flag(blank));
    let text = text_of(meter, value)?;
    let mut out = Buffer::new(meter);
    for (i, line) in text.split('\n').enumerate() {
        meter.step(1)?;
        if i > 0 {
            out.push("\n")?;
        }
        if (i == 0 && first) || (i > 0 && (blank || !line.is_empty())) {
            out.push(&prefix)?;
        }
        out.push(line)?;
    }
    Value::written(out)
}

fn to_json(meter: &Meter, value: &Value, args: Call) -> Outcome<Value> {
    let params = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sort] = args.bind("tojson", params)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(indent) => Some(usize::try_from(indent.int_arg("tojson")?).unwrap_or(0)),
    };
    let separators = match &separators {
        Some(Value::List(list)) => match list.items.as_slice() {
            [item, key] => [item.str_arg("tojson")?, key.str_arg("tojson")?],
            _ => return fail("tojson needs two separators"),
        },
        _ if indent.is_some() => [",", ": "],
        _ => [", ", ": "],
    };
    let style = Json {
        indent,
        separators,
        sort_keys: flag(sort),
        ascii: flag(ascii),
    };
    let mut out = Buffer::new(meter);
    json(value, &style, 0, &mut out)?;
    Value::written(out)
}

/// `value is name(args)`
pub fn test(meter: &Meter, name: &str, value: &Value, args: &[Value]) -> Outcome<bool> {
    meter.step(1)?;
    let arg = || match args {
        [one] => Ok(one),
        _ => fail(format!("the test '{name}' needs one argument")),
    };
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "string" => matches!(value, Value::Str(_)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "mapping" => matches!(value, Value::Dict(_)),
        "iterable" | "sequence" => matches!(
            value,
            Value::Str(_) | Value::List(_) | Value::Dict(_) | Value::Undefined(_)
        ),
        "callable" => matches!(
            value,
            Value::Function(_) | Value::Macro(..) | Value::Method(_) | Value::Caller(_)
        ),
        "even" => value.int_arg("even")?.rem_euclid(2) == 0,
        "odd" => value.int_arg("odd")?.rem_euclid(2) == 1,
        "divisibleby" => match arg()?.int_arg(name)? {
            0 => return fail("division by zero"),
            by => value.int_arg(name)?.checked_rem(by).unwrap_or(0) == 0,
        },
        "sameas" => value.type_name() == arg()?.type_name() && equal(meter, value, arg()?)?,
        "in" | "eq" | "equalto" | "==" | "ne" | "!=" | "lt" | "<" | "lessthan" | "le" | "<="
        | "gt" | ">" | "greaterthan" | "ge" | ">=" => compare(meter, name, value, arg()?)?,
        "lower" | "upper" => match value.as_str() {
            Some(s) => methods::plain(meter, s, &format!("is{name}"))?.truth(),
            None => false,
        },
        _ => return fail(format!("unknown test '{name}'")),
    })
}
