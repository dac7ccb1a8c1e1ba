//! The slow part of a commit, on whichever thread has time for it.
//!
//! ```text
//! begin_commit ─► JournalCommit::run, or start and wait: the disk ─► end_commit
//! ```
//! Between the two the journal takes no writes; what was committed before can be read.

use super::beside::BesideTask;
use super::draft::{Draft, Temporary};
use super::error::JournalError;
use super::file::{JournalFile, JournalPaths};
use super::layout::{HEAD_BYTES, JournalHead};
use super::write::Tail;
use std::sync::Arc;
use std::time::Duration;

/// A commit that has begun: its records are written, and not durable yet. If it is dropped, the journal stays as it is on
/// the disk and takes no more writes.
#[must_use]
pub struct JournalCommit {
    pub(super) paths: JournalPaths,
    /// Seals the head.
    pub(super) key: Option<[u8; 32]>,
    pub(super) work: CommitWork,
}

pub(super) enum CommitWork {
    /// Records behind those that are committed.
    Append {
        file: Arc<JournalFile>,
        next: JournalHead,
        /// To put back if that fails.
        old: JournalHead,
    },
    /// The first records of a file, which gets its name with them.
    Place {
        file: Arc<JournalFile>,
        temporary: Temporary,
        next: JournalHead,
    },
    /// A file that takes the place of the old one.
    Replace { draft: Draft, commits: u64 },
}

/// What became of a [`JournalCommit`].
#[must_use]
pub struct JournalCommitted(pub(super) CommitOutcome);

pub(super) enum CommitOutcome {
    Appended(JournalHead),
    Replaced(JournalFile, JournalHead, Tail),
    /// What was appended is not part of the journal.
    Dropped(JournalError),
    /// The same of a file that did not get its name.
    NotPlaced(JournalError, Temporary),
    /// The file was not replaced.
    Unchanged(JournalError),
    /// Either state may be on the disk.
    Lost(JournalError, Option<JournalFile>),
}

impl JournalCommit {
    /// Runs it beside the caller.
    pub fn start(self) -> JournalCommitTask {
        let io = self.paths.io.clone();
        JournalCommitTask(BesideTask::start(&io, Box::new(|| self.run())))
    }

    /// Makes the records durable, and then the head that counts them. Blocks for as long as the disk takes.
    pub fn run(self) -> JournalCommitted {
        let head = |head: &JournalHead| head.encode(self.key.as_ref());
        JournalCommitted(match self.work {
            CommitWork::Append { file, next, old } => {
                let heads = [head(&next), head(&old)];
                append(&self.paths, &file, next, heads)
            }
            CommitWork::Place {
                file,
                temporary,
                next,
            } => {
                let head = head(&next);
                place(&self.paths, &file, temporary, next, &head)
            }
            CommitWork::Replace { draft, commits } => replace(&self.paths, draft, commits),
        })
    }
}

fn append(
    paths: &JournalPaths,
    file: &JournalFile,
    next: JournalHead,
    [new, old]: [[u8; HEAD_BYTES]; 2],
) -> CommitOutcome {
    if let Err(e) = file.is_named(&paths.path) {
        return CommitOutcome::Dropped(e);
    }
    if let Err(e) = file.sync() {
        // The kernel may have forgotten the pages that failed: a second sync would succeed and
        // prove nothing. They have to be written again.
        return CommitOutcome::Dropped(e);
    }
    let put = |head: &[u8]| file.write_head(head).and_then(|()| file.sync());
    if let Err(e) = put(&new) {
        // Either head may be on the disk. With the old one written back, the tail may go.
        return match put(&old) {
            Ok(()) => CommitOutcome::Dropped(e),
            Err(_) => CommitOutcome::Lost(e, None),
        };
    }
    CommitOutcome::Appended(next)
}

fn place(
    paths: &JournalPaths,
    file: &JournalFile,
    mut temporary: Temporary,
    next: JournalHead,
    head: &[u8],
) -> CommitOutcome {
    let written = file.write_head(head).and_then(|()| file.sync());
    if let Err(e) = written.and_then(|()| paths.place(false)) {
        return CommitOutcome::NotPlaced(e, temporary);
    }
    temporary.placed = true;
    match paths.sync_folder() {
        Ok(()) => CommitOutcome::Appended(next),
        Err(e) => CommitOutcome::Lost(e, None),
    }
}

fn replace(paths: &JournalPaths, draft: Draft, commits: u64) -> CommitOutcome {
    let (file, head, tail) = match draft.place(commits, true) {
        Ok(placed) => placed,
        Err(e) => return CommitOutcome::Unchanged(e),
    };
    // The name means the new file from here on.
    match paths.sync_folder() {
        Ok(()) => CommitOutcome::Replaced(file, head, tail),
        Err(e) => CommitOutcome::Lost(e, Some(file)),
    }
}

/// A [`JournalCommit`] that runs beside the caller.
#[must_use]
pub struct JournalCommitTask(BesideTask<JournalCommitted>);

impl JournalCommitTask {
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Waits for its end, at most this long.
    pub fn wait_for(&self, time: Duration) {
        self.0.wait_for(time);
    }

    /// Waits for its end, or runs it here if it has not begun.
    pub fn wait(self) -> JournalCommitted {
        // If it panicked, what is on the disk is not known.
        let lost = || JournalCommitted(CommitOutcome::Lost(JournalError::Lost, None));
        self.0.wait().unwrap_or_else(lost)
    }
}
