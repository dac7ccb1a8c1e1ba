//! What a sequence holds, read from the runtime's own books. Nothing is estimated here.

use super::bounds::Bounds;
use super::core::Runtime;
use super::error::StepError;
use crate::device::WindowChange;
use crate::model::kv::KvOptions;
use haversack_cache::{Ledger, SequenceId};
use haversack_memory::{Arena, Backing, Effect};
use std::path::PathBuf;

/// How a runtime stores keys and values, and how many rows it keeps.
#[derive(Clone, Debug)]
pub struct KvLayout {
    pub kv: KvOptions,
    pub bounds: Bounds,
    /// Recent rows have a codec of their own.
    pub is_zoned: bool,
}

impl KvLayout {
    pub fn new(runtime: &Runtime) -> KvLayout {
        KvLayout {
            kv: runtime.kv().clone(),
            bounds: *runtime.bounds(),
            is_zoned: runtime.store().layers().iter().any(|layer| layer.zoned()),
        }
    }
}

/// The pages of keys and values, as the kernel reports them. Takes milliseconds: not for the path of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvMemory {
    pub backing: Backing,
    /// `None` where the system does not say.
    pub resident_bytes: Option<u64>,
    /// `None` while none were asked for.
    pub huge_pages: Option<Effect>,
    /// Pages merged with equal ones, of the whole process; `None` unless they are [`Backing::Mergeable`].
    pub merged: Option<Effect>,
    /// Where another process of this user finds the bytes of [`Backing::Memfd`].
    pub paths: Vec<PathBuf>,
}

impl KvMemory {
    pub fn new(runtime: &Runtime) -> KvMemory {
        let arenas = || runtime.store().pools().iter().map(|pool| pool.arena());
        KvMemory {
            backing: arenas().next().map_or(Backing::default(), Arena::backing),
            resident_bytes: arenas().map(Arena::resident_bytes).sum(),
            huge_pages: arenas().filter_map(Arena::huge_pages).reduce(Effect::and),
            merged: arenas().find_map(Arena::merged),
            paths: arenas().filter_map(Arena::memfd_path).collect(),
        }
    }
}

/// Rows and bytes of one sequence, and of the cache around it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceUsage {
    /// Tokens read or sampled.
    pub tokens_seen: u64,
    /// Rows kept of them.
    pub rows: usize,
    pub rows_peak: usize,
    /// Of blocks, sinks and tables, over the values of the rows kept.
    pub bits_effective: Option<f64>,
    pub sinks_bytes: usize,
    pub near_bytes: usize,
    /// With what was recoded ahead.
    pub far_bytes: usize,
    pub window: Option<usize>,
    /// How its window followed the device. [`Retention::replay`](crate::Retention::replay) with these gives the same
    /// tokens.
    pub changes: Vec<WindowChange>,
    pub quality_debt: Option<f64>,
    /// Of all sequences.
    pub ledger: Ledger,
}

impl SequenceUsage {
    pub fn new(runtime: &Runtime, sequence: SequenceId) -> Result<SequenceUsage, StepError> {
        let stats = runtime.stats(sequence)?;
        let store = runtime.store();
        let (mut near_bytes, mut far_bytes, mut table_bytes, mut ahead) = (0, 0, 0, 0);
        // Layers may keep different rows.
        let mut values = 0usize;
        for (layer, shape) in store.layers().iter().enumerate() {
            let view = store.view(sequence, layer)?;
            let entries = view.entries();
            table_bytes += size_of_val(entries) + entries.len() * size_of::<u32>();
            for entry in entries {
                values += 2 * shape.width() * entry.rows as usize;
                let far = entry.far.map_or(0, |_| shape.far_shape().block_bytes());
                near_bytes += entry.near.map_or(0, |_| shape.near_shape().block_bytes());
                far_bytes += far;
                ahead += if entry.is_near() { far } else { 0 };
            }
        }
        let held = (stats.bytes + table_bytes) as f64;
        Ok(SequenceUsage {
            tokens_seen: stats.position,
            rows: stats.rows,
            rows_peak: stats.rows_peak,
            bits_effective: (values > 0).then(|| held * 8.0 / values as f64),
            sinks_bytes: (stats.bytes + ahead).saturating_sub(near_bytes + far_bytes),
            near_bytes,
            far_bytes,
            window: runtime.window(sequence),
            changes: runtime.window_changes(sequence).to_vec(),
            quality_debt: runtime.quality_debt(sequence),
            ledger: runtime.ledger(),
        })
    }

    pub fn evicted(&self) -> u64 {
        self.tokens_seen.saturating_sub(self.rows as u64)
    }
}
