//! Answers of the chat and completion APIs: one document, or a stream of events.

use super::begun_answer::{BegunAnswer, EVENTS};
use super::choice_text::ChoiceText;
use super::fail::Fail;
use super::json::list;
use super::request::CheckedRequest;
use super::state::ServerState;
use super::stream::{AnswerWriter, Outbox, stream_answer};
use super::tool_calls::call_json;
use axum::response::{IntoResponse, Response};
use haversack::engine::Model;
use haversack::engine::runtime::Finish;
use haversack::grammar::{AnswerPart, Functions};
use haversack::memory::clock::since_1970;
use haversack::{AnswerEvent, ContextSeen, Error, EventOptions, Logprob, Report};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The two APIs differ in names and in where the text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    Completions,
}

impl Api {
    fn id(self) -> &'static str {
        match self {
            Api::Chat => "chatcmpl",
            Api::Completions => "cmpl",
        }
    }

    fn object(self, is_chunk: bool) -> &'static str {
        match (self, is_chunk) {
            (Api::Chat, false) => "chat.completion",
            (Api::Chat, true) => "chat.completion.chunk",
            (Api::Completions, _) => "text_completion",
        }
    }
}

/// What all parts of an answer have in common.
struct Head {
    /// Functions that may be called: the text is searched for calls.
    callable: Option<Functions>,
    api: Api,
    id: String,
    created: u64,
    model: String,
    prompt_tokens: usize,
    include_usage: bool,
    server: Arc<ServerState>,
}

pub async fn answer(
    server: Arc<ServerState>,
    api: Api,
    mut request: CheckedRequest,
) -> Result<Response, Fail> {
    let choices = request.requests.len();
    let options = EventOptions {
        logprobs: request.logprobs,
        ..EVENTS
    };
    let events = BegunAnswer::begin(&server, &mut request, options).await?;
    let now = since_1970();
    let head = Head {
        callable: request.callable,
        api,
        id: format!("{}-{:x}", api.id(), now.as_nanos()),
        created: now.as_secs(),
        model: request.model.unwrap_or_else(|| server.model_name.clone()),
        prompt_tokens: request.prompt_tokens,
        include_usage: request.include_usage,
        server,
    };
    match request.stream {
        true => Ok(stream_events(head, events, choices)),
        false => whole(head, events, choices).await,
    }
}

async fn whole(head: Head, mut events: BegunAnswer, choices: usize) -> Result<Response, Fail> {
    let mut logprobs = vec![Vec::new(); choices];
    // By choice: they end in any order.
    let mut ended: BTreeMap<usize, (String, Finish, Report)> = BTreeMap::new();
    while ended.len() < choices {
        let (i, event) = events.next().await.ok_or(Error::CutOff)?;
        match event {
            AnswerEvent::Token { logprob, .. } => {
                logprobs[i].extend(logprob.map(|l| head.logprob(&l)));
            }
            AnswerEvent::Finished {
                text,
                finish,
                report,
            } => {
                ended.insert(i, (text, finish, report));
            }
            AnswerEvent::Failed(error) => return Err(error.into()),
            AnswerEvent::PromptRead { .. } | AnswerEvent::SessionRead { .. } => {}
        }
    }
    drop(events);
    let mut completion_tokens = 0;
    let mut first = None;
    let mut listed = Vec::new();
    for ((i, (text, finish, report)), logprobs) in ended.into_iter().zip(logprobs) {
        completion_tokens += report.tokens;
        first = first.or(Some(report.context));
        let mut choice = ChoiceText::new(head.callable.as_ref());
        let parsed = choice.finish(&text);
        let mut one = json!({
            "index": i,
            "logprobs": head.logprobs(logprobs, &mut 0),
            "finish_reason": choice.finish_reason(finish),
        });
        if let Some(by) = finish.stopped_by() {
            one["stopped_by"] = json!(by);
        }
        match head.api {
            Api::Chat => one["message"] = message(parsed),
            Api::Completions => one["text"] = json!(text),
        }
        listed.push(one);
    }
    let mut body = head.part(false, listed);
    body["usage"] = head.usage(completion_tokens, first.as_ref());
    body["context"] = first.as_ref().map(context_json).unwrap_or_default();
    Ok(axum::Json(body).into_response())
}

/// A stream of events that is being written.
struct Events {
    head: Head,
    outbox: Outbox,
    choices: Vec<ChoiceText>,
    /// Choices that have not ended.
    open: usize,
    completion_tokens: usize,
}

fn stream_events(head: Head, events: BegunAnswer, choices: usize) -> Response {
    let mut events = Events {
        choices: (0..choices)
            .map(|_| ChoiceText::new(head.callable.as_ref()))
            .collect(),
        head,
        outbox: Outbox::new(events),
        open: choices,
        completion_tokens: 0,
    };
    if events.head.api == Api::Chat {
        for i in 0..choices {
            let first = json!({ "role": "assistant", "content": "" });
            let choice = events.head.delta(i, first, None);
            events.push(&events.head.part(true, vec![choice]));
        }
    }
    stream_answer(events)
}

impl AnswerWriter for Events {
    fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    fn receive(&mut self, i: usize, event: AnswerEvent) {
        match event {
            AnswerEvent::Token { text, logprob, .. } => {
                let parsed = self.choices[i].push(&text);
                let logprob = logprob.map(|l| {
                    let offset = &mut self.choices[i].offset;
                    self.head.logprobs(vec![self.head.logprob(&l)], offset)
                });
                self.push_deltas(i, parsed, logprob);
            }
            AnswerEvent::Finished {
                text,
                finish,
                report,
            } => {
                let parsed = self.choices[i].finish(&text);
                self.push_deltas(i, parsed, None);
                self.completion_tokens += report.tokens;
                self.open -= 1;
                let reason = self.choices[i].finish_reason(finish);
                let mut choice = self.head.delta(i, json!({}), Some(reason));
                if let Some(by) = finish.stopped_by() {
                    choice["stopped_by"] = json!(by);
                }
                let mut part = self.head.part(true, vec![choice]);
                part["context"] = context_json(&report.context);
                self.push(&part);
                if self.open == 0 {
                    if self.head.include_usage {
                        let mut last = self.head.part(true, Vec::new());
                        let seen = Some(&report.context);
                        last["usage"] = self.head.usage(self.completion_tokens, seen);
                        self.push(&last);
                    }
                    self.outbox.push("data: [DONE]\n\n");
                    self.outbox.end();
                }
            }
            AnswerEvent::Failed(error) => {
                self.push(&Fail::from(error).json());
                self.outbox.end();
            }
            AnswerEvent::PromptRead { .. } | AnswerEvent::SessionRead { .. } => {}
        }
    }
}

impl Events {
    fn push(&mut self, event: &Json) {
        self.outbox.push(format!("data: {event}\n\n"));
    }

    /// An event for each; log-probabilities go with the first, or alone.
    fn push_deltas(&mut self, i: usize, parsed: Vec<AnswerPart>, logprob: Option<Json>) {
        let mut deltas: Vec<Json> = Vec::new();
        for parsed in parsed {
            deltas.push(match parsed {
                AnswerPart::Text(text) => json!({ "content": text }),
                AnswerPart::Call(call) => {
                    let mut call = call_json(&call);
                    call["index"] = json!(self.choices[i].calls);
                    self.choices[i].calls += 1;
                    json!({ "tool_calls": [call] })
                }
            });
        }
        if deltas.is_empty() && logprob.is_some() {
            deltas.push(json!({ "content": "" }));
        }
        let mut logprob = logprob.unwrap_or_default();
        for delta in deltas {
            let mut choice = self.head.delta(i, delta, None);
            choice["logprobs"] = logprob.take();
            self.push(&self.head.part(true, vec![choice]));
        }
    }
}

fn message(parsed: Vec<AnswerPart>) -> Json {
    let (mut text, mut calls) = (String::new(), Vec::new());
    for parsed in parsed {
        match parsed {
            AnswerPart::Text(part) => text += &part,
            AnswerPart::Call(call) => calls.push(call_json(&call)),
        }
    }
    let mut message = json!({ "role": "assistant", "content": text });
    if !calls.is_empty() {
        if text.is_empty() {
            message["content"] = Json::Null;
        }
        message["tool_calls"] = json!(calls);
    }
    message
}

impl Head {
    fn part(&self, is_chunk: bool, choices: Vec<Json>) -> Json {
        json!({
            "id": self.id,
            "object": self.api.object(is_chunk),
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// One choice of an event. `delta` holds the new part of the message.
    fn delta(&self, i: usize, delta: Json, finish: Option<&str>) -> Json {
        let mut choice = json!({ "index": i, "finish_reason": finish });
        match self.api {
            Api::Chat => choice["delta"] = delta,
            Api::Completions => {
                let text = delta.get("content").cloned();
                choice["text"] = text.unwrap_or_else(|| json!(""));
            }
        }
        choice
    }

    fn usage(&self, completion_tokens: usize, seen: Option<&ContextSeen>) -> Json {
        let (prompt_tokens, cached_tokens) = match seen {
            Some(ContextSeen::Turn { context, .. }) => (context.kept, context.cached),
            Some(ContextSeen::Completion(held)) => (self.prompt_tokens as u64, held.reused as u64),
            None => (self.prompt_tokens as u64, 0),
        };
        json!({
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens as u64,
            "prompt_tokens_details": { "cached_tokens": cached_tokens },
        })
    }

    /// Log-probabilities in the API's form: completions have parallel lists. `offset` is where the first token begins.
    fn logprobs(&self, of: Vec<Json>, offset: &mut usize) -> Json {
        if of.is_empty() {
            return Json::Null;
        }
        if self.api == Api::Chat {
            return json!({ "content": of });
        }
        let name = |token: &Json| token["token"].as_str().unwrap_or_default().to_owned();
        let (mut offsets, mut tops) = (Vec::new(), Vec::new());
        for one in &of {
            offsets.push(*offset);
            *offset += name(one).chars().count();
            let top = one["top_logprobs"].as_array().into_iter().flatten();
            let top = top.map(|token| (name(token), token["logprob"].clone()));
            tops.push(top.collect::<Json>());
        }
        let all = |name: &str| list(&of, |one| one[name].clone());
        json!({
            "tokens": all("token"),
            "token_logprobs": all("logprob"),
            "top_logprobs": tops,
            "text_offset": offsets,
        })
    }

    fn logprob(&self, of: &Logprob) -> Json {
        let model = self.server.client().model();
        let top = of.top.iter().map(|&(id, p)| token_json(model, id, p));
        let mut one = token_json(model, of.id, of.logprob);
        one["top_logprobs"] = top.collect();
        one
    }
}

fn token_json(model: &Model, id: u32, logprob: f64) -> Json {
    let bytes = model.tokenizer().piece_bytes(id);
    json!({
        "token": String::from_utf8_lossy(&bytes),
        "bytes": bytes,
        // JSON has no infinity.
        "logprob": logprob.max(-9999.0),
    })
}

fn context_json(seen: &ContextSeen) -> Json {
    match seen {
        ContextSeen::Completion(held) => json!({
            "kept": held.usage.rows,
            "evicted": held.usage.evicted(),
            "spilled": 0,
            "cached": held.reused,
            "recomputed": 0,
        }),
        ContextSeen::Turn { number, context } => json!({
            "turn": number,
            "kept": context.kept,
            "masked": context.masked,
            "spilled": context.spilled,
            "recalled": context.recalled,
            "recalled_by": list(&context.recalled_by, |rank| json!(rank.map(|rank| rank.by.name()))),
            "recalled_scores": list(&context.recalled_by, |rank| json!(rank.map(|rank| rank.score()))),
            "evicted": context.evicted,
            "cached": context.cached,
            "recomputed": context.recomputed,
            "parts": context.parts,
            "changes": list(&context.changes, |change| json!({
                "turn": change.turn,
                "capacity": change.capacity,
                "reason": change.reason,
            })),
            "condensed": context.condensed.as_ref().map(ToString::to_string),
            "plan": context.plan,
            "unjudged": context.unjudged,
            "unsaved": context.unsaved.as_ref().map(ToString::to_string),
        }),
    }
}
