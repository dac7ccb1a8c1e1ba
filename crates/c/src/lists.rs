//! Lists and pages that a call returns: opaque, with a count, an entry by its index, and a free of their own. Their texts are valid
//! until then.

use crate::call::returning;
use crate::error::{Failure, haversack_error, haversack_status};
use crate::owned::{self, Text};
use crate::pointer::{self, handle};
use haversack::session::ListedSession;
use haversack::session::turns::TurnPlace;
use haversack::{FactView, TurnView};
use std::ffi::c_char;

/// The facts of a conversation.
pub struct haversack_facts(Vec<(FactView, Text)>);

/// The turns of a conversation.
pub struct haversack_turns(Vec<TurnEntry>);

/// Conversations that have a file.
pub struct haversack_conversations(Vec<(ListedSession, Text)>);

/// A page of Markdown.
pub struct haversack_page(Text);

struct TurnEntry {
    view: TurnView,
    question: Text,
    answer: Text,
}

/// A fact that holds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct haversack_fact {
    /// 0 is what the conversation began with.
    pub number: u64,
    /// UTF-8 with a zero byte behind it.
    pub text: *const c_char,
    /// Its bytes: models can say zero bytes too.
    pub text_length: usize,
    /// The turn in which it was found; -1: it was told as a fact.
    pub found_in: i64,
}

/// Where a turn is.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum haversack_place {
    /// In memory.
    Memory = 0,
    /// On disk, to be mapped.
    Disk = 1,
    /// On disk as tokens, to be computed again.
    Tokens = 2,
}

/// A question and its answer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct haversack_turn {
    /// Counted from 0, never used again.
    pub number: u64,
    /// The question, or a state; UTF-8 with a zero byte behind it.
    pub text: *const c_char,
    /// Its bytes.
    pub text_length: usize,
    /// The answer; empty of a state.
    pub answer: *const c_char,
    /// Its bytes: models can say zero bytes too.
    pub answer_length: usize,
    /// When; milliseconds since 1970.
    pub time_ms: u64,
    /// Of the question and the answer.
    pub tokens: u64,
    /// Where it is.
    pub place: haversack_place,
    /// Not 0: answers see it now.
    pub is_visible: i32,
    /// Not 0: it is a state, which was told rather than asked.
    pub is_state: i32,
}

/// A conversation that has a file.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct haversack_listed {
    /// Its name.
    pub name: *const c_char,
    /// Of its file.
    pub bytes: u64,
    /// When it was saved last; milliseconds since 1970.
    pub saved_ms: u64,
    /// Not 0: it is in memory.
    pub is_open: i32,
}

impl haversack_facts {
    pub(crate) fn new(facts: Vec<FactView>) -> haversack_facts {
        haversack_facts(with_texts(facts, |fact| {
            Text::with_length(std::mem::take(&mut fact.text))
        }))
    }
}

impl haversack_turns {
    pub(crate) fn new(turns: Vec<TurnView>) -> haversack_turns {
        let entry = |mut view: TurnView| TurnEntry {
            question: Text::with_length(std::mem::take(&mut view.text)),
            answer: Text::with_length(std::mem::take(&mut view.answer)),
            view,
        };
        haversack_turns(turns.into_iter().map(entry).collect())
    }
}

impl haversack_conversations {
    pub(crate) fn new(conversations: Vec<ListedSession>) -> haversack_conversations {
        haversack_conversations(with_texts(conversations, |listed| {
            Text::new(std::mem::take(&mut listed.name))
        }))
    }
}

impl haversack_page {
    pub(crate) fn new(page: String) -> haversack_page {
        haversack_page(Text::with_length(page))
    }
}

/// Entries, each with the text that was taken out of it.
fn with_texts<T>(entries: Vec<T>, take: impl Fn(&mut T) -> Text) -> Vec<(T, Text)> {
    let pair = |mut entry: T| {
        let text = take(&mut entry);
        (entry, text)
    };
    entries.into_iter().map(pair).collect()
}

/// The entry of this index.
fn entry<T>(list: &[T], index: usize) -> Result<&T, Failure> {
    list.get(index).ok_or_else(|| {
        let what = format!("{index}; there are {} entries", list.len());
        Failure::argument("index", what)
    })
}

/// How many facts there are; 0 of a null pointer. Any thread.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_facts_count(facts: *const haversack_facts) -> usize {
    // SAFETY: as the caller promises.
    unsafe { facts.as_ref() }.map_or(0, |facts| facts.0.len())
}

/// The fact of this index, from 0. Any thread.
///
/// # Safety
/// As at the top of this header; `fact` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_facts_get(
    facts: *const haversack_facts,
    index: usize,
    fact: *mut haversack_fact,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let (view, text) = entry(&unsafe { handle(facts, "facts") }?.0, index)?;
        let found = haversack_fact {
            number: view.number,
            text: text.bytes(),
            text_length: text.len(),
            found_in: view.found_in.map_or(-1, |turn| turn as i64),
        };
        Ok(found)
    };
    // SAFETY: as the caller promises.
    unsafe { returning(fact, "fact", error, body) }
}

/// Frees the list and its texts; null is nothing to free. Any thread, once.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_facts_free(facts: *mut haversack_facts) {
    // SAFETY: as the caller promises.
    unsafe { owned::free(facts) }
}

/// How many turns there are; 0 of a null pointer. Any thread.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_turns_count(turns: *const haversack_turns) -> usize {
    // SAFETY: as the caller promises.
    unsafe { turns.as_ref() }.map_or(0, |turns| turns.0.len())
}

/// The turn of this index, from 0. Any thread.
///
/// # Safety
/// As at the top of this header; `turn` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_turns_get(
    turns: *const haversack_turns,
    index: usize,
    turn: *mut haversack_turn,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let entry = entry(&unsafe { handle(turns, "turns") }?.0, index)?;
        let of = &entry.view.turn;
        let found = haversack_turn {
            number: of.number,
            text: entry.question.bytes(),
            text_length: entry.question.len(),
            answer: entry.answer.bytes(),
            answer_length: entry.answer.len(),
            time_ms: entry.view.time_ms,
            tokens: of.tokens(),
            place: match of.place {
                TurnPlace::Live => haversack_place::Memory,
                TurnPlace::Spilled => haversack_place::Disk,
                TurnPlace::Ids => haversack_place::Tokens,
            },
            is_visible: i32::from(of.is_visible),
            is_state: i32::from(of.is_state),
        };
        Ok(found)
    };
    // SAFETY: as the caller promises.
    unsafe { returning(turn, "turn", error, body) }
}

/// Frees the list and its texts; null is nothing to free. Any thread, once.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_turns_free(turns: *mut haversack_turns) {
    // SAFETY: as the caller promises.
    unsafe { owned::free(turns) }
}

/// How many conversations there are; 0 of a null pointer. Any thread.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversations_count(
    conversations: *const haversack_conversations,
) -> usize {
    // SAFETY: as the caller promises.
    unsafe { conversations.as_ref() }.map_or(0, |conversations| conversations.0.len())
}

/// The conversation of this index, from 0. Any thread.
///
/// # Safety
/// As at the top of this header; `listed` must not be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversations_get(
    conversations: *const haversack_conversations,
    index: usize,
    listed: *mut haversack_listed,
    error: *mut *mut haversack_error,
) -> haversack_status {
    let body = || {
        // SAFETY: as the caller promises.
        let all = unsafe { handle(conversations, "conversations") }?;
        let (of, name) = entry(&all.0, index)?;
        let found = haversack_listed {
            name: name.bytes(),
            bytes: of.bytes,
            saved_ms: of.saved_ms,
            is_open: i32::from(of.is_open),
        };
        Ok(found)
    };
    // SAFETY: as the caller promises.
    unsafe { returning(listed, "listed", error, body) }
}

/// Frees the list and its names; null is nothing to free. Any thread, once.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_conversations_free(conversations: *mut haversack_conversations) {
    // SAFETY: as the caller promises.
    unsafe { owned::free(conversations) }
}

/// The page, UTF-8 with a zero byte behind it; empty of a null pointer. `length`, which may be null, becomes its bytes. Any thread.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_page_text(
    page: *const haversack_page,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: as the caller promises.
    let page = unsafe { page.as_ref() };
    // SAFETY: as the caller promises.
    unsafe { pointer::write_optional(length, page.map_or(0, |page| page.0.len())) };
    page.map_or(c"".as_ptr(), |page| page.0.bytes())
}

/// Frees the page; null is nothing to free. Any thread, once.
///
/// # Safety
/// As at the top of this header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_page_free(page: *mut haversack_page) {
    // SAFETY: as the caller promises.
    unsafe { owned::free(page) }
}
