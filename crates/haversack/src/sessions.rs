//! What conversations are asked between two steps of the scheduler.

use haversack_conversations::scheduler::Scheduler;
use haversack_conversations::session::{
    ListedSession, SessionError, SessionId, SessionStats, Sessions, TurnView,
};
use haversack_engine::Runtime;
use haversack_engine::runtime::SequenceUsage;
use haversack_memory::clock::now_ms;

/// Everything there is to know about one conversation.
#[derive(Clone, Debug)]
pub struct ConversationView {
    pub stats: SessionStats,
    /// Rows and bytes of its sequence.
    pub usage: SequenceUsage,
    /// Facts that hold, with their numbers.
    pub facts: Vec<(u64, String)>,
    /// The last turns, the oldest first.
    pub turns: Vec<TurnView>,
}

/// Turns of a [`ConversationView`] unless the caller says how many.
pub const VIEW_TURNS_MAX: usize = 256;

/// Messages and their answers, the oldest first.
pub type History = Vec<(String, String)>;

pub(crate) fn list(scheduler: &Scheduler) -> Result<Vec<ListedSession>, SessionError> {
    scheduler.sessions().ok_or(SessionError::NoSessions)?.list()
}

/// Creates the conversation if there is none of this name.
pub(crate) fn open(
    scheduler: &mut Scheduler,
    name: &str,
    system: &str,
) -> Result<(), SessionError> {
    if !exists(scheduler, name) {
        scheduler.create_session(name, "", system, now_ms())?;
        return Ok(());
    }
    match scheduler.with_session(name, |_, _, _| Ok(())) {
        // Its next turn opens it, once there is room.
        Err(error) if error.is_cannot_fit() => Ok(()),
        opened => opened,
    }
}

pub(crate) fn view(
    scheduler: &mut Scheduler,
    name: &str,
    max_turns: usize,
) -> Result<ConversationView, SessionError> {
    scheduler.with_session(name, |runtime, sessions, id| {
        let facts = sessions.facts(id)?.into_iter();
        let facts = facts.map(|(number, text)| (number, text.to_owned()));
        let numbers: Vec<u64> = sessions.turns(id)?.iter().map(|turn| turn.number).collect();
        let last = &numbers[numbers.len().saturating_sub(max_turns)..];
        let turns: Result<Vec<TurnView>, SessionError> = last
            .iter()
            .map(|&number| sessions.turn(id, number))
            .collect();
        Ok(ConversationView {
            stats: sessions.stats(runtime, id)?,
            usage: SequenceUsage::new(runtime, sessions.sequence(id)?)?,
            facts: facts.collect(),
            turns: turns?,
        })
    })
}

/// Makes `history` what was said last: a new conversation is told it, an existing one retracts the turns after it.
/// `false`: the conversation went another way, and is as it was.
pub(crate) fn rewind(
    scheduler: &mut Scheduler,
    name: &str,
    system: &str,
    history: &History,
) -> Result<bool, SessionError> {
    if exists(scheduler, name) {
        let rewound = scheduler.with_session(name, |runtime, sessions, id| {
            retract_after(runtime, sessions, id, history)
        });
        return match rewound {
            // Its next turn opens it, once there is room.
            Err(error) if error.is_cannot_fit() && history.is_empty() => Ok(true),
            rewound => rewound,
        };
    }
    let now = now_ms();
    scheduler.create_session(name, "", system, now)?;
    scheduler.with_session(name, |runtime, sessions, id| {
        for (question, answer) in history {
            sessions.tell(runtime, id, question, answer, now)?;
        }
        Ok(true)
    })
}

fn retract_after(
    runtime: &mut Runtime,
    sessions: &mut Sessions,
    id: SessionId,
    history: &History,
) -> Result<bool, SessionError> {
    if history.is_empty() {
        return Ok(true);
    }
    let turns = sessions.turns(id)?.into_iter().filter(|t| !t.is_state);
    let numbers: Vec<u64> = turns.map(|turn| turn.number).collect();
    for later in 0..numbers.len() {
        let end = numbers.len() - later;
        let Some(start) = end.checked_sub(history.len()) else {
            return Ok(false);
        };
        let mut pairs = numbers[start..end].iter().zip(history);
        let is_equal = pairs.try_fold(true, |so_far, (&number, (question, answer))| {
            let turn = sessions.turn(id, number)?;
            let said = turn.text == question.trim() && turn.answer.starts_with(answer.trim());
            Ok::<bool, SessionError>(so_far && said)
        })?;
        if is_equal {
            for _ in 0..later {
                sessions.retract(runtime, id)?;
            }
            return Ok(true);
        }
    }
    Ok(false)
}

/// A conversation without a file is deleted once it is closed.
pub(crate) fn delete(scheduler: &mut Scheduler, name: &str) -> Result<(), SessionError> {
    let sessions = scheduler.sessions();
    let is_in_memory_only = sessions.is_some_and(|s| s.options().dir.is_none() && s.exists(name));
    match scheduler.delete_session(name) {
        Err(SessionError::NoSuchSession { .. }) if is_in_memory_only => Ok(()),
        deleted => deleted,
    }
}

fn exists(scheduler: &Scheduler, name: &str) -> bool {
    scheduler.sessions().is_some_and(|s| s.exists(name))
}
