//! What a session may hold: from what was asked for, and from what budget and context allow. Pure.
//!
//! ```text
//! rows of one sequence = persistent stream │ turns in memory (capacity) │ slack of a step │ spare, with a budget
//! ```
//!
//! Limits are fixed when a session is opened, and its file records them. Other sessions and requests never change them.
//! What cannot be granted is refused with the largest value that can.

use super::date::DATE_TOKENS_MAX;
use super::relevance::Relevance;

/// Why a session cannot have what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    #[error("{name} {asked}: {bound} has no room for it; accepted: 1 to {max}")]
    Setting {
        name: &'static str,
        asked: usize,
        max: usize,
        bound: &'static str,
    },
    #[error("the budget leaves {room} tokens for a conversation; accepted: at least {min}")]
    Room { room: usize, min: usize },
    #[error("an answer of {tokens} tokens; accepted in this session: 1 to {max}")]
    Answer { tokens: usize, max: usize },
}

/// Fewest tokens of turns in memory that make a conversation.
const CAPACITY_MIN: usize = 128;

/// A shortage of the device lowers no capacity below this: the session is a small part of what is missing.
pub const SHRUNK_MIN: usize = 512;

/// Most tokens of a part of a message that is read in parts: about what a sentence encoder reads of a text.
const PART_TOKENS: usize = 256;

/// Tokens of an answer where no setting names a number, if the capacity is four times that.
const ANSWER_USUAL: usize = 1024;

/// Room for the tokens that end an answer.
const ENDING_TOKENS: usize = 16;

/// Smallest default quota of a session file.
const QUOTA_BYTES_MIN: u64 = 256 << 20;

/// What a caller sets for a session; `None` = from context and budget.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SessionSettings {
    /// Tokens of turns in memory, the turn in progress included.
    pub capacity: Option<usize>,
    /// Tokens of an answer: the most that may be asked for, and what a question gets that asks for no number.
    pub answer_max: Option<usize>,
    /// Tokens of the persistent stream; a longer one is condensed. Until that is done it may be half as long again.
    pub persistent_max: Option<usize>,
    pub relevance: Option<Relevance>,
    /// Largest size of the session's file.
    pub quota_bytes: Option<u64>,
    /// What runs the session finds lasting facts in what the user says, and adds them.
    pub auto_facts: Option<bool>,
    /// The date goes before what the user says, as part of the text.
    pub dates: Option<bool>,
}

impl SessionSettings {
    /// With `usual` where nothing is set.
    pub fn or(self, usual: SessionSettings) -> SessionSettings {
        SessionSettings {
            capacity: self.capacity.or(usual.capacity),
            answer_max: self.answer_max.or(usual.answer_max),
            persistent_max: self.persistent_max.or(usual.persistent_max),
            relevance: self.relevance.or(usual.relevance),
            quota_bytes: self.quota_bytes.or(usual.quota_bytes),
            auto_facts: self.auto_facts.or(usual.auto_facts),
            dates: self.dates.or(usual.dates),
        }
    }

    /// Tokens before a message beside its own, at most.
    pub fn date_tokens(&self) -> usize {
        match self.dates {
            Some(true) => DATE_TOKENS_MAX,
            _ => 0,
        }
    }
}

/// A change of how many tokens of turns a session keeps in memory. Replayed at the same turns, the changes give the
/// same answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityChange {
    /// The first turn that it holds for.
    pub turn: u64,
    pub capacity: u64,
    pub reason: String,
}

/// What a runtime has room for with one session and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRoom {
    /// Rows of a sequence at most, and what bounds them.
    pub rows: usize,
    pub bound: &'static str,
    /// Rows beside those of the streams.
    pub slack: usize,
    /// Rows that are left free unless a capacity is set: lists of sessions are charged to the same budget.
    pub spare: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes of a sequence as long as the context.
    pub context_bytes: u64,
}

impl SessionRoom {
    /// With `bytes` of the budget taken, where it is what bounds a session.
    pub fn beside(self, bytes: usize) -> SessionRoom {
        let rows = match self.spare {
            0 => 0,
            _ => bytes.div_ceil(self.row_bytes.max(1)),
        };
        SessionRoom {
            spare: self.spare + rows,
            ..self
        }
    }
}

/// What one session may hold. Plain data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionLimits {
    /// Tokens of turns in memory, the turn in progress included.
    pub capacity: usize,
    /// Tokens of one part of a message that is too long to be read whole.
    pub part_max: usize,
    /// Tokens of an answer at most.
    pub answer_max: usize,
    /// Tokens of an answer where the question asks for no number.
    pub answer_usual: usize,
    pub persistent_max: usize,
    pub relevance: Relevance,
    pub quota_bytes: u64,
}

impl SessionLimits {
    /// Grants what is set, and fills in the rest; or says what cannot be granted.
    pub fn of(settings: &SessionSettings, room: &SessionRoom) -> Result<SessionLimits, LimitError> {
        let refuse = |name, asked: usize, max: usize| {
            Err(LimitError::Setting {
                name,
                asked,
                max,
                bound: room.bound,
            })
        };
        let rows = room.rows.saturating_sub(room.slack);
        let persistent_usual = (room.rows / 8).max(512.min(room.rows / 3));
        let capacity_min = CAPACITY_MIN.min(settings.capacity.unwrap_or(CAPACITY_MIN));
        let persistent_room = rows.saturating_sub(capacity_min);
        let persistent_usual = persistent_usual.min(persistent_room);
        let persistent_max = settings.persistent_max.unwrap_or(persistent_usual);
        if settings.persistent_max.is_some() && persistent_max > persistent_room {
            return refuse("persistent", persistent_max, persistent_room);
        }
        let capacity_max = rows.saturating_sub(persistent_max);
        if capacity_max < capacity_min {
            return Err(LimitError::Room {
                room: room.rows,
                min: persistent_max + room.slack + CAPACITY_MIN,
            });
        }
        let spared = capacity_max.saturating_sub(room.spare).max(CAPACITY_MIN);
        let capacity = settings.capacity.unwrap_or(spared.min(capacity_max));
        if capacity > capacity_max {
            return refuse("capacity", capacity, capacity_max);
        }
        let quota_usual = QUOTA_BYTES_MIN.max(room.context_bytes.saturating_mul(4));
        let limits = SessionLimits {
            capacity: 0,
            part_max: 0,
            answer_max: 0,
            answer_usual: 0,
            persistent_max,
            relevance: Relevance::default(),
            quota_bytes: settings.quota_bytes.unwrap_or(quota_usual),
        }
        .with_capacity(capacity, settings);
        match settings.answer_max {
            Some(asked) if asked > limits.answer_room() => {
                refuse("answer", asked, limits.answer_room())
            }
            _ => Ok(limits),
        }
    }

    /// The same with another capacity, and what follows from it.
    pub fn with_capacity(self, capacity: usize, settings: &SessionSettings) -> SessionLimits {
        let limits = SessionLimits {
            capacity,
            part_max: PART_TOKENS.min(capacity / 4).max(1),
            relevance: settings.relevance.unwrap_or_default(),
            ..self
        };
        let room = limits.answer_room();
        let usual = ANSWER_USUAL.min(capacity / 4).min(room).max(1);
        SessionLimits {
            answer_max: settings.answer_max.map_or(room, |max| max.min(room)),
            answer_usual: settings.answer_max.map_or(usual, |max| max.min(room)),
            ..limits
        }
    }

    /// Most tokens of the persistent stream while it is not condensed yet.
    pub fn persistent_room(&self) -> usize {
        self.persistent_max.saturating_add(self.persistent_max / 2)
    }

    /// Tokens of the longest answer to a short question.
    fn answer_room(&self) -> usize {
        let beside = self.part_max + ENDING_TOKENS;
        self.capacity.saturating_sub(beside).max(1)
    }

    /// With parts of messages that have `tokens` before them.
    pub fn with_shorter_parts(self, tokens: usize) -> SessionLimits {
        SessionLimits {
            part_max: self.part_max.saturating_sub(tokens).max(1),
            ..self
        }
    }

    /// Tokens of an answer to a question that asks for this many, or for no number.
    pub fn answer(&self, asked: Option<usize>) -> Result<usize, LimitError> {
        match asked {
            None => Ok(self.answer_usual),
            Some(asked) if asked <= self.answer_max => Ok(asked),
            Some(asked) => Err(self.no_answer(asked)),
        }
    }

    /// Whether an answer that was given elsewhere is none, or longer than the session allows.
    pub fn check_told_answer(&self, tokens: usize) -> Result<(), LimitError> {
        match (1..=self.answer_max).contains(&tokens) {
            true => Ok(()),
            false => Err(self.no_answer(tokens)),
        }
    }

    fn no_answer(&self, tokens: usize) -> LimitError {
        let max = self.answer_max;
        LimitError::Answer { tokens, max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(rows: usize, spare: usize) -> SessionRoom {
        SessionRoom {
            rows,
            bound: "the context",
            slack: 256,
            spare,
            row_bytes: 1000,
            context_bytes: 100 << 20,
        }
    }

    fn of(settings: SessionSettings, rows: usize) -> Result<SessionLimits, LimitError> {
        SessionLimits::of(&settings, &room(rows, 0))
    }

    #[test]
    fn limits_follow_the_room() {
        let nothing = SessionSettings::default();
        let small = of(nothing, 2304).unwrap();
        assert_eq!((small.persistent_max, small.capacity), (512, 1536));
        let large = of(nothing, 32_768).unwrap();
        assert_eq!((large.persistent_max, large.capacity), (4096, 28_416));
        assert!(large.answer_max > 20_000 && large.answer_usual == 1024);
        assert!(large.answer(Some(20_000)).is_ok());
        let spared = SessionLimits::of(&nothing, &room(32_768, 2048)).unwrap();
        assert_eq!(spared.capacity, large.capacity - 2048);
        assert_eq!(large.quota_bytes, 400 << 20);
    }

    /// Every refusal names what would be accepted, and that is accepted.
    #[test]
    fn what_cannot_be_granted_is_refused_with_the_largest_that_can() {
        let with = |capacity, answer_max, persistent_max| SessionSettings {
            capacity,
            answer_max,
            persistent_max,
            ..SessionSettings::default()
        };
        type Make = fn(usize) -> SessionSettings;
        let makes: [Make; 3] = [
            |n| SessionSettings {
                capacity: Some(n),
                ..SessionSettings::default()
            },
            |n| SessionSettings {
                answer_max: Some(n),
                ..SessionSettings::default()
            },
            |n| SessionSettings {
                persistent_max: Some(n),
                ..SessionSettings::default()
            },
        ];
        for make in makes {
            let Err(LimitError::Setting { max, .. }) = of(make(100_000), 8192) else {
                panic!("not refused");
            };
            assert!(of(make(max), 8192).is_ok());
            assert!(of(make(max + 1), 8192).is_err());
        }
        let error = of(with(Some(9000), None, None), 8192).unwrap_err();
        assert_eq!(
            error.to_string(),
            "capacity 9000: the context has no room for it; accepted: 1 to 6912"
        );
        assert!(matches!(
            of(with(None, None, None), 250),
            Err(LimitError::Room { .. })
        ));
        // A capacity that is set may be as small as one likes.
        assert_eq!(
            of(with(Some(40), Some(8), Some(40)), 400).unwrap().capacity,
            40
        );
        let limits = of(with(None, Some(12), None), 8192).unwrap();
        assert_eq!(limits.answer(None).unwrap(), 12);
        assert!(limits.answer(Some(13)).is_err());
    }
}
