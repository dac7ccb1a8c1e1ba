//! A journal: records in a file that survive a process killed at any moment.
//!
//! Records are appended, and then committed together; what was committed is there after a crash,
//! whole, and what was not is gone, whole. Every byte is checked before anything is believed. A
//! journal knows nothing of what it holds: kinds are numbers, payloads and the identity are bytes.
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
//! head leaves an uncommitted tail, which `open` cuts off; after it, everything is there.
//!
//! Invariants:
//!
//! - bytes below L of a file never change, so maps and readers need no lock;
//! - nothing is changed on the disk by `open` until everything up to L is verified, and what it
//!   returns is durable, name included;
//! - a file appears under its name complete (temporary name, fsync, rename, fsync of the folder);
//! - a failed append or commit leaves what was committed, and a usable journal. Where the disk does
//!   not even take the old head back, the journal says [`Error::Lost`] until it has recovered or is
//!   opened again, and can be read until then;
//! - a commit or a rewrite succeeds only while the name means the file: [`Error::Gone`] otherwise;
//! - lengths from a file are compared with the file before anything is reserved for them.
//!
//! **Limits we document and do not remove.** A sector that is half written when power fails is
//! damage, and found as such: disks promise that it does not happen. The seal shows that a file was
//! written by somebody with the key; an older state of the same file, put back whole, is one of those.

mod disk;
mod error;
mod faults;
mod layout;
mod map;
mod verify;
mod write;

pub use error::Error;
pub use faults::{Blow, Faults, Step};
pub use layout::IDENTITY_BYTES_MAX;
pub use map::{Map, WeakMap};

use disk::{Disk, Names};
use layout::{Head, Header, Role};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::num::NonZeroU64;
use std::path::Path;
use verify::{Source, Verified};
use write::Tail;

/// How a journal is kept.
#[derive(Clone, Default)]
pub struct Options {
    /// The file may not grow past this. While it is rewritten the old one is there as well.
    pub quota_bytes: Option<u64>,
    /// Seals the head. A sealed journal opens with its key only; with a key only a sealed one does.
    pub key: Option<[u8; 32]>,
    /// For tests.
    pub faults: Option<Faults>,
}

impl Options {
    fn within_quota(&self, needed: u64) -> Result<u64, Error> {
        match self.quota_bytes {
            Some(quota) if needed > quota => Err(Error::Quota { needed, quota }),
            _ => Ok(needed),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("quota_bytes", &self.quota_bytes)
            .field("sealed", &self.key.is_some())
            .finish_non_exhaustive()
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

const HEADER: NonZeroU64 = NonZeroU64::new(layout::HEADER_BYTES).unwrap();

impl RecordRef {
    /// The record whose header stands at `offset`.
    fn of(offset: u64, header: &Header) -> RecordRef {
        let [a, b, c, d, ..] = *header.payload.as_bytes();
        RecordRef {
            kind: header.kind,
            tag: [a, b, c, d],
            offset: HEADER.saturating_add(offset),
            bytes: header.bytes,
        }
    }

    /// Of the payload in the file; a multiple of 64.
    pub fn offset(&self) -> u64 {
        self.offset.get()
    }

    /// What the record takes of the file, header and padding included: what the caller counts as
    /// garbage once it does without it.
    pub fn file_bytes(&self) -> u64 {
        layout::HEADER_BYTES + layout::padded(self.bytes).unwrap_or(self.bytes)
    }
}

/// What [`Journal::open`] found.
#[derive(Debug)]
pub struct Opened {
    pub journal: Journal,
    /// In the order they were written.
    pub records: Vec<RecordRef>,
    /// Bytes of an append that nobody committed, cut off.
    pub dropped_bytes: u64,
}

/// A journal to be read; see [`Journal::view`].
pub struct View {
    pub identity: Vec<u8>,
    /// In the order they were written.
    pub records: Vec<RecordRef>,
    pub map: Map,
}

/// Records of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub records: u64,
    /// Of payloads.
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, record: RecordRef) {
        self.records += 1;
        self.bytes = self.bytes.saturating_add(record.bytes);
    }
}

/// What [`Journal::check`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub identity: Vec<u8>,
    pub kinds: BTreeMap<u32, Tally>,
    /// Of kinds past the first [`KINDS_LISTED_MAX`].
    pub others: Tally,
    /// Committed, head included.
    pub bytes: u64,
    /// Behind what is committed: being written now, or left by a process that died.
    pub tail_bytes: u64,
    pub commits: u64,
    pub sealed: bool,
}

/// A summary stays small whatever the file holds.
pub const KINDS_LISTED_MAX: usize = 256;
/// A writer can change the head while others read it. More often than this is no accident.
const LOOKS_MAX: usize = 8;

/// A record file, open and locked. Dropping it leaves what was committed.
pub struct Journal {
    names: Names,
    disk: Disk,
    options: Options,
    identity: Vec<u8>,
    /// What is committed.
    head: Head,
    /// What is appended; at the head's length when nothing is.
    tail: Tail,
    lost: bool,
    /// A file that took this one's name when a rewrite failed at its last step. Locked as well.
    successor: Option<Disk>,
}

impl Journal {
    /// A new journal without records, durable on return. A file of that name is left alone.
    pub fn create(
        path: impl AsRef<Path>,
        identity: &[u8],
        options: Options,
    ) -> Result<Journal, Error> {
        let names = Names::of(path.as_ref())?;
        if fs::symlink_metadata(&names.path).is_ok() {
            return Err(Error::Exists);
        }
        let faults = options.faults.as_ref();
        let draft = Draft::begin(&names, &options, identity)?;
        let (disk, head, tail) = draft.place(0, options.key.as_ref(), false)?;
        if let Err(e) = names.sync_folder(faults) {
            // Not durable is not created.
            let _ = names.remove(&names.path, faults);
            return Err(e);
        }
        Ok(Journal {
            names,
            disk,
            options,
            identity: identity.to_vec(),
            head,
            tail,
            lost: false,
            successor: None,
        })
    }

    /// Writes a whole journal that nobody will append to. It appears under its name complete or not at
    /// all, and takes the place of whatever file had it; who has mapped that one keeps it. Two who write
    /// at once: the second is told [`Error::Busy`].
    ///
    /// What it holds is durable, its name may not be: after a power cut the file may be missing.
    pub fn publish<E: From<Error>>(
        path: impl AsRef<Path>,
        identity: &[u8],
        options: Options,
        fill: impl FnOnce(&mut Publication) -> Result<(), E>,
    ) -> Result<(), E> {
        let names = Names::of(path.as_ref())?;
        let mut publication = Publication {
            draft: Draft::begin(&names, &options, identity)?,
            options,
        };
        fill(&mut publication)?;
        let key = publication.options.key.as_ref();
        publication.draft.place(1, key, true)?;
        Ok(())
    }

    /// Locks an existing journal and verifies all of it; then cuts off what was not committed, and
    /// what a process that died has left beside it.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Opened, Error> {
        let names = Names::of(path.as_ref())?;
        let faults = options.faults.as_ref();
        let disk = Disk::open(&names.path, faults)?;
        let (found, records) = verify_and_list(&disk, &options)?;
        let Verified {
            head,
            identity,
            file_bytes,
        } = found;
        // What cannot be removed is in nobody's way until the next rewrite, which says so.
        let _ = names.clear(faults);
        let dropped_bytes = file_bytes - head.length;
        if dropped_bytes > 0 {
            disk.cut(head.length)?;
        }
        // A head or a name may have been seen that only the page cache has: its writer died
        // between writing and fsync. What is told to the caller must be true after a power cut.
        disk.sync(Step::SyncData)?;
        names.sync_folder(faults)?;
        let tail = Tail {
            end: head.length,
            chain: head.chain,
        };
        let journal = Journal {
            names,
            disk,
            options,
            identity,
            head,
            tail,
            lost: false,
            successor: None,
        };
        Ok(Opened {
            journal,
            records,
            dropped_bytes,
        })
    }

    /// Verifies a journal as `open` does and changes nothing. It takes no lock and may look at one
    /// that is in use: what is committed does not change.
    pub fn check(path: impl AsRef<Path>, options: &Options) -> Result<Summary, Error> {
        let disk = Disk::look(&Names::of(path.as_ref())?.path)?;
        steadily(&disk, || summarise(&disk, options))
    }

    /// Verifies a journal and maps its records, to be read and not written. It takes no lock: any
    /// number of processes may view one, and share its pages, while one of them writes to it.
    pub fn view(path: impl AsRef<Path>, options: &Options) -> Result<View, Error> {
        let disk = Disk::look(&Names::of(path.as_ref())?.path)?;
        steadily(&disk, || {
            let (found, records) = verify_and_list(&disk, options)?;
            Ok(View {
                identity: found.identity,
                records,
                map: Map::new(disk.file(), found.head.length)?,
            })
        })
    }

    /// The same over bytes in memory.
    pub fn check_bytes(bytes: &[u8], options: &Options) -> Result<Summary, Error> {
        summarise(bytes, options)
    }

    /// Writes a record, the parts one after the other, behind what is there. It is not durable and
    /// not part of the journal until [`Journal::commit`]. After an error it was not appended, and
    /// everything else is as before.
    pub fn append(&mut self, kind: u32, parts: &[&[u8]]) -> Result<RecordRef, Error> {
        self.usable()?;
        let appended = self
            .tail
            .append(&self.disk, &self.options, Role::Record, kind, parts);
        if appended.is_err() {
            self.cut();
        }
        appended
    }

    /// Makes what was appended durable and part of the journal. After an error it is dropped.
    pub fn commit(&mut self) -> Result<(), Error> {
        self.usable()?;
        if !self.has_appended() {
            return Ok(());
        }
        if let Err(e) = self.disk.is_named(&self.names.path) {
            self.drop_appended();
            return Err(e);
        }
        if let Err(e) = self.disk.sync(Step::SyncData) {
            // The kernel may have forgotten the pages that failed: a second sync would succeed and
            // prove nothing. They have to be written again.
            self.drop_appended();
            return Err(e);
        }
        let next = Head {
            length: self.tail.end,
            commits: self.head.commits.saturating_add(1),
            chain: self.tail.chain,
            identity: self.head.identity,
        };
        if let Err(e) = self.put_head(&next) {
            // Nobody knows which head the disk has. With the old one back, the tail may go.
            match self.put_head(&self.head) {
                Ok(()) => self.drop_appended(),
                Err(_) => self.lost = true,
            }
            return Err(e);
        }
        self.head = next;
        Ok(())
    }

    /// Drops what was appended since the last commit.
    pub fn abandon(&mut self) {
        if !self.lost && self.has_appended() {
            self.drop_appended();
        }
    }

    /// Reads a record, committed or appended, and verifies it. `into` is replaced.
    pub fn read(&self, record: RecordRef, into: &mut Vec<u8>) -> Result<(), Error> {
        into.clear();
        let header = self.find(record)?;
        let no_memory = Error::Memory {
            bytes: record.bytes,
        };
        let Ok(bytes) = usize::try_from(record.bytes) else {
            return Err(no_memory);
        };
        into.try_reserve_exact(bytes).map_err(|_| no_memory)?;
        into.resize(bytes, 0);
        let read = self
            .disk
            .read_exact_at(into, record.offset())
            .map_err(Error::io("reading a record"))
            .and_then(|()| write::matches(blake3::hash(into), &header, record.offset()));
        if read.is_err() {
            into.clear();
        }
        read
    }

    /// The committed records, to be read where they lie.
    pub fn map(&self) -> Result<Map, Error> {
        Map::new(self.disk.file(), self.head.length)
    }

    /// Replaces the file by one with the records that `fill` keeps or adds, in that order. They are
    /// committed and durable on return; all references are new. After an error the old file is in
    /// place and nothing has changed, unless the last step failed: then the journal is [`Error::Lost`],
    /// old references go on reading the old file, and recovering or opening it again finds one of the
    /// two, whole.
    ///
    /// What was appended and not committed may be kept like any record; what is not kept is gone.
    pub fn rewrite<T, E: From<Error>>(
        &mut self,
        fill: impl FnOnce(&mut Rewrite<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.usable()?;
        self.disk.is_named(&self.names.path)?;
        let mut rewrite = Rewrite {
            draft: Draft::begin(&self.names, &self.options, &self.identity)?,
            old: self,
        };
        let value = fill(&mut rewrite)?;
        let commits = self.head.commits.saturating_add(1);
        let key = self.options.key.as_ref();
        let (disk, head, tail) = rewrite.draft.place(commits, key, true)?;
        // The name means the new file from here on.
        let faults = self.options.faults.as_ref();
        if let Err(e) = self.names.sync_folder(faults) {
            self.lost = true;
            self.successor = Some(disk);
            return Err(e.into());
        }
        self.disk = disk;
        self.head = head;
        self.tail = tail;
        Ok(value)
    }

    /// Whether writing says [`Error::Lost`].
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// After [`Error::Lost`]: looks at what the disk has, as `open` does, and goes on with it. The
    /// records are those of the last commit or of the one that failed; all references are new. After
    /// an error it is as lost as before. What was appended and not committed is dropped.
    pub fn recover(&mut self) -> Result<Vec<RecordRef>, Error> {
        self.abandon();
        let disk = self.successor.as_ref().unwrap_or(&self.disk);
        disk.is_named(&self.names.path)?;
        let (found, records) = verify_and_list(disk, &self.options)?;
        disk.cut(found.head.length)?;
        disk.sync(Step::SyncData)?;
        self.names.sync_folder(self.options.faults.as_ref())?;
        if let Some(successor) = self.successor.take() {
            self.disk = successor;
        }
        self.tail = Tail {
            end: found.head.length,
            chain: found.head.chain,
        };
        self.head = found.head;
        self.lost = false;
        Ok(records)
    }

    /// Removes the file.
    pub fn remove(self) -> Result<(), Error> {
        let faults = self.options.faults.as_ref();
        self.names.remove(&self.names.path, faults)?;
        self.names.sync_folder(faults)
    }

    pub fn path(&self) -> &Path {
        &self.names.path
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

    pub fn commits(&self) -> u64 {
        self.head.commits
    }

    pub fn quota_bytes(&self) -> Option<u64> {
        self.options.quota_bytes
    }

    /// The next append or rewrite has to fit this; what is there stays.
    pub fn set_quota_bytes(&mut self, quota_bytes: Option<u64>) {
        self.options.quota_bytes = quota_bytes;
    }

    fn usable(&self) -> Result<(), Error> {
        if self.lost { Err(Error::Lost) } else { Ok(()) }
    }

    fn has_appended(&self) -> bool {
        self.tail.end > self.head.length
    }

    fn find(&self, record: RecordRef) -> Result<Header, Error> {
        let inside = record.offset() > layout::FIRST
            && (record.offset().checked_add(record.bytes)).is_some_and(|end| end <= self.tail.end);
        if !inside {
            return Err(Error::Stale {
                offset: record.offset(),
            });
        }
        write::find(&self.disk, record)
    }

    fn put_head(&self, head: &Head) -> Result<(), Error> {
        let bytes = head.encode(self.options.key.as_ref());
        self.disk.write_at(Step::WriteHead, &bytes, 0)?;
        self.disk.sync(Step::SyncHead)
    }

    fn drop_appended(&mut self) {
        self.tail = Tail {
            end: self.head.length,
            chain: self.head.chain,
        };
        self.cut();
    }

    /// Gives the disk back what lies behind the tail. Where that fails it lies there until it is
    /// written over: the head says what counts.
    fn cut(&self) {
        let _ = self.disk.cut(self.tail.end);
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, head) = (self.path().display(), &self.head);
        write!(
            f,
            "Journal({path}, {} bytes, {} commits)",
            head.length, head.commits
        )
    }
}

/// The file that will take a journal's place; see [`Journal::rewrite`].
pub struct Rewrite<'a> {
    old: &'a Journal,
    draft: Draft,
}

impl Rewrite<'_> {
    /// Takes a record over as it is.
    pub fn keep(&mut self, record: RecordRef) -> Result<RecordRef, Error> {
        self.old.find(record)?;
        let Draft { tail, disk, .. } = &mut self.draft;
        let kept = tail.copy(disk, &self.old.options, &self.old.disk, record);
        self.tidy(kept)
    }

    /// Adds a new record.
    pub fn append(&mut self, kind: u32, parts: &[&[u8]]) -> Result<RecordRef, Error> {
        let Draft { tail, disk, .. } = &mut self.draft;
        let appended = tail.append(disk, &self.old.options, Role::Record, kind, parts);
        self.tidy(appended)
    }

    /// Bytes of the new file so far.
    pub fn bytes(&self) -> u64 {
        self.draft.tail.end
    }

    /// The caller may go on after an error: then half a record must not stay at the end.
    fn tidy(&self, written: Result<RecordRef, Error>) -> Result<RecordRef, Error> {
        if written.is_err() {
            let _ = self.draft.disk.cut(self.draft.tail.end);
        }
        written
    }
}

/// The file that [`Journal::publish`] will give a name.
pub struct Publication {
    draft: Draft,
    options: Options,
}

impl Publication {
    /// Adds a record, the parts one after the other. After an error nothing is published.
    pub fn append(&mut self, kind: u32, parts: &[&[u8]]) -> Result<RecordRef, Error> {
        let Draft { tail, disk, .. } = &mut self.draft;
        tail.append(disk, &self.options, Role::Record, kind, parts)
    }
}

/// A journal under its temporary name.
struct Draft {
    temporary: Temporary,
    disk: Disk,
    identity: blake3::Hash,
    tail: Tail,
}

impl Draft {
    fn begin(names: &Names, options: &Options, identity: &[u8]) -> Result<Draft, Error> {
        let bytes = identity.len() as u64;
        if bytes > IDENTITY_BYTES_MAX {
            let most = IDENTITY_BYTES_MAX;
            return Err(Error::Identity { bytes, most });
        }
        let disk = Disk::begin(names, options.faults.as_ref())?;
        let temporary = Temporary {
            names: names.clone(),
            faults: options.faults.clone(),
            placed: false,
        };
        let mut tail = Tail::start();
        tail.append(&disk, options, Role::Identity, 0, &[identity])?;
        Ok(Draft {
            temporary,
            disk,
            identity: blake3::hash(identity),
            tail,
        })
    }

    /// Head, fsync, rename. The folder is the caller's to sync.
    fn place(
        mut self,
        commits: u64,
        key: Option<&[u8; 32]>,
        replace: bool,
    ) -> Result<(Disk, Head, Tail), Error> {
        let head = Head {
            length: self.tail.end,
            commits,
            chain: self.tail.chain,
            identity: self.identity,
        };
        self.disk.write_at(Step::WriteHead, &head.encode(key), 0)?;
        self.disk.sync(Step::SyncData)?;
        let Temporary { names, faults, .. } = &self.temporary;
        names.place(replace, faults.as_ref())?;
        self.temporary.placed = true;
        Ok((self.disk, head, self.tail))
    }
}

/// Removes the temporary file unless it got its final name.
struct Temporary {
    names: Names,
    faults: Option<Faults>,
    placed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.placed {
            // What stays is removed by the next who opens or makes the journal.
            let _ = self
                .names
                .remove(&self.names.temporary, self.faults.as_ref());
        }
    }
}

fn verify_and_list(disk: &Disk, options: &Options) -> Result<(Verified, Vec<RecordRef>), Error> {
    let mut records = Vec::new();
    let found = verify::verify(disk, options.key.as_ref(), |record| {
        let bytes = size_of_val(&record) as u64;
        let room = records.try_reserve(1);
        room.map_err(|_| Error::Memory { bytes })?;
        records.push(record);
        Ok(())
    })?;
    Ok((found, records))
}

/// Looks at a file that somebody may be writing to. A head that changed meanwhile may have been read
/// half old, half new: then it is looked at again.
fn steadily<T>(disk: &Disk, look: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let mut tries = 1;
    loop {
        let head = head_of(disk);
        let result = look();
        if result.is_ok() || tries == LOOKS_MAX || head_of(disk) == head {
            return result;
        }
        tries += 1;
    }
}

fn head_of(disk: &Disk) -> Option<[u8; layout::HEAD_BYTES]> {
    verify::read_head(disk, disk.bytes().ok()?).ok()
}

fn summarise<S: Source + ?Sized>(source: &S, options: &Options) -> Result<Summary, Error> {
    let mut kinds: BTreeMap<u32, Tally> = BTreeMap::new();
    let mut others = Tally::default();
    let verified = verify::verify(source, options.key.as_ref(), |record| {
        if kinds.len() < KINDS_LISTED_MAX || kinds.contains_key(&record.kind) {
            kinds.entry(record.kind).or_default().add(record);
        } else {
            others.add(record);
        }
        Ok(())
    })?;
    Ok(Summary {
        identity: verified.identity,
        kinds,
        others,
        bytes: verified.head.length,
        tail_bytes: verified.file_bytes - verified.head.length,
        commits: verified.head.commits,
        sealed: options.key.is_some(),
    })
}
