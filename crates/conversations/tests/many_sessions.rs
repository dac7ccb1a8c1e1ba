//! Sessions in one scheduler: each gets the answers it gets alone; turns share steps; an idle session is suspended when a
//! request needs its memory, and loses nothing.

use crate::common;

use common::session::{Words, say};
use common::{Dice, load};
use haversack_conversations::scheduler::{
    Pace, Request, RequestEvent, RequestId, RequestKind, Scheduler, SchedulerOptions, SubmitError,
};
use haversack_conversations::session::relevance::Relevance;
use haversack_conversations::session::turns::TurnPlace;
use haversack_conversations::session::{
    CapacityChange, Owner, RebuildProgress, SessionError, SessionId, SessionOptions, SessionRead,
    SessionSettings, SessionTexts, Sessions, TurnAnswer,
};
use haversack_engine::device::Thermal;
use haversack_engine::runtime::{Finish, GenerateOptions};
use haversack_engine::sample::SampleOptions;
use haversack_engine::{Model, Repack, Retention, Runtime, RuntimeOptions};
use haversack_memory::journal::{Journal, JournalOptions};
use haversack_memory::{Cgroup, Reading};
use haversack_testing::JournalFaults;
use haversack_testing::models::Spec;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const NAMES: [&str; 4] = ["anna", "ben", "cleo", "dan"];
const OPENING: &str = "You know things.";
const CAPACITY: usize = 160;

fn tiny(dir: &Path) -> (Spec, Arc<Model>) {
    let path = dir.join("tiny.gguf");
    let spec = Spec {
        context: 2048,
        ..Spec::named("llama").unwrap()
    };
    spec.write_file(&path).unwrap();
    (spec, load(&path, Repack::Off))
}

fn runtime(model: &Arc<Model>, dir: &Path, budget_bytes: Option<usize>) -> Runtime {
    let options = RuntimeOptions {
        retention: Retention::managed(),
        budget_bytes,
        cache_dir: Some(dir.to_owned()),
        ..RuntimeOptions::default()
    };
    Runtime::new(model.clone(), &options).unwrap()
}

fn sessions(runtime: &Runtime, dir: &Path) -> Sessions {
    sessions_of(runtime, dir, CAPACITY)
}

fn sessions_of(runtime: &Runtime, dir: &Path, capacity: usize) -> Sessions {
    let settings = settings(capacity);
    sessions_on(runtime, dir, settings, &JournalFaults::never())
}

fn settings(capacity: usize) -> SessionSettings {
    SessionSettings {
        capacity: Some(capacity),
        persistent_max: Some(64),
        answer_max: Some(12),
        ..SessionSettings::default()
    }
}

/// A save ends when the disk lets it; as a rule, at once.
fn sessions_on(
    runtime: &Runtime,
    dir: &Path,
    settings: SessionSettings,
    disk: &JournalFaults,
) -> Sessions {
    let options = SessionOptions {
        journal_io: Some(disk.io()),
        settings,
        dir: Some(dir.to_owned()),
        ..SessionOptions::default()
    };
    let sessions = Sessions::new(runtime, options).unwrap();
    sessions.with_encoder(Arc::new(Words))
}

/// With sessions in the folder `name`.
fn scheduler(model: &Arc<Model>, dir: &Path, name: &str, budget: Option<usize>) -> Scheduler {
    let runtime = runtime(model, dir, budget);
    let sessions = sessions(&runtime, &dir.join(name));
    Scheduler::new(runtime, SchedulerOptions::default()).with_sessions(sessions)
}

fn question(who: usize, round: usize) -> String {
    format!("{} asks about {} and cats", NAMES[who], round * 7 % 5)
}

fn turn(who: usize, round: usize) -> Request {
    turn_in(NAMES[who], question(who, round))
}

fn turn_in(session: &str, text: String) -> Request {
    Request {
        sample: SampleOptions {
            temperature: 0.0,
            ..SampleOptions::default()
        },
        ..Request::new(RequestKind::Turn {
            session: session.to_owned(),
            text,
            tokens: None,
            embedding: None,
            now_ms: 8,
        })
    }
}

/// The answers of each session in each round, computed one after the other without a budget.
fn alone(model: &Arc<Model>, dir: &Path, rounds: usize) -> Vec<Vec<TurnAnswer>> {
    let mut runtime = runtime(model, dir, None);
    let mut sessions = sessions(&runtime, &dir.join("alone"));
    let all = NAMES.iter().enumerate().map(|(who, name)| {
        let id = sessions.create(&mut runtime, name, OPENING, 0).unwrap();
        let said = (0..rounds).map(|round| {
            let text = question(who, round);
            say(&mut sessions, &mut runtime, id, &text)
        });
        said.collect()
    });
    all.collect()
}

/// Worst-case bytes of a session, and bytes held beside all sessions.
fn sizes(model: &Arc<Model>, dir: &Path) -> (usize, usize) {
    let runtime = runtime(model, dir, None);
    let scratch = runtime.scratch_bytes_counting(2, 0, 64, 800);
    let kept = scratch + runtime.ledger().side + (16 << 10);
    (runtime.sequence_bytes(96 + CAPACITY + 448), kept)
}

/// Steps until the scheduler is idle.
fn finish(scheduler: &mut Scheduler, budget: Option<usize>) -> HashMap<RequestId, TurnAnswer> {
    let mut said = HashMap::new();
    let mut steps = 0;
    while !scheduler.is_idle() {
        scheduler
            .step(Duration::ZERO, &mut |request_id, event| {
                match event {
                    RequestEvent::TurnSaved(answer) => {
                        assert!(said.insert(request_id, *answer).is_none())
                    }
                    RequestEvent::Failed(why) => panic!("{request_id:?}: {why}"),
                    _ => {}
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        let ledger = scheduler.runtime().ledger();
        assert!(budget.is_none_or(|budget| ledger.peak <= budget));
        assert_eq!(ledger.budget, budget);
        steps += 1;
        assert!(steps < 100_000, "the scheduler never becomes idle");
    }
    said
}

/// Four sessions at a time, with completions between their turns, in budgets that hold all of them, two, or hardly one: no
/// token changes.
#[test]
fn other_requests_change_no_turn() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let rounds = 8;
    let truth = alone(&model, dir.path(), rounds);
    let ids = spec.ids(200);
    let (one, kept) = sizes(&model, dir.path());
    for (i, budget) in [None, Some(9), Some(3), Some(1)].into_iter().enumerate() {
        let budget = budget.map(|times| times * one + kept);
        let mut scheduler = scheduler(&model, dir.path(), &format!("scheduler{i}"), budget);
        for name in NAMES {
            scheduler.create_session(name, "", OPENING, 0).unwrap();
        }
        let mut dice = Dice(7 + i as u64);
        for round in 0..rounds {
            scheduler.set_pace(Pace {
                batch: 1 + dice.roll(8),
                chunk: 1 + dice.roll(100),
            });
            let request_ids = [0, 1, 2, 3].map(|who| scheduler.submit(turn(who, round)).unwrap());
            for _ in 0..dice.roll(3) {
                let prompt = ids[..1 + dice.roll(150)].to_vec();
                let options = GenerateOptions {
                    tokens_max: Some(dice.roll(20)),
                    ..GenerateOptions::default()
                };
                scheduler
                    .submit(Request {
                        options,
                        ..Request::completion(prompt)
                    })
                    .unwrap();
            }
            let said = finish(&mut scheduler, budget);
            for (who, request_id) in request_ids.iter().enumerate() {
                let (said, truth) = (&said[request_id], &truth[who][round]);
                let name = format!("budget {i}, round {round}, {}", NAMES[who]);
                assert_eq!(said.tokens, truth.tokens, "{name}");
                assert_eq!(said.turn, truth.turn, "{name}");
                assert_eq!(said.context, truth.context, "{name}");
            }
        }
        let open = |scheduler: &Scheduler| {
            let sessions = scheduler.sessions().unwrap();
            NAMES.map(|name| sessions.opened(name).is_some())
        };
        match budget {
            None => assert_eq!(open(&scheduler), [true; 4]),
            // Some were suspended for others.
            Some(_) if i == 3 => assert!(open(&scheduler).contains(&false)),
            Some(_) => {}
        }
        scheduler.suspend_all();
        assert_eq!(open(&scheduler), [false; 4]);
        assert_eq!(scheduler.runtime().ledger().kv_live, 0);
    }
}

/// What the process has on its heap is counted once. Counted twice, turns that fit were opened, did not fit, and were suspended
/// for the next one that did not fit either: 23 times a turn. A turn alone keeps what it has whatever others have on the heap.
#[test]
fn the_heap_is_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let truth = alone(&model, dir.path(), 6);
    let (one, kept) = sizes(&model, dir.path());
    let heap = 6 * one;
    let budget = heap + 5 * one + kept;
    let mut scheduler = scheduler(&model, dir.path(), "scheduler", Some(budget));
    for name in NAMES {
        scheduler.create_session(name, "", OPENING, 0).unwrap();
    }
    for round in 0..6 {
        let is_alone = round == 5;
        let beside = Request {
            options: GenerateOptions {
                tokens_max: Some(1000),
                ignore_end: true,
                ..GenerateOptions::default()
            },
            ..Request::completion(spec.ids(20))
        };
        let beside = (!is_alone).then(|| scheduler.submit(beside).unwrap());
        // They take places one after the other, and bytes are freed in between.
        let mut said = HashMap::new();
        for (who, name) in NAMES.into_iter().enumerate() {
            let id = scheduler.submit(turn(who, round)).unwrap();
            for steps in 0.. {
                assert!(steps < 10_000, "{name} is never answered");
                let level = if is_alone { budget - kept } else { heap } - steps % 2;
                scheduler.set_heap_bytes(level, 0);
                step(&mut scheduler, &mut |request_id, event| match event {
                    RequestEvent::TurnSaved(answer) => drop(said.insert(request_id, *answer)),
                    RequestEvent::Failed(why) => panic!("{request_id:?}: {why}"),
                    _ => {}
                });
                if said.contains_key(&id) {
                    break;
                }
            }
            let (said, truth) = (&said[&id], &truth[who][round]);
            assert_eq!(said.tokens, truth.tokens, "{name}, round {round}");
            assert_eq!(said.context, truth.context, "{name}, round {round}");
            assert_eq!(scheduler.active(), usize::from(!is_alone), "{name} waited");
            if !is_alone {
                assert_eq!(scheduler.stats().suspensions.for_others, 0);
            }
        }
        if let Some(id) = beside {
            scheduler.cancel(id).unwrap();
        }
    }
}

/// A session that does not fit now waits until it can be opened whole: turns that stayed in its file would be missing in the
/// answer.
#[test]
fn a_session_comes_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let rounds = 6;
    let truth = alone(&model, dir.path(), rounds);
    let (one, kept) = sizes(&model, dir.path());
    let (mut looked, mut waited) = ([0, 0], [0, 0]);
    for part in 0..36 {
        let budget = Some(one + part * one / 16 + kept);
        let mut scheduler = scheduler(&model, dir.path(), &format!("scheduler{part}"), budget);
        scheduler.create_session(NAMES[0], "", OPENING, 0).unwrap();
        for round in 0..rounds - 1 {
            scheduler.submit(turn(0, round)).unwrap();
            finish(&mut scheduler, budget);
        }
        scheduler.suspend_all();
        let options = GenerateOptions {
            tokens_max: Some(20),
            ..GenerateOptions::default()
        };
        let other = Request {
            options,
            ..Request::completion(spec.ids(560))
        };
        let other = scheduler.submit(other).unwrap();
        scheduler
            .step(Duration::ZERO, &mut |_, _| ControlFlow::Continue(()))
            .unwrap();
        // Inspecting it opens it for later requests too.
        match scheduler.with_session(NAMES[0], |_, _, _| Ok(())) {
            Ok(()) => looked[0] += 1,
            Err(error) if error.is_cannot_fit() => looked[1] += 1,
            Err(error) => panic!("{error}"),
        }
        let last = scheduler.submit(turn(0, rounds - 1)).unwrap();
        let mut order = Vec::new();
        let mut context = None;
        while !scheduler.is_idle() {
            scheduler
                .step(Duration::ZERO, &mut |request_id, event| {
                    match event {
                        RequestEvent::Token { .. } => order.push(request_id),
                        RequestEvent::TurnSaved(answer) => {
                            context = Some((answer.tokens, answer.context))
                        }
                        RequestEvent::Failed(why) => panic!("{why}"),
                        _ => {}
                    }
                    ControlFlow::Continue(())
                })
                .unwrap();
        }
        let truth = &truth[0][rounds - 1];
        let whole = Some((truth.tokens.clone(), truth.context.clone()));
        assert_eq!(context, whole, "{part} parts of 16 more");
        let last_of_other = order.iter().rposition(|&t| t == other).unwrap();
        let first = order.iter().position(|&t| t == last).unwrap();
        waited[usize::from(first > last_of_other)] += 1;
    }
    // With room for both they run at once.
    assert!(waited.iter().all(|&times| times > 0), "{waited:?}");
    assert!(looked.iter().all(|&times| times > 0), "{looked:?}");
}

/// Turns of one session run one after the other, in order of submission, and hold up no other request.
#[test]
fn turns_of_a_session_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let truth = alone(&model, dir.path(), 3);
    let mut scheduler = scheduler(&model, dir.path(), "scheduler", None);
    for name in &NAMES[..2] {
        scheduler.create_session(name, "", OPENING, 0).unwrap();
    }
    // Owners are served round-robin, but not within one session.
    let mut asked = |r: usize| {
        scheduler.submit(Request {
            owner: (r as u64 / 2).into(),
            ..turn(0, r)
        })
    };
    let anna: Vec<RequestId> = (0..3).map(|r| asked(r).unwrap()).collect();
    let ben = scheduler.submit(turn(1, 0)).unwrap();
    let mut order = Vec::new();
    while !scheduler.is_idle() {
        scheduler
            .step(Duration::ZERO, &mut |request_id, event| {
                if let RequestEvent::TurnSaved(answer) = event {
                    order.push((request_id, answer.tokens));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    let of = |request_id| order.iter().position(|(t, _)| *t == request_id).unwrap();
    assert!(of(anna[0]) < of(anna[1]) && of(anna[1]) < of(anna[2]));
    assert!(of(ben) < of(anna[1]));
    for (round, &request_id) in anna.iter().enumerate() {
        assert_eq!(order[of(request_id)].1, truth[0][round].tokens);
    }
}

/// A cancelled turn that has no token yet leaves its session unchanged; one that has keeps the answer so far. A queued one
/// never begins.
#[test]
fn cancelled_turns() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let truth = alone(&model, dir.path(), 2);
    let mut scheduler = scheduler(&model, dir.path(), "scheduler", None);
    let ids: Vec<SessionId> = NAMES[..2]
        .iter()
        .map(|name| scheduler.create_session(name, "", OPENING, 0).unwrap())
        .collect();
    let early = scheduler.submit(turn(0, 0)).unwrap();
    let late = scheduler.submit(turn(1, 0)).unwrap();
    let waits = scheduler.submit(turn(1, 1)).unwrap();
    let mut tokens = 0;
    let mut ends = HashMap::new();
    while !scheduler.is_idle() {
        if tokens == 0 {
            scheduler.cancel(early).unwrap();
            scheduler.cancel(waits).unwrap();
        }
        scheduler
            .step(Duration::ZERO, &mut |request_id, event| {
                match event {
                    RequestEvent::Token { .. } if request_id == late => tokens += 1,
                    RequestEvent::TurnSaved(answer) => drop(ends.insert(request_id, answer)),
                    RequestEvent::Failed(why) => panic!("{why}"),
                    _ => {}
                }
                match tokens {
                    4 => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                }
            })
            .unwrap();
    }
    assert!(!ends.contains_key(&waits));
    let said = &ends[&late];
    assert_eq!((said.finish, said.turn), (Finish::Cancelled, Some(0)));
    assert_eq!(said.tokens, truth[1][0].tokens[..4]);
    let sessions = scheduler.sessions().unwrap();
    let turns = |id| sessions.stats(scheduler.runtime(), id).unwrap().turns;
    assert_eq!(turns(ids[0]), 0);
    assert_eq!(turns(ids[1]), 1);
    // The question that was cancelled early can be asked anew.
    let again = scheduler.submit(turn(0, 0)).unwrap();
    let said = finish(&mut scheduler, None);
    assert_eq!(said[&again].tokens, truth[0][0].tokens);
}

#[test]
fn a_turn_that_can_never_be_served_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let mut bare = Scheduler::new(
        runtime(&model, dir.path(), None),
        SchedulerOptions::default(),
    );
    let refused = bare.submit(turn(0, 0));
    assert!(matches!(
        refused,
        Err(SubmitError::Session(SessionError::NoSessions))
    ));
    let mut scheduler = scheduler(&model, dir.path(), "scheduler", None);
    for name in ["anna", "../anna", "", "a/b"] {
        let refused = scheduler.submit(turn_in(name, question(0, 0)));
        let error = SessionError::NoSuchSession { name: name.into() };
        assert_eq!(refused.unwrap_err().to_string(), error.to_string());
        assert!(scheduler.delete_session(name).is_err());
    }
    scheduler.create_session("anna", "", OPENING, 0).unwrap();
    let stop = vec![String::new()];
    let options = GenerateOptions {
        stop,
        ..GenerateOptions::default()
    };
    let refused = scheduler.submit(Request {
        options,
        ..turn(0, 0)
    });
    assert!(matches!(refused, Err(SubmitError::Stop(_))));
    assert!(scheduler.is_idle());
    scheduler.delete_session("anna").unwrap();
    assert_eq!(
        scheduler
            .sessions()
            .unwrap()
            .list(Owner::default())
            .unwrap(),
        []
    );
    assert_eq!(scheduler.runtime().ledger().kv_live, 0);
}

/// A fact that is added while a request runs cannot take the bytes it was promised.
#[test]
fn facts_take_no_promised_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let ids = spec.ids(400);
    let (one, scratch) = {
        let runtime = runtime(&model, dir.path(), None);
        let scratch = runtime.scratch_bytes_counting(2, 0, 64, 400);
        (runtime.sequence_bytes(400), scratch)
    };
    let budget = one + scratch + (700 << 10);
    let mut scheduler = scheduler(&model, dir.path(), "scheduler", Some(budget));
    scheduler.create_session("anna", "", OPENING, 0).unwrap();
    let request = Request {
        options: GenerateOptions {
            tokens_max: Some(200),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..Request::completion(ids[..200].to_vec())
    };
    scheduler.submit(request).unwrap();
    let (mut told, mut refused, mut length) = (0, 0, 0);
    while scheduler.has_requests() {
        scheduler
            .step(Duration::ZERO, &mut |_, event| {
                match event {
                    RequestEvent::Completed(completed, _) => length = completed.tokens.len(),
                    RequestEvent::Failed(why) => panic!("{why}"),
                    _ => {}
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        let fact = format!("Fact {told} holds and is told.");
        let fact = scheduler.with_session("anna", |runtime, sessions, id| {
            sessions.add_fact(runtime, id, &fact, 9)
        });
        match fact {
            Ok(_) => told += 1,
            Err(_) => refused += 1,
        }
        assert!(scheduler.runtime().ledger().peak <= budget);
    }
    assert_eq!(length, 200);
    assert!(told > 0 && refused > 0, "{told} told, {refused} refused");
}

/// The device becomes hot and short of memory and recovers while all sessions answer: throttle levels follow in order, no
/// request is lost, and no token changes.
#[test]
fn heat_and_shortage_change_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let rounds = 6;
    let truth = alone(&model, dir.path(), rounds);
    let ids = spec.ids(200);
    let mut scheduler = scheduler(&model, dir.path(), "scheduler", None);
    for name in NAMES {
        scheduler.create_session(name, "", OPENING, 0).unwrap();
    }
    let request = Request {
        options: GenerateOptions {
            tokens_max: Some(40),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..Request::completion(ids[..150].to_vec())
    };
    let weights = model.weights().bytes_per_token() as u64;
    let room = |mib: u64| Reading {
        cgroup: Some(Cgroup {
            limit_bytes: Some(weights + (mib << 20)),
            anon_bytes: Some(0),
            ..Cgroup::default()
        }),
        ..Reading::default()
    };
    let (mut second, mut levels, mut words) = (0, vec![0], Vec::new());
    let mut first = None;
    for round in 0..rounds {
        let request_ids = [0, 1, 2, 3].map(|who| scheduler.submit(turn(who, round)).unwrap());
        scheduler.submit(request.clone()).unwrap();
        let (mut said, mut answer) = (HashMap::new(), Vec::new());
        let (heat, memory) = match round {
            0 | 1 => (Thermal::Critical, 200),
            2 | 3 => (Thermal::Critical, 0),
            _ => (Thermal::Nominal, 200),
        };
        while !scheduler.is_idle() {
            scheduler
                .step(Duration::ZERO, &mut |request_id, event| {
                    match event {
                        RequestEvent::TurnSaved(answer) => drop(said.insert(request_id, *answer)),
                        RequestEvent::Completed(completed, _) => answer = completed.tokens,
                        RequestEvent::Failed(why) => panic!("{why}"),
                        _ => {}
                    }
                    ControlFlow::Continue(())
                })
                .unwrap();
            second += 1;
            let now = Duration::from_secs(second);
            words.extend(scheduler.observe(Some(heat), &room(memory), now));
            if *levels.last().unwrap() != scheduler.throttle_level() {
                levels.push(scheduler.throttle_level());
            }
        }
        for (who, request_id) in request_ids.iter().enumerate() {
            assert_eq!(said[request_id].tokens, truth[who][round].tokens);
        }
        assert_eq!(first.get_or_insert(answer.clone()), &answer);
        if round == 3 {
            // Only answering sessions are in memory.
            let sessions = scheduler.sessions().unwrap();
            let open = NAMES.iter().filter(|name| sessions.opened(name).is_some());
            assert!(open.count() < 4);
        }
    }
    assert_eq!(levels, [0, 1, 2, 3, 4, 3, 2, 1, 0], "{words:?}");
    let said = |what: &str| words.iter().any(|word| word.ends_with(what));
    assert!(said("a session leaves memory"), "{words:?}");
    assert!(said("requests are admitted again"), "{words:?}");
}

/// A fork while the device is short of memory: its source is not suspended for it.
#[test]
fn a_fork_keeps_its_source_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let truth = alone(&model, dir.path(), 2);
    let mut scheduler = scheduler(&model, dir.path(), "scheduler", None);
    let short = Reading {
        mem_available_bytes: Some(0),
        ..Reading::default()
    };
    scheduler.observe(None, &short, Duration::ZERO);
    scheduler.create_session("anna", "", OPENING, 0).unwrap();
    scheduler.submit(turn(0, 0)).unwrap();
    finish(&mut scheduler, None);
    scheduler.fork_session("anna", "ben").unwrap();
    let request_id = scheduler.submit(turn_in("ben", question(0, 1))).unwrap();
    let said = finish(&mut scheduler, None);
    assert_eq!(said[&request_id].tokens, truth[0][1].tokens);
}

/// The next answer sees a recalled turn, even if the session was suspended in between, or a question was cancelled before it
/// was answered.
#[test]
fn a_recalled_turn_is_not_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let about_nothing = || turn_in(NAMES[0], "zebras only".to_owned());
    let seen = |asked_for: bool, between: &dyn Fn(&mut Scheduler)| {
        let runtime = runtime(&model, dir.path(), None);
        let folder = tempfile::tempdir_in(dir.path()).unwrap();
        let sessions = sessions(&runtime, folder.path());
        let mut scheduler =
            Scheduler::new(runtime, SchedulerOptions::default()).with_sessions(sessions);
        scheduler.create_session("anna", "", OPENING, 0).unwrap();
        for round in 0..9 {
            let short = Request {
                options: GenerateOptions {
                    tokens_max: Some(2),
                    ..GenerateOptions::default()
                },
                ..turn_in(NAMES[0], format!("cats {round}"))
            };
            scheduler.submit(short).unwrap();
            finish(&mut scheduler, None);
        }
        scheduler
            .with_session("anna", |_, sessions, id| {
                let turns = sessions.turns(id)?;
                let spilled = turns.iter().find(|t| t.place == TurnPlace::Spilled);
                let oldest = spilled.unwrap().number;
                match asked_for {
                    true => sessions.recall(id, oldest),
                    false => Ok(()),
                }
            })
            .unwrap();
        between(&mut scheduler);
        let request_id = scheduler.submit(about_nothing()).unwrap();
        let answer = finish(&mut scheduler, None).remove(&request_id).unwrap();
        answer.tokens
    };
    let truth = seen(true, &|_| ());
    assert_ne!(truth, seen(false, &|_| ()));
    assert_eq!(seen(true, &Scheduler::suspend_all), truth);
    let undone = seen(true, &|scheduler| {
        let request_id = scheduler.submit(about_nothing()).unwrap();
        scheduler
            .step(Duration::ZERO, &mut |_, _| ControlFlow::Break(()))
            .unwrap();
        scheduler.cancel(request_id).unwrap();
        finish(scheduler, None);
    });
    assert_eq!(undone, truth);
}

fn history(turns: usize) -> Vec<(String, String)> {
    let turn = |i: usize| (format!("Question {i} of cats?"), format!("Answer {i}."));
    (0..turns).map(turn).collect()
}

/// With room for more turns.
fn roomy(model: &Arc<Model>, dir: &Path, name: &str) -> Scheduler {
    let runtime = runtime(model, dir, None);
    let sessions = sessions_of(&runtime, &dir.join(name), 1024);
    Scheduler::new(runtime, SchedulerOptions::default()).with_sessions(sessions)
}

fn texts(scheduler: &Scheduler) -> SessionTexts {
    scheduler.sessions().unwrap().texts()
}

fn create(scheduler: &Scheduler, turns: usize) -> SessionRead {
    let texts = texts(scheduler);
    let go_on = &mut || ControlFlow::Continue(());
    SessionRead::Create {
        opening: texts.opening("", OPENING, 0).unwrap(),
        history: texts.history(&history(turns), go_on).unwrap(),
    }
}

/// One step; returns the tokens it read.
fn step(scheduler: &mut Scheduler, hear: &mut dyn FnMut(RequestId, RequestEvent<'_>)) -> u64 {
    let before = scheduler.stats().tokens_read;
    let tell = &mut |id, event: RequestEvent<'_>| {
        hear(id, event);
        ControlFlow::Continue(())
    };
    scheduler.step(Duration::ZERO, tell).unwrap();
    scheduler.stats().tokens_read - before
}

/// A history of 150 turns is read while another request answers: no step reads more than its portion, and each step has a
/// token of the answer. It was one command once, and no other client heard a token for fifteen seconds.
#[test]
fn a_history_is_read_beside_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let mut scheduler = roomy(&model, dir.path(), "scheduler");
    let read = create(&scheduler, 150);
    let tokens = read.tokens() as u64;
    let request = Request {
        options: GenerateOptions {
            tokens_max: Some(400),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..Request::completion(spec.ids(8))
    };
    let answering = scheduler.submit(request).unwrap();
    let mut sampled = 0;
    step(&mut scheduler, &mut |_, _| ());
    let importing = scheduler.submit(Request::read("anna", read, 8)).unwrap();
    let (mut steps, mut is_read) = (0, false);
    while !is_read {
        let before = sampled;
        let read = step(&mut scheduler, &mut |id, event| match event {
            RequestEvent::Token { .. } => sampled += usize::from(id == answering),
            RequestEvent::SessionRead { .. } => is_read = id == importing,
            RequestEvent::Failed(why) => panic!("{why}"),
            _ => {}
        });
        assert!(read <= 64 + 1, "{read} tokens in a step");
        assert_eq!(sampled, before + 1, "an answer was held up");
        steps += 1;
    }
    // Full portions: borders of turns cost no step, and runs of half the capacity hardly any.
    let full = tokens.div_ceil(64);
    let runs = tokens.div_ceil(512);
    assert!(steps <= full + runs, "{steps} steps, {full} portions");
    let turns = scheduler.with_session("anna", |_, sessions, id| Ok(sessions.turns(id)?.len()));
    assert_eq!(turns.unwrap(), 150);
}

/// Turns of an imported history are those of a conversation that took place here, bit for bit: the next answer is the
/// same. Turns that do not fit leave memory, whole, and come back.
#[test]
fn an_imported_history_is_as_good_as_a_told_one() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    for turns in [3, 40] {
        let mut runtime = runtime(&model, dir.path(), None);
        let told_dir = dir.path().join(format!("told-{turns}"));
        let mut told = sessions_of(&runtime, &told_dir, 1024);
        let one = told.create(&mut runtime, "one", OPENING, 0).unwrap();
        for (question, answer) in history(turns) {
            told.tell(&mut runtime, one, &question, &answer, 8).unwrap();
        }
        let mut scheduler = roomy(&model, dir.path(), &format!("read-{turns}"));
        let read = create(&scheduler, turns);
        scheduler.submit(Request::read("one", read, 8)).unwrap();
        assert!(finish(&mut scheduler, None).is_empty());
        let views = scheduler.with_session("one", |_, sessions, id| {
            let numbers: Vec<u64> = sessions.turns(id)?.iter().map(|t| t.number).collect();
            let view = |&number| sessions.turn(id, number);
            numbers.iter().map(view).collect::<Result<Vec<_>, _>>()
        });
        let views = views.unwrap();
        assert_eq!(views.len(), turns);
        for (view, (question, answer)) in views.iter().zip(history(turns)) {
            assert_eq!((&view.text, &view.answer), (&question, &answer));
            let other = told.turn(one, view.turn.number).unwrap();
            assert_eq!(
                (&view.tokens, &view.question),
                (&other.tokens, &other.question)
            );
        }
        let spilled = views
            .iter()
            .filter(|view| view.turn.place == TurnPlace::Spilled);
        assert_eq!(spilled.count() > 0, turns > 10);
        if turns > 10 {
            // The oldest turn comes back.
            scheduler
                .with_session("one", |_, sessions, id| sessions.recall(id, 0))
                .unwrap();
        }
        let id = scheduler
            .submit(turn_in("one", "What now?".into()))
            .unwrap();
        let answer = &finish(&mut scheduler, None)[&id];
        if turns > 10 {
            assert!(answer.context.recalled.contains(&0), "{:?}", answer.context);
        } else {
            let expected = say(&mut told, &mut runtime, one, "What now?");
            assert_eq!(answer.tokens, expected.tokens);
        }
    }
}

/// A read that is cancelled, or whose deadline passes, leaves nothing: no session, no file, no row.
#[test]
fn a_cancelled_history_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let mut scheduler = scheduler(&model, dir.path(), "scheduler", None);
    for is_late in [false, true] {
        let request = Request {
            deadline: is_late.then_some(Duration::from_secs(1)),
            ..Request::read("anna", create(&scheduler, 100), 8)
        };
        let id = scheduler.submit(request).unwrap();
        for _ in 0..3 {
            step(&mut scheduler, &mut |_, _| ());
        }
        assert!(!scheduler.is_idle() && scheduler.runtime().ledger().kv_live > 0);
        let mut failed = 0;
        if is_late {
            let hear = &mut |_, event: RequestEvent<'_>| {
                failed += u32::from(matches!(event, RequestEvent::Failed(_)));
                ControlFlow::Continue(())
            };
            scheduler.step(Duration::from_secs(1), hear).unwrap();
        } else {
            scheduler.cancel(id).unwrap();
        }
        assert_eq!(failed, u32::from(is_late));
        assert!(scheduler.is_idle());
        assert!(!scheduler.sessions().unwrap().exists("anna"));
        assert_eq!(
            scheduler
                .sessions()
                .unwrap()
                .list(Owner::default())
                .unwrap(),
            []
        );
        assert_eq!(scheduler.runtime().ledger().kv_live, 0);
    }
}

/// Requests of a session keep their order: a fact that is told while it answers is read behind the answer, and a second
/// session of one name is refused.
#[test]
fn a_session_is_asked_one_thing_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let mut scheduler = scheduler(&model, dir.path(), "scheduler", None);
    let fact = texts(&scheduler).fact("It rains.").unwrap();
    let fact = SessionRead::Fact {
        fact,
        supersedes: None,
        found_in: None,
    };
    let create = create(&scheduler, 2);
    scheduler
        .submit(Request::read("anna", create.clone(), 8))
        .unwrap();
    let refused = scheduler.submit(Request::read("ben", fact.clone(), 8));
    assert!(matches!(
        refused,
        Err(SubmitError::Session(SessionError::NoSuchSession { .. }))
    ));
    step(&mut scheduler, &mut |_, _| ());
    let turn = scheduler
        .submit(turn_in("anna", "What now?".into()))
        .unwrap();
    let fact = scheduler.submit(Request::read("anna", fact, 8)).unwrap();
    let again = scheduler.submit(Request::read("anna", create, 8)).unwrap();
    let mut order = Vec::new();
    while !scheduler.is_idle() {
        step(&mut scheduler, &mut |id, event| match event {
            RequestEvent::TurnSaved(answer) => order.push((id, answer.turn)),
            RequestEvent::SessionRead { number } => order.push((id, Some(number))),
            RequestEvent::Failed(why) => {
                assert!(why.to_string().contains("anna"), "{why}");
                order.push((id, None));
            }
            _ => {}
        });
    }
    let expected = [(turn, Some(2)), (fact, Some(1)), (again, None)];
    assert_eq!(order[1..], expected);
}

/// A turn that waits for the disk holds up no other request. It is not acknowledged before the disk has it, and its session
/// does nothing else until then. Saves stood in the way of all once, for a second each on a slow disk.
#[test]
fn a_slow_disk_holds_up_its_own_session_only() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let disk = JournalFaults::never().late();
    let runtime = runtime(&model, dir.path(), None);
    let folder = dir.path().join("late");
    let sessions = sessions_on(&runtime, &folder, settings(CAPACITY), &disk);
    let mut scheduler =
        Scheduler::new(runtime, SchedulerOptions::default()).with_sessions(sessions);
    let file = folder.join("anna.session");
    let commits = || {
        Journal::check(&file, &JournalOptions::default())
            .unwrap()
            .commits
    };

    // A new session: neither its name nor its opening is there before the disk has them.
    let read = create(&scheduler, 2);
    let read = scheduler.submit(Request::read("anna", read, 8)).unwrap();
    let mut ended = Vec::new();
    let mut hear = |id: RequestId, event: RequestEvent<'_>| match event {
        RequestEvent::SessionRead { .. } => ended.push(id),
        RequestEvent::Failed(why) => panic!("{why}"),
        _ => {}
    };
    for _ in 0..20 {
        step(&mut scheduler, &mut hear);
    }
    assert!(!file.exists());
    for _ in 0..20 {
        disk.catch_up();
        step(&mut scheduler, &mut hear);
    }
    assert_eq!(ended, [read]);
    let before = commits();

    let request = Request {
        options: GenerateOptions {
            tokens_max: Some(100),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..Request::completion(spec.ids(8))
    };
    let answering = scheduler.submit(request).unwrap();
    let first = scheduler.submit(turn(0, 0)).unwrap();
    let second = scheduler.submit(turn(0, 1)).unwrap();
    let (tokens, saved) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let mut hear = |id: RequestId, event: RequestEvent<'_>| match event {
        RequestEvent::Token { .. } => tokens.borrow_mut().push(id),
        RequestEvent::TurnSaved(_) => saved.borrow_mut().push(id),
        RequestEvent::Failed(why) => panic!("{why}"),
        _ => {}
    };
    for _ in 0..60 {
        step(&mut scheduler, &mut hear);
    }
    let sampled = |id| tokens.borrow().iter().filter(|t| **t == id).count();
    let answered = sampled(answering);
    assert!(answered > 50, "{answered} tokens in 60 steps: held up");
    assert!(sampled(first) > 0 && saved.borrow().is_empty());
    assert_eq!(sampled(second), 0, "not before the first is saved");
    assert_eq!(commits(), before);
    disk.catch_up();
    step(&mut scheduler, &mut hear);
    assert_eq!(commits(), before + 1);
    while !scheduler.is_idle() {
        disk.catch_up();
        step(&mut scheduler, &mut hear);
    }
    assert_eq!(*saved.borrow(), [first, second]);

    // Until it is saved, a command that is to follow a turn waits.
    assert!(scheduler.is_ready_for_command("anna".into()));
    let third = scheduler.submit(turn(0, 2)).unwrap();
    for _ in 0..60 {
        step(&mut scheduler, &mut hear);
    }
    assert!(!scheduler.is_ready_for_command("anna".into()));
    assert_eq!(saved.borrow().len(), 2);
    disk.catch_up();
    step(&mut scheduler, &mut hear);
    assert_eq!(*saved.borrow(), [first, second, third]);
    assert!(scheduler.is_ready_for_command("anna".into()));

    // Cancelled while it waits for the disk, a new session leaves nothing.
    let read = create(&scheduler, 2);
    let read = scheduler.submit(Request::read("ben", read, 8)).unwrap();
    for _ in 0..20 {
        step(&mut scheduler, &mut |_, _| ());
    }
    scheduler.cancel(read).unwrap();
    disk.catch_up();
    assert!(scheduler.is_idle() && !folder.join("ben.session").exists());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}

/// A file that takes long to verify holds up the requests of its session only. A command takes it before the thread that was to
/// verify it begins, and another process may have it once no request waits for it.
#[test]
fn a_long_file_holds_up_its_own_session_only() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let truth = alone(&model, dir.path(), 2);
    let disk = JournalFaults::never();
    let runtime = runtime(&model, dir.path(), None);
    let folder = dir.path().join("late");
    let sessions = sessions_on(&runtime, &folder, settings(CAPACITY), &disk);
    let mut scheduler =
        Scheduler::new(runtime, SchedulerOptions::default()).with_sessions(sessions);
    scheduler.create_session(NAMES[0], "", OPENING, 0).unwrap();
    scheduler.submit(turn(0, 0)).unwrap();
    finish(&mut scheduler, None);
    let disk = disk.late();
    let is_open = |scheduler: &Scheduler| scheduler.sessions().unwrap().opened(NAMES[0]).is_some();
    let is_free = || Journal::open(folder.join("anna.session"), JournalOptions::default()).is_ok();

    scheduler.suspend_all();
    let endless = Request {
        options: GenerateOptions {
            tokens_max: Some(60),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..Request::completion(spec.ids(8))
    };
    scheduler.submit(endless).unwrap();
    let asked = scheduler.submit(turn(0, 1)).unwrap();
    let (mut tokens, mut answer) = (0, Vec::new());
    for _ in 0..60 {
        step(&mut scheduler, &mut |id, event| {
            tokens += usize::from(id != asked && matches!(event, RequestEvent::Token { .. }));
        });
        assert!(!is_open(&scheduler));
    }
    assert!(tokens > 50, "{tokens} tokens in 60 steps: held up");
    while !scheduler.is_idle() {
        disk.catch_up();
        step(&mut scheduler, &mut |_, event| {
            if let RequestEvent::TurnSaved(saved) = event {
                answer = saved.tokens;
            }
        });
    }
    assert_eq!(answer, truth[0][1].tokens);

    // Its request is cancelled: nothing keeps the file.
    scheduler.suspend_all();
    let asked = scheduler.submit(turn(0, 2)).unwrap();
    step(&mut scheduler, &mut |_, _| ());
    scheduler.cancel(asked).unwrap();
    disk.catch_up();
    step(&mut scheduler, &mut |_, _| ());
    assert!(scheduler.is_idle() && is_free());

    // A command does not wait for another thread to begin.
    let asked = scheduler.submit(turn(0, 2)).unwrap();
    step(&mut scheduler, &mut |_, _| ());
    scheduler
        .with_session(NAMES[0], |_, sessions, id| {
            assert_eq!(sessions.turns(id)?.len(), 2);
            Ok(())
        })
        .unwrap();
    assert!(is_open(&scheduler) && !is_free());
    scheduler.cancel(asked).unwrap();

    // Nor does deleting it.
    scheduler.suspend_all();
    scheduler.submit(turn(0, 2)).unwrap();
    step(&mut scheduler, &mut |_, _| ());
    scheduler.delete_session(NAMES[0]).unwrap();
    assert!(!folder.join("anna.session").exists());
    let mut failed = 0;
    while !scheduler.is_idle() {
        disk.catch_up();
        step(&mut scheduler, &mut |_, event| {
            failed += u32::from(matches!(event, RequestEvent::Failed(_)));
        });
    }
    assert_eq!(failed, 1);
}

/// What no session takes is refused before it reaches the scheduler.
#[test]
fn texts_have_limits() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let scheduler = scheduler(&model, dir.path(), "scheduler", None);
    let texts = texts(&scheduler);
    let refused = |turns: &[(String, String)]| {
        let go_on = &mut || ControlFlow::Continue(());
        texts.history(turns, go_on).unwrap_err().to_string()
    };
    let many = vec![("a".to_owned(), "b".to_owned()); 4097];
    assert!(refused(&many).contains("4097 turns; accepted: at most 4096"));
    let long = [("a".to_owned(), "b ".repeat(CAPACITY))];
    assert!(refused(&long).ends_with("accepted in this session: 1 to 12"));
    assert!(refused(&[("a".to_owned(), String::new())]).contains("accepted"));
    // A question that does not fit is told in parts.
    let long = [("a ".repeat(CAPACITY), "b".to_owned())];
    let told = texts.history(&long, &mut || ControlFlow::Continue(()));
    assert!(told.unwrap().len() > 3);
    assert!(texts.fact(&"a ".repeat(200)).is_err());
    let stop = &mut || ControlFlow::Break(());
    assert!(matches!(
        texts.history(&history(2), stop),
        Err(SessionError::Stopped)
    ));
}

/// Facts are told faster than a stream is condensed, turns follow each other without a pause, and another request is answered
/// meanwhile: the stream is condensed again and again, no fact is refused, and no step that decodes reads more than two
/// tokens of it. Condensing went on by 32 tokens a turn once, until facts were refused.
#[test]
fn a_served_session_is_condensed() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let runtime = runtime(&model, dir.path(), None);
    let options = SessionOptions {
        dir: Some(dir.path().join("condensed")),
        settings: SessionSettings {
            capacity: Some(320),
            persistent_max: Some(256),
            answer_max: Some(8),
            ..SessionSettings::default()
        },
        condensed_max: Some(120),
        ..SessionOptions::default()
    };
    let sessions = Sessions::new(&runtime, options).unwrap();
    let sessions = sessions.with_encoder(Arc::new(Words));
    let mut scheduler =
        Scheduler::new(runtime, SchedulerOptions::default()).with_sessions(sessions);
    scheduler.create_session("anna", "", OPENING, 0).unwrap();
    let (rounds, facts) = (20, 5);
    let (mut told, mut said) = (0, 0);
    for round in 0..rounds {
        for i in 0..facts {
            let fact = format!("Number {} is {}.", round * facts + i, i * 7);
            let fact = texts(&scheduler).fact(&fact).unwrap();
            let read = SessionRead::Fact {
                fact,
                supersedes: None,
                found_in: None,
            };
            scheduler.submit(Request::read("anna", read, 8)).unwrap();
        }
        for i in 0..2 {
            let text = format!("What of {round} and {i}?");
            scheduler.submit(turn_in("anna", text)).unwrap();
        }
        let request = Request {
            options: GenerateOptions {
                tokens_max: Some(12),
                ignore_end: true,
                ..GenerateOptions::default()
            },
            ..Request::completion(spec.ids(4))
        };
        scheduler.submit(request).unwrap();
        let mut is_over = false;
        while !is_over {
            step(&mut scheduler, &mut |_, event| match event {
                RequestEvent::SessionRead { .. } => told += 1,
                RequestEvent::TurnSaved(_) => said += 1,
                RequestEvent::Failed(why) => panic!("round {round}: {why}"),
                _ => {}
            });
            is_over = !scheduler.has_requests();
        }
    }
    assert_eq!((told, said), (rounds * facts, rounds * 2));
    let condensed = scheduler.sessions().unwrap().counters().condensed;
    assert!(condensed >= 10, "condensed {condensed} times");
    assert!(finish(&mut scheduler, None).is_empty());
    let stats = scheduler.with_session("anna", |runtime, sessions, id| sessions.stats(runtime, id));
    assert!(stats.unwrap().persistent <= 256);
}

/// While one session's answer is decoded, condensing of another has its share of each step, and no more.
#[test]
fn condensing_has_a_share_of_each_step() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let mut scheduler = roomy(&model, dir.path(), "scheduler");
    scheduler.create_session("anna", "", OPENING, 0).unwrap();
    for i in 0..3 {
        let fact = texts(&scheduler)
            .fact(&format!("Fact {i} is told."))
            .unwrap();
        let read = SessionRead::Fact {
            fact,
            supersedes: None,
            found_in: None,
        };
        scheduler.submit(Request::read("anna", read, 8)).unwrap();
    }
    let request = Request {
        options: GenerateOptions {
            tokens_max: Some(300),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..Request::completion(spec.ids(8))
    };
    scheduler.submit(request).unwrap();
    let (mut shared, mut alone) = (0, 0);
    while scheduler.active() + scheduler.waiting() > 0 {
        let decodes = scheduler.active() == 1 && scheduler.waiting() == 0;
        // What stays is judged on a thread of low priority, which may have to wait for a core.
        let work =
            |runtime: &mut Runtime, sessions: &mut Sessions, id| sessions.work(runtime, id, 0);
        while decodes && scheduler.with_session("anna", work).unwrap() == RebuildProgress::Judging {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut sampled = 0;
        let read = step(&mut scheduler, &mut |_, event| {
            sampled += u64::from(matches!(event, RequestEvent::Token { .. }));
        });
        if decodes && sampled == 1 && read < 8 {
            assert!(read <= 1 + 2, "{read} tokens in a step");
            shared += u64::from(read == 3);
            alone += u64::from(read == 1);
        }
    }
    let condensed = scheduler.sessions().unwrap().counters().condensed;
    assert!(
        condensed > 0 && shared > 10 && alone > 10,
        "{condensed} {shared} {alone}"
    );
}

/// Messages that are read in parts, with other turns and completions between their steps: no token changes. Cancelled while
/// a part is read, a message leaves nothing, and the others go on.
#[test]
fn long_messages_in_company() {
    long_messages_within(&[None, Some(5)], Relevance::default());
}

/// In the memory of two sessions for five, with as many turns recalled as that has room for.
#[test]
fn long_messages_in_a_tight_budget() {
    long_messages_within(&[Some(2)], "top-k=8".parse().unwrap());
}

/// `budgets`: in sessions.
fn long_messages_within(budgets: &[Option<usize>], relevance: Relevance) {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let sessions = |runtime: &Runtime, name: &str| {
        let settings = SessionSettings {
            relevance: Some(relevance),
            ..settings(CAPACITY)
        };
        sessions_on(
            runtime,
            &dir.path().join(name),
            settings,
            &JournalFaults::never(),
        )
    };
    let long = |who: usize| -> String {
        let word = ["apples", "boats", "cats", "doors"][who];
        (0..30)
            .map(|i| format!("Line {i} is about {word} and {i} things. "))
            .collect()
    };
    let truth: Vec<Vec<TurnAnswer>> = {
        let mut runtime = runtime(&model, dir.path(), None);
        let mut sessions = sessions(&runtime, "alone");
        let all = NAMES.iter().enumerate().map(|(who, name)| {
            let id = sessions.create(&mut runtime, name, OPENING, 0).unwrap();
            let texts = [long(who), question(who, 1)];
            texts
                .iter()
                .map(|text| say(&mut sessions, &mut runtime, id, text))
                .collect()
        });
        all.collect()
    };
    assert!(truth.iter().all(|said| said[0].context.parts > 5));
    let ids = spec.ids(100);
    let (one, kept) = sizes(&model, dir.path());
    for (i, budget) in budgets.iter().enumerate() {
        let budget = budget.map(|times| times * one + kept);
        let runtime = runtime(&model, dir.path(), budget);
        let sessions = sessions(&runtime, &format!("long{i}"));
        let options = SchedulerOptions::default();
        let mut scheduler = Scheduler::new(runtime, options).with_sessions(sessions);
        for name in NAMES {
            scheduler.create_session(name, "", OPENING, 0).unwrap();
        }
        scheduler.create_session("gone", "", OPENING, 0).unwrap();
        let gone = scheduler.submit(turn_in("gone", long(0))).unwrap();
        let mut read = 0;
        while read < 3 {
            scheduler
                .step(Duration::ZERO, &mut |id, event| {
                    read +=
                        usize::from(id == gone && matches!(event, RequestEvent::PromptRead { .. }));
                    match read {
                        3 => ControlFlow::Break(()),
                        _ => ControlFlow::Continue(()),
                    }
                })
                .unwrap();
        }
        for round in 0..2 {
            let text = |who| [long(who), question(who, 1)][round].clone();
            let asked =
                [0, 1, 2, 3].map(|who| scheduler.submit(turn_in(NAMES[who], text(who))).unwrap());
            let options = GenerateOptions {
                tokens_max: Some(9),
                ..GenerateOptions::default()
            };
            let other = Request {
                options,
                ..Request::completion(ids.clone())
            };
            scheduler.submit(other).unwrap();
            let said = finish(&mut scheduler, budget);
            for (who, id) in asked.iter().enumerate() {
                let (said, truth) = (&said[id], &truth[who][round]);
                let name = format!("budget {i}, round {round}, {}", NAMES[who]);
                assert_eq!(said.tokens, truth.tokens, "{name}");
                assert_eq!(said.context, truth.context, "{name}");
            }
        }
        let turns = scheduler
            .with_session("gone", |_, sessions, id| Ok(sessions.turns(id)?.len()))
            .unwrap();
        assert_eq!(turns, 0);
    }
}

/// An answer has as many tokens as were asked for, and a request for more than the session has room for is refused at once.
#[test]
fn an_answer_is_as_long_as_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let runtime = runtime(&model, dir.path(), None);
    let options = SessionOptions {
        dir: Some(dir.path().join("long")),
        ..SessionOptions::default()
    };
    let sessions = Sessions::new(&runtime, options).unwrap();
    let max = sessions.limits().answer_max;
    let mut scheduler =
        Scheduler::new(runtime, SchedulerOptions::default()).with_sessions(sessions);
    scheduler.create_session("anna", "", OPENING, 0).unwrap();
    let ask = |tokens: usize| Request {
        options: GenerateOptions {
            tokens_max: Some(tokens),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..turn_in("anna", "go on".into())
    };
    let asked = scheduler.submit(ask(700)).unwrap();
    let said = finish(&mut scheduler, None).remove(&asked).unwrap();
    assert_eq!((said.tokens.len(), said.finish), (700, Finish::Length));
    assert!(max > 1000, "{max}");
    let refused = scheduler.submit(ask(max + 1)).unwrap_err();
    let words = format!(
        "an answer of {} tokens; accepted in this session: 1 to {max}",
        max + 1
    );
    assert_eq!(refused.to_string(), words);
}

/// A shortage of the device lowers the capacity of sessions: whole turns leave memory, slabs go back to the system, and the
/// next answer says so. When memory returns, so do capacity and turns. The recorded changes, replayed without a device, give
/// the same tokens.
#[test]
fn capacity_follows_the_device_and_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let options = |name: &str, replay: Vec<CapacityChange>| SessionOptions {
        dir: Some(dir.path().join(name)),
        settings: SessionSettings {
            capacity: Some(1400),
            persistent_max: Some(64),
            answer_max: Some(12),
            relevance: Some(Relevance::All),
            ..SessionSettings::default()
        },
        replay,
        ..SessionOptions::default()
    };
    let scheduler = |options: SessionOptions| {
        let runtime = runtime(&model, dir.path(), None);
        let sessions = Sessions::new(&runtime, options).unwrap();
        Scheduler::new(runtime, SchedulerOptions::default()).with_sessions(sessions)
    };
    let weights = model.weights().bytes_per_token() as u64;
    let room = |mib: u64| Reading {
        cgroup: Some(Cgroup {
            limit_bytes: Some(weights + (mib << 20)),
            anon_bytes: Some(0),
            ..Cgroup::default()
        }),
        ..Reading::default()
    };
    let say = |scheduler: &mut Scheduler, round: usize| -> TurnAnswer {
        let asked = scheduler.submit(turn(0, round)).unwrap();
        finish(scheduler, None).remove(&asked).unwrap()
    };
    let mut followed = scheduler(options("followed", Vec::new()));
    followed.create_session("anna", "", OPENING, 0).unwrap();
    let seconds = Duration::from_secs;
    followed.observe(None, &room(200), seconds(0));
    let mut said: Vec<TurnAnswer> = (0..24).map(|round| say(&mut followed, round)).collect();
    let before = followed.runtime().ledger();
    let lines = followed.observe(None, &room(0), seconds(1));
    assert!(
        lines[0].starts_with("sessions keep at most 512 tokens"),
        "{lines:?}"
    );
    let after = followed.runtime().ledger();
    assert!(after.kv_live * 2 < before.kv_live, "{after:?} {before:?}");
    // It was suspended too; its next turn opens as much of it as there is room for.
    said.extend((24..27).map(|round| say(&mut followed, round)));
    let held = followed.runtime().ledger().kv_live;
    assert!(held * 2 < before.kv_live, "{held} of {before:?}");
    followed.observe(None, &room(200), seconds(2));
    said.extend((27..30).map(|round| say(&mut followed, round)));
    let changes: Vec<CapacityChange> = (said.iter())
        .flat_map(|answer| answer.context.changes.clone())
        .collect();
    let turns: Vec<(u64, u64)> = changes.iter().map(|c| (c.turn, c.capacity)).collect();
    assert_eq!(turns, [(24, 512), (27, 1400)], "{changes:?}");
    assert!(
        changes[0]
            .reason
            .starts_with("shrunk: the memory group leaves")
    );
    assert!(
        changes[1]
            .reason
            .starts_with("grown: the memory group leaves")
    );
    assert!(said[24].context.spilled > 500 && said[27].context.recalled.len() > 5);
    assert!(said[27].context.spilled < 100, "{:?}", said[27].context);
    assert!(said.iter().all(|answer| answer.context.evicted == 0));

    let mut replayed = scheduler(options("replayed", changes));
    replayed.create_session("anna", "", OPENING, 0).unwrap();
    for (round, said) in said.iter().enumerate() {
        let again = say(&mut replayed, round);
        assert_eq!(again.tokens, said.tokens, "round {round}");
        assert_eq!(again.context.changes, said.context.changes);
    }
    // Without them the answers differ: the changes are what matters.
    let mut free = scheduler(options("free", Vec::new()));
    free.create_session("anna", "", OPENING, 0).unwrap();
    let free: Vec<Vec<u32>> = (0..30).map(|round| say(&mut free, round).tokens).collect();
    assert!(
        free.iter()
            .zip(&said)
            .any(|(free, said)| *free != said.tokens)
    );
}

/// A shortage that comes while a session answers: it follows when that turn has ended, without another question. The answer
/// itself has the tokens it has without a shortage, and the change, recorded for the next turn, is replayed.
#[test]
fn an_answering_session_follows_the_device_when_its_turn_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let scheduler = |name: &str, replay: Vec<CapacityChange>| {
        let runtime = runtime(&model, dir.path(), None);
        let options = SessionOptions {
            dir: Some(dir.path().join(name)),
            settings: SessionSettings {
                capacity: Some(1400),
                persistent_max: Some(64),
                answer_max: Some(12),
                relevance: Some(Relevance::All),
                ..SessionSettings::default()
            },
            replay,
            ..SessionOptions::default()
        };
        let sessions = Sessions::new(&runtime, options).unwrap();
        let mut scheduler =
            Scheduler::new(runtime, SchedulerOptions::default()).with_sessions(sessions);
        scheduler.create_session("anna", "", OPENING, 0).unwrap();
        scheduler
    };
    let weights = model.weights().bytes_per_token() as u64;
    let short = Reading {
        cgroup: Some(Cgroup {
            limit_bytes: Some(weights),
            anon_bytes: Some(0),
            ..Cgroup::default()
        }),
        ..Reading::default()
    };
    let say = |scheduler: &mut Scheduler, round: usize| -> TurnAnswer {
        let asked = scheduler.submit(turn(0, round)).unwrap();
        finish(scheduler, None).remove(&asked).unwrap()
    };
    let mut followed = scheduler("followed", Vec::new());
    let mut said: Vec<TurnAnswer> = (0..20).map(|round| say(&mut followed, round)).collect();
    let before = followed.runtime().ledger().kv_live;
    let asked = followed.submit(turn(0, 20)).unwrap();
    let ignore: &mut dyn FnMut(RequestId, RequestEvent<'_>) -> ControlFlow<()> =
        &mut |_, _| ControlFlow::Continue(());
    followed.step(Duration::ZERO, ignore).unwrap();
    followed.observe(None, &short, Duration::from_secs(1));
    assert!(
        followed.runtime().ledger().kv_live >= before,
        "its rows stay while it answers"
    );
    said.push(finish(&mut followed, None).remove(&asked).unwrap());
    let held = followed.runtime().ledger().kv_live;
    assert!(held * 3 < before * 2, "{held} of {before} after the turn");
    said.push(say(&mut followed, 21));
    let changes = said[21].context.changes.clone();
    let turns: Vec<(u64, u64)> = changes.iter().map(|c| (c.turn, c.capacity)).collect();
    assert_eq!(turns, [(21, 512)]);
    assert!(said[20].context.changes.is_empty());

    let mut replayed = scheduler("replayed", changes);
    let mut free = scheduler("free", Vec::new());
    for (round, said) in said.iter().enumerate() {
        assert_eq!(
            say(&mut replayed, round).tokens,
            said.tokens,
            "round {round}"
        );
        if round <= 20 {
            assert_eq!(say(&mut free, round).tokens, said.tokens, "round {round}");
        }
    }
}
