//! The engine: opened, asked, closed, freed.

use crate::answer::haversack_answer;
use crate::call::{guard, returning, returning_optional};
use crate::conversation::haversack_conversation;
use crate::error::{Failure, haversack_error, haversack_status};
use crate::lists::haversack_conversations;
use crate::options::{haversack_engine_options, haversack_prompt_options};
use crate::owned::{self, boxed};
use crate::pointer::{self, handle, optional_text, size, text};
use haversack::engine::device::Thermal;
use haversack::{Engine, MemoryPlan, MemoryReport, Pressure};
use std::ffi::c_char;
use std::sync::Arc;

/// One model, one memory limit, one thread that computes for every conversation.
pub struct haversack_engine {
    engine: Engine,
    /// Held by each conversation and answer handle.
    live: Arc<()>,
}

/// How short of memory the system says it is.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum haversack_pressure {
    /// The engine goes by its own readings of the device.
    Nominal = 0,
    /// Idle conversations move to their files, and no further answer starts beside the running ones.
    Warning = 1,
    /// Windows shrink too.
    Critical = 2,
}

/// How hot the device is.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum haversack_thermal {
    /// Nothing is slowed.
    Nominal = 0,
    /// Warm.
    Fair = 1,
    /// Hot: the engine slows down.
    Serious = 2,
    /// Too hot: it computes as little as it can.
    Critical = 3,
}

/// Where the bytes of the memory limit are.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct haversack_memory {
    /// The limit; -1 where there is none.
    pub limit_bytes: i64,
    /// Counted against the limit now.
    pub total_bytes: u64,
    /// The highest total so far.
    pub peak_bytes: u64,
    /// Keys and values that answers see.
    pub kv_bytes: u64,
    /// The highest `kv_bytes` so far.
    pub kv_peak_bytes: u64,
    /// Block tables, lists and staging buffers.
    pub tables_bytes: u64,
    /// Intermediate values of a step.
    pub scratch_bytes: u64,
    /// Means of keys, grammars and what else is kept beside keys and values.
    pub side_bytes: u64,
    /// What the library has on its heap beside all of these.
    pub heap_bytes: u64,
    /// Promised to running answers and not held yet.
    pub promised_bytes: u64,
    /// Of idle conversations and caches, which leave memory when an answer needs it.
    pub idle_bytes: u64,
    /// Mapped from the model file, beside the limit.
    pub weights_bytes: u64,
    /// Answers that are computed.
    pub active: u64,
    /// Answers that wait.
    pub waiting: u64,
    /// Conversations and completions in memory.
    pub sequences: u64,
}

/// What a model takes, from its file's metadata alone.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct haversack_plan {
    /// Weights, which are mapped from the file, beside the memory limit.
    pub weights_bytes: u64,
    /// Tokens of context: as asked for, or what the model was trained for.
    pub context: u64,
    /// Keys and values of one token.
    pub token_bytes: u64,
    /// What one conversation of the whole context takes of the limit.
    pub context_bytes: u64,
    /// Tokens of one conversation that the limit holds; -1 where `memory` is not set.
    pub tokens_max: i64,
}

impl From<MemoryReport> for haversack_memory {
    fn from(report: MemoryReport) -> haversack_memory {
        let ledger = &report.ledger;
        haversack_memory {
            limit_bytes: whole(ledger.budget),
            total_bytes: ledger.total() as u64,
            peak_bytes: ledger.peak as u64,
            kv_bytes: ledger.kv_live as u64,
            kv_peak_bytes: ledger.kv_peak as u64,
            tables_bytes: ledger.tables as u64,
            scratch_bytes: ledger.scratch as u64,
            side_bytes: ledger.side as u64,
            heap_bytes: ledger.heap as u64,
            promised_bytes: report.promised_bytes as u64,
            idle_bytes: report.idle_bytes as u64,
            weights_bytes: report.weights_bytes as u64,
            active: report.active as u64,
            waiting: report.waiting as u64,
            sequences: (report.sequences.len() + report.left_off) as u64,
        }
    }
}

impl From<MemoryPlan> for haversack_plan {
    fn from(plan: MemoryPlan) -> haversack_plan {
        haversack_plan {
            weights_bytes: plan.weights_bytes,
            context: plan.context as u64,
            token_bytes: plan.token_bytes as u64,
            context_bytes: plan.context_bytes as u64,
            tokens_max: whole(plan.tokens_max),
        }
    }
}

/// -1 of nothing.
fn whole(value: Option<usize>) -> i64 {
    value.map_or(-1, |value| i64::try_from(value).unwrap_or(i64::MAX))
}

/// A number that C calls a level may be any.
fn one_of<T: Copy>(level: i32, levels: &[(i32, T)]) -> Result<T, Failure> {
    let found = levels.iter().find(|(number, _)| *number == level);
    let max = levels.len() - 1;
    let wrong = || Failure::argument("level", format!("{level}; accepted: 0 to {max}"));
    found.map(|(_, level)| *level).ok_or_else(wrong)
}

/// What a model file takes of the memory limit with these options. Loads nothing. Any thread.
///
/// # Safety
/// As at the top of this header; `options` may be null, `plan` not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_plan_model(
    model: *const c_char,
    options: *const haversack_engine_options,
    plan: *mut haversack_plan,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let builder = unsafe { haversack_engine_options::builder(model, options) }?;
        let made = builder.plan()?;
        Ok(made.into())
    };
    // SAFETY: as the caller promises.
    unsafe { returning(plan, "plan", error, body) }
}

/// Loads a model and starts its engine; takes seconds where the model is large or new here. Any thread.
///
/// # Safety
/// As at the top of this header; `options` may be null, `engine` not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_open(
    model: *const c_char,
    options: *const haversack_engine_options,
    engine: *mut *mut haversack_engine,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let builder = unsafe { haversack_engine_options::builder(model, options) }?;
        let opened = haversack_engine {
            engine: builder.start()?,
            live: Arc::new(()),
        };
        Ok(boxed(opened))
    };
    // SAFETY: as the caller promises.
    unsafe { returning(engine, "engine", error, body) }
}

/// Refuses new answers, waits for those that run, saves every conversation. Later calls on the engine, its conversations and
/// answers return `HAVERSACK_STATUS_CLOSED`. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_close(
    engine: *const haversack_engine,
    error: *mut *mut haversack_error,
) -> haversack_status {
    guard(error, || {
        // SAFETY: as the caller promises.
        let engine = unsafe { handle(engine, "engine") }?;
        Ok(engine.engine.close()?)
    })
}

/// Frees the handle; null is nothing to free. The engine closes when its conversations and answers are freed too: the last of
/// these calls waits for that. Any thread, once, while no other call uses the handle.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_free(engine: *mut haversack_engine) {
    // SAFETY: as the caller promises.
    unsafe { owned::free(engine) }
}

/// How many conversations and answers of the engine are not freed yet. Any thread.
///
/// # Safety
/// As at the top of this header; `handles` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_handles(
    engine: *const haversack_engine,
    handles: *mut usize,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let engine = unsafe { handle(engine, "engine") }?;
        Ok(Arc::strong_count(&engine.live) - 1)
    };
    // SAFETY: as the caller promises.
    unsafe { returning(handles, "handles", error, body) }
}

/// Goes on with the conversation of this name, or begins it; `system` is what a new one begins with, or null. Reading that can
/// take seconds. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header; `conversation` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_conversation(
    engine: *const haversack_engine,
    name: *const c_char,
    system: *const c_char,
    conversation: *mut *mut haversack_conversation,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let (engine, name, system) = unsafe {
            (
                handle(engine, "engine")?,
                text(name, "name")?,
                optional_text(system, "system")?,
            )
        };
        let builder = engine.engine.conversation(name);
        let opened = builder.system(system.unwrap_or_default()).open()?;
        let opened = haversack_conversation::new(opened, engine.live.clone());
        Ok(boxed(opened))
    };
    // SAFETY: as the caller promises.
    unsafe { returning(conversation, "conversation", error, body) }
}

/// The conversations that have a file. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header; `conversations` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_conversations(
    engine: *const haversack_engine,
    conversations: *mut *mut haversack_conversations,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let engine = unsafe { handle(engine, "engine") }?;
        let found = haversack_conversations::new(engine.engine.conversations()?);
        Ok(boxed(found))
    };
    // SAFETY: as the caller promises.
    unsafe { returning(conversations, "conversations", error, body) }
}

/// Starts to go on with a text, outside of any conversation; `haversack_answer_next` reads the answer. Any thread, at the same
/// time as any other call.
///
/// # Safety
/// As at the top of this header; `options` may be null, `answer` not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_complete(
    engine: *const haversack_engine,
    prompt: *const c_char,
    options: *const haversack_prompt_options,
    answer: *mut *mut haversack_answer,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let (engine, prompt) = unsafe { (handle(engine, "engine")?, text(prompt, "prompt")?) };
        // SAFETY: as the caller promises.
        let prompt =
            unsafe { haversack_prompt_options::apply(options, engine.engine.complete(prompt)) }?;
        let sent = haversack_answer::new(prompt.send()?, engine.live.clone());
        Ok(boxed(sent))
    };
    // SAFETY: as the caller promises.
    unsafe { returning(answer, "answer", error, body) }
}

/// The direction of a text as the engine's sentence encoder sees it: similar texts have a large scalar product. Writes at most
/// `capacity` values, and to `count` how many there are. Computed on the caller's thread; any thread.
///
/// # Safety
/// As at the top of this header; `values` points to `capacity` floats, or is null and `capacity` 0; `count` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_embed(
    engine: *const haversack_engine,
    words: *const c_char,
    values: *mut f32,
    capacity: usize,
    count: *mut usize,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let (engine, words) = unsafe { (handle(engine, "engine")?, text(words, "words")?) };
        let found = engine.engine.embed(words)?;
        // SAFETY: as the caller promises.
        unsafe { pointer::write_list(values, capacity, &found, "values") }
    };
    // SAFETY: as the caller promises.
    unsafe { returning_optional(count, error, body) }
}

/// Where the bytes are. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header; `memory` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_memory(
    engine: *const haversack_engine,
    memory: *mut haversack_memory,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let engine = unsafe { handle(engine, "engine") }?;
        let report = engine.engine.memory()?;
        Ok(report.into())
    };
    // SAFETY: as the caller promises.
    unsafe { returning(memory, "memory", error, body) }
}

/// Says how short of memory the system is: a `haversack_pressure`. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_pressure(
    engine: *const haversack_engine,
    level: i32,
    error: *mut *mut haversack_error,
) -> haversack_status {
    guard(error, || {
        // SAFETY: as the caller promises.
        let engine = unsafe { handle(engine, "engine") }?;
        let levels = [
            (haversack_pressure::Nominal as i32, Pressure::Nominal),
            (haversack_pressure::Warning as i32, Pressure::Warning),
            (haversack_pressure::Critical as i32, Pressure::Critical),
        ];
        engine.engine.pressure(one_of(level, &levels)?);
        Ok(())
    })
}

/// Says how hot the device is: a `haversack_thermal`. Heat changes no token. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_thermal(
    engine: *const haversack_engine,
    level: i32,
    error: *mut *mut haversack_error,
) -> haversack_status {
    guard(error, || {
        // SAFETY: as the caller promises.
        let engine = unsafe { handle(engine, "engine") }?;
        let levels = [
            (haversack_thermal::Nominal as i32, Thermal::Nominal),
            (haversack_thermal::Fair as i32, Thermal::Fair),
            (haversack_thermal::Serious as i32, Thermal::Serious),
            (haversack_thermal::Critical as i32, Thermal::Critical),
        ];
        engine.engine.thermal(one_of(level, &levels)?);
        Ok(())
    })
}

/// Saves every conversation that is not being answered and frees its memory, for an app that goes to the background. The next
/// message of a conversation, or `haversack_conversation_resume`, opens it again. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_suspend(
    engine: *const haversack_engine,
    error: *mut *mut haversack_error,
) -> haversack_status {
    guard(error, || {
        // SAFETY: as the caller promises.
        let engine = unsafe { handle(engine, "engine") }?;
        Ok(engine.engine.suspend()?)
    })
}

/// Gives up caches, then idle conversations, until `bytes` are free; writes to `freed`, which may be null, how many are. Any
/// thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_engine_trim(
    engine: *const haversack_engine,
    bytes: i64,
    freed: *mut u64,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let engine = unsafe { handle(engine, "engine") }?;
        let free = engine.engine.trim(size(bytes, "bytes")?)?;
        Ok(free as u64)
    };
    // SAFETY: as the caller promises.
    unsafe { returning_optional(freed, error, body) }
}
