//! Attention that is counted in one layer of a step, on its way from the kernels to the store's notes.

use super::LayerConfig;
use super::forward::Span;
use haversack_cache::policy::count::Counting;
use haversack_cache::{CacheError, Store};
use haversack_kernels::attention::{BLOCK_SLOTS, KvView};

/// Attention mass, (span)(kv_head, slot).
pub(super) struct Counters {
    pub counting: Counting,
    /// All zero unless `is_used`.
    counters: Vec<u64>,
    is_used: bool,
    /// (span): the first position that is not a number.
    bad: Vec<u64>,
}

impl Counters {
    pub fn new(counting: Counting) -> Counters {
        Counters {
            counting,
            counters: Vec::new(),
            is_used: false,
            bad: Vec::new(),
        }
    }

    /// Has room for so many counters of so many spans, and counts none.
    pub fn reserve(&mut self, counters: usize, spans: usize) {
        self.counters.clear();
        self.counters.reserve_exact(counters);
        self.bad.clear();
        self.bad.reserve_exact(spans);
    }

    /// Counters at zero for a layer. Most tokens count nothing, and leave them there.
    pub fn begin(&mut self, counters: usize, spans: &[Span<'_>]) -> (&mut [u64], &mut [u64]) {
        if self.is_used {
            self.counters.clear();
        }
        self.counters.resize(counters, 0);
        let counts = |span: &Span<'_>| self.counting.counts(span.position, span.tokens.len());
        self.is_used = spans.iter().any(counts);
        self.bad.clear();
        self.bad.resize(spans.len(), u64::MAX);
        (&mut self.counters, &mut self.bad)
    }

    /// What attention each row got goes to the store's notes.
    pub fn note(
        &self,
        c: &LayerConfig,
        store: &mut Store,
        layer: usize,
        spans: &[Span<'_>],
    ) -> Result<(), CacheError> {
        if let Some(&position) = self.bad.iter().find(|bad| **bad < u64::MAX) {
            return Err(CacheError::NotANumber { layer, position });
        }
        let mut counters = &self.counters[..];
        for span in spans {
            let slots = store.view(span.sequence, layer)?.blocks() * BLOCK_SLOTS * c.kv_heads;
            let (own, others) = counters.split_at(slots);
            let queries = span.position..span.position + span.tokens.len() as u64;
            store.note_mass(span.sequence, layer, &self.counting, queries, own)?;
            counters = others;
        }
        Ok(())
    }
}
