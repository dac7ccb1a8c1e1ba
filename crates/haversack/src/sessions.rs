//! What conversations are asked between two steps of the scheduler.

use haversack_conversations::scheduler::Scheduler;
use haversack_conversations::session::date::date_of;
use haversack_conversations::session::{
    FactView, ListedSession, Owner, RemovedSession, SessionError, SessionId, SessionName,
    SessionSettings, SessionStats, Sessions, TurnView,
};
use haversack_engine::Runtime;
use haversack_engine::runtime::SequenceUsage;
use haversack_memory::clock::now_ms;

/// Everything there is to know about one conversation.
#[derive(Clone, Debug)]
pub struct ConversationView {
    /// What it holds, in memory and on disk.
    pub stats: SessionStats,
    /// What is set for it, or for all.
    pub settings: SessionSettings,
    /// Rows and bytes of its sequence.
    pub usage: SequenceUsage,
    /// Facts that hold, with their numbers.
    pub facts: Vec<FactView>,
    /// States that hold, with their numbers, which are those of turns.
    pub states: Vec<(u64, String)>,
    /// The last turns, the oldest first.
    pub turns: Vec<TurnView>,
}

/// Turns of a [`ConversationView`] unless the caller says how many.
pub const VIEW_TURNS_MAX: usize = 256;

/// Messages and their answers, the oldest first.
pub type History = Vec<(String, String)>;

/// The conversations of the folder, and those that its limits removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversationList {
    /// In the order of their names.
    pub sessions: Vec<ListedSession>,
    /// The latest last.
    pub removed: Vec<RemovedSession>,
}

pub(crate) fn list(
    scheduler: &mut Scheduler,
    owner: Owner,
) -> Result<ConversationList, SessionError> {
    scheduler.keep_session_limits(now_ms())?;
    let sessions = scheduler.sessions().ok_or(SessionError::NoSessions)?;
    Ok(ConversationList {
        sessions: sessions.list(owner)?,
        removed: sessions.removed(owner),
    })
}

/// Deletes the conversation of this name if there is one, whatever its file holds.
pub(crate) fn make_way(
    scheduler: &mut Scheduler,
    name: SessionName<'_>,
) -> Result<(), SessionError> {
    match exists(scheduler, name) {
        true => delete(scheduler, name),
        false => Ok(()),
    }
}

/// Opens the conversation of this name. `false`: there is none.
pub(crate) fn open(scheduler: &mut Scheduler, name: SessionName<'_>) -> Result<bool, SessionError> {
    if !exists(scheduler, name) {
        return Ok(false);
    }
    match scheduler.with_session(name, |_, _, _| Ok(true)) {
        // Its next turn opens it, once there is room.
        Err(error) if error.is_cannot_fit() => Ok(true),
        opened => opened,
    }
}

pub(crate) fn view(
    scheduler: &mut Scheduler,
    name: SessionName<'_>,
    max_turns: usize,
) -> Result<ConversationView, SessionError> {
    scheduler.with_session(name, |runtime, sessions, id| {
        let numbers: Vec<u64> = sessions.turns(id)?.iter().map(|turn| turn.number).collect();
        let last = &numbers[numbers.len().saturating_sub(max_turns)..];
        let turns: Result<Vec<TurnView>, SessionError> = last
            .iter()
            .map(|&number| sessions.turn(id, number))
            .collect();
        Ok(ConversationView {
            stats: sessions.stats(runtime, id)?,
            settings: sessions.settings(id)?,
            usage: SequenceUsage::new(runtime, sessions.sequence(id)?)?,
            facts: sessions.facts(id)?,
            states: states_of(sessions, id)?,
            turns: turns?,
        })
    })
}

/// What may tell a fact, and the facts so far.
pub(crate) struct SaidInTurn {
    pub text: String,
    pub time_ms: u64,
    /// In words, where the message was read with it.
    pub date: Option<String>,
    /// The message before it.
    pub before: Option<String>,
    pub facts: Vec<FactView>,
}

pub(crate) fn said(
    sessions: &Sessions,
    id: SessionId,
    number: u64,
) -> Result<SaidInTurn, SessionError> {
    // A state says what a program knows.
    let text = |view: TurnView| (!view.turn.is_state).then_some(view.text);
    let view = sessions.turn(id, number)?;
    let mut turns = sessions.turns(id)?.into_iter().rev();
    let before = turns.find(|turn| turn.number < number && !turn.is_state);
    let before = before
        .map(|turn| sessions.turn(id, turn.number))
        .transpose()?;
    Ok(SaidInTurn {
        time_ms: view.time_ms,
        date: view.is_dated.then(|| date_of(view.time_ms)),
        text: text(view).unwrap_or_default(),
        before: before.and_then(text),
        facts: sessions.facts(id)?,
    })
}

/// States that hold, with their numbers.
pub(crate) fn states(
    scheduler: &mut Scheduler,
    name: SessionName<'_>,
) -> Result<Vec<(u64, String)>, SessionError> {
    scheduler.with_session(name, |_, sessions, id| states_of(sessions, id))
}

fn states_of(sessions: &Sessions, id: SessionId) -> Result<Vec<(u64, String)>, SessionError> {
    let states = sessions.turns(id)?.into_iter().filter(|turn| turn.is_state);
    let text = |number| Ok((number, sessions.turn(id, number)?.text));
    states.map(|turn| text(turn.number)).collect()
}

/// How a conversation stands to a history that a caller has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewound {
    /// The history is what was said last: later turns, if there were any, are retracted.
    Same,
    /// The conversation went another way, and is as it was.
    Other,
    /// It began with another system text.
    OtherSystem,
    /// There is no conversation of this name.
    Absent,
}

/// Makes `history` what was said last: retracts the turns after it. An empty system text matches every beginning.
pub(crate) fn rewind(
    scheduler: &mut Scheduler,
    name: SessionName<'_>,
    system: &str,
    history: &History,
) -> Result<Rewound, SessionError> {
    if !exists(scheduler, name) {
        return Ok(Rewound::Absent);
    }
    let began = |sessions: &Sessions| match system.is_empty() {
        true => Ok(true),
        false => sessions.began_with(name, system),
    };
    let rewound = scheduler.with_session(name, |runtime, sessions, id| {
        Ok(match began(sessions)? {
            false => Rewound::OtherSystem,
            true if retract_after(runtime, sessions, id, history)? => Rewound::Same,
            true => Rewound::Other,
        })
    });
    match (rewound, scheduler.sessions()) {
        // Its next turn opens it, once there is room.
        (Err(error), Some(sessions)) if error.is_cannot_fit() && history.is_empty() => {
            Ok(match began(sessions)? {
                true => Rewound::Same,
                false => Rewound::OtherSystem,
            })
        }
        (rewound, _) => rewound,
    }
}

fn retract_after(
    runtime: &mut Runtime,
    sessions: &mut Sessions,
    id: SessionId,
    history: &History,
) -> Result<bool, SessionError> {
    // Messages with their parts.
    let mut messages: Vec<Vec<u64>> = Vec::new();
    let mut is_open = false;
    for turn in sessions.turns(id)?.into_iter().filter(|t| !t.is_state) {
        match messages.last_mut().filter(|_| is_open) {
            Some(parts) => parts.push(turn.number),
            None => messages.push(vec![turn.number]),
        }
        is_open = turn.is_part;
    }
    let Some(surplus) = messages.len().checked_sub(history.len()) else {
        return Ok(false);
    };
    // Each turn is read from the file once at most, and the last ones first: there they differ, if they do.
    let mut said: Vec<Option<SaidMessage>> = vec![None; messages.len()];
    for later in 0..=surplus {
        let start = surplus - later;
        let mut is_same = true;
        for (i, (question, answer)) in history.iter().enumerate().rev() {
            let message = match &mut said[start + i] {
                Some(message) => message,
                absent => {
                    let message = SaidMessage::new(sessions, id, &messages[start + i])?;
                    absent.insert(message)
                }
            };
            is_same = message.is(question, answer);
            if !is_same {
                break;
            }
        }
        if is_same {
            // Without a history nothing is compared, and nothing is retracted.
            for _ in 0..if history.is_empty() { 0 } else { later } {
                sessions.retract(runtime, id)?;
            }
            return Ok(true);
        }
    }
    Ok(false)
}

/// A message as a session has it.
#[derive(Clone)]
struct SaidMessage {
    text: String,
    answer: String,
    /// It was read in parts, which have lost the white space between them.
    has_parts: bool,
}

impl SaidMessage {
    fn new(sessions: &Sessions, id: SessionId, parts: &[u64]) -> Result<SaidMessage, SessionError> {
        let mut said = SaidMessage {
            text: String::new(),
            answer: String::new(),
            has_parts: parts.len() > 1,
        };
        for &number in parts {
            let turn = sessions.turn(id, number)?;
            said.text += &turn.text;
            said.answer = turn.answer;
        }
        Ok(said)
    }

    fn is(&self, question: &str, answer: &str) -> bool {
        let letters = |text: &'_ str| -> String { text.split_whitespace().collect() };
        let is_asked = match self.has_parts {
            false => self.text == question.trim(),
            true => letters(&self.text) == letters(question),
        };
        is_asked && self.answer.starts_with(answer.trim())
    }
}

/// A conversation without a file is deleted once it is closed.
pub(crate) fn delete(scheduler: &mut Scheduler, name: SessionName<'_>) -> Result<(), SessionError> {
    let sessions = scheduler.sessions();
    let is_in_memory_only = sessions.is_some_and(|s| s.options().dir.is_none() && s.exists(name));
    match scheduler.delete_session(name) {
        Err(SessionError::NoSuchSession { .. }) if is_in_memory_only => Ok(()),
        deleted => deleted,
    }
}

fn exists(scheduler: &Scheduler, name: SessionName<'_>) -> bool {
    scheduler.sessions().is_some_and(|s| s.exists(name))
}
