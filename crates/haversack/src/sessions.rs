//! What conversations are asked between two steps of the scheduler.

use crate::command::{ConversationCommand, ConversationView, History, VIEW_TURNS_MAX};
use haversack_conversations::scheduler::Scheduler;
use haversack_conversations::session::{
    ListedSession, SessionError, SessionId, Sessions, TurnView,
};
use haversack_engine::Runtime;
use haversack_memory::clock::now_ms;

pub(crate) fn execute(scheduler: &mut Scheduler, name: &str, command: ConversationCommand) {
    use ConversationCommand as C;
    match command {
        C::Open(system, reply) => reply.send(open(scheduler, name, &system)),
        C::Create(verbatim, persistent, reply) => {
            let created = scheduler.create_session(name, &verbatim, &persistent, now_ms());
            reply.send(created.and_then(|_| view(scheduler, name)));
        }
        C::View(reply) => reply.send(view(scheduler, name)),
        C::Fork(to, reply) => {
            let forked = scheduler.fork_session(name, &to);
            reply.send(forked.and_then(|_| view(scheduler, &to)));
        }
        C::Delete(reply) => reply.send(delete(scheduler, name)),
        C::Rewind(system, history, reply) => {
            reply.send(rewind(scheduler, name, &system, &history));
        }
        C::AddFact(text, supersedes, reply) => {
            let added = scheduler.with_session(name, |runtime, sessions, id| match supersedes {
                Some(fact) => sessions.supersede(runtime, id, fact, &text, now_ms()),
                None => sessions.add_fact(runtime, id, &text, now_ms()),
            });
            reply.send(added);
        }
        C::RevokeFact(number, reply) => reply
            .send(scheduler.with_session(name, |runtime, all, id| all.revoke(runtime, id, number))),
        C::Recall(turn, reply) => {
            reply.send(scheduler.with_session(name, |_, all, id| all.recall(id, turn)));
        }
        C::Retract(reply) => {
            reply.send(scheduler.with_session(name, |runtime, all, id| all.retract(runtime, id)));
        }
    }
}

pub(crate) fn list(scheduler: &Scheduler) -> Result<Vec<ListedSession>, SessionError> {
    scheduler.sessions().ok_or(SessionError::NoSessions)?.list()
}

/// Creates the conversation if there is none of this name.
fn open(scheduler: &mut Scheduler, name: &str, system: &str) -> Result<(), SessionError> {
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

fn view(scheduler: &mut Scheduler, name: &str) -> Result<ConversationView, SessionError> {
    scheduler.with_session(name, |runtime, sessions, id| {
        let facts = sessions.facts(id)?.into_iter();
        let facts = facts.map(|(number, text)| (number, text.to_owned()));
        let numbers: Vec<u64> = sessions.turns(id)?.iter().map(|turn| turn.number).collect();
        let last = &numbers[numbers.len().saturating_sub(VIEW_TURNS_MAX)..];
        let turns: Result<Vec<TurnView>, SessionError> = last
            .iter()
            .map(|&number| sessions.turn(id, number))
            .collect();
        Ok(ConversationView {
            stats: sessions.stats(runtime, id)?,
            facts: facts.collect(),
            turns: turns?,
        })
    })
}

/// Makes `history` what was said last: a new conversation is told it, an existing one retracts the turns after it.
/// `false`: the conversation went another way, and is as it was.
fn rewind(
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
fn delete(scheduler: &mut Scheduler, name: &str) -> Result<(), SessionError> {
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
