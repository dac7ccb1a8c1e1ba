//! Random stories beside a list of what must be there, on a good disk and on one that fails.

use crate::*;

/// One step of a random story.
enum Op {
    Append(Record),
    Commit,
    Rollback,
    /// Which of the records stay, and what is added behind them.
    Rewrite(Vec<bool>, Vec<Record>),
    Reopen,
    /// The same without letting go of the file.
    Recover,
}

fn random_op(rng: &mut Rng) -> Op {
    let record = |rng: &mut Rng| {
        let len = [0, 1, 64, 100, 700, 70_000][rng.below(6).min(rng.below(6))];
        (rng.below(4) as u32, rng.bytes(len))
    };
    match rng.below(20) {
        0..=9 => Op::Append(record(rng)),
        10..=14 => Op::Commit,
        15 => Op::Rollback,
        16 => {
            let keep = (0..200).map(|_| rng.below(3) > 0).collect();
            let added = rng.below(3);
            Op::Rewrite(keep, (0..added).map(|_| record(rng)).collect())
        }
        17 => Op::Recover,
        _ => Op::Reopen,
    }
}

/// A journal beside two lists: what was acknowledged, and what was appended since.
struct Twin {
    path: PathBuf,
    options: JournalOptions,
    faults: Option<JournalFaults>,
    journal: Option<Journal>,
    refs: Vec<RecordRef>,
    sure: Vec<Record>,
    appended: Vec<Record>,
    /// Set when a call failed so that either this or `sure` may be on the disk.
    perhaps: Option<Vec<Record>>,
    failures: usize,
}

impl Twin {
    fn play(&mut self, op: Op) {
        let Some(mut journal) = self.journal.take() else {
            return;
        };
        match op {
            Op::Append((kind, payload)) => {
                let middle = payload.len() / 3;
                match journal.append(kind, &[&payload[..middle], &payload[middle..]]) {
                    Ok(record) => {
                        self.refs.push(record);
                        self.appended.push((kind, payload));
                    }
                    Err(e) => self.failed(e),
                }
            }
            Op::Commit => match journal.commit() {
                Ok(()) => self.sure.append(&mut self.appended),
                Err(e) => {
                    self.failed(e);
                    let both = [&self.sure[..], &self.appended[..]].concat();
                    let dropped = journal.bytes() == journal.committed_bytes();
                    let lost = self.unsure(&mut journal, both);
                    assert!(lost || dropped, "a failed commit drops what was appended");
                    self.drop_appended();
                }
            },
            Op::Rollback => {
                journal.rollback();
                self.drop_appended();
            }
            Op::Rewrite(keep, added) => {
                let all = [&self.sure[..], &self.appended[..]].concat();
                let stays = |i: usize| keep.get(i).copied().unwrap_or(true);
                let mut wanted = Vec::new();
                for (i, record) in all.into_iter().enumerate() {
                    if stays(i) {
                        wanted.push(record);
                    }
                }
                wanted.extend(added.iter().cloned());
                let refs = self.refs.clone();
                let rewritten = journal.rewrite(|new| {
                    let kept = refs.iter().enumerate().filter(|(i, _)| stays(*i));
                    let mut refs = Vec::new();
                    for (_, record) in kept {
                        refs.push(new.keep(*record)?);
                    }
                    for (kind, payload) in &added {
                        refs.push(new.append(*kind, &[payload])?);
                    }
                    Ok::<_, JournalError>(refs)
                });
                match rewritten {
                    Ok(refs) => {
                        self.refs = refs;
                        self.sure = wanted;
                        self.appended.clear();
                    }
                    Err(e) => {
                        self.failed(e);
                        self.unsure(&mut journal, wanted);
                    }
                }
            }
            Op::Reopen => {
                drop(journal);
                self.drop_appended();
                match Journal::open(&self.path, self.options.clone()) {
                    Ok(opened) => {
                        self.compare(&opened);
                        journal = opened.journal;
                    }
                    Err(e) => {
                        self.failed(e);
                        return;
                    }
                }
            }
            Op::Recover => match journal.recover() {
                Ok(records) => {
                    self.drop_appended();
                    let opened = OpenedJournal {
                        journal,
                        records,
                        dropped_bytes: 0,
                    };
                    self.compare(&opened);
                    journal = opened.journal;
                }
                Err(e) => {
                    self.failed(e);
                    self.drop_appended();
                }
            },
        }
        self.journal = Some(journal);
    }

    fn drop_appended(&mut self) {
        self.refs.truncate(self.sure.len());
        self.appended.clear();
    }

    fn failed(&mut self, e: JournalError) {
        let faults = self.faults.as_ref();
        assert!(faults.is_some_and(JournalFaults::struck), "{e}");
        self.failures += 1;
    }

    /// After a failed commit or rewrite: a lost journal may hold either; any other only the old. True if lost.
    fn unsure(&mut self, journal: &mut Journal, other: Vec<Record>) -> bool {
        if matches!(journal.append(0, &[]), Err(JournalError::Lost)) {
            assert!(matches!(journal.commit(), Err(JournalError::Lost)));
            self.perhaps.get_or_insert(other);
            let mut bytes = Vec::new();
            for (record, (_, payload)) in self.refs.iter().zip(&self.sure) {
                journal.read(*record, &mut bytes).unwrap();
                assert!(bytes == *payload, "a lost journal can be read");
            }
            return true;
        }
        journal.rollback();
        self.drop_appended();
        false
    }

    fn compare(&mut self, opened: &OpenedJournal) {
        let found = content(opened);
        if let Some(other) = self.perhaps.take()
            && found == other
        {
            self.sure = other;
        }
        assert!(found == self.sure, "{} records", found.len());
        self.refs.clone_from(&opened.records);
    }

    /// A healthy disk again: what was acknowledged is there.
    fn end(mut self) -> usize {
        drop(self.journal.take());
        let opened = open(&self.path);
        self.compare(&opened);
        let left = fs::read_dir(self.path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "temporary files are left");
        opened.journal.remove().unwrap();
        self.failures
    }

    fn begin(path: PathBuf, faults: Option<JournalFaults>) -> Option<Twin> {
        let options = faults.as_ref().map(with_faults).unwrap_or_default();
        let journal = Journal::create(&path, IDENTITY, options.clone());
        let Ok(journal) = journal else {
            // Nothing was acknowledged, and the name is free.
            assert!(faults.unwrap().struck());
            let retry = Journal::create(&path, IDENTITY, JournalOptions::default());
            match retry {
                Ok(journal) => journal.remove().unwrap(),
                // Neither the folder could be synced nor the new file removed.
                Err(JournalError::Exists) => open(&path).journal.remove().unwrap(),
                Err(e) => panic!("{e}"),
            }
            return None;
        };
        Some(Twin {
            path,
            options,
            faults,
            journal: Some(journal),
            refs: Vec::new(),
            sure: Vec::new(),
            appended: Vec::new(),
            perhaps: None,
            failures: 0,
        })
    }
}

#[test]
fn random_stories_equal_a_list() {
    let dir = quick_dir();
    let mut ops = 0;
    for seed in 0..3000 {
        let mut rng = Rng(seed);
        let mut twin = Twin::begin(dir.path().join("a"), None).unwrap();
        for _ in 0..rng.below(40) {
            twin.play(random_op(&mut rng));
            ops += 1;
        }
        assert_eq!(twin.end(), 0, "seed {seed}");
    }
    eprintln!("{ops} steps");
}

/// The same stories on a disk where each call in turn fails, once or from then on.
#[test]
fn random_stories_on_a_failing_disk_lose_nothing_acknowledged() {
    let dir = quick_dir();
    let (mut stories, mut failures) = (0, 0);
    for seed in 0..40 {
        for fault in [DiskFault::Full, DiskFault::Broken] {
            for lasting in [false, true] {
                for n in 1.. {
                    let faults = if lasting {
                        JournalFaults::from(n, fault)
                    } else {
                        JournalFaults::at(n, fault)
                    };
                    let mut rng = Rng(seed);
                    let twin = Twin::begin(dir.path().join("a"), Some(faults.clone()));
                    if let Some(mut twin) = twin {
                        for _ in 0..25 {
                            twin.play(random_op(&mut rng));
                        }
                        failures += twin.end();
                    }
                    stories += 1;
                    if !faults.struck() {
                        break;
                    }
                }
            }
        }
    }
    eprintln!("{stories} stories, {failures} failed calls");
    assert!(failures > 1000);
}
