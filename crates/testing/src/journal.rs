//! Journal calls that fail on demand.
//!
//! A handle counts the calls that change the disk, of every journal it was given to, and fails the Nth, or kills the
//! process at it. A failed write gets half of its bytes to the file first, as on a full disk; the head is one sector and
//! written whole or not at all. Clones share the count, so a test keeps one and sweeps N until a run makes fewer calls.

use haversack_memory::{JournalIo, SystemIo};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A call that changes the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskCall {
    /// Bytes of records, behind what is committed.
    Write,
    /// Cutting off what is not committed.
    Truncate,
    /// Making records durable.
    SyncData,
    /// The head sector.
    WriteHead,
    /// Making the head durable, and what was written before it.
    SyncHead,
    /// A temporary file gets the final name.
    Rename,
    /// Making a name durable.
    SyncFolder,
    /// Removing a file.
    Remove,
}

/// What happens at the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// No space left on the device.
    Full,
    /// An input/output error.
    Broken,
    /// SIGKILL to the own process.
    Kill,
}

/// Which call fails.
#[derive(Clone, Debug)]
pub struct JournalFaults {
    calls: Arc<Mutex<Vec<DiskCall>>>,
    /// Calls count from 1; 0 is never reached.
    nth: usize,
    /// How many fail, from the Nth on.
    count: usize,
    /// Every call fails while this holds.
    is_down: Arc<AtomicBool>,
    fault: DiskFault,
    late: Arc<Mutex<LateWork>>,
}

/// Commits that run beside their callers.
#[derive(Default)]
struct LateWork {
    /// They wait for [`JournalFaults::catch_up`]; otherwise each runs at once.
    is_late: bool,
    waiting: Vec<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for LateWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commits wait", self.waiting.len())
    }
}

impl JournalFaults {
    /// Counts calls and fails none.
    pub fn never() -> JournalFaults {
        JournalFaults::at(0, DiskFault::Broken)
    }

    /// Call number `n` fails, counted from 1; those before and after it do not.
    pub fn at(n: usize, fault: DiskFault) -> JournalFaults {
        JournalFaults::burst(n, 1, fault)
    }

    /// Call number `n` and all after it, as on a disk that is full or gone.
    pub fn from(n: usize, fault: DiskFault) -> JournalFaults {
        JournalFaults::burst(n, usize::MAX, fault)
    }

    /// Call number `n` and those behind it, `count` in all.
    pub fn burst(n: usize, count: usize, fault: DiskFault) -> JournalFaults {
        JournalFaults {
            calls: Arc::default(),
            nth: n,
            count,
            is_down: Arc::default(),
            fault,
            late: Arc::default(),
        }
    }

    /// From now on, commits that run beside their callers wait for [`JournalFaults::catch_up`], or for a caller that
    /// waits for them. Without it each runs at once, so that calls have an order.
    pub fn late(self) -> JournalFaults {
        self.late_work().is_late = true;
        self
    }

    /// Runs the commits that wait.
    pub fn catch_up(&self) {
        let waiting = std::mem::take(&mut self.late_work().waiting);
        waiting.into_iter().for_each(|work| work());
    }

    /// The process was killed: commits that wait are never run.
    pub fn crash(&self) {
        let waiting = std::mem::take(&mut self.late_work().waiting);
        drop(waiting);
    }

    fn late_work(&self) -> std::sync::MutexGuard<'_, LateWork> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the options of a journal or of sessions take it.
    pub fn io(&self) -> Arc<dyn JournalIo> {
        Arc::new(self.clone())
    }

    /// From now on every call fails, or only the chosen ones again: a disk that goes and comes back.
    pub fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
    }

    /// The calls so far, in order, the failed ones included.
    pub fn calls(&self) -> Vec<DiskCall> {
        self.log().clone()
    }

    /// How many of the chosen calls have failed.
    pub fn failures(&self) -> usize {
        match self.nth {
            0 => 0,
            nth => (self.log().len() + 1).saturating_sub(nth).min(self.count),
        }
    }

    /// Whether the first failing call was made.
    pub fn struck(&self) -> bool {
        self.nth > 0 && self.log().len() >= self.nth
    }

    /// Counts one call and says whether it fails.
    fn strike(&self, call: DiskCall) -> bool {
        let mut log = self.log();
        log.push(call);
        let n = log.len();
        let chosen = self.nth > 0 && n >= self.nth && n - self.nth < self.count;
        chosen || self.is_down.load(Ordering::Relaxed)
    }

    /// Counts one call, and fails it if its turn has come.
    fn meet(&self, call: DiskCall) -> io::Result<()> {
        if self.strike(call) {
            self.fail()
        } else {
            Ok(())
        }
    }

    /// Does not return from a kill.
    fn fail(&self) -> io::Result<()> {
        Err(match self.fault {
            DiskFault::Full => io::ErrorKind::StorageFull.into(),
            DiskFault::Broken => io::Error::other("input/output error (asked for by a test)"),
            DiskFault::Kill => {
                #[cfg(unix)]
                let _ = rustix::process::kill_process(
                    rustix::process::getpid(),
                    rustix::process::Signal::KILL,
                );
                std::process::abort()
            }
        })
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Vec<DiskCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JournalIo for JournalFaults {
    fn write_all_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        if offset == 0 {
            self.meet(DiskCall::WriteHead)?;
        } else if self.strike(DiskCall::Write) {
            let _ = SystemIo.write_all_at(file, &bytes[..bytes.len() / 2], offset);
            return self.fail();
        }
        SystemIo.write_all_at(file, bytes, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        let call = match self.log().last() {
            Some(DiskCall::WriteHead) => DiskCall::SyncHead,
            _ => DiskCall::SyncData,
        };
        self.meet(call)?;
        SystemIo.sync(file)
    }

    fn truncate(&self, file: &File, bytes: u64) -> io::Result<()> {
        self.meet(DiskCall::Truncate)?;
        SystemIo.truncate(file, bytes)
    }

    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        self.meet(DiskCall::Rename)?;
        SystemIo.rename(from, to, replace)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.meet(DiskCall::SyncFolder)?;
        SystemIo.sync_folder(folder)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.meet(DiskCall::Remove)?;
        SystemIo.remove(path)
    }

    fn run_beside(&self, work: Box<dyn FnOnce() + Send>) -> bool {
        let mut late = self.late_work();
        if late.is_late {
            late.waiting.push(work);
            return true;
        }
        drop(late);
        work();
        true
    }
}
