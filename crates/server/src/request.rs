//! From what a client sent to requests of the desk: everything is checked before anything is computed.

use super::tool_calls::Functions;
use super::fail::Fail;
use super::limits;
use super::owner::{Hall, Submission};
use super::sessions::Bound;
use super::types::{Common, OneOrMany, WhenLonger};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use haversack::engine::runtime::GenerateOptions;
use haversack::engine::sample::{Constraint, SampleOptions};
use haversack::engine::{Model, Policy};
use haversack::memory::clock::now_ms;
use haversack::scheduler::{Long, Request, Rows, TurnRequest};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde::de::DeserializeOwned;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

/// One request, checked, with a prompt in tokens.
pub struct Ask {
    /// One for each choice.
    pub what: Vec<Submission>,
    pub prompt_tokens: usize,
    /// How many of the likeliest are told beside each token.
    pub logprobs: Option<usize>,
    pub stream: bool,
    pub include_usage: bool,
    /// As the client called it.
    pub model: Option<String>,
    /// Functions that the answer may call.
    pub callable: Option<Functions>,
}

/// The body of a request as what it should be.
pub async fn read<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Fail> {
    let text = |name| headers.get(name).map(|v| v.to_str().unwrap_or("?"));
    let kind = text(header::CONTENT_TYPE).unwrap_or("application/json");
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Fail::status(status, "accepted: application/json"));
    }
    if text(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Fail::status(
            status,
            "accepted: a body that is not compressed",
        ));
    }
    let whole = tokio::time::timeout(limits::BODY_TIME, whole(body)).await;
    parse(&whole.unwrap_or_else(|_| Err(slow()))?)
}

/// All of a body, as far as it may go. What says that it is longer is not waited for.
async fn whole(mut body: Body) -> Result<Vec<u8>, Fail> {
    let long = || {
        let most = limits::BODY_BYTES;
        Fail::status(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is too long; accepted: at most {most} bytes"),
        )
    };
    if body.size_hint().lower() > limits::BODY_BYTES as u64 {
        return Err(long());
    }
    let mut bytes = Vec::new();
    loop {
        let frame = tokio::time::timeout(limits::BODY_PAUSE, body.frame()).await;
        match frame.map_err(|_| slow())? {
            None => return Ok(bytes),
            Some(Err(_)) => return Err(Fail::bad("the body ended early")),
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_default();
                if bytes.len() + data.len() > limits::BODY_BYTES {
                    return Err(long());
                }
                bytes.extend_from_slice(&data);
            }
        }
    }
}

fn slow() -> Fail {
    Fail::status(StatusCode::REQUEST_TIMEOUT, "the body took too long")
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fail> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if depth(bytes) > limits::JSON_DEPTH {
        let most = limits::JSON_DEPTH;
        return Err(Fail::bad(format!(
            "the JSON is nested too deep; accepted: at most {most} levels"
        )));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        // Where it is wrong, not what is there: that may be somebody's text.
        let (line, column) = (error.line(), error.column());
        match error.classify() {
            serde_json::error::Category::Data => Fail::bad(format!(
                "the JSON does not fit: {}",
                without_values(&error.to_string())
            )),
            _ => Fail::bad(format!("the body is no JSON, line {line} column {column}")),
        }
    })
}

/// An error of types without what it quotes.
fn without_values(message: &str) -> String {
    let mut quoted = false;
    let mut out = String::new();
    for c in message.chars().take(300) {
        if c == '"' {
            quoted = !quoted;
            out.push('"');
        } else if !quoted {
            out.push(c);
        }
    }
    out
}

/// How deep brackets go, whatever is between them.
fn depth(bytes: &[u8]) -> usize {
    let (mut now, mut most, mut text, mut escaped) = (0usize, 0, false, false);
    for &b in bytes {
        match b {
            _ if escaped => escaped = false,
            b'\\' if text => escaped = true,
            b'"' => text = !text,
            b'[' | b'{' if !text => {
                now += 1;
                most = most.max(now);
            }
            b']' | b'}' if !text => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most
}

/// What the kinds of request make of theirs.
pub struct Wanted<'a> {
    /// Of a session there is none: it is what was said.
    pub prompt: Vec<u32>,
    /// Texts that end an answer of this kind.
    pub stops: &'a [&'a str],
    /// How many of the likeliest tokens are told, where any are.
    pub top: Option<u64>,
    /// What the answer may be.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Functions that it may call.
    pub callable: Option<Functions>,
}

/// What a request says beside its text, checked.
struct Wishes {
    sample: SampleOptions,
    options: GenerateOptions,
    choices: u64,
    owner: u64,
    deadline: Duration,
}

fn wishes(hall: &Hall, wanted: &Wanted<'_>, common: &Common) -> Result<Wishes, Fail> {
    let (top, model) = (wanted.top, &hall.model);
    if top.is_some_and(|top| top > limits::TOP_LOGPROBS) {
        let most = limits::TOP_LOGPROBS;
        return Err(Fail::param(
            "top_logprobs",
            format!("accepted: 0 to {most}"),
        ));
    }
    let choices = common.n.unwrap_or(1);
    if !(1..=limits::CHOICES).contains(&choices) {
        let most = limits::CHOICES;
        return Err(Fail::param("n", format!("accepted: 1 to {most}")));
    }
    let limit = common.max_completion_tokens.or(common.max_tokens);
    if limit.is_some_and(|n| n == 0 || n > u64::from(u32::MAX)) {
        let what = "max_tokens";
        return Err(Fail::param(what, format!("accepted: 1 to {}", u32::MAX)));
    }
    // An answer that has a form ends by itself, and a text in the middle of it would make it another one.
    let has_form = wanted.constraint.is_some();
    let stops = if has_form { &[][..] } else { wanted.stops };
    if has_form && common.stop.is_some() {
        return Err(Fail::param(
            "stop",
            "an answer that has a form ends by itself",
        ));
    }
    Ok(Wishes {
        sample: sample(model, common)?,
        options: GenerateOptions {
            tokens_max: Some(limit.map_or(limits::TOKENS, |n| n as usize)),
            stop: stop(common, stops)?,
            ignore_end: false,
        },
        choices,
        owner: common.user.as_deref().map_or(0, name_of),
        deadline: hall.now() + limits::REQUEST_TIME,
    })
}

impl Ask {
    fn new(what: Vec<Submission>, wanted: &Wanted<'_>, common: &Common) -> Ask {
        let usage = common.stream_options.and_then(|o| o.include_usage);
        Ask {
            what,
            prompt_tokens: wanted.prompt.len(),
            logprobs: wanted.top.map(|top| top as usize),
            stream: common.stream.unwrap_or(false),
            include_usage: usage.unwrap_or(false),
            model: common.model.clone(),
            callable: wanted.callable.clone(),
        }
    }
}

/// One request for each choice.
pub fn ask(hall: &Hall, wanted: Wanted<'_>, common: &Common) -> Result<Ask, Fail> {
    let wishes = wishes(hall, &wanted, common)?;
    let rows = rows(hall, common)?;
    let mut options = wishes.options;
    if rows.long == Long::Refuse {
        let room = rows.most.saturating_sub(wanted.prompt.len()).max(1);
        options.tokens_max = options.tokens_max.map(|most| most.min(room));
    }
    let request = |i: u64| {
        Submission::Request(Box::new(Request {
            prompt: wanted.prompt.clone(),
            sample: SampleOptions {
                seed: wishes.sample.seed.wrapping_add(i),
                ..wishes.sample.clone()
            },
            constraint: wanted.constraint.clone(),
            options: options.clone(),
            rows: Some(rows),
            owner: wishes.owner,
            deadline: Some(wishes.deadline),
            ..Request::default()
        }))
    };
    let what = (0..wishes.choices).map(request).collect();
    Ok(Ask::new(what, &wanted, common))
}

/// A turn of a session.
pub fn turn(hall: &Hall, bound: Bound, wanted: Wanted<'_>, common: &Common) -> Result<Ask, Fail> {
    let wishes = wishes(hall, &wanted, common)?;
    if wishes.choices != 1 {
        return Err(Fail::param("n", "accepted: 1 in a session"));
    }
    if common.context.is_some() {
        let why = "a session has its own; accepted: none";
        return Err(Fail::param("context", why));
    }
    let Bound { session, text } = bound;
    let turn = TurnRequest {
        session,
        // One that cannot be had makes a question unjudged, not unasked.
        embedding: hall.encoder.as_ref().and_then(|e| e.embed(&text).ok()),
        text,
        now_ms: now_ms(),
        sample: wishes.sample,
        constraint: wanted.constraint.clone(),
        options: wishes.options,
        owner: wishes.owner,
        deadline: Some(wishes.deadline),
        ..TurnRequest::default()
    };
    let what = vec![Submission::Turn(Box::new(turn))];
    Ok(Ask::new(what, &wanted, common))
}

fn rows(hall: &Hall, common: &Common) -> Result<Rows, Fail> {
    let context = hall.model.config().context.min(hall.rows_most);
    let Some(given) = common.context else {
        return Ok(Rows {
            most: context,
            anchors: 0,
            long: Long::Refuse,
        });
    };
    let count = |n: Option<u64>, usual: usize| {
        n.map_or(usual, |n| usize::try_from(n).unwrap_or(usize::MAX))
    };
    let most = count(given.limit, context);
    if most > context {
        return Err(Fail::param(
            "context",
            format!("limit: accepted: at most {context}"),
        ));
    }
    let rows = Rows {
        most,
        anchors: count(given.anchors, 0).min(context),
        long: match given.when_longer {
            WhenLonger::Refuse => Long::Refuse,
            WhenLonger::Truncate => Long::Truncate,
            WhenLonger::Window => Long::Window,
            WhenLonger::Heavy => Long::Choose(Policy::Heavy),
            WhenLonger::Snap => Long::Choose(Policy::Snap),
            WhenLonger::Adaptive => Long::Choose(Policy::Adaptive),
            WhenLonger::Again => Long::Again {
                every: count(given.every, most / 4),
            },
        },
    };
    rows.check()
        .map_err(|error| Fail::param("context", error.to_string()))?;
    Ok(rows)
}

fn stop(common: &Common, usual: &[&str]) -> Result<Vec<String>, Fail> {
    let stop = common.stop.as_ref().map_or(&[][..], OneOrMany::as_slice);
    let (strings, bytes) = (limits::STOPS, limits::STOP_BYTES);
    let fits = stop.iter().all(|s| (1..=bytes).contains(&s.len()));
    if stop.len() > strings || !fits {
        return Err(Fail::param(
            "stop",
            format!("accepted: at most {strings} strings of 1 to {bytes} bytes"),
        ));
    }
    let usual = usual.iter().map(|&s| s.to_owned());
    Ok(stop.iter().cloned().chain(usual).collect())
}

fn sample(model: &Model, common: &Common) -> Result<SampleOptions, Fail> {
    let usual = SampleOptions::default();
    let mut logit_bias = Vec::new();
    for (token, bias) in common.logit_bias.iter().flatten() {
        let known = |id: &u32| (*id as usize) < model.config().vocab;
        let Some(id) = token.parse().ok().filter(known) else {
            return Err(Fail::param(
                "logit_bias",
                "its names must be token ids of this model",
            ));
        };
        logit_bias.push((id, *bias));
    }
    let options = SampleOptions {
        temperature: common.temperature.unwrap_or(1.0),
        top_k: common
            .top_k
            .map_or(usual.top_k, |k| usize::try_from(k).unwrap_or(usize::MAX)),
        top_p: common.top_p.unwrap_or(usual.top_p),
        min_p: common.min_p.unwrap_or(usual.min_p),
        presence_penalty: common.presence_penalty.unwrap_or(usual.presence_penalty),
        frequency_penalty: common.frequency_penalty.unwrap_or(usual.frequency_penalty),
        repetition_penalty: common
            .repetition_penalty
            .unwrap_or(usual.repetition_penalty),
        logit_bias,
        seed: common.seed.map_or_else(any_seed, |seed| seed as u64),
        ..usual
    };
    haversack::engine::sample::Sampler::new(options.clone())
        .map_err(|error| Fail::bad(error.to_string()))?;
    Ok(options)
}

/// Another one each time.
fn any_seed() -> u64 {
    RandomState::new().hash_one(0)
}

/// The same for the same name, while the server runs.
fn name_of(user: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ChatRequest;

    #[test]
    fn brackets_are_counted_outside_of_texts() {
        assert_eq!(depth(b"{}"), 1);
        assert_eq!(depth(br#"{"a":[{"b":"]]]{{{{\"[[[["}]}"#), 3);
        assert_eq!(depth(&[b'['; 1000]), 1000);
        assert_eq!(depth(b"]]]]["), 1);
    }

    #[test]
    fn errors_quote_nothing() {
        let of = |body: &str| {
            let fail = parse::<ChatRequest>(body.as_bytes()).unwrap_err();
            fail.json()["error"]["message"].as_str().unwrap().to_owned()
        };
        let told = of(r#"{"messages":[{"role":"user","content":"x"}],"temperature":"my secret"}"#);
        assert!(!told.contains("secret"), "{told}");
        assert!(told.contains("expected f32"), "{told}");
        assert_eq!(
            of(r#"{"messages":"#),
            "the body is no JSON, line 1 column 12"
        );
        assert!(of("[1,2,3]").starts_with("the JSON does not fit"));
        let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
        assert!(of(&deep).contains("64 levels"));
    }
}
