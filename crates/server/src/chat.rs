//! `/v1/chat/completions`: messages through the model's own template.

use super::answer::{Api, answer};
use super::begun_answer::answered_calls;
use super::body::{JsonBody, QueuePlace};
use super::call_check::CallCheck;
use super::encode::encode;
use super::fail::{Fail, refuse, require};
use super::request::{CheckedRequest, EndpointFields, WithoutTools};
use super::state::Server;
use super::tools::ToolSet;
use super::types::{ChatMessage, ChatRequest, CommonFields};
use super::{request, sessions, structured};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use haversack::text::chat::EncodedChat;
use haversack::{Client, Owner};

pub async fn chat(
    State(server): Server,
    Extension(owner): Extension<Owner>,
    _: QueuePlace,
    JsonBody(request, permit): JsonBody<ChatRequest>,
) -> Result<Response, Fail> {
    let has_logprobs = request.logprobs == Some(true);
    let is_alone = request.top_logprobs.is_some() && !has_logprobs;
    require(!is_alone, "top_logprobs", "accepted: only with logprobs")?;
    let top = has_logprobs.then(|| request.top_logprobs.unwrap_or(0));
    let tools = request.common.tools.as_deref().unwrap_or_default();
    let once = request.parallel_tool_calls == Some(false);
    let tools = ToolSet::read(tools, request.tool_choice.as_ref(), once)?;
    let message = sessions::bind(&server, owner, &request).await?;
    if let (Some(message), Some(tools)) = (&message, &tools) {
        sessions::tell_tools(&server, owner.session(&message.session), tools).await?;
    }
    let shape = structured::requested(&request.common)?;
    if let (Some(_), Some((param, _))) = (&tools, &shape) {
        let accepted = "accepted: tools or structured output, not both";
        return refuse(param, accepted);
    }
    let is_structured = shape.is_some() || tools.as_ref().is_some_and(ToolSet::must);
    let calls = tools.as_ref().map(ToolSet::shape);
    let shape = shape.or(calls.map(|shape| ("tools", shape)));
    let constraint = structured::constraint(&server, shape).await?;
    let here = server.clone();
    // Making tokens of a long prompt takes a while: other clients are served meanwhile.
    let checked = server.admission.run(permit.bytes, move || {
        let _permit = permit;
        let (client, common) = (here.client(), &request.common);
        let model = client.model();
        let fields = EndpointFields {
            prompt: EncodedChat::default(),
            stops: model.template().stop_strings(),
            top,
            owner,
            constraint,
            is_structured,
            callable: tools.as_ref().map(ToolSet::functions),
        };
        match message {
            Some(message) => request::turn(client, message, fields, common),
            None => completion(client, &request.messages, tools.as_ref(), fields, common),
        }
    });
    let checked = checked.await??;
    answer(server, Api::Chat, checked).await
}

/// An answer to messages, with the tools that it may call.
pub fn completion(
    client: &Client,
    messages: &[ChatMessage],
    tools: Option<&ToolSet>,
    fields: EndpointFields<'_>,
    common: &CommonFields,
) -> Result<CheckedRequest, Fail> {
    let with = |tools, fields| {
        let fields = EndpointFields {
            prompt: encode(client.model(), messages, tools)?,
            ..fields
        };
        request::completion(client, fields, common)
    };
    let may_call = tools.filter(|tools| !tools.must() && common.choices() == 1);
    let mut without_tools = None;
    if let Some(tools) = may_call {
        let fields = EndpointFields {
            stops: fields.stops,
            top: fields.top,
            owner: fields.owner,
            ..EndpointFields::default()
        };
        without_tools = Some(WithoutTools {
            request: Box::new(with(None, fields)?),
            answered: answered_calls(messages),
            check: CallCheck::new(messages, tools),
        });
    }
    Ok(CheckedRequest {
        without_tools,
        ..with(tools, fields)?
    })
}
