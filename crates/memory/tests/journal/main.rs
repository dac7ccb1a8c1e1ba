//! The record file against everything that can be done to it short of killing its process
//! (`journal_kill.rs` does that): use and misuse here, damage, failing disks and random stories beside.
#![cfg(target_os = "linux")]

mod beside;
mod damage;
mod disk;
mod story;

use haversack_memory::Journal;
use haversack_memory::journal::{
    IDENTITY_BYTES_MAX, JournalError, JournalOptions, JournalSummary, OpenedJournal, RecordRef,
};
use haversack_testing::{DiskFault, JournalFaults};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const IDENTITY: &[u8] = b"model 7f3a, kv int4, tokenizer 11, session a, tenant -";

pub type Record = (u32, Vec<u8>);

/// Numbers by seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

/// In memory where there is such a place: fsync of thousands of small files is not the question.
fn quick_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// A file of these bytes, checked.
fn check_bytes(bytes: &[u8], options: &JournalOptions) -> Result<JournalSummary, JournalError> {
    let dir = quick_dir();
    let path = dir.path().join("a");
    fs::write(&path, bytes).unwrap();
    Journal::check(&path, options)
}

fn with_faults(faults: &JournalFaults) -> JournalOptions {
    JournalOptions {
        io: Some(faults.io()),
        ..JournalOptions::default()
    }
}

/// All records, read in both ways there are.
fn content(opened: &OpenedJournal) -> Vec<Record> {
    let map = opened.journal.map().unwrap();
    let mut bytes = Vec::new();
    let read = |record: &RecordRef| {
        opened.journal.read(*record, &mut bytes).unwrap();
        let mapped = map.payload(*record).unwrap();
        assert_eq!(bytes, mapped);
        assert_eq!(record.offset() % 64, 0);
        assert_eq!(mapped.as_ptr() as usize % 64, 0);
        (record.kind, bytes.clone())
    };
    opened.records.iter().map(read).collect()
}

fn open(path: &Path) -> OpenedJournal {
    Journal::open(path, JournalOptions::default()).unwrap()
}

/// A file with records of many lengths in several commits, and what it holds.
fn sample(path: &Path, options: JournalOptions, bytes: usize) -> Vec<Record> {
    let mut rng = Rng(bytes as u64);
    let mut journal = Journal::create(path, IDENTITY, options).unwrap();
    let mut records = Vec::new();
    while (journal.bytes() as usize) < bytes {
        for len in [0, 1, 63, 64, 65, 500, 3000] {
            let payload = rng.bytes(len);
            journal.append(len as u32, &[&payload]).unwrap();
            records.push((len as u32, payload));
        }
        journal.commit().unwrap();
    }
    records
}

#[test]
fn what_is_committed_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let mut journal = Journal::create(&path, IDENTITY, JournalOptions::default()).unwrap();
    let found = Journal::check(&path, &JournalOptions::default()).unwrap();
    assert_eq!(found.commits, 0);
    // Parts are one payload.
    let first = journal.append(7, &[b"one ", b"", b"two"]).unwrap();
    let large = vec![5; 300_000];
    let second = journal.append(u32::MAX, &[&large, b"end"]).unwrap();
    let mut bytes = Vec::new();
    // Readable before the commit, and not in the map.
    journal.read(first, &mut bytes).unwrap();
    assert_eq!(bytes, b"one two");
    assert!(journal.map().unwrap().payload(first).is_err());
    journal.commit().unwrap();
    let map = journal.map().unwrap();
    journal.append(1, &[b"never committed"]).unwrap();
    drop(journal);

    let summary = Journal::check(&path, &JournalOptions::default()).unwrap();
    assert_eq!(summary.tail_bytes, 128);
    let opened = open(&path);
    assert_eq!(opened.dropped_bytes, 128);
    assert_eq!(opened.journal.identity(), IDENTITY);
    assert_eq!(opened.records, [first, second]);
    assert_eq!(opened.records[1].bytes, 300_003);
    assert_eq!(content(&opened)[0], (7, b"one two".to_vec()));
    let summary = Journal::check(&path, &JournalOptions::default()).unwrap();
    assert_eq!(summary.identity, IDENTITY);
    assert_eq!(summary.kinds[&7].bytes, 7);
    assert_eq!(summary.kinds[&u32::MAX].records, 1);
    assert_eq!((summary.commits, summary.tail_bytes), (1, 0));
    assert_eq!(summary.bytes, fs::metadata(&path).unwrap().len());
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    // A map outlives the name and the journal.
    opened.journal.remove().unwrap();
    assert!(!path.exists());
    assert_eq!(map.payload(first).unwrap(), b"one two");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_new_journal_takes_no_name_that_is_taken() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let create = |path: &Path| Journal::create(path, IDENTITY, JournalOptions::default());
    fs::write(&path, "mine").unwrap();
    assert!(matches!(create(&path), Err(JournalError::Exists)));
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    let link = dir.path().join("link");
    symlink(dir.path().join("nowhere"), &link).unwrap();
    assert!(matches!(create(&link), Err(JournalError::Exists)));
    for name in ["..", "/", "", ".b.journal-new"] {
        let e = create(&dir.path().join(name)).unwrap_err();
        let refused = matches!(
            e,
            JournalError::Name | JournalError::Exists | JournalError::Irregular(_)
        );
        assert!(refused, "{name}: {e}");
    }
    for name in [
        "x".repeat(300),
        "nul\0".to_string(),
        "no/such/folder".to_string(),
    ] {
        let e = create(&dir.path().join(&name)).unwrap_err();
        assert!(matches!(e, JournalError::Io { .. }), "{name}: {e}");
    }
    let big = vec![0; IDENTITY_BYTES_MAX as usize + 1];
    let e = Journal::create(dir.path().join("b"), &big, JournalOptions::default()).unwrap_err();
    assert!(
        e.to_string().contains("65537") && e.to_string().contains("65536"),
        "{e}"
    );
    Journal::create(dir.path().join("b"), &big[1..], JournalOptions::default()).unwrap();
    assert_eq!(open(&dir.path().join("b")).journal.identity(), &big[1..]);
}

#[test]
fn only_regular_files_are_opened() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    sample(&path, JournalOptions::default(), 2000);
    let name = |name: &str| dir.path().join(name);
    symlink(&path, name("link")).unwrap();
    fs::create_dir(name("folder")).unwrap();
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, name("fifo"), fifo, mode, 0).unwrap();
    fs::write(name("empty"), "").unwrap();
    fs::write(name("byte"), "H").unwrap();
    fs::write(name("text"), "no journal at all ".repeat(100)).unwrap();
    for (path, want) in [
        (name("link"), "it is a symbolic link, not a regular file"),
        (name("folder"), "it is a directory, not a regular file"),
        (
            name("fifo"),
            "it is a pipe, socket or device, not a regular file",
        ),
        (
            PathBuf::from("/dev/zero"),
            "it is a pipe, socket or device, not a regular file",
        ),
        (name("empty"), "it is empty, not a journal"),
        (name("byte"), "it is not a journal (1 bytes)"),
        (name("text"), "it is not a journal (1800 bytes)"),
    ] {
        let e = Journal::open(&path, JournalOptions::default()).unwrap_err();
        assert_eq!(e.to_string(), want);
        let e = Journal::check(&path, &JournalOptions::default()).unwrap_err();
        assert_eq!(e.to_string(), want);
    }
    let e = Journal::open(name("absent"), JournalOptions::default()).unwrap_err();
    let JournalError::Io { source, .. } = e else {
        panic!("{e}")
    };
    assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn one_at_a_time() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let mut journal = Journal::create(&path, IDENTITY, JournalOptions::default()).unwrap();
    let busy = || {
        let e = Journal::open(&path, JournalOptions::default()).unwrap_err();
        assert_eq!(e.to_string(), "it is open elsewhere");
    };
    busy();
    journal.append(1, &[b"a"]).unwrap();
    journal.commit().unwrap();
    // Looking takes no lock.
    assert_eq!(
        Journal::check(&path, &JournalOptions::default())
            .unwrap()
            .commits,
        1
    );
    let views = [(); 2].map(|()| Journal::view(&path, &JournalOptions::default()).unwrap());
    for view in &views {
        assert_eq!(view.identity, IDENTITY);
        assert_eq!(view.map.payload(view.records[0]).unwrap(), b"a");
    }
    // The file that a rewrite puts in place is locked as well.
    journal.rewrite(|new| new.append(2, &[b"b"])).unwrap();
    busy();
    drop(journal);
    assert_eq!(content(&open(&path)), [(2, b"b".to_vec())]);
    // A view has what it saw, whatever came after.
    assert_eq!(views[0].map.payload(views[0].records[0]).unwrap(), b"a");
    let mut bytes = fs::read(&path).unwrap();
    bytes[700] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(Journal::view(&path, &JournalOptions::default()).is_err());
}

/// Processes that rewrite a file all the time, and others that want to open it: the one that succeeds has
/// the file the name means, never one that was replaced before the lock came.
#[test]
fn a_lock_is_on_the_file_the_name_means() {
    let dir = quick_dir();
    let path = &dir.path().join("a");
    drop(Journal::create(path, &0u64.to_le_bytes(), JournalOptions::default()).unwrap());
    let opened = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let mut found = match Journal::open(path, JournalOptions::default()) {
                        Ok(found) => found,
                        Err(JournalError::Busy) => continue,
                        Err(e) => panic!("{e}"),
                    };
                    // One more for each process that had it.
                    let count = content(&found).first().map_or(0, |(kind, _)| *kind);
                    found
                        .journal
                        .rewrite(|new| new.append(count + 1, &[]))
                        .unwrap();
                    opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    let opened = opened.into_inner();
    assert!(opened > 0);
    assert_eq!(u64::from(content(&open(path))[0].0), opened);
}

#[test]
fn a_quota_names_both_numbers_and_changes_nothing() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let options = JournalOptions {
        quota_bytes: Some(1024),
        ..JournalOptions::default()
    };
    let mut journal = Journal::create(&path, IDENTITY, options.clone()).unwrap();
    assert_eq!(journal.bytes(), 640);
    journal.append(1, &[&[1; 64]]).unwrap();
    let e = journal.append(2, &[&[2; 100], &[3; 93]]).unwrap_err();
    assert_eq!(e.to_string(), "1088 bytes would pass the quota of 1024");
    assert_eq!(journal.bytes(), 768);
    assert_eq!(fs::metadata(&path).unwrap().len(), 768);
    journal.append(2, &[&[2; 100], &[3; 92]]).unwrap();
    journal.commit().unwrap();
    let e = journal
        .rewrite(|new| new.append(1, &[&[0; 321]]))
        .unwrap_err();
    assert_eq!(e.to_string(), "1088 bytes would pass the quota of 1024");
    assert_eq!(journal.bytes(), 1024);
    drop(journal);
    let opened = Journal::open(&path, options).unwrap();
    assert_eq!(opened.records.len(), 2);
    assert_eq!(
        opened
            .records
            .iter()
            .map(RecordRef::file_bytes)
            .sum::<u64>(),
        384
    );
    let small = JournalOptions {
        quota_bytes: Some(600),
        ..JournalOptions::default()
    };
    let e = Journal::create(dir.path().join("b"), IDENTITY, small).unwrap_err();
    assert!(
        matches!(
            e,
            JournalError::Quota {
                needed: 640,
                quota: 600
            }
        ),
        "{e}"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn references_go_with_their_file() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let mut journal = Journal::create(&path, IDENTITY, JournalOptions::default()).unwrap();
    let a = journal.append(1, &[b"first"]).unwrap();
    let b = journal.append(1, &[b"other"]).unwrap();
    journal.commit().unwrap();
    let old = journal.map().unwrap();
    // The same place, kind and length: still not the same record.
    let kept = journal.rewrite(|new| new.keep(b)).unwrap();
    assert_eq!((kept.offset(), kept.bytes), (a.offset(), a.bytes));
    let mut bytes = Vec::new();
    for stale in [a, b] {
        let e = journal.read(stale, &mut bytes).unwrap_err();
        assert!(matches!(e, JournalError::Stale { .. }), "{e}");
        assert!(journal.map().unwrap().payload(stale).is_err());
        let e = journal.rewrite(|new| new.keep(stale)).unwrap_err();
        assert!(matches!(e, JournalError::Stale { .. }), "{e}");
    }
    journal.read(kept, &mut bytes).unwrap();
    assert_eq!(bytes, b"other");
    // The old map keeps the old file.
    assert_eq!(old.payload(a).unwrap(), b"first");
    assert_eq!(old.payload(b).unwrap(), b"other");
    assert!(old.payload(kept).is_err());
    // An abandoned record is not there, though its bytes may be.
    let gone = journal.append(1, &[b"gone"]).unwrap();
    journal.rollback();
    assert!(journal.read(gone, &mut bytes).is_err());
    assert!(bytes.is_empty());
}

/// Files that a killed process has left are removed; one that is being written is left alone.
#[test]
fn what_the_dead_left_is_removed() {
    let dir = quick_dir();
    let (path, left) = (dir.path().join("a"), dir.path().join(".a.journal-new"));
    fs::write(&left, vec![1; 10_000]).unwrap();
    let mut journal = Journal::create(&path, IDENTITY, JournalOptions::default()).unwrap();
    assert!(!left.exists());
    fs::write(&left, vec![1; 10_000]).unwrap();
    journal.rewrite(|new| new.append(1, &[b"a"])).unwrap();
    drop(journal);
    fs::write(&left, vec![1; 10_000]).unwrap();
    drop(open(&path));
    assert!(!left.exists());
    let held = fs::File::create(&left).unwrap();
    held.try_lock().unwrap();
    let mut opened = open(&path);
    let e = opened
        .journal
        .rewrite(|new| new.append(1, &[b"a"]))
        .unwrap_err();
    assert!(matches!(e, JournalError::Busy), "{e}");
    assert!(left.exists());
}

/// A file written at once is there whole or not at all; who mapped the one before keeps it.
#[test]
fn a_publication_takes_the_place_of_what_was_there() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let publish = |bytes: &[u8], options: JournalOptions| {
        Journal::publish(&path, IDENTITY, options, |to| {
            to.append(3, &[bytes, b"!"])?;
            to.append(4, &[])?;
            Ok::<_, JournalError>(())
        })
    };
    let view = || Journal::view(&path, &JournalOptions::default()).unwrap();
    publish(b"one", JournalOptions::default()).unwrap();
    let one = view();
    assert_eq!(one.identity, IDENTITY);
    assert_eq!(one.records.len(), 2);
    let region = one.map.region(one.records[0]).unwrap();
    let weak = one.map.downgrade();
    let once = fs::read(&path).unwrap();
    publish(b"one", JournalOptions::default()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), once, "the same is the same bytes");
    // At every call that can fail: the old one or the new one, and nothing beside it.
    let mut strike = 0;
    loop {
        strike += 1;
        let faults = JournalFaults::at(strike, DiskFault::Full);
        let done = publish(b"two", with_faults(&faults)).is_ok();
        let found = view();
        let found = found.map.payload(found.records[0]).unwrap();
        assert_eq!(found, if done { b"two!" } else { b"one!" });
        if done {
            break;
        }
    }
    assert!(strike > 4, "{strike}");
    assert_eq!(region.as_slice(), b"one!");
    drop(one);
    assert!(weak.upgrade().is_some());
    drop(region);
    assert!(weak.upgrade().is_none());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(publish(b"three", JournalOptions::default()).is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}
