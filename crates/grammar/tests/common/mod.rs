//! Models to take vocabularies from, chance, and a slow and obvious judge of JSON schemas.

use haversack_engine::{LoadOptions, Model, Repack};
use haversack_testing::models::Spec;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// A tiny model of this name.
pub fn tiny(name: &str) -> Arc<Model> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.gguf");
    Spec::named(name).unwrap().write_file(&path).unwrap();
    load(&path)
}

/// SmolLM2 or Gemma, if it was fetched. Skipping is loud.
pub fn real(file: &str) -> Option<Arc<Model>> {
    let places = [
        std::env::var_os("HAVERSACK_TEST_MODELS").map(PathBuf::from),
        std::env::var_os("HAVERSACK_HOME").map(|home| PathBuf::from(home).join("models")),
        std::env::var_os("HOME")
            .map(|home| PathBuf::from(home).join(".local/share/haversack/models")),
    ];
    let found = places.into_iter().flatten().map(|place| place.join(file));
    let found = found.into_iter().find(|path| path.is_file());
    if found.is_none() {
        println!("SKIPPED: {file} is not here; `haversack pull` fetches it");
    }
    Some(load(&found?))
}

fn load(path: &std::path::Path) -> Arc<Model> {
    let options = LoadOptions {
        repack: Repack::Off,
        ..LoadOptions::default()
    };
    Model::load(path, &options, &mut |_, _| ()).unwrap()
}

/// Chance that is the same each time.
pub struct Dice(pub u64);

impl Dice {
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn roll(&mut self, below: usize) -> usize {
        (self.bits() % below as u64) as usize
    }

    pub fn unit(&mut self) -> f32 {
        self.roll(1 << 20) as f32 / (1 << 20) as f32
    }
}

/// Does the value fit the schema? Only what [`random_schema`] and the tests use is understood.
pub fn fits(schema: &Value, value: &Value, root: &Value) -> bool {
    if let Some(reference) = schema["$ref"].as_str() {
        let place = root.pointer(reference.strip_prefix('#').unwrap());
        return fits(place.unwrap(), value, root);
    }
    let types = match &schema["type"] {
        Value::Null => return choices_fit(schema, value, root),
        Value::String(one) => vec![one.as_str()],
        many => many
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t.as_str().unwrap())
            .collect(),
    };
    let is_type = types.iter().any(|&name| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    });
    is_type && choices_fit(schema, value, root) && parts_fit(schema, value, root)
}

fn choices_fit(schema: &Value, value: &Value, root: &Value) -> bool {
    let of = |name: &str| schema[name].as_array();
    of("enum").is_none_or(|all| all.contains(value))
        && schema.get("const").is_none_or(|only| only == value)
        && of("anyOf").is_none_or(|all| all.iter().any(|one| fits(one, value, root)))
}

fn parts_fit(schema: &Value, value: &Value, root: &Value) -> bool {
    let number = |name: &str| schema[name].as_f64();
    let least = |name: &str, n: f64| number(name).is_none_or(|least| n >= least);
    let most = |name: &str, n: f64| number(name).is_none_or(|most| n <= most);
    match value {
        Value::Number(n) => {
            let n = n.as_f64().unwrap();
            least("minimum", n) && most("maximum", n)
        }
        Value::String(text) => {
            let n = text.chars().count() as f64;
            least("minLength", n) && most("maxLength", n)
        }
        Value::Array(items) => {
            let n = items.len() as f64;
            let good = |item| schema["items"].is_null() || fits(&schema["items"], item, root);
            least("minItems", n) && most("maxItems", n) && items.iter().all(good)
        }
        Value::Object(map) => {
            let none = serde_json::Map::new();
            let known = schema["properties"].as_object().unwrap_or(&none);
            let named = schema["properties"].is_object();
            let closed = match &schema["additionalProperties"] {
                Value::Null => named,
                said => *said == json!(false),
            };
            let required = schema["required"].as_array();
            let mut required = required.into_iter().flatten();
            required.all(|name| map.contains_key(name.as_str().unwrap()))
                && map.iter().all(|(name, value)| match known.get(name) {
                    Some(schema) => fits(schema, value, root),
                    None => !closed,
                })
        }
        _ => true,
    }
}

/// A schema of some depth.
pub fn random_schema(dice: &mut Dice, depth: usize) -> Value {
    let kinds = if depth == 0 { 6 } else { 9 };
    match dice.roll(kinds) {
        0 => json!({ "type": "boolean" }),
        1 => json!({ "type": "null" }),
        2 => {
            let least = dice.roll(2000) as i64 - 1000;
            json!({ "type": "integer", "minimum": least, "maximum": least + dice.roll(5000) as i64 })
        }
        3 => json!({ "type": "number", "minimum": -5, "maximum": dice.roll(10) }),
        4 => {
            let least = dice.roll(4);
            json!({ "type": "string", "minLength": least, "maxLength": least + dice.roll(8) })
        }
        5 => {
            let all = json!(["red", "grün", 7, null, { "a": [1, "\"\\\n"] }]);
            let from = dice.roll(3);
            json!({ "enum": all.as_array().unwrap()[from..] })
        }
        6 => {
            let least = dice.roll(3);
            let items = random_schema(dice, depth - 1);
            json!({ "type": "array", "items": items, "minItems": least, "maxItems": least + dice.roll(3) })
        }
        7 => {
            let one = random_schema(dice, depth - 1);
            json!({ "anyOf": [one, random_schema(dice, depth - 1)] })
        }
        _ => {
            let names = ["name", "größe", "a b", "x\"y", "z"];
            let mut properties = serde_json::Map::new();
            let mut required = Vec::new();
            for name in &names[..dice.roll(names.len())] {
                properties.insert((*name).to_owned(), random_schema(dice, depth - 1));
                if dice.roll(2) == 0 {
                    required.push(*name);
                }
            }
            let mut object = json!({
                "type": "object",
                "properties": properties,
                "required": required,
            });
            // It is closed unless it says otherwise.
            if dice.roll(2) == 0 {
                object["additionalProperties"] = json!(false);
            }
            object
        }
    }
}

#[test]
fn the_judge_says_no() {
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": "integer", "maximum": 3 }, "b": { "$ref": "#/$defs/b" } },
        "required": ["a"],
        "additionalProperties": false,
        "$defs": { "b": { "anyOf": [{ "const": 1 }, { "enum": ["x"] }] } },
    });
    let judge = |value: Value| fits(&schema, &value, &schema);
    assert!(judge(json!({ "a": 3 })) && judge(json!({ "a": -1, "b": "x" })));
    for bad in [
        json!([]),
        json!({}),
        json!({ "a": 4 }),
        json!({ "a": 1.5 }),
        json!({ "a": 1, "b": 2 }),
        json!({ "a": 1, "c": 2 }),
    ] {
        assert!(!judge(bad.clone()), "{bad}");
    }
}
