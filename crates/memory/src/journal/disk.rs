//! Files under a journal: opened without surprises, locked, written at offsets, renamed into place.
//!
//! Every call that changes the disk passes [`Faults`] on its way, so tests can fail it or die at it.
//!
//! Locks. A journal's own file is locked, and the lock goes with the open file, not with the name:
//! the kernel drops it with the process. So whoever gets a lock asks whether the name still means
//! the file that was locked, and begins again if not. A temporary file is locked before it gets a
//! final name: no moment exists in which a journal in use can be opened by somebody else.
//!
//! Temporary files have one fixed name per journal. What is found under it and not locked was left
//! by a process that died, and is removed; a fresh one is always created, never reused.

use super::error::Error;
use super::faults::{Faults, Step};
use super::verify::Source;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

const TEMPORARY: &str = ".journal-new";
/// Others can replace a file between opening and locking it. More often than this is no accident.
const TRIES: usize = 16;

/// A journal's path, the folder it is in, and its temporary name there.
#[derive(Clone, Debug)]
pub struct Names {
    pub path: PathBuf,
    pub temporary: PathBuf,
    folder: PathBuf,
}

impl Names {
    pub fn of(path: &Path) -> Result<Names, Error> {
        let name = path.file_name().ok_or(Error::Name)?;
        if name.as_encoded_bytes().ends_with(TEMPORARY.as_bytes()) {
            return Err(Error::Name);
        }
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(TEMPORARY);
        Ok(Names {
            path: path.to_path_buf(),
            temporary: folder.join(temporary),
            folder,
        })
    }

    pub fn sync_folder(&self, faults: Option<&Faults>) -> Result<(), Error> {
        meet(faults, Step::SyncDirectory)
            .and_then(|()| imp::sync_folder(&self.folder))
            .map_err(Error::io("making its name durable"))
    }

    /// The temporary file becomes the journal. `replace` or not: then a file of that name stays.
    pub fn place(&self, replace: bool, faults: Option<&Faults>) -> Result<(), Error> {
        let renamed = meet(faults, Step::Rename).and_then(|()| {
            if replace {
                fs::rename(&self.temporary, &self.path)
            } else {
                imp::rename_new(&self.temporary, &self.path)
            }
        });
        renamed.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists,
            _ => Error::io("giving it its name")(e),
        })
    }

    pub fn remove(&self, path: &Path, faults: Option<&Faults>) -> Result<(), Error> {
        meet(faults, Step::Remove)
            .and_then(|()| fs::remove_file(path))
            .map_err(Error::io("removing it"))
    }

    /// Removes what a process that died has left. What is locked belongs to somebody alive.
    pub fn clear(&self, faults: Option<&Faults>) -> Result<(), Error> {
        match Disk::open(&self.temporary, None) {
            Ok(left) => {
                self.remove(&self.temporary, faults)?;
                drop(left);
                Ok(())
            }
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// An open, locked file.
pub struct Disk {
    file: File,
    faults: Option<Faults>,
}

impl Disk {
    /// An existing regular file, locked for this process alone.
    pub fn open(path: &Path, faults: Option<&Faults>) -> Result<Disk, Error> {
        for _ in 0..TRIES {
            let file = open_regular(path, OpenOptions::new().read(true).write(true))?;
            if lock(&file, path)? {
                return Ok(Disk::with(file, faults));
            }
        }
        Err(Error::Busy)
    }

    /// An existing regular file, to look at only; not locked.
    pub fn look(path: &Path) -> Result<Disk, Error> {
        let file = open_regular(path, OpenOptions::new().read(true))?;
        Ok(Disk::with(file, None))
    }

    /// A new and empty temporary file, locked.
    pub fn begin(names: &Names, faults: Option<&Faults>) -> Result<Disk, Error> {
        for _ in 0..TRIES {
            names.clear(faults)?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true);
            imp::private(&mut options);
            let file = match options.open(&names.temporary) {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(source) => {
                    return Err(Error::io("creating its temporary file")(source));
                }
            };
            if lock(&file, &names.temporary)? {
                return Ok(Disk::with(file, faults));
            }
        }
        Err(Error::Busy)
    }

    fn with(file: File, faults: Option<&Faults>) -> Disk {
        Disk {
            file,
            faults: faults.cloned(),
        }
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// `Write` or `WriteHead`. A struck write gets half of its bytes to the file.
    pub fn write_at(&self, step: Step, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let doing = match step {
            Step::WriteHead => "writing its head",
            _ => "writing a record",
        };
        let blow = self.faults.as_ref().and_then(|faults| faults.meet(step));
        let written = match blow {
            None => imp::write_all_at(&self.file, bytes, offset),
            Some(blow) => {
                if step == Step::Write {
                    let _ = imp::write_all_at(&self.file, &bytes[..bytes.len() / 2], offset);
                }
                Err(blow.land())
            }
        };
        written.map_err(Error::io(doing))
    }

    /// `SyncData` or `SyncHead`. Lengths that grew are part of it.
    pub fn sync(&self, step: Step) -> Result<(), Error> {
        meet(self.faults.as_ref(), step)
            .and_then(|()| self.file.sync_data())
            .map_err(Error::io("making it durable"))
    }

    /// Whether the path still means this file. What somebody removes or puts another file in the
    /// place of can be written to for days without a word from the system.
    pub fn is_named(&self, path: &Path) -> Result<(), Error> {
        match imp::is_named(&self.file, path) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Gone),
            Err(source) => Err(Error::io("asking for its name")(source)),
        }
    }

    pub fn cut(&self, bytes: u64) -> Result<(), Error> {
        meet(self.faults.as_ref(), Step::Cut)
            .and_then(|()| self.file.set_len(bytes))
            .map_err(Error::io("cutting off what was not committed"))
    }
}

impl Drop for Disk {
    /// Closing is not enough: a map keeps the open file, and its lock, alive, and so does a child
    /// between `fork` and `exec`.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

impl Source for Disk {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        imp::read_exact_at(&self.file, into, offset)
    }
}

fn meet(faults: Option<&Faults>, step: Step) -> io::Result<()> {
    match faults.and_then(|faults| faults.meet(step)) {
        None => Ok(()),
        Some(blow) => Err(blow.land()),
    }
}

/// Opens without following a link, without waiting and without touching a device.
fn open_regular(path: &Path, options: &mut OpenOptions) -> Result<File, Error> {
    let opening = "opening it";
    // Asking first keeps us from opening devices, where `open` alone may have effects.
    refuse_irregular(&fs::symlink_metadata(path).map_err(Error::io(opening))?)?;
    imp::without_surprises(options);
    let file = options.open(path).map_err(Error::io(opening))?;
    // The answer that counts: the name may have changed hands since.
    refuse_irregular(&file.metadata().map_err(Error::io(opening))?)?;
    Ok(file)
}

fn refuse_irregular(meta: &fs::Metadata) -> Result<(), Error> {
    let kind = meta.file_type();
    if kind.is_file() {
        Ok(())
    } else if kind.is_symlink() {
        Err(Error::Irregular("a symbolic link"))
    } else if kind.is_dir() {
        Err(Error::Irregular("a directory"))
    } else {
        Err(Error::Irregular("a pipe, socket or device"))
    }
}

/// Locks the file; false when the name means another one by now.
fn lock(file: &File, path: &Path) -> Result<bool, Error> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Error::Busy),
        Err(TryLockError::Error(source)) => return Err(Error::io("locking it")(source)),
    }
    imp::is_named(file, path).map_err(Error::io("locking it"))
}

#[cfg(unix)]
mod imp {
    use super::*;
    use rustix::fs::OFlags;
    use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

    pub fn without_surprises(options: &mut OpenOptions) {
        // NONBLOCK means nothing to a regular file and keeps `open` of a FIFO from waiting.
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    }

    /// What people say to a model is nobody else's to read.
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
            // Some file systems keep names by themselves and say so this way.
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
        super::rename_after_asking(from, to)
    }
}

#[cfg(windows)]
mod imp {
    use super::*;
    use std::os::windows::fs::FileExt;

    pub fn without_surprises(_options: &mut OpenOptions) {}

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

    /// There is no such call; names are kept by the file system's own log.
    pub fn sync_folder(_folder: &Path) -> io::Result<()> {
        Ok(())
    }

    pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
        super::rename_after_asking(from, to)
    }
}

/// Where the system has no rename that refuses. Journals all take the lock of the temporary file
/// first, so among them nobody comes between the question and the rename.
fn rename_after_asking(from: &Path, to: &Path) -> io::Result<()> {
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
    fn a_rename_that_refuses_does() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for rename in [imp::rename_new, rename_after_asking] {
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
