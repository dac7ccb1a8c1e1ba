//! Committed records, read where they lie.

use super::RecordRef;
use super::error::Error;
use super::layout::{self, FIRST, HEADER_BYTES, Header};
use crate::file::FileMap;
use std::fs::File;

/// A read-only map of the records that were committed when it was made.
///
/// It stays valid whatever happens to the journal: appending and committing write behind it (or to
/// the head, which it never shows), and rewriting or removing leaves it the old file. References go
/// with the file they are of: after a rewrite, old ones with the old map, new ones with a new map.
///
/// Pages come from the file when they are touched. Their checksums were verified when the journal
/// was opened or when they were written, and are not looked at again; [`super::Journal::read`] does.
pub struct Map {
    bytes: FileMap,
}

impl Map {
    pub(super) fn new(file: &File, committed: u64) -> Result<Map, Error> {
        let len = usize::try_from(committed).map_err(|_| Error::Memory { bytes: committed })?;
        let bytes = FileMap::of(file, len).map_err(Error::io("mapping it"))?;
        Ok(Map { bytes })
    }

    /// The payload, at an address that is a multiple of 64 where files are mapped.
    pub fn payload(&self, record: RecordRef) -> Result<&[u8], Error> {
        let stale = Error::Stale {
            offset: record.offset,
        };
        self.find(record).ok_or(stale)
    }

    fn find(&self, record: RecordRef) -> Option<&[u8]> {
        let offset = record.offset.checked_sub(HEADER_BYTES)?;
        if offset < FIRST || layout::record_end(offset, record.bytes)? > self.bytes.len() as u64 {
            return None;
        }
        let header = self.bytes.range(at(offset)?..at(record.offset)?)?;
        let header = Header::decode(header.try_into().ok()?, offset).ok()?;
        if RecordRef::of(offset, &header) != record {
            return None;
        }
        let end = record.offset.checked_add(record.bytes)?;
        self.bytes.range(at(record.offset)?..at(end)?)
    }

    /// For residency and advice; committed bytes, head included.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Bytes of the file that are in memory; see [`FileMap::resident_bytes`].
    pub fn resident_bytes(&self) -> Option<u64> {
        self.bytes.resident_bytes()
    }
}

fn at(offset: u64) -> Option<usize> {
    usize::try_from(offset).ok()
}
