//! Appends records: the one way bytes get into a journal, whether it is a file in use or the temporary
//! file that will take its place.

use super::error::JournalError;
use super::file::JournalFile;
use super::layout::{self, FIRST, HEADER_BYTES, JournalHead, RecordHeader, RecordRef, RecordRole};
use super::verify::zeroed;
use blake3::Hash;

/// Parts are joined up to this length before they are written; larger ones are written as they are.
const BUFFER_BYTES: usize = 64 << 10;

/// Where the next record goes, and the chain up to there.
#[derive(Clone, Debug)]
pub struct Tail {
    pub end: u64,
    pub chain: Hash,
    quota_bytes: Option<u64>,
}

impl Tail {
    /// Of a file without records.
    pub fn start(quota_bytes: Option<u64>) -> Tail {
        Tail {
            end: FIRST,
            chain: layout::chain_start(),
            quota_bytes,
        }
    }

    pub fn set_quota(&mut self, quota_bytes: Option<u64>) {
        self.quota_bytes = quota_bytes;
    }

    /// Behind what is committed.
    pub fn of(head: &JournalHead, quota_bytes: Option<u64>) -> Tail {
        Tail {
            end: head.length,
            chain: head.chain,
            quota_bytes,
        }
    }

    /// Writes a record and moves on. After a failure the tail is where it was, and what lies
    /// behind it in the file means nothing.
    pub fn append(
        &mut self,
        file: &JournalFile,
        role: RecordRole,
        kind: u32,
        parts: &[&[u8]],
    ) -> Result<RecordRef, JournalError> {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = 0u64;
        for part in parts {
            hasher.update(part);
            bytes = bytes.saturating_add(part.len() as u64);
        }
        let header = RecordHeader {
            role,
            kind,
            bytes,
            payload: hasher.finalize(),
        };
        self.write(file, &header, |out| {
            parts.iter().try_for_each(|part| out.put(part))
        })
    }

    /// The same record as at `from` in another file. Its bytes are checked on the way: damage is
    /// not copied.
    pub fn copy(
        &mut self,
        file: &JournalFile,
        source: &JournalFile,
        from: RecordRef,
    ) -> Result<RecordRef, JournalError> {
        let header = find(source, from)?;
        self.write(file, &header, |out| {
            let mut hasher = blake3::Hasher::new();
            let mut chunk = zeroed(header.bytes.min(BUFFER_BYTES as u64))?;
            let mut done = 0;
            while done < header.bytes {
                let n = (chunk.len() as u64).min(header.bytes - done) as usize;
                source
                    .read_exact_at(&mut chunk[..n], from.offset() + done)
                    .map_err(JournalError::io("reading a record"))?;
                hasher.update(&chunk[..n]);
                out.put(&chunk[..n])?;
                done += n as u64;
            }
            header.check(hasher.finalize(), from.offset())
        })
    }

    fn write(
        &mut self,
        file: &JournalFile,
        header: &RecordHeader,
        fill: impl FnOnce(&mut RecordWriter<'_>) -> Result<(), JournalError>,
    ) -> Result<RecordRef, JournalError> {
        let end = layout::record_end(self.end, header.bytes);
        let end = end.unwrap_or(u64::MAX);
        if let Some(quota) = self.quota_bytes.filter(|&quota| end > quota) {
            return Err(JournalError::Quota { needed: end, quota });
        }
        let head = header.encode(self.end);
        let mut out = RecordWriter::new(file, self.end, end)?;
        out.put(&head)?;
        fill(&mut out)?;
        let padding = layout::padded(header.bytes).unwrap_or(0) - header.bytes;
        out.put(&[0; layout::ALIGN as usize][..padding as usize])?;
        out.flush()?;
        let record = RecordRef::of(self.end, header);
        self.end = end;
        self.chain = layout::chain_on(&self.chain, &head);
        Ok(record)
    }
}

/// The header of the record that `wanted` refers to, or [`JournalError::Stale`].
pub fn find(source: &JournalFile, wanted: RecordRef) -> Result<RecordHeader, JournalError> {
    let header = || {
        let offset = wanted.offset().checked_sub(HEADER_BYTES)?;
        let mut bytes = [0; HEADER_BYTES as usize];
        source.read_exact_at(&mut bytes, offset).ok()?;
        let header = RecordHeader::decode(&bytes, offset).ok()?;
        (RecordRef::of(offset, &header) == wanted).then_some(header)
    };
    header().ok_or(wanted.stale())
}

/// A writer that joins small parts to one write.
struct RecordWriter<'a> {
    file: &'a JournalFile,
    at: u64,
    buffered: Vec<u8>,
}

impl<'a> RecordWriter<'a> {
    fn new(file: &'a JournalFile, at: u64, end: u64) -> Result<RecordWriter<'a>, JournalError> {
        let bytes = (end - at).min(BUFFER_BYTES as u64);
        let mut buffered = Vec::new();
        buffered
            .try_reserve_exact(bytes as usize)
            .map_err(|_| JournalError::Memory { bytes })?;
        Ok(RecordWriter { file, at, buffered })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        if bytes.len() > self.buffered.capacity() - self.buffered.len() {
            self.flush()?;
        }
        if bytes.len() > self.buffered.capacity() {
            self.file.write_record(bytes, self.at)?;
            self.at += bytes.len() as u64;
        } else {
            self.buffered.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), JournalError> {
        if !self.buffered.is_empty() {
            self.file.write_record(&self.buffered, self.at)?;
            self.at += self.buffered.len() as u64;
            self.buffered.clear();
        }
        Ok(())
    }
}
