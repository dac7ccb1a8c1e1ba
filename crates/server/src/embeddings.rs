//! `/v1/embeddings`: one embedding for each text, by the sentence encoder.

use super::fail::Fail;
use super::state::ServerState;
use super::{body, limits};
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use haversack::engine::encoder::DIMENSIONS;
use haversack_hub::home::ENCODER;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::sync::Arc;

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
    State(server): State<Arc<ServerState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let request: EmbeddingRequest = body::read(&headers, body).await?;
    let as_text = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(Fail::param("encoding_format", "accepted: float, base64")),
    };
    if request.dimensions.is_some_and(|n| n != DIMENSIONS as u64) {
        return Err(Fail::param("dimensions", format!("accepted: {DIMENSIONS}")));
    }
    let (embedded, tokens) = server.encoder.embed(texts(request.input)?).await?;
    let data: Vec<Json> = embedded
        .iter()
        .enumerate()
        .map(|(i, embedding)| {
            let values = embedding.values();
            let embedding = match as_text {
                true => json!(STANDARD.encode(values.map(f32::to_le_bytes).concat())),
                false => json!(values.as_slice()),
            };
            json!({ "object": "embedding", "index": i, "embedding": embedding })
        })
        .collect();
    let body = json!({
        "object": "list",
        "data": data,
        "model": request.model.as_deref().unwrap_or(ENCODER),
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    });
    Ok(axum::Json(body).into_response())
}

fn texts(input: EmbeddingInput) -> Result<Vec<String>, Fail> {
    let texts = match input {
        EmbeddingInput::Text(text) => vec![text],
        EmbeddingInput::Texts(texts) => texts,
        EmbeddingInput::Other(other) => {
            let first = other.get(0).map(|first| first.get(0).unwrap_or(first));
            return Err(match first.is_some_and(Json::is_number) {
                true => Fail::param(
                    "input",
                    "this encoder has a vocabulary of its own and takes no tokens; accepted: a text, or a list of texts",
                ),
                false => Fail::param("input", "accepted: a text, or a list of texts"),
            });
        }
    };
    let (count, bytes) = (limits::EMBED_TEXTS, limits::EMBED_BYTES);
    if !(1..=count).contains(&texts.len()) {
        return Err(Fail::param(
            "input",
            format!("accepted: 1 to {count} texts"),
        ));
    }
    if !texts.iter().all(|text| (1..=bytes).contains(&text.len())) {
        return Err(Fail::param(
            "input",
            format!("accepted: texts of 1 to {bytes} bytes"),
        ));
    }
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
