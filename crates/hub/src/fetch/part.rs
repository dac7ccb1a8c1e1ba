//! A file that is being fetched: a prefix of the final bytes, hashed as it grows.
//!
//! The hash always covers exactly the bytes in the file, so that nothing is read twice except what
//! an earlier fetch left. The final name appears by rename after an fsync, never before the caller
//! has compared the hash.

use crate::error::{Doing, FetchFailure, HubError};
use crate::home::open_or_create;
use crate::tidy::Temporary;
use haversack_memory::file::open_sequential;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Large enough that system calls do not show, small enough for any stack of buffers.
const CHUNK: usize = 1 << 17;

pub struct PartialFile {
    path: PathBuf,
    file: File,
    hash: Sha256,
    len: u64,
    /// Of the whole file.
    total: u64,
    /// Whether bytes of an earlier fetch are in it.
    resumed: bool,
    _tidy: Temporary,
}

impl PartialFile {
    /// Opens or creates the file and hashes what is in it.
    pub fn open(path: &Path, total: u64) -> Result<PartialFile, HubError> {
        let file = open_or_create(path)?;
        let mut part = PartialFile {
            path: path.to_path_buf(),
            file,
            hash: Sha256::new(),
            len: 0,
            total,
            resumed: false,
            _tidy: Temporary::growing(path),
        };
        let found = part.file.metadata().doing(|| part.name())?.len();
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
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), FetchFailure> {
        if bytes.len() as u64 > self.total - self.len {
            let reason = format!("it serves more than {} bytes", self.total);
            return Err(FetchFailure::Source(reason));
        }
        let written = self.file.write_all(bytes);
        written.map_err(|error| self.writing(error))?;
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Keeps the first `len` bytes.
    pub fn truncate(&mut self, len: u64) -> Result<(), HubError> {
        if len >= self.len {
            return Ok(());
        }
        if len == 0 {
            return self.restart();
        }
        self.file.set_len(len).doing(|| self.name())?;
        self.rehash(len)
    }

    /// Empties the file.
    pub fn restart(&mut self) -> Result<(), HubError> {
        self.file.set_len(0).doing(|| self.name())?;
        self.file.seek(SeekFrom::Start(0)).doing(|| self.name())?;
        self.hash = Sha256::new();
        self.len = 0;
        self.resumed = false;
        Ok(())
    }

    /// Gives the file its final name. The caller has compared the hash.
    pub fn finish(self, target: &Path) -> Result<(), HubError> {
        if let Err(error) = self.file.sync_all() {
            let error = self.writing(error);
            self.discard();
            return Err(error);
        }
        fs::rename(&self.path, target).doing(|| {
            let (from, to) = (self.path.display(), target.display());
            format!("cannot rename {from} to {to}")
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

    fn rehash(&mut self, len: u64) -> Result<(), HubError> {
        self.file.seek(SeekFrom::Start(0)).doing(|| self.name())?;
        let (hash, read) = hash_reader(&mut (&mut self.file).take(len)).doing(|| self.name())?;
        if read != len {
            return Err(HubError::Changed(self.path.clone()));
        }
        self.hash = hash;
        self.len = len;
        Ok(())
    }

    fn writing(&self, error: io::Error) -> HubError {
        let what = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "disk full while writing",
            _ => "cannot write",
        };
        let doing = format!("{what} {}", self.path.display());
        HubError::Io { doing, error }
    }

    fn name(&self) -> String {
        format!("cannot use {}", self.path.display())
    }
}

/// The sha256 of a file in lower-case hexadecimal.
pub fn sha256_file(path: &Path) -> Result<String, HubError> {
    let read = || -> io::Result<_> { hash_reader(&mut open_sequential(path)?) };
    let (hash, _) = read().doing(|| format!("cannot read {}", path.display()))?;
    Ok(hex(hash))
}

fn hash_reader(reader: &mut impl Read) -> io::Result<(Sha256, u64)> {
    let mut hash = Sha256::new();
    let mut len = 0;
    pieces(reader, |bytes| {
        hash.update(bytes);
        len += bytes.len() as u64;
        io::Result::Ok(())
    })?;
    Ok((hash, len))
}

/// Hands on all that `reader` gives, piece by piece.
fn pieces<E: From<io::Error>>(
    reader: &mut impl Read,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = vec![0; CHUNK];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => take(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn hex(hash: Sha256) -> String {
    let bytes = hash.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Copies a whole source into the part, telling how far it is. Bytes before the source broke count.
pub fn copy(
    reader: &mut impl Read,
    part: &mut PartialFile,
    mut tell: impl FnMut(u64),
) -> Result<(), FetchFailure> {
    pieces(reader, |bytes| {
        part.write(bytes)?;
        tell(part.len());
        Ok(())
    })
}

impl From<io::Error> for FetchFailure {
    /// Of reading from a source.
    fn from(error: io::Error) -> FetchFailure {
        FetchFailure::Cut(error.to_string())
    }
}
