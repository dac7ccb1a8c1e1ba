//! Inspects a session file without a model: its identity, its contents, and whether it is intact.
//!
//! Nothing is changed, and the file may be in use. Everything is verified as [`super::Sessions::resume`] does, except for
//! the rows, which only a store of the same format can read.

use super::identity::VERSION;
use super::record::{self, BadRecord, STATE};
use super::replay::Replay;
use super::transcript::Fact;
use super::turns::TurnPlace;
use haversack_memory::journal::{self, Journal};
use std::path::Path;

/// Why a file is not an intact session file. The caller adds its name.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error(transparent)]
    File(#[from] journal::JournalError),
    #[error("it is damaged: {0}")]
    Record(#[from] BadRecord),
    #[error("it holds {found:?}, not a session of version 1")]
    Format { found: String },
    #[error("it has the tokens of another model (tokenizer {saved}; this one is {here})")]
    Tokenizer { saved: String, here: String },
}

/// Records of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindBytes {
    pub kind: &'static str,
    pub records: u64,
    /// Without headers.
    pub bytes: u64,
}

/// Number of turns and their tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnCount {
    pub turns: u64,
    pub tokens: u64,
}

/// Contents of a session file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionInspection {
    /// Names and values.
    pub identity: Vec<(String, String)>,
    pub is_sealed: bool,
    pub commits: u64,
    /// Committed, head included.
    pub bytes: u64,
    /// Not committed: being written now, or left by a process that died.
    pub tail_bytes: u64,
    pub kinds: Vec<KindBytes>,
    /// Tokens read so far.
    pub position: u64,
    pub turns_made: u64,
    pub in_memory: TurnCount,
    /// Those in memory that attention sees.
    pub visible: TurnCount,
    pub spilled: TurnCount,
    pub ids: TurnCount,
    /// Tokens of turns that were forgotten.
    pub forgotten: u64,
    /// Facts that hold, the opening included.
    pub facts: u64,
    /// Tokens of the persistent stream.
    pub persistent: u64,
    /// Time of the last save; milliseconds since 1970.
    pub time_ms: u64,
}

/// Whether a file begins like a journal.
pub fn is_journal(beginning: &[u8]) -> bool {
    beginning.starts_with(b"HAVERJNL")
}

impl SessionInspection {
    /// Verifies a file and reads its contents.
    pub fn of(path: &Path, key: Option<[u8; 32]>) -> Result<SessionInspection, InspectError> {
        let options = journal::JournalOptions {
            key,
            ..journal::JournalOptions::default()
        };
        let summary = Journal::check(path, &options)?;
        let mut inspection = SessionInspection {
            identity: identity_fields(&summary.identity)?,
            is_sealed: summary.sealed,
            commits: summary.commits,
            bytes: summary.bytes,
            tail_bytes: summary.tail_bytes,
            ..SessionInspection::default()
        };
        for (&kind, tally) in &summary.kinds {
            let no_meaning = BadRecord {
                kind,
                what: "no meaning here",
            };
            inspection.kinds.push(KindBytes {
                kind: record::name(kind).ok_or(no_meaning)?,
                records: tally.records,
                bytes: tally.bytes,
            });
        }
        let view = Journal::view(path, &options)?;
        // A process that died before its first save leaves an intact file without records.
        if view.records.is_empty() {
            return Ok(inspection);
        }
        let found = Replay::of(&view.map, &view.records)?;
        if (found.state.blocks.iter()).any(|block| !found.columns.contains_key(block)) {
            let what = "a block without its column";
            return Err(BadRecord { kind: STATE, what }.into());
        }
        for turn in found.transcript.turns() {
            let add = |count: &mut TurnCount| {
                count.turns += 1;
                count.tokens += turn.tokens();
            };
            match turn.place {
                TurnPlace::Live => add(&mut inspection.in_memory),
                TurnPlace::Spilled => add(&mut inspection.spilled),
                TurnPlace::Ids => add(&mut inspection.ids),
            }
            if turn.is_visible {
                add(&mut inspection.visible);
            }
        }
        inspection.facts = found.transcript.facts.len() as u64;
        inspection.persistent = (found.transcript.facts.iter()).map(Fact::tokens).sum();
        inspection.position = found.state.position;
        inspection.turns_made = found.state.turns_made;
        inspection.forgotten = found.state.forgotten;
        inspection.time_ms = found.state.time_ms;
        Ok(inspection)
    }
}

/// The lines after the first, each a name and a value.
pub(super) fn identity_fields(bytes: &[u8]) -> Result<Vec<(String, String)>, InspectError> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let version = lines.next().unwrap_or_default();
    if version != VERSION {
        return Err(InspectError::Format {
            found: version.chars().take(80).collect(),
        });
    }
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        (name.to_owned(), value.to_owned())
    };
    Ok(lines.map(pair).collect())
}
