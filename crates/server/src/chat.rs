//! `/v1/chat/completions`: messages through the model's own template.

use super::answer::{Api, answer};
use super::fail::Fail;
use super::request::EndpointFields;
use super::state::ServerState;
use super::tool_calls::Functions;
use super::tools::{self, ToolSet};
use super::types::{ChatMessage, ChatRequest};
use super::{body, request, sessions, structured};
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use haversack::engine::Model;
use haversack::text::chat::encode_chat;
use haversack::text::template::RenderOptions;
use std::sync::Arc;

pub async fn chat(
    State(server): State<Arc<ServerState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let request: ChatRequest = body::read(&headers, body).await?;
    let top = match request.logprobs {
        Some(true) => Some(request.top_logprobs.unwrap_or(0)),
        _ if request.top_logprobs.is_some() => {
            return Err(Fail::param("top_logprobs", "accepted: only with logprobs"));
        }
        _ => None,
    };
    let message = sessions::bind(&server, &request).await?;
    let here = server.clone();
    // Tokenizing a long prompt and compiling a schema take a while: other clients are served meanwhile.
    let checked = tokio::task::spawn_blocking(move || {
        let model = here.client().model();
        let tools = request.common.tools.as_deref().unwrap_or_default();
        let once = request.parallel_tool_calls == Some(false);
        let tools = ToolSet::read(tools, request.tool_choice.as_ref(), once)?;
        if message.is_some() && tools.is_some() {
            return Err(Fail::param("tools", "accepted: none in a session"));
        }
        let shape = structured::requested(&request.common)?;
        if let (Some(_), Some((param, _))) = (&tools, &shape) {
            let accepted = "accepted: tools or structured output, not both";
            return Err(Fail::param(param, accepted));
        }
        let call = tools.as_ref().and_then(ToolSet::shape);
        let shape = shape.or(call.map(|shape| ("tools", shape)));
        let constraint =
            shape.map(|(param, shape)| structured::constraint(here.client(), param, &shape));
        let callable = tools.as_ref().map(ToolSet::functions);
        let once = callable.as_ref().map_or(&[][..], Functions::stops);
        let stops = [model.template().stop_strings(), once].concat();
        let fields = EndpointFields {
            prompt: match message {
                Some(_) => Vec::new(),
                None => encode(model, &request.messages, tools.as_ref())?,
            },
            stops: &stops,
            top,
            constraint: constraint.transpose()?,
            callable,
        };
        match message {
            Some(message) => request::turn(here.client(), message, fields, &request.common),
            None => request::completion(here.client(), fields, &request.common),
        }
    });
    let checked = checked.await.map_err(|_| Fail::stopping())??;
    answer(server, Api::Chat, checked).await
}

/// The messages in tokens, with the tools in front of them or wherever the template puts them.
pub fn encode(
    model: &Model,
    messages: &[ChatMessage],
    tools: Option<&ToolSet>,
) -> Result<Vec<u32>, Fail> {
    if messages.is_empty() {
        return Err(Fail::param("messages", "accepted: at least one message"));
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
