//! Schemas as they are compiled: checked, and with our own say about blanks.

use crate::{GrammarError, limits};
use serde_json::{Value as Json, json};

/// Where the compiler looks for its options. What a client puts there is overwritten.
const OPTIONS: &str = "x-guidance";

pub fn any_object() -> Json {
    with_options(json!({ "type": "object" }))
}

/// The schema if it is not too large.
pub fn checked(schema: &Json) -> Result<Json, GrammarError> {
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
    let found = alternatives(schema);
    let most = limits::ALTERNATIVE_BYTES / bytes.max(1);
    if found > most {
        return Err(GrammarError::Alternatives { found, bytes, most });
    }
    Ok(with_options(schema.clone()))
}

fn with_options(mut schema: Json) -> Json {
    let indent = limits::INDENT;
    schema[OPTIONS] = json!({
        "whitespace_flexible": true,
        "whitespace_pattern": format!(r"\x20|\x0D?\x0A[\x20\x09]{{0,{indent}}}"),
    });
    schema
}

/// Items of lists of which one has to fit, wherever they are.
fn alternatives(schema: &Json) -> usize {
    match schema {
        Json::Object(map) => map
            .iter()
            .map(|(key, value)| {
                let is_choice = matches!(key.as_str(), "anyOf" | "oneOf" | "enum" | "type");
                let here = value.as_array().filter(|_| is_choice).map_or(0, Vec::len);
                here + alternatives(value)
            })
            .sum(),
        Json::Array(items) => items.iter().map(alternatives).sum(),
        _ => 0,
    }
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
            "properties": { "a": { "enum": [1, 2, 3] }, "b": { "items": [{ "anyOf": [true] }] } },
        });
        assert_eq!(alternatives(&schema), 6);
    }

    #[test]
    fn options_of_a_client_are_not_heard() {
        let schema = json!({ "type": "object", OPTIONS: { "whitespace_pattern": "x*" } });
        let got = checked(&schema).unwrap();
        assert!(
            got[OPTIONS]["whitespace_pattern"]
                .as_str()
                .unwrap()
                .contains("x20")
        );
        assert_eq!(checked(&json!([])), Err(GrammarError::NotAnObject));
    }
}
