//! `/v1/responses`: the newer API for text. Its request becomes the same one; its events have other names. Nothing is
//! stored, so no response can be continued.

use super::answer::{EVENTS, streamed};
use super::fail::Fail;
use super::request::EndpointFields;
use super::state::ServerState;
use super::types::{ChatMessage, CommonFields, ContextLimit};
use super::{body, chat, request, structured};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use haversack::engine::runtime::Finish;
use haversack::memory::clock::since_1970;
use haversack::{AnswerEvent, AnswerEvents, Error};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

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
    pub metadata: Option<Json>,
    pub user: Option<String>,
    pub context: Option<ContextLimit>,
    #[serde(flatten)]
    pub more: BTreeMap<String, Json>,
}

/// Fields that are not implemented, and the values that ask for nothing.
const REFUSED: [(&str, &[&str]); 10] = [
    ("previous_response_id", &[]),
    ("conversation", &[]),
    ("prompt", &[]),
    ("background", &["false"]),
    ("include", &["[]"]),
    ("reasoning", &["{}"]),
    ("tools", &["[]"]),
    ("tool_choice", &["\"none\"", "\"auto\""]),
    ("top_logprobs", &["0"]),
    ("truncation", &["\"disabled\""]),
];

pub async fn responses(
    State(server): State<Arc<ServerState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let request: ResponseRequest = body::read(&headers, body).await?;
    let here = server.clone();
    let checked = tokio::task::spawn_blocking(move || {
        refuse(&request)?;
        let head = Head::new(&here, &request);
        let model = here.client().model();
        let format = request.text.as_ref().and_then(|text| text.get("format"));
        let format = format.filter(|format| !format.is_null());
        let shape = format.map(|format| structured::format("text", format, "/schema"));
        let shape = shape.transpose()?.flatten();
        let constraint = shape.map(|shape| structured::constraint(here.client(), "text", &shape));
        let fields = EndpointFields {
            prompt: chat::encode(model, &messages(&request)?, None)?,
            stops: model.template().stop_strings(),
            top: None,
            constraint: constraint.transpose()?,
            callable: None,
        };
        let common = CommonFields {
            max_completion_tokens: request.max_output_tokens,
            temperature: request.temperature,
            top_p: request.top_p,
            stream: request.stream,
            user: request.user,
            context: request.context,
            ..CommonFields::default()
        };
        let checked = request::completion(here.client(), fields, &common)?;
        Ok::<_, Fail>((head, checked))
    });
    let (mut head, checked) = checked.await.map_err(|_| Fail::stopping())??;
    head.input_tokens = checked.prompt_tokens;
    let events = server.client().submit(checked.requests, EVENTS).await?;
    match checked.stream {
        true => Ok(stream_events(head, events)),
        false => whole(head, events).await,
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
    let wrong = || Fail::param("input", "accepted: a text, or messages of text");
    let message = |role: &str, text: &str| ChatMessage::new(role, text);
    let mut messages = Vec::new();
    messages.extend(
        request
            .instructions
            .iter()
            .map(|text| message("system", text)),
    );
    match &request.input {
        Json::String(text) => messages.push(message("user", text)),
        Json::Array(items) => {
            for item in items {
                let kind = item.get("type").map(Json::as_str);
                if kind.is_some_and(|kind| kind != Some("message")) {
                    return Err(wrong());
                }
                messages.push(serde_json::from_value(item.clone()).map_err(|_| wrong())?);
            }
        }
        _ => return Err(wrong()),
    }
    Ok(messages)
}

/// The part of a response document that is known from its beginning.
struct Head {
    item: String,
    document: Json,
    input_tokens: usize,
}

/// How far the response is.
enum Stage<'a> {
    Started,
    Ended {
        text: &'a str,
        tokens: usize,
        finish: Finish,
    },
    Failed(&'a Error),
}

impl Head {
    fn new(server: &ServerState, request: &ResponseRequest) -> Head {
        let now = since_1970();
        let id = format!("resp_{:x}", now.as_nanos());
        let format = request.text.as_ref().and_then(|text| text.get("format"));
        let format = format.cloned().unwrap_or_else(|| json!({ "type": "text" }));
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
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "reasoning": { "effort": null, "summary": null },
            "store": false,
            "temperature": request.temperature.unwrap_or(1.0),
            "text": { "format": format },
            "tool_choice": "auto",
            "tools": [],
            "top_p": request.top_p.unwrap_or(1.0),
            "truncation": "disabled",
            "usage": null,
            "user": request.user,
            "metadata": request.metadata.clone().unwrap_or_else(|| json!({})),
        });
        Head {
            item: format!("msg_{:x}", now.as_nanos()),
            document,
            input_tokens: 0,
        }
    }

    fn document(&self, stage: &Stage<'_>) -> Json {
        let mut document = self.document.clone();
        match *stage {
            Stage::Started => {}
            Stage::Ended {
                text,
                tokens,
                finish,
            } => {
                let status = status(finish);
                document["status"] = json!(status);
                if status == "incomplete" {
                    document["incomplete_details"] = json!({ "reason": "max_output_tokens" });
                }
                document["output"] = json!([self.item(status, Some(text))]);
                document["usage"] = json!({
                    "input_tokens": self.input_tokens,
                    "input_tokens_details": { "cached_tokens": 0 },
                    "output_tokens": tokens,
                    "output_tokens_details": { "reasoning_tokens": 0 },
                    "total_tokens": self.input_tokens + tokens,
                });
            }
            Stage::Failed(error) => {
                document["status"] = json!("failed");
                let message = error.to_string();
                document["error"] = json!({ "code": "server_error", "message": message });
            }
        }
        document
    }

    /// The response's one message, with its text where that is known.
    fn item(&self, status: &str, text: Option<&str>) -> Json {
        json!({
            "id": self.item,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": text.map(part).into_iter().collect::<Vec<Json>>(),
        })
    }
}

fn status(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "completed",
        Finish::Length => "incomplete",
        Finish::Cancelled => "cancelled",
    }
}

fn part(text: &str) -> Json {
    json!({ "type": "output_text", "text": text, "annotations": [] })
}

async fn whole(head: Head, mut events: AnswerEvents) -> Result<Response, Fail> {
    loop {
        match events.next().await {
            Some((_, AnswerEvent::Token { .. } | AnswerEvent::PromptRead { .. })) => {}
            Some((
                _,
                AnswerEvent::Finished {
                    text,
                    finish,
                    report,
                },
            )) => {
                let stage = Stage::Ended {
                    text: &text,
                    tokens: report.tokens,
                    finish,
                };
                return Ok(axum::Json(head.document(&stage)).into_response());
            }
            Some((_, AnswerEvent::Failed(error))) => return Err(error.into()),
            None => return Err(Error::CutOff.into()),
        }
    }
}

/// A stream of events that is being written.
struct Events {
    head: Head,
    /// `None` once the response has ended. Dropped with the stream, so a client that leaves frees what it held.
    events: Option<AnswerEvents>,
    ready: VecDeque<Bytes>,
    /// Of the next event.
    number: u64,
    /// Bytes of the text that were sent.
    sent: usize,
}

fn stream_events(head: Head, events: AnswerEvents) -> Response {
    let mut events = Events {
        head,
        events: Some(events),
        ready: VecDeque::new(),
        number: 0,
        sent: 0,
    };
    let started = events.head.document(&Stage::Started);
    events.push("response.created", json!({ "response": started }));
    events.push("response.in_progress", json!({ "response": started }));
    let item = events.head.item("in_progress", None);
    events.push(
        "response.output_item.added",
        json!({ "output_index": 0, "item": item }),
    );
    events.push_part("response.content_part.added", json!({ "part": part("") }));
    streamed(stream::unfold(events, async |mut events| {
        let bytes = events.next().await?;
        Some((bytes, events))
    }))
}

impl Events {
    fn push(&mut self, name: &str, mut event: Json) {
        event["type"] = json!(name);
        event["sequence_number"] = json!(self.number);
        self.number += 1;
        let bytes = format!("event: {name}\ndata: {event}\n\n");
        self.ready.push_back(bytes.into());
    }

    fn push_part(&mut self, name: &str, mut event: Json) {
        event["item_id"] = json!(self.head.item);
        event["output_index"] = json!(0);
        event["content_index"] = json!(0);
        self.push(name, event);
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            match self.events.as_mut()?.next().await {
                Some((_, event)) => self.receive(event),
                None => self.fail(&Error::CutOff),
            }
        }
    }

    fn receive(&mut self, event: AnswerEvent) {
        match event {
            AnswerEvent::Token { text, .. } => self.delta(&text),
            AnswerEvent::Finished {
                text,
                finish,
                report,
            } => {
                // Some text may have been held back until here.
                self.delta(text.get(self.sent..).unwrap_or_default());
                self.push_part(
                    "response.output_text.done",
                    json!({ "text": text, "logprobs": [] }),
                );
                self.push_part("response.content_part.done", json!({ "part": part(&text) }));
                let item = self.head.item(status(finish), Some(&text));
                self.push(
                    "response.output_item.done",
                    json!({ "output_index": 0, "item": item }),
                );
                let document = self.head.document(&Stage::Ended {
                    text: &text,
                    tokens: report.tokens,
                    finish,
                });
                let name = match finish {
                    Finish::Stop => "response.completed",
                    Finish::Length | Finish::Cancelled => "response.incomplete",
                };
                self.push(name, json!({ "response": document }));
                self.events = None;
            }
            AnswerEvent::Failed(error) => self.fail(&error),
            AnswerEvent::PromptRead { .. } => {}
        }
    }

    fn delta(&mut self, text: &str) {
        if !text.is_empty() {
            self.sent += text.len();
            self.push_part(
                "response.output_text.delta",
                json!({ "delta": text, "logprobs": [] }),
            );
        }
    }

    fn fail(&mut self, error: &Error) {
        let document = self.head.document(&Stage::Failed(error));
        self.push("response.failed", json!({ "response": document }));
        self.events = None;
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
            json!({ "tools": [], "tool_choice": "auto", "previous_response_id": null }),
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
