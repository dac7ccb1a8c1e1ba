//! Conversations: messages, facts, turns, and what becomes of them.

use crate::answer::haversack_answer;
use crate::call::{guard, returning, returning_optional};
use crate::error::{haversack_error, haversack_status};
use crate::lists::{haversack_facts, haversack_page, haversack_turns};
use crate::options::haversack_prompt_options;
use crate::owned::{self, boxed};
use crate::pointer::{handle, text};
use haversack::Conversation;
use std::ffi::c_char;
use std::sync::Arc;

/// Facts that always hold, turns that come and go, a file that outlives the engine.
pub struct haversack_conversation {
    conversation: Conversation,
    live: Arc<()>,
}

impl haversack_conversation {
    pub(crate) fn new(conversation: Conversation, live: Arc<()>) -> haversack_conversation {
        haversack_conversation { conversation, live }
    }
}

/// Frees the handle; null is nothing to free. The conversation goes on. Any thread, once, while no other call uses the handle.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_free(conversation: *mut haversack_conversation) {
    // SAFETY: as the caller promises.
    unsafe { owned::free(conversation) }
}

/// Sends a message; `haversack_answer_next` reads the answer. A message that is sent before the answer
/// to the last one has ended is answered after it. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header; `options` may be null, `answer` not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_say(
    conversation: *const haversack_conversation,
    message: *const c_char,
    options: *const haversack_prompt_options,
    answer: *mut *mut haversack_answer,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let (handle, message) = unsafe {
            (
                handle(conversation, "conversation")?,
                text(message, "message")?,
            )
        };
        let prompt = handle.conversation.say(message);
        // SAFETY: as the caller promises.
        let prompt = unsafe { haversack_prompt_options::apply(options, prompt) }?;
        let sent = haversack_answer::new(prompt.send()?, handle.live.clone());
        Ok(boxed(sent))
    };
    // SAFETY: as the caller promises.
    unsafe { returning(answer, "answer", error, body) }
}

/// Facts that hold. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header; `facts` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_facts(
    conversation: *const haversack_conversation,
    facts: *mut *mut haversack_facts,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let handle = unsafe { handle(conversation, "conversation") }?;
        let found = haversack_facts::new(handle.conversation.facts()?);
        Ok(boxed(found))
    };
    // SAFETY: as the caller promises.
    unsafe { returning(facts, "facts", error, body) }
}

/// Adds a fact that every answer sees; writes its number to `number`, which may be null. Any thread, at the same time as any
/// other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_add_fact(
    conversation: *const haversack_conversation,
    fact: *const c_char,
    number: *mut u64,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let (handle, fact) =
            unsafe { (handle(conversation, "conversation")?, text(fact, "fact")?) };
        let added = handle.conversation.add_fact(fact)?;
        Ok(added)
    };
    // SAFETY: as the caller promises.
    unsafe { returning_optional(number, error, body) }
}

/// Replaces a fact that no longer holds; writes the new one's number to `number`, which may be null. Any thread, at the same time
/// as any other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_replace_fact(
    conversation: *const haversack_conversation,
    old: u64,
    fact: *const c_char,
    number: *mut u64,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let (handle, fact) =
            unsafe { (handle(conversation, "conversation")?, text(fact, "fact")?) };
        let added = handle.conversation.replace_fact(old, fact)?;
        Ok(added)
    };
    // SAFETY: as the caller promises.
    unsafe { returning_optional(number, error, body) }
}

/// Answers do not see this fact any more. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_revoke_fact(
    conversation: *const haversack_conversation,
    number: u64,
    error: *mut *mut haversack_error,
) -> haversack_status {
    guard(error, || {
        // SAFETY: as the caller promises.
        let handle = unsafe { handle(conversation, "conversation") }?;
        Ok(handle.conversation.revoke_fact(number)?)
    })
}

/// The last turns, at most 256, the oldest first. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header; `turns` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_turns(
    conversation: *const haversack_conversation,
    turns: *mut *mut haversack_turns,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let handle = unsafe { handle(conversation, "conversation") }?;
        let found = haversack_turns::new(handle.conversation.turns()?);
        Ok(boxed(found))
    };
    // SAFETY: as the caller promises.
    unsafe { returning(turns, "turns", error, body) }
}

/// The next answer sees this turn, wherever it is. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_recall(
    conversation: *const haversack_conversation,
    turn: u64,
    error: *mut *mut haversack_error,
) -> haversack_status {
    guard(error, || {
        // SAFETY: as the caller promises.
        let handle = unsafe { handle(conversation, "conversation") }?;
        Ok(handle.conversation.recall(turn)?)
    })
}

/// Deletes the last turn; writes its number, or -1 where there was none, to `turn`, which may be null. Any thread, at the same
/// time as any other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_undo(
    conversation: *const haversack_conversation,
    turn: *mut i64,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let handle = unsafe { handle(conversation, "conversation") }?;
        let undone = handle.conversation.retract()?;
        Ok(undone.map_or(-1, |turn| turn as i64))
    };
    // SAFETY: as the caller promises.
    unsafe { returning_optional(turn, error, body) }
}

/// A second conversation that goes on from here under another name. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header; `fork` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_fork(
    conversation: *const haversack_conversation,
    name: *const c_char,
    fork: *mut *mut haversack_conversation,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let (handle, name) =
            unsafe { (handle(conversation, "conversation")?, text(name, "name")?) };
        let forked = handle.conversation.fork(name)?;
        let forked = haversack_conversation::new(forked, handle.live.clone());
        Ok(boxed(forked))
    };
    // SAFETY: as the caller promises.
    unsafe { returning(fork, "fork", error, body) }
}

/// Saves the conversation and frees its memory; its next message opens it again. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_suspend(
    conversation: *const haversack_conversation,
    error: *mut *mut haversack_error,
) -> haversack_status {
    guard(error, || {
        // SAFETY: as the caller promises.
        let handle = unsafe { handle(conversation, "conversation") }?;
        Ok(handle.conversation.suspend()?)
    })
}

/// Opens a suspended conversation before its next message does. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_resume(
    conversation: *const haversack_conversation,
    error: *mut *mut haversack_error,
) -> haversack_status {
    guard(error, || {
        // SAFETY: as the caller promises.
        let handle = unsafe { handle(conversation, "conversation") }?;
        Ok(handle.conversation.resume()?)
    })
}

/// Facts, states and turns as a page of Markdown. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header; `page` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_export(
    conversation: *const haversack_conversation,
    page: *mut *mut haversack_page,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let handle = unsafe { handle(conversation, "conversation") }?;
        let made = haversack_page::new(handle.conversation.export()?);
        Ok(boxed(made))
    };
    // SAFETY: as the caller promises.
    unsafe { returning(page, "page", error, body) }
}

/// Deletes the conversation and its file. The handle remains to be freed; later calls on it return
/// `HAVERSACK_STATUS_NOT_FOUND`. Any thread, at the same time as any other call.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversation_delete(
    conversation: *const haversack_conversation,
    error: *mut *mut haversack_error,
) -> haversack_status {
    guard(error, || {
        // SAFETY: as the caller promises.
        let handle = unsafe { handle(conversation, "conversation") }?;
        Ok(handle.conversation.clone().delete()?)
    })
}
