//! The order of calls, disks that are full, folders that are read-only.

use crate::*;
use haversack_testing::DiskCall;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What is made durable in which order: everything else rests on it.
#[test]
fn calls_come_in_order() {
    use DiskCall::*;
    let dir = quick_dir();
    let path = dir.path().join("a");
    let faults = JournalFaults::never();
    let mut seen = 0;
    let mut since = || {
        let calls = faults.calls();
        let new = calls[seen..].to_vec();
        seen = calls.len();
        new
    };
    let mut journal = Journal::create(&path, IDENTITY, with_faults(&faults)).unwrap();
    let place = [Write, WriteHead, SyncHead, Rename, SyncFolder];
    assert_eq!(since(), place);
    // Parts are gathered; what is large goes by itself.
    journal
        .append(1, &[&[1; 10], &[2; 100_000], &[3; 10]])
        .unwrap();
    assert_eq!(since(), [Write, Write, Write]);
    journal.commit().unwrap();
    assert_eq!(since(), [SyncData, WriteHead, SyncHead]);
    journal.commit().unwrap();
    assert_eq!(since(), []);
    journal.append(1, &[]).unwrap();
    journal.rollback();
    assert_eq!(since(), [Write, Truncate]);
    journal.append(1, &[]).unwrap();
    drop(journal);
    let mut journal = Journal::open(&path, with_faults(&faults)).unwrap().journal;
    assert_eq!(since(), [Write, Truncate, SyncData, SyncFolder]);
    journal.rewrite(|_| Ok::<_, JournalError>(())).unwrap();
    assert_eq!(since(), place);
    journal.remove().unwrap();
    assert_eq!(since(), [Remove, SyncFolder]);
}

/// A limit on the size of files stands for a full disk: the kernel itself refuses.
#[test]
fn a_file_that_may_not_grow_stays_usable() {
    if std::env::var_os("JOURNAL_LIMITED").is_some() {
        return limited();
    }
    // The shell ignores the signal that would come with the error, and what it starts does too.
    let script = "trap '' XFSZ; ulimit -f 2048; exec \"$0\" \"$@\"";
    let status = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .args([
            "disk::a_file_that_may_not_grow_stays_usable",
            "--exact",
            "--nocapture",
        ])
        .env("JOURNAL_LIMITED", "1")
        .status()
        .unwrap();
    assert!(status.success());
}

fn limited() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let mut journal = Journal::create(&path, IDENTITY, JournalOptions::default()).unwrap();
    let payload = vec![1; 100_000];
    let mut records = Vec::new();
    let e = loop {
        match journal.append(1, &[&payload]) {
            Ok(record) => records.push(record),
            Err(e) => break e,
        }
        journal.commit().unwrap();
        assert!(records.len() < 100, "the limit is not there");
    };
    eprintln!("after {} records: {e}", records.len());
    assert!(matches!(e, JournalError::Io { .. }), "{e}");
    assert_eq!(fs::metadata(&path).unwrap().len(), journal.bytes());
    // Small ones still fit, and room can be made.
    records.push(journal.append(2, &[b"small"]).unwrap());
    journal.commit().unwrap();
    let half = &records[records.len() / 2..];
    let kept = journal
        .rewrite(|new| {
            half.iter()
                .map(|r| new.keep(*r))
                .collect::<Result<Vec<_>, JournalError>>()
        })
        .unwrap();
    journal.append(1, &[&payload]).unwrap();
    journal.commit().unwrap();
    drop(journal);
    assert_eq!(open(&path).records[..kept.len()], kept);
}

/// In a folder that takes no new names a journal can be written to, and not made or rewritten.
#[test]
fn a_folder_that_is_read_only() {
    if let Some(dir) = std::env::var_os("JOURNAL_READ_ONLY") {
        return read_only(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    sample(&path, JournalOptions::default(), 2000);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    if rustix::process::geteuid().is_root() {
        // The superuser may write everywhere: another user has to try.
        let exe = dir.path().join("test");
        fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
        let status = Command::new(&exe)
            .args(["disk::a_folder_that_is_read_only", "--exact", "--nocapture"])
            .env("JOURNAL_READ_ONLY", dir.path())
            .current_dir("/")
            .uid(65_534)
            .gid(65_534)
            .status();
        match status {
            Ok(status) => assert!(status.success()),
            Err(e) => eprintln!("SKIPPED: no other user can run this: {e}"),
        }
        fs::remove_file(exe).unwrap();
    } else {
        read_only(dir.path());
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

fn read_only(dir: &Path) {
    let denied = |e: JournalError| {
        let JournalError::Io { source, .. } = &e else {
            panic!("{e}")
        };
        assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied, "{e}");
    };
    denied(Journal::create(dir.join("b"), IDENTITY, JournalOptions::default()).unwrap_err());
    let mut opened = open(&dir.join("a"));
    let before = opened.journal.bytes();
    denied(
        opened
            .journal
            .rewrite(|new| new.append(1, &[]))
            .unwrap_err(),
    );
    assert_eq!(opened.journal.bytes(), before);
    opened.journal.append(1, &[b"still"]).unwrap();
    opened.journal.commit().unwrap();
    denied(opened.journal.remove().unwrap_err());
    assert_eq!(
        *content(&open(&dir.join("a"))).last().unwrap(),
        (1, b"still".to_vec())
    );
}

/// A disk of one megabyte, really full: what is committed stays, and room that is made is used.
#[test]
fn a_full_disk_loses_nothing() {
    const NAME: &str = "disk::a_full_disk_loses_nothing";
    if let Some(dir) = std::env::var_os("JOURNAL_FULL") {
        return full(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    // In a namespace of its own, so that the test needs no superuser.
    let script = "mount -t tmpfs -o size=1m none \"$JOURNAL_FULL\" || exit 77; exec \"$0\" \"$@\"";
    let status = Command::new("unshare")
        .args(["-rm", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .args([NAME, "--exact", "--nocapture"])
        .env("JOURNAL_FULL", dir.path())
        .status();
    match status {
        Ok(status) if status.success() => {}
        // 101 is a test that failed; anything else means that mounting is not allowed.
        Ok(status) if status.code() == Some(101) => panic!("it failed on the full disk"),
        other => eprintln!("SKIPPED: no small disk to fill: {other:?}"),
    }
}

fn full(dir: &Path) {
    let path = dir.join("a");
    let is_full = |e: JournalError| {
        let JournalError::Io { source, .. } = &e else {
            panic!("{e}")
        };
        assert_eq!(source.kind(), std::io::ErrorKind::StorageFull, "{e}");
    };
    let ballast = dir.join("ballast");
    fs::write(&ballast, vec![1; 300_000]).unwrap();
    let mut journal = Journal::create(&path, IDENTITY, JournalOptions::default()).unwrap();
    let payload = vec![1; 100_000];
    let mut records = Vec::new();
    loop {
        match journal.append(1, &[&payload]) {
            Ok(record) => records.push(record),
            Err(e) => break is_full(e),
        }
        journal.commit().unwrap();
        assert!(records.len() < 100, "the disk is not small");
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), journal.bytes());
    // Both files are there while one is rewritten: that does not fit.
    is_full(
        journal
            .rewrite(|new| new.keep(records[0]).and_then(|_| new.keep(records[1])))
            .unwrap_err(),
    );
    assert_eq!(fs::read_dir(dir).unwrap().count(), 2);
    drop(journal);
    let opened = open(&path);
    assert_eq!(opened.records, records);
    let mut journal = opened.journal;
    fs::remove_file(&ballast).unwrap();
    records.push(journal.append(1, &[&payload]).unwrap());
    journal.commit().unwrap();
    drop(journal);
    assert_eq!(open(&path).records, records);
}

/// Times of the calls a session makes; nothing is asserted.
#[test]
#[ignore = "prints times"]
fn prints_its_times() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("a");
    let mut journal = Journal::create(&path, IDENTITY, JournalOptions::default()).unwrap();
    // A turn: many small blocks, 400 KB in all.
    let block = Rng(1).bytes(6400);
    let parts = [&block[..]; 64];
    let (mut appends, mut commits) = (Vec::new(), Vec::new());
    let mut records = Vec::new();
    while journal.bytes() < 64 << 20 {
        let start = std::time::Instant::now();
        records.push(journal.append(1, &parts).unwrap());
        appends.push(start.elapsed());
        journal.commit().unwrap();
        commits.push(start.elapsed() - appends[appends.len() - 1]);
    }
    let median = |name: &str, times: &mut Vec<std::time::Duration>| {
        times.sort();
        let p95 = times[times.len() * 95 / 100];
        eprintln!("{name}: median {:?}, p95 {p95:?}", times[times.len() / 2]);
    };
    median("append of 400 KB", &mut appends);
    median("commit of it", &mut commits);
    let start = std::time::Instant::now();
    let kept: Vec<_> = journal
        .rewrite(|new| {
            let half = records.iter().step_by(2);
            half.map(|r| new.keep(*r))
                .collect::<Result<_, JournalError>>()
        })
        .unwrap();
    eprintln!(
        "rewrite, {} of {} stay: {:?}",
        kept.len(),
        records.len(),
        start.elapsed()
    );
    while journal.bytes() < 64 << 20 {
        journal.append(1, &parts).unwrap();
    }
    journal.commit().unwrap();
    drop(journal);
    for _ in 0..5 {
        let start = std::time::Instant::now();
        let bytes = open(&path).journal.bytes();
        let time = start.elapsed();
        let rate = bytes as f64 / time.as_secs_f64() / 1e6;
        eprintln!("open of {bytes} bytes: {time:?}, {rate:.0} MB/s");
    }
    // A session of the usual size.
    let path = dir.path().join("b");
    let mut journal = Journal::create(&path, IDENTITY, JournalOptions::default()).unwrap();
    (0..10).for_each(|_| _ = journal.append(1, &parts).unwrap());
    journal.commit().unwrap();
    drop(journal);
    let mut opens = Vec::new();
    for _ in 0..50 {
        let start = std::time::Instant::now();
        drop(open(&path));
        opens.push(start.elapsed());
    }
    median("open of 4 MB", &mut opens);
}

/// The file is removed or replaced while it is open. The kernel would take writes to it, and they
/// would be lost. The journal can be read, and goes on when the name is its own again.
#[test]
fn a_file_without_its_name_takes_no_commit() {
    let dir = quick_dir();
    let (path, away) = (dir.path().join("a"), dir.path().join("b"));
    let mut journal = Journal::create(&path, IDENTITY, JournalOptions::default()).unwrap();
    let first = journal.append(1, &[b"first"]).unwrap();
    journal.commit().unwrap();
    for replaced in [false, true] {
        fs::rename(&path, &away).unwrap();
        if replaced {
            fs::write(&path, "another program's").unwrap();
        }
        journal.append(1, &[b"second"]).unwrap();
        assert!(matches!(journal.commit(), Err(JournalError::Gone)));
        let rewritten = journal.rewrite(|_| Ok::<_, JournalError>(()));
        assert!(matches!(rewritten, Err(JournalError::Gone)));
        assert!(matches!(journal.recover(), Err(JournalError::Gone)));
        let mut bytes = Vec::new();
        journal.read(first, &mut bytes).unwrap();
        assert_eq!(bytes, b"first");
        if replaced {
            assert_eq!(fs::read(&path).unwrap(), b"another program's");
        }
        fs::rename(&away, &path).unwrap();
        journal.append(1, &[b"third"]).unwrap();
        journal.commit().unwrap();
    }
    drop(journal);
    assert_eq!(open(&path).records.len(), 3);
}
