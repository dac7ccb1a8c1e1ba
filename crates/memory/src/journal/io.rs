//! The calls by which a journal changes the disk, and what the systems call them.

use crate::system::SystemIo;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

/// Calls that change the disk. The provided methods make them; a test overrides one to fail it, or to end the process at
/// it.
pub trait JournalIo: fmt::Debug + Send + Sync {
    /// Bytes of records behind what is committed, or of the head, which is at offset 0.
    fn write_all_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        os::write_all_at(file, bytes, offset)
    }

    /// Makes what was written durable. A length that grew is part of it.
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Cuts off what is not committed.
    fn truncate(&self, file: &File, bytes: u64) -> io::Result<()> {
        file.set_len(bytes)
    }

    /// Gives a temporary file its final name. Without `replace` a file of that name stays, and the call fails.
    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        if replace {
            fs::rename(from, to)
        } else {
            os::rename_new(from, to)
        }
    }

    /// Makes the names in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        os::sync_folder(folder)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// Runs work that waits for the disk beside the caller. `false`: there is no thread for it, and it was not run.
    fn run_beside(&self, work: Box<dyn FnOnce() + Send>) -> bool {
        let thread = std::thread::Builder::new().name("journal".into());
        thread.spawn(work).is_ok()
    }
}

impl JournalIo for SystemIo {}

#[cfg(unix)]
pub(super) mod os {
    use super::*;
    use rustix::fs::OFlags;
    use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

    pub fn no_follow_no_wait(options: &mut OpenOptions) {
        // NONBLOCK means nothing to a regular file and keeps `open` of a FIFO from waiting.
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    }

    /// Conversations are for their owner's eyes only.
    pub fn private(options: &mut OpenOptions) {
        options.mode(0o600);
    }

    pub fn is_named(file: &File, path: &Path) -> io::Result<bool> {
        let ours = file.metadata()?;
        match fs::symlink_metadata(path) {
            Ok(named) => Ok(named.dev() == ours.dev() && named.ino() == ours.ino()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    pub fn read_exact_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_exact_at(into, offset)
    }

    pub fn sync_folder(folder: &Path) -> io::Result<()> {
        match File::open(folder)?.sync_all() {
            // Some file systems keep names durable themselves and answer this way.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
            result => result,
        }
    }

    pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
        #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
        {
            use rustix::fs::{CWD, RenameFlags};
            use rustix::io::Errno;
            match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
                result => return Ok(result?),
            }
        }
        super::rename_if_absent(from, to)
    }
}

#[cfg(windows)]
pub(super) mod os {
    use super::*;
    use std::os::windows::fs::FileExt;

    pub fn no_follow_no_wait(_options: &mut OpenOptions) {}

    pub fn private(_options: &mut OpenOptions) {}

    pub fn is_named(_file: &File, _path: &Path) -> io::Result<bool> {
        Ok(true)
    }

    pub fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match file.seek_write(bytes, offset)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => {
                    bytes = &bytes[n..];
                    offset += n as u64;
                }
            }
        }
        Ok(())
    }

    pub fn read_exact_at(file: &File, mut into: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !into.is_empty() {
            match file.seek_read(into, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => {
                    into = &mut into[n..];
                    offset += n as u64;
                }
            }
        }
        Ok(())
    }

    /// Windows has no such call; the file system's own log keeps names.
    pub fn sync_folder(_folder: &Path) -> io::Result<()> {
        Ok(())
    }

    pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
        super::rename_if_absent(from, to)
    }
}

/// Where the system has no rename that refuses. Every journal takes the lock of the temporary file
/// first, so no other journal comes between the check and the rename.
fn rename_if_absent(from: &Path, to: &Path) -> io::Result<()> {
    match fs::symlink_metadata(to) {
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => fs::rename(from, to),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rename_new_refuses_an_existing_name() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for rename in [os::rename_new, rename_if_absent] {
            fs::write(&from, "new").unwrap();
            fs::write(&to, "old").unwrap();
            let e = rename(&from, &to).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read(&to).unwrap(), b"old");
            fs::remove_file(&to).unwrap();
            rename(&from, &to).unwrap();
            assert_eq!(fs::read(&to).unwrap(), b"new");
        }
    }
}
