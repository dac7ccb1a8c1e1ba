#![forbid(unsafe_code)]
//! KV cache of a language model: keys and values in small blocks, inside one byte budget.
#![doc = include_str!("../README.md")]

mod annotations;
mod coding;
mod counting;
mod error;
mod ledger;
mod mapped_blocks;
pub mod policy;
mod pool;
pub mod row_stats;
mod segments;
pub mod size;
mod store;
mod table;

pub use haversack_kernels::format::kv::{Basis, Codec, Form, KvForm, KvShape};
pub use haversack_memory::{Backing, Region, SlabIo};

pub use annotations::{Annotation, annotation_bytes};
pub use coding::staging_bytes;
pub use counting::{AttentionCounting, Heads};
pub use error::{CacheError, CacheResult, CannotFit, filled, reserve_exact, with_room};
pub use ledger::{Account, Ledger};
pub use policy::PositionMode;
pub use pool::{BlockId, BlockPool, PoolStats, Reservation};
pub use row_stats::{KvRow, StatsFormat};
pub use size::{LayerShape, Zones, bytes_per_token, kv_bytes, reserve_bytes};
pub use store::{
    EvictionOutcome, Image, ImageLayout, KeptZone, MappedImage, SLAB_BYTES, SequenceGrowth,
    SequenceId, SequenceStats, Step, Store, StoreOptions, TokenRun, TokenState, Zone, ZoneBytes,
};
pub use table::{BlockEntry, BlockTable, TableView};
