//! `/v1/responses`: the younger of the two ways to ask for text. What it asks for becomes the same request; what it hears is
//! named differently. Nothing is stored, so nothing can be gone on with.

use super::answer::{streamed, submit};
use super::request::{Ask, Wanted};
use super::fail::Fail;
use super::owner::{Piece, Place, Told};
use super::types::{ChatMessage, Common, ContextLimit};
use super::{Shared, request, chat};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use haversack::engine::runtime::Finish;
use haversack::memory::clock::since_1970;
use haversack_grammar::Shape;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::mpsc;

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

/// What is known and not served, and the values that ask for nothing.
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
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let request: ResponseRequest = request::read(&headers, body).await?;
    let here = shared.clone();
    let asked = tokio::task::spawn_blocking(move || {
        refuse(&request)?;
        let head = Head::new(&here, &request);
        let model = &here.hall.model;
        let form = request.text.as_ref().map(form).transpose()?.flatten();
        let constraint = form.map(|shape| here.constraint("text", &shape));
        let wanted = Wanted {
            prompt: chat::encode(model, &messages(&request)?, None)?,
            stops: model.template().stop_strings(),
            top: None,
            constraint: constraint.transpose()?,
            callable: None,
        };
        let common = Common {
            max_completion_tokens: request.max_output_tokens,
            temperature: request.temperature,
            top_p: request.top_p,
            stream: request.stream,
            user: request.user,
            context: request.context,
            ..Common::default()
        };
        Ok((head, request::ask(&here.hall, wanted, &common)?))
    });
    let (mut head, asked) = asked.await.map_err(|_| Fail::stopping())??;
    let Ask {
        what,
        prompt_tokens,
        stream,
        ..
    } = asked;
    head.input_tokens = prompt_tokens;
    let (place, told) = submit(&shared, what, None).await?;
    match stream {
        true => Ok(events(head, place, told)),
        false => whole(head, place, told).await,
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

/// `text.format`; `None` where anything may be said.
fn form(text: &Json) -> Result<Option<Shape>, Fail> {
    let Some(format) = text.get("format").filter(|format| !format.is_null()) else {
        return Ok(None);
    };
    match format.get("type").and_then(Json::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Shape::Object)),
        Some("json_schema") => match format.get("schema") {
            Some(schema) => Ok(Some(Shape::Schema(schema.clone()))),
            None => Err(Fail::param("text", "format.schema is missing")),
        },
        _ => Err(Fail::param(
            "text",
            "accepted formats: text, json_object, json_schema",
        )),
    }
}

/// What a response says of itself from its beginning on.
struct Head {
    item: String,
    document: Json,
    input_tokens: usize,
}

/// How far it is.
enum Stage<'a> {
    Begun,
    Ended {
        text: &'a str,
        tokens: usize,
        finish: Finish,
    },
    Failed(&'a str),
}

impl Head {
    fn new(shared: &Shared, request: &ResponseRequest) -> Head {
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
            "model": request.model.as_ref().unwrap_or(&shared.model_name),
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
            Stage::Begun => {}
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
            Stage::Failed(why) => {
                document["status"] = json!("failed");
                document["error"] = json!({ "code": "server_error", "message": why });
            }
        }
        document
    }

    /// The one message of it, with what it says where that is known.
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

async fn whole(head: Head, place: Place, mut told: mpsc::Receiver<Told>) -> Result<Response, Fail> {
    loop {
        match told.recv().await {
            Some((_, Piece::Token { .. })) => {}
            Some((
                _,
                Piece::Done {
                    text,
                    tokens,
                    finish,
                    ..
                },
            )) => {
                drop(place);
                let stage = Stage::Ended {
                    text: &text,
                    tokens,
                    finish,
                };
                return Ok(axum::Json(head.document(&stage)).into_response());
            }
            Some((_, Piece::Failed(why))) => return Err(Fail::internal(why)),
            None => return Err(Fail::internal("the answer was cut off")),
        }
    }
}

/// A stream of events that is being written.
struct Events {
    head: Head,
    told: mpsc::Receiver<Told>,
    ready: VecDeque<Bytes>,
    /// Events so far: each has its number.
    number: u64,
    /// Bytes of the text that were sent.
    sent: usize,
    /// Ends with the stream, so that a client that leaves frees what it held.
    place: Option<Place>,
}

fn events(head: Head, place: Place, told: mpsc::Receiver<Told>) -> Response {
    let mut events = Events {
        head,
        told,
        ready: VecDeque::new(),
        number: 0,
        sent: 0,
        place: Some(place),
    };
    let begun = events.head.document(&Stage::Begun);
    events.say("response.created", json!({ "response": begun }));
    events.say("response.in_progress", json!({ "response": begun }));
    let item = events.head.item("in_progress", None);
    events.say(
        "response.output_item.added",
        json!({ "output_index": 0, "item": item }),
    );
    events.say_of_part("response.content_part.added", json!({ "part": part("") }));
    streamed(stream::unfold(events, async |mut events| {
        let bytes = events.next().await?;
        Some((bytes, events))
    }))
}

impl Events {
    fn say(&mut self, name: &str, mut event: Json) {
        event["type"] = json!(name);
        event["sequence_number"] = json!(self.number);
        self.number += 1;
        let bytes = format!("event: {name}\ndata: {event}\n\n");
        self.ready.push_back(bytes.into());
    }

    fn say_of_part(&mut self, name: &str, mut event: Json) {
        event["item_id"] = json!(self.head.item);
        event["output_index"] = json!(0);
        event["content_index"] = json!(0);
        self.say(name, event);
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            self.place.as_ref()?;
            match self.told.recv().await {
                Some((_, piece)) => self.hear(piece),
                None => self.fail("the answer was cut off"),
            }
        }
    }

    fn hear(&mut self, piece: Piece) {
        match piece {
            Piece::Token { text, .. } => self.delta(&text),
            Piece::Done {
                text,
                tokens,
                finish,
                ..
            } => {
                // Some may have been held back until here.
                self.delta(text.get(self.sent..).unwrap_or_default());
                self.say_of_part(
                    "response.output_text.done",
                    json!({ "text": text, "logprobs": [] }),
                );
                self.say_of_part("response.content_part.done", json!({ "part": part(&text) }));
                let item = self.head.item(status(finish), Some(&text));
                self.say(
                    "response.output_item.done",
                    json!({ "output_index": 0, "item": item }),
                );
                let document = self.head.document(&Stage::Ended {
                    text: &text,
                    tokens,
                    finish,
                });
                let name = match finish {
                    Finish::Stop => "response.completed",
                    Finish::Length | Finish::Cancelled => "response.incomplete",
                };
                self.say(name, json!({ "response": document }));
                self.place = None;
            }
            Piece::Failed(why) => self.fail(&why),
        }
    }

    fn delta(&mut self, text: &str) {
        if !text.is_empty() {
            self.sent += text.len();
            self.say_of_part(
                "response.output_text.delta",
                json!({ "delta": text, "logprobs": [] }),
            );
        }
    }

    fn fail(&mut self, why: &str) {
        let document = self.head.document(&Stage::Failed(why));
        self.say("response.failed", json!({ "response": document }));
        self.place = None;
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
    fn what_is_not_served_is_refused_by_name() {
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
