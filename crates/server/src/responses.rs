//! `/v1/responses`: the newer API for text. Its request becomes the same one; its events have other names. Nothing is
//! stored, so no response can be continued.

use super::begun_answer::{BegunAnswer, EVENTS};
use super::body::{JsonBody, QueuePlace};
use super::choice_text::ChoiceText;
use super::fail::{Fail, require};
use super::limits;
use super::request::EndpointFields;
use super::response_items::{self, Output};
use super::state::{Server, ServerState};
use super::stream::{AnswerWriter, Outbox, stream_answer};
use super::tools::ToolSet;
use super::types::{ChatMessage, CommonFields, ContextLimit, SamplerFields, ToolFields};
use super::{chat, request, structured};
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use haversack::engine::runtime::Finish;
use haversack::grammar::Functions;
use haversack::memory::clock::since_1970;
use haversack::{AnswerEvent, Error, ErrorKind, Owner};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
pub struct ResponseRequest {
    pub model: Option<String>,
    pub input: Json,
    pub instructions: Option<String>,
    pub max_output_tokens: Option<u64>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub stream: Option<bool>,
    pub text: Option<Json>,
    #[serde(flatten)]
    pub calling: ToolFields,
    pub metadata: Option<Json>,
    pub user: Option<String>,
    pub context: Option<ContextLimit>,
    #[serde(flatten)]
    pub samplers: SamplerFields,
    #[serde(flatten)]
    pub more: BTreeMap<String, Json>,
}

impl ResponseRequest {
    fn format(&self) -> Option<&Json> {
        self.text.as_ref()?.get("format")
    }
}

/// Fields that are not implemented, and the values that ask for nothing.
const REFUSED: [(&str, &[&str]); 8] = [
    ("previous_response_id", &[]),
    ("conversation", &[]),
    ("prompt", &[]),
    ("background", &["false"]),
    ("include", &["[]"]),
    ("reasoning", &["{}"]),
    ("top_logprobs", &["0"]),
    ("truncation", &["\"disabled\""]),
];

pub async fn responses(
    State(server): Server,
    Extension(owner): Extension<Owner>,
    _: QueuePlace,
    JsonBody(request, permit): JsonBody<ResponseRequest>,
) -> Result<Response, Fail> {
    refuse(&request)?;
    let calling = &request.calling;
    let given = calling.tools.iter().flatten().map(response_items::tool);
    let once = calling.parallel_tool_calls == Some(false);
    let choice = calling.tool_choice.as_ref();
    let tools = ToolSet::read(&given.collect::<Vec<Json>>(), choice, once)?;
    let format = request.format().filter(|format| !format.is_null());
    let shape = format.map(|format| structured::format("text", format, "/schema"));
    let shape = shape.transpose()?.flatten().map(|shape| ("text", shape));
    let accepted = "accepted: tools or structured output, not both";
    require(tools.is_none() || shape.is_none(), "text", accepted)?;
    let is_structured = shape.is_some() || tools.as_ref().is_some_and(ToolSet::must);
    let calls = tools.as_ref().map(|tools| ("tools", tools.shape()));
    let constraint = structured::constraint(&server, shape.or(calls)).await?;
    let here = server.clone();
    let checked = server.admission.run(permit.bytes, move || {
        let _permit = permit;
        request::check_model(request.model.as_ref())?;
        let max = limits::METADATA_BYTES;
        let metadata = request.metadata.as_ref();
        let is_short = metadata.is_none_or(|data| data.to_string().len() <= max);
        require(
            is_short,
            "metadata",
            format!("accepted: at most {max} bytes"),
        )?;
        let (mut head, client) = (Head::new(&here, &request), here.client());
        let model = client.model();
        let messages = messages(&request)?;
        let fields = EndpointFields {
            stops: model.template().stop_strings(),
            owner,
            constraint,
            is_structured,
            callable: tools.as_ref().map(ToolSet::functions),
            ..EndpointFields::default()
        };
        let common = CommonFields {
            max_completion_tokens: request.max_output_tokens,
            temperature: request.temperature,
            top_p: request.top_p,
            stream: request.stream,
            user: request.user,
            context: request.context,
            samplers: request.samplers,
            ..CommonFields::default()
        };
        let checked = chat::completion(client, &messages, tools.as_ref(), fields, &common)?;
        if let Some(request) = checked.requests.first() {
            head.document["temperature"] = decimal(request.sample.temperature);
            head.document["top_p"] = decimal(request.sample.top_p);
        }
        Ok::<_, Fail>((head, checked))
    });
    let (mut head, mut checked) = checked.await??;
    let events = BegunAnswer::begin(&server, &mut checked, EVENTS).await?;
    head.input_tokens = checked.prompt_tokens;
    match checked.stream {
        true => Ok(stream_events(head, events, checked.callable)),
        false => whole(head, events, checked.callable).await,
    }
}

fn refuse(request: &ResponseRequest) -> Result<(), Fail> {
    for (name, nothing) in REFUSED {
        let given = request.more.get(name).filter(|value| !value.is_null());
        if given.is_some_and(|value| !nothing.contains(&value.to_string().as_str())) {
            let accepted = match nothing {
                [] => "accepted: none".to_owned(),
                some => format!("accepted: {}", some.join(", ")),
            };
            return Err(Fail::param(name, accepted));
        }
    }
    Ok(())
}

fn messages(request: &ResponseRequest) -> Result<Vec<ChatMessage>, Fail> {
    let mut messages = response_items::messages(&request.input)?;
    if let Some(text) = &request.instructions {
        messages.insert(0, ChatMessage::new("system", text));
    }
    Ok(messages)
}

/// The part of a response document that is known from its beginning.
struct Head {
    stamp: u128,
    document: Json,
    input_tokens: usize,
}

impl Head {
    fn new(server: &ServerState, request: &ResponseRequest) -> Head {
        let now = since_1970();
        let id = format!("resp_{:x}", now.as_nanos());
        let format = request.format().cloned();
        let format = format.unwrap_or_else(|| json!({ "type": "text" }));
        let calling = &request.calling;
        let document = json!({
            "id": id,
            "object": "response",
            "created_at": now.as_secs(),
            "status": "in_progress",
            "error": null,
            "incomplete_details": null,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": request.model.as_ref().unwrap_or(&server.model_name),
            "output": [],
            "parallel_tool_calls": calling.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": null,
            "reasoning": { "effort": null, "summary": null },
            "store": false,
            "temperature": request.temperature,
            "text": { "format": format },
            "tool_choice": calling.tool_choice.clone().unwrap_or_else(|| json!("auto")),
            "tools": calling.tools.as_deref().unwrap_or_default(),
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": null,
            "user": request.user,
            "metadata": request.metadata.clone().unwrap_or_else(|| json!({})),
        });
        Head {
            stamp: now.as_nanos(),
            document,
            input_tokens: 0,
        }
    }

    fn ended(&self, output: Output, tokens: usize, finish: Finish) -> Json {
        let (mut document, status) = (self.document.clone(), status(finish));
        document["status"] = json!(status);
        if status == "incomplete" {
            document["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        if let Some(by) = finish.stopped_by() {
            document["stopped_by"] = json!(by);
        }
        document["output"] = json!(output.into_items());
        document["usage"] = json!({
            "input_tokens": self.input_tokens,
            "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": tokens,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": self.input_tokens + tokens,
        });
        document
    }

    fn failed(&self, error: &Error) -> Json {
        let mut document = self.document.clone();
        document["status"] = json!("failed");
        let code = match error.kind() {
            ErrorKind::InvalidInput => "invalid_prompt",
            _ => "server_error",
        };
        document["error"] = json!({ "code": code, "message": error.to_string() });
        document
    }
}

fn status(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::Repetition => "completed",
        Finish::Length => "incomplete",
        Finish::Cancelled => "cancelled",
    }
}

/// 0.7, and not the number nearest to it that has 24 bits.
fn decimal(number: f32) -> Json {
    number
        .to_string()
        .parse::<f64>()
        .map_or(Json::Null, Json::from)
}

async fn whole(
    head: Head,
    mut events: BegunAnswer,
    callable: Option<Functions>,
) -> Result<Response, Fail> {
    loop {
        let (_, event) = events.next().await.ok_or(Error::CutOff)?;
        match event {
            AnswerEvent::Token { .. }
            | AnswerEvent::PromptRead { .. }
            | AnswerEvent::SessionRead { .. } => {}
            AnswerEvent::Finished {
                text,
                finish,
                report,
            } => {
                let mut output = Output::new(head.stamp, callable.is_none());
                let parts = ChoiceText::new(callable.as_ref()).finish(&text);
                parts.into_iter().for_each(|part| output.push(part));
                output.end(status(finish));
                return Ok(axum::Json(head.ended(output, report.tokens, finish)).into_response());
            }
            AnswerEvent::Failed(error) => return Err(error.into()),
        }
    }
}

/// A stream of events that is being written.
struct Events {
    head: Head,
    outbox: Outbox,
    /// Of the next event.
    number: u64,
    text: ChoiceText,
    output: Output,
}

fn stream_events(head: Head, events: BegunAnswer, callable: Option<Functions>) -> Response {
    let started = json!({ "response": head.document });
    let mut events = Events {
        output: Output::new(head.stamp, callable.is_none()),
        head,
        outbox: Outbox::new(events),
        number: 0,
        text: ChoiceText::new(callable.as_ref()),
    };
    events.push("response.created", started.clone());
    events.push("response.in_progress", started);
    events.push_output();
    stream_answer(events)
}

impl AnswerWriter for Events {
    fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    fn receive(&mut self, _: usize, event: AnswerEvent) {
        match event {
            AnswerEvent::Token { text, .. } => {
                let parts = self.text.push(&text);
                parts.into_iter().for_each(|part| self.output.push(part));
                self.push_output();
            }
            AnswerEvent::Finished {
                text,
                finish,
                report,
            } => {
                // Some text may have been held back until here.
                let parts = self.text.finish(&text);
                parts.into_iter().for_each(|part| self.output.push(part));
                self.output.end(status(finish));
                self.push_output();
                let name = match finish {
                    Finish::Stop | Finish::Repetition => "response.completed",
                    Finish::Length | Finish::Cancelled => "response.incomplete",
                };
                let output = std::mem::take(&mut self.output);
                let document = self.head.ended(output, report.tokens, finish);
                self.push(name, json!({ "response": document }));
                self.outbox.end();
            }
            AnswerEvent::Failed(error) => {
                let document = self.head.failed(&error);
                self.push("response.failed", json!({ "response": document }));
                self.outbox.end();
            }
            AnswerEvent::PromptRead { .. } | AnswerEvent::SessionRead { .. } => {}
        }
    }
}

impl Events {
    fn push(&mut self, name: &str, mut event: Json) {
        event["type"] = json!(name);
        event["sequence_number"] = json!(self.number);
        self.number += 1;
        let bytes = format!("event: {name}\ndata: {event}\n\n");
        self.outbox.push(bytes);
    }

    fn push_output(&mut self) {
        for (name, event) in self.output.take_events() {
            self.push(name, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(more: Json) -> ResponseRequest {
        let mut body = json!({ "input": "hello" });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn fields_that_are_not_implemented_are_refused_by_name() {
        for nothing in [
            json!({}),
            json!({ "previous_response_id": null, "include": [] }),
            json!({ "store": true, "metadata": {}, "service_tier": "auto", "truncation": "disabled" }),
        ] {
            assert!(refuse(&request(nothing)).is_ok());
        }
        for (name, _) in REFUSED {
            let error = refuse(&request(json!({ name: "something" }))).unwrap_err();
            assert_eq!(error.json()["error"]["param"], name);
        }
    }

    #[test]
    fn input_becomes_messages() {
        let of = |more: Json| {
            let messages = messages(&request(more));
            messages.map(|all| {
                all.iter()
                    .map(|m| (m.role.clone(), m.text()))
                    .collect::<Vec<_>>()
            })
        };
        let pair = |role: &str, text: &str| (role.to_owned(), text.to_owned());
        assert_eq!(
            of(json!({ "instructions": "Be brief." })).unwrap(),
            [pair("system", "Be brief."), pair("user", "hello")]
        );
        let items = json!([
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "a" }] },
            { "role": "assistant", "content": [{ "type": "output_text", "text": "b" }] },
        ]);
        assert_eq!(
            of(json!({ "input": items })).unwrap(),
            [pair("user", "a"), pair("assistant", "b")]
        );
        for bad in [
            json!(5),
            json!([5]),
            json!([{ "type": "item_reference", "id": "x" }]),
            json!([{ "role": "user", "content": [{ "type": "input_image", "image_url": "x" }] }]),
        ] {
            assert_eq!(
                of(json!({ "input": bad })).unwrap_err().json()["error"]["param"],
                "input"
            );
        }
    }
}
