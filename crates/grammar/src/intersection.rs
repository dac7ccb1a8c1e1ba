//! How many ways regular expressions that must hold together can go on in.
//!
//! The compiler looks at all pairs of ways of an intersection in one step, before it counts fuel: `allOf` of twenty patterns
//! `.*x.{n}`, under 1 KB, took 36 s and 2.6 GB. So the product of their ways is bounded before anything is compiled.

use crate::limits;
use crate::references::Counter;
use serde_json::Value as Json;

/// In the worst place of a schema, at most.
pub fn ways(schema: &Json) -> usize {
    Counter::new(schema, ways_of).of(schema)
}

/// Schemas that hold together meet wherever both say something: their worst places are multiplied.
fn ways_of<'a>(counter: &mut Counter<'a>, schema: &'a Json) -> usize {
    let map = match schema {
        Json::Object(map) => map,
        Json::Array(items) => return worst(counter, items.iter()),
        _ => return 1,
    };
    // Of this text itself, of places below it, and of schemas that hold at the same time.
    let (mut own, mut below, mut meeting) = (1usize, 1usize, 1usize);
    for (key, value) in map {
        match (key.as_str(), value) {
            ("pattern", Json::String(regex)) => own = own.saturating_mul(of_regex(regex)),
            ("format", _) => own = own.saturating_mul(limits::FORMAT_WAYS),
            ("minLength" | "maxLength", _) => own = own.saturating_mul(2),
            ("allOf", Json::Array(parts)) => {
                let each = parts.iter().map(|part| counter.of(part));
                meeting = each.fold(meeting, usize::saturating_mul);
            }
            ("anyOf" | "oneOf", Json::Array(parts)) => {
                meeting = meeting.saturating_mul(worst(counter, parts.iter()));
            }
            ("$ref", Json::String(reference)) => {
                meeting = meeting.saturating_mul(counter.at(reference));
            }
            // Each is compared with each, and names that fit none have to avoid all.
            ("patternProperties", Json::Object(fields)) => {
                let most = fields.keys().map(|regex| of_regex(regex)).max();
                if let Some(most) = most.filter(|_| fields.len() > 1) {
                    let pairs = most.saturating_mul(most);
                    below = below.max(pairs.saturating_mul(fields.len()));
                }
                below = below.max(worst(counter, fields.values()));
            }
            ("properties" | "$defs" | "definitions", Json::Object(fields)) => {
                below = below.max(worst(counter, fields.values()));
            }
            // Values, not schemas.
            ("const" | "enum" | "default" | "examples", _) => {}
            _ => below = below.max(counter.of(value)),
        }
    }
    own.max(below).saturating_mul(meeting)
}

fn worst<'a>(counter: &mut Counter<'a>, schemas: impl Iterator<Item = &'a Json>) -> usize {
    schemas.map(|schema| counter.of(schema)).max().unwrap_or(1)
}

/// One, and one more for each place where the expression may go on in two ways.
fn of_regex(regex: &str) -> usize {
    let (mut ways, mut is_class, mut is_escaped) = (1, false, false);
    for c in regex.chars() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '[' => is_class = true,
            ']' => is_class = false,
            '*' | '+' | '?' | '{' | '|' if !is_class => ways += 1,
            _ => {}
        }
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Wherever expressions meet, their ways are multiplied; where they do not, the worst counts.
    #[test]
    fn ways_are_multiplied_where_expressions_meet() {
        let of = |schema: Json| ways(&schema);
        let pattern = json!({ "type": "string", "pattern": r"a*[*?]\+b+" });
        assert_eq!(of(pattern.clone()), 3);
        assert_eq!(of(json!({ "allOf": [pattern, pattern] })), 9);
        let object = json!({ "properties": { "a": pattern, "b": { "items": pattern } } });
        assert_eq!(of(object.clone()), 3);
        let meeting = json!({ "allOf": [object, object], "properties": { "a": pattern } });
        assert_eq!(of(meeting), 27);
        let there = json!({ "$ref": "#/$defs/x", "pattern": "a*", "$defs": { "x": pattern } });
        assert_eq!(of(there), 9);
        let either = json!({ "anyOf": [pattern, { "type": "null" }], "maxLength": 9 });
        assert_eq!(of(either), 6);
        let values = json!({ "enum": ["a*b*"], "const": { "pattern": "a*" } });
        assert_eq!(of(values), 1);
        let many: serde_json::Map<String, Json> = (0..500)
            .map(|i| (format!("^a{i}.*$"), json!(true)))
            .collect();
        assert_eq!(of(json!({ "patternProperties": many })), 2000);
        // A circle ends, and counts what it leads to once more.
        assert_eq!(of(json!({ "allOf": [{ "$ref": "#" }, pattern] })), 9);
    }
}
