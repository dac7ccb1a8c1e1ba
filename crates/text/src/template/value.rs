//! Values of a running template, with Python's truth, equality, order and printing.
//!
//! Invariants: a string, list or mapping holds its own [`Charge`]; lists and mappings never change once made
//! (as in the sandbox that templates are written for); their depth is at most [`VALUE_DEPTH_MAX`]. Only a
//! namespace changes, and the interpreter owns every namespace until the end, so neither a cycle nor a long
//! chain of namespaces can leak or be dropped recursively.

use super::ast::{Macro, Name};
use super::limits::{Buffer, Charge, Meter, Outcome, SLOT_BYTES, VALUE_DEPTH_MAX, fail, limit};
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone)]
pub enum Str {
    /// From the source or from a message: not charged.
    Given(Arc<str>),
    Made(Rc<(Box<str>, Charge)>),
}

impl Str {
    pub fn as_str(&self) -> &str {
        match self {
            Str::Given(text) => text,
            Str::Made(made) => &made.0,
        }
    }
}

pub struct List {
    pub items: Vec<Value>,
    pub tuple: bool,
    depth: usize,
    _charge: Charge,
}

pub struct Dict {
    pub entries: Vec<(Value, Value)>,
    depth: usize,
    _charge: Charge,
}

#[derive(Default)]
pub struct Namespace {
    pub fields: RefCell<Vec<(Name, Value, Charge)>>,
}

pub struct Loop {
    pub items: Rc<List>,
    pub index: Cell<usize>,
    /// Number of loops around this one.
    pub nesting: usize,
}

pub struct Method {
    pub receiver: Value,
    pub name: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Range,
    Namespace,
    Dict,
    RaiseException,
    StrftimeNow,
}

#[derive(Clone)]
pub(super) enum Value {
    /// What was missing, for the message.
    Undefined(Name),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Str),
    List(Rc<List>),
    Dict(Rc<Dict>),
    Namespace(Rc<Namespace>),
    Loop(Rc<Loop>),
    Method(Rc<Method>),
    /// A macro and the number of scopes it sees.
    Macro(Arc<Macro>, usize),
    /// The text of a `call` block.
    Caller(Str),
    Function(Function),
}

impl Value {
    pub fn given(text: &str) -> Value {
        Value::Str(Str::Given(text.into()))
    }

    /// The name is for a message only, and is not charged: it is cut.
    pub fn undefined(name: &str) -> Value {
        let end = name.char_indices().nth(40).map_or(name.len(), |(at, _)| at);
        Value::Undefined(name.get(..end).unwrap_or("").into())
    }

    pub fn text(meter: &Meter, text: String) -> Outcome<Value> {
        let charge = meter.charge(text.len() + SLOT_BYTES)?;
        Ok(Value::Str(Str::Made(Rc::new((
            text.into_boxed_str(),
            charge,
        )))))
    }

    pub fn copied(meter: &Meter, text: &str) -> Outcome<Value> {
        meter.fits(text.len())?;
        Value::text(meter, text.to_owned())
    }

    fn sequence(meter: &Meter, items: Vec<Value>, tuple: bool) -> Outcome<Rc<List>> {
        let charge = meter.charge(items.len().saturating_mul(SLOT_BYTES) + SLOT_BYTES)?;
        let depth = deeper(items.iter())?;
        Ok(Rc::new(List {
            items,
            tuple,
            depth,
            _charge: charge,
        }))
    }

    pub fn list(meter: &Meter, items: Vec<Value>) -> Outcome<Value> {
        Ok(Value::List(Value::sequence(meter, items, false)?))
    }

    pub fn tuple(meter: &Meter, items: Vec<Value>) -> Outcome<Value> {
        Ok(Value::List(Value::sequence(meter, items, true)?))
    }

    /// A mapping; a later entry replaces an earlier one of the same key.
    pub fn dict(meter: &Meter, entries: Vec<(Value, Value)>) -> Outcome<Value> {
        let charge = meter.charge(entries.len().saturating_mul(2 * SLOT_BYTES) + SLOT_BYTES)?;
        let depth = deeper(entries.iter().flat_map(|(k, v)| [k, v]))?;
        let mut unique: Vec<(Value, Value)> = Vec::new();
        for (key, value) in entries {
            if !matches!(
                key,
                Value::Str(_) | Value::Int(_) | Value::Float(_) | Value::Bool(_) | Value::None
            ) {
                return fail(format!("a {} cannot be a key", key.type_name()));
            }
            match find_key(meter, &unique, &key)? {
                Some(at) => unique[at].1 = value,
                None => unique.push((key, value)),
            }
        }
        Ok(Value::Dict(Rc::new(Dict {
            entries: unique,
            depth,
            _charge: charge,
        })))
    }

    pub fn method(receiver: &Value, name: &'static str) -> Outcome<Value> {
        deeper(std::iter::once(receiver))?;
        Ok(Value::Method(Rc::new(Method {
            receiver: receiver.clone(),
            name,
        })))
    }

    fn depth(&self) -> usize {
        match self {
            Value::List(list) => list.depth,
            Value::Dict(dict) => dict.depth,
            Value::Loop(l) => l.items.depth + 1,
            Value::Method(m) => m.receiver.depth() + 1,
            _ => 0,
        }
    }

    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "undefined value",
            Value::None => "none",
            Value::Bool(_) => "boolean",
            Value::Int(_) => "integer",
            Value::Float(_) => "float",
            Value::Str(_) => "string",
            Value::List(list) if list.tuple => "tuple",
            Value::List(_) => "list",
            Value::Dict(_) => "mapping",
            Value::Namespace(_) => "namespace",
            Value::Loop(_) => "loop",
            Value::Method(_) | Value::Macro(..) | Value::Caller(_) | Value::Function(_) => {
                "function"
            }
        }
    }

    /// An undefined value may be tested and printed, not computed with.
    pub fn defined(self) -> Outcome<Value> {
        match &self {
            Value::Undefined(name) => fail(format!("'{name}' is undefined")),
            _ => Ok(self),
        }
    }

    pub fn truth(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(i) => *i != 0,
            Value::Float(f) => *f != 0.0,
            Value::Str(s) => !s.as_str().is_empty(),
            Value::List(list) => !list.items.is_empty(),
            Value::Dict(dict) => !dict.entries.is_empty(),
            _ => true,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(s) => Some(s.as_str()),
            _ => None,
        }
    }

    /// Integers, and booleans as Python counts them.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(i) => Some(*i),
            Value::Bool(b) => Some(i64::from(*b)),
            _ => None,
        }
    }

    pub fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(f) => Some(*f),
            _ => self.as_int().map(|i| i as f64),
        }
    }

    pub fn str_arg(&self, what: &str) -> Outcome<&str> {
        match self.as_str() {
            Some(s) => Ok(s),
            None => fail(format!("{what} needs a string, not a {}", self.type_name())),
        }
    }

    pub fn int_arg(&self, what: &str) -> Outcome<i64> {
        match self.as_int() {
            Some(i) => Ok(i),
            None => fail(format!(
                "{what} needs an integer, not a {}",
                self.type_name()
            )),
        }
    }

    /// What a loop over this value visits.
    pub fn iterate(&self, meter: &Meter) -> Outcome<Rc<List>> {
        match self {
            Value::List(list) => Ok(Rc::clone(list)),
            Value::Dict(dict) => {
                let keys = dict.entries.iter().map(|(k, _)| k.clone()).collect();
                Value::sequence(meter, keys, false)
            }
            Value::Str(s) => {
                let count = s.as_str().chars().count();
                meter.fits(count.saturating_mul(2 * SLOT_BYTES + 8))?;
                meter.step(count)?;
                let mut chars = Vec::with_capacity(count);
                for c in s.as_str().chars() {
                    chars.push(Value::text(meter, c.to_string())?);
                }
                Value::sequence(meter, chars, false)
            }
            Value::Undefined(_) => Value::sequence(meter, Vec::new(), false),
            _ => fail(format!("a {} cannot be iterated", self.type_name())),
        }
    }

    pub fn length(&self, meter: &Meter) -> Outcome<usize> {
        match self {
            Value::Str(s) => {
                meter.work(s.as_str().len())?;
                Ok(s.as_str().chars().count())
            }
            Value::List(list) => Ok(list.items.len()),
            Value::Dict(dict) => Ok(dict.entries.len()),
            Value::Undefined(_) => Ok(0),
            _ => fail(format!("a {} has no length", self.type_name())),
        }
    }
}

fn deeper<'v>(values: impl Iterator<Item = &'v Value>) -> Outcome<usize> {
    let depth = 1 + values.map(Value::depth).max().unwrap_or(0);
    if depth > VALUE_DEPTH_MAX {
        Err(limit("a value is nested too deep"))
    } else {
        Ok(depth)
    }
}

pub fn find_key(meter: &Meter, entries: &[(Value, Value)], key: &Value) -> Outcome<Option<usize>> {
    for (at, (have, _)) in entries.iter().enumerate() {
        if equal(meter, have, key)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

pub fn equal(meter: &Meter, a: &Value, b: &Value) -> Outcome<bool> {
    meter.step(1)?;
    Ok(match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(a), Value::Str(b)) => {
            let (a, b) = (a.as_str(), b.as_str());
            if a.len() == b.len() {
                meter.work(a.len())?;
            }
            a == b
        }
        (Value::List(a), Value::List(b)) => {
            if a.items.len() != b.items.len() || a.tuple != b.tuple {
                return Ok(false);
            }
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(meter, a, b)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            for (key, value) in &a.entries {
                match find_key(meter, &b.entries, key)? {
                    Some(at) if equal(meter, value, &b.entries[at].1)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        (Value::Function(a), Value::Function(b)) => a == b,
        _ => match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => a == b,
            _ => matches!((a.as_float(), b.as_float()), (Some(a), Some(b)) if a == b),
        },
    })
}

pub fn order(meter: &Meter, a: &Value, b: &Value) -> Outcome<Ordering> {
    meter.step(1)?;
    if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
        return Ok(a.cmp(&b));
    }
    if let (Some(a), Some(b)) = (a.as_float(), b.as_float()) {
        // A NaN is ordered somewhere: a sort needs an answer.
        return Ok(a.partial_cmp(&b).unwrap_or_else(|| a.total_cmp(&b)));
    }
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => {
            meter.work(a.as_str().len().min(b.as_str().len()))?;
            Ok(a.as_str().cmp(b.as_str()))
        }
        (Value::List(a), Value::List(b)) => {
            for (a, b) in a.items.iter().zip(&b.items) {
                let order = order(meter, a, b)?;
                if order.is_ne() {
                    return Ok(order);
                }
            }
            Ok(a.items.len().cmp(&b.items.len()))
        }
        _ => fail(format!(
            "cannot compare a {} with a {}",
            a.type_name(),
            b.type_name()
        )),
    }
}

/// `needle in haystack`
pub fn contains(meter: &Meter, haystack: &Value, needle: &Value) -> Outcome<bool> {
    match haystack {
        Value::Str(s) => {
            let Some(needle) = needle.as_str() else {
                return fail(format!(
                    "'in' a string needs a string, not a {}",
                    needle.type_name()
                ));
            };
            meter.work(s.as_str().len())?;
            Ok(s.as_str().contains(needle))
        }
        Value::Dict(dict) => Ok(find_key(meter, &dict.entries, needle)?.is_some()),
        Value::List(list) => {
            for item in &list.items {
                if equal(meter, item, needle)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Undefined(_) => Ok(false),
        _ => fail(format!("'in' does not work on a {}", haystack.type_name())),
    }
}

/// Python's `str()`.
pub fn print(meter: &Meter, value: &Value, out: &mut Buffer) -> Outcome<()> {
    match value {
        Value::Str(s) => out.push(s.as_str()),
        Value::Undefined(_) => Ok(()),
        _ => repr(meter, value, out),
    }
}

/// Python's `repr()`.
pub fn repr(meter: &Meter, value: &Value, out: &mut Buffer) -> Outcome<()> {
    meter.step(1)?;
    match value {
        Value::Undefined(_) => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(true) => out.push("True"),
        Value::Bool(false) => out.push("False"),
        Value::Int(i) => out.push(&i.to_string()),
        Value::Float(f) => out.push(&float_text(*f)),
        Value::Str(s) => repr_str(meter, s.as_str(), out),
        Value::List(list) => {
            out.push(if list.tuple { "(" } else { "[" })?;
            for (i, item) in list.items.iter().enumerate() {
                if i > 0 {
                    out.push(", ")?;
                }
                repr(meter, item, out)?;
            }
            if list.tuple && list.items.len() == 1 {
                out.push(",")?;
            }
            out.push(if list.tuple { ")" } else { "]" })
        }
        Value::Dict(dict) => {
            out.push("{")?;
            for (i, (key, value)) in dict.entries.iter().enumerate() {
                if i > 0 {
                    out.push(", ")?;
                }
                repr(meter, key, out)?;
                out.push(": ")?;
                repr(meter, value, out)?;
            }
            out.push("}")
        }
        // Namespaces may hold themselves: not looked into.
        _ => {
            out.push("<")?;
            out.push(value.type_name())?;
            out.push(">")
        }
    }
}

fn repr_str(meter: &Meter, text: &str, out: &mut Buffer) -> Outcome<()> {
    meter.work(text.len())?;
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\\' => out.push("\\\\")?,
            c if c == quote => {
                out.push("\\")?;
                out.push_char(c)?;
            }
            c if (c as u32) < 0x20 || (0x7f..0xa0).contains(&(c as u32)) => {
                out.push(&format!("\\x{:02x}", c as u32))?
            }
            c => out.push_char(c)?,
        }
    }
    out.push_char(quote)
}

/// The shortest digits that read back, written as Python does.
pub fn float_text(f: f64) -> String {
    if f.is_nan() {
        return "nan".to_owned();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let text = format!("{f:?}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text;
    };
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// Options of [`json`], as the `tojson` of chat templates has them.
pub struct Json {
    pub indent: Option<usize>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
    pub ascii: bool,
}

pub fn json(
    meter: &Meter,
    value: &Value,
    style: &Json,
    level: usize,
    out: &mut Buffer,
) -> Outcome<()> {
    meter.step(1)?;
    let newline = |out: &mut Buffer, level: usize| match style.indent {
        Some(width) => {
            out.push("\n")?;
            out.pad(' ', width.saturating_mul(level))
        }
        None => Ok(()),
    };
    match value {
        Value::None => out.push("null"),
        Value::Bool(b) => out.push(if *b { "true" } else { "false" }),
        Value::Int(i) => out.push(&i.to_string()),
        Value::Float(f) if f.is_nan() => out.push("NaN"),
        Value::Float(f) if f.is_infinite() => {
            out.push(if *f > 0.0 { "Infinity" } else { "-Infinity" })
        }
        Value::Float(f) => out.push(&float_text(*f)),
        Value::Str(s) => json_str(meter, s.as_str(), style.ascii, out),
        Value::List(list) if list.items.is_empty() => out.push("[]"),
        Value::List(list) => {
            out.push("[")?;
            for (i, item) in list.items.iter().enumerate() {
                if i > 0 {
                    out.push(&style.item_separator)?;
                }
                newline(out, level + 1)?;
                json(meter, item, style, level + 1, out)?;
            }
            newline(out, level)?;
            out.push("]")
        }
        Value::Dict(dict) if dict.entries.is_empty() => out.push("{}"),
        Value::Dict(dict) => {
            let mut entries: Vec<&(Value, Value)> = dict.entries.iter().collect();
            if style.sort_keys {
                meter.step(entries.len().saturating_mul(16))?;
                entries.sort_by(|a, b| a.0.as_str().cmp(&b.0.as_str()));
            }
            out.push("{")?;
            for (i, (key, value)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push(&style.item_separator)?;
                }
                newline(out, level + 1)?;
                match key {
                    Value::Str(s) => json_str(meter, s.as_str(), style.ascii, out)?,
                    other => {
                        out.push("\"")?;
                        json(meter, other, style, level + 1, out)?;
                        out.push("\"")?;
                    }
                }
                out.push(&style.key_separator)?;
                json(meter, value, style, level + 1, out)?;
            }
            newline(out, level)?;
            out.push("}")
        }
        _ => fail(format!("a {} cannot be written as JSON", value.type_name())),
    }
}

fn json_str(meter: &Meter, text: &str, ascii: bool, out: &mut Buffer) -> Outcome<()> {
    meter.work(text.len())?;
    out.push("\"")?;
    for c in text.chars() {
        match c {
            '"' => out.push("\\\"")?,
            '\\' => out.push("\\\\")?,
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\u{8}' => out.push("\\b")?,
            '\u{c}' => out.push("\\f")?,
            c if (c as u32) < 0x20 => out.push(&format!("\\u{:04x}", c as u32))?,
            c if ascii && !c.is_ascii() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push(&format!("\\u{unit:04x}"))?;
                }
            }
            c => out.push_char(c)?,
        }
    }
    out.push("\"")
}
