//! Python methods of strings, mappings and lists, as templates call them. Those that would change their
//! receiver do not exist: the sandbox that templates are written for refuses them too.

use super::call::{Call, required};
use super::limits::{Buffer, Meter, Outcome, SLOT_BYTES, fail};
use super::value::{Dict, List, Value, equal, find_key, print};

const STRING: [&str; 36] = [
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "rsplit",
    "splitlines",
    "startswith",
    "endswith",
    "upper",
    "lower",
    "title",
    "capitalize",
    "replace",
    "find",
    "rfind",
    "index",
    "rindex",
    "count",
    "join",
    "format",
    "isdigit",
    "isalpha",
    "isalnum",
    "isspace",
    "islower",
    "isupper",
    "removeprefix",
    "removesuffix",
    "zfill",
    "ljust",
    "rjust",
    "center",
    "swapcase",
    "casefold",
    "partition",
    "rpartition",
];
const MAPPING: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const SEQUENCE: [&str; 3] = ["index", "count", "copy"];

/// The method of that name, if this value has one.
pub fn find(value: &Value, name: &str) -> Option<&'static str> {
    let names: &[&'static str] = match value {
        Value::Str(_) => &STRING,
        Value::Dict(_) => &MAPPING,
        Value::List(_) => &SEQUENCE,
        _ => &[],
    };
    names.iter().find(|n| **n == name).copied()
}

pub fn call(meter: &Meter, receiver: &Value, name: &str, args: Call) -> Outcome<Value> {
    match receiver {
        Value::Str(s) => string(meter, receiver, s.as_str(), name, args),
        Value::Dict(dict) => mapping(meter, receiver, dict, name, args),
        Value::List(list) => sequence(meter, receiver, list, name, args),
        _ => fail(format!("a {} has no method '{name}'", receiver.type_name())),
    }
}

fn mapping(meter: &Meter, receiver: &Value, dict: &Dict, name: &str, args: Call) -> Outcome<Value> {
    if name == "get" {
        let [key, default] = args.bind("get", ["key", "default"])?;
        let found = find_key(meter, &dict.entries, &required(key, "get")?)?;
        return Ok(match found {
            Some(at) => dict.entries[at].1.clone(),
            None => default.unwrap_or(Value::None),
        });
    }
    args.none(name)?;
    match name {
        "copy" => Ok(receiver.clone()),
        "items" => items(meter, dict),
        "keys" => Value::list(meter, dict.entries.iter().map(|(k, _)| k.clone()).collect()),
        "values" => Value::list(meter, dict.entries.iter().map(|(_, v)| v.clone()).collect()),
        _ => fail(format!("a mapping has no method '{name}'")),
    }
}

pub fn items(meter: &Meter, dict: &Dict) -> Outcome<Value> {
    let mut pairs = Vec::new();
    for (key, value) in &dict.entries {
        pairs.push(Value::tuple(meter, vec![key.clone(), value.clone()])?);
    }
    Value::list(meter, pairs)
}

fn sequence(
    meter: &Meter,
    receiver: &Value,
    list: &List,
    name: &str,
    args: Call,
) -> Outcome<Value> {
    if name == "copy" {
        args.none(name)?;
        return Ok(receiver.clone());
    }
    let [wanted] = args.bind(name, ["value"])?;
    let wanted = required(wanted, name)?;
    let mut count = 0;
    for (at, item) in list.items.iter().enumerate() {
        if equal(meter, item, &wanted)? {
            if name == "index" {
                return Ok(Value::Int(at as i64));
            }
            count += 1;
        }
    }
    if name == "index" {
        fail("the value is not in the list")
    } else {
        Ok(Value::Int(count))
    }
}

fn string(meter: &Meter, receiver: &Value, s: &str, name: &str, args: Call) -> Outcome<Value> {
    meter.work(s.len())?;
    let text = |text: String| Value::text(meter, text);
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(name, ["chars"])?;
            strip(
                meter,
                receiver,
                s,
                chars.as_ref(),
                name != "rstrip",
                name != "lstrip",
            )
        }
        "split" | "rsplit" => {
            let [sep, max] = args.bind(name, ["sep", "maxsplit"])?;
            let max = match max {
                Some(max) => usize::try_from(max.int_arg(name)?).unwrap_or(usize::MAX),
                None => usize::MAX,
            };
            split(meter, s, sep, max, name == "rsplit")
        }
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"])?;
            let keep = keep.is_some_and(|k| k.truth());
            let mut lines = Vec::new();
            let mut rest = s;
            while !rest.is_empty() {
                let end = rest.find(['\n', '\r']).unwrap_or(rest.len());
                let (line, tail) = rest.split_at(end);
                let ending = if tail.starts_with("\r\n") {
                    2
                } else {
                    usize::from(!tail.is_empty())
                };
                let kept = if keep {
                    rest.get(..end + ending).unwrap_or(rest)
                } else {
                    line
                };
                lines.push(Value::copied(meter, kept)?);
                rest = tail.get(ending..).unwrap_or("");
            }
            Value::list(meter, lines)
        }
        "partition" | "rpartition" => {
            let [sep] = args.bind(name, ["sep"])?;
            let sep = required(sep, name)?;
            let sep_text = sep.str_arg(name)?;
            if sep_text.is_empty() {
                return fail("an empty separator");
            }
            let cut = if name == "partition" {
                s.split_once(sep_text)
            } else {
                s.rsplit_once(sep_text)
            };
            let parts = match cut {
                Some((a, b)) => [a, sep_text, b],
                None if name == "partition" => [s, "", ""],
                None => ["", "", s],
            };
            let parts = parts
                .into_iter()
                .map(|p| Value::copied(meter, p))
                .collect::<Outcome<Vec<_>>>()?;
            Value::tuple(meter, parts)
        }
        "startswith" | "endswith" => {
            let [affix] = args.bind(name, ["prefix"])?;
            let affix = required(affix, name)?;
            let test = |affix: &Value| -> Outcome<bool> {
                meter.step(1)?;
                let affix = affix.str_arg(name)?;
                Ok(if name == "startswith" {
                    s.starts_with(affix)
                } else {
                    s.ends_with(affix)
                })
            };
            if let Value::List(list) = &affix {
                for one in &list.items {
                    if test(one)? {
                        return Ok(Value::Bool(true));
                    }
                }
                return Ok(Value::Bool(false));
            }
            test(&affix).map(Value::Bool)
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(name, ["affix"])?;
            let affix = required(affix, name)?;
            let affix = affix.str_arg(name)?;
            let cut = if name == "removeprefix" {
                s.strip_prefix(affix)
            } else {
                s.strip_suffix(affix)
            };
            Value::copied(meter, cut.unwrap_or(s))
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let (old, new) = (required(old, name)?, required(new, name)?);
            let count = match count {
                Some(count) => usize::try_from(count.int_arg(name)?).unwrap_or(usize::MAX),
                None => usize::MAX,
            };
            replace(meter, s, old.str_arg(name)?, new.str_arg(name)?, count)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let [sub] = args.bind(name, ["sub"])?;
            let sub = required(sub, name)?;
            let sub = sub.str_arg(name)?;
            if name == "count" {
                return Ok(Value::Int(s.matches(sub).count() as i64));
            }
            let at = if name.starts_with('r') {
                s.rfind(sub)
            } else {
                s.find(sub)
            };
            match at {
                Some(at) => Ok(Value::Int(s.get(..at).unwrap_or("").chars().count() as i64)),
                None if name.ends_with("index") => fail("the substring was not found"),
                None => Ok(Value::Int(-1)),
            }
        }
        "join" => {
            let [items] = args.bind(name, ["iterable"])?;
            let items = required(items, name)?.iterate(meter)?;
            let mut out = Buffer::new(meter);
            for (i, item) in items.items.iter().enumerate() {
                if i > 0 {
                    out.push(s)?;
                }
                meter.step(1)?;
                out.push(item.str_arg(name)?)?;
            }
            text(out.into_string())
        }
        "format" => format(meter, s, &args),
        "zfill" | "ljust" | "rjust" | "center" => {
            let [width, fill] = args.bind(name, ["width", "fillchar"])?;
            let fill = match &fill {
                Some(fill) => fill.str_arg(name)?.chars().next().unwrap_or(' '),
                None => ' ',
            };
            pad(meter, s, name, required(width, name)?.int_arg(name)?, fill)
        }
        _ => {
            args.none(name)?;
            plain(meter, s, name)
        }
    }
}

/// The methods without arguments.
pub fn plain(meter: &Meter, s: &str, name: &str) -> Outcome<Value> {
    // A case mapping makes a string at most three times as long.
    meter.fits(s.len().saturating_mul(3))?;
    let all = |test: fn(char) -> bool| Ok(Value::Bool(!s.is_empty() && s.chars().all(test)));
    let mapped = match name {
        "upper" => s.to_uppercase(),
        "lower" | "casefold" => s.to_lowercase(),
        "capitalize" => {
            let mut chars = s.chars();
            let first: String = chars
                .next()
                .into_iter()
                .flat_map(char::to_uppercase)
                .collect();
            first + &chars.as_str().to_lowercase()
        }
        "title" => {
            let mut out = String::with_capacity(s.len());
            let mut inside = false;
            for c in s.chars() {
                if inside {
                    out.extend(c.to_lowercase())
                } else {
                    out.extend(c.to_uppercase())
                }
                inside = c.is_alphabetic();
            }
            out
        }
        "swapcase" => {
            let mut out = String::with_capacity(s.len());
            for c in s.chars() {
                if c.is_uppercase() {
                    out.extend(c.to_lowercase())
                } else {
                    out.extend(c.to_uppercase())
                }
            }
            out
        }
        "isdigit" => return all(|c| c.is_ascii_digit()),
        "isalpha" => return all(char::is_alphabetic),
        "isalnum" => return all(char::is_alphanumeric),
        "isspace" => return all(char::is_whitespace),
        "islower" | "isupper" => {
            let wrong = |c: char| {
                if name == "islower" {
                    c.is_uppercase()
                } else {
                    c.is_lowercase()
                }
            };
            let right = |c: char| {
                if name == "islower" {
                    c.is_lowercase()
                } else {
                    c.is_uppercase()
                }
            };
            return Ok(Value::Bool(s.chars().any(right) && !s.chars().any(wrong)));
        }
        _ => return fail(format!("a string has no method '{name}'")),
    };
    Value::text(meter, mapped)
}

pub fn strip(
    meter: &Meter,
    receiver: &Value,
    s: &str,
    chars: Option<&Value>,
    left: bool,
    right: bool,
) -> Outcome<Value> {
    let set = match chars {
        None | Some(Value::None) => None,
        Some(chars) => {
            let set = chars.str_arg("strip")?;
            meter.step(s.len().saturating_mul(set.len()) / 16)?;
            Some(set)
        }
    };
    let gone = |c: char| set.map_or(c.is_whitespace(), |set| set.contains(c));
    let mut kept = s;
    if left {
        kept = kept.trim_start_matches(gone);
    }
    if right {
        kept = kept.trim_end_matches(gone);
    }
    // Nothing to strip is the common case: share the string.
    if kept.len() == s.len() {
        Ok(receiver.clone())
    } else {
        Value::copied(meter, kept)
    }
}

fn split(
    meter: &Meter,
    s: &str,
    sep: Option<Value>,
    max: usize,
    from_right: bool,
) -> Outcome<Value> {
    let sep = match sep {
        None | Some(Value::None) => None,
        Some(sep) => Some(sep),
    };
    let mut parts: Vec<Value> = Vec::new();
    let mut push = |part: &str| -> Outcome<()> {
        meter.fits(parts.len().saturating_mul(SLOT_BYTES))?;
        parts.push(Value::copied(meter, part)?);
        Ok(())
    };
    let limit = max.saturating_add(1);
    match sep {
        None => {
            let mut rest = if from_right {
                s.trim_end()
            } else {
                s.trim_start()
            };
            let mut cuts = 0;
            while !rest.is_empty() {
                let cut = if cuts == max {
                    None
                } else if from_right {
                    rest.rfind(char::is_whitespace)
                } else {
                    rest.find(char::is_whitespace)
                };
                let Some(at) = cut else {
                    // Out of cuts: the rest as it is, blanks at its far end included.
                    push(rest)?;
                    break;
                };
                let (head, tail) = rest.split_at(at);
                if from_right {
                    push(tail.trim_start())?;
                    rest = head.trim_end();
                } else {
                    push(head)?;
                    rest = tail.trim_start();
                }
                cuts += 1;
            }
        }
        Some(sep) => {
            let sep = sep.str_arg("split")?;
            if sep.is_empty() {
                return fail("an empty separator");
            }
            if from_right {
                s.rsplitn(limit, sep).try_for_each(&mut push)?;
            } else {
                s.splitn(limit, sep).try_for_each(&mut push)?;
            }
        }
    }
    if from_right {
        parts.reverse();
    }
    Value::list(meter, parts)
}

pub fn replace(meter: &Meter, s: &str, old: &str, new: &str, count: usize) -> Outcome<Value> {
    meter.work(s.len())?;
    let mut out = Buffer::new(meter);
    let mut from = 0;
    for (at, found) in s.match_indices(old).take(count) {
        meter.step(1)?;
        out.push(s.get(from..at).unwrap_or(""))?;
        out.push(new)?;
        from = at + found.len();
    }
    out.push(s.get(from..).unwrap_or(""))?;
    Value::text(meter, out.into_string())
}

pub fn pad(meter: &Meter, s: &str, how: &str, width: i64, fill: char) -> Outcome<Value> {
    let missing = usize::try_from(width)
        .unwrap_or(0)
        .saturating_sub(s.chars().count());
    let mut out = Buffer::new(meter);
    match how {
        "zfill" => {
            let (sign, digits) = s.split_at(usize::from(s.starts_with(['-', '+'])));
            out.push(sign)?;
            out.pad('0', missing)?;
            out.push(digits)?;
        }
        "rjust" => {
            out.pad(fill, missing)?;
            out.push(s)?;
        }
        "ljust" => {
            out.push(s)?;
            out.pad(fill, missing)?;
        }
        _ => {
            // Python puts the odd one left when the width is odd.
            let left = missing / 2 + (missing & usize::try_from(width).unwrap_or(0) & 1);
            out.pad(fill, left)?;
            out.push(s)?;
            out.pad(fill, missing - left)?;
        }
    }
    Value::text(meter, out.into_string())
}

/// `'{} {0} {name}'.format(…)`, without format specifications.
fn format(meter: &Meter, s: &str, args: &Call) -> Outcome<Value> {
    let mut out = Buffer::new(meter);
    let mut next = 0;
    let mut rest = s;
    while let Some(at) = rest.find(['{', '}']) {
        let (head, tail) = rest.split_at(at);
        out.push(head)?;
        meter.step(1)?;
        if tail.starts_with("{{") || tail.starts_with("}}") {
            out.push(tail.get(..1).unwrap_or(""))?;
            rest = tail.get(2..).unwrap_or("");
            continue;
        }
        let Some((field, after)) = tail.strip_prefix('{').and_then(|t| t.split_once('}')) else {
            return fail("format: a brace is not closed");
        };
        let value = if field.is_empty() {
            next += 1;
            args.positional.get(next - 1)
        } else if let Ok(index) = field.parse::<usize>() {
            args.positional.get(index)
        } else {
            args.named
                .iter()
                .find(|(name, _)| **name == *field)
                .map(|(_, value)| value)
        };
        match value {
            Some(value) => print(meter, value, &mut out)?,
            None => return fail("format: a field has no argument"),
        }
        rest = after;
    }
    out.push(rest)?;
    Value::text(meter, out.into_string())
}
