//! Files of a journal: opened without side effects, locked, written at offsets, renamed into place.
//!
//! Locks. A journal's own file is locked, and the lock belongs to the open file, not to the name: the
//! kernel drops it with the process. So after locking, the journal checks that the name still means the
//! file that was locked, and opens it again if not. A temporary file is locked before it gets its
//! final name: at no moment can another process open a journal in use.
//!
//! Temporary files have one fixed name per journal. One that is found and not locked was left by a
//! process that died, and is removed; a fresh one is always created, never reused.

use super::error::JournalError;
use super::io::{JournalIo, os};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TEMPORARY: &str = ".journal-new";
/// Others can replace a file between opening and locking it. More often than this is no accident.
const TRIES: usize = 16;

/// A journal's path, the folder it is in, its temporary name there, and how they are changed.
#[derive(Clone, Debug)]
pub struct JournalPaths {
    pub path: PathBuf,
    temporary: PathBuf,
    folder: PathBuf,
    pub io: Arc<dyn JournalIo>,
}

impl JournalPaths {
    pub fn of(path: &Path, io: Arc<dyn JournalIo>) -> Result<JournalPaths, JournalError> {
        let name = path.file_name().ok_or(JournalError::Name)?;
        if name.as_encoded_bytes().ends_with(TEMPORARY.as_bytes()) {
            return Err(JournalError::Name);
        }
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(TEMPORARY);
        Ok(JournalPaths {
            path: path.to_path_buf(),
            temporary: folder.join(temporary),
            folder,
            io,
        })
    }

    pub fn sync_folder(&self) -> Result<(), JournalError> {
        (self.io.sync_folder(&self.folder)).map_err(JournalError::io("making its name durable"))
    }

    /// The temporary file becomes the journal. Without `replace` a file of that name stays.
    pub fn place(&self, replace: bool) -> Result<(), JournalError> {
        let renamed = self.io.rename(&self.temporary, &self.path, replace);
        renamed.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => JournalError::Exists,
            _ => JournalError::io("giving it its name")(e),
        })
    }

    pub fn remove(&self) -> Result<(), JournalError> {
        (self.io.remove(&self.path)).map_err(JournalError::io("removing it"))
    }

    pub fn remove_temporary(&self) -> Result<(), JournalError> {
        (self.io.remove(&self.temporary)).map_err(JournalError::io("removing it"))
    }

    /// Removes a temporary file that a dead process left. One that is locked belongs to a live process.
    pub fn clear(&self) -> Result<(), JournalError> {
        match JournalFile::open(&self.temporary, &self.io) {
            Ok(left) => {
                self.remove_temporary()?;
                drop(left);
                Ok(())
            }
            Err(JournalError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// The journal's file, which exists, locked for this process alone.
    pub fn open(&self) -> Result<JournalFile, JournalError> {
        JournalFile::open(&self.path, &self.io)
    }

    /// The journal's file, which exists, for reading only; not locked.
    pub fn inspect(&self) -> Result<JournalFile, JournalError> {
        let file = open_regular(&self.path, OpenOptions::new().read(true))?;
        Ok(JournalFile {
            file,
            io: self.io.clone(),
        })
    }

    /// A new and empty temporary file, locked.
    pub fn create_temporary(&self) -> Result<JournalFile, JournalError> {
        for _ in 0..TRIES {
            self.clear()?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true);
            os::private(&mut options);
            let file = match options.open(&self.temporary) {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(source) => {
                    return Err(JournalError::io("creating its temporary file")(source));
                }
            };
            if lock(&file, &self.temporary)? {
                let io = self.io.clone();
                return Ok(JournalFile { file, io });
            }
        }
        Err(JournalError::Busy)
    }
}

/// An open file of a journal.
pub struct JournalFile {
    file: File,
    io: Arc<dyn JournalIo>,
}

impl JournalFile {
    fn open(path: &Path, io: &Arc<dyn JournalIo>) -> Result<JournalFile, JournalError> {
        for _ in 0..TRIES {
            let file = open_regular(path, OpenOptions::new().read(true).write(true))?;
            if lock(&file, path)? {
                let io = io.clone();
                return Ok(JournalFile { file, io });
            }
        }
        Err(JournalError::Busy)
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        os::read_exact_at(&self.file, into, offset)
    }

    pub fn write_record(&self, bytes: &[u8], offset: u64) -> Result<(), JournalError> {
        (self.io.write_all_at(&self.file, bytes, offset))
            .map_err(JournalError::io("writing a record"))
    }

    pub fn write_head(&self, bytes: &[u8]) -> Result<(), JournalError> {
        (self.io.write_all_at(&self.file, bytes, 0)).map_err(JournalError::io("writing its head"))
    }

    pub fn sync(&self) -> Result<(), JournalError> {
        (self.io.sync(&self.file)).map_err(JournalError::io("making it durable"))
    }

    /// Whether the path still means this file. The system takes writes to a file that was removed or
    /// replaced without a word.
    pub fn is_named(&self, path: &Path) -> Result<(), JournalError> {
        match os::is_named(&self.file, path) {
            Ok(true) => Ok(()),
            Ok(false) => Err(JournalError::Gone),
            Err(source) => Err(JournalError::io("asking for its name")(source)),
        }
    }

    pub fn truncate(&self, bytes: u64) -> Result<(), JournalError> {
        (self.io.truncate(&self.file, bytes))
            .map_err(JournalError::io("cutting off what was not committed"))
    }
}

impl Drop for JournalFile {
    /// Closing is not enough: a map keeps the open file, and its lock, alive, and so does a child
    /// between `fork` and `exec`.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// Opens without following a link, without waiting and without touching a device.
fn open_regular(path: &Path, options: &mut OpenOptions) -> Result<File, JournalError> {
    let opening = "opening it";
    // Checking first avoids opening devices, where `open` alone may have effects.
    refuse_irregular(&fs::symlink_metadata(path).map_err(JournalError::io(opening))?)?;
    os::no_follow_no_wait(options);
    let file = options.open(path).map_err(JournalError::io(opening))?;
    // The check that counts: the name may mean another file since.
    refuse_irregular(&file.metadata().map_err(JournalError::io(opening))?)?;
    Ok(file)
}

fn refuse_irregular(meta: &fs::Metadata) -> Result<(), JournalError> {
    let kind = meta.file_type();
    if kind.is_file() {
        Ok(())
    } else if kind.is_symlink() {
        Err(JournalError::Irregular("a symbolic link"))
    } else if kind.is_dir() {
        Err(JournalError::Irregular("a directory"))
    } else {
        Err(JournalError::Irregular("a pipe, socket or device"))
    }
}

/// Locks the file; false when the name means another file by now.
fn lock(file: &File, path: &Path) -> Result<bool, JournalError> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(JournalError::Busy),
        Err(TryLockError::Error(source)) => return Err(JournalError::io("locking it")(source)),
    }
    os::is_named(file, path).map_err(JournalError::io("locking it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between opening and locking, the file was replaced or removed: the lock is worth nothing.
    #[cfg(unix)]
    #[test]
    fn a_lock_on_a_file_without_its_name_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&path, "old").unwrap();
        fs::write(&other, "new").unwrap();
        let file = File::open(&path).unwrap();
        assert!(lock(&file, &path).unwrap());
        file.unlock().unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(!lock(&file, &path).unwrap());
        file.unlock().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!lock(&file, &path).unwrap());
    }
}
