//! Settings of all sessions of one [`super::Sessions`].

use super::limits::{CapacityChange, SessionSettings};
use haversack_memory::journal;
use std::path::PathBuf;

/// Settings of sessions. Plain data.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Folder of the session files; `None` = sessions are not saved, and turns that leave memory are forgotten.
    pub dir: Option<PathBuf>,
    /// Folder of the shared prefix files, read and written by all processes that use it; `None` = each session computes
    /// its own opening.
    pub prefix_dir: Option<PathBuf>,
    /// Largest sum of the files there, in bytes: the oldest file is removed first.
    pub prefix_quota_bytes: u64,
    /// Of sessions that set nothing else for themselves.
    pub settings: SessionSettings,
    /// Tokens that condensing aims at, where the text that is marked verbatim allows it; `None` = three fifths of the
    /// limit.
    pub condensed_max: Option<usize>,
    /// Tokens of the rebuilt stream that are read along with each token of an answer; 0 = none: [`super::Sessions::work`]
    /// reads them all.
    pub condense_per_token: usize,
    /// Number of latest turns that stay visible whatever the question.
    pub last: usize,
    /// Tokens that are recomputed before an answer, for turns of which the file has the ids alone; one turn is always
    /// allowed.
    pub reread_max: usize,
    /// Of all session files together.
    pub limits: FolderLimits,
    /// Changes of the capacity to repeat, as [`super::ContextReport::changes`] reported them: the same answers follow.
    pub replay: Vec<CapacityChange>,
    /// Owner of these sessions: files of another tenant are refused.
    pub tenant: String,
    /// Seals files: a file that was changed without the key is refused.
    pub key: Option<[u8; 32]>,
    #[doc(hidden)]
    pub journal_io: Option<std::sync::Arc<dyn journal::JournalIo>>,
}

/// Limits of all sessions of a folder together. Where there is none, no session is ever removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FolderLimits {
    /// Of all files together: the session that was saved longest ago is removed first.
    pub bytes_max: Option<u64>,
    /// A session that was not saved for longer is removed.
    pub age_max_ms: Option<u64>,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            dir: None,
            prefix_dir: None,
            prefix_quota_bytes: 256 << 20,
            settings: SessionSettings::default(),
            condensed_max: None,
            condense_per_token: 2,
            last: 2,
            reread_max: 128,
            limits: FolderLimits::default(),
            replay: Vec::new(),
            tenant: String::new(),
            key: None,
            journal_io: None,
        }
    }
}

/// How files are opened: session files and prefix files differ in their quota only.
pub(super) fn journal_options(
    options: &SessionOptions,
    quota_bytes: u64,
) -> journal::JournalOptions {
    journal::JournalOptions {
        quota_bytes: Some(quota_bytes),
        key: options.key,
        io: options.journal_io.clone(),
    }
}
