//! Attention that the rows of one layer get in a step, on its way from the kernels to the store.

use super::sequence::Sequences;
use super::span::StepSpan;
use crate::model::LayerConfig;
use haversack_cache::{CacheError, CacheResult, Store};
use haversack_kernels::attention::{BLOCK_SLOTS, KvView, Mass};

/// Attention mass, (span)(kv_head, slot), of the spans whose sequences are counted.
#[derive(Default)]
pub(super) struct AttentionCounts {
    /// All zero unless `is_used`.
    counters: Vec<u64>,
    is_used: bool,
    /// (counted span): the first position whose attention is not a number.
    bad: Vec<u64>,
}

/// Counters of a layer, handed out span by span.
pub(super) struct LayerCounters<'a> {
    sequences: &'a Sequences,
    counters: &'a mut [u64],
    bad: &'a mut [u64],
}

impl AttentionCounts {
    /// Makes room for `counters` counters of `spans` spans.
    pub fn reserve(&mut self, counters: usize, spans: usize) {
        if counters == 0 {
            return;
        }
        self.counters.clear();
        self.counters.reserve_exact(counters);
        self.bad.clear();
        self.bad.reserve_exact(spans);
    }

    /// Counters at zero for a layer. Most tokens count nothing, and leave them there.
    pub fn begin<'a, V: KvView>(
        &'a mut self,
        sequences: &'a Sequences,
        kv_heads: usize,
        spans: &[StepSpan<'_>],
        views: &[V],
    ) -> LayerCounters<'a> {
        let (mut slots, mut jobs, mut counts) = (0, 0, false);
        for (span, view) in spans.iter().zip(views) {
            if let Some(counting) = sequences.counting(span.sequence) {
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
        LayerCounters {
            sequences,
            counters: &mut self.counters,
            bad: &mut self.bad,
        }
    }

    /// Adds the attention that each row got to what the store keeps of it.
    pub fn save(
        &self,
        sequences: &Sequences,
        c: &LayerConfig,
        store: &mut Store,
        layer: usize,
        spans: &[StepSpan<'_>],
    ) -> CacheResult {
        if let Some(&position) = self.bad.iter().find(|bad| **bad < u64::MAX) {
            return Err(CacheError::NotANumber { layer, position });
        }
        let mut counters = &self.counters[..];
        for span in spans {
            let Some(counting) = sequences.counting(span.sequence) else {
                continue;
            };
            let slots = store.view(span.sequence, layer)?.blocks() * BLOCK_SLOTS * c.kv_heads;
            let (own, others) = counters.split_at(slots);
            let queries = span.position..span.position + span.tokens.len() as u64;
            store.record_attention(span.sequence, layer, counting, queries, own)?;
            counters = others;
        }
        Ok(())
    }
}

impl<'a> LayerCounters<'a> {
    /// The counters of a span with `slots` slots; spans come in order. `None`: its attention is not counted.
    pub fn take(&mut self, span: &StepSpan<'_>, slots: usize) -> Option<Mass<'a>> {
        let counting = self.sequences.counting(span.sequence)?;
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
