//! Schemas whose objects have only the properties that they name.
//!
//! JSON Schema lets an object have any others beside them, and a small model writes them: asked for a name, an age and a
//! city, it came back with nine keys. Here, as in other servers, an object is closed unless `additionalProperties`,
//! `unevaluatedProperties` or `patternProperties` says something. Schemas that hold together (`allOf`, or `properties`
//! beside `anyOf` or `$ref`) describe one object between them, so they are closed as a whole: each of them alone would
//! forbid what the others name.

use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};

/// What says nothing about values.
const ANNOTATIONS: &str =
    "title description default examples $comment deprecated readOnly writeOnly";
/// Names that people chose, with a schema behind each.
pub const NAMED_SCHEMAS: &str = "properties patternProperties $defs definitions";
/// Schemas for the same place as the one that they are in.
const MEMBERS: &str = "allOf anyOf oneOf";
/// Schemas for other places.
const BELOW: &str = "items prefixItems additionalItems additionalProperties";
/// Where one of these is, the object is as it says.
const SAID: &str = "additionalProperties unevaluatedProperties patternProperties";

pub fn is_one_of(key: &str, list: &str) -> bool {
    list.split(' ').any(|one| one == key)
}

/// The schema without annotations.
pub fn without_annotations(schema: &Json) -> Json {
    let Json::Object(map) = schema else {
        return schema.clone();
    };
    let kept = map
        .iter()
        .filter(|(key, _)| !is_one_of(key, ANNOTATIONS))
        .map(|(key, value)| {
            (
                key.clone(),
                each_below(key, value, &mut without_annotations),
            )
        });
    Json::Object(kept.collect())
}

/// `value` with every schema in it changed, where `key` is one that has schemas.
fn each_below(key: &str, value: &Json, change: &mut dyn FnMut(&Json) -> Json) -> Json {
    match value {
        Json::Object(fields) if is_one_of(key, NAMED_SCHEMAS) => fields
            .iter()
            .map(|(name, schema)| (name.clone(), change(schema)))
            .collect(),
        Json::Array(items) if is_one_of(key, MEMBERS) || is_one_of(key, BELOW) => {
            items.iter().map(change).collect()
        }
        Json::Object(_) if is_one_of(key, BELOW) => change(value),
        _ => value.clone(),
    }
}

/// The schema with its objects closed, and the bytes that took; `None` if it would be more than `bytes`.
pub fn close(schema: &Json, bytes: usize) -> Option<(Json, usize)> {
    let mut closing = Closing {
        root: schema,
        open: BTreeMap::new(),
        added: Map::new(),
        room: bytes,
    };
    let mut closed = closing.schema(schema, true)?;
    if !closing.added.is_empty() {
        let definitions = closed.as_object_mut()?.entry("$defs");
        let definitions = definitions.or_insert_with(|| json!({}));
        definitions.as_object_mut()?.extend(closing.added);
    }
    Some((closed, bytes - closing.room))
}

struct Closing<'a> {
    root: &'a Json,
    /// Of schemas that are referred to as members: the place of their open copies, by reference.
    open: BTreeMap<&'a str, String>,
    /// Those copies.
    added: Map<String, Json>,
    /// Bytes that may still be added.
    room: usize,
}

impl<'a> Closing<'a> {
    /// `closes`: the objects at the place of this schema; those below it are closed in any case.
    fn schema(&mut self, schema: &'a Json, closes: bool) -> Option<Json> {
        let Json::Object(map) = schema else {
            return Some(schema.clone());
        };
        let closes_members = closes && !is_whole(map);
        let mut closed = Map::new();
        for (key, value) in map {
            let is_member = is_one_of(key, MEMBERS);
            let value = match (key.as_str(), value) {
                ("$ref", Json::String(reference)) if !closes_members => {
                    Json::String(self.open_copy(reference)?)
                }
                (_, Json::Object(fields)) if is_one_of(key, NAMED_SCHEMAS) => {
                    let each = fields.iter();
                    let each = each.map(|(name, of)| Some((name.clone(), self.schema(of, true)?)));
                    Json::Object(each.collect::<Option<_>>()?)
                }
                (_, Json::Array(items)) if is_member || is_one_of(key, BELOW) => {
                    let closes = closes_members || !is_member;
                    let each = items.iter().map(|item| self.schema(item, closes));
                    Json::Array(each.collect::<Option<_>>()?)
                }
                (_, Json::Object(_)) if is_one_of(key, BELOW) => self.schema(value, true)?,
                _ => value.clone(),
            };
            closed.insert(key.clone(), value);
        }
        if closes && let Some(names) = self.names(schema) {
            let properties = closed.entry("properties").or_insert_with(|| json!({}));
            let properties = properties.as_object_mut()?;
            for name in names {
                if !properties.contains_key(name) {
                    self.room = self.room.checked_sub(name.len() + 8)?;
                    properties.insert(name.to_owned(), Json::Bool(true));
                }
            }
            closed.insert("additionalProperties".to_owned(), Json::Bool(false));
        }
        Some(Json::Object(closed))
    }

    /// The names of an object that is to be closed.
    fn names(&self, schema: &'a Json) -> Option<BTreeSet<&'a str>> {
        let mut names = Names::default();
        // Without names beside them, the members of a choice are closed each by itself.
        if !is_whole(schema.as_object()?) && schema.get("properties").is_none() {
            return None;
        }
        self.gather(schema, &mut names);
        names.is_closed().then_some(names.all)
    }

    fn gather(&self, schema: &'a Json, names: &mut Names<'a>) {
        let Json::Object(map) = schema else {
            return;
        };
        names.is_said |= map.keys().any(|key| is_one_of(key, SAID));
        if let Some(Json::Object(properties)) = map.get("properties") {
            names.has_some = true;
            names.all.extend(properties.keys().map(String::as_str));
        }
        let required = map.get("required").and_then(Json::as_array);
        let required = required.into_iter().flatten().filter_map(Json::as_str);
        names.all.extend(required);
        for (key, value) in map {
            match value {
                Json::Array(parts) if is_one_of(key, MEMBERS) => {
                    parts.iter().for_each(|part| self.gather(part, names));
                }
                Json::String(reference) if key == "$ref" && names.seen.insert(reference) => {
                    if let Some(schema) = self.at(reference) {
                        self.gather(schema, names);
                    }
                }
                _ => {}
            }
        }
    }

    fn at(&self, reference: &str) -> Option<&'a Json> {
        self.root.pointer(reference.strip_prefix('#')?)
    }

    /// The place of a copy of what is referred to that is open at its top.
    fn open_copy(&mut self, reference: &'a str) -> Option<String> {
        if let Some(place) = self.open.get(reference) {
            return Some(place.clone());
        }
        let Some(schema) = self.at(reference) else {
            return Some(reference.to_owned());
        };
        let name = format!("open{}", self.open.len());
        let place = format!("#/$defs/{name}");
        self.open.insert(reference, place.clone());
        let mut copy = self.schema(schema, false)?;
        if let Some(copy) = copy.as_object_mut() {
            copy.retain(|key, _| !matches!(key.as_str(), "$defs" | "definitions"));
        }
        self.room = self.room.checked_sub(copy.to_string().len())?;
        self.added.insert(name, copy);
        Some(place)
    }
}

/// Its members are one object.
fn is_whole(map: &Map<String, Json>) -> bool {
    let has = |key: &str| map.contains_key(key);
    let is_alone = map
        .get("allOf")
        .and_then(Json::as_array)
        .is_some_and(|all| all.len() == 1);
    match has("properties") {
        true => has("allOf") || has("anyOf") || has("oneOf") || has("$ref"),
        false => has("allOf") && !is_alone,
    }
}

#[derive(Default)]
struct Names<'a> {
    all: BTreeSet<&'a str>,
    /// References that were followed.
    seen: BTreeSet<&'a str>,
    /// Somewhere properties are named.
    has_some: bool,
    /// Somewhere it is said what others there may be.
    is_said: bool,
}

impl Names<'_> {
    fn is_closed(&self) -> bool {
        self.has_some && !self.is_said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(schema: Json) -> Json {
        close(&schema, 1 << 20).unwrap().0
    }

    #[test]
    fn objects_that_name_properties_are_closed() {
        let inner = json!({ "type": "object", "properties": { "b": { "type": "null" } } });
        let got = closed(json!({
            "type": "object",
            "properties": { "a": inner, "list": { "type": "array", "items": inner } },
            "required": ["a", "more"],
            "$defs": { "inner": inner },
        }));
        assert_eq!(got["additionalProperties"], false);
        assert_eq!(got["properties"]["more"], true);
        for place in ["/properties/a", "/properties/list/items", "/$defs/inner"] {
            assert_eq!(
                got.pointer(place).unwrap()["additionalProperties"],
                false,
                "{place}"
            );
        }
    }

    #[test]
    fn what_is_said_of_others_stays() {
        for said in [
            json!({ "type": "object" }),
            json!({ "type": "object", "properties": { "a": {} }, "additionalProperties": true }),
            json!({ "properties": { "a": {} }, "additionalProperties": { "type": "null" } }),
            json!({ "properties": { "a": {} }, "patternProperties": { "^x": {} } }),
            json!({ "allOf": [{ "properties": { "a": {} } }, { "additionalProperties": true }] }),
            json!({ "const": { "properties": { "a": 1 } }, "enum": [{ "properties": {} }] }),
        ] {
            assert_eq!(closed(said.clone()), said);
        }
    }

    #[test]
    fn members_of_one_object_are_closed_together() {
        let base = json!({ "type": "object", "properties": { "id": { "type": "integer" } } });
        let got = closed(json!({
            "allOf": [
                { "$ref": "#/$defs/base" },
                { "type": "object", "properties": { "name": { "type": "string" } } },
            ],
            "$defs": { "base": base },
        }));
        assert_eq!(got["properties"], json!({ "id": true, "name": true }));
        assert_eq!(got["additionalProperties"], false);
        // The copy that is a member is open, the definition is closed for those who use it alone.
        assert_eq!(got["allOf"][0]["$ref"], "#/$defs/open0");
        assert_eq!(got["$defs"]["open0"], base);
        assert_eq!(got["$defs"]["base"]["additionalProperties"], false);
        assert!(got["allOf"][1].get("additionalProperties").is_none());
    }

    #[test]
    fn members_of_a_choice_are_closed_each() {
        let of = |name: &str| json!({ "type": "object", "properties": { (name): true } });
        let got = closed(json!({ "anyOf": [of("a"), of("b")] }));
        for (at, name) in [(0, "a"), (1, "b")] {
            let one = &got["anyOf"][at];
            assert_eq!(one["properties"], json!({ (name): true }));
            assert_eq!(one["additionalProperties"], false);
        }
        assert!(got.get("properties").is_none());
    }

    /// Circles end, and what grows has an end.
    #[test]
    fn circles_end_and_copies_are_counted() {
        let circle =
            json!({ "properties": { "a": true }, "allOf": [{ "$ref": "#" }, { "$ref": "#" }] });
        assert_eq!(closed(circle)["additionalProperties"], false);
        let name = "n".repeat(100);
        let wide = json!({ "properties": {}, "anyOf": [{ "properties": { (name): true } }] });
        assert!(close(&wide, 50).is_none() && close(&wide, 500).is_some());
    }

    #[test]
    fn annotations_are_left_out_and_names_stay() {
        let schema = json!({
            "title": "T", "description": "D", "type": "object",
            "properties": { "title": { "type": "string", "description": "D" } },
            "anyOf": [{ "description": "D", "items": { "default": 1, "const": { "title": 1 } } }],
        });
        let bare = json!({
            "type": "object",
            "properties": { "title": { "type": "string" } },
            "anyOf": [{ "items": { "const": { "title": 1 } } }],
        });
        assert_eq!(without_annotations(&schema), bare);
    }
}
