//! Structured output: `response_format`, `grammar`, and two names that other servers have for them.

use super::fail::{Fail, refuse};
use super::state::ServerState;
use super::types::CommonFields;
use haversack::Error;
use haversack::engine::sample::Constraint;
use haversack::grammar::Shape;
use serde_json::Value as Json;
use std::sync::Arc;

/// The parameter that asks for a shape, and the shape.
pub type NamedShape = (&'static str, Shape);

/// The shape that a request asks for.
pub fn requested(common: &CommonFields) -> Result<Option<NamedShape>, Fail> {
    let mut found = Vec::new();
    if let Some(format) = &common.response_format {
        let name = "response_format";
        let shape = self::format(name, format, "/json_schema/schema")?;
        found.extend(shape.map(|shape| (name, shape)));
    }
    if let Some(given) = &common.grammar {
        found.push(("grammar", grammar(given)?));
    }
    // What a grammar is written in shows in how it defines a rule.
    let grammar = common
        .guided_grammar
        .clone()
        .map(|text| match text.contains("::=") {
            true => Shape::Gbnf(text),
            false => Shape::Lark(text),
        });
    found.extend(grammar.map(|shape| ("guided_grammar", shape)));
    let regex = common.guided_regex.clone().map(Shape::Regex);
    found.extend(regex.map(|shape| ("guided_regex", shape)));
    let schema = common.guided_json.clone().map(Shape::Schema);
    found.extend(schema.map(|shape| ("guided_json", shape)));
    if let [(first, _), (second, _), ..] = found[..] {
        let message = format!("accepted: one of these, and {first} is there already");
        return refuse(second, message);
    }
    Ok(found.pop())
}

/// A regular expression or a grammar by its kind; a text alone is GBNF, as in llama-server.
fn grammar(given: &Json) -> Result<Shape, Fail> {
    if let Json::String(text) = given {
        return Ok(Shape::Gbnf(text.clone()));
    }
    let one = given.as_object().filter(|map| map.len() == 1);
    let text = |name: &str| one?.get(name)?.as_str().map(str::to_owned);
    let shape = text("regex").map(Shape::Regex);
    let shape = shape.or_else(|| text("gbnf").map(Shape::Gbnf));
    let shape = shape.or_else(|| text("lark").map(Shape::Lark));
    let accepted =
        r#"accepted: { "regex": "…" }, { "gbnf": "…" }, { "lark": "…" }, or a text of GBNF"#;
    shape.ok_or_else(|| Fail::param("grammar", accepted))
}

/// A format object; `schema` points to its schema. `None`: the answer is free text.
pub fn format(param: &'static str, format: &Json, schema: &str) -> Result<Option<Shape>, Fail> {
    match format.get("type").and_then(Json::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Shape::Object)),
        Some("json_schema") => match format.pointer(schema) {
            Some(schema) => Ok(Some(Shape::Schema(schema.clone()))),
            None => refuse(param, "the schema is missing"),
        },
        _ => refuse(param, "accepted types: text, json_object, json_schema"),
    }
}

/// A constraint for this shape, made by the thread that compiles them.
pub async fn constraint(
    server: &Arc<ServerState>,
    shape: Option<NamedShape>,
) -> Result<Option<Box<dyn Constraint>>, Fail> {
    let Some((param, shape)) = shape else {
        return Ok(None);
    };
    let here = server.clone();
    let compiled = server
        .admission
        .compile(move || here.client().constraint(&shape));
    match compiled.await? {
        Ok(constraint) => Ok(Some(constraint)),
        Err(Error::Grammar(error)) => Err(Fail::param(param, error.to_string())),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(fields: Json) -> Result<Option<NamedShape>, Fail> {
        requested(&serde_json::from_value(fields).unwrap())
    }

    #[test]
    fn one_shape_at_most() {
        assert!(of(json!({})).unwrap().is_none());
        assert!(
            of(json!({ "response_format": { "type": "text" } }))
                .unwrap()
                .is_none()
        );
        let object = json!({ "type": "json_object" });
        let found = of(json!({ "response_format": object })).unwrap();
        assert_eq!(found, Some(("response_format", Shape::Object)));
        let found =
            of(json!({ "response_format": { "type": "text" }, "grammar": { "regex": "a" } }));
        assert_eq!(found.unwrap(), Some(("grammar", Shape::Regex("a".into()))));
        for (fields, shape) in [
            (
                json!({ "grammar": "root ::= \"a\"" }),
                Shape::Gbnf("root ::= \"a\"".into()),
            ),
            (
                json!({ "grammar": { "gbnf": "x" } }),
                Shape::Gbnf("x".into()),
            ),
            (
                json!({ "grammar": { "lark": "x" } }),
                Shape::Lark("x".into()),
            ),
            (
                json!({ "guided_grammar": "root ::= \"a\"" }),
                Shape::Gbnf("root ::= \"a\"".into()),
            ),
            (
                json!({ "guided_grammar": "start: \"a\"" }),
                Shape::Lark("start: \"a\"".into()),
            ),
        ] {
            assert_eq!(of(fields).unwrap().unwrap().1, shape);
        }
        let two = of(json!({ "response_format": object, "guided_regex": "a" })).unwrap_err();
        assert_eq!(two.json()["error"]["param"], "guided_regex");
    }

    #[test]
    fn a_wrong_shape_names_its_parameter() {
        for (name, value) in [
            ("response_format", json!({})),
            ("response_format", json!(5)),
            ("response_format", json!({ "type": "xml" })),
            ("response_format", json!({ "type": "json_schema" })),
            (
                "response_format",
                json!({ "type": "json_schema", "json_schema": [] }),
            ),
            ("grammar", json!({ "ebnf": "start: 1" })),
            ("grammar", json!({ "lark": "start: 1", "regex": "a" })),
            ("grammar", json!(["a*"])),
        ] {
            let error = of(json!({ name: value })).unwrap_err();
            assert_eq!(error.json()["error"]["param"], name);
        }
    }
}
