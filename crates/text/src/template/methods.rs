//! Python methods of strings, mappings and lists, as templates call them. Those that would change their
//! receiver do not exist: the sandbox that templates are written for refuses them too.

use super::call::{Call, count, flag, required};
use super::limits::{Buffer, Meter, Outcome, SLOT_BYTES, fail};
use super::value::{Dict, List, Str, Value, equal, print};

/// The methods of each kind of value, by name.
const STRING: &str = "strip lstrip rstrip split rsplit splitlines startswith endswith upper lower title \
    capitalize replace find rfind index rindex count join format isdigit isalpha isalnum isspace islower \
    isupper removeprefix removesuffix zfill ljust rjust center swapcase casefold partition rpartition";
const MAPPING: &str = "get items keys values copy";
const SEQUENCE: &str = "index count copy";

/// The method of that name, if this value has one.
pub fn find(value: &Value, name: &str) -> Option<&'static str> {
    let names = match value {
        Value::Str(_) => STRING,
        Value::Dict(_) => MAPPING,
        Value::List(_) => SEQUENCE,
        _ => "",
    };
    names.split(' ').find(|have| *have == name)
}

pub fn call(meter: &Meter, receiver: &Value, name: &str, args: Call) -> Outcome<Value> {
    if name == "copy" {
        args.none(name)?;
        return Ok(receiver.clone());
    }
    match receiver {
        Value::Str(s) => string(meter, s, name, args),
        Value::Dict(dict) => mapping(meter, dict, name, args),
        Value::List(list) => sequence(meter, list, name, args),
        _ => fail(format!("a {} has no method '{name}'", receiver.type_name())),
    }
}

fn mapping(meter: &Meter, dict: &Dict, name: &str, args: Call) -> Outcome<Value> {
    if name == "get" {
        let [key, default] = args.bind("get", ["key", "default"])?;
        let found = dict.get(meter, &required(key, "get")?)?.cloned();
        return Ok(found.or(default).unwrap_or(Value::None));
    }
    args.none(name)?;
    match name {
        "items" => items(meter, dict),
        "keys" => Value::list(meter, dict.keys()),
        "values" => Value::list(meter, dict.entries.iter().map(|(_, v)| v.clone()).collect()),
        _ => fail(format!("a mapping has no method '{name}'")),
    }
}

pub fn items(meter: &Meter, dict: &Dict) -> Outcome<Value> {
    let pair = |(k, v): &(Value, Value)| Value::tuple(meter, vec![k.clone(), v.clone()]);
    let pairs = dict.entries.iter().map(pair);
    Value::list(meter, pairs.collect::<Outcome<_>>()?)
}

fn sequence(meter: &Meter, list: &List, name: &str, args: Call) -> Outcome<Value> {
    let wanted = args.one(name, "value")?;
    let mut count = 0;
    for (at, item) in list.items.iter().enumerate() {
        if equal(meter, item, &wanted)? {
            if name == "index" {
                return Ok(Value::int(at));
            }
            count += 1;
        }
    }
    if name == "index" {
        return fail("the value is not in the list");
    }
    Ok(Value::Int(count))
}

fn string(meter: &Meter, s: &Str, name: &str, args: Call) -> Outcome<Value> {
    meter.work(s.len())?;
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(name, ["chars"])?;
            strip(meter, s, chars, name != "rstrip", name != "lstrip")
        }
        "split" | "rsplit" => {
            let [sep, max] = args.bind(name, ["sep", "maxsplit"])?;
            let sep = sep.filter(|sep| !sep.is_none());
            split(meter, s, sep, count(max, name)?, name == "rsplit")
        }
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"])?;
            let keep = flag(keep);
            let mut lines = Vec::new();
            let mut rest = &**s;
            while !rest.is_empty() {
                let end = rest.find(['\n', '\r']).unwrap_or(rest.len());
                let (line, tail) = rest.split_at(end);
                let ending = tail.len().min(1 + usize::from(tail.starts_with("\r\n")));
                let whole = rest.get(..end + ending).unwrap_or(rest);
                lines.push(Value::copied(meter, if keep { whole } else { line })?);
                rest = tail.get(ending..).unwrap_or("");
            }
            Value::list(meter, lines)
        }
        "startswith" | "endswith" => {
            let affix = args.one(name, "prefix")?;
            let affixes = match &affix {
                Value::List(list) => &list.items,
                one => std::slice::from_ref(one),
            };
            for affix in affixes {
                meter.step(1)?;
                let affix = affix.str_arg(name)?;
                let found = match name {
                    "startswith" => s.starts_with(affix),
                    _ => s.ends_with(affix),
                };
                if found {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        "partition" | "rpartition" => search(meter, s, name, &args.one(name, "sep")?),
        "removeprefix" | "removesuffix" => search(meter, s, name, &args.one(name, "affix")?),
        "find" | "rfind" | "index" | "rindex" | "count" => {
            search(meter, s, name, &args.one(name, "sub")?)
        }
        "replace" => {
            let [old, new, max] = args.bind(name, ["old", "new", "count"])?;
            let (old, new) = (required(old, name)?, required(new, name)?);
            let max = count(max, name)?;
            replace(meter, s, old.str_arg(name)?, new.str_arg(name)?, max)
        }
        "join" => {
            let items = args.one(name, "iterable")?.iterate(meter)?;
            let mut out = Buffer::new(meter);
            out.join(&items.items, s, |out, item| {
                meter.step(1)?;
                out.push(item.str_arg(name)?)
            })?;
            Value::written(out)
        }
        "format" => format(meter, s, &args),
        "zfill" | "ljust" | "rjust" | "center" => {
            let [width, fill] = args.bind(name, ["width", "fillchar"])?;
            let fill = match &fill {
                Some(fill) => fill.str_arg(name)?.chars().next().unwrap_or(' '),
                None => ' ',
            };
            let width = required(width, name)?.int_arg(name)?;
            padded(meter, s, name, width, fill)
        }
        _ => {
            args.none(name)?;
            plain(meter, s, name)
        }
    }
}

/// The methods that look for one string in another.
fn search(meter: &Meter, s: &str, name: &str, wanted: &Value) -> Outcome<Value> {
    let wanted = wanted.str_arg(name)?;
    let place = |at: Option<usize>| match at {
        Some(at) => Ok(Value::int(s.get(..at).unwrap_or("").chars().count())),
        None if name.ends_with("index") => fail("the substring was not found"),
        None => Ok(Value::Int(-1)),
    };
    let cut = match name {
        "count" => return Ok(Value::int(s.matches(wanted).count())),
        "find" | "index" => return place(s.find(wanted)),
        "rfind" | "rindex" => return place(s.rfind(wanted)),
        "removeprefix" => return Value::copied(meter, s.strip_prefix(wanted).unwrap_or(s)),
        "removesuffix" => return Value::copied(meter, s.strip_suffix(wanted).unwrap_or(s)),
        _ if wanted.is_empty() => return fail("an empty separator"),
        "partition" => s.split_once(wanted),
        _ => s.rsplit_once(wanted),
    };
    let parts = match cut {
        Some((a, b)) => [a, wanted, b],
        None if name == "partition" => [s, "", ""],
        None => ["", "", s],
    };
    let parts = parts.into_iter().map(|part| Value::copied(meter, part));
    Value::tuple(meter, parts.collect::<Outcome<_>>()?)
}

/// The methods without arguments.
pub fn plain(meter: &Meter, s: &str, name: &str) -> Outcome<Value> {
    // A case mapping makes a string at most three times as long.
    meter.fits(s.len().saturating_mul(3))?;
    let any = |test: fn(char) -> bool| s.chars().any(test);
    let all = |test: fn(char) -> bool| !s.is_empty() && s.chars().all(test);
    let mapped = match name {
        "upper" => s.to_uppercase(),
        "lower" | "casefold" => s.to_lowercase(),
        "capitalize" => {
            let mut chars = s.chars();
            let first = chars.next().into_iter().flat_map(char::to_uppercase);
            first.collect::<String>() + &chars.as_str().to_lowercase()
        }
        "title" => {
            let mut inside = false;
            cased(s, |c| !std::mem::replace(&mut inside, c.is_alphabetic()))
        }
        "swapcase" => cased(s, |c| !c.is_uppercase()),
        _ => {
            return Ok(Value::Bool(match name {
                "isdigit" => all(|c| c.is_ascii_digit()),
                "isalpha" => all(char::is_alphabetic),
                "isalnum" => all(char::is_alphanumeric),
                "isspace" => all(char::is_whitespace),
                "islower" => any(char::is_lowercase) && !any(char::is_uppercase),
                "isupper" => any(char::is_uppercase) && !any(char::is_lowercase),
                _ => return fail(format!("a string has no method '{name}'")),
            }));
        }
    };
    Value::text(meter, mapped)
}

/// Each character in upper case where `upper` says so, else in lower case.
fn cased(s: &str, mut upper: impl FnMut(char) -> bool) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        if upper(c) {
            out.extend(c.to_uppercase())
        } else {
            out.extend(c.to_lowercase())
        }
    }
    out
}

/// `s` without the characters of `chars`, or without blanks, at its ends.
pub fn strip(
    meter: &Meter,
    s: &Str,
    chars: Option<Value>,
    left: bool,
    right: bool,
) -> Outcome<Value> {
    let chars = chars.filter(|chars| !chars.is_none());
    let set = chars
        .as_ref()
        .map(|chars| chars.str_arg("strip"))
        .transpose()?;
    if let Some(set) = set {
        meter.step(s.len().saturating_mul(set.len()) / 16)?;
    }
    let gone = |c: char| set.map_or(c.is_whitespace(), |set| set.contains(c));
    let mut kept = &**s;
    if left {
        kept = kept.trim_start_matches(gone);
    }
    if right {
        kept = kept.trim_end_matches(gone);
    }
    // Nothing to strip is the common case: share the string.
    if kept.len() == s.len() {
        return Ok(Value::Str(s.clone()));
    }
    Value::copied(meter, kept)
}

/// The parts of `s` between separators, or between blanks, after at most `max` cuts.
fn split(meter: &Meter, s: &str, sep: Option<Value>, max: usize, right: bool) -> Outcome<Value> {
    let mut parts: Vec<Value> = Vec::new();
    let mut push = |part: &str| -> Outcome<()> {
        meter.fits(parts.len().saturating_mul(SLOT_BYTES))?;
        parts.push(Value::copied(meter, part)?);
        Ok(())
    };
    if let Some(sep) = sep {
        let sep = sep.str_arg("split")?;
        let count = max.saturating_add(1);
        if sep.is_empty() {
            return fail("an empty separator");
        }
        if right {
            s.rsplitn(count, sep).try_for_each(&mut push)?;
        } else {
            s.splitn(count, sep).try_for_each(&mut push)?;
        }
    } else {
        let blank = char::is_whitespace;
        let mut rest = if right { s.trim_end() } else { s.trim_start() };
        let mut cuts = 0;
        while !rest.is_empty() {
            let at = if right {
                rest.rfind(blank)
            } else {
                rest.find(blank)
            };
            let Some(at) = at.filter(|_| cuts < max) else {
                // Out of cuts: the rest as it is, blanks at its far end included.
                push(rest)?;
                break;
            };
            let (head, tail) = rest.split_at(at);
            if right {
                push(tail.trim_start())?;
                rest = head.trim_end();
            } else {
                push(head)?;
                rest = tail.trim_start();
            }
            cuts += 1;
        }
    }
    if right {
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
    Value::written(out)
}

pub fn padded(meter: &Meter, s: &str, how: &str, width: i64, fill: char) -> Outcome<Value> {
    let mut out = Buffer::new(meter);
    pad(&mut out, s, how, usize::try_from(width).unwrap_or(0), fill)?;
    Value::written(out)
}

/// Writes `s`, at least `width` characters wide, filled up where `how` says.
pub fn pad(out: &mut Buffer, s: &str, how: &str, width: usize, fill: char) -> Outcome<()> {
    let missing = width.saturating_sub(s.chars().count());
    let (sign, s) = s.split_at(usize::from(how == "zfill" && s.starts_with(['-', '+'])));
    let (fill, left) = match how {
        "zfill" => ('0', missing),
        "rjust" => (fill, missing),
        "ljust" => (fill, 0),
        // Python puts the odd one left when the width is odd.
        _ => (fill, missing / 2 + (missing & width & 1)),
    };
    out.push(sign)?;
    out.pad(fill, left)?;
    out.push(s)?;
    out.pad(fill, missing - left)
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
            let mut named = args.named.iter();
            named
                .find(|(name, _)| **name == *field)
                .map(|(_, value)| value)
        };
        match value {
            Some(value) => print(value, &mut out)?,
            None => return fail("format: a field has no argument"),
        }
        rest = after;
    }
    out.push(rest)?;
    Value::written(out)
}
