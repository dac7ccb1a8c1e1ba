//! Why an arena has no more memory.

use std::fmt;

/// Why there is no slab, or no arena of the requested kind. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaError {
    pub slab_bytes: usize,
    pub mapped_bytes: usize,
    pub why: Refusal,
}

/// The reason inside an [`ArenaError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The system has too few bytes, or too few addresses.
    OutOfMemory,
    /// The system has no memory of this [`super::Backing`].
    NoBacking(&'static str),
}

impl fmt::Display for ArenaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the system gave no {} bytes more ({} are mapped)",
            self.slab_bytes, self.mapped_bytes
        )?;
        match self.why {
            Refusal::OutOfMemory => Ok(()),
            Refusal::NoBacking(why) => write!(f, ": {why}"),
        }
    }
}

impl std::error::Error for ArenaError {}
