//! Structured output: an answer that fits a JSON schema, and one that a regular expression matches.
//! `cargo run --release --example structured -- model.gguf`

use haversack::{Engine, Error};

const PERSON: &str = r#"{
    "type": "object",
    "properties": { "name": { "type": "string", "maxLength": 20 }, "age": { "type": "integer" } },
    "required": ["name", "age"],
    "additionalProperties": false
}"#;

fn main() -> Result<(), Error> {
    let model = std::env::args()
        .nth(1)
        .expect("usage: structured MODEL.gguf");
    let engine = Engine::open(model).start()?;

    let prompt = engine.complete("A person as JSON: ");
    println!("{}", prompt.json_schema(PERSON).max_tokens(200).run()?);

    let prompt = engine.complete("Is Paris in France? Answer yes or no: ");
    println!("{}", prompt.regex("yes|no").run()?);
    Ok(())
}
