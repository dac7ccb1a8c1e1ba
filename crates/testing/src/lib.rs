//! What tests of several crates share: random models, calls to the system that fail on
//! demand, an allocator that counts, how much of a sweep a run takes.
//!
//! Faults are implementations of the IO traits that the product has anyway: [`ArenaFaults`] of
//! [`haversack_memory::SlabIo`], [`JournalFaults`] of [`haversack_memory::JournalIo`]. Only `[dev-dependencies]` may name this
//! crate.

mod arena;
pub mod heap;
mod journal;
pub mod models;
pub mod quota;
pub mod suite;

pub use arena::ArenaFaults;
pub use journal::{DiskCall, DiskFault, JournalFaults};
