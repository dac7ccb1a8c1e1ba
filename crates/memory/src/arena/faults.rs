//! Failures on demand, for tests of what stands above an arena.
//!
//! A handle counts the calls of every arena it was given to (adding a slab, releasing one or a part
//! of one) and makes the Nth of them fail, once. Clones share the count, so a test keeps one and
//! sweeps N until a run makes fewer calls than that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which arena call fails.
#[derive(Clone, Debug)]
pub struct Faults {
    calls: Arc<AtomicU64>,
    /// Calls count from 1; 0 is never reached.
    fails_at: u64,
}

impl Faults {
    /// Counts calls and lets all of them through.
    pub fn never() -> Faults {
        Faults::fail_nth(0)
    }

    /// Call number `n` fails, counted from 1; those before and after it do not. 0 is never.
    pub fn fail_nth(n: u64) -> Faults {
        Faults {
            calls: Arc::new(AtomicU64::new(0)),
            fails_at: n,
        }
    }

    /// How many calls there were, the failed one included.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// True when the failing call was made.
    pub fn struck(&self) -> bool {
        self.fails_at > 0 && self.calls() >= self.fails_at
    }

    /// Counts one call and says whether it fails.
    pub(super) fn strike(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1 == self.fails_at
    }
}
