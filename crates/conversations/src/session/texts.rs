//! Texts of sessions in tokens: limits are checked, and tokens and embeddings made, on the caller's thread.

use super::condense::{Condense, CondensePiece};
use super::condensing::CondenseOutcome;
use super::date::dated;
use super::embed::Embed;
use super::error::{SessionError, SessionResult};
use super::folder::SessionFolder;
use super::layout::ChatLayout;
use super::limits::{SessionLimits, SessionRoom, SessionSettings};
use super::open_session::{check_persistent, stored_bytes};
use super::options::SessionOptions;
use super::owner::Owner;
use super::parts::message_parts;
use super::rebuild::{CondenseAim, condense_opening};
use haversack_text::tokenizer::EncodeOptions;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Most turns of a history.
pub const HISTORY_TURNS_MAX: usize = 4096;

/// Most tokens of a history.
pub const HISTORY_TOKENS_MAX: usize = 1 << 18;

/// Makes tokens of texts, and refuses those that no session takes. For any thread: it needs no runtime.
#[derive(Clone)]
pub struct SessionTexts {
    pub(super) layout: Arc<ChatLayout>,
    pub(super) options: Arc<SessionOptions>,
    pub(super) encoder: Option<Arc<dyn Embed>>,
    pub(super) condenser: Arc<dyn Condense>,
    pub(super) room: SessionRoom,
    /// What a session may hold where nothing else is set.
    pub(super) usual: SessionLimits,
}

/// What a new session begins with.
#[derive(Clone, Debug)]
pub struct Opening {
    pub(super) piece: CondensePiece,
    pub(super) tokens: Vec<u32>,
    pub(super) outcome: Option<CondenseOutcome>,
    /// What is set for this session alone.
    pub(super) own: SessionSettings,
    /// As it was told, where condensing has changed it.
    pub(super) told: Option<String>,
}

/// A turn that took place elsewhere.
#[derive(Clone, Debug)]
pub struct ToldTurn {
    /// Of the question, the answer and its ending.
    pub(super) tokens: Vec<u32>,
    /// How many of them are the question's.
    pub(super) question: usize,
    /// The message goes on in the next turn.
    pub(super) is_part: bool,
    /// When it was said, where that is known.
    pub(super) time_ms: Option<u64>,
    pub(super) is_dated: bool,
    /// As records have it.
    pub(super) embedding: Vec<u8>,
}

/// A text in tokens, with its embedding as records have it.
#[derive(Clone, Debug)]
pub struct ToldText {
    pub(super) text: String,
    pub(super) tokens: Vec<u32>,
    pub(super) embedding: Vec<u8>,
}

impl SessionTexts {
    /// How conversations of this model are written in tokens.
    pub fn layout(&self) -> &Arc<ChatLayout> {
        &self.layout
    }

    /// Where the sessions of an owner are saved, if they are.
    pub fn folder(&self, owner: Owner) -> Option<SessionFolder> {
        SessionFolder::of(&self.options).map(|folder| folder.of_owner(owner))
    }

    /// What a session begins with. A text over the limit is condensed; its first part `verbatim` never is.
    pub fn opening(&self, verbatim: &str, persistent: &str, now_ms: u64) -> SessionResult<Opening> {
        self.opening_with(verbatim, persistent, now_ms, SessionSettings::default())
    }

    /// The same of a session with settings of its own. What cannot be granted is refused. Where no setting limits what is
    /// persistent, a text that is longer than usual is kept whole if half of the room holds it with as much for facts as half
    /// the usual limit; it is noted among the session's settings. A longer one is condensed.
    pub fn opening_with(
        &self,
        verbatim: &str,
        persistent: &str,
        now_ms: u64,
        mut own: SessionSettings,
    ) -> SessionResult<Opening> {
        let limits =
            |own: SessionSettings| SessionLimits::of(&own.or(self.options.settings), &self.room);
        let mut granted = limits(own)?;
        let separator = match verbatim.is_empty() || persistent.is_empty() {
            true => "",
            false => "\n",
        };
        let piece = CondensePiece {
            text: format!("{verbatim}{separator}{persistent}"),
            verbatim: verbatim.len(),
        };
        let layout = &self.layout;
        let is_set = own.or(self.options.settings).persistent_max.is_some();
        let needs = layout.opening(&piece.text, now_ms)?.len() + granted.persistent_max / 2;
        if !is_set && needs > granted.persistent_max && needs <= self.room.rows / 2 {
            let larger = SessionSettings {
                persistent_max: Some(needs),
                ..own
            };
            if let Ok(limits) = limits(larger) {
                (own, granted) = (larger, limits);
            }
        }
        let aim = CondenseAim::of(&self.options, &granted);
        let told = piece.text.clone();
        let (piece, outcome) = condense_opening(&*self.condenser, layout, now_ms, piece, aim)?;
        let tokens = layout.opening(&piece.text, now_ms)?;
        check_persistent(tokens.len(), aim.max)?;
        Ok(Opening {
            piece,
            tokens,
            told: outcome.is_some().then_some(told),
            outcome,
            own,
        })
    }

    /// A question and the marker that begins the answer.
    pub fn question(&self, text: &str) -> SessionResult<Vec<u32>> {
        Ok(self.layout.question(text)?)
    }

    pub fn fact(&self, text: &str) -> SessionResult<ToldText> {
        let tokens = self.layout.fact(text)?;
        check_persistent(tokens.len(), self.usual.persistent_room())?;
        Ok(ToldText {
            text: text.to_owned(),
            tokens,
            embedding: Vec::new(),
        })
    }

    pub fn state(&self, text: &str) -> SessionResult<ToldText> {
        Ok(ToldText {
            text: text.to_owned(),
            tokens: self.layout.fact(text)?,
            embedding: self.embedding(text),
        })
    }

    /// Turns that took place elsewhere, the oldest first. `go_on` is asked before each: embedding many takes a while.
    pub fn history(
        &self,
        turns: &[(String, String)],
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> SessionResult<VecDeque<ToldTurn>> {
        self.dated_history(turns, &[], SessionSettings::default(), go_on)
    }

    /// The same of a session with settings of its own, with the times of its turns where they are known. Where messages have
    /// their date before them, these have it too.
    pub fn dated_history(
        &self,
        turns: &[(String, String)],
        times_ms: &[Option<u64>],
        own: SessionSettings,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> SessionResult<VecDeque<ToldTurn>> {
        let settings = own.or(self.options.settings);
        let max = HISTORY_TURNS_MAX;
        if turns.len() > max {
            let turns = turns.len();
            return Err(SessionError::HistoryTurns { turns, max });
        }
        let mut told = VecDeque::with_capacity(turns.len());
        let (mut tokens, max) = (0, HISTORY_TOKENS_MAX);
        let times_ms = times_ms.iter().copied().chain(std::iter::repeat(None));
        for ((question, answer), time_ms) in turns.iter().zip(times_ms) {
            if go_on().is_break() {
                return Err(SessionError::Stopped);
            }
            for turn in self.turn(question, answer, time_ms, settings)? {
                tokens += turn.tokens.len();
                if tokens > max {
                    return Err(SessionError::HistoryTokens { max });
                }
                told.push_back(turn);
            }
        }
        Ok(told)
    }

    /// A question and its answer, and before them the parts of a question that is too long.
    fn turn(
        &self,
        question: &str,
        answer: &str,
        time_ms: Option<u64>,
        settings: SessionSettings,
    ) -> SessionResult<Vec<ToldTurn>> {
        let date_ms = time_ms.filter(|_| settings.dates == Some(true));
        let is_dated = date_ms.is_some();
        let date = if is_dated { settings.date_tokens() } else { 0 };
        let plain = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        let tokenizer = self.layout.model().tokenizer();
        let answered = tokenizer.encode(answer, plain)?;
        self.usual.check_told_answer(answered.len())?;
        let ending = self.layout.ending()?;
        let limits = self.usual.with_shorter_parts(date);
        let (room, beside) = (limits.capacity, answered.len() + ending.len() + date);
        let mut parts = message_parts(&self.layout, question, &limits, room, beside)?;
        let question = parts.pop_back().unwrap_or_default();
        let mut turns = Vec::new();
        for part in parts {
            let tokens = self.layout.fact(&dated(&part, date_ms))?;
            turns.push(ToldTurn {
                question: tokens.len(),
                tokens,
                is_part: true,
                time_ms,
                is_dated,
                embedding: self.embedding(&part),
            });
        }
        let mut tokens = self.layout.question(&dated(&question, date_ms))?;
        let asked = tokens.len();
        tokens.extend(answered);
        tokens.extend_from_slice(ending);
        turns.push(ToldTurn {
            question: asked,
            tokens,
            is_part: false,
            time_ms,
            is_dated,
            embedding: self.embedding(&format!("{question}\n{answer}")),
        });
        Ok(turns)
    }

    /// Empty without an encoder: the turn is then not judged.
    fn embedding(&self, text: &str) -> Vec<u8> {
        let encoder = self.encoder.as_deref();
        stored_bytes(encoder.and_then(|encoder| encoder.embed(text).ok()))
    }
}
