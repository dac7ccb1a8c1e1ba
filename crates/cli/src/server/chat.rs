//! `/v1/chat/completions`: messages through the model's own template.

use super::answer::{Api, answer};
use super::ask::Wanted;
use super::fail::Fail;
use super::types::{ChatMessage, ChatRequest, Content, Part};
use super::{Shared, ask, shape};
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
    let (here, now) = (shared.clone(), shared.hall.now());
    // A long prompt takes a while to become tokens, and a schema to be compiled: others are answered meanwhile.
    let asked = tokio::task::spawn_blocking(move || {
        let top = match request.logprobs {
            Some(true) => Some(request.top_logprobs.unwrap_or(0)),
            _ if request.top_logprobs.is_some() => {
                return Err(Fail::param("top_logprobs", "it needs logprobs"));
            }
            _ => None,
        };
        let model = &here.hall.model;
        let asked = shape::asked(&request.common)?;
        let constraint = asked.map(|(param, shape)| here.constraint(param, &shape));
        let wanted = Wanted {
            prompt: encode(model, &request.messages)?,
            stops: model.template().stop_strings(),
            top,
            constraint: constraint.transpose()?,
        };
        ask::ask(model, wanted, request.common, now)
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
        .map(|m| Message::new(m.role.as_str(), text(m)))
        .collect();
    let options = to_be_answered();
    encode_chat(model.template(), model.tokenizer(), &messages, &options)
        .map_err(|error| Fail::param("messages", error.to_string()))
}

fn text(message: &ChatMessage) -> String {
    match &message.content {
        None => String::new(),
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Parts(parts)) => {
            let text = |part: &Part| match part {
                Part::Text { text } | Part::InputText { text } => text.clone(),
            };
            parts.iter().map(text).collect()
        }
    }
}
