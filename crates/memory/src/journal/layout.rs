//! The bytes of a journal, and nothing else: head and record headers to bytes and back. Pure; every
//! number from a file is checked before it is believed. The module above draws the whole file.

use super::error::JournalError;
use blake3::Hash;
use std::num::NonZeroU64;

pub const MAGIC: &[u8; 8] = b"HAVERJNL";
/// Raised whenever a byte changes its meaning.
pub const VERSION: u32 = 1;
/// One sector: what disks write whole or not at all.
pub const HEAD_BYTES: usize = 512;
/// Headers and payloads begin at multiples of this: a cache line, and the widest vector.
pub const ALIGN: u64 = 64;
pub const HEADER_BYTES: u64 = 64;
/// Where the identity record stands.
pub const FIRST: u64 = HEAD_BYTES as u64;
/// An identity is fingerprints and names. It is read into memory before anything else is known.
pub const IDENTITY_BYTES_MAX: u64 = 64 << 10;

const SEALED: u32 = 1;
/// Bytes of the head under the checksum, and under the seal.
const CHECKED: usize = 96;
const SEALED_TO: usize = 128;
const HEAD_USED: usize = 160;

/// What was committed last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalHead {
    /// Bytes of the file that count, head included.
    pub length: u64,
    pub commits: u64,
    /// Over the headers of all records up to `length`, in order.
    pub chain: Hash,
    /// Of the identity record's payload.
    pub identity: Hash,
}

impl JournalHead {
    pub fn encode(&self, key: Option<&[u8; 32]>) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let flags = if key.is_some() { SEALED } else { 0 };
        bytes[12..16].copy_from_slice(&flags.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.commits.to_le_bytes());
        bytes[32..64].copy_from_slice(self.chain.as_bytes());
        bytes[64..96].copy_from_slice(self.identity.as_bytes());
        let checksum = blake3::hash(&bytes[..CHECKED]);
        bytes[CHECKED..SEALED_TO].copy_from_slice(checksum.as_bytes());
        if let Some(key) = key {
            let seal = blake3::keyed_hash(key, &bytes[..SEALED_TO]);
            bytes[SEALED_TO..HEAD_USED].copy_from_slice(seal.as_bytes());
        }
        bytes
    }

    /// Of bytes that begin with [`MAGIC`]. The checksum comes before the key, so that damage and a
    /// wrong key are told apart.
    pub fn decode(
        bytes: &[u8; HEAD_BYTES],
        key: Option<&[u8; 32]>,
    ) -> Result<JournalHead, JournalError> {
        let damaged = |offset: usize, what| JournalError::Damaged {
            offset: offset as u64,
            what,
        };
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(JournalError::Version {
                found: version,
                known: VERSION,
            });
        }
        if blake3::hash(&bytes[..CHECKED]) != hash_at(bytes, CHECKED) {
            return Err(damaged(CHECKED, "the head does not match its checksum"));
        }
        if bytes[HEAD_USED..].iter().any(|&b| b != 0) {
            return Err(damaged(HEAD_USED, "the end of the head is not zero"));
        }
        let seal = hash_at(bytes, SEALED_TO);
        match (u32_at(bytes, 12), key) {
            (0, None) if seal == Hash::from([0; 32]) => {}
            (0, None) => return Err(damaged(SEALED_TO, "a seal where there is none")),
            (0, Some(_)) => return Err(JournalError::NotSealed),
            (SEALED, None) => return Err(JournalError::KeyMissing),
            // Comparing hashes takes the same time wherever they differ.
            (SEALED, Some(key)) if blake3::keyed_hash(key, &bytes[..SEALED_TO]) == seal => {}
            (SEALED, Some(_)) => return Err(JournalError::KeyWrong),
            _ => return Err(damaged(12, "unknown flags")),
        }
        let head = JournalHead {
            length: u64_at(bytes, 16),
            commits: u64_at(bytes, 24),
            chain: hash_at(bytes, 32),
            identity: hash_at(bytes, 64),
        };
        if head.length < FIRST + HEADER_BYTES || !head.length.is_multiple_of(ALIGN) {
            return Err(damaged(16, "a committed length that cannot be"));
        }
        Ok(head)
    }
}

/// Whose bytes a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordRole {
    Record = 0,
    Identity = 1,
}

/// What stands before a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    pub role: RecordRole,
    pub kind: u32,
    /// Of the payload, without padding.
    pub bytes: u64,
    pub payload: Hash,
}

impl RecordHeader {
    /// As it stands at `offset`. The checksum covers the place too: no header is valid elsewhere.
    pub fn encode(&self, offset: u64) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        bytes[0..4].copy_from_slice(&(self.role as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[32..64].copy_from_slice(self.payload.as_bytes());
        let checksum = header_checksum(&bytes, offset);
        bytes[16..32].copy_from_slice(&checksum);
        bytes
    }

    pub fn decode(
        bytes: &[u8; HEADER_BYTES as usize],
        offset: u64,
    ) -> Result<RecordHeader, JournalError> {
        let damaged = |what| JournalError::Damaged { offset, what };
        if header_checksum(bytes, offset) != bytes[16..32] {
            return Err(damaged("a record's header does not match its checksum"));
        }
        let role = match u32_at(bytes, 0) {
            0 => RecordRole::Record,
            1 => RecordRole::Identity,
            _ => return Err(damaged("a record of an unknown role")),
        };
        Ok(RecordHeader {
            role,
            kind: u32_at(bytes, 4),
            bytes: u64_at(bytes, 8),
            payload: hash_at(bytes, 32),
        })
    }

    /// Whether the payload, at `offset`, is what the header promised.
    pub fn check(&self, found: Hash, offset: u64) -> Result<(), JournalError> {
        if found == self.payload {
            return Ok(());
        }
        Err(JournalError::Damaged {
            offset,
            what: "a record's bytes do not match their checksum",
        })
    }
}

/// A record of one file: where its payload lies, and enough to notice that it is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordRef {
    pub kind: u32,
    /// The first bytes of the payload's hash.
    tag: [u8; 4],
    /// Of the payload in the file. Before the first one is a head.
    offset: NonZeroU64,
    /// Of the payload, without padding.
    pub bytes: u64,
}

/// Callers keep thousands, in variants of their own.
const _: () = assert!(size_of::<RecordRef>() == 24 && size_of::<Option<RecordRef>>() == 24);

const HEADER: NonZeroU64 = NonZeroU64::new(HEADER_BYTES).unwrap();

impl RecordRef {
    /// The record whose header stands at `offset`.
    pub(super) fn of(offset: u64, header: &RecordHeader) -> RecordRef {
        let [a, b, c, d, ..] = *header.payload.as_bytes();
        RecordRef {
            kind: header.kind,
            tag: [a, b, c, d],
            offset: HEADER.saturating_add(offset),
            bytes: header.bytes,
        }
    }

    pub(super) fn stale(&self) -> JournalError {
        JournalError::Stale {
            offset: self.offset(),
        }
    }

    /// Of the payload in the file; a multiple of 64.
    pub fn offset(&self) -> u64 {
        self.offset.get()
    }

    /// What the record takes of the file, header and padding included: what the caller counts as
    /// garbage once it does without it.
    pub fn file_bytes(&self) -> u64 {
        HEADER_BYTES + padded(self.bytes).unwrap_or(self.bytes)
    }
}

/// Half a hash: it finds damage; the chain, in full, is what the seal rests on.
fn header_checksum(bytes: &[u8; HEADER_BYTES as usize], offset: u64) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&offset.to_le_bytes());
    hasher.update(&bytes[0..16]);
    hasher.update(&bytes[32..64]);
    let mut half = [0; 16];
    half.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    half
}

/// The chain before the first record.
pub fn chain_start() -> Hash {
    blake3::hash(MAGIC)
}

/// The chain with one more record.
pub fn chain_on(chain: &Hash, header: &[u8; HEADER_BYTES as usize]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(chain.as_bytes());
    hasher.update(header);
    hasher.finalize()
}

/// Payload and padding; `None` past what a file can have.
pub fn padded(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGN)
}

/// Where the record at `offset` ends, header, payload and padding included.
pub fn record_end(offset: u64, bytes: u64) -> Option<u64> {
    offset
        .checked_add(HEADER_BYTES)?
        .checked_add(padded(bytes)?)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn hash_at(bytes: &[u8], at: usize) -> Hash {
    let mut hash = [0; 32];
    hash.copy_from_slice(&bytes[at..at + 32]);
    Hash::from_bytes(hash)
}
