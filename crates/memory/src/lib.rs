//! Memory as the operating system sees it: file maps, arenas, readings of what the process and the
//! device use, a record file that survives a crash, and low-priority threads. Everything unsafe about
//! it stays behind this surface.
//!
//! What this crate is not: it decides nothing. It maps, gives back and counts bytes; the crates above
//! keep budgets and choose what to release.

pub mod arena;
pub mod background;
pub mod bytes;
mod cgroup;
pub mod clock;
pub mod file;
pub mod heap;
#[cfg(any(unix, windows))]
pub mod journal;
mod kernel_text;
pub mod lost_map;
pub mod pressure;
pub mod reading;
#[cfg(unix)]
mod resident;
mod system;
pub mod thermal;
pub mod usage;

pub use arena::{Arena, ArenaError, Backing, Effect, Refusal, Slab, SlabIndex, SlabIo};
pub use file::{FileMap, MapAdvice, Region};
pub use heap::{CountedHeap, HeapBudget, HeapFull, HeapReservation};
#[cfg(any(unix, windows))]
pub use journal::{Journal, JournalIo};
pub use pressure::Psi;
pub use reading::{Cgroup, CgroupLimits, Reading, Readings};
pub use system::SystemIo;
pub use thermal::{Thermal, ThermalZones};
pub use usage::{PeakMeter, ProcessUsage};
