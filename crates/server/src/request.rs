//! From a parsed body to requests of the scheduler: everything is checked before anything is computed.

use super::call_check::CallCheck;
use super::fail::{Fail, refuse, require};
use super::limits;
use super::types::{CommonFields, OneOrMany, WhenLonger};
use haversack::engine::runtime::GenerateOptions;
use haversack::engine::sample::{
    Constraint, DRY_LAST_N_MAX, DryValues, SampleOptions, SamplingValues, effective,
};
use haversack::engine::{Model, Policy};
use haversack::grammar::{Functions, ToolCall};
use haversack::memory::clock::now_ms;
use haversack::scheduler::{LongPrompt, Request, RequestKind, RowLimit};
use haversack::text::chat::EncodedChat;
use haversack::{Client, Error, Owner};
use serde_json::{Value, json};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// A client's request, checked, its prompt in tokens.
pub struct CheckedRequest {
    /// One for each choice.
    pub requests: Vec<Request>,
    pub prompt_tokens: usize,
    /// How many of the likeliest tokens are told with each.
    pub logprobs: Option<usize>,
    pub stream: bool,
    pub include_usage: bool,
    /// As the client called it.
    pub model: Option<String>,
    /// Functions that the answer may call.
    pub callable: Option<Functions>,
    /// Where it may call functions and need not: what it becomes if its first call is not to be made.
    pub without_tools: Option<WithoutTools>,
}

/// A request without the tools that it came with, and what decides whether it is taken.
pub struct WithoutTools {
    pub request: Box<CheckedRequest>,
    /// Calls that were answered since the user said something: they need not be made again.
    pub answered: Vec<ToolCall>,
    /// Whether a call is needed at all.
    pub check: Option<CallCheck>,
}

/// A message to a session.
pub struct SessionMessage {
    pub session: String,
    pub text: String,
}

/// What each endpoint makes of its own fields.
#[derive(Default)]
pub struct EndpointFields<'a> {
    /// Empty in a session.
    pub prompt: EncodedChat,
    /// Stop strings of this endpoint.
    pub stops: &'a [&'a str],
    /// How many of the likeliest tokens are told; `None`: no log-probabilities.
    pub top: Option<u64>,
    pub owner: Owner,
    /// For structured output, and for calls of functions.
    pub constraint: Option<Box<dyn Constraint>>,
    /// The answer as a whole has a form.
    pub is_structured: bool,
    /// Functions that the answer may call.
    pub callable: Option<Functions>,
}

/// The name of a model as a client calls it. Every part of an answer repeats it.
pub fn check_model(model: Option<&String>) -> Result<(), Fail> {
    let max = limits::MODEL_BYTES;
    let is_short = model.is_none_or(|name| name.len() <= max);
    require(is_short, "model", format!("accepted: at most {max} bytes"))
}

/// A request with the common fields, checked. Its kind is the caller's to say.
fn check(
    client: &Client,
    fields: &EndpointFields<'_>,
    common: &CommonFields,
) -> Result<Request, Fail> {
    check_model(common.model.as_ref())?;
    let max = limits::TOP_LOGPROBS;
    let is_few = fields.top.is_none_or(|top| top <= max);
    require(is_few, "top_logprobs", format!("accepted: 0 to {max}"))?;
    let max = limits::CHOICES;
    let are_few = (1..=max).contains(&common.choices());
    require(are_few, "n", format!("accepted: 1 to {max}"))?;
    let (limit, max) = (common.max_completion_tokens.or(common.max_tokens), u32::MAX);
    let is_short = limit.is_none_or(|n| (1..=u64::from(max)).contains(&n));
    require(is_short, "max_tokens", format!("accepted: 1 to {max}"))?;
    // Structured output ends by itself, and a stop string in the middle would break it.
    let is_structured = fields.is_structured;
    let stops = if is_structured { &[][..] } else { fields.stops };
    let accepted = "structured output ends by itself; accepted: none";
    require(!is_structured || common.stop.is_none(), "stop", accepted)?;
    Ok(Request {
        sample: sample(client.model(), common)?,
        constraint: fields.constraint.clone(),
        options: GenerateOptions {
            tokens_max: Some(limit.map_or(limits::TOKENS, |n| n as usize)),
            stop: stop(common, stops)?,
            ignore_end: false,
            // Structured output that is cut would not match its grammar.
            stop_repetition: common.samplers.stop_repetition.unwrap_or(!is_structured),
        },
        owner: fields.owner.user(common.user.as_deref().map_or(0, name_of)),
        deadline: Some(client.now() + limits::REQUEST_TIME),
        ..Request::completion(Vec::new())
    })
}

impl CheckedRequest {
    fn new(
        requests: Vec<Request>,
        fields: &EndpointFields<'_>,
        common: &CommonFields,
    ) -> CheckedRequest {
        let usage = common.stream_options.and_then(|o| o.include_usage);
        CheckedRequest {
            requests,
            prompt_tokens: fields.prompt.ids.len(),
            logprobs: fields.top.map(|top| top as usize),
            stream: common.stream.unwrap_or(false),
            include_usage: usage.unwrap_or(false),
            model: common.model.clone(),
            callable: fields.callable.clone(),
            without_tools: None,
        }
    }
}

/// One request for each choice.
pub fn completion(
    client: &Client,
    fields: EndpointFields<'_>,
    common: &CommonFields,
) -> Result<CheckedRequest, Fail> {
    let mut request = check(client, &fields, common)?;
    let rows = rows(client, common)?;
    if rows.when_longer == LongPrompt::Refuse {
        let room = rows.max_rows.saturating_sub(fields.prompt.ids.len()).max(1);
        request.options.tokens_max = request.options.tokens_max.map(|max| max.min(room));
    }
    request.kind = RequestKind::Completion {
        prompt: fields.prompt.ids.clone(),
        rows: Some(rows),
    };
    request.borders = fields.prompt.borders.clone();
    request.messages = fields.prompt.messages.clone();
    let choice = |i: u64| {
        let mut request = request.clone();
        request.sample.seed = request.sample.seed.wrapping_add(i);
        request
    };
    let requests = (0..common.choices()).map(choice).collect();
    Ok(CheckedRequest::new(requests, &fields, common))
}

/// A turn of a session.
pub fn turn(
    client: &Client,
    message: SessionMessage,
    fields: EndpointFields<'_>,
    common: &CommonFields,
) -> Result<CheckedRequest, Fail> {
    let mut request = check(client, &fields, common)?;
    require(common.choices() == 1, "n", "accepted: 1 in a session")?;
    let why = "a session manages its own context; accepted: none";
    require(common.context.is_none(), "context", why)?;
    // An answer of the session's usual length, unless the client asks for a number.
    let asked = common.max_completion_tokens.or(common.max_tokens);
    request.options.tokens_max = asked.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let SessionMessage { session, text } = message;
    request.kind = RequestKind::Turn {
        session,
        embedding: client.question_embedding(&text),
        tokens: Some(client.texts()?.question(&text).map_err(Error::from)?),
        text,
        now_ms: now_ms(),
    };
    Ok(CheckedRequest::new(vec![request], &fields, common))
}

fn rows(client: &Client, common: &CommonFields) -> Result<RowLimit, Fail> {
    let context = client
        .model()
        .config()
        .context
        .min(client.layout().bounds.rows_max);
    let Some(given) = common.context else {
        return Ok(RowLimit {
            max_rows: context,
            anchors: 0,
            when_longer: LongPrompt::Refuse,
        });
    };
    let max_rows = count(given.limit, context);
    let accepted = format!("limit: accepted: at most {context}");
    require(max_rows <= context, "context", accepted)?;
    let rows = RowLimit {
        max_rows,
        anchors: count(given.anchors, 0).min(context),
        when_longer: match given.when_longer {
            WhenLonger::Refuse => LongPrompt::Refuse,
            WhenLonger::Truncate => LongPrompt::Truncate,
            WhenLonger::Window => LongPrompt::Window,
            WhenLonger::Heavy => LongPrompt::Select(Policy::Heavy),
            WhenLonger::Snap => LongPrompt::Select(Policy::Snap),
            WhenLonger::Turns => LongPrompt::Select(Policy::Turns),
            WhenLonger::Adaptive => LongPrompt::Select(Policy::Adaptive),
            WhenLonger::Again => LongPrompt::Reread {
                every: count(given.every, max_rows / 4),
            },
        },
    };
    let checked = rows.check();
    checked.map_err(|error| Fail::param("context", error.to_string()))?;
    Ok(rows)
}

/// `n`, or what is usual.
fn count(n: Option<u64>, usual: usize) -> usize {
    n.map_or(usual, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

fn stop(common: &CommonFields, usual: &[&str]) -> Result<Vec<String>, Fail> {
    let stop = common.stop.as_ref().map_or(&[][..], OneOrMany::as_slice);
    let (strings, bytes) = (limits::STOPS, limits::STOP_BYTES);
    let fits = stop.iter().all(|s| (1..=bytes).contains(&s.len()));
    let accepted = format!("accepted: at most {strings} strings of 1 to {bytes} bytes");
    require(stop.len() <= strings && fits, "stop", accepted)?;
    let usual = usual.iter().map(|&s| s.to_owned());
    Ok(stop.iter().cloned().chain(usual).collect())
}

fn sample(model: &Model, common: &CommonFields) -> Result<SampleOptions, Fail> {
    let mut logit_bias = Vec::new();
    for (token, bias) in common.logit_bias.iter().flatten() {
        let known = |id: &u32| (*id as usize) < model.config().vocab;
        let Some(id) = token.parse().ok().filter(known) else {
            return refuse("logit_bias", "accepted: token ids of this model as names");
        };
        logit_bias.push((id, *bias));
    }
    let options = SampleOptions {
        logit_bias,
        seed: common.seed.map_or_else(any_seed, |seed| seed as u64),
        ..effective(&requested(common), model.sampling())
    };
    let checked = options.check();
    checked.map_err(|error| Fail::bad(error.to_string()))?;
    Ok(options)
}

/// What a request gets that sets nothing.
pub fn usual_json(model: &Model) -> Value {
    let usual = model.sampling_defaults();
    // As it is written, not as the nearest number of another width.
    let short = |value: f32| (f64::from(value) * 1e6).round() / 1e6;
    json!({
        "temperature": short(usual.temperature),
        "top_k": usual.top_k,
        "top_p": short(usual.top_p),
        "min_p": short(usual.min_p),
        "repetition_penalty": short(usual.repetition_penalty),
        "max_tokens": limits::TOKENS,
    })
}

/// What the client sets.
fn requested(common: &CommonFields) -> SamplingValues {
    let more = &common.samplers;
    let whole = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let values = SamplingValues {
        temperature: common.temperature,
        top_k: common.top_k.map(whole),
        top_p: common.top_p,
        min_p: common.min_p,
        typical_p: more.typical_p,
        top_n_sigma: more.top_n_sigma,
        xtc_probability: more.xtc_probability,
        xtc_threshold: more.xtc_threshold,
        repetition_penalty: common.repetition_penalty,
        presence_penalty: common.presence_penalty,
        frequency_penalty: common.frequency_penalty,
        penalty_last_n: None,
        dry: DryValues {
            multiplier: more.dry_multiplier,
            base: more.dry_base,
            allowed_length: more.dry_allowed_length.map(whole),
            last_n: more.dry_penalty_last_n.map(|n| match n {
                -1 => DRY_LAST_N_MAX,
                // Out of range, as it is.
                n => usize::try_from(n).unwrap_or(usize::MAX),
            }),
            breakers: more.dry_sequence_breakers.clone(),
        },
    };
    match common.top_p {
        // The smallest set of likeliest tokens is the likeliest alone.
        Some(0.0) => SamplingValues {
            temperature: Some(0.0),
            top_p: None,
            ..values
        },
        _ => values,
    }
}

/// A new one each time.
fn any_seed() -> u64 {
    RandomState::new().hash_one(0)
}

/// The same for the same name while the server runs.
fn name_of(user: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(user)
}
