//! Temporary folders under `$HAVERSACK_HOME/tmp`, removed however the fetch ends.
//!
//! A dropped or interrupted fetch removes its own ([`Temporary`]). After a kill the folder stays; the
//! next fetch sweeps every folder whose lock is free.

use crate::error::{Doing, HubError};
use crate::home::create;
use crate::tidy::Temporary;
use haversack_memory::clock::since_1970;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LOCK: &str = "lock";

/// A folder this young may not have its lock yet.
const YOUNG: Duration = Duration::from_secs(60);

pub struct ScratchFolder {
    path: PathBuf,
    _folder: Temporary,
    _lock: File,
}

impl ScratchFolder {
    pub fn new(parent: &Path) -> Result<ScratchFolder, HubError> {
        let name = format!("fetch-{}-{}", std::process::id(), since_1970().as_nanos());
        let path = parent.join(name);
        create(&path)?;
        let _folder = Temporary::folder(&path);
        let lock = File::create(path.join(LOCK)).and_then(|file| file.lock().map(|()| file));
        let _lock = lock.doing(|| format!("cannot use {}", path.display()))?;
        Ok(ScratchFolder {
            path,
            _folder,
            _lock,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes what killed fetches left.
pub fn sweep(parent: &Path) {
    for entry in entries(parent) {
        let path = entry.path();
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        let young = changed.is_ok_and(|time| time.elapsed().unwrap_or_default() < YOUNG);
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
    entries(path)
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// What is in a folder; nothing where that cannot be told.
pub fn entries(path: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(path).into_iter().flatten().flatten()
}
