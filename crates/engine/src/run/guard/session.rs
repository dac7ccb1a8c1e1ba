//! The guard of a runtime: canaries of its sequences, the rows of a layer that leave, and the debt.

use super::choose::Counts;
use super::{Ask, Guard, GuardParams, Row, Tools};
use crate::model::forward::Scratch;
use crate::run::runtime::{Runtime, StepError};
use haversack_cache::policy::heavy::{self, HeavyParams};
use haversack_cache::{Account, SequenceId, Store};
use haversack_kernels::Exec;
use haversack_kernels::cpu::Table;
use haversack_kernels::threads::Pool;

impl Runtime {
    /// A new sequence, or one that goes on from another, with its canaries.
    pub(in crate::run) fn with_ring(
        &mut self,
        from: Option<SequenceId>,
    ) -> Result<SequenceId, StepError> {
        self.charge_rings(1)?;
        let made = match from {
            Some(from) => self.store.fork(from),
            None => self.store.open(),
        };
        let made = made.and_then(|id| {
            let Some(canaries) = &mut self.scratch.canaries else {
                return Ok(id);
            };
            let ring = match from {
                Some(from) => canaries.fork(from, id),
                None => canaries.open(id),
            };
            if let Err(error) = ring {
                self.store.close(id)?;
                return Err(error);
            }
            Ok(id)
        });
        self.charge_rings(0)?;
        Ok(made?)
    }

    /// Books the canaries of all sequences, and of `more` to be opened.
    pub(in crate::run) fn charge_rings(&mut self, more: usize) -> Result<(), StepError> {
        let Some(canaries) = &self.scratch.canaries else {
            return Ok(());
        };
        let bytes = self.side_bytes + canaries.bytes_with(more);
        Ok(self.store.charge(Account::Side, bytes)?)
    }

    /// Predicted KL of everything that left a sequence so far, where a guard looks at it.
    pub fn quality_debt(&self, id: SequenceId) -> Option<f64> {
        Some(self.guard.as_ref()?.debt(id))
    }

    pub fn guard_params(&self) -> Option<GuardParams> {
        Some(self.guard.as_ref()?.params())
    }

    /// Another prediction or bound from now on, where there is a guard.
    pub fn set_guard(&mut self, params: GuardParams) {
        if let Some(guard) = &mut self.guard {
            guard.set_params(params);
        }
    }

    /// What a guard works with, if there is one.
    pub(super) fn guarded(&mut self) -> Option<(&mut Guard, &Pool, &Store, &mut Scratch)> {
        let guard = self.guard.as_mut()?;
        Some((guard, &self.pool, &self.store, &mut self.scratch))
    }

    pub(super) fn table(&self) -> Table {
        self.table
    }

    pub(super) fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    /// The rows of `loose` that leave, first: the policy's choice, or the guard's among those and the next.
    pub(in crate::run) fn choose_guarded(
        &mut self,
        id: SequenceId,
        layer: usize,
        leave: usize,
        position: u64,
        params: &HeavyParams,
    ) -> Result<usize, StepError> {
        let Some(guard) = &mut self.guard else {
            return Ok(heavy::choose(&mut self.loose, position, leave, params));
        };
        let most = guard.candidates(leave);
        let most = heavy::choose(&mut self.loose, position, most, params);
        let rows = &mut self.loose[..most];
        let leave = heavy::choose(rows, position, leave, params);
        let is_fixed = |row: &&Row| row.position < params.oldest;
        let ask = Ask {
            id,
            layer,
            position,
            fixed: rows.iter().filter(is_fixed).count(),
            rows,
            counts: Counts {
                must: leave,
                may: leave,
            },
        };
        let tools = Tools {
            config: self.model.config(),
            exec: Exec {
                table: self.table,
                pool: &self.pool,
            },
            store: &self.store,
            scratch: &mut self.scratch,
        };
        Ok(guard.judge(tools, ask)?)
    }
}
