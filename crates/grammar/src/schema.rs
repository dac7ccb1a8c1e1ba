//! Schemas as they are compiled: checked, and with our own say about blanks.

use crate::references::Counter;
use crate::{GrammarError, intersection, limits};
use serde_json::{Value as Json, json};

/// Where the compiler looks for its options. What a client puts there is overwritten.
const OPTIONS: &str = "x-guidance";

pub fn any_object() -> Json {
    with_options(json!({ "type": "object" }))
}

/// A schema within the limits.
pub struct CheckedSchema {
    pub schema: Json,
    pub bytes: usize,
    /// Of its alternatives, each as long as the schema at most.
    pub alternative_bytes: usize,
}

pub fn check(schema: &Json) -> Result<CheckedSchema, GrammarError> {
    if !schema.is_object() {
        return Err(GrammarError::NotAnObject);
    }
    let bytes = schema.to_string().len();
    if bytes > limits::SCHEMA_BYTES {
        return Err(GrammarError::Bytes {
            what: "schema",
            bytes,
            most: limits::SCHEMA_BYTES,
        });
    }
    let alternatives = alternatives(schema);
    let most = limits::ALTERNATIVE_BYTES / bytes.max(1);
    if alternatives > most {
        return Err(GrammarError::Alternatives {
            found: alternatives,
            bytes,
            most,
        });
    }
    let found = intersection::ways(schema);
    let most = limits::WAYS;
    if found > most {
        return Err(GrammarError::Ways { found, most });
    }
    Ok(CheckedSchema {
        schema: with_options(schema.clone()),
        bytes,
        alternative_bytes: alternatives * bytes,
    })
}

fn with_options(mut schema: Json) -> Json {
    let indent = limits::INDENT;
    schema[OPTIONS] = json!({
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

/// Something that an answer may call.
#[derive(Clone, Copy, Debug)]
pub struct Callable<'a> {
    pub name: &'a str,
    /// What its arguments are: a schema of an object. Without one it takes none.
    pub parameters: Option<&'a Json>,
}

/// The schema of `{"name": …, "arguments": {…}}` for one of these.
pub fn calls(callables: &[Callable<'_>]) -> Json {
    let mut definitions = serde_json::Map::new();
    let mut calls = Vec::new();
    for (i, callable) in callables.iter().enumerate() {
        let place = format!("arguments{i}");
        let root = format!("#/$defs/{place}");
        let parameters = match callable.parameters {
            Some(schema) => moved(schema, &root),
            None => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        };
        definitions.insert(place, parameters);
        calls.push(json!({
            "type": "object",
            "properties": {
                "name": { "const": callable.name },
                "arguments": { "$ref": root },
            },
            "required": ["name", "arguments"],
            "additionalProperties": false,
        }));
    }
    json!({ "anyOf": calls, "$defs": definitions })
}

/// A schema that was a document of its own and is now at `root`: its references are to places below that.
fn moved(schema: &Json, root: &str) -> Json {
    match schema {
        Json::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), moved_below(key, value, root)))
            .collect(),
        other => other.clone(),
    }
}

fn moved_below(key: &str, value: &Json, root: &str) -> Json {
    match (key, value) {
        ("$ref", Json::String(reference)) => match reference.strip_prefix('#') {
            Some(rest) => Json::String(format!("{root}{}", rest.trim_end_matches('/'))),
            None => value.clone(),
        },
        // Values, not schemas.
        ("const" | "enum" | "default" | "examples" | "required", _) => value.clone(),
        // Names that people chose, and a schema behind each.
        ("properties" | "patternProperties" | "$defs" | "definitions", Json::Object(map)) => map
            .iter()
            .map(|(name, schema)| (name.clone(), moved(schema, root)))
            .collect(),
        (_, Json::Array(items)) => items.iter().map(|item| moved(item, root)).collect(),
        _ => moved(value, root),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_move_with_their_document() {
        let schema = json!({
            "type": "object",
            "properties": {
                "$ref": { "$ref": "#/$defs/point" },
                "all": { "type": "array", "items": { "$ref": "#" } },
                "kept": { "const": { "$ref": "#/$defs/point" } },
                "one": { "anyOf": [{ "$ref": "#/$defs/point" }, { "type": "null" }] },
            },
            "$defs": { "point": { "type": "integer" } },
        });
        let got = calls(&[Callable {
            name: "f",
            parameters: Some(&schema),
        }]);
        let place = &got["$defs"]["arguments0"]["properties"];
        let point = json!("#/$defs/arguments0/$defs/point");
        assert_eq!(place["$ref"]["$ref"], point);
        assert_eq!(place["all"]["items"]["$ref"], "#/$defs/arguments0");
        assert_eq!(place["kept"]["const"]["$ref"], "#/$defs/point");
        assert_eq!(place["one"]["anyOf"][0]["$ref"], point);
        assert_eq!(got["anyOf"][0]["properties"]["name"]["const"], "f");
    }

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
