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
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone)]
pub enum Str {
    /// From the source or from a message: not charged.
    Given(Arc<str>),
    Made(Rc<(Box<str>, Charge)>),
}

impl Str {
    pub fn made(meter: &Meter, text: String) -> Outcome<Str> {
        let charge = meter.charge(text.len() + SLOT_BYTES)?;
        Ok(Str::Made(Rc::new((text.into_boxed_str(), charge))))
    }
}

impl Deref for Str {
    type Target = str;

    fn deref(&self) -> &str {
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

impl Dict {
    pub fn get(&self, meter: &Meter, key: &Value) -> Outcome<Option<&Value>> {
        let at = find_key(meter, &self.entries, key)?;
        Ok(at.map(|at| &self.entries[at].1))
    }

    pub fn keys(&self) -> Vec<Value> {
        self.entries.iter().map(|(key, _)| key.clone()).collect()
    }
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
    /// A function that every template has, by its name.
    Function(&'static str),
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
        Str::made(meter, text).map(Value::Str)
    }

    pub fn written(out: Buffer) -> Outcome<Value> {
        Value::text(out.meter, out.into_string())
    }

    pub fn copied(meter: &Meter, text: &str) -> Outcome<Value> {
        meter.fits(text.len())?;
        Value::text(meter, text.to_owned())
    }

    fn sequence(meter: &Meter, items: Vec<Value>, tuple: bool) -> Outcome<Rc<List>> {
        let _charge = meter.charge(items.len().saturating_mul(SLOT_BYTES) + SLOT_BYTES)?;
        let depth = deeper(items.iter())?;
        Ok(Rc::new(List {
            items,
            tuple,
            depth,
            _charge,
        }))
    }

    pub fn list(meter: &Meter, items: Vec<Value>) -> Outcome<Value> {
        Ok(Value::List(Value::sequence(meter, items, false)?))
    }

    pub fn tuple(meter: &Meter, items: Vec<Value>) -> Outcome<Value> {
        Ok(Value::List(Value::sequence(meter, items, true)?))
    }

    pub fn int(n: usize) -> Value {
        Value::Int(n as i64)
    }

    /// A mapping; a later entry replaces an earlier one of the same key.
    pub fn dict(meter: &Meter, entries: Vec<(Value, Value)>) -> Outcome<Value> {
        let _charge = meter.charge(entries.len().saturating_mul(2 * SLOT_BYTES) + SLOT_BYTES)?;
        let depth = deeper(entries.iter().flat_map(|(k, v)| [k, v]))?;
        let mut unique: Vec<(Value, Value)> = Vec::new();
        for (key, value) in entries {
            let is_scalar = key.as_str().is_some() || key.as_float().is_some();
            if !is_scalar && !key.is_none() {
                return fail(format!("a {} cannot be a key", key.type_name()));
            }
            match find_key(meter, &unique, &key)? {
                Some(at) => unique[at].1 = value,
                None => unique.push((key, value)),
            }
        }
        let entries = unique;
        Ok(Value::Dict(Rc::new(Dict {
            entries,
            depth,
            _charge,
        })))
    }

    pub fn method(receiver: &Value, name: &'static str) -> Outcome<Value> {
        deeper(std::iter::once(receiver))?;
        let receiver = receiver.clone();
        Ok(Value::Method(Rc::new(Method { receiver, name })))
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
            _ => "function",
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
            Value::Str(s) => !s.is_empty(),
            Value::List(list) => !list.items.is_empty(),
            Value::Dict(dict) => !dict.entries.is_empty(),
            _ => true,
        }
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Value::None)
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(s) => Some(s),
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
        let found = self.type_name();
        match self.as_int() {
            Some(i) => Ok(i),
            None => fail(format!("{what} needs an integer, not a {found}")),
        }
    }

    /// What a loop over this value visits.
    pub fn iterate(&self, meter: &Meter) -> Outcome<Rc<List>> {
        match self {
            Value::List(list) => Ok(Rc::clone(list)),
            Value::Dict(dict) => Value::sequence(meter, dict.keys(), false),
            Value::Str(s) => {
                let count = s.chars().count();
                meter.fits(count.saturating_mul(2 * SLOT_BYTES + 8))?;
                meter.step(count)?;
                let chars = s.chars().map(|c| Value::text(meter, c.to_string()));
                Value::sequence(meter, chars.collect::<Outcome<_>>()?, false)
            }
            Value::Undefined(_) => Value::sequence(meter, Vec::new(), false),
            _ => fail(format!("a {} cannot be iterated", self.type_name())),
        }
    }

    pub fn length(&self, meter: &Meter) -> Outcome<usize> {
        match self {
            Value::Str(s) => {
                meter.work(s.len())?;
                Ok(s.chars().count())
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
    limit(depth > VALUE_DEPTH_MAX, "a value is nested too deep")?;
    Ok(depth)
}

fn find_key(meter: &Meter, entries: &[(Value, Value)], key: &Value) -> Outcome<Option<usize>> {
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
            if a.len() == b.len() {
                meter.work(a.len())?;
            }
            **a == **b
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
                match b.get(meter, key)? {
                    Some(other) if equal(meter, value, other)? => {}
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
            meter.work(a.len().min(b.len()))?;
            Ok(a.cmp(b))
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
        _ => {
            let (a, b) = (a.type_name(), b.type_name());
            fail(format!("cannot compare a {a} with a {b}"))
        }
    }
}

/// `a op b`, the operator as it is written or as a test names it.
pub fn compare(meter: &Meter, op: &str, a: &Value, b: &Value) -> Outcome<bool> {
    Ok(match op {
        "==" | "eq" | "equalto" => equal(meter, a, b)?,
        "!=" | "ne" => !equal(meter, a, b)?,
        "<" | "lt" | "lessthan" => order(meter, a, b)?.is_lt(),
        "<=" | "le" => order(meter, a, b)?.is_le(),
        ">" | "gt" | "greaterthan" => order(meter, a, b)?.is_gt(),
        ">=" | "ge" => order(meter, a, b)?.is_ge(),
        "in" => contains(meter, b, a)?,
        _ => !contains(meter, b, a)?,
    })
}

/// `needle in haystack`
fn contains(meter: &Meter, haystack: &Value, needle: &Value) -> Outcome<bool> {
    match haystack {
        Value::Str(s) => {
            let needle = needle.str_arg("'in' a string")?;
            meter.work(s.len())?;
            Ok(s.contains(needle))
        }
        Value::Dict(dict) => Ok(dict.get(meter, needle)?.is_some()),
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
pub fn print(value: &Value, out: &mut Buffer) -> Outcome<()> {
    match value {
        Value::Str(s) => out.push(s),
        Value::Undefined(_) => Ok(()),
        _ => repr(value, out),
    }
}

pub fn printed(meter: &Meter, value: &Value) -> Outcome<String> {
    let mut out = Buffer::new(meter);
    print(value, &mut out)?;
    Ok(out.into_string())
}

/// Python's `repr()`.
pub fn repr(value: &Value, out: &mut Buffer) -> Outcome<()> {
    out.meter.step(1)?;
    match value {
        Value::Undefined(_) => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(true) => out.push("True"),
        Value::Bool(false) => out.push("False"),
        Value::Int(i) => out.push(&i.to_string()),
        Value::Float(f) => out.push(&float_text(*f)),
        Value::Str(s) => repr_str(s, out),
        Value::List(list) => {
            out.push(if list.tuple { "(" } else { "[" })?;
            out.join(&list.items, ", ", |out, item| repr(item, out))?;
            if list.tuple && list.items.len() == 1 {
                out.push(",")?;
            }
            out.push(if list.tuple { ")" } else { "]" })
        }
        Value::Dict(dict) => {
            out.push("{")?;
            out.join(&dict.entries, ", ", |out, (key, value)| {
                repr(key, out)?;
                out.push(": ")?;
                repr(value, out)
            })?;
            out.push("}")
        }
        // Namespaces may hold themselves: not looked into.
        _ => out.push(&format!("<{}>", value.type_name())),
    }
}

fn repr_str(text: &str, out: &mut Buffer) -> Outcome<()> {
    out.meter.work(text.len())?;
    let double = text.contains('\'') && !text.contains('"');
    let quote = if double { '"' } else { '\'' };
    out.push_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\\' => out.push("\\\\")?,
            c if c == quote => out.push(&format!("\\{c}"))?,
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
pub struct Json<'a> {
    pub indent: Option<usize>,
    /// Behind an item, and behind a key.
    pub separators: [&'a str; 2],
    pub sort_keys: bool,
    pub ascii: bool,
}

pub fn json(value: &Value, style: &Json, level: usize, out: &mut Buffer) -> Outcome<()> {
    out.meter.step(1)?;
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
        Value::Str(s) => json_str(s, style.ascii, out),
        Value::List(list) if list.items.is_empty() => out.push("[]"),
        Value::List(list) => {
            out.push("[")?;
            out.join(&list.items, style.separators[0], |out, item| {
                newline(out, level + 1)?;
                json(item, style, level + 1, out)
            })?;
            newline(out, level)?;
            out.push("]")
        }
        Value::Dict(dict) if dict.entries.is_empty() => out.push("{}"),
        Value::Dict(dict) => {
            let mut entries: Vec<&(Value, Value)> = dict.entries.iter().collect();
            if style.sort_keys {
                out.meter.step(entries.len().saturating_mul(16))?;
                entries.sort_by(|a, b| a.0.as_str().cmp(&b.0.as_str()));
            }
            out.push("{")?;
            out.join(entries, style.separators[0], |out, (key, value)| {
                newline(out, level + 1)?;
                if let Value::Str(s) = key {
                    json_str(s, style.ascii, out)?;
                } else {
                    out.push("\"")?;
                    json(key, style, level + 1, out)?;
                    out.push("\"")?;
                }
                out.push(style.separators[1])?;
                json(value, style, level + 1, out)
            })?;
            newline(out, level)?;
            out.push("}")
        }
        _ => fail(format!("a {} cannot be written as JSON", value.type_name())),
    }
}

fn json_str(text: &str, ascii: bool, out: &mut Buffer) -> Outcome<()> {
    out.meter.work(text.len())?;
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
