//! Jinja's filters and tests, those that chat templates could want. Unknown names are errors when reached.

use super::call::{Call, required};
use super::limits::{Buffer, Meter, Outcome, fail, limit};
use super::methods;
use super::ops;
use super::value::{Json, Value, contains, equal, find_key, json, order, print};
use std::cmp::Ordering;

/// Deepest `map('map', 'map', …)`: each level recurses.
const FILTER_DEPTH_MAX: usize = 8;

/// Item or attribute by name, as `map(attribute=…)` and `|attr` look it up; a dot goes deeper.
pub fn lookup(meter: &Meter, value: &Value, path: &str) -> Outcome<Value> {
    let mut value = value.clone();
    for part in path.split('.') {
        meter.work(part.len())?;
        value = match &value {
            Value::Dict(dict) => match find_key(meter, &dict.entries, &Value::given(part))? {
                Some(at) => dict.entries[at].1.clone(),
                None => Value::undefined(part),
            },
            Value::List(list) => match part.parse::<usize>().ok().and_then(|i| list.items.get(i)) {
                Some(item) => item.clone(),
                None => Value::undefined(part),
            },
            Value::Namespace(ns) => {
                let fields = ns.fields.borrow();
                let found = fields
                    .iter()
                    .find(|(name, ..)| **name == *part)
                    .map(|(_, v, _)| v.clone());
                found.unwrap_or_else(|| Value::undefined(part))
            }
            Value::Undefined(name) => return fail(format!("'{name}' is undefined")),
            _ => Value::undefined(part),
        };
    }
    Ok(value)
}

fn text_of(meter: &Meter, value: &Value) -> Outcome<Value> {
    if let Value::Str(_) = value {
        return Ok(value.clone());
    }
    let mut out = Buffer::new(meter);
    print(meter, value, &mut out)?;
    Value::text(meter, out.into_string())
}

pub fn apply(
    meter: &Meter,
    name: &str,
    value: Value,
    mut args: Call,
    depth: usize,
) -> Outcome<Value> {
    meter.step(1)?;
    if depth > FILTER_DEPTH_MAX {
        return Err(limit("filters are nested too deep"));
    }
    match name {
        "default" | "d" => {
            let [default, boolean] = args.bind(name, ["default_value", "boolean"])?;
            let by_truth = boolean.is_some_and(|b| b.truth());
            let missing = matches!(value, Value::Undefined(_)) || (by_truth && !value.truth());
            Ok(if missing {
                default.unwrap_or_else(|| Value::given(""))
            } else {
                value
            })
        }
        "length" | "count" => {
            args.none(name)?;
            Ok(Value::Int(value.length(meter)? as i64))
        }
        "string" | "safe" | "forceescape" => {
            args.none(name)?;
            text_of(meter, &value)
        }
        "trim" => {
            let [chars] = args.bind(name, ["chars"])?;
            let text = text_of(meter, &value)?;
            methods::strip(
                meter,
                &text,
                text.as_str().unwrap_or(""),
                chars.as_ref(),
                true,
                true,
            )
        }
        "upper" | "lower" | "title" | "capitalize" => {
            args.none(name)?;
            let text = text_of(meter, &value)?;
            let text = text.as_str().unwrap_or("");
            meter.work(text.len())?;
            methods::plain(meter, text, name)
        }
        "center" => {
            let [width] = args.bind(name, ["width"])?;
            let width = match width {
                Some(width) => width.int_arg(name)?,
                None => 80,
            };
            let text = text_of(meter, &value)?;
            methods::pad(meter, text.as_str().unwrap_or(""), name, width, ' ')
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let (old, new) = (required(old, name)?, required(new, name)?);
            let count = match count {
                Some(Value::None) | None => usize::MAX,
                Some(count) => usize::try_from(count.int_arg(name)?).unwrap_or(usize::MAX),
            };
            let text = text_of(meter, &value)?;
            methods::replace(
                meter,
                text.as_str().unwrap_or(""),
                old.str_arg(name)?,
                new.str_arg(name)?,
                count,
            )
        }
        "escape" | "e" => {
            args.none(name)?;
            let text = text_of(meter, &value)?;
            let mut out = Buffer::new(meter);
            for c in text.as_str().unwrap_or("").chars() {
                match c {
                    '&' => out.push("&amp;")?,
                    '<' => out.push("&lt;")?,
                    '>' => out.push("&gt;")?,
                    '"' => out.push("&#34;")?,
                    '\'' => out.push("&#39;")?,
                    c => out.push_char(c)?,
                }
            }
            Value::text(meter, out.into_string())
        }
        "format" => {
            let text = text_of(meter, &value)?;
            ops::percent(meter, text.as_str().unwrap_or(""), &args.positional)
        }
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
                    let text = s.as_str().trim();
                    let whole = text.parse::<i64>().ok();
                    whole.or_else(|| {
                        text.parse::<f64>()
                            .ok()
                            .filter(|f| f.abs() < 9e18)
                            .map(|f| f as i64)
                    })
                }
                _ => value.as_int(),
            };
            Ok(parsed.map_or(default.unwrap_or(Value::Int(0)), Value::Int))
        }
        "float" => {
            let [default] = args.bind(name, ["default"])?;
            let parsed = match &value {
                Value::Str(s) => s.as_str().trim().parse::<f64>().ok(),
                _ => value.as_float(),
            };
            Ok(parsed.map_or(default.unwrap_or(Value::Float(0.0)), Value::Float))
        }
        "round" => {
            let [precision, method] = args.bind(name, ["precision", "method"])?;
            let Some(f) = value.as_float() else {
                return fail("round needs a number");
            };
            let digits = precision
                .map_or(Ok(0), |p| p.int_arg(name))?
                .clamp(-300, 300) as i32;
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
            let [attr] = args.bind(name, ["name"])?;
            let attr = required(attr, name)?;
            // Python's attr never looks at items; on a mapping only its methods are left.
            match (&value, methods::find(&value, attr.str_arg(name)?)) {
                (_, Some(method)) => Value::method(&value, method),
                (Value::Namespace(_), None) => lookup(meter, &value, attr.str_arg(name)?),
                _ => Ok(Value::undefined(attr.str_arg(name)?)),
            }
        }
        "items" => match &value {
            Value::Dict(dict) => methods::items(meter, dict),
            Value::Undefined(_) => Value::list(meter, Vec::new()),
            _ => fail("items needs a mapping"),
        },
        _ => over_items(meter, name, value, &mut args, depth),
    }
}

/// The filters that walk a sequence.
fn over_items(
    meter: &Meter,
    name: &str,
    value: Value,
    args: &mut Call,
    depth: usize,
) -> Outcome<Value> {
    const KNOWN: [&str; 17] = [
        "first",
        "last",
        "list",
        "reverse",
        "join",
        "map",
        "select",
        "reject",
        "selectattr",
        "rejectattr",
        "sort",
        "unique",
        "sum",
        "min",
        "max",
        "dictsort",
        "batch",
    ];
    if !KNOWN.contains(&name) {
        return fail(format!("unknown filter '{name}'"));
    }
    let args = std::mem::take(args);
    if name == "dictsort" {
        let [case, by, reverse] = args.bind(name, ["case_sensitive", "by", "reverse"])?;
        let Value::Dict(dict) = &value else {
            return fail("dictsort needs a mapping");
        };
        let by_value = by.as_ref().and_then(Value::as_str) == Some("value");
        let fold = !case.is_some_and(|c| c.truth());
        let mut keyed = Vec::new();
        for (k, v) in &dict.entries {
            let pair = Value::tuple(meter, vec![k.clone(), v.clone()])?;
            keyed.push((sort_key(meter, if by_value { v } else { k }, fold)?, pair));
        }
        return Value::list(
            meter,
            sorted(meter, keyed, reverse.is_some_and(|r| r.truth()))?,
        );
    }
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
            Ok(item
                .cloned()
                .unwrap_or_else(|| Value::Undefined(format!("the {name} item").into())))
        }
        "list" => {
            args.none(name)?;
            if list.tuple {
                Value::list(meter, items.clone())
            } else {
                Ok(Value::List(list))
            }
        }
        "reverse" => {
            args.none(name)?;
            if let Value::Str(s) = &value {
                return Value::text(meter, s.as_str().chars().rev().collect());
            }
            meter.fits(items.len().saturating_mul(super::limits::SLOT_BYTES))?;
            Value::list(meter, items.iter().rev().cloned().collect())
        }
        "join" => {
            let [separator, attribute] = args.bind(name, ["d", "attribute"])?;
            let separator = separator.unwrap_or_else(|| Value::given(""));
            let mut out = Buffer::new(meter);
            for (i, item) in items.iter().enumerate() {
                meter.step(1)?;
                if i > 0 {
                    print(meter, &separator, &mut out)?;
                }
                match &attribute {
                    Some(path) => {
                        print(meter, &lookup(meter, item, path.str_arg(name)?)?, &mut out)?
                    }
                    None => print(meter, item, &mut out)?,
                }
            }
            Value::text(meter, out.into_string())
        }
        "map" => map(meter, items, args, depth),
        "select" | "reject" | "selectattr" | "rejectattr" => select(meter, name, items, args),
        "sort" => {
            let [reverse, case, attribute] =
                args.bind(name, ["reverse", "case_sensitive", "attribute"])?;
            let fold = !case.is_some_and(|c| c.truth());
            let mut keyed = Vec::new();
            for item in items {
                let key = match &attribute {
                    Some(path) => lookup(meter, item, path.str_arg(name)?)?,
                    None => item.clone(),
                };
                keyed.push((sort_key(meter, &key, fold)?, item.clone()));
            }
            Value::list(
                meter,
                sorted(meter, keyed, reverse.is_some_and(|r| r.truth()))?,
            )
        }
        "unique" => {
            let [_case, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
            let mut seen: Vec<Value> = Vec::new();
            let mut kept = Vec::new();
            'items: for item in items {
                let key = match &attribute {
                    Some(path) => lookup(meter, item, path.str_arg(name)?)?,
                    None => item.clone(),
                };
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
                let item = match &attribute {
                    Some(path) => lookup(meter, item, path.str_arg(name)?)?,
                    None => item.clone(),
                };
                total = ops::binary(meter, super::ast::Binary::Add, total, item)?;
            }
            Ok(total)
        }
        "min" | "max" => {
            let mut best: Option<&Value> = None;
            let wanted = if name == "min" {
                Ordering::Less
            } else {
                Ordering::Greater
            };
            for item in items {
                if best.map_or(Ok(true), |b| order(meter, item, b).map(|o| o == wanted))? {
                    best = Some(item);
                }
            }
            Ok(best
                .cloned()
                .unwrap_or_else(|| Value::Undefined("the largest item".into())))
        }
        _ => {
            let [size, fill] = args.bind(name, ["linecount", "fill_with"])?;
            let size = usize::try_from(required(size, name)?.int_arg(name)?)
                .unwrap_or(0)
                .max(1);
            let mut rows = Vec::new();
            for chunk in items.chunks(size) {
                let mut row = chunk.to_vec();
                if let Some(fill) = &fill {
                    meter.fits((size - row.len()).saturating_mul(super::limits::SLOT_BYTES))?;
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
fn sorted(meter: &Meter, mut keyed: Vec<(Value, Value)>, reverse: bool) -> Outcome<Vec<Value>> {
    let mut width = 1;
    while width < keyed.len() {
        let mut merged = Vec::with_capacity(keyed.len());
        for pair in keyed.chunks(2 * width) {
            let (mut left, mut right) = pair.split_at(width.min(pair.len()));
            while let (Some(a), Some(b)) = (left.first(), right.first()) {
                let order = order(meter, &a.0, &b.0)?;
                let take_right = if reverse {
                    order == Ordering::Less
                } else {
                    order == Ordering::Greater
                };
                let side = if take_right { &mut right } else { &mut left };
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
    Ok(keyed.into_iter().map(|(_, value)| value).collect())
}

fn map(meter: &Meter, items: &[Value], mut args: Call, depth: usize) -> Outcome<Value> {
    let mut mapped = Vec::new();
    if let Some(at) = args
        .named
        .iter()
        .position(|(name, _)| &**name == "attribute")
    {
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
        let args = Call {
            positional: args.positional.clone(),
            named: args.named.clone(),
        };
        meter.step(args.positional.len())?;
        mapped.push(apply(
            meter,
            filter.str_arg("map")?,
            item.clone(),
            args,
            depth + 1,
        )?);
    }
    Value::list(meter, mapped)
}

fn select(meter: &Meter, name: &str, items: &[Value], mut args: Call) -> Outcome<Value> {
    let by_attribute = name.ends_with("attr");
    let wanted = name.starts_with("select");
    let path = if by_attribute {
        Some(required(args.shift(), name)?)
    } else {
        None
    };
    let check = args.shift();
    let mut kept = Vec::new();
    for item in items {
        let subject = match &path {
            Some(path) => lookup(meter, item, path.str_arg(name)?)?,
            None => item.clone(),
        };
        let holds = match &check {
            Some(check) => {
                meter.step(args.positional.len())?;
                test(
                    meter,
                    check.str_arg(name)?,
                    &subject,
                    args.positional.clone(),
                )?
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
            match Value::text(meter, out.into_string())? {
                Value::Str(s) => s,
                _ => return fail("indent"),
            }
        }
    };
    let (first, blank) = (
        first.is_some_and(|f| f.truth()),
        blank.is_some_and(|b| b.truth()),
    );
    let text = text_of(meter, value)?;
    let mut out = Buffer::new(meter);
    for (i, line) in text.as_str().unwrap_or("").split('\n').enumerate() {
        meter.step(1)?;
        if i > 0 {
            out.push("\n")?;
        }
        if if i == 0 {
            first
        } else {
            blank || !line.is_empty()
        } {
            out.push(prefix.as_str())?;
        }
        out.push(line)?;
    }
    Value::text(meter, out.into_string())
}

fn to_json(meter: &Meter, value: &Value, args: Call) -> Outcome<Value> {
    let [ascii, indent, separators, sort] = args.bind(
        "tojson",
        ["ensure_ascii", "indent", "separators", "sort_keys"],
    )?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(indent) => Some(usize::try_from(indent.int_arg("tojson")?).unwrap_or(0)),
    };
    let (item_separator, key_separator) = match separators {
        Some(Value::List(list)) => match list.items.as_slice() {
            [item, key] => (
                item.str_arg("tojson")?.to_owned(),
                key.str_arg("tojson")?.to_owned(),
            ),
            _ => return fail("tojson needs two separators"),
        },
        _ => (
            if indent.is_some() { "," } else { ", " }.to_owned(),
            ": ".to_owned(),
        ),
    };
    let style = Json {
        indent,
        item_separator,
        key_separator,
        sort_keys: sort.is_some_and(|s| s.truth()),
        ascii: ascii.is_some_and(|a| a.truth()),
    };
    let mut out = Buffer::new(meter);
    json(meter, value, &style, 0, &mut out)?;
    Value::text(meter, out.into_string())
}

/// `value is name(args)`
pub fn test(meter: &Meter, name: &str, value: &Value, args: Vec<Value>) -> Outcome<bool> {
    meter.step(1)?;
    let arg = || match args.as_slice() {
        [one] => Ok(one),
        _ => fail(format!("the test '{name}' needs one argument")),
    };
    let ordered = |wanted: fn(Ordering) -> bool| Ok(wanted(order(meter, value, arg()?)?));
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
        "in" => contains(meter, arg()?, value)?,
        "sameas" => value.type_name() == arg()?.type_name() && equal(meter, value, arg()?)?,
        "eq" | "equalto" | "==" => equal(meter, value, arg()?)?,
        "ne" | "!=" => !equal(meter, value, arg()?)?,
        "lt" | "<" | "lessthan" => return ordered(Ordering::is_lt),
        "le" | "<=" => return ordered(Ordering::is_le),
        "gt" | ">" | "greaterthan" => return ordered(Ordering::is_gt),
        "ge" | ">=" => return ordered(Ordering::is_ge),
        "lower" | "upper" => match value.as_str() {
            Some(s) => methods::plain(
                meter,
                s,
                if name == "lower" {
                    "islower"
                } else {
                    "isupper"
                },
            )?
            .truth(),
            None => false,
        },
        _ => return fail(format!("unknown test '{name}'")),
    })
}
