//! Committed records, read where they lie.

use super::error::JournalError;
use super::layout::{self, FIRST, HEADER_BYTES, RecordHeader, RecordRef};
use crate::file::{FileMap, Region};
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// A read-only map of the records that were committed when it was made.
///
/// It stays valid whatever happens to the journal: appending and committing write behind it (or to
/// the head, which it never shows), and rewriting or removing leaves it the old file. References go
/// with the file they are of: after a rewrite, old ones with the old map, new ones with a new map.
///
/// Pages come from the file when they are touched. Their checksums were verified when the journal
/// was opened or when they were written, and are not checked again; [`super::Journal::read`] does.
///
/// Clones share one map, which is unmapped with the last of them and of its regions.
#[derive(Clone)]
pub struct JournalMap {
    bytes: Arc<FileMap>,
}

/// Refers to a map without keeping it alive.
#[derive(Clone)]
pub struct WeakJournalMap(Weak<FileMap>);

impl WeakJournalMap {
    pub fn upgrade(&self) -> Option<JournalMap> {
        let bytes = self.0.upgrade()?;
        Some(JournalMap { bytes })
    }
}

impl JournalMap {
    pub(super) fn new(file: &File, committed: u64) -> Result<JournalMap, JournalError> {
        let len =
            usize::try_from(committed).map_err(|_| JournalError::Memory { bytes: committed })?;
        let bytes = FileMap::of(file, len).map_err(JournalError::io("mapping it"))?;
        let bytes = Arc::new(bytes);
        Ok(JournalMap { bytes })
    }

    pub fn downgrade(&self) -> WeakJournalMap {
        WeakJournalMap(Arc::downgrade(&self.bytes))
    }

    /// The payload, at an address that is a multiple of 64 where files are mapped.
    pub fn payload(&self, record: RecordRef) -> Result<&[u8], JournalError> {
        let range = self.find(record);
        range
            .and_then(|r| self.bytes.range(r))
            .ok_or(record.stale())
    }

    /// The payload as a part of the map that keeps the map alive.
    pub fn region(&self, record: RecordRef) -> Result<Region, JournalError> {
        let range = self.find(record);
        let region = range.and_then(|r| Region::new(self.bytes.clone(), r));
        region.ok_or(record.stale())
    }

    fn find(&self, record: RecordRef) -> Option<Range<usize>> {
        let offset = record.offset().checked_sub(HEADER_BYTES)?;
        if offset < FIRST || layout::record_end(offset, record.bytes)? > self.bytes.len() as u64 {
            return None;
        }
        let header = self.bytes.range(at(offset)?..at(record.offset())?)?;
        let header = RecordHeader::decode(header.try_into().ok()?, offset).ok()?;
        if RecordRef::of(offset, &header) != record {
            return None;
        }
        let end = record.offset().checked_add(record.bytes)?;
        Some(at(record.offset())?..at(end)?)
    }
}

fn at(offset: u64) -> Option<usize> {
    usize::try_from(offset).ok()
}
