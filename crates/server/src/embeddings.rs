//! `/v1/embeddings`: one embedding for each text, by the sentence encoder.

use super::body::JsonBody;
use super::fail::{Fail, refuse, require};
use super::json::list;
use super::limits;
use super::request::check_model;
use super::state::Server;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use haversack::engine::encoder::DIMENSIONS;
use haversack_hub::home::ENCODER;
use serde::Deserialize;
use serde_json::{Value as Json, json};

#[derive(Debug, Deserialize)]
pub struct EmbeddingRequest {
    pub model: Option<String>,
    pub input: EmbeddingInput,
    pub encoding_format: Option<String>,
    pub dimensions: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum EmbeddingInput {
    Text(String),
    Texts(Vec<String>),
    Other(Json),
}

pub async fn embeddings(
    State(server): Server,
    JsonBody(request, _): JsonBody<EmbeddingRequest>,
) -> Result<axum::Json<Json>, Fail> {
    let as_text = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return refuse("encoding_format", "accepted: float, base64"),
    };
    check_model(request.model.as_ref())?;
    let is_known = request.dimensions.is_none_or(|n| n == DIMENSIONS as u64);
    require(is_known, "dimensions", format!("accepted: {DIMENSIONS}"))?;
    let (embedded, tokens) = server.encoder.embed(texts(request.input)?).await?;
    let data = list(embedded.iter().enumerate(), |(i, embedding)| {
        let values = embedding.values();
        let embedding = match as_text {
            true => json!(STANDARD.encode(values.map(f32::to_le_bytes).concat())),
            false => json!(values.as_slice()),
        };
        json!({ "object": "embedding", "index": i, "embedding": embedding })
    });
    Ok(axum::Json(json!({
        "object": "list",
        "data": data,
        "model": request.model.as_deref().unwrap_or(ENCODER),
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}

fn texts(input: EmbeddingInput) -> Result<Vec<String>, Fail> {
    let texts = match input {
        EmbeddingInput::Text(text) => vec![text],
        EmbeddingInput::Texts(texts) => texts,
        EmbeddingInput::Other(other) => {
            let first = other.get(0).map(|first| first.get(0).unwrap_or(first));
            let why = match first.is_some_and(Json::is_number) {
                true => "this encoder has a vocabulary of its own and takes no tokens; ",
                false => "",
            };
            let message = format!("{why}accepted: a text, or a list of texts");
            return refuse("input", message);
        }
    };
    let (count, bytes) = (limits::EMBED_TEXTS, limits::EMBED_BYTES);
    let are_few = (1..=count).contains(&texts.len());
    require(are_few, "input", format!("accepted: 1 to {count} texts"))?;
    let are_short = texts.iter().all(|text| (1..=bytes).contains(&text.len()));
    let accepted = format!("accepted: texts of 1 to {bytes} bytes");
    require(are_short, "input", accepted)?;
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_counted_and_tokens_refused() {
        let of = |input: Json| texts(serde_json::from_value(input).unwrap());
        assert_eq!(of(json!("a")).unwrap(), ["a"]);
        assert_eq!(of(json!(["a", "b"])).unwrap(), ["a", "b"]);
        for tokens in [json!([1, 2]), json!([[1], [2]])] {
            let error = of(tokens).unwrap_err().json();
            assert!(
                error["error"]["message"]
                    .as_str()
                    .unwrap()
                    .contains("tokens"),
                "{error}"
            );
        }
        for bad in [
            json!(""),
            json!([]),
            json!(["a", ""]),
            json!({}),
            json!(["a", 1]),
            json!(vec!["a"; limits::EMBED_TEXTS + 1]),
            json!("a".repeat(limits::EMBED_BYTES + 1)),
        ] {
            assert_eq!(of(bad).unwrap_err().json()["error"]["param"], "input");
        }
    }
}
