//! Arena calls that fail on demand.
//!
//! A handle counts the calls of every arena it was given to (adding a slab, releasing or collapsing one) and fails the
//! Nth of them, once. Clones share the count, so a test keeps one and sweeps N until a run makes fewer calls than that.

use haversack_memory::arena::Memfd;
use haversack_memory::{Slab, SlabIo, SystemIo};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which arena call fails.
#[derive(Clone, Debug)]
pub struct ArenaFaults {
    calls: Arc<AtomicU64>,
    /// Calls count from 1; 0 is never reached.
    fails_at: u64,
}

impl ArenaFaults {
    /// Counts calls and fails none.
    pub fn never() -> ArenaFaults {
        ArenaFaults::fail_nth(0)
    }

    /// Call number `n` fails, counted from 1; those before and after it do not. 0 is never.
    pub fn fail_nth(n: u64) -> ArenaFaults {
        ArenaFaults {
            calls: Arc::default(),
            fails_at: n,
        }
    }

    /// How the options of an arena or a store take it.
    pub fn io(&self) -> Arc<dyn SlabIo> {
        Arc::new(self.clone())
    }

    /// Calls so far, the failed one included.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Whether the failing call was made.
    pub fn struck(&self) -> bool {
        self.fails_at > 0 && self.calls() >= self.fails_at
    }

    /// Counts one call and says whether it fails.
    fn strike(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1 == self.fails_at
    }
}

impl SlabIo for ArenaFaults {
    fn map(&self, memfd: Option<&Arc<Memfd>>, index: usize, bytes: usize) -> Option<Slab> {
        (!self.strike()).then(|| SystemIo.map(memfd, index, bytes))?
    }

    fn release(&self, slab: &mut Slab) -> bool {
        !self.strike() && SystemIo.release(slab)
    }

    fn collapse(&self, slab: &mut Slab) -> io::Result<()> {
        if self.strike() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        SystemIo.collapse(slab)
    }
}
