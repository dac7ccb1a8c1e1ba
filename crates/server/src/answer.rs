//! Answers as clients of this API expect them: one document, or events of which each is a piece.

use super::Shared;
use super::request::Ask;
use super::tool_calls::{Call, Ear, Functions, Said, any_id};
use super::fail::Fail;
use super::owner::{Became, Logprob, Piece, Place, Submission, Told, Turned};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use haversack::engine::Model;
use haversack::engine::runtime::Finish;
use haversack::memory::clock::since_1970;
use serde_json::{Value as Json, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Which of the two APIs an answer is for: they differ in names and in where the text is.
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

/// What all parts of an answer say of it.
struct Head {
    /// Functions that may be called: calls are looked for in what is said.
    callable: Option<Functions>,
    api: Api,
    id: String,
    created: u64,
    model: String,
    prompt_tokens: usize,
    include_usage: bool,
    shared: Arc<Shared>,
}

pub async fn answer(shared: Arc<Shared>, api: Api, ask: Ask) -> Result<Response, Fail> {
    let Ask {
        what,
        prompt_tokens,
        logprobs,
        stream,
        include_usage,
        model,
        callable,
    } = ask;
    let choices = what.len();
    let (place, told) = submit(&shared, what, logprobs).await?;
    let now = since_1970();
    let head = Head {
        callable,
        api,
        id: format!("{}-{:x}", api.id(), now.as_nanos()),
        created: now.as_secs(),
        model: model.unwrap_or_else(|| shared.model_name.clone()),
        prompt_tokens,
        include_usage,
        shared,
    };
    match stream {
        true => Ok(events(head, place, told, choices)),
        false => whole(head, place, told, choices).await,
    }
}

/// A place for all of them, or why there is none.
pub async fn submit(
    shared: &Shared,
    what: Vec<Submission>,
    logprobs: Option<usize>,
) -> Result<(Place, mpsc::Receiver<Told>), Fail> {
    let submitted = shared.hall.submit(what, logprobs).await;
    submitted.map_err(|turned| match turned {
        Turned::Busy => Fail::busy(),
        Turned::Stopping => Fail::stopping(),
        Turned::SubmitError(refused) => Fail::refused(&refused),
    })
}

/// What was said of one choice.
#[derive(Default)]
struct Choice {
    logprobs: Vec<Json>,
    ended: Option<Ended>,
}

struct Ended {
    text: String,
    tokens: usize,
    finish: Finish,
    became: Became,
}

async fn whole(
    head: Head,
    place: Place,
    mut told: mpsc::Receiver<Told>,
    choices: usize,
) -> Result<Response, Fail> {
    let mut all: Vec<Choice> = (0..choices).map(|_| Choice::default()).collect();
    while all.iter().any(|choice| choice.ended.is_none()) {
        let Some((i, piece)) = told.recv().await else {
            return Err(Fail::internal("the answer was cut off"));
        };
        match piece {
            Piece::Token { logprob, .. } => {
                let logprob = logprob.map(|l| head.logprob(&l));
                all[i].logprobs.extend(logprob);
            }
            Piece::Done {
                text,
                tokens,
                finish,
                became,
            } => {
                all[i].ended = Some(Ended {
                    text,
                    tokens,
                    finish,
                    became,
                });
            }
            Piece::Failed(why) => return Err(Fail::internal(why)),
        }
    }
    drop(place);
    let mut completion_tokens = 0;
    let mut first = None;
    let mut listed = Vec::new();
    for (i, choice) in all.into_iter().enumerate() {
        let Some(ended) = choice.ended else { continue };
        completion_tokens += ended.tokens;
        first = first.or(Some(ended.became));
        let logprobs = head.logprobs(choice.logprobs, &mut 0);
        let mut speaker = Speaker::new(&head);
        let said = speaker.last(&ended.text);
        let mut one = json!({
            "index": i,
            "logprobs": logprobs,
            "finish_reason": speaker.finish(ended.finish),
        });
        match head.api {
            Api::Chat => one["message"] = message(said),
            Api::Completions => one["text"] = json!(ended.text),
        }
        listed.push(one);
    }
    let mut body = head.part(false, listed);
    body["usage"] = head.usage(completion_tokens, first.as_ref());
    body["context"] = first.as_ref().map(Became::json).unwrap_or_default();
    Ok(axum::Json(body).into_response())
}

/// A stream of events that is being written.
struct Events {
    head: Head,
    told: mpsc::Receiver<Told>,
    /// One for each choice.
    speakers: Vec<Speaker>,
    /// Choices that have not ended.
    open: usize,
    completion_tokens: usize,
    ready: VecDeque<Bytes>,
    /// Ends with the stream, so that a client that leaves frees what it held.
    place: Option<Place>,
}

fn events(head: Head, place: Place, told: mpsc::Receiver<Told>, choices: usize) -> Response {
    let mut events = Events {
        speakers: (0..choices).map(|_| Speaker::new(&head)).collect(),
        head,
        told,
        open: choices,
        completion_tokens: 0,
        ready: VecDeque::new(),
        place: Some(place),
    };
    if events.head.api == Api::Chat {
        for i in 0..choices {
            let first = json!({ "role": "assistant", "content": "" });
            events.say(
                events
                    .head
                    .part(true, vec![events.head.delta(i, first, None)]),
            );
        }
    }
    streamed(stream::unfold(events, async |mut events| {
        let bytes = events.next().await?;
        Some((bytes, events))
    }))
}

/// Events as they come.
pub fn streamed(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let body = events.map(Ok::<Bytes, Infallible>);
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream");
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Events {
    fn say(&mut self, event: Json) {
        self.ready.push_back(format!("data: {event}\n\n").into());
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            self.place.as_ref()?;
            match self.told.recv().await {
                Some((i, piece)) => self.hear(i, piece),
                None => {
                    self.say(Fail::internal("the answer was cut off").json());
                    self.place = None;
                }
            }
        }
    }

    fn hear(&mut self, i: usize, piece: Piece) {
        match piece {
            Piece::Token { text, logprob } => {
                let said = self.speakers[i].piece(&text);
                let logprob = logprob.map(|l| {
                    let offset = &mut self.speakers[i].offset;
                    self.head.logprobs(vec![self.head.logprob(&l)], offset)
                });
                self.tell(i, said, logprob);
            }
            Piece::Done {
                text,
                tokens,
                finish,
                became,
            } => {
                let said = self.speakers[i].last(&text);
                self.tell(i, said, None);
                self.completion_tokens += tokens;
                self.open -= 1;
                let finish = self.speakers[i].finish(finish);
                let choice = self.head.delta(i, json!({}), Some(finish));
                let mut part = self.head.part(true, vec![choice]);
                part["context"] = became.json();
                self.say(part);
                if self.open == 0 {
                    if self.head.include_usage {
                        let mut last = self.head.part(true, Vec::new());
                        last["usage"] = self.head.usage(self.completion_tokens, Some(&became));
                        self.say(last);
                    }
                    self.ready.push_back("data: [DONE]\n\n".into());
                    self.place = None;
                }
            }
            Piece::Failed(why) => {
                self.say(Fail::internal(why).json());
                self.place = None;
            }
        }
    }
}

impl Events {
    /// An event for each; log-probabilities go with the first, or alone.
    fn tell(&mut self, i: usize, said: Vec<Said>, logprob: Option<Json>) {
        let mut deltas: Vec<Json> = Vec::new();
        let mut index = self.speakers[i].told;
        for said in said {
            deltas.push(match said {
                Said::Text(text) => json!({ "content": text }),
                Said::Call(call) => {
                    let mut call = call_json(&call);
                    call["index"] = json!(index);
                    index += 1;
                    json!({ "tool_calls": [call] })
                }
            });
        }
        self.speakers[i].told = index;
        if deltas.is_empty() && logprob.is_some() {
            deltas.push(json!({ "content": "" }));
        }
        let mut logprob = logprob.unwrap_or_default();
        for delta in deltas {
            let mut choice = self.head.delta(i, delta, None);
            choice["logprobs"] = logprob.take();
            self.say(self.head.part(true, vec![choice]));
        }
    }
}

/// What one choice says: text as it comes, and calls in it where there may be any.
struct Speaker {
    ear: Option<Ear>,
    /// Bytes that were heard.
    heard: usize,
    /// Calls that were told.
    told: usize,
    /// Characters of tokens whose log-probabilities were told.
    offset: usize,
}

impl Speaker {
    fn new(head: &Head) -> Speaker {
        Speaker {
            ear: head.callable.clone().map(Ear::new),
            heard: 0,
            told: 0,
            offset: 0,
        }
    }

    fn piece(&mut self, text: &str) -> Vec<Said> {
        self.heard += text.len();
        match &mut self.ear {
            Some(ear) => ear.hear(text),
            None if text.is_empty() => Vec::new(),
            None => vec![Said::Text(text.to_owned())],
        }
    }

    /// With the whole text at its end: some of it may have been held back, by us or before us.
    fn last(&mut self, text: &str) -> Vec<Said> {
        let mut said = self.piece(text.get(self.heard..).unwrap_or_default());
        if let Some(ear) = &mut self.ear {
            said.extend(ear.end());
        }
        said
    }

    fn finish(&self, finish: Finish) -> &'static str {
        let called = self.ear.as_ref().is_some_and(|ear| ear.calls() > 0);
        match finish {
            Finish::Stop if called => "tool_calls",
            finish => finish.name(),
        }
    }
}

/// An assistant's message of all that was said.
fn message(said: Vec<Said>) -> Json {
    let (mut text, mut calls) = (String::new(), Vec::new());
    for said in said {
        match said {
            Said::Text(part) => text += &part,
            Said::Call(call) => calls.push(call_json(&call)),
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

fn call_json(call: &Call) -> Json {
    json!({
        "id": any_id(),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
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

    /// One choice of an event. `delta` holds what is new of a message.
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

    fn usage(&self, completion_tokens: usize, became: Option<&Became>) -> Json {
        let (prompt_tokens, cached_tokens) = match became {
            Some(Became::Turn { context, .. }) => (context.kept, context.cached),
            Some(Became::Request(held)) => (self.prompt_tokens as u64, held.reused as u64),
            None => (self.prompt_tokens as u64, 0),
        };
        json!({
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens as u64,
            "prompt_tokens_details": { "cached_tokens": cached_tokens },
        })
    }

    /// Log-probabilities as the API has them: the older one has lists beside each other. `offset` is where the first begins.
    fn logprobs(&self, of: Vec<Json>, offset: &mut usize) -> Json {
        if of.is_empty() {
            return Json::Null;
        }
        if self.api == Api::Chat {
            return json!({ "content": of });
        }
        let mut offsets = Vec::new();
        let mut tops = Vec::new();
        for one in &of {
            offsets.push(*offset);
            *offset += one["token"]
                .as_str()
                .map_or(0, |token| token.chars().count());
            let top = one["top_logprobs"].as_array().into_iter().flatten();
            let name = |token: &Json| token["token"].as_str().unwrap_or_default().to_owned();
            let top: Json = top
                .map(|token| (name(token), token["logprob"].clone()))
                .collect();
            tops.push(top);
        }
        let all = |name: &str| of.iter().map(|one| one[name].clone()).collect::<Json>();
        json!({
            "tokens": all("token"),
            "token_logprobs": all("logprob"),
            "top_logprobs": tops,
            "text_offset": offsets,
        })
    }

    fn logprob(&self, of: &Logprob) -> Json {
        let model = &self.shared.hall.model;
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

impl Became {
    /// What became of the tokens.
    fn json(&self) -> Json {
        match self {
            Became::Request(held) => json!({
                "kept": held.rows,
                "evicted": held.seen.saturating_sub(held.rows as u64),
                "spilled": 0,
                "cached": held.reused,
                "recomputed": 0,
            }),
            Became::Turn { number, context } => json!({
                "turn": number,
                "kept": context.kept,
                "masked": context.masked,
                "spilled": context.spilled,
                "recalled": context.recalled,
                "evicted": context.evicted,
                "cached": context.cached,
                "recomputed": context.recomputed,
                "plan": context.plan,
                "unjudged": context.unjudged,
                "unsaved": context.unsaved,
            }),
        }
    }
}
