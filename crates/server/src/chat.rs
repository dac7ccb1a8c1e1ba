//! `/v1/chat/completions`: messages through the model's own template.

use super::answer::{Api, answer};
use super::request::Wanted;
use super::tool_calls::Functions;
use super::fail::Fail;
use super::sessions;
use super::tools::{self, Tools};
use super::types::{ChatMessage, ChatRequest};
use super::{Shared, request, structured};
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use haversack::engine::Model;
use haversack::text::chat::encode_chat;
use haversack::text::template::RenderOptions;
use std::sync::Arc;

pub async fn chat(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let request: ChatRequest = request::read(&headers, body).await?;
    let top = match request.logprobs {
        Some(true) => Some(request.top_logprobs.unwrap_or(0)),
        _ if request.top_logprobs.is_some() => {
            return Err(Fail::param("top_logprobs", "it needs logprobs"));
        }
        _ => None,
    };
    let bound = sessions::bind(&shared, &request).await?;
    let here = shared.clone();
    // A long prompt takes a while to become tokens, and a schema to be compiled: others are answered meanwhile.
    let asked = tokio::task::spawn_blocking(move || {
        let model = &here.hall.model;
        let tools = request.common.tools.as_deref().unwrap_or_default();
        let once = request.parallel_tool_calls == Some(false);
        let tools = Tools::read(tools, request.tool_choice.as_ref(), once)?;
        if bound.is_some() && tools.is_some() {
            return Err(Fail::param("tools", "accepted: none in a session"));
        }
        let form = structured::asked(&request.common)?;
        if let (Some(_), Some((param, _))) = (&tools, &form) {
            return Err(Fail::param(param, "accepted: tools or a form, not both"));
        }
        let call = tools.as_ref().and_then(Tools::shape);
        let form = form.or(call.map(|shape| ("tools", shape)));
        let constraint = form.map(|(param, shape)| here.constraint(param, &shape));
        let callable = tools.as_ref().map(Tools::functions);
        let once = callable.as_ref().map_or(&[][..], Functions::stops);
        let stops = [model.template().stop_strings(), once].concat();
        let wanted = Wanted {
            prompt: match bound {
                Some(_) => Vec::new(),
                None => encode(model, &request.messages, tools.as_ref())?,
            },
            stops: &stops,
            top,
            constraint: constraint.transpose()?,
            callable,
        };
        match bound {
            Some(bound) => request::turn(&here.hall, bound, wanted, &request.common),
            None => request::ask(&here.hall, wanted, &request.common),
        }
    });
    let asked = asked.await.map_err(|_| Fail::stopping())??;
    answer(shared, Api::Chat, asked).await
}

/// The messages in tokens, with the tools in front of them or wherever the template puts them.
pub fn encode(
    model: &Model,
    messages: &[ChatMessage],
    tools: Option<&Tools>,
) -> Result<Vec<u32>, Fail> {
    if messages.is_empty() {
        return Err(Fail::param("messages", "accepted: one at least"));
    }
    let template = model.template();
    let knows_tools = template.knows_tools();
    let messages = tools::messages(messages, tools, knows_tools)?;
    let mut options = RenderOptions::to_answer(haversack::memory::clock::since_1970());
    if let Some(tools) = tools.filter(|_| knows_tools) {
        options.variables.push(("tools".into(), tools.variable()));
    }
    encode_chat(template, model.tokenizer(), &messages, &options)
        .map_err(|error| Fail::param("messages", error.to_string()))
}
