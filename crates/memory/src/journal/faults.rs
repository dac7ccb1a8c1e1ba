//! Failures on demand, for tests of a journal and of what stands above it.
//!
//! A handle counts the calls that change the disk, of every journal it was given to, and strikes at
//! the Nth: the call fails, or the process is killed at it. A write that is struck gets half of its
//! bytes to the file first, as on a full disk; the head is one sector and written whole or not at
//! all. Clones share the count, so a test keeps one and sweeps N until a run makes fewer calls.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A call that changes the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Bytes of records, behind what is committed.
    Write,
    /// Cutting off what is not committed.
    Cut,
    /// Making records durable.
    SyncData,
    /// The head sector.
    WriteHead,
    /// Making the head durable.
    SyncHead,
    /// A temporary file gets the final name.
    Rename,
    /// Making a name durable.
    SyncDirectory,
    /// Removing a file.
    Remove,
}

/// What happens at the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// No space left on the device.
    Full,
    /// An input/output error.
    Broken,
    /// SIGKILL to the own process.
    Kill,
}

/// Which call is struck.
#[derive(Clone, Debug)]
pub struct Faults {
    steps: Arc<Mutex<Vec<Step>>>,
    /// Calls count from 1; 0 is never reached.
    nth: usize,
    /// So many, from the Nth on.
    count: usize,
    /// Every call is struck while this holds.
    is_down: Arc<AtomicBool>,
    blow: Blow,
}

impl Faults {
    /// Counts calls and lets all of them through.
    pub fn never() -> Faults {
        Faults::at(0, Blow::Broken)
    }

    /// Call number `n` is struck, counted from 1; those before and after it are not.
    pub fn at(n: usize, blow: Blow) -> Faults {
        Faults {
            steps: Arc::default(),
            nth: n,
            count: 1,
            is_down: Arc::default(),
            blow,
        }
    }

    /// Call number `n` and all after it, as on a disk that is full or gone.
    pub fn from(n: usize, blow: Blow) -> Faults {
        Faults::burst(n, usize::MAX, blow)
    }

    /// Call number `n` and those behind it, `count` in all.
    pub fn burst(n: usize, count: usize, blow: Blow) -> Faults {
        Faults {
            count,
            ..Faults::at(n, blow)
        }
    }

    /// From now on every call is struck, or only those that were asked for before: a disk that goes and
    /// comes back.
    pub fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
    }

    /// The calls there were, in order, the struck ones included.
    pub fn steps(&self) -> Vec<Step> {
        self.log().clone()
    }

    /// How many of the calls that were asked for have been struck.
    pub fn blows(&self) -> usize {
        match self.nth {
            0 => 0,
            nth => (self.log().len() + 1).saturating_sub(nth).min(self.count),
        }
    }

    /// True when the call to be struck was made.
    pub fn struck(&self) -> bool {
        self.nth > 0 && self.log().len() >= self.nth
    }

    /// Counts one call; what happens to it, if anything.
    pub(super) fn meet(&self, step: Step) -> Option<Blow> {
        let mut log = self.log();
        log.push(step);
        let n = log.len();
        let asked = self.nth > 0 && n >= self.nth && n - self.nth < self.count;
        let struck = asked || self.is_down.load(Ordering::Relaxed);
        struck.then_some(self.blow)
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Vec<Step>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blow {
    /// Does not return from a kill.
    pub(super) fn land(self) -> io::Error {
        match self {
            Blow::Full => io::ErrorKind::StorageFull.into(),
            Blow::Broken => io::Error::other("input/output error (asked for by a test)"),
            Blow::Kill => {
                #[cfg(unix)]
                let _ = rustix::process::kill_process(
                    rustix::process::getpid(),
                    rustix::process::Signal::KILL,
                );
                std::process::abort()
            }
        }
    }
}
