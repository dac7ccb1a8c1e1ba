//! From what a client sent to requests of the desk: everything is checked before anything is computed.

use super::fail::Fail;
use super::limits;
use super::types::{Common, OneOrMany, WhenLonger};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use haversack::Model;
use haversack::many::{Long, Request, Rows};
use haversack::run::GenerateOptions;
use haversack::sample::{Constraint, SampleOptions};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde::de::DeserializeOwned;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

/// One request, checked, with a prompt in tokens.
pub struct Ask {
    /// One for each choice.
    pub requests: Vec<Request>,
    pub prompt_tokens: usize,
    /// How many of the likeliest are told beside each token.
    pub logprobs: Option<usize>,
    pub stream: bool,
    pub include_usage: bool,
    /// As the client called it.
    pub model: Option<String>,
    /// Functions that the answer may call.
    pub callable: Option<Arc<[String]>>,
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

/// What the two kinds of request make of theirs.
pub struct Wanted<'a> {
    pub prompt: Vec<u32>,
    /// Texts that end an answer of this kind.
    pub stops: &'a [&'a str],
    /// How many of the likeliest tokens are told, where any are.
    pub top: Option<u64>,
    /// What the answer may be.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Functions that it may call.
    pub callable: Option<Arc<[String]>>,
}

/// One request for each choice.
pub fn ask(model: &Model, wanted: Wanted<'_>, common: Common, now: Duration) -> Result<Ask, Fail> {
    let Wanted {
        prompt,
        stops,
        top,
        constraint,
        callable,
    } = wanted;
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
    let rows = rows(model, &common)?;
    let mut tokens_max = limit.map_or(limits::TOKENS, |n| n as usize);
    if rows.long == Long::Refuse {
        tokens_max = tokens_max.min(rows.most.saturating_sub(prompt.len()).max(1));
    }
    // An answer that has a form ends by itself, and a text in the middle of it would make it another one.
    let stops = if constraint.is_some() { &[][..] } else { stops };
    if constraint.is_some() && common.stop.is_some() {
        return Err(Fail::param(
            "stop",
            "an answer that has a form ends by itself",
        ));
    }
    let options = GenerateOptions {
        tokens_max: Some(tokens_max),
        stop: stop(&common, stops)?,
        ignore_end: false,
    };
    let sample = sample(model, &common)?;
    let owner = common.user.as_deref().map_or(0, name_of);
    let request = |i: u64| Request {
        prompt: prompt.clone(),
        sample: SampleOptions {
            seed: sample.seed.wrapping_add(i),
            ..sample.clone()
        },
        constraint: constraint.clone(),
        options: options.clone(),
        rows: Some(rows),
        owner,
        deadline: Some(now + limits::REQUEST_TIME),
        ..Request::default()
    };
    Ok(Ask {
        prompt_tokens: prompt.len(),
        requests: (0..choices).map(request).collect(),
        logprobs: top.map(|top| top as usize),
        stream: common.stream.unwrap_or(false),
        include_usage: common
            .stream_options
            .and_then(|o| o.include_usage)
            .unwrap_or(false),
        model: common.model,
        callable,
    })
}

fn rows(model: &Model, common: &Common) -> Result<Rows, Fail> {
    let context = model.config().context;
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
    haversack::sample::Sampler::new(options.clone())
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
    use crate::server::types::ChatRequest;

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
