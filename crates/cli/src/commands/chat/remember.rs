//! Facts that a chat finds by itself: while it waits for the next line, a thread looks through what the user said.
//!
//! The search is a background request; a line that is typed ends it, and its turn is looked through once the chat waits
//! again. So no message waits for it, but for a fact that is being added. A search that fails finds nothing.

use super::lines::Print;
use crate::error::one_line;
use haversack::{Conversation, SearchStop};
use std::collections::VecDeque;
use std::thread::JoinHandle;

/// Turns that may wait to be looked through; those before them are left out.
const WAITING_MAX: usize = 8;

/// Turns whose facts are to be found, and the thread that finds them.
#[derive(Default)]
pub struct Remembering {
    waiting: VecDeque<u64>,
    search: Option<(SearchStop, JoinHandle<VecDeque<u64>>)>,
}

impl Remembering {
    /// Facts of this turn are to be found.
    pub fn add(&mut self, turn: u64) {
        self.waiting.push_back(turn);
        if self.waiting.len() > WAITING_MAX {
            self.waiting.pop_front();
        }
    }

    /// The turns so far are no longer this conversation's.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// The chat waits for a line.
    pub fn begin(
        &mut self,
        conversation: &Conversation,
        printer: &mut dyn FnMut() -> Option<Print>,
    ) {
        if self.waiting.is_empty() {
            return;
        }
        // Without what prints beside a line that is being typed, facts would enter silently.
        let Some(print) = printer() else { return };
        let (conversation, stop) = (conversation.clone(), SearchStop::default());
        let (waiting, stops) = (std::mem::take(&mut self.waiting), stop.clone());
        let thread = std::thread::spawn(move || find(&conversation, waiting, &stops, print));
        self.search = Some((stop, thread));
    }

    /// A line was typed.
    pub fn end(&mut self) {
        if let Some((stop, thread)) = self.search.take() {
            stop.stop();
            // A thread that panicked leaves nothing to look through.
            self.waiting = thread.join().unwrap_or_default();
        }
    }
}

/// Returns the turns that are left when it was stopped.
fn find(
    conversation: &Conversation,
    mut waiting: VecDeque<u64>,
    stop: &SearchStop,
    mut print: Print,
) -> VecDeque<u64> {
    while let Some(&turn) = waiting.front() {
        let Some(found) = conversation.find_facts(turn).run_until(stop).transpose() else {
            return waiting;
        };
        // There may be no room, or no such turn any more.
        for fact in found.unwrap_or_default() {
            let Ok(number) = conversation.add_found_fact(&fact) else {
                continue;
            };
            let text = one_line(fact.words());
            let instead = fact
                .supersedes
                .map(|old| format!(" in place of fact {old}"));
            print(&format!(
                "remembered: {text} (fact {number}{}; /fact lists facts, /forget {number} deletes it)",
                instead.unwrap_or_default()
            ));
        }
        waiting.pop_front();
    }
    waiting
}
