//! A journal that does not have its name yet.

use super::error::JournalError;
use super::file::{JournalFile, JournalPaths};
use super::layout::{IDENTITY_BYTES_MAX, JournalHead, RecordRef, RecordRole};
use super::write::Tail;

/// A journal under its temporary name.
pub struct Draft {
    pub temporary: Temporary,
    pub file: JournalFile,
    identity: blake3::Hash,
    pub tail: Tail,
    key: Option<[u8; 32]>,
}

impl Draft {
    pub fn begin(
        paths: &JournalPaths,
        quota_bytes: Option<u64>,
        key: Option<[u8; 32]>,
        identity: &[u8],
    ) -> Result<Draft, JournalError> {
        let bytes = identity.len() as u64;
        if bytes > IDENTITY_BYTES_MAX {
            let max = IDENTITY_BYTES_MAX;
            return Err(JournalError::Identity { bytes, max });
        }
        let file = paths.create_temporary()?;
        let temporary = Temporary {
            paths: paths.clone(),
            placed: false,
        };
        let mut tail = Tail::start(quota_bytes);
        tail.append(&file, RecordRole::Identity, 0, &[identity])?;
        Ok(Draft {
            temporary,
            file,
            identity: blake3::hash(identity),
            tail,
            key,
        })
    }

    pub fn append(&mut self, kind: u32, parts: &[&[u8]]) -> Result<RecordRef, JournalError> {
        self.tail
            .append(&self.file, RecordRole::Record, kind, parts)
    }

    pub fn head(&self, commits: u64) -> JournalHead {
        JournalHead {
            length: self.tail.end,
            commits,
            chain: self.tail.chain,
            identity: self.identity,
        }
    }

    /// Head, fsync, rename. The folder is the caller's to sync.
    pub fn place(
        mut self,
        commits: u64,
        replace: bool,
    ) -> Result<(JournalFile, JournalHead, Tail), JournalError> {
        let head = self.head(commits);
        self.file.write_head(&head.encode(self.key.as_ref()))?;
        self.file.sync()?;
        self.temporary.paths.place(replace)?;
        self.temporary.placed = true;
        Ok((self.file, head, self.tail))
    }
}

/// Removes the temporary file unless it got its final name.
pub struct Temporary {
    paths: JournalPaths,
    pub placed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.placed {
            // A file that stays is removed when the journal is opened or created next.
            let _ = self.paths.remove_temporary();
        }
    }
}
