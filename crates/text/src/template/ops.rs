//! Arithmetic, slices and `%` formatting, all checked: sizes before anything is built, integers at i64.

use super::ast::Binary;
use super::limits::{Buffer, Meter, Outcome, SLOT_BYTES, WIDTH_MAX, fail, limit};
use super::value::{List, Value, float_text, print, repr};

pub fn binary(meter: &Meter, op: Binary, a: Value, b: Value) -> Outcome<Value> {
    if op == Binary::Concat {
        let mut out = Buffer::new(meter);
        print(meter, &a, &mut out)?;
        print(meter, &b, &mut out)?;
        return Value::text(meter, out.into_string());
    }
    let (a, b) = (a.defined()?, b.defined()?);
    match (op, &a, &b) {
        (Binary::Add, Value::Str(x), Value::Str(y)) => {
            let (x, y) = (x.as_str(), y.as_str());
            meter.fits(x.len().saturating_add(y.len()))?;
            return Value::text(meter, [x, y].concat());
        }
        (Binary::Add, Value::List(x), Value::List(y)) if x.tuple == y.tuple => {
            meter.fits(
                x.items
                    .len()
                    .saturating_add(y.items.len())
                    .saturating_mul(SLOT_BYTES),
            )?;
            return same_kind(meter, x, x.items.iter().chain(&y.items).cloned().collect());
        }
        (Binary::Mul, Value::Str(_) | Value::List(_), _) if b.as_int().is_some() => {
            return repeat(meter, &a, &b);
        }
        (Binary::Mul, _, Value::Str(_) | Value::List(_)) if a.as_int().is_some() => {
            return repeat(meter, &b, &a);
        }
        (Binary::Rem, Value::Str(format), _) => {
            let args = match &b {
                Value::List(list) if list.tuple => list.items.clone(),
                _ => vec![b.clone()],
            };
            return percent(meter, format.as_str(), &args);
        }
        _ => {}
    }
    let unsupported = || {
        let name = match op {
            Binary::Add => "+",
            Binary::Sub => "-",
            Binary::Mul => "*",
            Binary::Div => "/",
            Binary::FloorDiv => "//",
            Binary::Rem => "%",
            Binary::Pow => "**",
            Binary::Concat => "~",
        };
        fail(format!(
            "cannot compute {} {name} {}",
            a.type_name(),
            b.type_name()
        ))
    };
    if let (Some(x), Some(y), true) = (a.as_int(), b.as_int(), op != Binary::Div) {
        return integers(op, x, y);
    }
    let (Some(x), Some(y)) = (a.as_float(), b.as_float()) else {
        return unsupported();
    };
    if y == 0.0 && matches!(op, Binary::Div | Binary::FloorDiv | Binary::Rem) {
        return fail("division by zero");
    }
    Ok(Value::Float(match op {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::FloorDiv => (x / y).floor(),
        Binary::Rem => x - y * (x / y).floor(),
        Binary::Pow => x.powf(y),
        Binary::Concat => return unsupported(),
    }))
}

fn integers(op: Binary, x: i64, y: i64) -> Outcome<Value> {
    if y == 0 && matches!(op, Binary::FloorDiv | Binary::Rem) {
        return fail("division by zero");
    }
    let result = match op {
        Binary::Add => x.checked_add(y),
        Binary::Sub => x.checked_sub(y),
        Binary::Mul => x.checked_mul(y),
        // Towards minus infinity, as Python divides.
        Binary::FloorDiv => x.checked_div(y).map(|q| {
            if x % y != 0 && (x < 0) != (y < 0) {
                q - 1
            } else {
                q
            }
        }),
        Binary::Rem => x.checked_rem(y).map(|r| {
            if r != 0 && (r < 0) != (y < 0) {
                r + y
            } else {
                r
            }
        }),
        Binary::Pow if y < 0 => return Ok(Value::Float((x as f64).powf(y as f64))),
        Binary::Pow => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
        Binary::Div | Binary::Concat => None,
    };
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
            meter.fits(s.as_str().len().saturating_mul(count))?;
            // An empty string repeats for nothing, whatever the count.
            Value::text(
                meter,
                if s.as_str().is_empty() {
                    String::new()
                } else {
                    s.as_str().repeat(count)
                },
            )
        }
        Value::List(list) => {
            let len = list.items.len().saturating_mul(count);
            meter.fits(len.saturating_mul(SLOT_BYTES))?;
            same_kind(
                meter,
                list,
                list.items.iter().cycle().take(len).cloned().collect(),
            )
        }
        _ => fail(format!("a {} cannot be repeated", value.type_name())),
    }
}

pub fn negate(value: Value) -> Outcome<Value> {
    let value = value.defined()?;
    match (&value, value.as_int()) {
        (_, Some(i)) => match i.checked_neg() {
            Some(i) => Ok(Value::Int(i)),
            None => fail("an integer does not fit in 64 bits"),
        },
        (Value::Float(f), _) => Ok(Value::Float(-f)),
        _ => fail(format!("cannot negate a {}", value.type_name())),
    }
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
    let distance = if step > 0 { stop - start } else { start - stop };
    let count = if distance > 0 {
        ((distance - 1) / step.abs() + 1) as usize
    } else {
        0
    };
    let indices = (0..count).map(|k| (start + k as i128 * step) as usize);
    meter.step(1 + count / 4)?;
    match value {
        Value::Str(s) => {
            meter.fits(s.as_str().len().saturating_mul(4))?;
            if step == 1 {
                let first = start.max(0) as usize;
                return Value::text(meter, s.as_str().chars().skip(first).take(count).collect());
            }
            let chars: Vec<char> = s.as_str().chars().collect();
            Value::text(meter, indices.filter_map(|i| chars.get(i)).collect())
        }
        Value::List(list) => {
            meter.fits(count.saturating_mul(SLOT_BYTES))?;
            same_kind(
                meter,
                list,
                indices.filter_map(|i| list.items.get(i).cloned()).collect(),
            )
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
        let mut number = || -> Outcome<Option<usize>> {
            let mut value: Option<usize> = None;
            while let Some(digit) = chars
                .next_if(char::is_ascii_digit)
                .and_then(|c| c.to_digit(10))
            {
                value = Some(
                    value
                        .unwrap_or(0)
                        .saturating_mul(10)
                        .saturating_add(digit as usize),
                );
            }
            if value.is_some_and(|v| v > WIDTH_MAX) {
                Err(limit("a formatted field is too wide"))
            } else {
                Ok(value)
            }
        };
        let width = number()?.unwrap_or(0);
        let precision = if chars.next_if_eq(&'.').is_some() {
            let mut value: usize = 0;
            while let Some(digit) = chars
                .next_if(char::is_ascii_digit)
                .and_then(|c| c.to_digit(10))
            {
                value = value.saturating_mul(10).saturating_add(digit as usize);
            }
            if value > WIDTH_MAX {
                return Err(limit("a formatted field is too wide"));
            }
            Some(value)
        } else {
            None
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
        let whole = || match (arg.as_int(), arg) {
            (Some(i), _) => Ok(i),
            (None, Value::Float(f)) => Ok(*f as i64),
            _ => fail(format!(
                "%{conversion} needs a number, not a {}",
                arg.type_name()
            )),
        };
        let mut field = Buffer::new(meter);
        match conversion {
            's' => print(meter, arg, &mut field)?,
            'r' => repr(meter, arg, &mut field)?,
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
                    return fail(format!("%f needs a number, not a {}", arg.type_name()));
                };
                field.push(&format!("{value:.*}", precision.unwrap_or(6)))?;
            }
            'g' | 'e' => field.push(&float_text(arg.as_float().unwrap_or(f64::NAN)))?,
            _ => return fail(format!("a format does not know %{conversion}")),
        }
        let mut field = field.into_string();
        if let (Some(keep), 's' | 'r') = (precision, conversion) {
            field = field.chars().take(keep).collect();
        }
        let pad = width.saturating_sub(field.chars().count());
        if left {
            out.push(&field)?;
            out.pad(' ', pad)?;
        } else if zero && !matches!(conversion, 's' | 'r') {
            let (sign, digits) = field.split_at(usize::from(field.starts_with(['-', '+'])));
            out.push(sign)?;
            out.pad('0', pad)?;
            out.push(digits)?;
        } else {
            out.pad(' ', pad)?;
            out.push(&field)?;
        }
    }
    if args.next().is_some() {
        return fail("too many arguments for a format");
    }
    Value::text(meter, out.into_string())
}
