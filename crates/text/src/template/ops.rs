//! Arithmetic, slices and `%` formatting, all checked: sizes before anything is built, integers at i64.

use super::limits::{Buffer, Meter, Outcome, SLOT_BYTES, WIDTH_MAX, fail, limit};
use super::methods;
use super::value::{List, Value, float_text, print, repr};
use std::iter::Peekable;
use std::str::Chars;

/// `a op b`, the operator as it is written.
pub fn binary(meter: &Meter, op: &str, a: Value, b: Value) -> Outcome<Value> {
    if op == "~" {
        let mut out = Buffer::new(meter);
        print(&a, &mut out)?;
        print(&b, &mut out)?;
        return Value::written(out);
    }
    let (a, b) = (a.defined()?, b.defined()?);
    match (op, &a, &b) {
        ("+", Value::Str(x), Value::Str(y)) => {
            meter.fits(x.len().saturating_add(y.len()))?;
            return Value::text(meter, [&**x, y].concat());
        }
        ("+", Value::List(x), Value::List(y)) if x.tuple == y.tuple => {
            let len = x.items.len().saturating_add(y.items.len());
            meter.fits(len.saturating_mul(SLOT_BYTES))?;
            return same_kind(meter, x, x.items.iter().chain(&y.items).cloned().collect());
        }
        ("*", Value::Str(_) | Value::List(_), _) if b.as_int().is_some() => {
            return repeat(meter, &a, &b);
        }
        ("*", _, Value::Str(_) | Value::List(_)) if a.as_int().is_some() => {
            return repeat(meter, &b, &a);
        }
        ("%", Value::Str(format), Value::List(list)) if list.tuple => {
            return percent(meter, format, &list.items);
        }
        ("%", Value::Str(format), one) => {
            return percent(meter, format, std::slice::from_ref(one));
        }
        _ => {}
    }
    let unsupported = || {
        let (a, b) = (a.type_name(), b.type_name());
        fail(format!("cannot compute {a} {op} {b}"))
    };
    if let (Some(x), Some(y), true) = (a.as_int(), b.as_int(), op != "/") {
        return integers(op, x, y);
    }
    let (Some(x), Some(y)) = (a.as_float(), b.as_float()) else {
        return unsupported();
    };
    if y == 0.0 && matches!(op, "/" | "//" | "%") {
        return fail("division by zero");
    }
    Ok(Value::Float(match op {
        "+" => x + y,
        "-" => x - y,
        "*" => x * y,
        "/" => x / y,
        "//" => (x / y).floor(),
        "%" => x - y * (x / y).floor(),
        "**" => x.powf(y),
        _ => return unsupported(),
    }))
}

fn integers(op: &str, x: i64, y: i64) -> Outcome<Value> {
    if y == 0 && matches!(op, "//" | "%") {
        return fail("division by zero");
    }
    let result = match op {
        "+" => x.checked_add(y),
        "-" => x.checked_sub(y),
        "*" => x.checked_mul(y),
        // Towards minus infinity, as Python divides.
        "//" => x
            .checked_div(y)
            .map(|q| q - i64::from(x % y != 0 && (x < 0) != (y < 0))),
        "%" => x.checked_rem(y).map(|r| {
            if r != 0 && (r < 0) != (y < 0) {
                r + y
            } else {
                r
            }
        }),
        "**" if y < 0 => return Ok(Value::Float((x as f64).powf(y as f64))),
        "**" => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
        _ => None,
    };
    whole(result)
}

fn whole(result: Option<i64>) -> Outcome<Value> {
    match result {
        Some(value) => Ok(Value::Int(value)),
        None => fail("an integer does not fit in 64 bits"),
    }
}

fn same_kind(meter: &Meter, like: &List, items: Vec<Value>) -> Outcome<Value> {
    if like.tuple {
        Value::tuple(meter, items)
    } else {
        Value::list(meter, items)
    }
}

fn repeat(meter: &Meter, value: &Value, count: &Value) -> Outcome<Value> {
    let count = usize::try_from(count.int_arg("repetition")?).unwrap_or(0);
    match value {
        Value::Str(s) => {
            meter.fits(s.len().saturating_mul(count))?;
            // An empty string repeats for nothing, whatever the count.
            let count = if s.is_empty() { 0 } else { count };
            Value::text(meter, s.repeat(count))
        }
        Value::List(list) => {
            let len = list.items.len().saturating_mul(count);
            meter.fits(len.saturating_mul(SLOT_BYTES))?;
            let items = list.items.iter().cycle().take(len);
            same_kind(meter, list, items.cloned().collect())
        }
        _ => fail(format!("a {} cannot be repeated", value.type_name())),
    }
}

pub fn negate(value: Value) -> Outcome<Value> {
    let value = value.defined()?;
    match (&value, value.as_int()) {
        (_, Some(i)) => whole(i.checked_neg()),
        (Value::Float(f), _) => Ok(Value::Float(-f)),
        _ => fail(format!("cannot negate a {}", value.type_name())),
    }
}

/// How many of `start`, `start + step`, … stand before `stop`.
pub fn count(start: i128, stop: i128, step: i128) -> i128 {
    let distance = if step > 0 { stop - start } else { start - stop };
    (distance + step.abs() - 1).max(0) / step.abs()
}

/// Python's slice: absent parts by the sign of the step, everything clamped, nothing overflows.
pub fn slice(meter: &Meter, value: &Value, parts: [Option<i64>; 3]) -> Outcome<Value> {
    let len = value.length(meter)?;
    let step = i128::from(parts[2].unwrap_or(1));
    if step == 0 {
        return fail("a slice cannot have a step of zero");
    }
    let end = len as i128;
    let (low, high) = if step > 0 { (0, end) } else { (-1, end - 1) };
    let bound = |part: Option<i64>, absent: i128| match part {
        None => absent,
        Some(at) if at < 0 => (i128::from(at) + end).clamp(low, high),
        Some(at) => i128::from(at).clamp(low, high),
    };
    let start = bound(parts[0], if step > 0 { low } else { high });
    let stop = bound(parts[1], if step > 0 { high } else { low });
    let count = count(start, stop, step) as usize;
    let indices = (0..count).map(|k| (start + k as i128 * step) as usize);
    meter.step(1 + count / 4)?;
    match value {
        Value::Str(s) => {
            meter.fits(s.len().saturating_mul(4))?;
            if step == 1 {
                let first = start.max(0) as usize;
                return Value::text(meter, s.chars().skip(first).take(count).collect());
            }
            let chars: Vec<char> = s.chars().collect();
            Value::text(meter, indices.filter_map(|i| chars.get(i)).collect())
        }
        Value::List(list) => {
            meter.fits(count.saturating_mul(SLOT_BYTES))?;
            let items = indices.filter_map(|i| list.items.get(i).cloned());
            same_kind(meter, list, items.collect())
        }
        Value::Undefined(name) => fail(format!("'{name}' is undefined")),
        _ => fail(format!("a {} cannot be sliced", value.type_name())),
    }
}

/// `'…' % args`
pub fn percent(meter: &Meter, format: &str, args: &[Value]) -> Outcome<Value> {
    meter.work(format.len())?;
    let mut out = Buffer::new(meter);
    let mut args = args.iter();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push_char(c)?;
            continue;
        }
        let (mut left, mut zero, mut plus) = (false, false, false);
        while let Some(flag) = chars.next_if(|c| matches!(c, '-' | '0' | '+' | ' ' | '#')) {
            left |= flag == '-';
            zero |= flag == '0';
            plus |= flag == '+';
        }
        let width = number(&mut chars)?;
        let precision = match chars.next_if_eq(&'.') {
            Some(_) => Some(number(&mut chars)?),
            None => None,
        };
        let Some(conversion) = chars.next() else {
            return fail("a format ends inside a field");
        };
        if conversion == '%' {
            out.push("%")?;
            continue;
        }
        let Some(arg) = args.next() else {
            return fail("too few arguments for a format");
        };
        let found = arg.type_name();
        let whole = || match (arg.as_int(), arg) {
            (Some(i), _) => Ok(i),
            (None, Value::Float(f)) => Ok(*f as i64),
            _ => fail(format!("%{conversion} needs a number, not a {found}")),
        };
        let mut field = Buffer::new(meter);
        match conversion {
            's' => print(arg, &mut field)?,
            'r' => repr(arg, &mut field)?,
            'd' | 'i' | 'u' => {
                let value = whole()?;
                if plus && value >= 0 {
                    field.push("+")?;
                }
                field.push(&value.to_string())?;
            }
            'x' => field.push(&format!("{:x}", whole()?))?,
            'X' => field.push(&format!("{:X}", whole()?))?,
            'f' | 'F' => {
                let Some(value) = arg.as_float() else {
                    return fail(format!("%f needs a number, not a {found}"));
                };
                field.push(&format!("{value:.*}", precision.unwrap_or(6)))?;
            }
            'g' | 'e' => field.push(&float_text(arg.as_float().unwrap_or(f64::NAN)))?,
            _ => return fail(format!("a format does not know %{conversion}")),
        }
        let mut field = field.into_string();
        let is_text = matches!(conversion, 's' | 'r');
        if let (Some(keep), true) = (precision, is_text) {
            field = field.chars().take(keep).collect();
        }
        let filled = if zero && !is_text { "zfill" } else { "rjust" };
        let how = if left { "ljust" } else { filled };
        methods::pad(&mut out, &field, how, width, ' ')?;
    }
    if args.next().is_some() {
        return fail("too many arguments for a format");
    }
    Value::written(out)
}

fn number(chars: &mut Peekable<Chars<'_>>) -> Outcome<usize> {
    let mut value: usize = 0;
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        value = value
            .saturating_mul(10)
            .saturating_add(digit as usize - '0' as usize);
    }
    limit(value > WIDTH_MAX, "a formatted field is too wide")?;
    Ok(value)
}
