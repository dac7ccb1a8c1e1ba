//! The records of a session file and their bytes; `docs/reference/session-files.md` draws them.
//!
//! Turns, facts and changes are a history: replayed in order they give the conversation. Of the columns of a block the
//! last counts, of states the last. Numbers are little-endian; lists begin with their length. A length is compared with
//! the bytes that are left before anything is allocated.

use super::limits::SessionSettings;
use super::relevance::Relevance;
use super::turns::{Turn, TurnPlace};
use std::ops::Range;

/// Kinds of records. Never renumbered.
pub const TURN: u32 = 1;
pub const FACT: u32 = 2;
pub const CHANGE: u32 = 3;
pub const COLUMN: u32 = 4;
pub const STATE: u32 = 5;
pub const LIMITS: u32 = 6;

/// The name of a kind.
pub fn name(kind: u32) -> Option<&'static str> {
    let names = [
        (TURN, "turn"),
        (FACT, "fact"),
        (CHANGE, "change"),
        (COLUMN, "column"),
        (STATE, "state"),
        (LIMITS, "limits"),
    ];
    (names.iter().find(|(known, _)| *known == kind)).map(|(_, name)| *name)
}

/// The number that the record of a turn or a fact begins with; of a column, the number of its block.
pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|n| u64::from_le_bytes(*n))
}

/// A record that its kind cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record of kind {kind} has {what}")]
pub struct BadRecord {
    pub kind: u32,
    pub what: &'static str,
}

/// A turn, as it was first saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnRecord {
    pub number: u64,
    pub start: u64,
    /// Unix time; never before that of an earlier turn.
    pub time_ms: u64,
    /// Number of tokens of the question, markers included.
    pub question: u32,
    pub is_pinned: bool,
    /// The message goes on in the next turn.
    pub is_part: bool,
    /// The question begins with the date of its time.
    pub is_dated: bool,
    pub tokens: Vec<u32>,
    /// In the encoder's storage format; empty without an encoder.
    pub embedding: Vec<u8>,
}

/// A piece of the persistent stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactRecord {
    pub number: u64,
    pub start: u64,
    pub time_ms: u64,
    /// The fact that this one replaces.
    pub supersedes: Option<u64>,
    /// The turn in which it was found; `None`: it was told as a fact.
    pub found_in: Option<u64>,
    pub tokens: Vec<u32>,
    pub text: String,
}

/// A change of something saved before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogChange {
    /// The rows of a turn have a new place.
    Moved {
        turn: u64,
        place: TurnPlace,
        start: u64,
    },
    /// A turn was deleted.
    Forgotten { turn: u64 },
    /// A fact no longer holds.
    Revoked { fact: u64 },
    /// A turn was pinned or unpinned.
    Pinned { turn: u64, is_pinned: bool },
    /// Earlier columns belong to a sequence that was replaced.
    Renewed,
    /// Condensing must not change the first bytes of a fact.
    Verbatim { fact: u64, bytes: u64 },
    /// Condensing has changed the opening; this is the hash of what was told.
    Told { hash: u128 },
    /// A turn is seen by no answer, or may be again.
    Excluded { turn: u64, is_excluded: bool },
}

/// What is in memory, with the columns that are not settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateRecord {
    pub position: u64,
    pub turns_made: u64,
    pub facts_made: u64,
    /// Tokens of turns that were forgotten.
    pub forgotten: u64,
    pub time_ms: u64,
    /// Turns that attention sees.
    pub visible: Vec<u64>,
    /// Blocks whose columns are records of their own.
    pub blocks: Vec<u64>,
    /// From [`haversack_cache::Store::outline`].
    pub outline: Vec<u8>,
    /// Columns that may still change.
    pub tail: Vec<Vec<u8>>,
}

/// What a session may hold from a turn on, and what was set for it when it was created. The last one counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitsRecord {
    /// The first turn that it holds for.
    pub turn: u64,
    /// Tokens of turns in memory.
    pub capacity: u64,
    pub own: SessionSettings,
    /// Why the capacity changed; empty where it did not.
    pub reason: String,
}

impl LimitsRecord {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.turn);
        out.u64(self.capacity);
        let own = &self.own;
        let counts = [own.capacity, own.answer_max, own.persistent_max];
        let counts = counts.map(|set| set.map(|n| n as u64));
        for set in counts.into_iter().chain([own.quota_bytes]) {
            out.u64(set.map_or(0, |n| n.saturating_add(1)));
        }
        let (rule, turns, numbers) = match own.relevance {
            None => (0, 0, [0.0; 2]),
            Some(Relevance::All) => (1, 0, [0.0; 2]),
            Some(Relevance::Threshold(least)) => (2, 0, [least, 0.0]),
            Some(Relevance::Top {
                turns,
                hysteresis,
                least,
            }) => (3, turns as u64, [hysteresis, least]),
        };
        out.u64(rule);
        out.u64(turns);
        numbers.iter().for_each(|n| out.u32(n.to_bits()));
        out.bytes(self.reason.as_bytes());
        // Files of sessions that set none are as they were before there were any.
        let flag = |set: Option<bool>| set.map_or(0, |value| 1 | u32::from(value) << 1);
        let flags = flag(own.auto_facts) | flag(own.dates) << 2;
        if flags > 0 {
            out.u32(flags);
        }
        out.0
    }

    pub fn read(bytes: &[u8]) -> Result<LimitsRecord, BadRecord> {
        let mut from = Reader {
            kind: LIMITS,
            bytes,
        };
        let (turn, capacity) = (from.u64()?, from.u64()?);
        let mut count = || -> Result<Option<u64>, BadRecord> { Ok(from.u64()?.checked_sub(1)) };
        let counts = [count()?, count()?, count()?, count()?];
        let size = |n: Option<u64>| n.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let (rule, turns) = (from.u64()?, from.u64()?);
        let (one, other) = (f32::from_bits(from.u32()?), f32::from_bits(from.u32()?));
        let reason = std::str::from_utf8(from.list()?).map(str::to_owned);
        let flags = match from.bytes {
            [] => 0,
            _ => from.u32()?,
        };
        if flags > 15 {
            return Err(from.bad("flags without a meaning"));
        }
        let flag = |at: u32| (flags >> at & 1 > 0).then_some(flags >> at & 2 > 0);
        let record = LimitsRecord {
            turn,
            capacity,
            own: SessionSettings {
                capacity: size(counts[0]),
                answer_max: size(counts[1]),
                persistent_max: size(counts[2]),
                quota_bytes: counts[3],
                auto_facts: flag(0),
                dates: flag(2),
                relevance: match rule {
                    0 => None,
                    1 => Some(Relevance::All),
                    2 => Some(Relevance::Threshold(one)),
                    3 => Some(Relevance::Top {
                        turns: usize::try_from(turns).unwrap_or(usize::MAX),
                        hysteresis: one,
                        least: other,
                    }),
                    _ => return Err(from.bad("a relevance of no kind")),
                },
            },
            reason: reason.map_err(|_| from.bad("text that is not UTF-8"))?,
        };
        from.end()?;
        Ok(record)
    }
}

impl TurnRecord {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.number);
        out.u64(self.start);
        out.u64(self.time_ms);
        out.u32(self.question);
        let flags = [self.is_pinned, self.is_part, self.is_dated];
        let flags = flags
            .iter()
            .rev()
            .fold(0, |all, &is| all << 1 | u32::from(is));
        out.u32(flags);
        out.bytes(&self.embedding);
        out.ids(&self.tokens);
        out.0
    }

    pub fn read(bytes: &[u8]) -> Result<TurnRecord, BadRecord> {
        let mut from = Reader { kind: TURN, bytes };
        let (number, start, time_ms) = (from.u64()?, from.u64()?, from.u64()?);
        let (question, flags) = (from.u32()?, from.u32()?);
        if flags > 7 {
            return Err(from.bad("flags without a meaning"));
        }
        let record = TurnRecord {
            number,
            start,
            time_ms,
            question,
            is_pinned: flags & 1 > 0,
            is_part: flags & 2 > 0,
            is_dated: flags & 4 > 0,
            embedding: from.list()?.to_vec(),
            tokens: from.ids()?,
        };
        from.end()?;
        let whole = record.question as usize <= record.tokens.len()
            && record.span().end < u64::MAX / 4
            && !record.tokens.is_empty();
        match whole {
            true => Ok(record),
            false => Err(BadRecord {
                kind: TURN,
                what: "a span without tokens",
            }),
        }
    }

    /// The turn, live; its visibility is in the state record.
    pub fn turn(&self) -> Turn {
        Turn {
            number: self.number,
            span: self.span(),
            place: TurnPlace::Live,
            is_visible: false,
            is_pinned: self.is_pinned,
            is_excluded: false,
            is_state: self.question as usize == self.tokens.len() && !self.is_part,
            is_part: self.is_part,
        }
    }

    pub fn span(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.tokens.len() as u64)
    }

    /// The embedding in the bytes of a record.
    pub fn embedding(bytes: &[u8]) -> Option<&[u8]> {
        let mut from = Reader { kind: TURN, bytes };
        from.take(3 * 8 + 2 * 4).ok()?;
        from.list().ok()
    }
}

impl FactRecord {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.number);
        out.u64(self.start);
        out.u64(self.time_ms);
        out.u64(self.supersedes.map_or(0, |fact| fact + 1));
        out.bytes(self.text.as_bytes());
        out.ids(&self.tokens);
        if let Some(turn) = self.found_in {
            out.u64(turn);
        }
        out.0
    }

    pub fn read(bytes: &[u8]) -> Result<FactRecord, BadRecord> {
        let mut from = Reader { kind: FACT, bytes };
        let number = from.u64()?;
        let start = from.u64()?;
        let time_ms = from.u64()?;
        let supersedes = from.u64()?.checked_sub(1);
        let text = std::str::from_utf8(from.list()?).map(str::to_owned);
        let record = FactRecord {
            number,
            start,
            time_ms,
            supersedes,
            text: text.map_err(|_| from.bad("text that is not UTF-8"))?,
            tokens: from.ids()?,
            found_in: match from.bytes {
                [] => None,
                _ => Some(from.u64()?),
            },
        };
        from.end()?;
        match record.span().end < u64::MAX / 4 {
            true => Ok(record),
            false => Err(BadRecord {
                kind: FACT,
                what: "a span past every position",
            }),
        }
    }

    pub fn span(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.tokens.len() as u64)
    }
}

impl LogChange {
    pub fn to_bytes(self) -> Vec<u8> {
        let mut out = Writer::default();
        let (what, number, more, start) = match self {
            LogChange::Moved { turn, place, start } => (0, turn, place as u32, start),
            LogChange::Forgotten { turn } => (1, turn, 0, 0),
            LogChange::Revoked { fact } => (2, fact, 0, 0),
            LogChange::Pinned { turn, is_pinned } => (3, turn, u32::from(is_pinned), 0),
            LogChange::Renewed => (4, 0, 0, 0),
            LogChange::Verbatim { fact, bytes } => (5, fact, 0, bytes),
            LogChange::Told { hash } => (6, hash as u64, 0, (hash >> 64) as u64),
            LogChange::Excluded { turn, is_excluded } => (7, turn, u32::from(is_excluded), 0),
        };
        out.u32(what);
        out.u32(more);
        out.u64(number);
        out.u64(start);
        out.0
    }

    pub fn read(bytes: &[u8]) -> Result<LogChange, BadRecord> {
        let mut from = Reader {
            kind: CHANGE,
            bytes,
        };
        let (what, more) = (from.u32()?, from.u32()?);
        let (number, start) = (from.u64()?, from.u64()?);
        let change = match (what, more) {
            (0, 0..=2) => LogChange::Moved {
                turn: number,
                place: [TurnPlace::Live, TurnPlace::Spilled, TurnPlace::Ids][more as usize],
                start,
            },
            (1, 0) => LogChange::Forgotten { turn: number },
            (2, 0) => LogChange::Revoked { fact: number },
            (3, 0 | 1) => LogChange::Pinned {
                turn: number,
                is_pinned: more == 1,
            },
            (4, 0) => LogChange::Renewed,
            (5, 0) => LogChange::Verbatim {
                fact: number,
                bytes: start,
            },
            (6, 0) => LogChange::Told {
                hash: u128::from(start) << 64 | u128::from(number),
            },
            (7, 0 | 1) => LogChange::Excluded {
                turn: number,
                is_excluded: more == 1,
            },
            _ => return Err(from.bad("a change of no kind")),
        };
        from.end()?;
        Ok(change)
    }
}

impl StateRecord {
    /// The bytes in consecutive pieces, so that rows are not copied again.
    pub fn into_pieces(self) -> Vec<Vec<u8>> {
        let mut out = Writer::default();
        out.u64(self.position);
        out.u64(self.turns_made);
        out.u64(self.facts_made);
        out.u64(self.forgotten);
        out.u64(self.time_ms);
        out.numbers(&self.visible);
        out.numbers(&self.blocks);
        out.bytes(&self.outline);
        out.u64(self.tail.len() as u64);
        let mut pieces = Vec::new();
        for column in self.tail {
            out.u64(column.len() as u64);
            pieces.extend([std::mem::take(&mut out.0), column]);
        }
        pieces.push(out.0);
        pieces
    }

    pub fn read(bytes: &[u8]) -> Result<StateRecord, BadRecord> {
        let mut from = Reader { kind: STATE, bytes };
        let mut record = StateRecord {
            position: from.u64()?,
            turns_made: from.u64()?,
            facts_made: from.u64()?,
            forgotten: from.u64()?,
            time_ms: from.u64()?,
            visible: from.numbers()?,
            blocks: from.numbers()?,
            outline: from.list()?.to_vec(),
            tail: Vec::new(),
        };
        for _ in 0..from.u64()? {
            record.tail.push(from.list()?.to_vec());
        }
        from.end()?;
        Ok(record)
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, n: u32) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    fn u64(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn ids(&mut self, ids: &[u32]) {
        self.u64(ids.len() as u64);
        ids.iter().for_each(|&id| self.u32(id));
    }

    fn numbers(&mut self, numbers: &[u64]) {
        self.u64(numbers.len() as u64);
        numbers.iter().for_each(|&n| self.u64(n));
    }
}

struct Reader<'a> {
    kind: u32,
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn bad(&self, what: &'static str) -> BadRecord {
        BadRecord {
            kind: self.kind,
            what,
        }
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], BadRecord> {
        let taken = usize::try_from(count)
            .ok()
            .and_then(|count| self.bytes.split_at_checked(count));
        let (taken, rest) = taken.ok_or(self.bad("bytes missing"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, BadRecord> {
        let mut number = [0; 4];
        number.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(number))
    }

    fn u64(&mut self) -> Result<u64, BadRecord> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(number))
    }

    fn list(&mut self) -> Result<&'a [u8], BadRecord> {
        let count = self.u64()?;
        self.take(count)
    }

    fn ids(&mut self) -> Result<Vec<u32>, BadRecord> {
        let bytes = self.items(4)?;
        let ids = bytes.as_chunks::<4>().0.iter();
        Ok(ids.map(|id| u32::from_le_bytes(*id)).collect())
    }

    fn numbers(&mut self) -> Result<Vec<u64>, BadRecord> {
        let bytes = self.items(8)?;
        let numbers = bytes.as_chunks::<8>().0.iter();
        Ok(numbers.map(|n| u64::from_le_bytes(*n)).collect())
    }

    /// A list of items of `size` bytes, behind its length.
    fn items(&mut self, size: u64) -> Result<&'a [u8], BadRecord> {
        let bytes = self.u64()?.checked_mul(size);
        self.take(bytes.ok_or(self.bad("a length past every file"))?)
    }

    fn end(self) -> Result<(), BadRecord> {
        match self.bytes {
            [] => Ok(()),
            _ => Err(self.bad("bytes left over")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn() -> TurnRecord {
        TurnRecord {
            number: 7,
            start: 1234,
            time_ms: 99,
            question: 2,
            is_pinned: true,
            is_part: false,
            is_dated: false,
            tokens: vec![1, 2, 3],
            embedding: vec![5; 388],
        }
    }

    /// Every record reads back as it was written; cut anywhere it is an error and no panic.
    #[test]
    fn records_read_back() {
        let fact = FactRecord {
            number: 0,
            start: 5,
            time_ms: 8,
            supersedes: Some(0),
            found_in: None,
            tokens: vec![],
            text: "Ä fact.".into(),
        };
        let found = FactRecord {
            found_in: Some(6),
            ..fact.clone()
        };
        assert_eq!(FactRecord::read(&found.to_bytes()), Ok(found));
        let state = StateRecord {
            position: 77,
            turns_made: 3,
            facts_made: 2,
            forgotten: 10,
            time_ms: 5,
            visible: vec![1, 9],
            blocks: vec![0, 2],
            outline: vec![1, 2, 3],
            tail: vec![vec![], vec![4; 10]],
        };
        let changes = [
            LogChange::Moved {
                turn: 4,
                place: TurnPlace::Ids,
                start: 9,
            },
            LogChange::Forgotten { turn: 1 },
            LogChange::Revoked { fact: 2 },
            LogChange::Pinned {
                turn: 3,
                is_pinned: true,
            },
            LogChange::Renewed,
            LogChange::Verbatim { fact: 4, bytes: 12 },
            LogChange::Told { hash: 5 << 90 | 3 },
            LogChange::Excluded {
                turn: 8,
                is_excluded: true,
            },
        ];
        let limits = LimitsRecord {
            turn: 3,
            capacity: 99,
            own: SessionSettings {
                capacity: Some(0),
                relevance: Some(Relevance::default()),
                quota_bytes: Some(7),
                ..SessionSettings::default()
            },
            reason: "shrunk".into(),
        };
        assert_eq!(LimitsRecord::read(&limits.to_bytes()), Ok(limits.clone()));
        for (auto_facts, dates) in [
            (None, Some(true)),
            (Some(false), None),
            (Some(true), Some(false)),
        ] {
            let own = SessionSettings {
                auto_facts,
                dates,
                ..limits.own
            };
            let limits = LimitsRecord {
                own,
                ..limits.clone()
            };
            assert_eq!(LimitsRecord::read(&limits.to_bytes()), Ok(limits));
        }
        let part = TurnRecord {
            is_part: true,
            is_dated: true,
            ..turn()
        };
        assert_eq!(TurnRecord::read(&part.to_bytes()), Ok(part));
        assert_eq!(TurnRecord::read(&turn().to_bytes()), Ok(turn()));
        assert_eq!(FactRecord::read(&fact.to_bytes()), Ok(fact.clone()));
        assert_eq!(
            StateRecord::read(&state.clone().into_pieces().concat()),
            Ok(state.clone())
        );
        for change in changes {
            let bytes = change.to_bytes();
            assert_eq!(LogChange::read(&bytes), Ok(change));
            assert!((0..bytes.len()).all(|cut| LogChange::read(&bytes[..cut]).is_err()));
        }
        let cut = |bytes: &[u8], read: &dyn Fn(&[u8]) -> bool| {
            assert!((0..bytes.len()).all(|cut| !read(&bytes[..cut])));
            for at in 0..bytes.len() {
                let mut changed = bytes.to_vec();
                changed[at] = 0xff;
                read(&changed);
            }
        };
        cut(&turn().to_bytes(), &|b| TurnRecord::read(b).is_ok());
        cut(&limits.to_bytes(), &|b| LimitsRecord::read(b).is_ok());
        cut(&fact.to_bytes(), &|b| FactRecord::read(b).is_ok());
        cut(&state.into_pieces().concat(), &|b| {
            StateRecord::read(b).is_ok()
        });
    }

    /// The numbers that the tables of the documentation name, in their order, and where the first list begins.
    fn documented(section: &str, bytes: &[u8]) -> (Vec<u64>, Option<usize>) {
        let document = include_str!("../../../../docs/reference/session-files.md");
        let lines = document
            .lines()
            .skip_while(|line| !line.starts_with(section));
        let text: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
        let text = text.join(" ").replacen(section, "", 1);
        let words: Vec<&str> = text.split_whitespace().collect();
        let (mut numbers, mut list) = (Vec::new(), None);
        for pair in words.windows(2) {
            let Ok(at) = pair[0].parse::<usize>() else {
                continue;
            };
            match pair[1] {
                "u32" => {
                    numbers.push(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()).into())
                }
                "u64" => numbers.push(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())),
                kind if kind.starts_with('[') => list = list.or(Some(at)),
                _ => {}
            }
        }
        (numbers, list)
    }

    #[test]
    fn the_documented_byte_tables_are_true() {
        let of_turn = documented("turn, kind 1", &turn().to_bytes());
        assert_eq!(of_turn, (vec![7, 1234, 99, 2, 1], Some(32)));
        assert_eq!(turn().to_bytes()[32..40], 388u64.to_le_bytes());
        let fact = FactRecord {
            number: 4,
            start: 5,
            time_ms: 8,
            supersedes: Some(2),
            found_in: None,
            tokens: vec![1, 2],
            text: "A fact.".into(),
        };
        let of_fact = documented("fact, kind 2", &fact.to_bytes());
        assert_eq!(of_fact, (vec![4, 5, 8, 3], Some(32)));
        assert_eq!(fact.to_bytes()[32..40], 7u64.to_le_bytes());
        let moved = LogChange::Moved {
            turn: 4,
            place: TurnPlace::Ids,
            start: 9,
        };
        let verbatim = LogChange::Verbatim { fact: 4, bytes: 12 };
        let of_change = |change: LogChange| documented("change, kind 3", &change.to_bytes()).0;
        assert_eq!(of_change(moved), [0, 2, 4, 9]);
        assert_eq!(of_change(verbatim), [5, 0, 4, 12]);
        let state = StateRecord {
            position: 77,
            turns_made: 3,
            facts_made: 2,
            forgotten: 10,
            time_ms: 5,
            visible: vec![1, 9],
            blocks: vec![0],
            outline: vec![1],
            tail: vec![],
        };
        let limits = LimitsRecord {
            turn: 3,
            capacity: 99,
            ..LimitsRecord::default()
        };
        let of_limits = documented("limits, kind 6", &limits.to_bytes());
        assert_eq!(of_limits, (vec![3, 99, 0, 0, 0, 0, 0, 0, 0, 0], Some(72)));
        let bytes = state.into_pieces().concat();
        assert_eq!(
            documented("state, kind 5", &bytes),
            (vec![77, 3, 2, 10, 5], Some(40))
        );
        assert_eq!(bytes[40..48], 2u64.to_le_bytes());
    }
}
