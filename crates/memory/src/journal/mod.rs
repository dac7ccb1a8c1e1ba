//! A journal: records in a file that survive a process killed at any moment.
//!
//! Records are appended, and then committed together; what was committed is there after a crash,
//! whole, and what was not is gone, whole. Every byte is checked before any is used. The journal does
//! not interpret what it holds: kinds are numbers, payloads and the identity are bytes.
//! It is no database: it has no keys, does not merge, and one process has it open at a time.
//!
//! ```text
//!    0  head, 512 bytes: one sector, the only bytes ever overwritten
//!         0  magic "HAVERJNL"
//!         8  u32 version            12  u32 flags (1: sealed)
//!        16  u64 committed length L 24  u64 commits
//!        32  chain (32)             64  BLAKE3 of the identity (32)
//!        96  BLAKE3 of bytes 0..96 (32)
//!       128  seal: BLAKE3 with the caller's key of bytes 0..128 (32); zero without a key
//!       160  zero
//!  512  the identity: a record of role 1
//!       records of role 0
//!    L  an append that was not committed, or nothing
//!
//!  record   0  u32 role             4  u32 kind
//!           8  u64 payload bytes   16  checksum (16): of its offset and of bytes 0..16, 32..64
//!          32  BLAKE3 of the payload (32)
//!          64  payload, then zero up to a multiple of 64
//! ```
//! Numbers are little-endian. Records stand at multiples of 64 without gaps. The chain begins as
//! `BLAKE3(magic)` and takes in one header after the other, `BLAKE3(chain, header)`: it holds every
//! header, a header holds its payload's hash, padding is zero. So the head vouches for every bit up
//! to L, and the seal, where there is one, for the head.
//!
//! **Commit.** Records are written behind L and made durable; then the head, with the new L, is
//! written in one call and made durable. Only then may the caller acknowledge. A crash before the
//! head leaves an uncommitted tail, which `open` cuts off; after it, everything is there. Waiting for
//! the disk may be left to another thread: [`Journal::begin_commit`].
//!
//! Invariants:
//!
//! - bytes below L of a file never change, so maps and readers need no lock;
//! - nothing is changed on the disk by `open` until everything up to L is verified, and what it
//!   returns is durable, name included;
//! - a file appears under its name complete (temporary name, fsync, rename, fsync of the folder);
//! - a failed append or commit leaves what was committed, and a usable journal. Where the disk does
//!   not even take the old head back, the journal says [`JournalError::Lost`] until it has recovered or is
//!   opened again, and can be read until then;
//! - a commit or a rewrite succeeds only while the name means the file: [`JournalError::Gone`] otherwise;
//! - lengths from a file are compared with the file before anything is reserved for them.
//!
//! **Limits we document and do not remove.** A sector that is half written when power fails is
//! damage, and found as such: disks promise that it does not happen. The seal shows that a file was
//! written with the key; an older state of the same file, put back whole, is one of those.

mod beside;
mod commit;
mod draft;
mod error;
mod file;
mod io;
mod layout;
mod map;
mod verify;
mod write;

pub use commit::{JournalCommit, JournalCommitTask, JournalCommitted};
pub use error::JournalError;
pub use io::JournalIo;
pub use layout::{IDENTITY_BYTES_MAX, RecordRef};
pub use map::{JournalMap, WeakJournalMap};

use crate::system::SystemIo;
use beside::BesideTask;
use commit::{CommitOutcome, CommitWork};
use draft::{Draft, Temporary};
use file::{JournalFile, JournalPaths};
use layout::{JournalHead, RecordHeader, RecordRole};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use verify::Verified;
use write::Tail;

/// Limits and seal of a journal.
#[derive(Clone, Default)]
pub struct JournalOptions {
    /// The file may not grow past this. While it is rewritten the old one is there as well.
    pub quota_bytes: Option<u64>,
    /// Seals the head. A sealed journal opens with its key only; with a key only a sealed one does.
    pub key: Option<[u8; 32]>,
    /// How the disk is changed; `None` = by the system's calls.
    pub io: Option<Arc<dyn JournalIo>>,
}

impl JournalOptions {
    fn io(&self) -> Arc<dyn JournalIo> {
        self.io.clone().unwrap_or_else(|| Arc::new(SystemIo))
    }

    fn paths(&self, path: &Path) -> Result<JournalPaths, JournalError> {
        JournalPaths::of(path, self.io())
    }
}

impl fmt::Debug for JournalOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalOptions")
            .field("quota_bytes", &self.quota_bytes)
            .field("sealed", &self.key.is_some())
            .finish_non_exhaustive()
    }
}

/// What [`Journal::open`] found.
#[derive(Debug)]
pub struct OpenedJournal {
    pub journal: Journal,
    /// In the order they were written.
    pub records: Vec<RecordRef>,
    /// Bytes of an append that was not committed, cut off.
    pub dropped_bytes: u64,
}

/// A journal to be read; see [`Journal::view`].
pub struct JournalView {
    pub identity: Vec<u8>,
    /// In the order they were written.
    pub records: Vec<RecordRef>,
    pub map: JournalMap,
}

/// What [`Journal::salvage`] found.
#[derive(Debug, Default)]
pub struct SalvagedJournal {
    pub identity: Vec<u8>,
    /// Records that are intact, the identity not counted.
    pub records: u64,
    /// Why there are no more of them; `None`: the file is whole.
    pub damage: Option<JournalError>,
}

/// Records of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordTotals {
    pub records: u64,
    /// Of payloads.
    pub bytes: u64,
}

impl RecordTotals {
    fn add(&mut self, record: RecordRef) {
        self.records += 1;
        self.bytes = self.bytes.saturating_add(record.bytes);
    }
}

/// What [`Journal::check`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSummary {
    pub identity: Vec<u8>,
    pub kinds: BTreeMap<u32, RecordTotals>,
    /// Of kinds past the first 256.
    pub others: RecordTotals,
    /// Committed, head included.
    pub bytes: u64,
    /// Behind what is committed: being written now, or left by a process that died.
    pub tail_bytes: u64,
    pub commits: u64,
    pub sealed: bool,
}

/// A summary stays small whatever the file holds.
const KINDS_LISTED_MAX: usize = 256;
/// A writer can change the head while others read it. More often than this is no accident.
const READS_MAX: usize = 8;

/// A journal that is being opened and read beside the caller.
#[must_use]
pub struct JournalOpenTask<T>(BesideTask<T>);

impl<T: Send + 'static> JournalOpenTask<T> {
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Waits for its end, or opens the journal here if that has not begun. `None`: it panicked.
    pub fn wait(self) -> Option<T> {
        self.0.wait()
    }
}

/// A record file, open and locked. Dropping it leaves what was committed.
pub struct Journal {
    paths: JournalPaths,
    file: Arc<JournalFile>,
    options: JournalOptions,
    identity: Vec<u8>,
    /// What is committed.
    head: JournalHead,
    /// What is appended; at the head's length when nothing is.
    tail: Tail,
    lost: bool,
    /// Between [`Journal::begin_commit`] and [`Journal::end_commit`].
    is_committing: bool,
    /// Of a journal that has no commit, and not its name yet.
    temporary: Option<Temporary>,
    /// A file that took this one's name when a rewrite failed at its last step. Locked as well.
    successor: Option<JournalFile>,
}

impl Journal {
    /// A new journal without records, durable on return. A file of that name is left alone.
    pub fn create(
        path: impl AsRef<Path>,
        identity: &[u8],
        options: JournalOptions,
    ) -> Result<Journal, JournalError> {
        let mut journal = Journal::begin(path, identity, options)?;
        let commit = journal.committing_to(0);
        match journal.end_commit(commit.run()) {
            Ok(()) => Ok(journal),
            Err(e) => {
                // Not durable is not created.
                if journal.lost {
                    let _ = journal.paths.remove();
                }
                Err(e)
            }
        }
    }

    /// A new journal that appears under its name with its first commit. Until then the name is taken for other processes,
    /// and nothing waits for the disk. A file of that name is left alone.
    pub fn begin(
        path: impl AsRef<Path>,
        identity: &[u8],
        options: JournalOptions,
    ) -> Result<Journal, JournalError> {
        let paths = options.paths(path.as_ref())?;
        let exists = || fs::symlink_metadata(&paths.path).is_ok();
        if exists() {
            return Err(JournalError::Exists);
        }
        let draft = Draft::begin(&paths, options.quota_bytes, options.key, identity)?;
        // Another process may have placed its file before this one had the temporary name.
        if exists() {
            return Err(JournalError::Exists);
        }
        let head = draft.head(0);
        let Draft {
            temporary,
            file,
            tail,
            ..
        } = draft;
        Ok(Journal {
            paths,
            file: Arc::new(file),
            options,
            identity: identity.to_vec(),
            head,
            tail,
            lost: false,
            is_committing: false,
            temporary: Some(temporary),
            successor: None,
        })
    }

    /// Writes a whole journal that will not be appended to. It appears under its name complete or not at
    /// all, and replaces the file that had the name; maps of the old file stay valid. Of two writers at
    /// once the second gets [`JournalError::Busy`].
    ///
    /// What it holds is durable, its name may not be: after a power cut the file may be missing.
    pub fn publish<E: From<JournalError>>(
        path: impl AsRef<Path>,
        identity: &[u8],
        options: JournalOptions,
        fill: impl FnOnce(&mut JournalWriter) -> Result<(), E>,
    ) -> Result<(), E> {
        let paths = options.paths(path.as_ref())?;
        let mut writer = JournalWriter(Draft::begin(
            &paths,
            options.quota_bytes,
            options.key,
            identity,
        )?);
        fill(&mut writer)?;
        writer.0.place(1, true)?;
        Ok(())
    }

    /// [`Journal::open`] beside the caller, and then `read`: opening takes as long as reading the whole file does.
    pub fn open_beside<T: Send + 'static>(
        path: impl AsRef<Path>,
        options: JournalOptions,
        read: impl FnOnce(Result<OpenedJournal, JournalError>) -> T + Send + 'static,
    ) -> JournalOpenTask<T> {
        let path = path.as_ref().to_path_buf();
        let io = options.io();
        let open = move || read(Journal::open(path, options));
        JournalOpenTask(BesideTask::start(&io, Box::new(open)))
    }

    /// Locks an existing journal and verifies all of it; then cuts off what was not committed, and
    /// the temporary file of a process that died.
    pub fn open(
        path: impl AsRef<Path>,
        options: JournalOptions,
    ) -> Result<OpenedJournal, JournalError> {
        let paths = options.paths(path.as_ref())?;
        let file = paths.open()?;
        let (found, records) = verify_and_list(&file, &options)?;
        let Verified {
            head,
            identity,
            file_bytes,
        } = found;
        // A leftover that cannot be removed does no harm until the next rewrite, which reports it.
        let _ = paths.clear();
        let dropped_bytes = file_bytes - head.length;
        if dropped_bytes > 0 {
            file.truncate(head.length)?;
        }
        // A head or a name may have been seen that only the page cache has: its writer died
        // between writing and fsync. What is told to the caller must be true after a power cut.
        file.sync()?;
        paths.sync_folder()?;
        let journal = Journal {
            tail: Tail::of(&head, options.quota_bytes),
            paths,
            file: Arc::new(file),
            options,
            identity,
            head,
            lost: false,
            is_committing: false,
            temporary: None,
            successor: None,
        };
        Ok(OpenedJournal {
            journal,
            records,
            dropped_bytes,
        })
    }

    /// Verifies a journal as `open` does and changes nothing. It takes no lock and works on a journal
    /// in use: what is committed does not change.
    pub fn check(
        path: impl AsRef<Path>,
        options: &JournalOptions,
    ) -> Result<JournalSummary, JournalError> {
        let file = options.paths(path.as_ref())?.inspect()?;
        retry_torn_read(&file, || summarise(&file, options))
    }

    /// Whether nothing was ever committed: the process that created it ended before. Only the head is read; a journal
    /// whose head cannot be read is not blank.
    pub fn is_blank(path: impl AsRef<Path>, options: &JournalOptions) -> bool {
        let head = || {
            let file = options.paths(path.as_ref())?.inspect()?;
            retry_torn_read(&file, || {
                verify::committed_head(&file, options.key.as_ref())
            })
        };
        head().is_ok_and(|head: JournalHead| head.commits == 0)
    }

    /// Verifies a journal and maps its records, to be read and not written. It takes no lock: any
    /// number of processes may view one, and share its pages, while one of them writes to it.
    pub fn view(
        path: impl AsRef<Path>,
        options: &JournalOptions,
    ) -> Result<JournalView, JournalError> {
        let file = options.paths(path.as_ref())?.inspect()?;
        retry_torn_read(&file, || {
            let (found, records) = verify_and_list(&file, options)?;
            Ok(JournalView {
                identity: found.identity,
                records,
                map: JournalMap::new(file.file(), found.head.length)?,
            })
        })
    }

    /// Hands out what is intact of a journal that may be damaged: kinds and payloads in order, up to the first record
    /// that is not what was written, or until `each` breaks off. It takes no lock and changes nothing.
    pub fn salvage(
        path: impl AsRef<Path>,
        options: &JournalOptions,
        mut each: impl FnMut(u32, &[u8]) -> ControlFlow<()>,
    ) -> Result<SalvagedJournal, JournalError> {
        let file = options.paths(path.as_ref())?.inspect()?;
        let mut salvaged = SalvagedJournal::default();
        let key = options.key.as_ref();
        salvaged.damage = verify::salvage(&file, key, |role, kind, payload| match role {
            RecordRole::Identity => {
                salvaged.identity = payload.to_vec();
                ControlFlow::Continue(())
            }
            RecordRole::Record => {
                salvaged.records += 1;
                each(kind, payload)
            }
        })?;
        Ok(salvaged)
    }

    /// Removes a journal whatever it holds: a damaged one too. One that is open elsewhere stays.
    pub fn delete(path: impl AsRef<Path>, options: &JournalOptions) -> Result<(), JournalError> {
        let paths = options.paths(path.as_ref())?;
        let locked = paths.open()?;
        paths.remove()?;
        // Locked, so that no other process opens it between the two.
        let _ = paths.clear();
        drop(locked);
        paths.sync_folder()
    }

    /// Writes a record, the parts one after the other, behind what is there. It is not durable and
    /// not part of the journal until [`Journal::commit`]. After an error it was not appended, and
    /// everything else is as before.
    pub fn append(&mut self, kind: u32, parts: &[&[u8]]) -> Result<RecordRef, JournalError> {
        self.usable()?;
        let appended = self
            .tail
            .append(&self.file, RecordRole::Record, kind, parts);
        if appended.is_err() {
            self.cut();
        }
        appended
    }

    /// Makes what was appended durable and part of the journal. After an error it is dropped.
    pub fn commit(&mut self) -> Result<(), JournalError> {
        match self.begin_commit()? {
            Some(commit) => self.end_commit(commit.run()),
            None => Ok(()),
        }
    }

    /// Begins a commit that another thread may finish: the journal takes no writes until [`Journal::end_commit`]. `None`:
    /// nothing was appended.
    pub fn begin_commit(&mut self) -> Result<Option<JournalCommit>, JournalError> {
        self.usable()?;
        if !self.has_appended() {
            return Ok(None);
        }
        Ok(Some(
            self.committing_to(self.head.commits.saturating_add(1)),
        ))
    }

    fn committing_to(&mut self, commits: u64) -> JournalCommit {
        let next = JournalHead {
            length: self.tail.end,
            commits,
            chain: self.tail.chain,
            identity: self.head.identity,
        };
        let file = self.file.clone();
        let work = match self.temporary.take() {
            Some(temporary) => CommitWork::Place {
                file,
                temporary,
                next,
            },
            None => CommitWork::Append {
                file,
                next,
                old: self.head.clone(),
            },
        };
        self.committing(work)
    }

    fn committing(&mut self, work: CommitWork) -> JournalCommit {
        self.is_committing = true;
        let (paths, key) = (self.paths.clone(), self.options.key);
        JournalCommit { paths, key, work }
    }

    /// Gives a journal without a commit its name, with what was appended.
    fn place(&mut self) -> Result<(), JournalError> {
        self.usable()?;
        let commit = self.committing_to(self.head.commits.saturating_add(1));
        self.end_commit(commit.run())
    }

    /// Takes up what became of the commit that was begun last.
    pub fn end_commit(&mut self, committed: JournalCommitted) -> Result<(), JournalError> {
        self.is_committing = false;
        match committed.0 {
            CommitOutcome::Appended(head) => self.head = head,
            CommitOutcome::Replaced(file, head, tail) => {
                (self.file, self.head, self.tail) = (Arc::new(file), head, tail);
            }
            CommitOutcome::Dropped(error) => {
                self.rollback();
                return Err(error);
            }
            CommitOutcome::NotPlaced(error, temporary) => {
                self.temporary = Some(temporary);
                self.rollback();
                return Err(error);
            }
            CommitOutcome::Unchanged(error) => return Err(error),
            CommitOutcome::Lost(error, successor) => {
                self.lost = true;
                self.successor = successor;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Drops what was appended since the last commit.
    pub fn rollback(&mut self) {
        if self.usable().is_ok() && self.has_appended() {
            self.drop_appended();
        }
    }

    /// Reads a record, committed or appended, and verifies it. `into` is replaced.
    pub fn read(&self, record: RecordRef, into: &mut Vec<u8>) -> Result<(), JournalError> {
        into.clear();
        let header = self.find(record)?;
        verify::resize_zeroed(into, record.bytes)?;
        let read = self
            .file
            .read_exact_at(into, record.offset())
            .map_err(JournalError::io("reading a record"))
            .and_then(|()| header.check(blake3::hash(into), record.offset()));
        if read.is_err() {
            into.clear();
        }
        read
    }

    /// Another quota from now on.
    pub fn set_quota(&mut self, quota_bytes: Option<u64>) {
        self.options.quota_bytes = quota_bytes;
        self.tail.set_quota(quota_bytes);
    }

    /// The committed records, to be read where they lie.
    pub fn map(&self) -> Result<JournalMap, JournalError> {
        JournalMap::new(self.file.file(), self.head.length)
    }

    /// Replaces the file by one with the records that `fill` keeps or adds, in that order. They are
    /// committed and durable on return; all references are new. After an error the old file is in
    /// place and nothing has changed, unless the last step failed: then the journal is [`JournalError::Lost`],
    /// old references go on reading the old file, and recovering or opening it again finds one of the
    /// two, whole.
    ///
    /// What was appended and not committed may be kept like any record; what is not kept is gone.
    pub fn rewrite<T, E: From<JournalError>>(
        &mut self,
        fill: impl FnOnce(&mut JournalRewrite<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let (value, commit) = self.begin_rewrite(fill)?;
        self.end_commit(commit.run())?;
        Ok(value)
    }

    /// The same, with a commit that another thread may finish.
    pub fn begin_rewrite<T, E: From<JournalError>>(
        &mut self,
        fill: impl FnOnce(&mut JournalRewrite<'_>) -> Result<T, E>,
    ) -> Result<(T, JournalCommit), E> {
        if self.temporary.is_some() {
            self.place()?;
        }
        self.usable()?;
        self.file.is_named(&self.paths.path)?;
        let mut rewrite = JournalRewrite {
            draft: Draft::begin(
                &self.paths,
                self.options.quota_bytes,
                self.options.key,
                &self.identity,
            )?,
            old: self,
        };
        let value = fill(&mut rewrite)?;
        let draft = rewrite.draft;
        let commits = self.head.commits.saturating_add(1);
        Ok((
            value,
            self.committing(CommitWork::Replace { draft, commits }),
        ))
    }

    /// Whether writing says [`JournalError::Lost`].
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// After [`JournalError::Lost`]: verifies what the disk has, as `open` does, and goes on with it. The
    /// records are those of the last commit or of the one that failed; all references are new. After
    /// an error it is as lost as before. What was appended and not committed is dropped.
    pub fn recover(&mut self) -> Result<Vec<RecordRef>, JournalError> {
        self.rollback();
        let file = self.successor.as_ref().unwrap_or(&*self.file);
        file.is_named(&self.paths.path)?;
        let (found, records) = verify_and_list(file, &self.options)?;
        file.truncate(found.head.length)?;
        file.sync()?;
        self.paths.sync_folder()?;
        if let Some(successor) = self.successor.take() {
            self.file = Arc::new(successor);
        }
        self.head = found.head;
        self.tail = Tail::of(&self.head, self.options.quota_bytes);
        self.lost = false;
        Ok(records)
    }

    /// Removes the file.
    pub fn remove(self) -> Result<(), JournalError> {
        if self.temporary.is_some() {
            return Ok(());
        }
        self.paths.remove()?;
        self.paths.sync_folder()
    }

    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// Of the file, with what is appended.
    pub fn bytes(&self) -> u64 {
        self.tail.end
    }

    pub fn committed_bytes(&self) -> u64 {
        self.head.length
    }

    fn usable(&self) -> Result<(), JournalError> {
        match (self.lost, self.is_committing) {
            (true, _) => Err(JournalError::Lost),
            (false, true) => Err(JournalError::Committing),
            (false, false) => Ok(()),
        }
    }

    fn has_appended(&self) -> bool {
        self.tail.end > self.head.length
    }

    fn find(&self, record: RecordRef) -> Result<RecordHeader, JournalError> {
        let inside = record.offset() > layout::FIRST
            && (record.offset().checked_add(record.bytes)).is_some_and(|end| end <= self.tail.end);
        if !inside {
            return Err(record.stale());
        }
        write::find(&self.file, record)
    }

    fn drop_appended(&mut self) {
        self.tail = Tail::of(&self.head, self.options.quota_bytes);
        self.cut();
    }

    /// Gives the disk back what lies behind the tail. Where that fails it lies there until it is
    /// written over: the head says what counts.
    fn cut(&self) {
        let _ = self.file.truncate(self.tail.end);
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, head) = (self.paths.path.display(), &self.head);
        write!(
            f,
            "Journal({path}, {} bytes, {} commits)",
            head.length, head.commits
        )
    }
}

/// The file that will take a journal's place; see [`Journal::rewrite`].
pub struct JournalRewrite<'a> {
    old: &'a Journal,
    draft: Draft,
}

impl JournalRewrite<'_> {
    /// Takes a record over as it is.
    pub fn keep(&mut self, record: RecordRef) -> Result<RecordRef, JournalError> {
        self.old.find(record)?;
        let Draft { tail, file, .. } = &mut self.draft;
        let kept = tail.copy(file, &self.old.file, record);
        self.tidy(kept)
    }

    /// Adds a new record.
    pub fn append(&mut self, kind: u32, parts: &[&[u8]]) -> Result<RecordRef, JournalError> {
        let appended = self.draft.append(kind, parts);
        self.tidy(appended)
    }

    /// Bytes of the new file so far.
    pub fn bytes(&self) -> u64 {
        self.draft.tail.end
    }

    /// The caller may go on after an error: then half a record must not stay at the end.
    fn tidy(&self, written: Result<RecordRef, JournalError>) -> Result<RecordRef, JournalError> {
        if written.is_err() {
            let _ = self.draft.file.truncate(self.draft.tail.end);
        }
        written
    }
}

/// The file that [`Journal::publish`] will give a name.
pub struct JournalWriter(Draft);

impl JournalWriter {
    /// Adds a record, the parts one after the other. After an error nothing is published.
    pub fn append(&mut self, kind: u32, parts: &[&[u8]]) -> Result<RecordRef, JournalError> {
        self.0.append(kind, parts)
    }
}

fn verify_and_list(
    file: &JournalFile,
    options: &JournalOptions,
) -> Result<(Verified, Vec<RecordRef>), JournalError> {
    let mut records = Vec::new();
    let found = verify::verify(file, options.key.as_ref(), |record| {
        let bytes = size_of_val(&record) as u64;
        let room = records.try_reserve(1);
        room.map_err(|_| JournalError::Memory { bytes })?;
        records.push(record);
        Ok(())
    })?;
    Ok((found, records))
}

/// Reads a file that another process may be writing to. A head that changed meanwhile may have been read
/// half old, half new: then everything is read again.
fn retry_torn_read<T>(
    file: &JournalFile,
    read: impl Fn() -> Result<T, JournalError>,
) -> Result<T, JournalError> {
    let mut tries = 1;
    loop {
        let head = head_of(file);
        let result = read();
        if result.is_ok() || tries == READS_MAX || head_of(file) == head {
            return result;
        }
        tries += 1;
    }
}

fn head_of(file: &JournalFile) -> Option<[u8; layout::HEAD_BYTES]> {
    verify::read_head(file, file.bytes().ok()?).ok()
}

fn summarise(file: &JournalFile, options: &JournalOptions) -> Result<JournalSummary, JournalError> {
    let mut kinds: BTreeMap<u32, RecordTotals> = BTreeMap::new();
    let mut others = RecordTotals::default();
    let verified = verify::verify(file, options.key.as_ref(), |record| {
        if kinds.len() < KINDS_LISTED_MAX || kinds.contains_key(&record.kind) {
            kinds.entry(record.kind).or_default().add(record);
        } else {
            others.add(record);
        }
        Ok(())
    })?;
    Ok(JournalSummary {
        identity: verified.identity,
        kinds,
        others,
        bytes: verified.head.length,
        tail_bytes: verified.file_bytes - verified.head.length,
        commits: verified.head.commits,
        sealed: options.key.is_some(),
    })
}
