#![forbid(unsafe_code)]
//! Keys and values of a language model in small blocks. The page below says the whole idea.
#![doc = include_str!("../README.md")]

mod adopted;
mod coding;
mod error;
mod ledger;
pub mod notes;
pub mod policy;
mod pool;
mod segments;
pub mod size;
mod spans;
mod store;
mod table;

pub use haversack_kernels::format::kv::{Basis, Codec, Form, KvForm, KvShape};
pub use haversack_memory::{Backing, Region, SlabIo};

pub use coding::staging_bytes;
pub use error::{CacheError, CannotFit};
pub use ledger::{Account, Ledger};
pub use notes::{Heads, Noting, Row};
pub use policy::Positions;
pub use pool::{BlockId, Census, Pool, Reservation};
pub use size::{LayerShape, Zones, bytes_per_token, kv_bytes, reserve_bytes};
pub use spans::Span;
pub use store::{
    Applied, Grow, Image, Laid, MappedImage, Run, SequenceId, SequenceStats, Spot, Step, Store,
    StoreOptions, Zone, ZoneBytes,
};
pub use table::{Entry, Table, TableView};
