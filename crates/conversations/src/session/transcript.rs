//! What was said in a session: facts, turns, and what the next answer has to take up. Plain data and decisions; no
//! runtime and no file. A record is named by its [`RecordRef`] and read elsewhere.

use super::error::{SessionError, SessionResult};
use super::limits::CapacityChange;
use super::paged_vec::PagedVec;
use super::plan::TurnPlan;
use super::record::{FactRecord, LimitsRecord, LogChange, TurnRecord};
use super::turns::{Turn, TurnPlace, is_in_block, last_from};
use haversack_memory::journal::RecordRef;
use std::borrow::Borrow;
use std::ops::Range;

#[derive(Clone, Debug, Default)]
pub(super) struct Transcript {
    /// Facts that hold; the opening is fact 0.
    pub facts: Vec<Fact>,
    pub facts_made: u64,
    /// Turns that are in memory or in the file, oldest first.
    pub turns: PagedVec<StoredTurn>,
    pub turns_made: u64,
    /// Tokens of turns that are neither in memory nor in the file any more.
    pub forgotten: u64,
    pub last_time_ms: u64,
    /// What the session may hold; `None` in files of versions that recorded none.
    pub limits: Option<LimitsRecord>,
    /// Hash of the opening as it was told, where condensing has changed it.
    pub told: Option<u128>,
    pub deferred: Deferred,
}

/// A piece of the persistent stream that holds.
#[derive(Clone, Debug)]
pub(super) struct Fact {
    pub number: u64,
    pub span: Range<u64>,
    pub text: String,
    /// Bytes at its beginning that condensing must not change.
    pub verbatim: usize,
    /// The turn in which it was found; `None`: it was told as a fact.
    pub found_in: Option<u64>,
    pub record: Option<RecordRef>,
}

impl Fact {
    pub fn new(told: FactRecord, record: Option<RecordRef>) -> Fact {
        Fact {
            number: told.number,
            span: told.span(),
            text: told.text,
            verbatim: 0,
            found_in: told.found_in,
            record,
        }
    }

    pub fn tokens(&self) -> u64 {
        self.span.end - self.span.start
    }

    /// The change record that marks its verbatim part.
    pub fn verbatim_change(&self) -> Option<LogChange> {
        let (fact, bytes) = (self.number, self.verbatim as u64);
        (bytes > 0).then_some(LogChange::Verbatim { fact, bytes })
    }
}

/// A turn, and where its record is.
#[derive(Clone, Debug)]
pub(super) struct StoredTurn {
    pub turn: Turn,
    pub record: StoredRecord,
}

/// A conversation has thousands.
const _: () = assert!(size_of::<StoredTurn>() <= 56);

/// The record of a turn, with its tokens and its embedding.
#[derive(Clone, Debug)]
pub(super) enum StoredRecord {
    /// Its bytes, until they are in the file.
    Unsaved(Box<[u8]>),
    Saved(RecordRef),
}

impl StoredTurn {
    pub fn saved(&self) -> Option<RecordRef> {
        match self.record {
            StoredRecord::Saved(record) => Some(record),
            StoredRecord::Unsaved(_) => None,
        }
    }

    pub fn is_seen(&self) -> bool {
        self.turn.place == TurnPlace::Live && self.turn.is_visible
    }
}

impl Borrow<Turn> for StoredTurn {
    fn borrow(&self) -> &Turn {
        &self.turn
    }
}

/// What the next answer has to take up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Deferred {
    /// Turns that the caller asked to be visible.
    pub recall: Vec<u64>,
    /// Plans of questions that did not become turns: the next answer reports them.
    pub done: TurnPlan,
    /// Changes of the capacity since the last answer.
    pub changes: Vec<CapacityChange>,
}

impl Transcript {
    pub fn turns(&self) -> impl DoubleEndedIterator<Item = &Turn> + ExactSizeIterator {
        self.turns.iter().map(|stored| &stored.turn)
    }

    /// The turn in which a fact was found.
    pub fn found_in(&self, fact: u64) -> Option<u64> {
        let mut facts = self.facts.iter();
        facts.find(|f| f.number == fact)?.found_in
    }

    pub fn index_of(&self, number: u64) -> Option<usize> {
        self.turns().position(|turn| turn.number == number)
    }

    pub fn stored(&self, number: u64) -> SessionResult<&StoredTurn> {
        let i = self.index_of(number);
        let i = i.ok_or(SessionError::NoSuchTurn { number })?;
        Ok(&self.turns[i])
    }

    /// Tokens of the persistent stream.
    pub fn persistent_tokens(&self) -> usize {
        self.facts.iter().map(Fact::tokens).sum::<u64>() as usize
    }

    /// The time of a new record: it never goes back, whatever the clock does.
    pub fn at(&mut self, now_ms: u64) -> u64 {
        self.last_time_ms = self.time_of(now_ms);
        self.last_time_ms
    }

    /// The time that a record of now would have.
    pub fn time_of(&self, now_ms: u64) -> u64 {
        self.last_time_ms.max(now_ms)
    }

    /// Tokens of a fact that holds and may be revoked.
    pub fn check_fact(&self, number: u64) -> SessionResult<usize> {
        let fact = self.facts.iter().find(|f| f.number == number && number > 0);
        let fact = fact.ok_or(SessionError::NoSuchFact { number })?;
        Ok(fact.tokens() as usize)
    }

    /// Whether there was such a turn; it may be forgotten since.
    pub fn check_turn(&self, number: u64) -> SessionResult {
        match number < self.turns_made {
            true => Ok(()),
            false => Err(SessionError::NoSuchTurn { number }),
        }
    }

    pub fn check_state(&self, number: u64) -> SessionResult {
        let is_it = |turn: &Turn| turn.is_state && turn.number == number;
        match self.turns().any(is_it) {
            true => Ok(()),
            false => Err(SessionError::NoSuchState { number }),
        }
    }

    /// Numbers of the parts of the message that the turn at this index ends.
    pub fn parts_before(&self, i: usize) -> Vec<u64> {
        let before = self.turns().take(i).rev().take_while(|turn| turn.is_part);
        before.map(|turn| turn.number).collect()
    }

    pub fn next_turn(&mut self) -> u64 {
        self.turns_made += 1;
        self.turns_made - 1
    }

    /// A turn that was just read.
    pub fn add_turn(&mut self, record: &TurnRecord, bytes: &[u8]) {
        self.turns.push(StoredTurn {
            turn: Turn {
                is_visible: true,
                ..record.turn()
            },
            record: StoredRecord::Unsaved(bytes.into()),
        });
    }

    /// Marks the first bytes of a fact as verbatim.
    pub fn mark(&mut self, number: u64, bytes: usize) -> Option<LogChange> {
        let fact = self.facts.iter_mut().find(|f| f.number == number)?;
        fact.verbatim = bytes.min(fact.text.len());
        let bytes = fact.verbatim as u64;
        let fact = number;
        Some(LogChange::Verbatim { fact, bytes })
    }

    /// Remembers how the opening was told before condensing changes it.
    pub fn remember_told(&mut self, text: &str) -> Option<LogChange> {
        let hash = hash_of(text);
        let is_new = self.told.is_none();
        self.told.get_or_insert(hash);
        is_new.then_some(LogChange::Told { hash })
    }

    /// Whether the session was begun with this text; blanks around it do not count.
    pub fn began_with(&self, text: &str) -> bool {
        match (self.told, self.facts.first()) {
            (Some(hash), _) => hash == hash_of(text),
            (None, Some(opening)) => opening.text.trim() == text.trim(),
            (None, None) => text.trim().is_empty(),
        }
    }

    /// Turns in memory that may leave it, oldest first: neither pinned nor among the latest that answers see.
    pub fn evictable(&self, last: usize) -> impl Iterator<Item = &Turn> {
        let newest = last_from(self.turns(), last);
        let older = self.turns().enumerate();
        let may_leave = |turn: &Turn| turn.is_part || turn.is_excluded;
        let older = older.filter(move |(i, turn)| *i < newest || may_leave(turn));
        let older = older.map(|(_, turn)| turn);
        older.filter(|turn| turn.place == TurnPlace::Live && !turn.is_pinned)
    }

    /// Turns in the order in which they leave memory: hidden ones first, then the oldest.
    fn victims(&self, last: usize) -> impl Iterator<Item = &Turn> {
        let hidden = self.evictable(last).filter(|turn| !turn.is_visible);
        hidden.chain(self.evictable(last).filter(|turn| turn.is_visible))
    }

    /// The turn that leaves memory next, none of `kept`.
    pub fn victim(&self, last: usize, kept: &[u64]) -> Option<u64> {
        let mut victims = self.victims(last).map(|turn| turn.number);
        victims.find(|number| !kept.contains(number))
    }

    /// Turns that leave memory so that those in it have at most `capacity` tokens.
    pub fn beyond(&self, capacity: usize, last: usize) -> Vec<u64> {
        let live = self.turns().filter(|turn| turn.place == TurnPlace::Live);
        let live: u64 = live.map(Turn::tokens).sum();
        let mut over = live.saturating_sub(capacity as u64);
        let mut leaving = Vec::new();
        for turn in self.victims(last) {
            if over == 0 {
                break;
            }
            over = over.saturating_sub(turn.tokens());
            leaving.push(turn.number);
        }
        leaving
    }

    /// Spans of facts and of turns in memory: those that attention sees, or all.
    pub fn live_spans(&self, hidden_too: bool) -> Vec<Range<u64>> {
        let live = |turn: &&Turn| turn.place == TurnPlace::Live && (hidden_too || turn.is_visible);
        let facts = self.facts.iter().map(|fact| &fact.span);
        let turns = self.turns().filter(live).map(|turn| &turn.span);
        facts.chain(turns).cloned().collect()
    }

    /// Whether a block holds rows of a fact, or of a turn whose rows are kept.
    pub fn needs_block(&self, block: u64) -> bool {
        let turns = self.turns().filter(|turn| turn.place != TurnPlace::Ids);
        let facts = self.facts.iter().map(|fact| &fact.span);
        let mut spans = turns.map(|turn| &turn.span).chain(facts);
        spans.any(|span| is_in_block(block, span))
    }

    /// Whether a block holds rows of a spilled turn.
    pub fn spills_block(&self, block: u64) -> bool {
        let mut turns = self.turns().filter(|t| t.place == TurnPlace::Spilled);
        turns.any(|turn| is_in_block(block, &turn.span))
    }

    /// Replays a change of the log. [`LogChange::Renewed`] is about columns alone.
    pub fn apply(&mut self, change: LogChange) {
        match change {
            LogChange::Moved { turn, place, start } => {
                if let Some(i) = self.index_of(turn) {
                    let turn = &mut self.turns[i].turn;
                    turn.place = place;
                    turn.span = start..start.saturating_add(turn.tokens());
                }
            }
            LogChange::Pinned { turn, is_pinned } => {
                if let Some(i) = self.index_of(turn) {
                    self.turns[i].turn.is_pinned = is_pinned;
                }
            }
            LogChange::Excluded { turn, is_excluded } => {
                if let Some(i) = self.index_of(turn) {
                    self.turns[i].turn.is_excluded = is_excluded;
                }
            }
            LogChange::Forgotten { turn } => self.turns.retain(|h| h.turn.number != turn),
            LogChange::Revoked { fact } => self.facts.retain(|f| f.number != fact),
            LogChange::Verbatim { fact, bytes } => {
                if let Some(fact) = self.facts.iter_mut().find(|f| f.number == fact) {
                    fact.verbatim = usize::try_from(bytes).unwrap_or(usize::MAX);
                }
            }
            LogChange::Told { hash } => self.told = Some(hash),
            LogChange::Renewed => {}
        }
    }

    pub fn heap_bytes(&self) -> usize {
        let unsaved = self.turns.iter().map(|stored| match &stored.record {
            StoredRecord::Unsaved(bytes) => bytes.len(),
            StoredRecord::Saved(_) => 0,
        });
        let facts = self.facts.iter();
        let facts = facts.map(|fact| fact.text.capacity() + size_of::<Fact>());
        self.turns.bytes() + unsaved.chain(facts).sum::<usize>()
    }
}

fn hash_of(text: &str) -> u128 {
    let hash = blake3::hash(text.trim().as_bytes());
    let (first, _) = hash.as_bytes().split_at(16);
    first
        .iter()
        .rev()
        .fold(0, |all, &b| all << 8 | u128::from(b))
}
