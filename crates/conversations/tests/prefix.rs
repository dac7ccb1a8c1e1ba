//! What sessions open with, in a file: the same as computed, in memory once, never believed without a look.

use crate::common;

use common::{load, packed_dir};
use haversack_conversations::session::{SessionId, SessionOptions, SessionSettings, Sessions};
use haversack_engine::{
    Activations, Codec, KvForm, KvOptions, Model, Repack, Retention, Runtime, RuntimeOptions,
};
use haversack_testing::models::Spec;
use haversack_testing::{DiskFault, JournalFaults};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Some 200 tokens: full blocks near and far, and a rest.
const PERSISTENT: &str = "You keep the harbour's log. Ships come in at dawn and leave with the tide. \
    Write down who came, what they carried and where they went, and nothing besides that. \
    If somebody asks for yesterday, say what the log says.";

struct World {
    path: PathBuf,
    model: Arc<Model>,
    kv: KvOptions,
    activations: Activations,
    options: SessionOptions,
}

fn int4() -> KvOptions {
    KvOptions {
        recent: 40,
        ..KvOptions::new(KvForm::both(Codec::Int4.form()))
    }
}

impl World {
    fn new(dir: &Path, model: &str, kv: KvOptions) -> World {
        let path = dir.join(format!("{model}.gguf"));
        let spec = Spec {
            context: 2048,
            ..Spec::named(model).unwrap()
        };
        spec.write_file(&path).unwrap();
        World::open(dir, path, kv)
    }

    fn open(dir: &Path, path: PathBuf, kv: KvOptions) -> World {
        World {
            model: load(&path, Repack::Off),
            path,
            kv,
            activations: Activations::Int8,
            options: SessionOptions {
                settings: SessionSettings {
                    capacity: Some(300),
                    persistent_max: Some(512),
                    answer_max: Some(8),
                    ..SessionSettings::default()
                },
                prefix_dir: Some(dir.join("prefixes")),
                ..SessionOptions::default()
            },
        }
    }

    fn start(&self) -> (Runtime, Sessions) {
        let options = RuntimeOptions {
            threads: 1,
            kv: self.kv.clone(),
            activations: self.activations,
            retention: Retention::managed(),
            // The mean keys are measured once.
            cache_dir: Some(packed_dir()),
            ..RuntimeOptions::default()
        };
        let runtime = Runtime::new(self.model.clone(), &options).unwrap();
        let sessions = Sessions::new(&runtime, self.options.clone()).unwrap();
        (runtime, sessions)
    }

    fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.options.prefix_dir.as_ref().unwrap()) else {
            return Vec::new();
        };
        let mut files: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
        files.sort();
        files
    }
}

fn create(runtime: &mut Runtime, sessions: &mut Sessions, name: &str) -> SessionId {
    sessions.create(runtime, name, PERSISTENT, 0).unwrap()
}

/// Logits behind the opening and behind 50 tokens, the likeliest each time, as bits.
fn go_on(runtime: &mut Runtime, sessions: &Sessions, id: SessionId) -> Vec<u32> {
    let sequence = sessions.sequence(id).unwrap();
    let mut bits = Vec::new();
    let mut token = 5;
    for _ in 0..51 {
        let logits = runtime.decode(sequence, token).unwrap();
        bits.extend(logits.iter().map(|x| x.to_bits()));
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        token = best.unwrap() as u32;
    }
    bits
}

fn counts(sessions: &Sessions) -> [u64; 4] {
    let stats = sessions.prefixes();
    [stats.computed, stats.shared, stats.mapped, stats.written]
}

/// Regions, blocks in files, references to those.
fn adopted(runtime: &Runtime) -> [usize; 3] {
    let census = runtime.store().pool_stats();
    census.iter().fold([0; 3], |sum, c| {
        [
            sum[0] + c.regions,
            sum[1] + c.mapped,
            sum[2] + c.mapped_references,
        ]
    })
}

#[test]
fn found_equals_computed_bit_for_bit() {
    let kinds: [(&str, KvOptions); 4] = [
        ("llama", int4()),
        ("llama", KvOptions::plain(KvForm::F16)),
        ("gemma3", int4()),
        ("gemma3-linear", KvOptions::plain(KvForm::F16)),
    ];
    for (model, kv) in kinds {
        let dir = tempfile::tempdir().unwrap();
        let mut world = World::new(dir.path(), model, kv);
        let prefix_dir = world.options.prefix_dir.take();
        let (mut runtime, mut sessions) = world.start();
        let plain = create(&mut runtime, &mut sessions, "plain");
        let expected = go_on(&mut runtime, &sessions, plain);
        assert_eq!((runtime.ledger().kv_file, counts(&sessions)), (0, [0; 4]));

        world.options.prefix_dir = prefix_dir;
        let (mut runtime, mut sessions) = world.start();
        let first = create(&mut runtime, &mut sessions, "first");
        assert_eq!(counts(&sessions), [1, 0, 0, 1], "{:?}", sessions.prefixes());
        let [file] = &world.files()[..] else {
            panic!("{:?}", world.files());
        };
        let bytes = std::fs::read(file).unwrap();
        assert_eq!(go_on(&mut runtime, &sessions, first), expected, "{model}");
        let second = create(&mut runtime, &mut sessions, "second");
        assert_eq!(counts(&sessions), [1, 1, 0, 1]);
        assert_eq!(go_on(&mut runtime, &sessions, second), expected, "{model}");

        let (mut runtime, mut sessions) = world.start();
        let third = create(&mut runtime, &mut sessions, "third");
        assert_eq!(counts(&sessions), [0, 0, 1, 0]);
        assert_eq!(go_on(&mut runtime, &sessions, third), expected, "{model}");
        // What followed the opening went to copies.
        assert!(std::fs::read(file).unwrap() == bytes);
        assert_eq!(sessions.prefixes().problem, None);
    }
}

#[test]
fn sessions_on_one_opening_have_its_blocks_once() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(dir.path(), "llama", int4());
    let (mut runtime, mut sessions) = world.start();
    let first = create(&mut runtime, &mut sessions, "0");
    let one = runtime.ledger();
    let [regions, blocks, references] = adopted(&runtime);
    assert!(blocks > 8 && references == blocks, "{blocks}");
    let sequence = sessions.sequence(first).unwrap();
    let whole = runtime.store().stats(sequence).unwrap().bytes;
    assert_eq!(one.kv_file + one.kv_live, whole);
    let mut open = vec![first];
    for i in 1..10 {
        open.push(create(&mut runtime, &mut sessions, &i.to_string()));
    }
    let ten = runtime.ledger();
    assert_eq!(ten.kv_file, one.kv_file);
    assert_eq!(ten.kv_live, 10 * one.kv_live, "copies of what changes soon");
    assert_eq!(adopted(&runtime), [regions, blocks, 10 * blocks]);

    // Forks, suspended and gone sessions give back what they hold, the last of them the file.
    let fork = sessions.fork(&mut runtime, open[3], "fork").unwrap();
    assert_eq!(adopted(&runtime), [regions, blocks, 11 * blocks]);
    go_on(&mut runtime, &sessions, fork);
    for id in open {
        sessions.suspend(&mut runtime, id).unwrap();
    }
    assert!(adopted(&runtime)[0] > 0);
    assert!(is_mapped(dir.path()) != Some(false));
    sessions.suspend(&mut runtime, fork).unwrap();
    assert_eq!(adopted(&runtime), [0; 3]);
    let ledger = runtime.ledger();
    assert_eq!(
        (ledger.kv_live, ledger.kv_file, ledger.kv_promised),
        (0, 0, 0)
    );

    // No sequence has it mapped now: the next session reads it from disk.
    create(&mut runtime, &mut sessions, "again");
    assert_eq!(counts(&sessions), [1, 9, 1, 1]);
}

/// Whether this process maps a prefix file below `dir`; `None` where the system does not say.
fn is_mapped(dir: &Path) -> Option<bool> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let dir = dir.to_str()?;
    Some(
        maps.lines()
            .any(|line| line.contains(dir) && line.ends_with(".prefix")),
    )
}

#[test]
fn whatever_the_bytes_depend_on_is_in_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut names = BTreeSet::new();
    let mut expect_another = |world: &World, text: &str, what: &str| {
        let (mut runtime, mut sessions) = world.start();
        sessions.create(&mut runtime, "a", text, 0).unwrap();
        assert_eq!(counts(&sessions), [1, 0, 0, 1], "{what}");
        let before = names.len();
        names.extend(world.files());
        assert_eq!(names.len(), before + 1, "{what}");
    };
    let mut world = World::new(dir.path(), "llama", int4());
    expect_another(&world, PERSISTENT, "first");
    expect_another(&world, "You keep no log.", "text");
    world.options.tenant = "other".into();
    expect_another(&world, PERSISTENT, "tenant");
    world.options.key = Some([7; 32]);
    expect_another(&world, PERSISTENT, "key");
    world.options.key = Some([8; 32]);
    expect_another(&world, PERSISTENT, "another key");
    world.kv = KvOptions::plain(KvForm::F16);
    expect_another(&world, PERSISTENT, "kv");
    world.kv = KvOptions {
        recent: 80,
        ..int4()
    };
    expect_another(&world, PERSISTENT, "zones");
    world.activations = Activations::F32;
    expect_another(&world, PERSISTENT, "activations");
    // The same shape with other weights.
    let spec = Spec {
        context: 2048,
        seed: 99,
        ..Spec::named("llama").unwrap()
    };
    let path = dir.path().join("other.gguf");
    spec.write_file(&path).unwrap();
    let other = World::open(dir.path(), path, int4());
    expect_another(&other, PERSISTENT, "model");
    // And the same again is the same.
    let (mut runtime, mut sessions) = other.start();
    create(&mut runtime, &mut sessions, "a");
    assert_eq!(counts(&sessions), [0, 0, 1, 0]);
}

/// A file under the right name that is not the right one is not used, and is replaced by one that is.
#[test]
fn planted_files_are_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(dir.path(), "llama", int4());
    let (mut runtime, mut sessions) = world.start();
    let id = create(&mut runtime, &mut sessions, "a");
    let sequence = sessions.sequence(id).unwrap();
    let tokens = runtime.position(sequence).unwrap();
    let expected = go_on(&mut runtime, &sessions, id);
    let file = world.files().remove(0);
    let good = std::fs::read(&file).unwrap();
    // As many tokens, one of them another: nothing but the tokens tells the files apart.
    let words = ["dusk", "noon", "seven", "eight", "dwan", "tawn"];
    let others = words.iter().find_map(|word| {
        let text = PERSISTENT.replace("dawn", word);
        let id = sessions.create(&mut runtime, word, &text, 0).unwrap();
        let sequence = sessions.sequence(id).unwrap();
        let others = world.files().into_iter().find(|f| *f != file).unwrap();
        if runtime.position(sequence).unwrap() == tokens {
            return Some(others);
        }
        std::fs::remove_file(others).unwrap();
        None
    });
    let others = others.expect("a word of as many tokens");
    let other = std::fs::read(&others).unwrap();
    assert_eq!(other.len(), good.len());
    drop((runtime, sessions));

    let flip = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        bytes
    };
    let mut planted = vec![
        ("others' tokens", other),
        ("nothing", Vec::new()),
        ("half of it", good[..good.len() / 2].to_vec()),
        ("text", b"haversack".repeat(100)),
    ];
    for part in 0..60 {
        planted.push(("a flipped bit", flip(part * (good.len() - 1) / 59)));
    }
    for (i, (what, bytes)) in planted.into_iter().enumerate() {
        std::fs::write(&file, bytes).unwrap();
        let (mut runtime, mut sessions) = world.start();
        let id = create(&mut runtime, &mut sessions, "a");
        assert_eq!(counts(&sessions), [1, 0, 0, 1], "{what}");
        let problem = sessions.prefixes().problem.as_ref().unwrap().to_string();
        assert!(
            problem.contains("is not used: ") && !problem.contains('\n'),
            "{problem}"
        );
        assert!(std::fs::read(&file).unwrap() == good, "{what}");
        if i % 16 == 0 {
            assert_eq!(go_on(&mut runtime, &sessions, id), expected, "{what}");
        }
    }

    // A file whose every checksum holds, with other tokens under the same identity.
    let (mut runtime, mut sessions) = world.start();
    std::fs::copy(&others, &file).unwrap();
    create(&mut runtime, &mut sessions, "d");
    let problem = sessions.prefixes().problem.clone().unwrap().to_string();
    assert!(problem.ends_with("its tokens are others"), "{problem}");
    assert!(std::fs::read(&file).unwrap() == good);

    // What is no file at all.
    #[cfg(unix)]
    {
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&others, &file).unwrap();
        let (mut runtime, mut sessions) = world.start();
        create(&mut runtime, &mut sessions, "a");
        assert!(file.symlink_metadata().unwrap().is_file());
        assert!(std::fs::read(&file).unwrap() == good);
    }
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let (mut runtime, mut sessions) = world.start();
    let id = create(&mut runtime, &mut sessions, "a");
    assert_eq!(counts(&sessions), [1, 0, 0, 0]);
    assert_eq!(go_on(&mut runtime, &sessions, id), expected);
}

/// A disk that takes nothing costs the file and not the session, whichever call fails.
#[test]
fn without_a_file_it_is_computed() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path(), "llama", int4());
    let (mut runtime, mut sessions) = world.start();
    let id = create(&mut runtime, &mut sessions, "a");
    let expected = go_on(&mut runtime, &sessions, id);
    let mut strikes = 0;
    for fault in [DiskFault::Full, DiskFault::Broken] {
        for strike in 1.. {
            let _ = std::fs::remove_dir_all(world.options.prefix_dir.as_ref().unwrap());
            let faults = JournalFaults::from(strike, fault);
            world.options.journal_io = Some(faults.io());
            let (mut runtime, mut sessions) = world.start();
            let id = create(&mut runtime, &mut sessions, "a");
            assert_eq!(go_on(&mut runtime, &sessions, id), expected);
            if !faults.struck() {
                break;
            }
            strikes += 1;
            assert_eq!(counts(&sessions), [1, 0, 0, 0], "{strike}");
            assert!(sessions.prefixes().problem.is_some());
            assert_eq!((adopted(&runtime), is_published(&world)), ([0; 3], false));
        }
    }
    assert!(strikes > 6, "{strikes}");
    world.options.journal_io = None;
    // PrefixCache the quota, and in a folder that cannot be.
    std::fs::remove_dir_all(world.options.prefix_dir.as_ref().unwrap()).unwrap();
    world.options.prefix_quota_bytes = 1000;
    let (mut runtime, mut sessions) = world.start();
    create(&mut runtime, &mut sessions, "a");
    assert_eq!(counts(&sessions), [1, 0, 0, 0]);
    world.options.prefix_quota_bytes = 1 << 30;
    world.options.prefix_dir = Some(world.path.join("below a file"));
    let (mut runtime, mut sessions) = world.start();
    let id = create(&mut runtime, &mut sessions, "a");
    assert_eq!(counts(&sessions), [1, 0, 0, 0]);
    assert_eq!(go_on(&mut runtime, &sessions, id), expected);
}

/// The oldest prefix files leave the folder; sequences that have mapped one keep it.
#[test]
fn the_folder_has_a_quota() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path(), "llama", int4());
    let (mut runtime, mut sessions) = world.start();
    let id = create(&mut runtime, &mut sessions, "first");
    let first = world.files().remove(0);
    let bytes = std::fs::metadata(&first).unwrap().len();
    world.options.prefix_quota_bytes = 3 * bytes;
    let (mut other, mut others) = world.start();
    for i in 0..8 {
        let text = format!("{i} {PERSISTENT}");
        others.create(&mut other, &i.to_string(), &text, 0).unwrap();
        let sizes = world
            .files()
            .into_iter()
            .map(|f| std::fs::metadata(f).unwrap().len());
        assert!(sizes.sum::<u64>() <= 3 * bytes);
    }
    assert_eq!(others.prefixes().written, 8);
    assert!(!first.exists() && world.files().len() >= 2);
    let expected = go_on(&mut runtime, &sessions, id);
    let again = create(&mut other, &mut others, "again");
    assert_eq!(go_on(&mut other, &others, again), expected);
}

fn is_published(world: &World) -> bool {
    let is_whole = |f: &PathBuf| f.extension().is_some_and(|e| e == "prefix");
    world.files().iter().any(is_whole)
}

/// All who begin at once succeed, and leave one file and nothing beside it.
#[test]
fn those_who_race_all_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(dir.path(), "llama", int4());
    let line = std::sync::Barrier::new(4);
    let answers: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let one = || {
            let (mut runtime, mut sessions) = world.start();
            line.wait();
            let id = create(&mut runtime, &mut sessions, "a");
            go_on(&mut runtime, &sessions, id)
        };
        let runners: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        runners.into_iter().map(|r| r.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|a| *a == answers[0]));
    assert_eq!(world.files().len(), 1, "{:?}", world.files());
    let (mut runtime, mut sessions) = world.start();
    let id = create(&mut runtime, &mut sessions, "a");
    assert_eq!(counts(&sessions), [0, 0, 1, 0]);
    assert_eq!(go_on(&mut runtime, &sessions, id), answers[0]);
}

/// A conversation over an opening in a file: saved, put away, and gone on with from its own file.
#[test]
fn sessions_over_a_file_are_saved_and_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path(), "llama", int4());
    world.options.dir = Some(dir.path().join("sessions"));
    let (mut runtime, mut sessions) = world.start();
    let id = create(&mut runtime, &mut sessions, "a");
    create(&mut runtime, &mut sessions, "b");
    sessions.suspend(&mut runtime, id).unwrap();
    let again = sessions.resume(&mut runtime, "a").unwrap();
    let b = create(&mut runtime, &mut sessions, "c");
    assert_eq!(
        go_on(&mut runtime, &sessions, again),
        go_on(&mut runtime, &sessions, b)
    );
}

/// Ten sessions with one opening, resumed: the rows of the opening are in its file, once, as when they were created. Each
/// had a copy of its own once.
#[test]
fn resumed_sessions_share_their_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path(), "llama", int4());
    world.options.dir = Some(dir.path().join("sessions"));
    let names: Vec<String> = (0..10).map(|i| format!("s{i}")).collect();
    let (mut runtime, mut sessions) = world.start();
    for name in &names {
        let id = create(&mut runtime, &mut sessions, name);
        sessions.tell(&mut runtime, id, "And?", "Yes.", 0).unwrap();
    }
    let (before, live) = (adopted(&runtime), runtime.ledger().kv_live);
    let expected = sessions.opened(&names[0]).unwrap();
    let expected = go_on(&mut runtime, &sessions, expected);
    let ids: Vec<SessionId> = sessions.open_ids().collect();
    ids.into_iter()
        .for_each(|id| sessions.close(&mut runtime, id).unwrap());
    assert_eq!(adopted(&runtime), [0; 3]);
    for (mut runtime, mut sessions) in [(runtime, sessions), world.start()] {
        let resumed: Vec<SessionId> = names
            .iter()
            .map(|name| sessions.resume(&mut runtime, name).unwrap())
            .collect();
        let [_, blocks, references] = adopted(&runtime);
        assert!(
            blocks > 0 && references == 10 * blocks,
            "{references} to {blocks}"
        );
        assert_eq!(references, before[2]);
        assert!(runtime.ledger().kv_live <= live);
        assert_eq!(go_on(&mut runtime, &sessions, resumed[0]), expected);
    }
}

const CHILD: &str = "HAVERSACK_TEST_PREFIX_CHILD";

/// Rss, Pss and private dirty bytes of the files in `smaps`; `None` where there is no such table.
fn shares() -> Option<[u64; 3]> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let mut sums = [0; 3];
    let mut ours = false;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if !first.ends_with(':') {
            ours = line.ends_with(".prefix");
            continue;
        }
        let names = ["Rss:", "Pss:", "Private_Dirty:"];
        if let Some(i) = names.iter().position(|n| *n == first).filter(|_| ours) {
            sums[i] += words
                .next()
                .and_then(|w| w.parse::<u64>().ok())
                .unwrap_or(0)
                << 10;
        }
    }
    Some(sums)
}

/// The other process: opens the same prompt, reads it all, and says what it sees of the map.
#[test]
fn a_second_process() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else {
        return;
    };
    let mut world = World::open(&dir, dir.join("llama.gguf"), KvOptions::plain(KvForm::F16));
    world.options.dir = Some(dir.join("sessions"));
    let (mut runtime, mut sessions) = world.start();
    let id = match sessions.exists("child") {
        true => sessions.resume(&mut runtime, "child").unwrap(),
        false => {
            let id = create(&mut runtime, &mut sessions, "child");
            assert_eq!(counts(&sessions), [0, 0, 1, 0]);
            id
        }
    };
    go_on(&mut runtime, &sessions, id);
    println!("shares {:?}", shares().unwrap_or_default());
}

/// Two processes on one prompt have its pages once between them.
#[test]
fn processes_share_the_pages() {
    if shares().is_none() {
        println!("SKIPPED: this system has no /proc/self/smaps");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(dir.path(), "llama", KvOptions::plain(KvForm::F16));
    let (mut runtime, mut sessions) = world.start();
    let id = create(&mut runtime, &mut sessions, "parent");
    go_on(&mut runtime, &sessions, id);
    // The second process creates a session, the third resumes it.
    for _ in 0..2 {
        share_with_another(dir.path());
    }
}

fn share_with_another(dir: &Path) {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "prefix::a_second_process", "--nocapture"])
        .env(CHILD, dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}");
    let shares = said
        .split("shares [")
        .nth(1)
        .and_then(|s| s.split(']').next());
    let shares: Vec<u64> = shares
        .unwrap()
        .split(", ")
        .map(|n| n.parse().unwrap())
        .collect();
    let [rss, pss, dirty] = shares[..] else {
        panic!("{shares:?}");
    };
    println!(
        "the map in the second process: {rss} bytes resident, {pss} its share, {dirty} its own"
    );
    assert!(rss > 0 && dirty == 0);
    assert!(pss * 10 <= rss * 6, "{pss} of {rss}");
}

/// Milliseconds that `create` takes, the middle of seven; what it made is gone each time.
fn create_ms(runtime: &mut Runtime, sessions: &mut Sessions, text: &str) -> f64 {
    let mut times = [0.0; 7];
    for time in &mut times {
        let start = std::time::Instant::now();
        let id = sessions.create(runtime, "a", text, 0).unwrap();
        *time = start.elapsed().as_secs_f64() * 1e3;
        sessions.suspend(runtime, id).unwrap();
        let _ = sessions.delete("a");
    }
    times.sort_by(f64::total_cmp);
    times[3]
}

/// The figures of `docs/how-it-works/conversations.md`:
/// `cargo test --release -p haversack --test prefix -- --ignored --nocapture`
#[test]
#[ignore = "measures, and promises nothing"]
fn a_known_prompt_against_reading_it() {
    let Some(path) = common::real_model(common::SMOLLM2) else {
        return;
    };
    let rooms = ["hall", "mill", "quay", "yard", "loft", "barn"];
    let facts = (0..34).map(|i| {
        let room = rooms[i % rooms.len()];
        format!("Key number {} opens the {room} on weekdays. ", i + 11)
    });
    let text: String = facts.collect();
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::open(dir.path(), path, KvOptions::default());
    world.options = SessionOptions {
        prefix_dir: world.options.prefix_dir.take(),
        ..SessionOptions::default()
    };
    let runtime = RuntimeOptions {
        threads: 2,
        retention: Retention::managed(),
        cache_dir: Some(packed_dir()),
        ..RuntimeOptions::default()
    };
    let mut runtime = Runtime::new(world.model.clone(), &runtime).unwrap();
    let start = |runtime: &Runtime, prefix: bool, dir: Option<PathBuf>| {
        let prefix_dir = world.options.prefix_dir.clone().filter(|_| prefix);
        let options = SessionOptions {
            prefix_dir,
            dir,
            ..world.options.clone()
        };
        Sessions::new(runtime, options).unwrap()
    };
    let saved = || Some(dir.path().join("sessions"));
    let mut plain = start(&runtime, false, None);
    let computed = create_ms(&mut runtime, &mut plain, &text);
    let mut filed = start(&runtime, true, None);
    let holder = filed.create(&mut runtime, "holder", &text, 0).unwrap();
    let sequence = filed.sequence(holder).unwrap();
    let tokens = runtime.position(sequence).unwrap();
    let from_memory = create_ms(&mut runtime, &mut filed, &text);
    filed.suspend(&mut runtime, holder).unwrap();
    let from_disk = create_ms(&mut runtime, &mut filed, &text);
    let mut saving = start(&runtime, true, saved());
    let and_saved = create_ms(&mut runtime, &mut saving, &text);
    let mut saving = start(&runtime, false, saved());
    let computed_and_saved = create_ms(&mut runtime, &mut saving, &text);
    assert_eq!((counts(&filed)[0], counts(&filed)[3]), (1, 1));
    let holder = filed.create(&mut runtime, "holder", &text, 0).unwrap();
    let one = runtime.ledger();
    for i in 0..9 {
        filed
            .create(&mut runtime, &i.to_string(), &text, 0)
            .unwrap();
    }
    let ten = runtime.ledger();
    let sequence = filed.sequence(holder).unwrap();
    let whole = runtime.store().stats(sequence).unwrap().bytes;
    println!(
        "{tokens} tokens; file {} bytes",
        std::fs::metadata(&world.files()[0]).unwrap().len()
    );
    println!("read                  {computed:10.2} ms");
    println!("read, and saved       {computed_and_saved:10.2} ms");
    for (what, ms) in [
        ("shared in memory", from_memory),
        ("mapped from disk", from_disk),
        ("mapped, and saved", and_saved),
    ] {
        println!("{what:20}  {ms:10.2} ms  {:8.0} x", computed / ms);
    }
    println!("keys and values of one opening  {whole} bytes");
    println!(
        "one session   {} in the file, {} private",
        one.kv_file, one.kv_live
    );
    println!(
        "ten sessions  {} in the file, {} private",
        ten.kv_file, ten.kv_live
    );
}
