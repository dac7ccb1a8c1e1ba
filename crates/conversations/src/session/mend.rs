//! A session whose disk does not work: what waits to be saved, how much of it, and how it comes to the file later.
//!
//! A save that fails changes nothing in the file and nothing in the conversation. What was to be saved waits, and the next
//! save brings it. What waits is bounded by what is in memory and what is in the file: of a turn that is gone before it
//! was saved nothing is left to say, and of two changes of one thing the last one counts. While saves fail, a turn that has to leave
//! memory goes as far as the file can bring it back: to its rows, to its ids, or away.
//!
//! What this is not: it never decides that a disk works. It tries at every save.

use super::log::{Replay, bad, journal_options, needed};
use super::record::{CHANGE, Change, FACT, STATE, TURN};
use super::turns::Place;
use super::{Home, Record, Session, SessionError, SessionOptions};
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_memory::journal::{self, Journal};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

const SLOTS: u64 = BLOCK_SLOTS as u64;

/// Why a file could not be made.
pub(super) enum NotMade {
    Folder(PathBuf, std::io::Error),
    File(journal::Error),
}

impl NotMade {
    /// Whether the name is at fault and not the disk: no later try would do better.
    pub fn is_refusal(&self) -> bool {
        let NotMade::File(error) = self else {
            return false;
        };
        !matches!(
            error,
            journal::Error::Io { .. } | journal::Error::Quota { .. }
        )
    }

    pub fn of(self, name: &str) -> SessionError {
        let name = name.to_owned();
        match self {
            NotMade::Folder(path, source) => SessionError::Io {
                doing: "making",
                path,
                source,
            },
            NotMade::File(source) => SessionError::File { name, source },
        }
    }
}

impl Home {
    /// The file, new. A process that died before its first save leaves one that says nothing: it is taken over.
    pub fn make(&self, options: &SessionOptions) -> Result<Journal, NotMade> {
        if let Some(folder) = self.path.parent() {
            let made = std::fs::create_dir_all(folder);
            made.map_err(|source| NotMade::Folder(folder.to_owned(), source))?;
        }
        let made = Journal::create(&self.path, &self.identity, journal_options(options));
        let made = match made {
            Err(journal::Error::Exists) => {
                match Journal::open(&self.path, journal_options(options)) {
                    Ok(left)
                        if left.records.is_empty() && left.journal.identity() == self.identity =>
                    {
                        Ok(left.journal)
                    }
                    Err(journal::Error::Busy) => Err(journal::Error::Busy),
                    _ => Err(journal::Error::Exists),
                }
            }
            made => made,
        };
        made.map_err(NotMade::File)
    }
}

impl Session {
    /// Before a save: a file that could not be made, or whose state nobody knows, is tried again.
    pub(super) fn ready(&mut self, options: &SessionOptions) -> Result<(), SessionError> {
        let Some(home) = &self.home else {
            return Ok(());
        };
        match &self.journal {
            None => {
                let made = home.make(options).map_err(|error| error.of(&self.name));
                self.journal = Some(made?);
                Ok(())
            }
            Some(journal) if journal.is_lost() => self.recover(),
            Some(_) => Ok(()),
        }
    }

    /// Where a turn that leaves memory can be brought back from; `None` where it cannot.
    pub(super) fn leaves_to(&self, i: usize) -> Option<Place> {
        let held = &self.turns[i];
        self.journal.as_ref()?;
        // What is not in the file yet is there after the turn, and stays in memory until then.
        if self.unsaved.is_none() {
            return Some(Place::Spilled);
        }
        held.saved()?;
        let span = &held.turn.span;
        let mut blocks = span.start / SLOTS..span.end.div_ceil(SLOTS);
        match blocks.all(|block| self.columns.contains_key(&block)) {
            true => Some(Place::Spilled),
            false => Some(Place::Ids),
        }
    }

    /// Drops what waits and says nothing any more.
    pub(super) fn tidy(&mut self) {
        let numbers = |kind: u32| -> BTreeSet<u64> {
            let of_kind = self.pending.iter().filter(|(k, _)| *k == kind);
            of_kind.filter_map(|(_, bytes)| number(bytes)).collect()
        };
        let (waiting_turns, waiting_facts) = (numbers(TURN), numbers(FACT));
        let turns: BTreeSet<u64> = self.turns.iter().map(|h| h.turn.number).collect();
        let facts: BTreeSet<u64> = self.facts.iter().map(|f| f.number).collect();
        let mut last = BTreeSet::new();
        let mut kept = Vec::new();
        for (kind, bytes) in std::mem::take(&mut self.pending).into_iter().rev() {
            let says = match kind {
                TURN => number(&bytes).is_some_and(|n| turns.contains(&n)),
                FACT => number(&bytes).is_some_and(|n| facts.contains(&n)),
                CHANGE => match Change::read(&bytes) {
                    Ok(Change::Moved { turn, .. }) => {
                        turns.contains(&turn) && last.insert((0, turn))
                    }
                    Ok(Change::Pinned { turn, .. }) => {
                        turns.contains(&turn) && last.insert((1, turn))
                    }
                    Ok(Change::Forgotten { turn }) => {
                        !waiting_turns.contains(&turn) && last.insert((2, turn))
                    }
                    Ok(Change::Revoked { fact }) => {
                        !waiting_facts.contains(&fact) && last.insert((3, fact))
                    }
                    Ok(Change::Verbatim { fact, .. }) => {
                        facts.contains(&fact) && last.insert((4, fact))
                    }
                    Ok(Change::Renewed) => last.insert((5, 0)),
                    Err(_) => false,
                },
                _ => true,
            };
            if says {
                kept.push((kind, bytes));
            }
        }
        kept.reverse();
        self.pending = kept;
    }

    /// The file has either what was saved last or what failed to be. Finds out, and notes what has to be told to it.
    fn recover(&mut self) -> Result<(), SessionError> {
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        let recovered = journal.recover();
        let recovered = recovered.and_then(|records| Ok((journal.map()?, records)));
        let (map, records) = recovered.map_err(|e| self.file_error(e))?;
        // Nothing was ever saved: all of it waits.
        if records.is_empty() {
            return Ok(());
        }
        let found = Replay::of(&map, &records).map_err(|e| self.record_error(e))?;
        // A stream that was condensed when its save failed, and may be there all the same: not ours to go on with.
        let other = |fact: &super::Fact| {
            let saved = found.facts.iter().find(|f| f.number == fact.number);
            saved.is_some_and(|saved| saved.span != fact.span)
        };
        if self.facts.iter().any(other) {
            let what = "another persistent stream than the session";
            return Err(self.record_error(bad(STATE, what)));
        }
        let there: BTreeMap<u64, _> = (found.turns.iter())
            .map(|held| (held.turn.number, held))
            .collect();
        let mut changes = Vec::new();
        let ours: BTreeSet<u64> = self.turns.iter().map(|h| h.turn.number).collect();
        for &turn in there.keys().filter(|turn| !ours.contains(turn)) {
            changes.push(Change::Forgotten { turn });
        }
        for held in self.turns.iter_mut() {
            let turn = &held.turn;
            let saved = there.get(&turn.number).map(|saved| saved.record.clone());
            let is_saved = saved.is_some();
            match (saved, &held.record) {
                (Some(saved), _) => held.record = saved,
                (None, Record::Told(_)) => {}
                // Nothing is left of what it said.
                (None, Record::Saved(_)) => held.record = Record::Told(Box::default()),
            }
            if is_saved {
                changes.push(Change::Moved {
                    turn: turn.number,
                    place: turn.place,
                    start: turn.span.start,
                });
                changes.push(Change::Pinned {
                    turn: turn.number,
                    is_pinned: turn.is_pinned,
                });
            }
        }
        for fact in &mut self.facts {
            let saved = found.facts.iter().find(|f| f.number == fact.number);
            fact.record = saved.and_then(|saved| saved.record);
        }
        for fact in &found.facts {
            if self.facts.iter().all(|f| f.number != fact.number) {
                changes.push(Change::Revoked { fact: fact.number });
            }
        }
        self.pending.retain(|(kind, bytes)| match *kind {
            TURN => number(bytes).is_none_or(|n| !there.contains_key(&n)),
            FACT => number(bytes).is_none_or(|n| found.facts.iter().all(|f| f.number != n)),
            _ => true,
        });
        changes.into_iter().for_each(|change| self.change(change));
        self.tidy();
        self.columns = found.columns;
        self.blocks = found.state.blocks;
        let (facts, turns, blocks) = (&self.facts, &self.turns, &self.blocks);
        self.columns
            .retain(|&block, _| needed(block, facts, turns) || blocks.contains(&block));
        self.state = Some(found.state_record);
        self.count_needed();
        Ok(())
    }
}

/// Turns and facts begin with their number.
fn number(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|n| u64::from_le_bytes(*n))
}
