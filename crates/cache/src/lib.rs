#![forbid(unsafe_code)]
//! Keys and values of a language model in small blocks. The page below says the whole idea.
#![doc = include_str!("../README.md")]

mod error;
mod pool;
mod size;
mod store;
mod table;

pub use haversack_kernels::attention::Precision;

pub use error::{CacheError, CannotFit};
pub use pool::{BlockId, Pool, Reservation};
pub use size::{LayerShape, bytes_per_token};
pub use store::{SequenceId, SequenceStats, Step, Store, StoreOptions};
pub use table::{Table, TableView};
