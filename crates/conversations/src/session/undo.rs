//! Undo of turns: a turn that is dropped before it is committed leaves what restores its session.
//!
//! Undoing closes a sequence, which needs the runtime, and `Drop` has none. So a dropped turn puts its undo into a list
//! that [`super::Sessions`] applies before it does anything else.

use super::condensing::RebuildReading;
use super::slots::SessionId;
use super::transcript::Deferred;
use haversack_engine::runtime::SequenceId;
use std::sync::{Arc, Mutex, PoisonError};

/// What a turn took from its session, and the sequence as it was before the first token of the question.
pub(super) struct TurnUndo {
    pub session: SessionId,
    pub backup: SequenceId,
    pub deferred: Deferred,
    /// Parts of the message that are turns already.
    pub told: Vec<u64>,
    /// The rebuild that is read along with the answer.
    pub rebuild: Option<RebuildReading>,
}

/// What undoes something that a session reads.
pub(super) enum Undo {
    Turn(Box<TurnUndo>),
    /// The session did not come to be.
    NewSession(SessionId),
}

/// Undos of turns and reads that were dropped.
#[derive(Clone, Default)]
pub(super) struct DroppedTurns(Arc<Mutex<Vec<Undo>>>);

impl DroppedTurns {
    pub fn take(&self) -> Vec<Undo> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn guard(&self, undo: Undo) -> UndoOnDrop {
        UndoOnDrop {
            undo: Some(undo),
            dropped: self.clone(),
        }
    }
}

/// Undoes a turn or a read unless it is committed.
pub(super) struct UndoOnDrop {
    undo: Option<Undo>,
    dropped: DroppedTurns,
}

impl UndoOnDrop {
    pub fn set_rebuild(&mut self, rebuild: Option<RebuildReading>) {
        if let Some(Undo::Turn(undo)) = &mut self.undo {
            undo.rebuild = rebuild;
        }
    }

    pub fn rebuild(&mut self) -> Option<&mut RebuildReading> {
        match self.undo.as_mut()? {
            Undo::Turn(undo) => undo.rebuild.as_mut(),
            Undo::NewSession(_) => None,
        }
    }

    /// The turn has become part of the conversation, or the session has come to be.
    pub fn commit(&mut self) -> Option<TurnUndo> {
        match self.undo.take()? {
            Undo::Turn(undo) => Some(*undo),
            Undo::NewSession(_) => None,
        }
    }
}

impl Drop for UndoOnDrop {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            let mut dropped = self
                .dropped
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            dropped.push(undo);
        }
    }
}
