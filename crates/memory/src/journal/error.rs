//! Errors of a journal, one line each. The caller adds the name of the file.

use std::fmt;
use std::io;

/// Why a journal could not be made, opened, written or read.
#[derive(Debug)]
pub enum JournalError {
    /// A call to the system failed.
    Io {
        doing: &'static str,
        source: io::Error,
    },
    /// `create` never overwrites.
    Exists,
    /// Another process, or this one, has it open.
    Busy,
    /// The path ends in no name, or in one that belongs to temporary files.
    Name,
    /// A symbolic link, directory, pipe, socket or device.
    Irregular(&'static str),
    /// Too short for a head, or another kind of file.
    Foreign { bytes: u64 },
    /// Of a version this program does not know.
    Version { found: u32, known: u32 },
    /// The file ends before what was committed.
    Truncated { bytes: u64, committed: u64 },
    /// Bytes are not what was written.
    Damaged { offset: u64, what: &'static str },
    /// Sealed, and no key was given.
    KeyMissing,
    /// Not sealed, and a key was given: anyone could have written it.
    NotSealed,
    /// Sealed with another key, or altered without it.
    KeyWrong,
    /// Growing to `needed` bytes would pass the quota.
    Quota { needed: u64, quota: u64 },
    /// The caller's identity is longer than a journal takes.
    Identity { bytes: u64, max: u64 },
    /// The reference is of another file, or of one that was rewritten since.
    Stale { offset: u64 },
    /// Writing failed in a way that leaves open what is on the disk. What was committed before is
    /// there; [`super::Journal::recover`], or opening the file again, tells the rest.
    Lost,
    /// A commit has begun and not ended.
    Committing,
    /// The name means another file, or none: what is written here would be lost.
    Gone,
    /// No memory for this many bytes.
    Memory { bytes: u64 },
}

impl JournalError {
    /// For `map_err`: what was being done when the system refused.
    pub(super) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> JournalError {
        move |source| JournalError::Io { doing, source }
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { doing, source } => write!(f, "{doing}: {source}"),
            Self::Exists => write!(f, "it exists already"),
            Self::Busy => write!(f, "it is open elsewhere"),
            Self::Name => write!(f, "the path does not end in a name a journal can have"),
            Self::Irregular(what) => write!(f, "it is {what}, not a regular file"),
            Self::Foreign { bytes: 0 } => write!(f, "it is empty, not a journal"),
            Self::Foreign { bytes } => write!(f, "it is not a journal ({bytes} bytes)"),
            Self::Version { found, known } => {
                write!(f, "it has version {found}; this program reads {known}")
            }
            Self::Truncated { bytes, committed } => write!(
                f,
                "it is truncated: {bytes} bytes of {committed} that were committed"
            ),
            Self::Damaged { offset, what } => {
                write!(f, "it is damaged: {what}, at byte {offset}")
            }
            Self::KeyMissing => write!(f, "it is sealed with a key, and none was given"),
            Self::NotSealed => write!(f, "a key was given, and it is not sealed"),
            Self::KeyWrong => write!(f, "it is sealed with another key, or was altered"),
            Self::Quota { needed, quota } => {
                write!(f, "{needed} bytes would pass the quota of {quota}")
            }
            Self::Identity { bytes, max } => {
                write!(f, "an identity of {bytes} bytes; at most {max}")
            }
            Self::Stale { offset } => {
                write!(
                    f,
                    "the record at byte {offset} is not the one referred to: the file is another one or was rewritten"
                )
            }
            Self::Lost => write!(
                f,
                "a failed write left its state unknown: open it again to go on"
            ),
            Self::Committing => write!(f, "its last write is not on the disk yet"),
            Self::Gone => write!(f, "it was removed or replaced while it was open"),
            Self::Memory { bytes } => write!(f, "no memory for {bytes} bytes"),
        }
    }
}

impl std::error::Error for JournalError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
