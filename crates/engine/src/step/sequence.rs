//! What is kept for each open sequence beside its blocks.

use super::query_samples::{LayerQueries, LayerSamples, SAMPLES, SampleLayout, SampleRing};
use super::span::StepSpan;
use crate::device::WindowChange;
use haversack_cache::policy::count::AttentionCounting;
use haversack_cache::policy::rows::RowPolicy;
use haversack_cache::{CacheResult, SequenceId};
use haversack_kernels::cpu::Backend;
use std::collections::HashMap;
use std::sync::Arc;

/// How far back one sequence remembers.
#[derive(Clone, Default)]
pub struct RetentionState {
    /// First tokens that are never evicted.
    pub anchors: usize,
    /// The window that was asked for; `None`: nothing is evicted.
    pub window_asked: Option<usize>,
    /// The window in force: the one asked for or less.
    pub window: Option<usize>,
    /// Tokens after which the sequence ends.
    pub end: Option<usize>,
    /// Chooses the rows to evict; `None`: the oldest leave.
    pub policy: Option<RowPolicy>,
    /// (layer): rows to keep at most beside those of a step; `None`: as many as anchors and window in every layer.
    pub rows_max: Option<Arc<[usize]>>,
    /// Changes of the window so far.
    pub changes: Vec<WindowChange>,
}

impl RetentionState {
    /// Rows that a layer keeps where rows are chosen one by one.
    pub fn rows_max(&self, layer: usize) -> usize {
        self.rows_max.as_ref().map_or(usize::MAX, |max| max[layer])
    }
}

/// The state of one open sequence. Its keys and values are in the store.
#[derive(Default)]
pub struct SequenceState {
    pub retention: RetentionState,
    /// How the attention that its rows get is counted, where a policy looks at it.
    pub counting: Option<AttentionCounting>,
    /// Its last queries, where a guard looks at evictions.
    pub samples: Option<SampleRing>,
    /// Predicted KL divergence caused by all evictions so far, in nats.
    pub quality_debt: f64,
}

/// All open sequences.
pub struct Sequences {
    pub states: HashMap<SequenceId, SequenceState>,
    /// Where the samples of each layer lie in a ring; `None`: no samples are taken.
    pub layout: Option<SampleLayout>,
}

impl Sequences {
    pub fn new(layout: Option<SampleLayout>) -> Sequences {
        Sequences {
            states: HashMap::new(),
            layout,
        }
    }

    /// A copy of the state of `from` for its fork.
    pub fn copy_of(&self, from: SequenceId) -> CacheResult<SequenceState> {
        let from = self.states.get(&from);
        let mut samples = self.new_ring()?;
        if let (Some(to), Some(from)) = (&mut samples, from.and_then(|f| f.samples.as_ref())) {
            to.copy_from(from);
        }
        Ok(SequenceState {
            retention: from.map_or_else(Default::default, |from| from.retention.clone()),
            counting: from.and_then(|from| from.counting),
            samples,
            quality_debt: from.map_or(0.0, |from| from.quality_debt),
        })
    }

    /// An empty ring, where samples are taken.
    pub fn new_ring(&self) -> CacheResult<Option<SampleRing>> {
        self.layout.as_ref().map(SampleLayout::ring).transpose()
    }

    /// Bytes of the samples of all sequences, and of `more` to be opened.
    pub fn sample_bytes(&self, more: usize) -> usize {
        let Some(layout) = &self.layout else {
            return 0;
        };
        let rings = self.states.values().filter(|s| s.samples.is_some()).count();
        (rings + more) * layout.ring_bytes()
    }

    /// The samples of a layer of one sequence, if a block ends at `position`.
    pub fn samples(&self, id: SequenceId, layer: usize, position: u64) -> Option<LayerSamples<'_>> {
        let ring = self.states.get(&id)?.samples.as_ref()?;
        self.layout.as_ref()?.samples(ring, layer, position)
    }

    /// Keeps some of the queries of a step, whose rows are those of all spans one after the other.
    pub(super) fn record_queries(
        &mut self,
        backend: Backend,
        layer: usize,
        spans: &[StepSpan<'_>],
        computed: &LayerQueries<'_>,
    ) {
        let Some(layout) = &self.layout else {
            return;
        };
        let mut first = 0;
        for span in spans {
            let state = self.states.get_mut(&span.sequence);
            if let Some(ring) = state.and_then(|state| state.samples.as_mut()) {
                layout.record(ring, backend, layer, (span, first), computed);
            }
            first += span.tokens.len();
        }
    }

    /// Takes evicted rows out of the samples of a sequence: see [`SampleLayout::evict`].
    pub(crate) fn evict_from_samples(
        &mut self,
        id: SequenceId,
        layer: usize,
        present: &[bool; SAMPLES],
        left: &[f32],
        difference: &[f32],
    ) {
        let ring = self.states.get_mut(&id).and_then(|s| s.samples.as_mut());
        if let (Some(layout), Some(ring)) = (&self.layout, ring) {
            layout.evict(ring, layer, present, left, difference);
        }
    }

    /// Whether the attention of any of these sequences is counted.
    pub(super) fn counts_any(&self, spans: &[StepSpan<'_>]) -> bool {
        let mut ids = spans.iter().map(|span| span.sequence);
        ids.any(|id| self.counting(id).is_some())
    }

    pub(super) fn counting(&self, id: SequenceId) -> Option<&AttentionCounting> {
        self.states.get(&id)?.counting.as_ref()
    }
}
