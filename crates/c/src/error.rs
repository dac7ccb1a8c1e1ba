//! Statuses and errors: what a call answers when it could not be done.

use crate::owned::{self, Text};
use haversack::{Error, ErrorKind};
use std::ffi::c_char;

/// What came of a call, and what a caller can do about it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum haversack_status {
    /// It was done.
    Ok = 0,
    /// An argument is wrong; the same call fails again.
    InvalidInput = 1,
    /// No such conversation, fact, turn or file.
    NotFound = 2,
    /// The conversation is busy with another answer, or its name is taken.
    Conflict = 3,
    /// All places in the queue are taken; try again later.
    Busy = 4,
    /// The prompt or the answer is longer than the context or the memory limit ever allows.
    TooLarge = 5,
    /// The memory limit has no room now; try again when other answers have ended.
    OutOfMemory = 6,
    /// The engine was opened without what the call needs.
    Unsupported = 7,
    /// The answer ended before it was complete.
    Cancelled = 8,
    /// The engine is closed.
    Closed = 9,
    /// A file could not be read or written.
    Io = 10,
    /// A defect of the model file or of the library.
    Internal = 11,
}

impl haversack_status {
    fn of(kind: ErrorKind) -> haversack_status {
        match kind {
            ErrorKind::InvalidInput => haversack_status::InvalidInput,
            ErrorKind::NotFound => haversack_status::NotFound,
            ErrorKind::Conflict => haversack_status::Conflict,
            ErrorKind::Busy => haversack_status::Busy,
            ErrorKind::TooLarge => haversack_status::TooLarge,
            ErrorKind::OutOfMemory => haversack_status::OutOfMemory,
            ErrorKind::Unsupported => haversack_status::Unsupported,
            ErrorKind::Cancelled => haversack_status::Cancelled,
            ErrorKind::Closed => haversack_status::Closed,
            ErrorKind::Io => haversack_status::Io,
            // `Internal`, and kinds that this header does not have yet.
            _ => haversack_status::Internal,
        }
    }
}

/// Why a call was not done: a status and a sentence. The caller that asked for it frees it.
pub struct haversack_error {
    status: haversack_status,
    text: Text,
}

/// The same before it is handed out.
#[derive(Debug)]
pub(crate) struct Failure {
    pub status: haversack_status,
    pub text: String,
}

impl Failure {
    /// An argument is not what it may be.
    pub fn argument(name: &str, what: impl std::fmt::Display) -> Failure {
        Failure {
            status: haversack_status::InvalidInput,
            text: format!("{name}: {what}"),
        }
    }
}

impl From<Failure> for haversack_error {
    fn from(failure: Failure) -> haversack_error {
        haversack_error {
            status: failure.status,
            text: Text::new(failure.text),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure {
            status: haversack_status::of(error.kind()),
            text: error.to_string(),
        }
    }
}

/// Its status; `HAVERSACK_STATUS_OK` of a null pointer. Any thread.
///
/// # Safety
/// An error of this library, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_error_status(error: *const haversack_error) -> haversack_status {
    // SAFETY: as the caller promises.
    unsafe { error.as_ref() }.map_or(haversack_status::Ok, |error| error.status)
}

/// Its sentence, one line of UTF-8; empty of a null pointer. Valid until the error is freed. Any thread.
///
/// # Safety
/// An error of this library, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_error_text(error: *const haversack_error) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.text.bytes())
}

/// Frees an error; null is nothing to free. Any thread, once.
///
/// # Safety
/// An error of this library that was not freed, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn haversack_error_free(error: *mut haversack_error) {
    // SAFETY: as the caller promises.
    unsafe { owned::free(error) }
}

/// The name of a status, such as `not_found`; `unknown` of a number that is none. Static: never freed. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn haversack_status_name(status: i32) -> *const c_char {
    let name = match status {
        0 => c"ok",
        1 => c"invalid_input",
        2 => c"not_found",
        3 => c"conflict",
        4 => c"busy",
        5 => c"too_large",
        6 => c"out_of_memory",
        7 => c"unsupported",
        8 => c"cancelled",
        9 => c"closed",
        10 => c"io",
        11 => c"internal",
        _ => c"unknown",
    };
    name.as_ptr()
}
