//! Why a model could not be put in place.

use haversack_memory::bytes::human;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A file or folder of this machine is in the way.
    #[error("{doing}: {error}")]
    Io { doing: String, error: io::Error },
    #[error("{} changed while it was read", .0.display())]
    Changed(PathBuf),
    #[error("{} is a directory", .0.display())]
    Directory(PathBuf),
    #[error(
        "disk full: the model needs {} more and {} has {} free",
        human(*needed), directory.display(), human(*free)
    )]
    Space {
        needed: u64,
        directory: PathBuf,
        free: u64,
    },
    /// Every source failed.
    #[error(
        "{}{}; if the file is at hand, give its path as MODEL or put it at {}",
        reasons.join("; "), kept_in_words(*kept), target.display()
    )]
    Sources {
        reasons: Vec<String>,
        /// Bytes that the next fetch goes on from.
        kept: u64,
        target: PathBuf,
    },
    #[error(
        "{0} is no name of a hub repository; accepted: hf:OWNER/REPOSITORY, with /FILE.gguf for one of its files and @REVISION"
    )]
    HubName(String),
    #[error("hf:{repository}: {reason}")]
    Repository { repository: String, reason: String },
    #[error("cannot fetch {model}: {error}")]
    Model { model: String, error: Box<HubError> },
}

fn kept_in_words(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        _ => format!(
            "; {} are kept, and the next pull goes on from there",
            human(bytes)
        ),
    }
}

impl HubError {
    /// The disk or the user's share of it is full.
    pub(crate) fn is_disk_full(&self) -> bool {
        match self {
            HubError::Io { error, .. } => matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
            HubError::Space { .. } => true,
            _ => false,
        }
    }
}

/// Says what was being done when the system refused.
pub(crate) trait Doing<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, HubError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, HubError> {
        self.map_err(|error| HubError::Io {
            doing: doing(),
            error,
        })
    }
}

/// Why a source did not give the file.
#[derive(Debug, thiserror::Error)]
pub enum FetchFailure {
    /// It stopped half-way: worth trying again from there.
    #[error("{0}")]
    Cut(String),
    /// This source does not work now; the next may.
    #[error("{0}")]
    Source(String),
    /// This machine is in the way.
    #[error(transparent)]
    Local(#[from] HubError),
}
