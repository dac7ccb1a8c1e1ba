//! Commits that run beside their callers, and files that get their names with their first commit.

use crate::*;
use std::time::Duration;

/// Between begin and end a journal takes no writes, reads what it has, and has its lock; then the commit counts.
#[test]
fn a_commit_runs_beside_its_caller() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let disk = JournalFaults::never().late();
    let mut journal = Journal::create(&path, IDENTITY, with_faults(&disk)).unwrap();
    let first = journal.append(1, &[b"one"]).unwrap();
    journal.commit().unwrap();
    assert!(journal.begin_commit().unwrap().is_none(), "nothing is new");

    let second = journal.append(2, &[b"two"]).unwrap();
    let task = journal.begin_commit().unwrap().unwrap().start();
    let refused = |error: JournalError| matches!(error, JournalError::Committing);
    assert!(refused(journal.append(3, &[b"three"]).unwrap_err()));
    assert!(refused(journal.commit().unwrap_err()));
    let rewritten = journal.rewrite(|_| Ok::<_, JournalError>(()));
    assert!(refused(rewritten.unwrap_err()));
    journal.rollback();
    let mut bytes = Vec::new();
    for (record, text) in [(first, b"one"), (second, b"two")] {
        journal.read(record, &mut bytes).unwrap();
        assert_eq!(bytes, text);
    }
    assert!(!task.has_ended());
    task.wait_for(Duration::from_millis(1));
    assert!(!task.has_ended(), "the disk has not caught up");
    disk.catch_up();
    assert!(task.has_ended());
    journal.end_commit(task.wait()).unwrap();
    journal.append(3, &[b"three"]).unwrap();
    drop(journal);
    let payloads: Vec<Vec<u8>> = content(&open(&path)).into_iter().map(|(_, p)| p).collect();
    assert_eq!(payloads, [b"one", b"two"]);

    // Who waits for a commit that has not begun runs it.
    let mut journal = Journal::open(&path, with_faults(&disk)).unwrap().journal;
    journal.append(4, &[b"four"]).unwrap();
    let task = journal.begin_commit().unwrap().unwrap().start();
    journal.end_commit(task.wait()).unwrap();
    disk.catch_up();
    drop(journal);
    assert_eq!(content(&open(&path)).len(), 3);
}

/// On real threads, while the caller reads.
#[test]
fn threads_commit() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let mut journal = Journal::begin(&path, IDENTITY, JournalOptions::default()).unwrap();
    for n in 0..50u8 {
        let record = journal.append(1, &[&[n; 1000]]).unwrap();
        let task = match n % 10 {
            9 => {
                let rewritten = journal.begin_rewrite(|to| to.keep(record));
                rewritten.unwrap().1.start()
            }
            _ => journal.begin_commit().unwrap().unwrap().start(),
        };
        let mut bytes = Vec::new();
        journal.read(record, &mut bytes).unwrap();
        assert_eq!(bytes, [n; 1000]);
        journal.end_commit(task.wait()).unwrap();
    }
    drop(journal);
    assert_eq!(content(&open(&path)).len(), 1, "the last was rewritten");
}

/// Before its first commit a journal has no file of its name; the name is taken all the same.
#[test]
fn a_file_gets_its_name_with_its_first_commit() {
    let dir = quick_dir();
    let path = dir.path().join("a");
    let begin = || Journal::begin(&path, IDENTITY, JournalOptions::default());
    let mut journal = begin().unwrap();
    journal.append(1, &[b"one"]).unwrap();
    assert!(!path.exists());
    assert!(matches!(begin(), Err(JournalError::Busy)));
    let opened = Journal::open(&path, JournalOptions::default());
    assert!(opened.is_err(), "there is nothing to open");
    journal.commit().unwrap();
    assert!(matches!(begin(), Err(JournalError::Exists)));
    drop(journal);
    assert_eq!(content(&open(&path)).len(), 1);
    fs::remove_file(&path).unwrap();

    // Dropped or removed before, it leaves nothing.
    for remove in [false, true] {
        let mut journal = begin().unwrap();
        journal.append(1, &[b"one"]).unwrap();
        match remove {
            true => journal.remove().unwrap(),
            false => drop(journal),
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    // A rewrite gives it its name, too.
    let mut journal = begin().unwrap();
    let one = journal.append(1, &[b"one"]).unwrap();
    journal.rewrite(|to| to.keep(one)).unwrap();
    drop(journal);
    assert_eq!(content(&open(&path)).len(), 1);
}

/// Each call of a first commit fails once: nothing of it is there, and the next commit has everything, or the journal is
/// lost and recovers.
#[test]
fn a_first_commit_that_fails_is_tried_again() {
    for n in 1.. {
        let dir = quick_dir();
        let path = dir.path().join("a");
        let disk = JournalFaults::at(n, DiskFault::Broken);
        let Ok(mut journal) = Journal::begin(&path, IDENTITY, with_faults(&disk)) else {
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{n}");
            continue;
        };
        let told = journal.append(1, &[b"one"]).and_then(|_| journal.commit());
        if !disk.struck() {
            told.unwrap();
            assert!(n > 5, "every call was failed once");
            return;
        }
        assert!(told.is_err(), "{n}");
        if journal.is_lost() {
            assert_eq!(journal.recover().unwrap().len(), 1, "{n}");
        } else {
            assert!(!path.exists(), "{n}");
            journal.append(1, &[b"again"]).unwrap();
            journal.commit().unwrap();
        }
        drop(journal);
        assert_eq!(content(&open(&path)).len(), 1, "{n}");
    }
}
