//! Attention that is counted in one layer of a step, on its way from the kernels to the store's notes.

use super::LayerConfig;
use super::forward::Span;
use haversack_cache::policy::count::Counting;
use haversack_cache::{CacheError, SequenceId, Store};
use haversack_kernels::attention::{BLOCK_SLOTS, KvView, Mass};
use std::collections::HashMap;

/// Attention mass, (span)(kv_head, slot), of those spans whose sequences are watched.
#[derive(Default)]
pub(crate) struct Counters {
    /// How the rows of a sequence are watched, where somebody decides on them.
    watched: HashMap<SequenceId, Counting>,
    /// All zero unless `is_used`.
    counters: Vec<u64>,
    is_used: bool,
    /// (watched span): the first position that is not a number.
    bad: Vec<u64>,
}

/// Counters of a layer that spans have not taken yet, one after another.
pub(super) struct Begun<'a> {
    watched: &'a HashMap<SequenceId, Counting>,
    counters: &'a mut [u64],
    bad: &'a mut [u64],
}

impl Counters {
    /// Those who are watched, and nothing reserved.
    pub fn released(self) -> Counters {
        Counters {
            watched: self.watched,
            ..Counters::default()
        }
    }

    pub fn open(&mut self, id: SequenceId, counting: Counting) {
        self.watched.insert(id, counting);
    }

    pub fn fork(&mut self, from: SequenceId, to: SequenceId) {
        if let Some(&counting) = self.watched.get(&from) {
            self.watched.insert(to, counting);
        }
    }

    pub fn close(&mut self, id: SequenceId) {
        self.watched.remove(&id);
    }

    pub(super) fn watches(&self, spans: &[StepSpan<'_>]) -> bool {
        let is_watched = |span: &StepSpan<'_>| self.watched.contains_key(&span.sequence);
        !self.watched.is_empty() && spans.iter().any(is_watched)
    }

    /// Has room for so many counters of so many spans, and counts none.
    pub(super) fn reserve(&mut self, counters: usize, spans: usize) {
        if counters == 0 {
            return;
        }
        self.counters.clear();
        self.counters.reserve_exact(counters);
        self.bad.clear();
        self.bad.reserve_exact(spans);
    }

    /// Counters at zero for a layer. Most tokens count nothing, and leave them there.
    pub(super) fn begin<V: KvView>(
        &mut self,
        kv_heads: usize,
        spans: &[StepSpan<'_>],
        views: &[V],
    ) -> Begun<'_> {
        let (mut slots, mut jobs, mut counts) = (0, 0, false);
        for (span, view) in spans.iter().zip(views) {
            if let Some(counting) = self.watched.get(&span.sequence) {
                slots += view.blocks() * BLOCK_SLOTS;
                jobs += 1;
                counts |= counting.counts(span.position, span.tokens.len());
            }
        }
        if self.is_used {
            self.counters.clear();
        }
        self.counters.resize(slots * kv_heads, 0);
        self.is_used = counts;
        self.bad.clear();
        self.bad.resize(jobs, u64::MAX);
        Begun {
            watched: &self.watched,
            counters: &mut self.counters,
            bad: &mut self.bad,
        }
    }

    /// What attention each row got goes to the store's notes.
    pub(super) fn note(
        &self,
        c: &LayerConfig,
        store: &mut Store,
        layer: usize,
        spans: &[StepSpan<'_>],
    ) -> Result<(), CacheError> {
        if let Some(&position) = self.bad.iter().find(|bad| **bad < u64::MAX) {
            return Err(CacheError::NotANumber { layer, position });
        }
        let mut counters = &self.counters[..];
        for span in spans {
            let Some(counting) = self.watched.get(&span.sequence) else {
                continue;
            };
            let slots = store.view(span.sequence, layer)?.blocks() * BLOCK_SLOTS * c.kv_heads;
            let (own, others) = counters.split_at(slots);
            let queries = span.position..span.position + span.tokens.len() as u64;
            store.note_mass(span.sequence, layer, counting, queries, own)?;
            counters = others;
        }
        Ok(())
    }
}

impl<'a> Begun<'a> {
    /// Those of a span, which has so many slots; spans come in order. `None`: it is not watched.
    pub fn take(&mut self, sequence: SequenceId, slots: usize) -> Option<Mass<'a>> {
        let counting = self.watched.get(&sequence)?;
        let counters = self.counters.split_off_mut(..slots)?;
        let bad = self.bad.split_off_first_mut()?;
        Some(Mass {
            counters,
            count: counting.count,
            every: counting.every,
            bad,
        })
    }
}
