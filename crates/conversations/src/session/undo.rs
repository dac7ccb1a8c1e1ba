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
    /// The rebuild that is read along with the answer.
    pub rebuild: Option<RebuildReading>,
}

/// Undos of turns that were dropped.
#[derive(Clone, Default)]
pub(super) struct DroppedTurns(Arc<Mutex<Vec<TurnUndo>>>);

impl DroppedTurns {
    pub fn take(&self) -> Vec<TurnUndo> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn guard(&self, undo: TurnUndo) -> UndoOnDrop {
        UndoOnDrop {
            undo: Some(undo),
            dropped: self.clone(),
        }
    }
}

/// Undoes a turn unless it is committed.
pub(super) struct UndoOnDrop {
    undo: Option<TurnUndo>,
    dropped: DroppedTurns,
}

impl UndoOnDrop {
    pub fn set_rebuild(&mut self, rebuild: Option<RebuildReading>) {
        if let Some(undo) = &mut self.undo {
            undo.rebuild = rebuild;
        }
    }

    pub fn rebuild(&mut self) -> Option<&mut RebuildReading> {
        self.undo.as_mut()?.rebuild.as_mut()
    }

    /// The turn has become part of the conversation.
    pub fn commit(mut self) -> Option<TurnUndo> {
        self.undo.take()
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
