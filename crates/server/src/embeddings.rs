//! `/v1/embeddings`: texts become directions, by the sentence encoder beside the model.
//!
//! One request is computed at a time, on a thread of its own and on one core: those who are being answered go on.

use super::fail::Fail;
use super::{Shared, request, limits};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use haversack::engine::encoder::{DIMENSIONS, Embedding, Encoder, EncoderOptions};
use haversack_hub::home::{ENCODER, Home};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::sync::{Arc, Weak};
use tokio::sync::{Mutex, Semaphore};

/// The encoder, opened when it is first asked for, and those who wait for it.
pub struct Encoders {
    /// Whoever has it computes.
    encoder: Arc<Mutex<Option<Arc<Encoder>>>>,
    places: Semaphore,
}

impl Default for Encoders {
    fn default() -> Encoders {
        Encoders {
            encoder: Arc::default(),
            places: Semaphore::new(limits::EMBEDDERS),
        }
    }
}

#[derive(Debug, Deserialize)]
pub struct EmbeddingRequest {
    pub model: Option<String>,
    pub input: Input,
    pub encoding_format: Option<String>,
    pub dimensions: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Input {
    Text(String),
    Texts(Vec<String>),
    Other(Json),
}

pub async fn embeddings(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let request: EmbeddingRequest = request::read(&headers, body).await?;
    let as_text = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(Fail::param("encoding_format", "accepted: float, base64")),
    };
    if request.dimensions.is_some_and(|n| n != DIMENSIONS as u64) {
        return Err(Fail::param("dimensions", format!("accepted: {DIMENSIONS}")));
    }
    let texts = texts(request.input)?;
    let place = shared.encoders.places.try_acquire();
    let _place = place.map_err(|_| Fail::busy())?;
    let turn = shared.encoders.encoder.clone().lock_owned().await;
    // Gone with this future: whoever left is not computed for.
    let wanted = Arc::new(());
    let still = Arc::downgrade(&wanted);
    let computed = tokio::task::spawn_blocking(move || {
        let mut turn = turn;
        let encoder = match &*turn {
            Some(encoder) => encoder.clone(),
            None => turn.insert(Arc::new(open()?)).clone(),
        };
        compute(&encoder, &texts, &still)
    });
    let (embedded, tokens) = computed.await.map_err(|_| Fail::stopping())??;
    drop(wanted);
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

fn texts(input: Input) -> Result<Vec<String>, Fail> {
    let texts = match input {
        Input::Text(text) => vec![text],
        Input::Texts(texts) => texts,
        Input::Other(other) => {
            let first = other.get(0).map(|first| first.get(0).unwrap_or(first));
            return Err(match first.is_some_and(Json::is_number) {
                true => Fail::param(
                    "input",
                    "tokens of other vocabularies mean nothing to this encoder; accepted: a text, or a list of texts",
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

fn open() -> Result<Encoder, Fail> {
    let missing = || {
        let status = StatusCode::NOT_IMPLEMENTED;
        Fail::status(
            status,
            "there is no encoder here; `haversack pull minilm` fetches one",
        )
    };
    let home = Home::find().map_err(|_| missing())?;
    let dir = home.encoder();
    if !dir.is_dir() {
        return Err(missing());
    }
    Encoder::open(&dir, &EncoderOptions::default()).map_err(|error| {
        // A client need not know the path.
        log::error!("{}: {error}", dir.display());
        let status = StatusCode::NOT_IMPLEMENTED;
        Fail::status(
            status,
            "the encoder cannot be opened; `haversack pull minilm` fetches it again",
        )
    })
}

/// Directions of the texts, and the tokens they were made of.
fn compute(
    encoder: &Encoder,
    texts: &[String],
    still: &Weak<()>,
) -> Result<(Vec<Embedding>, usize), Fail> {
    let mut tokens = 0;
    let mut embedded = Vec::with_capacity(texts.len());
    for text in texts {
        if still.strong_count() == 0 {
            return Err(Fail::internal("nobody wants it any more"));
        }
        tokens += encoder.tokens(text).len();
        let embedding = encoder.embed(text);
        embedded.push(embedding.map_err(|error| Fail::internal(error.to_string()))?);
    }
    Ok((embedded, tokens))
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
