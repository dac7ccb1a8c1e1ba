//! What callers fill in: how an engine is opened, how an answer is sampled. All zeros are the defaults.

use crate::error::Failure;
use crate::pointer::{count, list, optional, optional_text, text};
use haversack::engine::Codec;
use haversack::{Engine, EngineBuilder, Prompt};
use std::ffi::c_char;
use std::ptr;
use std::time::Duration;

/// Of threads and requests, far beyond use.
const THREADS_MAX: i64 = 256;
const REQUESTS_MAX: i64 = 65_536;
/// Tokens, and milliseconds.
const COUNT_MAX: i64 = i32::MAX as i64;

/// How an engine is opened. Begin with zeros (`= {0}`): what is 0 or null follows from the model and the device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct haversack_engine_options {
    /// Ceiling of everything the engine allocates beyond its baseline, such as `1500M` or `4G`.
    pub memory: *const c_char,
    /// Folder of the conversations' files. Without it conversations end with the engine.
    pub sessions_dir: *const c_char,
    /// Folder of a sentence encoder, for `haversack_engine_embed` and for recall by meaning.
    pub encoder_dir: *const c_char,
    /// Folder for what is computed once for each model.
    pub cache_dir: *const c_char,
    /// How keys and values are stored: `f16`, `int8`, `int5`, `int4` (the default), `int3` or `int2`.
    pub kv: *const c_char,
    /// Tokens of context, at most what the model was trained for.
    pub context: i64,
    /// Threads that compute, at most 256.
    pub threads: i64,
    /// Answers that are computed at the same time; 8 unless said.
    pub batch: i64,
    /// Answers that may wait; 64 unless said. Beyond that they are refused as `HAVERSACK_STATUS_BUSY`.
    pub queue: i64,
}

impl haversack_engine_options {
    const NONE: haversack_engine_options = haversack_engine_options {
        memory: ptr::null(),
        sessions_dir: ptr::null(),
        encoder_dir: ptr::null(),
        cache_dir: ptr::null(),
        kv: ptr::null(),
        context: 0,
        threads: 0,
        batch: 0,
        queue: 0,
    };

    /// # Safety
    /// `model` is null or a text; `options` is null or points to options whose texts are null or texts.
    pub(crate) unsafe fn builder(
        model: *const c_char,
        options: *const haversack_engine_options,
    ) -> Result<EngineBuilder, Failure> {
        // SAFETY: as the caller promises.
        let (model, options) = unsafe { (text(model, "model")?, optional(options, Self::NONE)) };
        let mut builder = Engine::open(model);
        // SAFETY: as the caller promises of every text.
        let text = |text, name| unsafe { optional_text(text, name) };
        if let Some(bytes) = text(options.memory, "memory")? {
            builder = builder.memory(bytes);
        }
        if let Some(dir) = text(options.sessions_dir, "sessions_dir")? {
            builder = builder.sessions(dir);
        }
        if let Some(dir) = text(options.encoder_dir, "encoder_dir")? {
            builder = builder.encoder(dir);
        }
        if let Some(dir) = text(options.cache_dir, "cache_dir")? {
            builder = builder.cache_dir(dir);
        }
        if let Some(name) = text(options.kv, "kv")? {
            let accepted = || Codec::ALL.map(Codec::name).join(", ");
            let unknown = |_| Failure::argument("kv", format!("accepted: {}", accepted()));
            builder = builder.kv(name.parse().map_err(unknown)?);
        }
        if let Some(tokens) = count(options.context, COUNT_MAX, "context")? {
            builder = builder.context(tokens);
        }
        if let Some(threads) = count(options.threads, THREADS_MAX, "threads")? {
            builder = builder.threads(threads);
        }
        if let Some(requests) = count(options.batch, REQUESTS_MAX, "batch")? {
            builder = builder.batch(requests);
        }
        if let Some(requests) = count(options.queue, REQUESTS_MAX, "queue")? {
            builder = builder.queue(requests);
        }
        Ok(builder)
    }
}

/// How an answer is sampled and where it ends. Begin with zeros (`= {0}`): they are the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct haversack_prompt_options {
    /// Tokens of the answer; 1024 unless said, less in a conversation with little room.
    pub max_tokens: i64,
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Samples from the likeliest tokens that together reach this probability; 0 turns it off, as 1 does.
    pub top_p: f32,
    /// Drops tokens below this fraction of the likeliest token's probability; 0 turns it off.
    pub min_p: f32,
    /// Samples from this many likeliest tokens; 0 turns it off.
    pub top_k: i64,
    /// The same seed gives the same tokens.
    pub seed: u64,
    /// Texts at which the answer ends; they are not part of it.
    pub stop: *const *const c_char,
    /// How many there are.
    pub stop_count: usize,
    /// The answer is JSON of this schema. At most one of these four.
    pub json_schema: *const c_char,
    /// The answer is text that this regular expression matches as a whole.
    pub regex: *const c_char,
    /// The answer is text of this GBNF grammar.
    pub gbnf: *const c_char,
    /// The answer is text of this Lark grammar.
    pub lark: *const c_char,
    /// Ends the answer after this time, waiting included; 0: never.
    pub timeout_ms: i64,
    /// Not 0: goes on where the model would end the answer.
    pub ignore_end: i32,
    /// Not 0: ends an answer that repeats itself over and over.
    pub stop_repetition: i32,
}

impl haversack_prompt_options {
    const NONE: haversack_prompt_options = haversack_prompt_options {
        max_tokens: 0,
        temperature: 0.0,
        top_p: 0.0,
        min_p: 0.0,
        top_k: 0,
        seed: 0,
        stop: ptr::null(),
        stop_count: 0,
        json_schema: ptr::null(),
        regex: ptr::null(),
        gbnf: ptr::null(),
        lark: ptr::null(),
        timeout_ms: 0,
        ignore_end: 0,
        stop_repetition: 0,
    };

    /// # Safety
    /// `options` is null or points to options whose texts and list are null or what they are said to be.
    pub(crate) unsafe fn apply(
        options: *const haversack_prompt_options,
        mut prompt: Prompt,
    ) -> Result<Prompt, Failure> {
        // SAFETY: as the caller promises.
        let options = unsafe { optional(options, Self::NONE) };
        if let Some(tokens) = count(options.max_tokens, COUNT_MAX, "max_tokens")? {
            prompt = prompt.max_tokens(tokens);
        }
        if let Some(tokens) = count(options.top_k, COUNT_MAX, "top_k")? {
            prompt = prompt.top_k(tokens);
        }
        if options.top_p != 0.0 {
            prompt = prompt.top_p(options.top_p);
        }
        if let Some(ms) = count(options.timeout_ms, COUNT_MAX, "timeout_ms")? {
            prompt = prompt.timeout(Duration::from_millis(ms as u64));
        }
        prompt = prompt
            .temperature(options.temperature)
            .min_p(options.min_p)
            .seed(options.seed)
            .ignore_end(options.ignore_end != 0)
            .stop_repetition(options.stop_repetition != 0);
        // SAFETY: as the caller promises of the list.
        let stops = unsafe { list(options.stop, options.stop_count, "stop") }?;
        for &stop in stops {
            // SAFETY: as the caller promises of every text.
            prompt = prompt.stop(unsafe { text(stop, "stop") }?);
        }
        // SAFETY: as the caller promises of every text.
        let shape = |text, name| unsafe { optional_text(text, name) };
        let schema = shape(options.json_schema, "json_schema")?;
        let regex = shape(options.regex, "regex")?;
        let gbnf = shape(options.gbnf, "gbnf")?;
        let lark = shape(options.lark, "lark")?;
        match (schema, regex, gbnf, lark) {
            (None, None, None, None) => Ok(prompt),
            (Some(schema), None, None, None) => Ok(prompt.json_schema(schema)),
            (None, Some(regex), None, None) => Ok(prompt.regex(regex)),
            (None, None, Some(gbnf), None) => Ok(prompt.gbnf(gbnf)),
            (None, None, None, Some(lark)) => Ok(prompt.lark(lark)),
            _ => Err(Failure::argument(
                "json_schema",
                "there is another form; accepted: one of json_schema, regex, gbnf and lark",
            )),
        }
    }
}
