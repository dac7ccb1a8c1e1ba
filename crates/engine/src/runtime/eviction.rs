//! The guard of a runtime: canaries of its sequences, the rows of a layer that leave, and the debt.

use crate::kv_quality::guard::choose::Counts;
use crate::kv_quality::guard::{Ask, Guard, GuardParams, Row, Tools};
use crate::model::forward::Scratch;
use crate::runtime::step::{Runtime, StepError};
use haversack_cache::policy::explain::RowPlan;
use haversack_cache::policy::rows::{LayerView, RowPolicy};
use haversack_cache::{Account, CacheError, Noting, SequenceId, Store};
use haversack_kernels::Exec;
use haversack_kernels::cpu::Table;
use haversack_kernels::threads::Pool;

impl Runtime {
    /// A new sequence of which so much is remembered, with its canaries.
    pub(super) fn open_ring(&mut self, noting: Option<Noting>) -> Result<SequenceId, StepError> {
        self.with_ring(None, |store| store.open_noting(noting))
    }

    /// One that goes on from another, with its canaries.
    pub(super) fn fork_ring(&mut self, from: SequenceId) -> Result<SequenceId, StepError> {
        self.with_ring(Some(from), |store| store.fork(from))
    }

    fn with_ring(
        &mut self,
        from: Option<SequenceId>,
        make: impl FnOnce(&mut Store) -> Result<SequenceId, CacheError>,
    ) -> Result<SequenceId, StepError> {
        self.charge_rings(1)?;
        let made = make(&mut self.store);
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
    pub(super) fn charge_rings(&mut self, more: usize) -> Result<(), StepError> {
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
    pub(crate) fn guarded(&mut self) -> Option<(&mut Guard, &Pool, &Store, &mut Scratch)> {
        let guard = self.guard.as_mut()?;
        Some((guard, &self.pool, &self.store, &mut self.scratch))
    }

    pub(crate) fn table(&self) -> Table {
        self.table
    }

    pub(crate) fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    /// The rows of `loose` that leave, first: the policy's choice, or the guard's among those and the next. What must
    /// leave for the cap does; what leaves by a threshold may stay.
    pub(super) fn choose_guarded(
        &mut self,
        id: SequenceId,
        policy: &RowPolicy,
        limits: &Limits,
        words: Option<&mut RowPlan>,
    ) -> Result<usize, StepError> {
        let &Limits {
            layer,
            anchors,
            most,
            oldest,
            used,
        } = limits;
        let view = LayerView {
            most,
            oldest,
            used,
            ..self.store.layer_view(id, layer, anchors)?
        };
        let mut leave = policy.choose(&view, &mut self.loose);
        if leave > 0
            && let Some(guard) = &mut self.guard
            && let Some(stands_for) = guard.stands_for(layer, view.position, policy.has_threshold())
        {
            let mut candidates = leave;
            if let RowPolicy::Heavy(_) = policy {
                // A lower cap lets the next ones go too; of all those the policy's own come first again.
                let more = guard.candidates(leave) - leave;
                let lower = LayerView {
                    most: most.saturating_sub(more),
                    ..view.clone()
                };
                candidates = policy.choose(&lower, &mut self.loose);
                leave = policy.choose(&view, &mut self.loose[..candidates]);
            }
            let rows = &mut self.loose[..candidates];
            let is_fixed = |row: &&Row| row.position < oldest;
            let fixed = rows.iter().filter(is_fixed).count();
            let ask = Ask {
                id,
                layer,
                position: view.position,
                fixed,
                counts: Counts {
                    must: leave.min(view.rows.saturating_sub(most).max(fixed)),
                    may: leave,
                },
                stands_for,
                rows,
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
            leave = guard.judge(tools, ask)?;
        }
        if let Some(words) = words {
            words.add(policy, &view, &self.loose[..leave]);
        }
        Ok(leave)
    }
}

/// What a layer may keep.
pub(super) struct Limits {
    pub layer: usize,
    pub anchors: u64,
    pub most: usize,
    pub oldest: u64,
    pub used: f32,
}
