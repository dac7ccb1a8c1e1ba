//! `/v1/chat/completions`: messages through the model's own template.

use super::answer::{Api, answer};
use super::fail::Fail;
use super::sessions::{self, Bound};
use super::types::{ChatMessage, ChatRequest};
use super::{Shared, ask};
use crate::engine::to_be_answered;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use haversack::Model;
use haversack::text::chat::encode_chat;
use haversack::text::template::Message;
use std::sync::Arc;

pub async fn chat(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let request: ChatRequest = ask::read(&headers, body).await?;
    let top = match request.logprobs {
        Some(true) => Some(request.top_logprobs.unwrap_or(0)),
        _ if request.top_logprobs.is_some() => {
            return Err(Fail::param("top_logprobs", "it needs logprobs"));
        }
        _ => None,
    };
    let bound = sessions::bind(&shared, &request).await?;
    let to = shared.clone();
    // A long prompt takes a while to become tokens: others are answered meanwhile.
    let asked = tokio::task::spawn_blocking(move || {
        let model = &to.hall.model;
        let (stops, common) = (model.template().stop_strings(), &request.common);
        match bound {
            Some(Bound { session, text }) => {
                ask::turn(&to.hall, &session, &text, stops, common, top)
            }
            None => {
                let prompt = encode(model, &request.messages)?;
                ask::ask(&to.hall, prompt, stops, common, top)
            }
        }
    });
    let asked = asked.await.map_err(|_| Fail::stopping())??;
    answer(shared, Api::Chat, asked).await
}

fn encode(model: &Model, messages: &[ChatMessage]) -> Result<Vec<u32>, Fail> {
    if messages.is_empty() {
        return Err(Fail::param("messages", "accepted: one at least"));
    }
    let messages: Vec<Message> = messages
        .iter()
        .map(|m| Message::new(m.role.as_str(), m.text()))
        .collect();
    let options = to_be_answered();
    encode_chat(model.template(), model.tokenizer(), &messages, &options)
        .map_err(|error| Fail::param("messages", error.to_string()))
}
