//! What form an answer is to have: `response_format`, `grammar`, and two names that other servers have for them.

use super::Shared;
use super::fail::Fail;
use super::types::Common;
use haversack::engine::sample::Constraint;
use haversack_grammar::{GrammarError, Shape, Vocabulary};
use serde_json::Value as Json;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The vocabulary as grammars see it, made when the first one is asked for. Its bytes are promised before.
#[derive(Debug, Default)]
pub struct Grammars {
    made: OnceLock<Result<Vocabulary, GrammarError>>,
    /// One makes it; others wait.
    making: Mutex<()>,
}

/// The form that a request asks for, and the parameter that does.
pub fn asked(common: &Common) -> Result<Option<(&'static str, Shape)>, Fail> {
    let mut asked = Vec::new();
    if let Some(format) = &common.response_format {
        let shape = response_format(format)?;
        asked.extend(shape.map(|shape| ("response_format", shape)));
    }
    if let Some(grammar) = &common.grammar {
        let regex = grammar.get("regex").and_then(Json::as_str);
        let accepted = || Fail::param("grammar", "accepted: { \"regex\": \"…\" }");
        let shape = Shape::Regex(regex.ok_or_else(accepted)?.to_owned());
        asked.push(("grammar", shape));
    }
    if let Some(regex) = &common.guided_regex {
        asked.push(("guided_regex", Shape::Regex(regex.clone())));
    }
    if let Some(schema) = &common.guided_json {
        asked.push(("guided_json", Shape::Schema(schema.clone())));
    }
    match asked.len() {
        0 | 1 => Ok(asked.pop()),
        _ => Err(Fail::param(
            asked[1].0,
            format!("accepted: one form, and there is {}", asked[0].0),
        )),
    }
}

/// `None` where anything may be said.
pub fn response_format(format: &Json) -> Result<Option<Shape>, Fail> {
    let fail = |what: &str| Err(Fail::param("response_format", what));
    match format.get("type").and_then(Json::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Shape::Object)),
        Some("json_schema") => match format.pointer("/json_schema/schema") {
            Some(schema) => Ok(Some(Shape::Schema(schema.clone()))),
            None => fail("json_schema.schema is missing"),
        },
        _ => fail("accepted types: text, json_object, json_schema"),
    }
}

impl Shared {
    /// A constraint for this form. Takes a while: not for the thread that answers others.
    pub fn constraint(
        &self,
        param: &'static str,
        shape: &Shape,
    ) -> Result<Box<dyn Constraint>, Fail> {
        let vocabulary = self.vocabulary()?.as_ref().map_err(Clone::clone);
        vocabulary
            .and_then(|vocabulary| vocabulary.compile(shape))
            .map_err(|error| Fail::param(param, error.to_string()))
    }

    fn vocabulary(&self) -> Result<&Result<Vocabulary, GrammarError>, Fail> {
        let Grammars { made, making } = &self.grammars;
        let _alone = making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made.get() {
            return Ok(made);
        }
        let tokenizer = self.hall.model.tokenizer();
        let needs = Vocabulary::needs(tokenizer);
        let kept = self
            .hall
            .wait_for(move |desk| desk.keep_beside(needs.making));
        kept.ok_or_else(Fail::stopping)?
            .map_err(|refused| Fail::refused(&refused))?;
        let new = Vocabulary::new(tokenizer);
        let spare = match &new {
            Ok(_) => needs.making - needs.kept,
            Err(_) => needs.making,
        };
        self.hall.wait_for(move |desk| desk.drop_beside(spare));
        Ok(made.get_or_init(|| new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(fields: Json) -> Result<Option<(&'static str, Shape)>, Fail> {
        asked(&serde_json::from_value(fields).unwrap())
    }

    #[test]
    fn one_form_at_most() {
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
        let two = of(json!({ "response_format": object, "guided_regex": "a" })).unwrap_err();
        assert_eq!(two.json()["error"]["param"], "guided_regex");
    }

    #[test]
    fn what_is_no_form_names_its_parameter() {
        for (name, value) in [
            ("response_format", json!({})),
            ("response_format", json!(5)),
            ("response_format", json!({ "type": "xml" })),
            ("response_format", json!({ "type": "json_schema" })),
            (
                "response_format",
                json!({ "type": "json_schema", "json_schema": [] }),
            ),
            ("grammar", json!({ "lark": "start: 1" })),
            ("grammar", json!("a*")),
        ] {
            let error = of(json!({ name: value })).unwrap_err();
            assert_eq!(error.json()["error"]["param"], name);
        }
    }
}
