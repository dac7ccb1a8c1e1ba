//! A session's file, looked at from outside: whose it is, what it holds, whether all of it is what was written.
//!
//! No model is needed and nothing is changed; the file may be in use. Everything is verified as [`super::Sessions::resume`]
//! does it, up to the rows, which only a store of the same form can judge.

use super::log::Replay;
use super::record::{self, BadRecord, STATE};
use super::turns::Place;
use haversack_memory::journal::{self, Journal};
use std::path::Path;

/// Why a file is none of ours, or not whole. The caller adds its name.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error(transparent)]
    File(#[from] journal::Error),
    #[error("it is damaged: {0}")]
    Record(#[from] BadRecord),
    #[error("it holds {found:?}, not a session of version 1")]
    Format { found: String },
}

/// Records of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindBytes {
    pub kind: &'static str,
    pub records: u64,
    /// Without headers.
    pub bytes: u64,
}

/// Turns and the tokens in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub turns: u64,
    pub tokens: u64,
}

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Names and values, as the file has them.
    pub identity: Vec<(String, String)>,
    pub is_sealed: bool,
    pub commits: u64,
    /// Committed, head included.
    pub bytes: u64,
    /// Behind what is committed: being written now, or left by a process that died.
    pub tail_bytes: u64,
    pub kinds: Vec<KindBytes>,
    /// Tokens seen.
    pub position: u64,
    pub turns_made: u64,
    pub in_memory: Count,
    /// Of those in memory, what attention sees.
    pub visible: Count,
    pub spilled: Count,
    pub ids: Count,
    /// Tokens of turns that are nowhere any more.
    pub forgotten: u64,
    /// Facts that hold, the opening included.
    pub facts: u64,
    /// Tokens of the persistent stream.
    pub persistent: u64,
    /// Of the last save; milliseconds since 1970.
    pub time_ms: u64,
}

/// Whether a file begins like one of ours.
pub fn is_journal(beginning: &[u8]) -> bool {
    beginning.starts_with(b"HAVERJNL")
}

/// Verifies a file and reads what it says.
pub fn look(path: &Path, key: Option<[u8; 32]>) -> Result<Looked, LookError> {
    let options = journal::Options {
        key,
        ..journal::Options::default()
    };
    let summary = Journal::check(path, &options)?;
    let mut looked = Looked {
        identity: identity(&summary.identity)?,
        is_sealed: summary.sealed,
        commits: summary.commits,
        bytes: summary.bytes,
        tail_bytes: summary.tail_bytes,
        ..Looked::default()
    };
    for (&kind, tally) in &summary.kinds {
        let no_meaning = BadRecord {
            kind,
            what: "no meaning here",
        };
        looked.kinds.push(KindBytes {
            kind: record::name(kind).ok_or(no_meaning)?,
            records: tally.records,
            bytes: tally.bytes,
        });
    }
    let view = Journal::view(path, &options)?;
    // A process that died before its first save leaves a file that says nothing, and is whole.
    if view.records.is_empty() {
        return Ok(looked);
    }
    let found = Replay::of(&view.map, &view.records)?;
    if (found.state.blocks.iter()).any(|block| !found.columns.contains_key(block)) {
        let what = "a block without its column";
        return Err(BadRecord { kind: STATE, what }.into());
    }
    for held in found.turns.iter() {
        let turn = &held.turn;
        let add = |count: &mut Count| {
            count.turns += 1;
            count.tokens += turn.tokens();
        };
        match turn.place {
            Place::Live => add(&mut looked.in_memory),
            Place::Spilled => add(&mut looked.spilled),
            Place::Ids => add(&mut looked.ids),
        }
        if turn.is_visible {
            add(&mut looked.visible);
        }
    }
    looked.facts = found.facts.len() as u64;
    looked.persistent = (found.facts.iter())
        .map(|fact| fact.span.end - fact.span.start)
        .sum();
    looked.position = found.state.position;
    looked.turns_made = found.state.turns_made;
    looked.forgotten = found.state.forgotten;
    looked.time_ms = found.state.time_ms;
    Ok(looked)
}

/// The lines behind the first, each a name and a value.
fn identity(bytes: &[u8]) -> Result<Vec<(String, String)>, LookError> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let version = lines.next().unwrap_or_default();
    if version != super::log::VERSION {
        return Err(LookError::Format {
            found: version.chars().take(80).collect(),
        });
    }
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        (name.to_owned(), value.to_owned())
    };
    Ok(lines.map(pair).collect())
}
