//! Putting records behind each other: the one way bytes get into a journal, whether they are
//! appended to a file in use or fill the temporary file that will take its place.

use super::disk::Disk;
use super::error::Error;
use super::faults::Step;
use super::layout::{self, FIRST, HEADER_BYTES, Header, Role};
use super::verify::Source;
use super::{Options, RecordRef};
use blake3::Hash;

/// Small parts are gathered up to this before they are written; larger ones go as they are.
const GATHER_BYTES: usize = 64 << 10;

/// Where the next record goes, and the chain up to there.
#[derive(Clone, Debug)]
pub struct Tail {
    pub end: u64,
    pub chain: Hash,
}

impl Tail {
    /// Of a file without records.
    pub fn start() -> Tail {
        Tail {
            end: FIRST,
            chain: layout::chain_start(),
        }
    }

    /// Writes a record and moves on. After a failure the tail is where it was, and what lies
    /// behind it in the file means nothing.
    pub fn append(
        &mut self,
        disk: &Disk,
        options: &Options,
        role: Role,
        kind: u32,
        parts: &[&[u8]],
    ) -> Result<RecordRef, Error> {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = 0u64;
        for part in parts {
            hasher.update(part);
            bytes = bytes.saturating_add(part.len() as u64);
        }
        let header = Header {
            role,
            kind,
            bytes,
            payload: hasher.finalize(),
        };
        self.write(disk, options, &header, |out| {
            parts.iter().try_for_each(|part| out.put(part))
        })
    }

    /// The same record as at `from` in another file. Its bytes are checked on the way: damage is
    /// not copied.
    pub fn copy(
        &mut self,
        disk: &Disk,
        options: &Options,
        source: &Disk,
        from: RecordRef,
    ) -> Result<RecordRef, Error> {
        let header = find(source, from)?;
        self.write(disk, options, &header, |out| {
            let mut hasher = blake3::Hasher::new();
            let mut chunk = zeroed(header.bytes.min(GATHER_BYTES as u64))?;
            let mut done = 0;
            while done < header.bytes {
                let n = (chunk.len() as u64).min(header.bytes - done) as usize;
                source
                    .read_exact_at(&mut chunk[..n], from.offset() + done)
                    .map_err(Error::io("reading a record"))?;
                hasher.update(&chunk[..n]);
                out.put(&chunk[..n])?;
                done += n as u64;
            }
            matches(hasher.finalize(), &header, from.offset())
        })
    }

    fn write(
        &mut self,
        disk: &Disk,
        options: &Options,
        header: &Header,
        fill: impl FnOnce(&mut Outlet<'_>) -> Result<(), Error>,
    ) -> Result<RecordRef, Error> {
        let end = layout::record_end(self.end, header.bytes);
        let end = options.within_quota(end.unwrap_or(u64::MAX))?;
        let head = header.encode(self.end);
        let mut out = Outlet::new(disk, self.end, end)?;
        out.put(&head)?;
        fill(&mut out)?;
        let padding = layout::padded(header.bytes).unwrap_or(0) - header.bytes;
        out.put(&[0; layout::ALIGN as usize][..padding as usize])?;
        out.flush()?;
        let record = RecordRef::of(self.end, header);
        *self = Tail {
            end,
            chain: layout::chain_on(&self.chain, &head),
        };
        Ok(record)
    }
}

/// The header of the record that `wanted` refers to, or the news that there is none.
pub fn find(source: &Disk, wanted: RecordRef) -> Result<Header, Error> {
    let stale = Error::Stale {
        offset: wanted.offset(),
    };
    let Some(offset) = wanted.offset().checked_sub(HEADER_BYTES) else {
        return Err(stale);
    };
    let mut bytes = [0; HEADER_BYTES as usize];
    if source.read_exact_at(&mut bytes, offset).is_err() {
        return Err(stale);
    }
    match Header::decode(&bytes, offset) {
        Ok(header) if RecordRef::of(offset, &header) == wanted => Ok(header),
        _ => Err(stale),
    }
}

/// Are these the bytes the header promised?
pub fn matches(found: Hash, header: &Header, offset: u64) -> Result<(), Error> {
    if found == header.payload {
        return Ok(());
    }
    Err(Error::Damaged {
        offset,
        what: "a record's bytes do not match their checksum",
    })
}

/// So many zero bytes, or the news that there is no memory for them.
pub fn zeroed(bytes: u64) -> Result<Vec<u8>, Error> {
    let mut buffer = Vec::new();
    usize::try_from(bytes)
        .ok()
        .and_then(|n| buffer.try_reserve_exact(n).ok().map(|()| n))
        .map(|n| buffer.resize(n, 0))
        .ok_or(Error::Memory { bytes })?;
    Ok(buffer)
}

/// Bytes on their way to the file, small ones gathered.
struct Outlet<'a> {
    disk: &'a Disk,
    at: u64,
    gathered: Vec<u8>,
}

impl<'a> Outlet<'a> {
    fn new(disk: &'a Disk, at: u64, end: u64) -> Result<Outlet<'a>, Error> {
        let bytes = (end - at).min(GATHER_BYTES as u64);
        let mut gathered = Vec::new();
        gathered
            .try_reserve_exact(bytes as usize)
            .map_err(|_| Error::Memory { bytes })?;
        Ok(Outlet { disk, at, gathered })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > self.gathered.capacity() - self.gathered.len() {
            self.flush()?;
        }
        if bytes.len() > self.gathered.capacity() {
            self.disk.write_at(Step::Write, bytes, self.at)?;
            self.at += bytes.len() as u64;
        } else {
            self.gathered.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        if !self.gathered.is_empty() {
            self.disk.write_at(Step::Write, &self.gathered, self.at)?;
            self.at += self.gathered.len() as u64;
            self.gathered.clear();
        }
        Ok(())
    }
}
