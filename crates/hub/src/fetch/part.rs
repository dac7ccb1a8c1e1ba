//! A file that is being fetched: a prefix of the final bytes, hashed as it grows.
//!
//! The hash always covers exactly the bytes in the file, so that nothing is read twice except what
//! an earlier fetch left. The final name appears by rename after an fsync, never before the caller
//! has compared the hash.

use super::Failure;
use crate::tidy::Growing;
use anyhow::{Context, Result, anyhow};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Large enough that system calls do not show, small enough for any stack of buffers.
const CHUNK: usize = 1 << 17;

pub struct Part {
    path: PathBuf,
    file: File,
    hash: Sha256,
    len: u64,
    /// Of the whole file.
    total: u64,
    /// Whether bytes of an earlier fetch are in it.
    resumed: bool,
    _tidy: Growing,
}

impl Part {
    /// Opens or creates the file and hashes what is in it.
    pub fn open(path: &Path, total: u64) -> Result<Part> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let mut part = Part {
            path: path.to_path_buf(),
            file,
            hash: Sha256::new(),
            len: 0,
            total,
            resumed: false,
            _tidy: Growing::new(path.to_path_buf()),
        };
        let found = part.file.metadata().with_context(|| part.name())?.len();
        if found > total {
            part.restart()?;
        } else if found > 0 {
            part.rehash(found)?;
            part.resumed = true;
        }
        Ok(part)
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn resumed(&self) -> bool {
        self.resumed
    }

    /// Of the bytes so far, in lower-case hexadecimal.
    pub fn sha256(&self) -> String {
        hex(self.hash.clone())
    }

    /// Appends. More bytes than the whole file has mean that the source serves something else.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if bytes.len() as u64 > self.total - self.len {
            return Err(Failure::Source(format!(
                "it serves more than {} bytes",
                self.total
            )));
        }
        if let Err(error) = self.file.write_all(bytes) {
            return Err(Failure::Local(self.writing(error)));
        }
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Keeps the first `len` bytes.
    pub fn truncate(&mut self, len: u64) -> Result<()> {
        if len >= self.len {
            return Ok(());
        }
        if len == 0 {
            return self.restart();
        }
        self.file.set_len(len).with_context(|| self.name())?;
        self.rehash(len)
    }

    /// Empties the file.
    pub fn restart(&mut self) -> Result<()> {
        self.file.set_len(0).with_context(|| self.name())?;
        self.file
            .seek(SeekFrom::Start(0))
            .with_context(|| self.name())?;
        self.hash = Sha256::new();
        self.len = 0;
        self.resumed = false;
        Ok(())
    }

    /// Gives the file its final name. The caller has compared the hash.
    pub fn finish(self, target: &Path) -> Result<()> {
        if let Err(error) = self.file.sync_all() {
            let error = self.writing(error);
            self.discard();
            return Err(error);
        }
        fs::rename(&self.path, target).with_context(|| {
            format!(
                "cannot rename {} to {}",
                self.path.display(),
                target.display()
            )
        })?;
        // The rename itself must survive a power cut; where a directory cannot be synced, the
        // worst that follows is another download.
        if let Some(parent) = target.parent()
            && let Ok(directory) = File::open(parent)
        {
            let _ = directory.sync_all();
        }
        Ok(())
    }

    /// Removes the file: nothing of it is worth keeping.
    pub fn discard(&self) {
        let _ = fs::remove_file(&self.path);
    }

    fn rehash(&mut self, len: u64) -> Result<()> {
        self.file
            .seek(SeekFrom::Start(0))
            .with_context(|| self.name())?;
        let (hash, read) =
            hash_reader(&mut (&mut self.file).take(len)).with_context(|| self.name())?;
        if read != len {
            return Err(anyhow!("{} changed while it was read", self.path.display()));
        }
        self.hash = hash;
        self.len = len;
        Ok(())
    }

    fn writing(&self, error: io::Error) -> anyhow::Error {
        let what = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "disk full while writing",
            _ => "cannot write",
        };
        anyhow::Error::new(error).context(format!("{what} {}", self.path.display()))
    }

    fn name(&self) -> String {
        format!("cannot use {}", self.path.display())
    }
}

/// The sha256 of a file in lower-case hexadecimal.
pub fn sha256_file(path: &Path) -> Result<String> {
    let read = || -> io::Result<_> { hash_reader(&mut File::open(path)?) };
    let (hash, _) = read().with_context(|| format!("cannot read {}", path.display()))?;
    Ok(hex(hash))
}

fn hash_reader(reader: &mut impl Read) -> io::Result<(Sha256, u64)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut len = 0;
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok((hash, len)),
            Ok(count) => {
                hash.update(&buffer[..count]);
                len += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Copies a whole source into the part, telling how far it is.
pub fn copy(
    reader: &mut impl Read,
    part: &mut Part,
    mut tell: impl FnMut(u64),
) -> Result<(), Copying> {
    let mut buffer = vec![0; CHUNK];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                part.write(&buffer[..count]).map_err(Copying::Failed)?;
                tell(part.len());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Copying::Cut(error)),
        }
    }
}

/// How a copy ended early.
pub enum Copying {
    /// The source stopped giving bytes; those before it count.
    Cut(io::Error),
    Failed(Failure),
}
