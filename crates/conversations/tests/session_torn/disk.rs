//! Disks that fail once, for a while or for good: the conversation goes on, says so, and what was acknowledged is there.

use crate::script::{BEFORE_CONDENSING, OPENING, Op, SCRIPT, Telling, Told, say};
use crate::{World, asked, quick_dir};
use haversack_conversations::session::turns::Turn;
use haversack_conversations::session::{SessionError, Sessions};
use haversack_testing::{DiskFault, JournalFaults};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn tiny(folder: &Path) -> World {
    let mut world = World::tiny(folder, 1);
    world.options.settings.quota_bytes = Some(200 << 10);
    world
}

fn with_faults(world: &World, faults: &JournalFaults) -> World {
    let mut other = World::of(&world.path, world.dir().to_owned());
    other.options = world.options.clone();
    other.options.journal_io = Some(faults.io());
    other
}

/// The script, where calls to the disk fail. A fork needs the disk and is tried again; nothing else fails. Returns how
/// many steps were not saved when they were answered.
fn tell(world: &World, healthy: &World, exact: Option<&[Told]>) -> usize {
    let _ = fs::remove_dir_all(world.dir());
    let mut telling = Telling::new(world);
    let mut unsaved = 0;
    let mut was_unsaved = false;
    // Tokens of the turns that were said and not taken back.
    let mut said: BTreeMap<u64, u64> = BTreeMap::new();
    for (i, op) in BEFORE_CONDENSING.iter().enumerate() {
        let mut told = telling.try_step(*op);
        // As often as the longest burst of failing calls may need.
        for _ in 0..8 {
            if told.is_err() && matches!(op, Op::Fork) {
                // A file that the disk did not let go of is in the way until it does.
                let _ = telling.sessions.delete("fork");
                told = telling.try_step(*op);
            }
        }
        // What could not be saved in time, or has no room beside what could, is forgotten, and counted below.
        if let (Op::Recall(turn, _), Err(SessionError::NoSuchTurn { .. })) = (op, &told) {
            assert!(unsaved > 0 && said.contains_key(turn), "step {i}, {op:?}");
            continue;
        }
        let answer = told.unwrap_or_else(|e| panic!("step {i}, {op:?}: {e}"));
        let context = answer.as_ref().map(|a| &a.context);
        let stats = |id| telling.sessions.stats(&telling.runtime, id).unwrap();
        let all = [telling.main, telling.fork].map(|id| id.and_then(|id| stats(id).unsaved));
        if let Some(context) = context {
            let here = usize::from(matches!(op, Op::SayThere(_)));
            assert_eq!(context.unsaved, all[here], "step {i}");
        }
        if let Some(exact) = exact {
            let tokens = answer.map(|a| a.tokens).unwrap_or_default();
            assert_eq!(tokens, exact[i].tokens, "step {i}, {op:?}: {all:?}");
        }
        let is_unsaved = all.iter().any(Option::is_some);
        unsaved += usize::from(is_unsaved);
        if let Some(id) = telling.main {
            let turns = telling.sessions.turns(id).unwrap();
            let turns = turns.iter().filter(|turn| !turn.is_state);
            let there: BTreeMap<u64, u64> = turns.map(|t| (t.number, t.tokens())).collect();
            match op {
                Op::Retract => said.retain(|number, _| there.contains_key(number)),
                _ => said.extend(&there),
            }
            let gone = said
                .iter()
                .filter(|(number, _)| !there.contains_key(number));
            let gone: u64 = gone.map(|(_, tokens)| tokens).sum();
            let forgotten = stats(id).forgotten;
            assert!(gone <= forgotten, "step {i}, {op:?}: {gone} of {forgotten}");
        }
        if was_unsaved && !is_unsaved {
            // It says that everything is in the files: look.
            let elsewhere = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
            let elsewhere = elsewhere.unwrap();
            for file in fs::read_dir(world.dir()).unwrap() {
                let file = file.unwrap();
                fs::copy(file.path(), elsewhere.path().join(file.file_name())).unwrap();
            }
            let mut look = World::of(&world.path, elsewhere.path().to_owned());
            look.options.settings.quota_bytes = world.options.settings.quota_bytes;
            let (found, refused) = Telling::resumed(&look);
            assert_eq!(
                found.state(),
                telling.state(),
                "step {i}, {op:?}: {refused:?}"
            );
        }
        was_unsaved = is_unsaved;
    }
    let (state, waits) = (telling.state(), was_unsaved);
    drop(telling);
    let (found, refused) = Telling::resumed(healthy);
    assert!(waits || found.state() == state, "{refused:?}");
    unsaved
}

/// Each call in turn, and the one, two or five behind it. `TORN_FAULTS=1` for all of them.
#[test]
fn calls_that_fail() {
    let folder = quick_dir();
    let mut healthy = tiny(folder.path());
    // The turn that the script recalls late is not forgotten before.
    healthy.options.settings.quota_bytes = Some(260 << 10);
    let faults = JournalFaults::never();
    let mut telling = Telling::new(&with_faults(&healthy, &faults));
    let exact = BEFORE_CONDENSING.iter().map(|op| telling.step(*op));
    let exact: Vec<Told> = exact.collect();
    drop(telling);
    let calls = faults.calls().len();
    let every = asked("TORN_FAULTS").is_some();
    let begun = Instant::now();
    let (mut runs, mut unsaved) = (0, 0);
    // A prime that does not divide: without all of them, the moments are spread.
    let moments = (0..calls).map(|i| 1 + i * 101 % calls);
    for (i, n) in moments.enumerate() {
        let bursts = [1, 2, 3, 6];
        for &count in if every {
            &bursts[..]
        } else {
            &bursts[i % 4..][..1]
        } {
            if begun.elapsed() > Duration::from_secs(8) && runs >= 16 && !every {
                break;
            }
            let fault = [DiskFault::Full, DiskFault::Broken][(n + count) % 2];
            let world = with_faults(&healthy, &JournalFaults::burst(n, count, fault));
            // One failure is mended by the next save, before anything has to leave.
            unsaved += tell(&world, &healthy, (count == 1).then_some(&exact[..]));
            runs += 1;
        }
    }
    println!("{runs} tellings over {calls} calls, {unsaved} steps answered without being saved");
    assert!(unsaved > runs / 2, "{unsaved}");
}

/// The disk is gone for a thousand turns. What waits stays small, what was acknowledged stays, what is forgotten is
/// counted; then it comes back.
#[test]
fn a_thousand_turns_without_a_disk() {
    let folder = quick_dir();
    let faults = JournalFaults::never();
    let healthy = World::tiny(folder.path(), 1);
    let world = with_faults(&healthy, &faults);
    let Telling {
        mut runtime,
        mut sessions,
        ..
    } = Telling::new(&world);
    let id = sessions.create(&mut runtime, "main", OPENING, 0).unwrap();
    let questions = [
        "my cat is called Miso",
        "seven apple trees",
        "ships at sea",
        "trains",
    ];
    let mut tokens = 0;
    let mut told = 0;
    let mut turn = |sessions: &mut _, runtime: &mut _| {
        let answer = say(sessions, runtime, id, questions[told % 4]).unwrap();
        told += 1;
        answer
    };
    for _ in 0..20 {
        let answer = turn(&mut sessions, &mut runtime);
        assert_eq!(answer.context.unsaved, None);
    }
    let saved: Vec<u64> = sessions
        .turns(id)
        .unwrap()
        .iter()
        .map(|t| t.number)
        .collect();
    faults.set_down(true);
    let (mut early, mut late) = (0, 0);
    for i in 0..1000 {
        let answer = turn(&mut sessions, &mut runtime);
        let why = answer.context.unsaved.unwrap().to_string();
        assert!(
            why.starts_with("session main: ") && !why.contains('\n'),
            "{why}"
        );
        let stats = sessions.stats(&runtime, id).unwrap();
        let most = if i < 100 { &mut early } else { &mut late };
        *most = stats.waiting_bytes.max(*most);
        assert!(stats.visible + stats.hidden <= 300, "{stats:?}");
    }
    println!("{early} bytes waited in the first 100 turns, {late} later");
    assert!(late <= early + early / 4, "{early} {late}");
    let turns = |sessions: &Sessions| -> Vec<Turn> {
        let turns = sessions.turns(id).unwrap();
        turns.into_iter().cloned().collect()
    };
    let there = turns(&sessions);
    for number in &saved {
        let turn = sessions.turn(id, *number).unwrap();
        assert_eq!(turn.tokens.len() as u64, turn.turn.tokens());
    }
    for turn in &there {
        tokens += turn.tokens();
    }
    let stats = sessions.stats(&runtime, id).unwrap();
    assert!(stats.forgotten > 0 && there.len() < 60, "{stats:?}");
    let persistent = stats.persistent;
    // Nothing is read twice here unless it was recalled from its ids: every position is a fact, a turn or forgotten.
    assert!(
        persistent + tokens + stats.forgotten <= stats.position,
        "{stats:?}"
    );
    assert!(sessions.suspend(&mut runtime, id).is_err());
    assert_eq!(turns(&sessions), there);

    faults.set_down(false);
    let answer = turn(&mut sessions, &mut runtime);
    assert_eq!(answer.context.unsaved, None);
    let telling = Telling {
        runtime,
        sessions,
        main: Some(id),
        fork: None,
    };
    let state = telling.state();
    drop(telling);
    let (found, refused) = Telling::resumed(&healthy);
    assert_eq!(found.state(), state, "{refused:?}");
}

/// Another process removes the file, or replaces it.
#[test]
fn the_file_goes_away() {
    let folder = quick_dir();
    let world = World::tiny(folder.path(), 1);
    let mut telling = Telling::new(&world);
    for op in &SCRIPT[..11] {
        telling.step(*op);
    }
    let (path, away) = (world.file("main"), world.file("away"));
    fs::rename(&path, &away).unwrap();
    let unsaved = "session main: it was removed or replaced while it was open";
    for (i, op) in SCRIPT[11..14].iter().enumerate() {
        let answer = telling.try_step(*op).unwrap();
        let stats = telling
            .sessions
            .stats(&telling.runtime, telling.main.unwrap());
        assert_eq!(stats.unwrap().unsaved.unwrap().to_string(), unsaved, "{i}");
        assert!(answer.is_none_or(|a| a.context.unsaved.unwrap().to_string() == unsaved));
        fs::write(&path, "another file").unwrap();
    }
    assert_eq!(fs::read(&path).unwrap(), b"another file");
    // Every turn can still be read.
    telling.state();
    fs::rename(&away, &path).unwrap();
    telling.step(SCRIPT[14]);
    let state = telling.state();
    drop(telling);
    assert_eq!(Telling::resumed(&world).0.state(), state);
}

/// No folder can be made: the session is there, says so, and is saved when one can.
#[test]
fn a_session_begins_without_a_disk() {
    let folder = quick_dir();
    let mut world = World::tiny(folder.path(), 1);
    let healthy = {
        let mut telling = Telling::new(&world);
        let told: Vec<Told> = SCRIPT[..8].iter().map(|op| telling.step(*op)).collect();
        drop(telling);
        fs::remove_dir_all(world.dir()).unwrap();
        told
    };
    let blocked = folder.path().join("blocked");
    fs::write(&blocked, "a file where a folder should be").unwrap();
    world.options.dir = Some(blocked.join("sessions"));
    let mut telling = Telling::new(&world);
    for (i, op) in SCRIPT[..7].iter().enumerate() {
        let answer = telling.try_step(*op).unwrap();
        let id = telling.main.unwrap();
        let stats = telling.sessions.stats(&telling.runtime, id).unwrap();
        assert!(
            stats.unsaved.unwrap().to_string().starts_with("making "),
            "{i}"
        );
        assert_eq!(
            answer.map(|a| a.tokens).unwrap_or_default(),
            healthy[i].tokens
        );
    }
    fs::remove_file(&blocked).unwrap();
    assert_eq!(telling.step(SCRIPT[7]), healthy[7]);
    drop(telling);
    assert_eq!(Telling::resumed(&world).0.state(), healthy[7].state);
    // A name that is taken is no matter of the disk.
    let mut telling = Telling::new(&world);
    let error = telling.try_step(Op::Create).unwrap_err().to_string();
    assert_eq!(error, "session main: it exists already");
}

/// In a folder that takes no new names a session can be written to, and not rewritten.
#[test]
fn a_folder_that_is_read_only() {
    if let Some(dir) = std::env::var_os("TORN_READ_ONLY") {
        return read_only(Path::new(&dir));
    }
    let folder = tempfile::tempdir().unwrap();
    let world = tiny(folder.path());
    let mut telling = Telling::new(&world);
    for op in &SCRIPT[..6] {
        telling.step(*op);
    }
    drop(telling);
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    open(&world.file("main"), 0o666).unwrap();
    open(world.dir(), 0o555).unwrap();
    open(folder.path(), 0o755).unwrap();
    // The superuser may write everywhere: run it as another user.
    let exe = folder.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
    let mut command = Command::new(&exe);
    command
        .args(["disk::a_folder_that_is_read_only", "--exact", "--nocapture"])
        .env("TORN_READ_ONLY", folder.path())
        .current_dir("/");
    if fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0) {
        command.uid(65_534).gid(65_534);
    }
    match command.status() {
        Ok(status) => assert!(status.success()),
        Err(e) => println!("SKIPPED: cannot run as another user: {e}"),
    }
    open(world.dir(), 0o755).unwrap();
    let (found, _) = Telling::resumed(&world);
    let stats = found.sessions.stats(&found.runtime, found.main.unwrap());
    assert!(stats.unwrap().turns > 4);
}

fn read_only(folder: &Path) {
    let mut world = World::of(&folder.join("tiny-1.gguf"), folder.join("sessions"));
    world.options.settings.quota_bytes = Some(200 << 10);
    let mut telling = Telling::resumed(&world).0;
    let mut saved = 0;
    let mut unsaved = String::new();
    for op in SCRIPT[6..].iter().filter(|op| matches!(op, Op::Say(_))) {
        let answer = telling.try_step(*op).unwrap().unwrap();
        saved += usize::from(answer.context.unsaved.is_none());
        unsaved = (answer.context.unsaved).map_or(unsaved, |why| why.to_string());
    }
    assert!(saved > 0, "appending needs no new name");
    assert!(unsaved.contains("creating its temporary file"), "{unsaved}");
    // A new session cannot be made, and is none the worse for it.
    let (sessions, runtime) = (&mut telling.sessions, &mut telling.runtime);
    let id = sessions.create(runtime, "new", OPENING, 0).unwrap();
    let answer = say(sessions, runtime, id, "hello").unwrap();
    assert!(
        answer
            .context
            .unsaved
            .unwrap()
            .to_string()
            .contains("creating its temporary file")
    );
}
