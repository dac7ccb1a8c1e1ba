//! Memory as the operating system sees it: file maps, anonymous arenas, and readings of what the
//! process and the device use. Everything unsafe about it stays behind this surface.
//!
//! What this crate is not: it decides nothing. It maps, gives back and counts bytes; budgets and
//! the choice of what to release live above.

pub mod arena;
pub mod file;
pub mod usage;

pub use arena::{Arena, ArenaError, SlabIndex};
pub use file::{Advice, FileMap};
pub use usage::{PeakMeter, Usage};
