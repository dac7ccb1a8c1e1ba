//! Killed with SIGKILL, at every call and at random moments: what was acknowledged is there, whole.
//!
//! A child (this program again) tells a story by turns. A turn is three records that depend on its
//! number alone; the child commits them, says "ack N", and now and then rewrites the file so that
//! only the last turns stay, saying so before and after. The parent kills it, or lets it die inside a
//! call, opens what is left, and compares: turns in order, none half, none of the acknowledged missing.
#![cfg(target_os = "linux")]

use haversack_memory::Journal;
use haversack_memory::journal::{JournalError, JournalOptions, RecordRef};
use haversack_testing::{DiskCall, DiskFault, JournalFaults};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PATH: &str = "JOURNAL_KILL_PATH";
const TURNS: &str = "JOURNAL_KILL_TURNS";
const NTH: &str = "JOURNAL_KILL_NTH";
/// Turns that rewriting leaves.
const KEPT: usize = 3;

/// The records of a turn: one small, one of a few pages, one empty.
fn turn(number: u32) -> [(u32, Vec<u8>); 3] {
    let mut state = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = |n: usize| -> Vec<u8> {
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..n).map(next).collect()
    };
    let head = [&number.to_le_bytes()[..], &bytes(50)].concat();
    [
        (1, head),
        (2, bytes(5000 + number as usize % 7000)),
        (3, Vec::new()),
    ]
}

/// The turns a journal holds; panics at anything half, out of order or altered.
fn turns(journal: &Journal, records: &[RecordRef]) -> Vec<u32> {
    assert_eq!(records.len() % 3, 0, "half a turn");
    let mut bytes = Vec::new();
    let mut found: Vec<u32> = Vec::new();
    for group in records.chunks(3) {
        journal.read(group[0], &mut bytes).unwrap();
        let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        for (record, (kind, want)) in group.iter().zip(turn(number)) {
            journal.read(*record, &mut bytes).unwrap();
            assert_eq!(record.kind, kind);
            assert!(bytes == want, "turn {number}, kind {kind}");
        }
        assert!(found.last().is_none_or(|last| last + 1 == number));
        found.push(number);
    }
    found
}

/// The child's side. Without its variables it is no test.
#[test]
fn child_tells_its_story() {
    let Some(path) = std::env::var_os(PATH).map(PathBuf::from) else {
        return;
    };
    let number = |name| std::env::var(name).ok()?.parse::<usize>().ok();
    let faults = number(NTH).map_or(JournalFaults::never(), |n| {
        JournalFaults::at(n, DiskFault::Kill)
    });
    let options = JournalOptions {
        io: Some(faults.io()),
        ..JournalOptions::default()
    };
    let say = |line: String| {
        let mut out = std::io::stdout().lock();
        out.write_all(line.as_bytes()).unwrap();
        out.flush().unwrap();
    };
    let (mut journal, mut records) = match Journal::create(&path, b"story", options.clone()) {
        Ok(journal) => (journal, Vec::new()),
        Err(JournalError::Exists) => {
            let opened = Journal::open(&path, options).unwrap();
            (opened.journal, opened.records)
        }
        Err(e) => panic!("{e}"),
    };
    let mut next = turns(&journal, &records).last().map_or(0, |last| last + 1);
    say(format!("open {next}\n"));
    for _ in 0..number(TURNS).unwrap_or(usize::MAX) {
        for (kind, payload) in turn(next) {
            let (a, b) = payload.split_at(payload.len() / 2);
            records.push(journal.append(kind, &[a, b]).unwrap());
        }
        if next % 11 == 7 {
            // Thought better of it, once.
            journal.rollback();
            records.truncate(records.len() - 3);
            for (kind, payload) in turn(next) {
                records.push(journal.append(kind, &[&payload]).unwrap());
            }
        }
        journal.commit().unwrap();
        say(format!("ack {next}\n"));
        next += 1;
        if next.is_multiple_of(5) {
            let from = (records.len() / 3).saturating_sub(KEPT) * 3;
            let first = next - (records.len() - from) as u32 / 3;
            say(format!("cutting {first}\n"));
            records = journal
                .rewrite(|new| {
                    let kept = records[from..].iter();
                    kept.map(|record| new.keep(*record))
                        .collect::<Result<_, JournalError>>()
                })
                .unwrap();
            say(format!("cut {first}\n"));
        }
    }
    for (n, call) in faults.calls().iter().enumerate() {
        say(format!("call {} {call:?}\n", n + 1));
    }
}

fn start(path: &Path, variables: &[(&str, usize)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child_tells_its_story", "--exact", "--nocapture"])
        .env(PATH, path)
        .envs(variables.iter().map(|(name, n)| (name, n.to_string())))
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// What the dead child has said, as far as it matters.
#[derive(Clone, Debug, Default)]
struct Said {
    opened: bool,
    acknowledged: Option<u32>,
    /// The first turn after a rewrite that was begun, and after one that was done.
    cutting: Option<u32>,
    cut: Option<u32>,
}

impl Said {
    fn hear(&mut self, text: &str) {
        // A line that was not finished was not said.
        for line in text
            .split_inclusive('\n')
            .filter_map(|l| l.strip_suffix('\n'))
        {
            let number = |word| line.split_once(word)?.1.parse::<u32>().ok();
            if let Some(next) = number("open ") {
                self.opened = true;
                self.acknowledged = next.checked_sub(1).or(self.acknowledged);
            }
            self.acknowledged = number("ack ").or(self.acknowledged);
            self.cutting = number("cutting ").or(self.cutting);
            self.cut = number("cut ").or(self.cut);
        }
    }

    /// Opens what the child has left and compares. The number of turns found.
    fn compare(&self, path: &Path) -> usize {
        let opened = match Journal::open(path, JournalOptions::default()) {
            Ok(opened) => opened,
            Err(JournalError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                assert!(!self.opened, "{self:?}: the file is gone");
                return 0;
            }
            Err(e) => panic!("{self:?}: {e}"),
        };
        let summary = Journal::check(path, &JournalOptions::default()).unwrap();
        assert_eq!(summary.tail_bytes, 0);
        let found = turns(&opened.journal, &opened.records);
        let next = self.acknowledged.map_or(0, |last| last + 1);
        let end = found.last().map_or(0, |last| last + 1);
        // The turn on its way may have arrived, whole.
        assert!(end == next || end == next + 1, "{self:?}: {found:?}");
        let begin = found.first().copied().unwrap_or(0);
        let whole = self.cut.unwrap_or(0);
        let allowed = [Some(whole), self.cutting];
        assert!(
            found.is_empty() || allowed.contains(&Some(begin)),
            "{self:?}: {found:?}"
        );
        found.len()
    }
}

fn quick_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// Dies in the Nth call that changes the disk, for every N of a story that has all of them.
#[test]
fn killed_at_every_call() {
    for begun in [false, true] {
        let mut by_call: BTreeMap<String, usize> = BTreeMap::new();
        let mut calls: Vec<String> = Vec::new();
        for nth in 0.. {
            let dir = quick_dir();
            let path = dir.path().join("story");
            let mut said = Said::default();
            if begun {
                // Eight turns and a tail that was not committed.
                let mut child = start(&path, &[(TURNS, 8)]);
                let mut text = String::new();
                child
                    .stdout
                    .take()
                    .unwrap()
                    .read_to_string(&mut text)
                    .unwrap();
                assert!(child.wait().unwrap().success());
                said.hear(&text);
                let file = fs::OpenOptions::new().append(true).open(&path);
                file.unwrap().write_all(&[7; 5000]).unwrap();
            }
            let mut child = start(&path, &[(TURNS, 8), (NTH, nth)]);
            let mut text = String::new();
            child
                .stdout
                .take()
                .unwrap()
                .read_to_string(&mut text)
                .unwrap();
            let status = child.wait().unwrap();
            said.hear(&text);
            said.compare(&path);
            let left = fs::read_dir(dir.path()).unwrap().count();
            assert!(left <= 1, "temporary files are left");
            if nth == 0 {
                let lines = text.lines().filter_map(|line| line.split_once("call "));
                let names = lines.filter_map(|(_, rest)| rest.split_once(' '));
                calls = names.map(|(_, name)| name.to_string()).collect();
                assert!(status.success());
                continue;
            }
            if nth > calls.len() {
                assert!(status.success(), "{status}");
                break;
            }
            assert_eq!(status.signal(), Some(9), "{status}");
            *by_call.entry(calls[nth - 1].clone()).or_default() += 1;
            // And the story goes on from there.
            let mut child = start(&path, &[(TURNS, 3)]);
            let mut text = String::new();
            child
                .stdout
                .take()
                .unwrap()
                .read_to_string(&mut text)
                .unwrap();
            assert!(child.wait().unwrap().success());
            said.hear(&text);
            assert!(said.compare(&path) > 0);
        }
        eprintln!("begun {begun}: killed at {by_call:?}");
        use DiskCall::*;
        for call in [
            Write, Truncate, SyncData, WriteHead, SyncHead, Rename, SyncFolder,
        ] {
            let name = format!("{call:?}");
            assert!(by_call.contains_key(&name), "never killed at {name}");
        }
    }
}

/// The parent's kill comes at any instruction, in one file that lives through all of them.
#[test]
fn killed_at_random_moments() {
    const KILLS: usize = 250;
    let quick = quick_dir();
    let real = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut state = 88_172_645_463_325_252u64;
    let (mut turns, mut early) = (0, 0);
    for kill in 0..KILLS {
        // Most in memory, where a moment holds many calls; some where fsync takes its time.
        let dir = if kill % 5 == 0 { &real } else { &quick };
        let path = dir.path().join("story");
        let mut said = Said::default();
        if path.exists() {
            let opened = Journal::open(&path, JournalOptions::default()).unwrap();
            let found = crate::turns(&opened.journal, &opened.records);
            said.acknowledged = found.last().copied();
            said.cut = found.first().copied();
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let mut child = start(&path, &[]);
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        if kill % 10 != 9 {
            // The harness speaks first; a moment before the file is open counts for little.
            while !text.contains("open ") {
                assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
            }
        }
        std::thread::sleep(Duration::from_micros(state % 9000));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        out.read_to_string(&mut text).unwrap();
        let before = said.acknowledged;
        said.hear(&text);
        said.compare(&path);
        turns += said.acknowledged.map_or(0, |n| n - before.unwrap_or(0));
        early += usize::from(!said.opened);
    }
    eprintln!("{KILLS} kills in {turns} turns, {early} of them before the file was open");
    assert!(turns as usize > KILLS, "the moments were too short");
}

/// Another process is refused while the file is open, and let in after SIGKILL.
#[test]
fn a_lock_dies_with_its_process() {
    let dir = quick_dir();
    let path = dir.path().join("story");
    let mut child = start(&path, &[]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("ack 1\n") {
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
    }
    let (mut busy, mut looks) = (0, 0);
    for _ in 0..200 {
        match Journal::open(&path, JournalOptions::default()) {
            Err(JournalError::Busy) => busy += 1,
            other => panic!("{:?}", other.map(|opened| opened.journal)),
        }
        // Looking at a file that is being written finds it whole.
        Journal::check(&path, &JournalOptions::default()).unwrap();
        looks += 1;
    }
    assert_eq!((busy, looks), (200, 200));
    child.kill().unwrap();
    child.wait().unwrap();
    out.read_to_string(&mut text).unwrap();
    let mut said = Said::default();
    said.hear(&text);
    assert!(said.compare(&path) > 0);
}
