//! One fetch of a file at a time, across processes.
//!
//! The lock file is removed by its holder. A process that waited on the removed file finds out by comparing
//! it with the name again, and starts over: so nothing is left behind and two holders cannot exist.

use crate::error::{Doing, HubError};
use crate::home::open_or_create;
use crate::progress::FetchProgress;
use crate::tidy::Temporary;
use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(100);

/// Fields are dropped in order: the name goes while the lock is still held.
pub struct Lock {
    _name: Temporary,
    _file: File,
}

impl Lock {
    /// Waits until no other process fetches the file, saying so once.
    pub fn acquire(
        path: &Path,
        what: &str,
        progress: &dyn FetchProgress,
    ) -> Result<Lock, HubError> {
        let mut said = false;
        loop {
            let file = open_or_create(path)?;
            match file.try_lock() {
                Ok(()) if still_named(&file, path) => {
                    return Ok(Lock {
                        _name: Temporary::file(path),
                        _file: file,
                    });
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut said, true) {
                        let line = format!("another process is fetching {what}; waiting for it");
                        progress.note(&line);
                    }
                    sleep(POLL);
                }
                Err(TryLockError::Error(error)) => {
                    return Err(error).doing(|| format!("cannot lock {}", path.display()));
                }
            }
        }
    }
}

#[cfg(unix)]
fn still_named(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(named)) => ours.dev() == named.dev() && ours.ino() == named.ino(),
        _ => false,
    }
}

/// Windows refuses to remove a file that another process has open, so the name cannot move on.
#[cfg(not(unix))]
fn still_named(_file: &File, _path: &Path) -> bool {
    true
}
