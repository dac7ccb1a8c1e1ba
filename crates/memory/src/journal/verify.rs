//! Reading a journal from its first byte to its last committed one, checking every byte.
//!
//! One pass with one buffer of bounded size: opening, viewing and checking all come through here. Nothing is handed out as true until the pass has reached the end: the chain in
//! the head covers all records, and only there is it known.

use super::error::JournalError;
use super::file::JournalFile;
use super::layout::{
    self, ALIGN, FIRST, HEAD_BYTES, HEADER_BYTES, IDENTITY_BYTES_MAX, JournalHead, RecordHeader,
    RecordRef, RecordRole,
};
use std::ops::ControlFlow;

/// Read at a time: large enough for the disk, small enough not to count.
const WINDOW_BYTES: u64 = 256 << 10;

/// A journal whose every committed byte is what was written.
pub struct Verified {
    pub head: JournalHead,
    pub identity: Vec<u8>,
    /// Committed or not.
    pub file_bytes: u64,
}

fn file_bytes(file: &JournalFile) -> Result<u64, JournalError> {
    let bytes = file.bytes();
    bytes.map_err(JournalError::io("asking for its length"))
}

/// The head, of a file that is as long as it says.
pub fn committed_head(
    file: &JournalFile,
    key: Option<&[u8; 32]>,
) -> Result<JournalHead, JournalError> {
    let file_bytes = file_bytes(file)?;
    let head = JournalHead::decode(&read_head(file, file_bytes)?, key)?;
    if head.length > file_bytes {
        return Err(JournalError::Truncated {
            bytes: file_bytes,
            committed: head.length,
        });
    }
    Ok(head)
}

/// Checks everything up to the committed length. `each` gets the records as they pass, before the last
/// of them is checked.
pub fn verify(
    file: &JournalFile,
    key: Option<&[u8; 32]>,
    mut each: impl FnMut(RecordRef) -> Result<(), JournalError>,
) -> Result<Verified, JournalError> {
    let file_bytes = file_bytes(file)?;
    let head = committed_head(file, key)?;
    let mut window = Window::new(file, FIRST, head.length)?;
    let mut chain = layout::chain_start();
    let mut identity = Vec::new();
    while window.at < window.end {
        let offset = window.at;
        let damaged = |what| JournalError::Damaged { offset, what };
        let mut bytes = [0; HEADER_BYTES as usize];
        bytes.copy_from_slice(window.next(HEADER_BYTES)?);
        let header = RecordHeader::decode(&bytes, offset)?;
        // Before anything is reserved or read for it: does it fit what is there?
        if layout::record_end(offset, header.bytes).is_none_or(|end| end > window.end) {
            return Err(damaged("a record passes the committed end"));
        }
        let first = offset == FIRST;
        if (header.role == RecordRole::Identity) != first {
            return Err(damaged("the identity is not the first record, and alone"));
        }
        if first {
            if header.bytes > IDENTITY_BYTES_MAX || header.payload != head.identity {
                return Err(damaged("the identity is not the one of the head"));
            }
            payload(&mut window, &header, |bytes| {
                identity.extend_from_slice(bytes)
            })?;
        } else {
            payload(&mut window, &header, |_| {})?;
            each(RecordRef::of(offset, &header))?;
        }
        chain = layout::chain_on(&chain, &bytes);
    }
    if chain != head.chain {
        return Err(JournalError::Damaged {
            offset: 32,
            what: "the records are not those that were committed",
        });
    }
    Ok(Verified {
        head,
        identity,
        file_bytes,
    })
}

/// Hands out the records that are what was written, in order, the identity first, and stops before the first that is not.
/// Returns what is wrong with the rest. The head is not needed for that: a header's own checksum covers its place, and
/// its payload. Without a head that can be read, records that were not committed count too.
pub fn salvage(
    file: &JournalFile,
    key: Option<&[u8; 32]>,
    mut each: impl FnMut(RecordRole, u32, &[u8]) -> ControlFlow<()>,
) -> Result<Option<JournalError>, JournalError> {
    let file_bytes = file_bytes(file)?;
    let head = read_head(file, file_bytes).and_then(|bytes| JournalHead::decode(&bytes, key));
    let (end, chain, mut damage) = match head {
        Ok(head) if head.length <= file_bytes => (head.length, Some(head.chain), None),
        Ok(head) => {
            let (bytes, committed) = (file_bytes, head.length);
            let truncated = JournalError::Truncated { bytes, committed };
            (file_bytes, None, Some(truncated))
        }
        // Damage, unless the caller has a key: what no seal vouches for is not a sealed file's.
        Err(
            damage @ (JournalError::Foreign { .. }
            | JournalError::Version { .. }
            | JournalError::Damaged { .. }),
        ) if key.is_none() => (file_bytes, None, Some(damage)),
        Err(error) => return Err(error),
    };
    let (mut at, mut found) = (FIRST, layout::chain_start());
    let mut payload = Vec::new();
    while at < end {
        match record_at(file, at, end, &mut payload) {
            Ok((header, bytes, next)) => {
                found = layout::chain_on(&found, &bytes);
                at = next;
                if each(header.role, header.kind, &payload).is_break() {
                    return Ok(damage);
                }
            }
            Err(_) if at == FIRST && damage.is_some() => break,
            Err(error @ JournalError::Memory { .. }) => return Err(error),
            Err(error) => {
                damage.get_or_insert(error);
                return Ok(damage);
            }
        }
    }
    match damage {
        // Not one record: it is no journal, or nothing of it is left.
        Some(damage) if at == FIRST => Err(damage),
        None if chain.is_some_and(|chain| chain != found) => Ok(Some(JournalError::Damaged {
            offset: 32,
            what: "the records are not those that were committed",
        })),
        damage => Ok(damage),
    }
}

/// One record, verified, with the bytes of its header and the offset behind it.
fn record_at(
    file: &JournalFile,
    offset: u64,
    end: u64,
    payload: &mut Vec<u8>,
) -> Result<(RecordHeader, [u8; HEADER_BYTES as usize], u64), JournalError> {
    let damaged = |what| JournalError::Damaged { offset, what };
    let read = |into: &mut [u8], at| {
        let read = file.read_exact_at(into, at);
        read.map_err(JournalError::io("reading it"))
    };
    if end - offset < HEADER_BYTES {
        return Err(damaged("a record passes the committed end"));
    }
    let mut bytes = [0; HEADER_BYTES as usize];
    read(&mut bytes, offset)?;
    let header = RecordHeader::decode(&bytes, offset)?;
    let next = layout::record_end(offset, header.bytes).filter(|&next| next <= end);
    let next = next.ok_or(damaged("a record passes the committed end"))?;
    if (header.role == RecordRole::Identity) != (offset == FIRST) {
        return Err(damaged("the identity is not the first record, and alone"));
    }
    payload.clear();
    resize_zeroed(payload, next - offset - HEADER_BYTES)?;
    read(payload, offset + HEADER_BYTES)?;
    let padding = payload.split_off(usize_or_max(header.bytes).min(payload.len()));
    if padding.iter().any(|&b| b != 0) {
        return Err(damaged("the padding of a record is not zero"));
    }
    header.check(blake3::hash(payload), offset)?;
    Ok((header, bytes, next))
}

/// The head as it stands; of its bytes only the magic is checked.
pub fn read_head(file: &JournalFile, file_bytes: u64) -> Result<[u8; HEAD_BYTES], JournalError> {
    if file_bytes < HEAD_BYTES as u64 {
        return Err(JournalError::Foreign { bytes: file_bytes });
    }
    let mut bytes = [0; HEAD_BYTES];
    file.read_exact_at(&mut bytes, 0)
        .map_err(JournalError::io("reading its head"))?;
    if &bytes[..8] != layout::MAGIC {
        return Err(JournalError::Foreign { bytes: file_bytes });
    }
    Ok(bytes)
}

/// One payload with its padding, as the header promised them.
fn payload(
    window: &mut Window<'_>,
    header: &RecordHeader,
    mut each: impl FnMut(&[u8]),
) -> Result<(), JournalError> {
    let offset = window.at;
    let mut hasher = blake3::Hasher::new();
    let mut left = header.bytes;
    // It fits the file, so it has a padded length.
    let mut padded = layout::padded(left).unwrap_or(left);
    while padded > 0 {
        let chunk = window.next(padded)?;
        padded -= chunk.len() as u64;
        let (bytes, padding) = chunk.split_at(chunk.len().min(usize_or_max(left)));
        left -= bytes.len() as u64;
        hasher.update(bytes);
        each(bytes);
        if padding.iter().any(|&b| b != 0) {
            return Err(JournalError::Damaged {
                offset,
                what: "the padding of a record is not zero",
            });
        }
    }
    header.check(hasher.finalize(), offset)
}

fn usize_or_max(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// A range of the source, read in order through one buffer. Everything in it is a multiple of
/// [`ALIGN`], so a header never lies across two fillings.
struct Window<'a> {
    file: &'a JournalFile,
    buffer: Vec<u8>,
    /// Bytes of the buffer that hold the file from `at` on.
    ready: std::ops::Range<usize>,
    at: u64,
    end: u64,
}

impl<'a> Window<'a> {
    fn new(file: &'a JournalFile, at: u64, end: u64) -> Result<Window<'a>, JournalError> {
        Ok(Window {
            file,
            buffer: zeroed(WINDOW_BYTES.min(end - at))?,
            ready: 0..0,
            at,
            end,
        })
    }

    /// Between 1 and `max` bytes, a multiple of [`ALIGN`] as `max` is; never past the end.
    fn next(&mut self, max: u64) -> Result<&[u8], JournalError> {
        debug_assert!(max.is_multiple_of(ALIGN) && max <= self.end - self.at);
        if self.ready.is_empty() {
            let n = (self.buffer.len() as u64).min(self.end - self.at) as usize;
            self.file
                .read_exact_at(&mut self.buffer[..n], self.at)
                .map_err(JournalError::io("reading it"))?;
            self.ready = 0..n;
        }
        let n = self.ready.len().min(usize_or_max(max));
        let begin = self.ready.start;
        self.ready.start += n;
        self.at += n as u64;
        Ok(&self.buffer[begin..begin + n])
    }
}

/// A buffer of zeros, or [`JournalError::Memory`].
pub fn zeroed(bytes: u64) -> Result<Vec<u8>, JournalError> {
    let mut buffer = Vec::new();
    resize_zeroed(&mut buffer, bytes)?;
    Ok(buffer)
}

/// Makes an empty buffer this long, of zeros.
pub fn resize_zeroed(buffer: &mut Vec<u8>, bytes: u64) -> Result<(), JournalError> {
    let no_memory = JournalError::Memory { bytes };
    let Ok(n) = usize::try_from(bytes) else {
        return Err(no_memory);
    };
    buffer.try_reserve_exact(n).map_err(|_| no_memory)?;
    buffer.resize(n, 0);
    Ok(())
}
