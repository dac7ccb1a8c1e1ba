//! A stream over its cap is condensed while the conversation goes on, and whatever fails on the way leaves it as it was.

use crate::common;

use common::session::{Words, say, seen, try_say};
use common::{load, packed_dir};
use haversack_conversations::session::condense::{
    Condense, CondenseMethod, CondensePiece, CondenseRequest, Extractive, Rewriting,
};
use haversack_conversations::session::layout::ChatLayout;
use haversack_conversations::session::turns::TurnPlace;
use haversack_conversations::session::{
    AskedQuestion, Owner, RebuildProgress, SessionError, SessionId, SessionOptions,
    SessionSettings, Sessions,
};
use haversack_engine::runtime::GenerateOptions;
use haversack_engine::sample::{SampleOptions, Sampler};
use haversack_engine::{
    Codec, KvForm, KvOptions, Model, Repack, Retention, Runtime, RuntimeOptions,
};
use haversack_testing::models::Spec;
use haversack_testing::{DiskFault, JournalFaults};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

struct World {
    model: Arc<Model>,
    options: SessionOptions,
    budget: Option<usize>,
    _folder: tempfile::TempDir,
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
            options: SessionOptions {
                settings: SessionSettings {
                    capacity: Some(300),
                    persistent_max: Some(200),
                    answer_max: Some(8),
                    ..SessionSettings::default()
                },
                dir: Some(folder.path().join("sessions")),
                condensed_max: Some(120),
                condense_per_token: 3,
                ..SessionOptions::default()
            },
            budget: None,
            _folder: folder,
        }
    }

    fn start(&self) -> (Runtime, Sessions) {
        let options = RuntimeOptions {
            threads: 1,
            kv: KvOptions {
                recent: 32,
                ..KvOptions::new(KvForm::both(Codec::Int4.form()))
            },
            retention: Retention::managed(),
            budget_bytes: self.budget,
            // The mean keys are measured once.
            cache_dir: Some(packed_dir()),
            ..RuntimeOptions::default()
        };
        let runtime = Runtime::new(self.model.clone(), &options).unwrap();
        let sessions = Sessions::new(&runtime, self.options.clone()).unwrap();
        (runtime, sessions.with_encoder(Arc::new(Words)))
    }

    /// Tokens of everything that should be visible, as pieces that were told.
    fn told(&self, sessions: &Sessions, id: SessionId) -> Vec<u32> {
        let layout = ChatLayout::new(self.model.clone());
        let mut tokens = Vec::new();
        for fact in sessions.facts(id).unwrap() {
            tokens.extend(match fact.number {
                0 => layout.opening(&fact.text, 0).unwrap(),
                _ => layout.fact(&fact.text).unwrap(),
            });
        }
        for turn in sessions.turns(id).unwrap().iter().filter(|t| t.is_visible) {
            tokens.extend(sessions.turn(id, turn.number).unwrap().tokens);
        }
        tokens
    }
}

const FACTS: [&str; 9] = [
    "The shop opens at nine.",
    "The cat is called Miso.",
    "Anna has seven apple trees.",
    "The boat leaves at noon.",
    "The bus stops in Bern.",
    "Tom plays the cello.",
    "The key lies under the pot.",
    "The code of the door is 4711.",
    "The train to Basel is late.",
];

/// A session whose stream is over the cap, with a few turns.
fn over(runtime: &mut Runtime, sessions: &mut Sessions) -> SessionId {
    let id = sessions
        .create_marked(runtime, "long", "You are kind.", "You know things.", 0)
        .unwrap();
    say(sessions, runtime, id, "tell me about trains");
    for fact in FACTS {
        if sessions.stats(runtime, id).unwrap().persistent > 200 {
            break;
        }
        sessions.add_fact_of(runtime, id, fact, 0, 0).unwrap();
    }
    assert!(sessions.stats(runtime, id).unwrap().persistent > 200);
    id
}

/// What is seen is what is told, at the places that turns and facts say.
fn check(world: &World, runtime: &Runtime, sessions: &Sessions, id: SessionId) {
    let stats = sessions.stats(runtime, id).unwrap();
    let told = world.told(sessions, id);
    let seen = seen(runtime, sessions, id);
    assert_eq!(told.len() as u64, stats.persistent + stats.visible);
    assert_eq!(seen.len(), told.len(), "{stats:?}");
    for turn in sessions.turns(id).unwrap().iter().filter(|t| t.is_visible) {
        assert!(turn.span.clone().all(|p| seen.contains(&p)));
    }
    if let Some(budget) = world.budget {
        assert!(runtime.ledger().total() <= budget);
    }
}

/// The swap, asked for between turns: the new stream is short enough, it and the turns are what a fresh sequence would
/// have read, and so is what is answered next.
#[test]
fn a_stream_over_its_cap_becomes_shorter() {
    for saved in [true, false] {
        let mut world = World::new();
        if !saved {
            world.options.dir = None;
        }
        let (mut runtime, mut sessions) = world.start();
        let id = over(&mut runtime, &mut sessions);
        let turns = sessions.turns(id).unwrap().len();
        let marked = sessions.facts(id).unwrap().pop().unwrap();
        let number = marked.number;
        sessions.mark_fact(&mut runtime, id, number, true).unwrap();
        check(&world, &runtime, &sessions, id);
        let swapped = sessions.settle(&mut runtime, id).unwrap();
        assert!(
            matches!(&swapped, RebuildProgress::Swapped(outcome) if outcome.to_string().contains("what they are about")),
            "{swapped:?}"
        );
        assert_eq!(
            sessions.work(&mut runtime, id, 32).unwrap(),
            RebuildProgress::Idle
        );
        let stats = sessions.stats(&runtime, id).unwrap();
        assert!(
            stats.persistent <= 120 && stats.unsaved.is_none(),
            "{stats:?}"
        );
        let facts = sessions.facts(id).unwrap();
        assert!(facts[0].text.starts_with("You are kind."), "{facts:?}");
        assert!(facts.contains(&marked), "{facts:?}");
        check(&world, &runtime, &sessions, id);
        assert_eq!(sessions.turns(id).unwrap().len(), turns);
        assert_eq!(stats.position, stats.persistent + stats.visible);

        let told = world.told(&sessions, id);
        let mut fresh = world.start().0;
        let sequence = fresh.open().unwrap();
        let question = ChatLayout::new(world.model.clone())
            .question("what is my cat called")
            .unwrap();
        let prompt = [told, question].concat();
        let mut sampler = Sampler::new(SampleOptions {
            temperature: 0.0,
            ..SampleOptions::default()
        })
        .unwrap();
        let options = GenerateOptions {
            tokens_max: Some(8),
            ..GenerateOptions::default()
        };
        let expected = haversack_engine::runtime::generate(
            &mut fresh,
            sequence,
            &prompt,
            &mut sampler,
            &options,
            &mut |_| ControlFlow::Continue(()),
        )
        .unwrap();
        let answer = say(&mut sessions, &mut runtime, id, "what is my cat called");
        assert_eq!(answer.tokens, expected.tokens);

        // Facts can still be taken back, and told.
        sessions.revoke(&mut runtime, id, number).unwrap();
        sessions.add_fact(&mut runtime, id, "It rains.", 0).unwrap();
        check(&world, &runtime, &sessions, id);
        sessions.suspend(&mut runtime, id).unwrap();
        assert_eq!(runtime.ledger().kv_live, 0);
    }
}

/// `work` is never called: answers read the rebuild along, and one of the next turns begins with the swap. Killed after any
/// turn, the session goes on the same way.
#[test]
fn answers_go_on_meanwhile() {
    let world = World::new();
    let (mut runtime, mut sessions) = world.start();
    let id = over(&mut runtime, &mut sessions);
    let mut swapped = false;
    let mut round = 0;
    // On a busy machine the thread that judges is served late.
    while round < 60 || (!swapped && round < 2000) {
        let question = ["who sails the boat", "is the cat here", "when does it open"][round % 3];
        if round == 4 && !swapped {
            sessions.revoke(&mut runtime, id, 2).unwrap();
        }
        let answer = say(&mut sessions, &mut runtime, id, question);
        assert!(answer.turn.is_some());
        if round % 4 == 1 {
            let options = GenerateOptions {
                tokens_max: Some(1 << 20),
                ..GenerateOptions::default()
            };
            let asked = AskedQuestion::new("a long answer", 8);
            let refused = sessions.begin(&mut runtime, id, asked, &options);
            assert!(refused.is_err());
        }
        check(&world, &runtime, &sessions, id);
        // The thread that judges takes its time.
        std::thread::sleep(std::time::Duration::from_millis(5));
        swapped |= sessions.stats(&runtime, id).unwrap().persistent <= 200;
        round += 1;
    }
    assert!(swapped, "{:?}", sessions.stats(&runtime, id).unwrap());
    // What is still being condensed would be swapped in for one of the two alone.
    sessions.settle(&mut runtime, id).unwrap();
    // As the file is now, and as the session that goes on is.
    let file = world.options.dir.as_ref().unwrap().join("long.session");
    let saved = std::fs::read(&file).unwrap();
    let expected = say(&mut sessions, &mut runtime, id, "and now").tokens;
    drop((runtime, sessions));
    std::fs::write(&file, saved).unwrap();
    let (mut runtime, mut sessions) = world.start();
    let id = sessions.resume(&mut runtime, "long").unwrap();
    check(&world, &runtime, &sessions, id);
    let again = say(&mut sessions, &mut runtime, id, "and now").tokens;
    assert_eq!(again, expected);
    // Turns that left before the swap are ids, and come back as such.
    let turns = sessions.turns(id).unwrap();
    assert!(turns.iter().any(|t| t.place == TurnPlace::Ids), "{turns:?}");
}

/// Killed after every turn behind a swap: columns that the file has of the old positions are never taken for new ones.
#[test]
fn resumed_behind_a_swap() {
    let questions = ["who sails the boat", "is the cat here", "when does it open"];
    let (world, other) = (World::new(), World::new());
    let (mut runtime, mut sessions) = world.start();
    let id = over(&mut runtime, &mut sessions);
    sessions.settle(&mut runtime, id).unwrap();
    let (mut torn_runtime, mut torn) = other.start();
    let torn_id = over(&mut torn_runtime, &mut torn);
    torn.settle(&mut torn_runtime, torn_id).unwrap();
    for round in 0..9 {
        drop((torn_runtime, torn));
        (torn_runtime, torn) = other.start();
        let torn_id = torn.resume(&mut torn_runtime, "long").unwrap();
        let question = questions[round % 3];
        let expected = say(&mut sessions, &mut runtime, id, question);
        let answer = say(&mut torn, &mut torn_runtime, torn_id, question);
        assert_eq!(answer.tokens, expected.tokens, "round {round}");
    }
}

/// Killed at every stage of a condensing: the old stream is there, and is condensed again.
#[test]
fn killed_on_the_way() {
    let world = World::new();
    let (mut runtime, mut sessions) = world.start();
    let id = over(&mut runtime, &mut sessions);
    let facts = |sessions: &Sessions, id| -> Vec<String> {
        let facts = sessions.facts(id).unwrap();
        facts.into_iter().map(|f| f.text).collect()
    };
    let old = facts(&sessions, id);
    let mut steps = 0;
    for most in 0.. {
        drop((runtime, sessions));
        (runtime, sessions) = world.start();
        let id = sessions.resume(&mut runtime, "long").unwrap();
        assert_eq!(facts(&sessions, id), old, "stage {most}");
        check(&world, &runtime, &sessions, id);
        let mut stage = 0;
        let swapped = loop {
            match sessions.work(&mut runtime, id, 16).unwrap() {
                RebuildProgress::Judging => std::thread::yield_now(),
                RebuildProgress::Reading { .. } if stage < most => stage += 1,
                RebuildProgress::Reading { .. } => break false,
                RebuildProgress::Swapped(_) => break true,
                other => panic!("{other:?}"),
            }
        };
        if swapped {
            steps = most;
            break;
        }
    }
    assert!(steps > 3, "{steps}");
    drop((runtime, sessions));
    let (mut runtime, mut sessions) = world.start();
    let id = sessions.resume(&mut runtime, "long").unwrap();
    assert_ne!(facts(&sessions, id), old);
    check(&world, &runtime, &sessions, id);
}

/// The disk fails at every call of the swap's commit: the old stream stays, in memory and in the file.
#[test]
fn a_swap_that_cannot_be_saved_does_not_happen() {
    let count = JournalFaults::never();
    let mut world = World::new();
    world.options.journal_io = Some(count.io());
    let (mut runtime, mut sessions) = world.start();
    let id = over(&mut runtime, &mut sessions);
    let first = count.calls().len();
    sessions.settle(&mut runtime, id).unwrap();
    let last = count.calls().len();
    assert!(last > first + 3);
    for n in first + 1..=last {
        let faults = JournalFaults::at(n, DiskFault::Broken);
        let mut world = World::new();
        world.options.journal_io = Some(faults.io());
        let (mut runtime, mut sessions) = world.start();
        let id = over(&mut runtime, &mut sessions);
        let (before, live) = (world.told(&sessions, id), runtime.ledger().kv_live);
        let ended = sessions.settle(&mut runtime, id).unwrap();
        assert!(faults.struck());
        assert!(
            matches!(ended, RebuildProgress::GivenUp(_)),
            "call {n}: {ended:?}"
        );
        assert_eq!(world.told(&sessions, id), before, "call {n}");
        assert_eq!(runtime.ledger().kv_live, live, "call {n}");
        check(&world, &runtime, &sessions, id);
        // It goes on, and the next fact has it tried again.
        say(&mut sessions, &mut runtime, id, "who sails the boat");
        assert_eq!(
            sessions.work(&mut runtime, id, 32).unwrap(),
            RebuildProgress::Idle
        );
        sessions.add_fact(&mut runtime, id, "It rains.", 0).unwrap();
        let ended = sessions.settle(&mut runtime, id).unwrap();
        assert!(
            matches!(ended, RebuildProgress::Swapped(_)),
            "call {n}: {ended:?}"
        );
        let after = world.told(&sessions, id);
        assert_eq!(sessions.stats(&runtime, id).unwrap().unsaved, None);
        sessions.suspend(&mut runtime, id).unwrap();
        let id = sessions.resume(&mut runtime, "long").unwrap();
        assert_eq!(world.told(&sessions, id), after, "call {n}");
    }
}

/// Another sequence takes more and more of the budget: inside it at every step, condensed or given up, as before where it was
/// given up, and nothing leaks.
#[test]
fn a_budget_is_kept() {
    let mut world = World::new();
    world.options.settings.capacity = Some(200);
    let budget = {
        let (mut runtime, mut sessions) = world.start();
        let id = over(&mut runtime, &mut sessions);
        sessions.settle(&mut runtime, id).unwrap();
        runtime.ledger().total() * 2
    };
    world.budget = Some(budget);
    let (mut swapped, mut given_up, mut refused) = (0, BTreeSet::new(), 0);
    for others in (0..).step_by(128) {
        let saved = others % 256 == 0;
        let dir = world._folder.path().join(format!("others{others}"));
        world.options.dir = saved.then_some(dir);
        let (mut runtime, mut sessions) = world.start();
        let id = over(&mut runtime, &mut sessions);
        let other = runtime.open().unwrap();
        let tokens: Vec<u32> = (0..others).map(|i| 5 + i % 50).collect();
        let mut go_on = |_| ControlFlow::Continue(());
        if others > 0 && runtime.feed(other, &tokens, &mut go_on).is_err() {
            break;
        }
        for round in 0..4 {
            let question = ["who sails", "is it here"][round % 2];
            refused += usize::from(try_say(&mut sessions, &mut runtime, id, question).is_err());
            check(&world, &runtime, &sessions, id);
            for _ in 0..12 {
                match sessions.work(&mut runtime, id, 24).unwrap() {
                    RebuildProgress::Swapped(_) => swapped += 1,
                    RebuildProgress::GivenUp(why) => {
                        assert!(sessions.stats(&runtime, id).unwrap().persistent > 200);
                        given_up.insert(
                            why.to_string()
                                .split(' ')
                                .take(3)
                                .collect::<Vec<_>>()
                                .join(" "),
                        );
                    }
                    _ => std::thread::sleep(std::time::Duration::from_millis(1)),
                }
                check(&world, &runtime, &sessions, id);
            }
        }
        sessions.suspend(&mut runtime, id).unwrap();
        runtime.close(other).unwrap();
        assert_eq!(runtime.ledger().kv_live, 0, "{others} tokens of others");
    }
    println!("{swapped} swapped, {given_up:?} given up, {refused} answers refused");
    assert!(
        swapped > 0 && !given_up.is_empty(),
        "{swapped} {given_up:?}"
    );
}

/// Over the cap at the start: condensed before anything is read. Far over it: refused.
#[test]
fn a_text_too_long_at_the_start() {
    let world = World::new();
    let (mut runtime, mut sessions) = world.start();
    let text = FACTS.join(" ").repeat(2);
    let id = sessions
        .create_marked(&mut runtime, "long", "You are kind.", &text, 0)
        .unwrap();
    let stats = sessions.stats(&runtime, id).unwrap();
    assert!(
        stats.persistent <= 120 && stats.condensed.is_some(),
        "{stats:?}"
    );
    assert!(
        sessions.facts(id).unwrap()[0]
            .text
            .starts_with("You are kind.\n")
    );
    check(&world, &runtime, &sessions, id);
    let error = sessions
        .create(&mut runtime, "far", &text.repeat(40), 0)
        .unwrap_err();
    assert!(
        matches!(error, SessionError::PersistentFull { max: 1600, .. }),
        "{error}"
    );
    let marked = sessions
        .create_marked(&mut runtime, "marked", &text, "", 0)
        .unwrap_err();
    assert!(matches!(marked, SessionError::Condense(_)), "{marked}");
    assert_eq!(sessions.list(Owner::default()).unwrap().len(), 1);
}

/// A model that writes nonsense: what it wrote is taken only where it is short enough.
#[test]
fn a_model_may_rewrite() {
    let world = World::new();
    let (runtime, _) = world.start();
    let rewriting = Rewriting::new(runtime, Extractive::default());
    let pieces = [CondensePiece {
        text: FACTS.join(" "),
        verbatim: FACTS[0].len(),
    }];
    for tokens_max in [10, 30, 50, 1000] {
        let count = |_: usize, text: &str| text.len().div_ceil(4);
        let asked = CondenseRequest {
            pieces: &pieces,
            tokens_max,
            count: &count,
        };
        let found = rewriting.condense(&asked).unwrap();
        assert!(found.summary.tokens <= tokens_max && found.pieces[0].starts_with(FACTS[0]));
        assert_eq!(
            found.summary.how == CondenseMethod::Untouched,
            tokens_max == 1000
        );
    }
}
