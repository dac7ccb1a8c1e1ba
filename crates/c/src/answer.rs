//! An answer on its way: the caller pulls pieces of text, then a report.

use crate::call::{guard, returning, returning_optional};
use crate::error::{haversack_error, haversack_status};
use crate::owned::{self, Text};
use crate::pointer::{self, handle};
use haversack::engine::runtime::Finish;
use haversack::{Answer, AnswerStopper, ContextSeen};
use std::ffi::c_char;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An answer on its way. Freeing it cancels it.
pub struct haversack_answer {
    reading: Mutex<Reading>,
    /// Beside the lock, which a reader holds while it waits.
    stopper: AnswerStopper,
    _live: Arc<()>,
}

struct Reading {
    answer: Answer,
    /// What was returned last; the caller's pointer is into it.
    piece: Text,
}

impl haversack_answer {
    pub(crate) fn new(answer: Answer, live: Arc<()>) -> haversack_answer {
        haversack_answer {
            stopper: answer.stopper(),
            reading: Mutex::new(Reading {
                answer,
                piece: Text::new(String::new()),
            }),
            _live: live,
        }
    }

    /// A reader that panicked left nothing half done.
    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why an answer ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum haversack_finish {
    /// It goes on, or failed.
    None = 0,
    /// The model ended it, or a stop text came.
    Stop = 1,
    /// It repeated itself over and over.
    Repetition = 2,
    /// Its limit of tokens or the context ended it.
    Length = 3,
    /// It was cancelled.
    Cancelled = 4,
}

/// What an answer saw, what left memory for it, and what it cost; in tokens where nothing else is said.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct haversack_report {
    /// Why the answer ended.
    pub finish: haversack_finish,
    /// The number of its turn; -1 of a completion, and where it was cancelled before it began.
    pub turn: i64,
    /// Sampled.
    pub tokens: u64,
    /// The answer saw these.
    pub visible: u64,
    /// In memory and hidden from it.
    pub hidden: u64,
    /// On disk only.
    pub spilled: u64,
    /// Of the visible ones, not computed again.
    pub cached: u64,
    /// Computed again.
    pub recomputed: u64,
    /// Forgotten since the conversation began, or evicted from the completion.
    pub evicted: u64,
    /// Turns that came back for it; `haversack_answer_recalled` names them.
    pub recalled: u64,
    /// Bytes of keys and values that the conversation or completion ended with.
    pub bytes: u64,
    /// Milliseconds from the request to its first token; -1 where there was none.
    pub first_token_ms: f64,
    /// Milliseconds from the request to its end.
    pub time_ms: f64,
}

impl haversack_report {
    fn of(answer: &Answer) -> haversack_report {
        let report = answer.report();
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let finish = match answer.finish() {
            None => haversack_finish::None,
            Some(Finish::Stop) => haversack_finish::Stop,
            Some(Finish::Repetition) => haversack_finish::Repetition,
            Some(Finish::Length) => haversack_finish::Length,
            Some(Finish::Cancelled) => haversack_finish::Cancelled,
        };
        let mut found = haversack_report {
            finish,
            turn: -1,
            tokens: report.tokens as u64,
            visible: 0,
            hidden: 0,
            spilled: 0,
            cached: 0,
            recomputed: 0,
            evicted: 0,
            recalled: 0,
            bytes: report.bytes(),
            first_token_ms: report.first_token.map_or(-1.0, ms),
            time_ms: ms(report.time),
        };
        match &report.context {
            ContextSeen::Completion(held) => {
                found.visible = held.usage.rows as u64;
                found.cached = held.reused as u64;
                found.evicted = held.usage.evicted();
            }
            ContextSeen::Turn { number, context } => {
                found.turn = number.map_or(-1, |number| number as i64);
                found.visible = context.kept;
                found.hidden = context.masked;
                found.spilled = context.spilled;
                found.cached = context.cached;
                found.recomputed = context.recomputed;
                found.evicted = context.evicted;
                found.recalled = context.recalled.len() as u64;
            }
        }
        found
    }
}

/// Waits for the next piece of the answer. `text` becomes UTF-8 with a zero byte behind it, valid until the next call that reads
/// this answer, and `length`, which may be null, its bytes; at the end `text` becomes null. Any thread; of two threads that read one
/// answer, one waits for the other.
///
/// # Safety
/// As at the top of this header; `text` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_answer_next(
    answer: *const haversack_answer,
    text: *mut *const c_char,
    length: *mut usize,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let mut reading = unsafe { handle(answer, "answer") }?.reading();
        let next = reading.answer.next().transpose()?;
        let has_ended = next.is_none();
        reading.piece = Text::with_length(next.unwrap_or_default());
        // SAFETY: as the caller promises.
        unsafe { pointer::write_optional(length, reading.piece.len()) };
        Ok(match has_ended {
            true => ptr::null(),
            false => reading.piece.bytes(),
        })
    };
    // SAFETY: as the caller promises.
    unsafe { returning(text, "text", error, body) }
}

/// Waits for the end of the answer; `text` becomes what is left of it, and is never null. Otherwise as `haversack_answer_next`.
///
/// # Safety
/// As at the top of this header; `text` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_answer_text(
    answer: *const haversack_answer,
    text: *mut *const c_char,
    length: *mut usize,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let mut reading = unsafe { handle(answer, "answer") }?.reading();
        reading.piece = Text::with_length(reading.answer.text()?);
        // SAFETY: as the caller promises.
        unsafe { pointer::write_optional(length, reading.piece.len()) };
        Ok(reading.piece.bytes())
    };
    // SAFETY: as the caller promises.
    unsafe { returning(text, "text", error, body) }
}

/// Ends the answer where it is: what is left of it can be read, its report says so, and a conversation keeps it so far. Does nothing
/// to an answer that is over. Any thread, also while another one waits in `haversack_answer_next`.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_answer_cancel(
    answer: *const haversack_answer,
    error: *mut *mut haversack_error,
) -> haversack_status {
    guard(error, || {
        // SAFETY: as the caller promises.
        unsafe { handle(answer, "answer") }?.stopper.stop();
        Ok(())
    })
}

/// What the answer saw and cost; complete once `haversack_answer_next` has returned its end. Any thread; waits for a thread that
/// reads.
///
/// # Safety
/// As at the top of this header; `report` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_answer_report(
    answer: *const haversack_answer,
    report: *mut haversack_report,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let reading = unsafe { handle(answer, "answer") }?.reading();
        Ok(haversack_report::of(&reading.answer))
    };
    // SAFETY: as the caller promises.
    unsafe { returning(report, "report", error, body) }
}

/// The turns that came back for this answer. Writes at most `capacity` numbers, and to `count` how many there are. Any thread;
/// waits for a thread that reads.
///
/// # Safety
/// As at the top of this header; `turns` points to `capacity` numbers, or is null and `capacity` 0; `count` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_answer_recalled(
    answer: *const haversack_answer,
    turns: *mut u64,
    capacity: usize,
    count: *mut usize,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let reading = unsafe { handle(answer, "answer") }?.reading();
        let recalled: &[u64] = match &reading.answer.report().context {
            ContextSeen::Completion(_) => &[],
            ContextSeen::Turn { context, .. } => &context.recalled,
        };
        // SAFETY: as the caller promises.
        unsafe { pointer::write_list(turns, capacity, recalled, "turns") }
    };
    // SAFETY: as the caller promises.
    unsafe { returning_optional(count, error, body) }
}

/// Frees the answer, and cancels it if it goes on; null is nothing to free. Any thread, once, while no other call uses the handle.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_answer_free(answer: *mut haversack_answer) {
    // SAFETY: as the caller promises.
    unsafe { owned::free(answer) }
}
