//! Memory as the operating system sees it: file maps, anonymous arenas, readings of what the
//! process and the device use, a record file that survives a crash, and threads
//! that can wait. Everything unsafe about it stays behind this surface.
//!
//! What this crate is not: it decides nothing. It maps, gives back and counts bytes; budgets and
//! the choice of what to release live above.

pub mod arena;
pub mod background;
pub mod bytes;
mod cgroup;
pub mod clock;
pub mod file;
#[doc(hidden)]
pub mod heap;
#[cfg(any(unix, windows))]
pub mod journal;
pub mod pressure;
pub mod reading;
#[cfg(unix)]
mod resident;
pub mod thermal;
pub mod usage;
#[doc(hidden)]
pub mod zoo;

#[cfg(any(target_os = "linux", target_os = "android"))]
pub use arena::SharedSlabs;
pub use arena::{Arena, ArenaError, Backing, Effect, Faults, Hint, Refusal, ShareError, SlabIndex};
pub use file::{Advice, FileMap, Region};
#[cfg(any(unix, windows))]
pub use journal::Journal;
pub use pressure::{PressureTrigger, Psi, Stall};
pub use reading::{Cgroup, Reading, Readings};
pub use thermal::{Thermal, Zones};
pub use usage::{PeakMeter, Usage};
