//! Temporary folders under `$HAVERSACK_HOME/tmp`, removed however the fetch ends.
//!
//! A dropped or interrupted fetch removes its own ([`Folder`]). After a kill the folder stays; the
//! next fetch sweeps every folder whose lock is free.

use crate::error::{Doing, HubError};
use crate::home::create;
use crate::tidy::Folder;
use haversack_memory::clock::since_1970;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

const LOCK: &str = "lock";

/// A folder this young may not have its lock yet.
const YOUNG: Duration = Duration::from_secs(60);

pub struct ScratchFolder {
    folder: Folder,
    _lock: File,
}

impl ScratchFolder {
    pub fn new(parent: &Path) -> Result<ScratchFolder, HubError> {
        let name = format!("fetch-{}-{}", std::process::id(), since_1970().as_nanos());
        let path = parent.join(name);
        create(&path)?;
        let folder = Folder::new(path);
        let lock = File::create(folder.path().join(LOCK))
            .and_then(|file| file.lock().map(|()| file))
            .doing(|| format!("cannot use {}", folder.path().display()))?;
        Ok(ScratchFolder {
            folder,
            _lock: lock,
        })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes what killed fetches left.
pub fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let young = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|time| time.elapsed().unwrap_or_default() < YOUNG);
        let ours = entry.file_name().to_string_lossy().starts_with("fetch-");
        if !ours || young {
            continue;
        }
        let held = File::open(path.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_err());
        if !held {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// The bytes of all files below `path`: how far a download has come that reports nothing itself.
pub fn size(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}
