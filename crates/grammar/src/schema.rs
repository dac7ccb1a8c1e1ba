//! Schemas as they are compiled: checked, and with our own say about blanks.

use crate::closed::{close, without_annotations};
use crate::references::Counter;
use crate::{GrammarError, intersection, limits};
use serde_json::{Value as Json, json};

/// Where the compiler looks for its options. What a client puts there is overwritten.
const OPTIONS: &str = "x-guidance";

pub fn any_object() -> Json {
    with_options(json!({ "type": "object" }), false)
}

/// A schema within the limits.
pub struct CheckedSchema {
    pub schema: Json,
    pub bytes: usize,
    /// Of its alternatives, each as long as the schema at most.
    pub alternative_bytes: usize,
}

/// The schema of a function's arguments. What the compiler does not know in it is passed over: clients send what servers of
/// tools wrote for all models.
pub fn check_parameters(parameters: Option<&Json>) -> Result<CheckedSchema, GrammarError> {
    let mut schema = match parameters {
        Some(schema) => schema.clone(),
        None => json!({ "properties": {} }),
    };
    let map = schema.as_object_mut().ok_or(GrammarError::NotAnObject)?;
    let kind = map.entry("type").or_insert_with(|| json!("object"));
    if *kind != json!("object") {
        let refused = "parameters are not an object; accepted type: object".to_owned();
        return Err(GrammarError::Refused(refused));
    }
    check_with(&schema, true)
}

pub fn check(schema: &Json) -> Result<CheckedSchema, GrammarError> {
    check_with(schema, false)
}

fn check_with(schema: &Json, is_lenient: bool) -> Result<CheckedSchema, GrammarError> {
    if !schema.is_object() {
        return Err(GrammarError::NotAnObject);
    }
    let too_long = |bytes, most| GrammarError::Bytes {
        what: "schema",
        bytes,
        most,
    };
    let most = limits::ANNOTATED_BYTES;
    let bytes = schema.to_string().len();
    if bytes > most {
        return Err(too_long(bytes, most));
    }
    let most = limits::SCHEMA_BYTES;
    let schema = without_annotations(schema);
    let bytes = schema.to_string().len();
    if bytes > most {
        return Err(too_long(bytes, most));
    }
    let closed = close(&schema, limits::CLOSING_BYTES);
    let (schema, added) = closed.ok_or(too_long(bytes + limits::CLOSING_BYTES, most))?;
    let bytes = schema.to_string().len();
    let alternatives = alternatives(&schema);
    let most = limits::ALTERNATIVE_BYTES / bytes.max(1);
    if alternatives > most {
        return Err(GrammarError::Alternatives {
            found: alternatives,
            bytes,
            most,
        });
    }
    let found = intersection::ways(&schema);
    let most = limits::WAYS;
    if found > most {
        return Err(GrammarError::Ways { found, most });
    }
    Ok(CheckedSchema {
        schema: with_options(schema, is_lenient),
        bytes,
        alternative_bytes: alternatives * (bytes + added * limits::CLOSED_PER_BYTE),
    })
}

fn with_options(mut schema: Json, is_lenient: bool) -> Json {
    let indent = limits::INDENT;
    schema[OPTIONS] = json!({
        "lenient": is_lenient,
        "whitespace_flexible": true,
        "whitespace_pattern": format!(r"\x20|\x0D?\x0A[\x20\x09]{{0,{indent}}}"),
    });
    schema
}

/// Alternatives of all schemas in this one, as the compiler writes them out: those that meet (`allOf`, or two kinds of
/// them side by side) are multiplied.
fn alternatives(schema: &Json) -> usize {
    sum(&mut Counter::new(schema, alternatives_of), schema)
}

fn sum<'a>(counter: &mut Counter<'a>, schema: &'a Json) -> usize {
    match schema {
        Json::Object(map) => {
            let own = Some(counter.of(schema)).filter(|&own| own > 1).unwrap_or(0);
            map.values()
                .fold(own, |all, value| all.saturating_add(sum(counter, value)))
        }
        Json::Array(items) => items.iter().fold(0, |all, item| {
            usize::saturating_add(all, sum(counter, item))
        }),
        _ => 0,
    }
}

/// Without a type such a keyword is written out for each of six.
const NEEDS_A_TYPE: &str = "additionalProperties format items maxItems maxLength maximum minItems minLength \
    minimum pattern properties required";

/// Of one schema.
fn alternatives_of<'a>(counter: &mut Counter<'a>, schema: &'a Json) -> usize {
    let Json::Object(map) = schema else {
        return 1;
    };
    let mut all = 1usize;
    if !map.contains_key("type") && NEEDS_A_TYPE.split(' ').any(|key| map.contains_key(key)) {
        all = 6;
    }
    for (key, value) in map {
        let list = value.as_array().map_or(&[][..], Vec::as_slice);
        let each = list.iter().map(|one| counter.of(one));
        let some = match (key.as_str(), value) {
            ("anyOf" | "oneOf", _) => each.fold(0, usize::saturating_add),
            ("allOf", _) => each.fold(1, usize::saturating_mul),
            ("enum" | "type", _) => list.len(),
            ("$ref", Json::String(reference)) => counter.at(reference),
            _ => 1,
        };
        all = all.saturating_mul(some.max(1));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_are_counted_everywhere() {
        let schema = json!({
            "type": ["object", "null"],
            "properties": {
                "a": { "enum": [1, 2, 3] },
                "b": { "type": "array", "items": [{ "anyOf": [true, { "type": "null" }] }] },
            },
        });
        assert_eq!(alternatives(&schema), 7);
        // Those that meet are multiplied, also behind references.
        let five = json!({ "anyOf": [{ "enum": [1, 2, 3] }, { "type": ["null", "string"] }] });
        assert_eq!(
            alternatives(&json!({ "allOf": [five, five] })),
            25 + 2 * (5 + 3 + 2)
        );
        let there = json!({ "allOf": [{ "$ref": "#/$defs/x" }, { "$ref": "#/$defs/x" }], "$defs": { "x": { "enum": [1, 2, 3] } } });
        assert_eq!(alternatives(&there), 9 + 3 + 3 + 3);
        assert_eq!(alternatives(&json!({ "minLength": 1 })), 6);
        // Circles and doublings end.
        let circle = json!({ "allOf": [{ "$ref": "#" }, { "$ref": "#" }], "enum": [1, 2] });
        assert!(alternatives(&circle) >= 2);
        let doubling: serde_json::Map<String, Json> = (0..60)
            .map(|i| {
                let next = json!({ "$ref": format!("#/$defs/d{}", i + 1) });
                (format!("d{i}"), json!({ "anyOf": [next, next] }))
            })
            .collect();
        assert!(alternatives(&json!({ "$ref": "#/$defs/d0", "$defs": doubling })) > 1 << 50);
    }

    #[test]
    fn options_of_a_client_are_not_heard() {
        let schema = json!({ "type": "object", OPTIONS: { "whitespace_pattern": "x*" } });
        let got = check(&schema).unwrap().schema;
        assert!(
            got[OPTIONS]["whitespace_pattern"]
                .as_str()
                .unwrap()
                .contains("x20")
        );
        assert_eq!(check(&json!([])).err(), Some(GrammarError::NotAnObject));
    }
}
