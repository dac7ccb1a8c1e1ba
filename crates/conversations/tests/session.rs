//! Sessions over a tiny model: turns come and go, files survive, errors leave everything as it was.

use crate::common;

use common::load;
use common::session::{Words, say, seen, try_say};
use haversack_conversations::session::export::SessionExport;
use haversack_conversations::session::layout::ChatLayout;
use haversack_conversations::session::turns::{Turn, TurnPlace};
use haversack_conversations::session::{
    AskedQuestion, Owner, SessionError, SessionOptions, SessionRead, SessionSettings, Sessions,
    TurnView,
};
use haversack_engine::runtime::bounds::BoundsError;
use haversack_engine::runtime::{GenerateEvent, GenerateOptions, GenerateTimes};
use haversack_engine::sample::{SampleOptions, Sampler};
use haversack_engine::{
    Codec, KvForm, KvOptions, Model, Repack, Retention, Runtime, RuntimeError, RuntimeOptions,
};
use haversack_memory::journal::{Journal, JournalOptions};
use haversack_testing::models::Spec;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

struct World {
    model: Arc<Model>,
    kv: KvOptions,
    options: SessionOptions,
    judged: bool,
    budget: Option<usize>,
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        let spec = Spec {
            context: 2048,
            ..Spec::named("llama").unwrap()
        };
        spec.write_file(&path).unwrap();
        World {
            model: load(&path, Repack::Off),
            kv: KvOptions {
                recent: 32,
                ..KvOptions::new(KvForm::both(Codec::Int4.form()))
            },
            options: SessionOptions {
                settings: SessionSettings {
                    capacity: Some(300),
                    persistent_max: Some(200),
                    answer_max: Some(8),
                    ..SessionSettings::default()
                },
                dir: Some(folder.path().join("sessions")),
                ..SessionOptions::default()
            },
            judged: true,
            budget: None,
            folder,
        }
    }

    fn runtime(&self) -> Runtime {
        self.try_runtime().unwrap()
    }

    fn try_runtime(&self) -> Result<Runtime, RuntimeError> {
        let options = RuntimeOptions {
            threads: 1,
            kv: self.kv.clone(),
            retention: Retention::managed(),
            budget_bytes: self.budget,
            // The mean keys are measured once.
            cache_dir: Some(self.folder.path().to_owned()),
            ..RuntimeOptions::default()
        };
        Runtime::new(self.model.clone(), &options)
    }

    fn sessions(&self, runtime: &Runtime) -> Sessions {
        let sessions = Sessions::new(runtime, self.options.clone()).unwrap();
        match self.judged {
            true => sessions.with_encoder(Arc::new(Words)),
            false => sessions,
        }
    }

    fn dir(&self) -> &Path {
        self.options.dir.as_deref().unwrap()
    }
}

const QUESTIONS: [&str; 12] = [
    "my cat is called Miso",
    "the garden has seven apple trees",
    "tell me about trains",
    "and about ships at sea",
    "what colour is the sky",
    "how many apple trees has the garden",
    "the boat leaves at nine",
    "what is my cat called",
    "which train leaves first",
    "the sky is full of ships",
    "who sails the boat",
    "is the cat in the garden",
];

/// Turns leave, are hidden and come back; what was told about them is what is seen.
#[test]
fn turns_come_and_go() {
    let world = World::new();
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let id = sessions
        .create(&mut runtime, "anna", "You know things.", 0)
        .unwrap();
    let mut recalled = 0;
    for round in 0..3 {
        for question in QUESTIONS {
            let answer = say(&mut sessions, &mut runtime, id, question);
            recalled += answer.context.recalled.len();
            assert_eq!(answer.context.unsaved, None);
            assert_eq!(answer.context.evicted, 0, "round {round}");
            let stats = sessions.stats(&runtime, id).unwrap();
            assert!(stats.visible + stats.hidden <= 300, "{stats:?}");
            let mut expected: BTreeSet<u64> = (0..stats.persistent).collect();
            let turns = sessions.turns(id).unwrap();
            for turn in turns.iter().filter(|t| t.is_visible) {
                assert_eq!(turn.place, TurnPlace::Live);
                expected.extend(turn.span.clone());
            }
            assert!(turns.iter().rev().take(2).all(|t| t.is_visible));
            assert_eq!(seen(&runtime, &sessions, id), expected);
            let view = sessions.turn(id, answer.turn.unwrap()).unwrap();
            assert_eq!(view.tokens.len() as u64, view.turn.tokens());
        }
    }
    assert!(recalled > 3, "{recalled}");
    let stats = sessions.stats(&runtime, id).unwrap();
    assert!(stats.spilled > 0 && stats.turns == 36, "{stats:?}");
    sessions.suspend(&mut runtime, id).unwrap();
    assert!(matches!(
        sessions.stats(&runtime, id),
        Err(SessionError::Closed { .. })
    ));
    assert_eq!(runtime.ledger().kv_live, 0);
}

/// A turn that is dropped at any stage is undone by the next call, whichever that is: the conversation goes on as if the
/// question had not been asked, and nothing leaks.
#[test]
fn a_dropped_turn_is_undone() {
    let world = World::new();
    let (mut answers, mut lives) = (Vec::new(), Vec::new());
    for stage in 0..5 {
        let mut runtime = world.runtime();
        let mut sessions = world.sessions(&runtime);
        let name = format!("anna{stage}");
        let id = sessions
            .create(&mut runtime, &name, "You know things.", 0)
            .unwrap();
        say(&mut sessions, &mut runtime, id, QUESTIONS[0]);
        let before = sessions.stats(&runtime, id).unwrap();
        if stage > 0 {
            let (now, options) = (8, GenerateOptions::default());
            let mut turn = sessions
                .begin(
                    &mut runtime,
                    id,
                    AskedQuestion::new(QUESTIONS[1], now),
                    &options,
                )
                .unwrap();
            assert!(sessions.is_answering(id).unwrap());
            if stage > 1 {
                let (sequence, tokens) = (turn.sequence(), turn.pending().to_vec());
                let mut go_on = |_| ControlFlow::Continue(());
                runtime.feed(sequence, &tokens, &mut go_on).unwrap();
                turn.read(tokens.len());
            }
            match stage {
                2 => sessions.abandon(&mut runtime, turn).unwrap(),
                _ => drop(turn),
            }
            if stage == 4 {
                // A call without a runtime.
                sessions.recall(id, 0).unwrap();
            }
            sessions.work(&mut runtime, id, 1).unwrap();
        }
        assert!(!sessions.is_answering(id).unwrap());
        assert_eq!(sessions.stats(&runtime, id).unwrap(), before, "{stage}");
        lives.push(runtime.ledger().kv_live);
        answers.push(say(&mut sessions, &mut runtime, id, QUESTIONS[2]).tokens);
        sessions.suspend(&mut runtime, id).unwrap();
        assert_eq!(runtime.ledger().kv_live, 0, "{stage}");
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    // Dropping leaves as much memory in use as `abandon` does.
    assert_eq!((lives[3], lives[4]), (lives[2], lives[2]));
}

/// A process killed after a turn goes on as if nothing had happened: every turn is resumed in a new process' place and
/// answers the same.
#[test]
fn resumed_goes_on_the_same_way() {
    for judged in [true, false] {
        let world = World {
            judged,
            ..World::new()
        };
        let mut runtime = world.runtime();
        let mut sessions = world.sessions(&runtime);
        let id = sessions
            .create(&mut runtime, "whole", "You know things.", 0)
            .unwrap();
        let whole: Vec<Vec<u32>> = (0..2)
            .flat_map(|_| QUESTIONS)
            .map(|q| say(&mut sessions, &mut runtime, id, q).tokens)
            .collect();
        drop(sessions);

        let mut runtime = world.runtime();
        let mut sessions = world.sessions(&runtime);
        let first = sessions
            .create(&mut runtime, "torn", "You know things.", 0)
            .unwrap();
        let _ = first;
        for (i, expected) in whole.iter().enumerate() {
            // Nothing is said: what is not on disk is lost.
            drop((sessions, runtime));
            runtime = world.runtime();
            sessions = world.sessions(&runtime);
            let id = sessions.resume(&mut runtime, "torn").unwrap();
            let answer = say(&mut sessions, &mut runtime, id, QUESTIONS[i % 12]);
            assert_eq!(&answer.tokens, expected, "turn {i}");
        }
    }
}

/// In any budget in which a session can be begun, one that was put away in a larger one goes on: what has no room
/// stays in the file.
#[test]
fn resumed_in_less_memory() {
    let mut world = World::new();
    world.options.settings.capacity = Some(1200);
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let persistent = "You know things.";
    let id = sessions
        .create(&mut runtime, "anna", persistent, 0)
        .unwrap();
    const TURNS: usize = 24;
    for question in QUESTIONS.iter().cycle().take(TURNS) {
        say(&mut sessions, &mut runtime, id, question);
    }
    let full = runtime.ledger().peak;
    let live = sessions.stats(&runtime, id).unwrap();
    sessions.suspend(&mut runtime, id).unwrap();
    let file = world.dir().join("anna.session");
    let whole = std::fs::read(&file).unwrap();

    let (mut spilled, mut smallest) = (0, full);
    for part in (1..=20).rev() {
        let budget = full * part / 20;
        world.budget = Some(budget);
        let Ok(mut runtime) = world.try_runtime() else {
            break;
        };
        // A capacity that is set would be refused.
        world.options.settings.capacity = None;
        let Ok(mut sessions) = Sessions::new(&runtime, world.options.clone()) else {
            break;
        };
        let Ok(id) = sessions.create(&mut runtime, "begun", persistent, 0) else {
            break;
        };
        let answered = try_say(&mut sessions, &mut runtime, id, QUESTIONS[0]).is_ok();
        sessions.close(&mut runtime, id).unwrap();
        sessions.delete("begun").unwrap();
        if !answered {
            break;
        }
        std::fs::write(&file, &whole).unwrap();
        let id = sessions.resume(&mut runtime, "anna").unwrap();
        spilled = sessions.stats(&runtime, id).unwrap().spilled.max(spilled);
        let answer = say(&mut sessions, &mut runtime, id, QUESTIONS[0]);
        assert_eq!(answer.context.evicted, 0, "{budget}");
        assert!(runtime.ledger().peak <= budget);
        assert_eq!(sessions.turns(id).unwrap().len(), TURNS + 1, "{budget}");
        sessions.suspend(&mut runtime, id).unwrap();
        smallest = budget;
    }
    println!("{full} bytes, resumed in {smallest}; {spilled} of {live:?} stayed in the file");
    assert!(smallest < full * 3 / 4 && spilled > 0);
    world.budget = None;
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let id = sessions.resume(&mut runtime, "anna").unwrap();
    assert_eq!(sessions.turns(id).unwrap().len(), TURNS + 1);
    say(&mut sessions, &mut runtime, id, QUESTIONS[0]);
}

#[test]
fn facts_hold_until_they_do_not() {
    let world = World::new();
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let id = sessions
        .create(&mut runtime, "facts", "You know things.", 0)
        .unwrap();
    say(&mut sessions, &mut runtime, id, QUESTIONS[0]);
    let one = sessions
        .add_fact(&mut runtime, id, "The shop opens at nine.", 1)
        .unwrap();
    say(&mut sessions, &mut runtime, id, QUESTIONS[1]);
    let before = seen(&runtime, &sessions, id);
    let two = sessions
        .supersede(&mut runtime, id, one, "The shop opens at ten.", 2)
        .unwrap();
    let after = seen(&runtime, &sessions, id);
    assert!(before.difference(&after).count() > 5 && after.difference(&before).count() > 5);
    let error = sessions.revoke(&mut runtime, id, one).unwrap_err();
    assert_eq!(error.to_string(), "there is no fact 1 that holds");
    assert!(
        sessions.revoke(&mut runtime, id, 0).is_err(),
        "the opening stays"
    );
    let long = "word ".repeat(300);
    let error = sessions.add_fact(&mut runtime, id, &long, 3).unwrap_err();
    assert!(
        matches!(error, SessionError::PersistentFull { max: 300, .. }),
        "{error}"
    );
    sessions.suspend(&mut runtime, id).unwrap();
    let id = sessions.resume(&mut runtime, "facts").unwrap();
    assert_eq!(seen(&runtime, &sessions, id), after);
    let facts: Vec<u64> = sessions
        .facts(id)
        .unwrap()
        .iter()
        .map(|f| f.number)
        .collect();
    assert_eq!(facts, [0, two]);
}

#[test]
fn states_change_and_take_no_more() {
    let world = World::new();
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let opening = "you are kind";
    let mut id = sessions.create(&mut runtime, "a", opening, 0).unwrap();
    let room = sessions.tell_state(&mut runtime, id, "room: kitchen", 1, None);
    let mut room = room.unwrap();
    let page = sessions.tell_state(&mut runtime, id, "page: 7", 2, None);
    let page = page.unwrap();
    let mut sizes = Vec::new();
    for round in 0..30 {
        for question in &QUESTIONS[..3] {
            say(&mut sessions, &mut runtime, id, question);
        }
        let text = format!("room: number {round}");
        room = sessions
            .tell_state(&mut runtime, id, &text, 3, Some(room))
            .unwrap();
        if round % 10 == 9 {
            sessions.suspend(&mut runtime, id).unwrap();
            id = sessions.resume(&mut runtime, "a").unwrap();
        }
        let turns = sessions.turns(id).unwrap();
        let states: Vec<_> = turns.iter().filter(|t| t.is_state).collect();
        assert_eq!(states.len(), 2);
        assert_eq!((states[0].number, states[1].number), (page, room));
        assert!(states.iter().all(|t| t.is_visible && t.is_pinned));
        let seen = seen(&runtime, &sessions, id);
        let mut positions = states.iter().flat_map(|t| t.span.clone());
        assert!(positions.all(|position| seen.contains(&position)));
        assert_eq!(sessions.turn(id, room).unwrap().text, text);
        sizes.push(sessions.stats(&runtime, id).unwrap().forgotten);
    }
    // A state that was replaced does not count as forgotten.
    assert_eq!(sizes.last(), Some(&0));
    // The last turn is one that was asked.
    let last = sessions.retract(&mut runtime, id).unwrap();
    assert!(last.is_some_and(|last| last < room));
    let asked = sessions.turns(id).unwrap();
    let asked = asked.iter().find(|t| !t.is_state).unwrap().number;
    let replaced = sessions.tell_state(&mut runtime, id, "room: none", 4, Some(asked));
    assert!(matches!(replaced, Err(SessionError::NoSuchState { .. })));
    let long = "a very long state ".repeat(20);
    let error = sessions.tell_state(&mut runtime, id, &long, 4, None);
    let said = error.unwrap_err().to_string();
    assert!(
        said.ends_with("tokens of state; accepted: 75 at most"),
        "{said}"
    );
    sessions.drop_state(&mut runtime, id, page).unwrap();
    let gone = sessions.drop_state(&mut runtime, id, page);
    assert!(matches!(gone, Err(SessionError::NoSuchState { .. })));
    assert_eq!(
        sessions
            .turns(id)
            .unwrap()
            .iter()
            .filter(|t| t.is_state)
            .count(),
        1
    );
}

/// A turn that is excluded is seen by no answer, whatever the question and after resuming, until it is recalled; a pinned one
/// is seen by every answer.
#[test]
fn turns_are_pinned_and_excluded() {
    let world = World::new();
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let mut id = sessions.create(&mut runtime, "a", "", 0).unwrap();
    let (cat, trees) = (0, 1);
    for question in &QUESTIONS[..3] {
        say(&mut sessions, &mut runtime, id, question);
    }
    let is_seen = |sessions: &Sessions, id, number: u64| {
        let turns = sessions.turns(id).unwrap();
        turns.iter().any(|t| t.number == number && t.is_visible)
    };
    sessions.pin(&mut runtime, id, trees, true).unwrap();
    sessions.exclude(&mut runtime, id, cat, true).unwrap();
    assert!(!is_seen(&sessions, id, cat));
    for question in QUESTIONS.iter().cycle().skip(3).take(24) {
        say(&mut sessions, &mut runtime, id, question);
        assert!(!is_seen(&sessions, id, cat), "{question}");
        assert!(is_seen(&sessions, id, trees), "{question}");
        sessions.suspend(&mut runtime, id).unwrap();
        id = sessions.resume(&mut runtime, "a").unwrap();
    }
    // What is on disk is not pinned, and too much is not either.
    let pinned = sessions.pin(&mut runtime, id, cat, true);
    assert!(matches!(pinned, Err(SessionError::NotInMemory { .. })));
    let mut refused = None;
    let live = |turn: &&Turn| turn.place == TurnPlace::Live;
    let turns = sessions.turns(id).unwrap();
    let live: Vec<u64> = turns
        .iter()
        .copied()
        .filter(live)
        .map(|t| t.number)
        .collect();
    for number in live {
        refused = refused.or(sessions.pin(&mut runtime, id, number, true).err());
    }
    let refused = refused.unwrap().to_string();
    assert!(refused.ends_with("accepted: 75 at most"), "{refused}");
    let turns = sessions.turns(id).unwrap();
    let pinned = turns.iter().filter(|turn| turn.is_pinned);
    let pinned: Vec<u64> = pinned.map(|turn| turn.number).collect();
    for number in pinned {
        sessions.pin(&mut runtime, id, number, false).unwrap();
    }
    sessions.recall(id, cat).unwrap();
    say(&mut sessions, &mut runtime, id, "tell me about trains");
    assert!(is_seen(&sessions, id, cat));
    // A pinned turn that is excluded is not pinned any more, and the other way round.
    sessions.pin(&mut runtime, id, cat, true).unwrap();
    sessions.exclude(&mut runtime, id, cat, true).unwrap();
    let flags = |sessions: &Sessions| {
        let turns = sessions.turns(id).unwrap();
        let cat = turns.iter().find(|turn| turn.number == cat).unwrap();
        (cat.is_pinned, cat.is_excluded, cat.is_visible)
    };
    assert_eq!(flags(&sessions), (false, true, false));
    sessions.pin(&mut runtime, id, cat, true).unwrap();
    assert_eq!(flags(&sessions), (true, false, true));
    sessions.pin(&mut runtime, id, cat, false).unwrap();
    sessions.exclude(&mut runtime, id, cat, true).unwrap();
    sessions.exclude(&mut runtime, id, cat, false).unwrap();
    assert_eq!(flags(&sessions), (false, false, false));
    let state = sessions
        .tell_state(&mut runtime, id, "page: 3", 0, None)
        .unwrap();
    let excluded = sessions.exclude(&mut runtime, id, state, true);
    assert!(matches!(excluded, Err(SessionError::IsState { .. })));
    let absent = sessions.exclude(&mut runtime, id, 999, true);
    assert!(matches!(absent, Err(SessionError::NoSuchTurn { .. })));
}

#[test]
fn forks_go_their_own_ways() {
    let world = World::new();
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let one = sessions.create(&mut runtime, "one", "", 0).unwrap();
    for question in &QUESTIONS[..6] {
        say(&mut sessions, &mut runtime, one, question);
    }
    let two = sessions.fork(&mut runtime, one, "two").unwrap();
    let a = say(&mut sessions, &mut runtime, one, QUESTIONS[6]);
    let b = say(&mut sessions, &mut runtime, two, QUESTIONS[6]);
    assert_eq!(a.tokens, b.tokens);
    say(&mut sessions, &mut runtime, one, QUESTIONS[7]);
    let c = say(&mut sessions, &mut runtime, two, QUESTIONS[8]);
    sessions.suspend(&mut runtime, two).unwrap();
    sessions.delete("two").unwrap();
    assert!(sessions.resume(&mut runtime, "two").is_err());
    assert!(matches!(
        sessions.resume(&mut runtime, "one"),
        Err(SessionError::Open { .. })
    ));
    // Taken back, the question is answered as the fork answered it.
    assert_eq!(sessions.retract(&mut runtime, one).unwrap(), Some(7));
    let _ = c;
    let names: Vec<String> = sessions
        .list(Owner::default())
        .unwrap()
        .into_iter()
        .map(|l| l.name)
        .collect();
    assert_eq!(names, ["one"]);
}

/// A process was killed after it had created the file of a session and before it saved anything: there is no session, and a
/// new one takes the name. Found by the simulation of the HTTP layer, which got an error for damage.
#[test]
fn a_file_without_a_save_is_no_session() {
    let world = World::new();
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let dir = world.options.dir.clone().unwrap();
    std::fs::create_dir_all(&dir).unwrap();
    for identity in [&b"of another model"[..], b""] {
        let path = dir.join("anna.session");
        drop(Journal::create(&path, identity, JournalOptions::default()).unwrap());
        assert!(!sessions.exists("anna"));
        assert!(sessions.list(Owner::default()).unwrap().is_empty());
        let opened = sessions.resume(&mut runtime, "anna");
        assert!(opened.is_err(), "{opened:?}");
        let anna = sessions.create(&mut runtime, "anna", "Be brief.", 0);
        let anna = anna.unwrap();
        say(&mut sessions, &mut runtime, anna, "Hello.");
        assert!(sessions.exists("anna"));
        sessions.close(&mut runtime, anna).unwrap();
        sessions.delete("anna").unwrap();
    }
}

#[test]
fn bad_names_and_foreign_files() {
    let world = World::new();
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    for name in ["..", "a/b", "", &"x".repeat(300), "a\0b"] {
        assert!(matches!(
            sessions.create(&mut runtime, name, "", 0),
            Err(SessionError::Name(_))
        ));
        assert!(matches!(
            sessions.resume(&mut runtime, name),
            Err(SessionError::Name(_))
        ));
        assert!(matches!(sessions.delete(name), Err(SessionError::Name(_))));
    }
    let id = sessions.create(&mut runtime, "mine", "x", 0).unwrap();
    say(&mut sessions, &mut runtime, id, "hello");
    sessions.suspend(&mut runtime, id).unwrap();
    let mut other = World::new();
    other.options = SessionOptions {
        dir: Some(world.dir().to_owned()),
        tenant: "other".into(),
        ..other.options
    };
    let mut stranger = other.sessions(&runtime);
    let error = stranger
        .resume(&mut runtime, "mine")
        .unwrap_err()
        .to_string();
    assert_eq!(error, "session mine was saved with tenant ; this is other");
    // The same name in another format.
    let kv = World {
        kv: KvOptions::plain(KvForm::F16),
        ..World::new()
    };
    let mut runtime = kv.runtime();
    let mut sessions = Sessions::new(&runtime, world.options.clone()).unwrap();
    let error = sessions
        .resume(&mut runtime, "mine")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("saved with kv int4-") && error.contains("this is f16-"),
        "{error}"
    );
    let path = |name: &str| world.dir().join(format!("{name}.session"));
    std::fs::create_dir(path("folder")).unwrap();
    std::os::unix::fs::symlink(path("mine"), path("link")).unwrap();
    std::fs::write(path("empty"), b"").unwrap();
    for name in ["folder", "link", "empty", "nowhere"] {
        let error = sessions.resume(&mut runtime, name).unwrap_err().to_string();
        assert!(error.starts_with(&format!("session {name}: ")), "{error}");
        assert!(!error.contains('\n'));
    }
    assert_eq!(runtime.ledger().kv_live, 0);
}

/// A file that may not grow: rows leave it, then turns; the conversation goes on, and what is forgotten is counted.
#[test]
fn a_quota_is_kept() {
    let mut world = World::new();
    world.options.settings.quota_bytes = Some(200 << 10);
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let id = sessions
        .create(&mut runtime, "small", "You know things.", 0)
        .unwrap();
    let path = world.dir().join("small.session");
    let mut forgotten = 0;
    for i in 0..200 {
        let answer = say(&mut sessions, &mut runtime, id, QUESTIONS[i % 12]);
        assert_eq!(answer.context.unsaved, None, "turn {i}");
        assert!(std::fs::metadata(&path).unwrap().len() <= 200 << 10);
        forgotten = answer.context.evicted;
    }
    let stats = sessions.stats(&runtime, id).unwrap();
    assert!(forgotten > 0 && stats.ids > 0, "{stats:?}");
    sessions.suspend(&mut runtime, id).unwrap();
    let id = sessions.resume(&mut runtime, "small").unwrap();
    let again = sessions.stats(&runtime, id).unwrap();
    assert_eq!(
        (again.forgotten, again.ids, again.turns),
        (stats.forgotten, stats.ids, 200)
    );
}

/// Without relevance everything in memory is visible, and the answer says so.
#[test]
fn without_an_encoder_everything_stays_visible() {
    let world = World {
        judged: false,
        ..World::new()
    };
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let id = sessions.create(&mut runtime, "all", "", 0).unwrap();
    for question in QUESTIONS {
        let answer = say(&mut sessions, &mut runtime, id, question);
        assert!(answer.context.unjudged && answer.context.masked == 0);
    }
}

/// A message that does not fit is read in parts, each with an embedding of its own. Parts leave memory like turns, and come
/// back when a question is about them; taken back, the message is gone as a whole.
#[test]
fn a_message_longer_than_the_capacity_is_read_in_parts() {
    for judged in [true, false] {
        let world = World {
            judged,
            ..World::new()
        };
        let mut runtime = world.runtime();
        let mut sessions = world.sessions(&runtime);
        let id = sessions.create(&mut runtime, "long", "", 0).unwrap();
        let before = say(&mut sessions, &mut runtime, id, QUESTIONS[0]);
        let words = ["apple", "boat", "cat", "door", "egg", "fox", "gate", "hat"];
        let text: String = (0..40)
            .map(|i| format!("{} number {i} is {} here. ", words[i % 8], words[i / 5 % 8]))
            .collect();
        let text = format!("A zebra sleeps under seven lamps. {text}");
        let told = say(&mut sessions, &mut runtime, id, &text);
        assert!(told.context.parts > 5, "{:?}", told.context);
        assert!(told.context.spilled > 300, "{:?}", told.context);
        assert_eq!((told.context.evicted, told.context.unsaved), (0, None));
        let turns = sessions.turns(id).unwrap();
        let parts: Vec<u64> = (turns.iter().filter(|t| t.is_part))
            .map(|turn| turn.number)
            .collect();
        assert_eq!(parts.len() as u64 + 1, told.context.parts);
        let live = turns.iter().filter(|t| t.place == TurnPlace::Live);
        assert!(live.map(|turn| turn.tokens()).sum::<u64>() <= 300);
        let views = parts.iter().chain(&told.turn);
        let said: String = views
            .map(|&part| sessions.turn(id, part).unwrap().text + " ")
            .collect();
        assert!(said.split_whitespace().eq(text.split_whitespace()));
        // What every question leaves in memory is resumed, and answered the same way.
        sessions.suspend(&mut runtime, id).unwrap();
        let id = sessions.resume(&mut runtime, "long").unwrap();
        let first = say(
            &mut sessions,
            &mut runtime,
            id,
            "a zebra sleeps under lamps",
        );
        assert_eq!(first.context.parts, 0);
        assert!(first.context.recalled.contains(&parts[0]), "{first:?}");
        for _ in 0..2 {
            sessions.retract(&mut runtime, id).unwrap();
        }
        let left: Vec<u64> = (sessions.turns(id).unwrap().iter())
            .map(|turn| turn.number)
            .collect();
        assert_eq!(left, [before.turn.unwrap()]);
    }
}

/// A message in parts that is dropped while a part is read, or before the answer, leaves nothing.
#[test]
fn a_message_in_parts_is_undone_as_a_whole() {
    let world = World::new();
    let text = "The boat is red. The cat is blue. ".repeat(40);
    for parts_read in [0, 1, 4] {
        let mut runtime = world.runtime();
        let mut sessions = world.sessions(&runtime);
        let name = format!("undone{parts_read}");
        let id = sessions.create(&mut runtime, &name, "", 0).unwrap();
        say(&mut sessions, &mut runtime, id, QUESTIONS[0]);
        let seen_before = seen(&runtime, &sessions, id);
        if parts_read > 0 {
            let options = GenerateOptions::default();
            let turn = sessions.begin(&mut runtime, id, AskedQuestion::new(&text, 8), &options);
            let mut turn = turn.unwrap();
            for _ in 0..parts_read {
                assert!(turn.telling().is_some());
                let (sequence, tokens) = (turn.sequence(), turn.pending().to_vec());
                let mut go_on = |_| ControlFlow::Continue(());
                runtime.feed(sequence, &tokens, &mut go_on).unwrap();
                turn.read(tokens.len());
                let ignore = &mut |_: GenerateEvent<'_>| ControlFlow::Continue(());
                let times = GenerateTimes::default();
                turn = sessions
                    .conclude(&mut runtime, turn, times, ignore)
                    .unwrap();
            }
            drop(turn);
            sessions.work(&mut runtime, id, 1).unwrap();
        }
        // The turn before may have left memory for it.
        assert!(seen(&runtime, &sessions, id).is_subset(&seen_before));
        assert_eq!(sessions.turns(id).unwrap().len(), 1);
        sessions.suspend(&mut runtime, id).unwrap();
        let id = sessions.resume(&mut runtime, &name).unwrap();
        let answer = say(&mut sessions, &mut runtime, id, QUESTIONS[2]);
        assert_eq!((answer.context.parts, answer.context.evicted), (0, 0));
    }
}

/// Limits come from context and budget; what is set is granted or refused with the reason; what was set for one session
/// holds where it is resumed, and a smaller budget changes it on the record.
#[test]
fn limits_are_granted_recorded_or_refused() {
    let mut world = World::new();
    world.options.settings = SessionSettings::default();
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let usual = *sessions.limits();
    assert!(usual.capacity > 1200 && usual.answer_max > 900, "{usual:?}");
    let own = SessionSettings {
        capacity: Some(900),
        answer_max: Some(20),
        ..SessionSettings::default()
    };
    let id = sessions.create_with(&mut runtime, "own", ("", ""), 0, own);
    let id = id.unwrap();
    let answer = say(&mut sessions, &mut runtime, id, QUESTIONS[0]);
    assert_eq!(answer.context.changes, []);
    let mut sampler = Sampler::new(SampleOptions::default()).unwrap();
    let options = GenerateOptions {
        tokens_max: Some(21),
        ..GenerateOptions::default()
    };
    let ignore = &mut |_: GenerateEvent<'_>| ControlFlow::Continue(());
    let refused = sessions.say(&mut runtime, id, "go on", 8, &mut sampler, &options, ignore);
    let refused = refused.unwrap_err().to_string();
    let words = "an answer of 21 tokens; accepted in this session: 1 to 20";
    assert_eq!(refused, words);
    let much = SessionSettings {
        capacity: Some(9000),
        ..own
    };
    let refused = sessions.create_with(&mut runtime, "much", ("", ""), 0, much);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.starts_with("capacity 9000: the context has no room"));
    assert!(!sessions.exists("much"));
    sessions.suspend(&mut runtime, id).unwrap();
    let id = sessions.resume(&mut runtime, "own").unwrap();
    let stats = sessions.stats(&runtime, id).unwrap();
    assert_eq!(stats.capacity, 900);
    sessions.suspend(&mut runtime, id).unwrap();

    world.budget = Some(1);
    let Err(RuntimeError::Bounds(BoundsError::Budget { min_bytes, .. })) = world.try_runtime()
    else {
        panic!("one byte is enough");
    };
    world.budget = Some(min_bytes + runtime.sequence_bytes(800));
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let id = sessions.resume(&mut runtime, "own").unwrap();
    let less = sessions.stats(&runtime, id).unwrap().capacity;
    assert!(less < 600, "{less}");
    let answer = say(&mut sessions, &mut runtime, id, QUESTIONS[1]);
    let [change] = &answer.context.changes[..] else {
        panic!("{:?}", answer.context);
    };
    assert_eq!((change.turn, change.capacity), (1, less));
    assert_eq!(change.reason, "shrunk: the budget");
    let answer = say(&mut sessions, &mut runtime, id, QUESTIONS[2]);
    assert_eq!(answer.context.changes, []);
}

/// 20 November 2026, a Friday, and the Monday after it.
const FRIDAY_MS: u64 = 1_795_132_800_000;
const MONDAY_MS: u64 = FRIDAY_MS + 3 * 86_400_000;

/// Where a session asks for it, each turn is read behind its own date: what was said lately, in parts, and elsewhere. What is
/// shown is the message alone, in a resumed session too, which answers as the one that was not closed.
#[test]
fn messages_are_read_behind_their_date_and_shown_without() {
    let world = World::new();
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let own = SessionSettings {
        dates: Some(true),
        ..SessionSettings::default()
    };
    let texts = sessions.texts();
    let past = [
        ("One?".to_owned(), "1".to_owned()),
        ("Two?".to_owned(), "2".to_owned()),
    ];
    let go_on = &mut || ControlFlow::Continue(());
    let times = [Some(FRIDAY_MS)];
    let read = SessionRead::Create {
        opening: texts.opening_with("", "Be brief.", 0, own).unwrap(),
        history: texts.dated_history(&past, &times, own, go_on).unwrap(),
    };
    let id = sessions
        .create_told(&mut runtime, "dated", read, 5)
        .unwrap();
    let mut sampler = Sampler::new(SampleOptions::default()).unwrap();
    let options = GenerateOptions {
        tokens_max: Some(4),
        ignore_end: true,
        ..GenerateOptions::default()
    };
    let long = "It rains in Ghent. ".repeat(40);
    let mut said = |sessions: &mut Sessions, runtime: &mut Runtime, id, text: &str, now_ms| {
        let ignore = &mut |_: GenerateEvent<'_>| ControlFlow::Continue(());
        let said = sessions.say(runtime, id, text, now_ms, &mut sampler, &options, ignore);
        said.unwrap()
    };
    said(&mut sessions, &mut runtime, id, "Three?", MONDAY_MS);
    // A clock that goes back does not change the day.
    said(&mut sessions, &mut runtime, id, &long, FRIDAY_MS);
    let views = |sessions: &Sessions, id| -> Vec<TurnView> {
        let turns = sessions.turns(id).unwrap();
        let numbers: Vec<u64> = turns.iter().map(|turn| turn.number).collect();
        let view = |number: u64| sessions.turn(id, number).unwrap();
        numbers.into_iter().map(view).collect()
    };
    let check = |views: &[TurnView]| {
        assert!(views.len() > 5, "the long message has parts: {views:?}");
        for (i, view) in views.iter().enumerate() {
            let tokens = &view.tokens[..view.question];
            let read = world.model.tokenizer().decode(tokens).unwrap();
            let friday = read.matches("[Friday, 20 November 2026]\n").count();
            let monday = read.matches("[Monday, 23 November 2026]\n").count();
            let expected = match i {
                0 => (1, 0),
                // When it was said is not known.
                1 => (0, 0),
                _ => (0, 1),
            };
            assert_eq!((friday, monday), expected, "{i}: {read}");
            assert_eq!(view.is_dated, i != 1);
            assert_eq!(view.time_ms, if i < 2 { FRIDAY_MS } else { MONDAY_MS });
            assert!(!view.text.contains("November"), "{}", view.text);
            assert!(read.contains(&view.text), "{read}");
        }
        let texts: Vec<&str> = views.iter().map(|view| &view.text[..]).collect();
        assert_eq!(texts[..3], ["One?", "Two?", "Three?"]);
        let words = |text: &str| text.split_whitespace().count();
        let whole: usize = texts[3..].iter().map(|text| words(text)).sum();
        assert_eq!(whole, words(&long));
    };
    let before = views(&sessions, id);
    check(&before);
    let copy = sessions.fork(&mut runtime, id, "copy").unwrap();
    let expected = said(&mut sessions, &mut runtime, copy, "And now?", MONDAY_MS);
    drop(sessions);

    // The process was killed.
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let id = sessions.resume(&mut runtime, "dated").unwrap();
    assert_eq!(sessions.settings(id).unwrap().dates, Some(true));
    let strip = |views: Vec<TurnView>| -> Vec<(Vec<u32>, String, u64)> {
        let views = views.into_iter();
        views.map(|v| (v.tokens, v.text, v.time_ms)).collect()
    };
    check(&views(&sessions, id));
    assert_eq!(strip(views(&sessions, id)), strip(before));
    let answer = said(&mut sessions, &mut runtime, id, "And now?", MONDAY_MS);
    assert_eq!(answer.tokens, expected.tokens);
    let path = world.folder.path().join("sessions/dated.session");
    let export = SessionExport::of(&path, None).unwrap();
    let layout = ChatLayout::new(world.model.clone());
    let text = SessionExport::text(&layout, &export.turns[2]).unwrap();
    assert_eq!(
        (&text.question[..], export.turns[2].is_dated),
        ("Three?", true)
    );
}

/// A fact that a turn says is read without it: what answers see of the fact once the turn has left is the same whatever the turn
/// said. Of twelve facts that a real model read behind their turns it could answer four then.
#[test]
fn a_fact_is_read_without_the_turn_that_says_it() {
    let world = World::new();
    let mut runtime = world.runtime();
    let mut sessions = world.sessions(&runtime);
    let mut seen_of_fact = |name: &str, said: &str, found_in: Option<u64>| {
        let id = sessions.create(&mut runtime, name, "Be brief.", 0).unwrap();
        sessions.tell(&mut runtime, id, said, "Fine.", 1).unwrap();
        let tokens = sessions.turn(id, 0).unwrap().tokens.len();
        match found_in {
            Some(turn) => sessions.add_fact_of(&mut runtime, id, "She sings.", turn, 2),
            None => sessions.add_fact(&mut runtime, id, "She sings.", 2),
        }
        .unwrap();
        // The turn is visible again.
        assert!(sessions.turns(id).unwrap()[0].is_visible);
        let all = sessions.stats(&runtime, id).unwrap().position;
        assert_eq!(seen(&runtime, &sessions, id).len() as u64, all);
        sessions.exclude(&mut runtime, id, 0, true).unwrap();
        let look = &mut |runtime: &mut Runtime, _| Ok(runtime.logits().to_vec());
        let (logits, _) = sessions.peek(&mut runtime, id, "And?", look).unwrap();
        (tokens, logits)
    };
    let one = seen_of_fact("one", "She sings.", Some(0));
    let two = seen_of_fact("two", "She rings.", Some(0));
    assert_eq!(one.0, two.0, "facts have the same positions");
    assert!(one.1 == two.1);
    // A fact that is told is read where it is told.
    let told = seen_of_fact("told", "She sings.", None);
    assert!(told.1 != seen_of_fact("other", "She rings.", None).1);
}
