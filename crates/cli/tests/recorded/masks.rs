//! What a recording leaves out, and why: everything that differs between two runs of one build, or between two x86 machines.
//! Text that people read is kept, but apart ([`WORDS`]): it may change for its own sake.

use serde_json::{Map, Value, json};

/// A JSON field whose value is not compared.
struct Mask {
    key: Key,
    /// Stands in place of the value.
    shown: &'static str,
    reason: &'static str,
}

enum Key {
    Is(&'static str),
    Ends(&'static str),
    /// A field of the members of a list.
    In(&'static str, &'static str),
}

#[rustfmt::skip]
const MASKS: &[Mask] = &[
    Mask { key: Key::Ends("_ms"), shown: "<time>", reason: "durations and clock readings" },
    Mask { key: Key::Ends("_seconds"), shown: "<time>", reason: "durations" },
    Mask { key: Key::Ends("_per_second"), shown: "<rate>", reason: "speed of this machine" },
    Mask { key: Key::Is("ms_per_token"), shown: "<time>", reason: "speed of this machine" },
    Mask { key: Key::Is("overhead"), shown: "<rate>", reason: "ratio of two durations" },
    Mask { key: Key::Is("created"), shown: "<time>", reason: "clock" },
    Mask { key: Key::Is("created_at"), shown: "<time>", reason: "clock" },
    Mask { key: Key::Is("since"), shown: "<time>", reason: "clock" },
    Mask { key: Key::In("tool_calls", "id"), shown: "<id>", reason: "drawn anew for every call" },
    Mask { key: Key::Is("peak_bytes"), shown: "<reading>", reason: "of a server: which requests met in a step" },
    Mask { key: Key::Is("private_bytes"), shown: "<reading>", reason: "memory of this process" },
    Mask { key: Key::Is("baseline_bytes"), shown: "<reading>", reason: "memory of this process" },
    Mask { key: Key::Is("pss_bytes"), shown: "<reading>", reason: "memory of this process" },
];

/// Ids that an answer gets by chance or clock: what follows the prefix is not compared.
const IDS: &[&str] = &["chatcmpl-", "cmpl-", "resp_", "msg_", "call_"];

/// A JSON field that holds a sentence, and the group under which `intended.toml` may wave it through.
const WORDS: &[(&str, &str)] = &[
    ("message", "error-wording"),
    ("why", "advice"),
    ("words", "alerts"),
    ("what", "alerts"),
    ("description", "openapi-descriptions"),
    ("summary", "openapi-descriptions"),
];

/// Lines of stderr that come once for each model and home, so that they depend on what ran before, or on this machine.
pub const ONCE: &[&str] = &[
    "packing the weights",
    "measuring the mean keys",
    "  100 % of",
    "probing",
    "memory budget ",
];

/// Headers of an answer that are part of the contract; the others are hyper's.
pub const HEADERS: &[&str] = &[
    "content-type",
    "retry-after",
    "www-authenticate",
    "allow",
    "cache-control",
    "content-security-policy",
    "x-content-type-options",
];

/// The document without what is masked; sentences go to `words`, under their group and place.
pub fn masked(document: &Value, words: &mut Map<String, Value>) -> Value {
    fn walk(value: &Value, place: &str, words: &mut Map<String, Value>) -> Value {
        match value {
            Value::Object(fields) => {
                let fields = fields.iter().map(|(key, value)| {
                    let place = format!("{place}.{key}");
                    (key.clone(), field(key, value, &place, words))
                });
                Value::Object(fields.collect())
            }
            Value::Array(items) => {
                let items = items.iter().enumerate();
                let items = items.map(|(i, item)| walk(item, &format!("{place}.{i}"), words));
                Value::Array(items.collect())
            }
            Value::String(text) => json!(without_id(text)),
            other => other.clone(),
        }
    }
    fn field(key: &str, value: &Value, place: &str, words: &mut Map<String, Value>) -> Value {
        let is_masked = |mask: &&Mask| match mask.key {
            Key::Is(name) => key == name,
            Key::Ends(end) => key.ends_with(end),
            Key::In(list, name) => key == name && place.contains(&format!(".{list}.")),
        };
        if let Some(mask) = MASKS.iter().find(is_masked) {
            return if value.is_null() {
                Value::Null
            } else {
                json!(mask.shown)
            };
        }
        let group = WORDS.iter().find(|(name, _)| *name == key);
        match (group, value) {
            (Some((_, group)), Value::String(text)) => {
                say(words, group, place, json!(text));
                json!("<words>")
            }
            _ => walk(value, place, words),
        }
    }
    walk(document, "", words)
}

/// Text for people, under its group.
pub fn say(words: &mut Map<String, Value>, group: &str, place: &str, text: Value) {
    let group = words.entry(group).or_insert_with(|| json!({}));
    group[place] = text;
}

fn without_id(text: &str) -> String {
    match IDS.iter().find(|id| text.starts_with(**id)) {
        Some(id) => format!("{id}<id>"),
        None => text.to_owned(),
    }
}

/// Names and nesting of a document; of values, which are this machine's, nothing.
pub fn shape(document: &Value) -> Value {
    match document {
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| (key.clone(), shape(value)));
            Value::Object(fields.collect())
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            Value::Array(items.iter().map(shape).collect())
        }
        _ => json!("<any>"),
    }
}

/// The table, for the log of a replay.
pub fn list() -> String {
    let masks = MASKS.iter().map(|mask| {
        let key = match mask.key {
            Key::Is(name) => name.to_owned(),
            Key::Ends(end) => format!("*{end}"),
            Key::In(list, name) => format!("{list}[].{name}"),
        };
        format!("masked: {key}: {}\n", mask.reason)
    });
    masks.collect()
}
