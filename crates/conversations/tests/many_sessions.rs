//! Conversations at one desk: each says what it says alone, whoever else is there; turns share steps; a session that does
//! nothing leaves memory when somebody needs the room, and nothing of it is lost.

mod common;

use common::session::{Words, say};
use common::{Dice, load};
use haversack_conversations::scheduler::{
    Pace, Request, RequestEvent, RequestId, RequestKind, Scheduler, SchedulerOptions, SubmitError,
};
use haversack_conversations::session::turns::Place;
use haversack_conversations::session::{Answer, SessionError, SessionId, SessionOptions, Sessions};
use haversack_engine::device::Thermal;
use haversack_engine::runtime::{Finish, GenerateOptions};
use haversack_engine::sample::SampleOptions;
use haversack_engine::{Model, Repack, Retention, Runtime, RuntimeOptions};
use haversack_memory::{Cgroup, Reading};
use haversack_testing::models::Spec;
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
    let options = SessionOptions {
        dir: Some(dir.to_owned()),
        capacity: CAPACITY,
        persistent_max: 64,
        answer_max: 12,
        ..SessionOptions::default()
    };
    let sessions = Sessions::new(runtime, options).unwrap();
    sessions.with_encoder(Arc::new(Words))
}

/// With sessions in a folder of this name.
fn desk(model: &Arc<Model>, dir: &Path, name: &str, budget: Option<usize>) -> Scheduler {
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
            embedding: None,
            now_ms: 8,
        })
    }
}

/// What each says in each round, one after the other, with all the memory there is.
fn alone(model: &Arc<Model>, dir: &Path, rounds: usize) -> Vec<Vec<Answer>> {
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

/// Bytes that a conversation may come to hold, and what is kept beside all of them.
fn sizes(model: &Arc<Model>, dir: &Path) -> (usize, usize) {
    let runtime = runtime(model, dir, None);
    let scratch = runtime.scratch_bytes(2, 64, 800);
    let kept = scratch + runtime.ledger().side + (16 << 10);
    (runtime.sequence_bytes(96 + CAPACITY + 448), kept)
}

/// Steps until nothing is left.
fn finish(desk: &mut Scheduler, budget: Option<usize>) -> HashMap<RequestId, Answer> {
    let mut said = HashMap::new();
    let mut steps = 0;
    while !desk.is_idle() {
        desk.step(Duration::ZERO, &mut |ticket, news| {
            match news {
                RequestEvent::TurnSaved(answer) => assert!(said.insert(ticket, *answer).is_none()),
                RequestEvent::Failed(why) => panic!("{ticket:?}: {why}"),
                _ => {}
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        let ledger = desk.runtime().ledger();
        assert!(budget.is_none_or(|budget| ledger.peak <= budget));
        assert_eq!(ledger.budget, budget);
        steps += 1;
        assert!(steps < 100_000, "nothing comes to an end");
    }
    said
}

/// Four conversations at a time, with other requests between them, in budgets that hold all of them, two, or hardly one:
/// nobody says another token for it.
#[test]
fn company_changes_no_turn() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let rounds = 8;
    let truth = alone(&model, dir.path(), rounds);
    let ids = spec.ids(200);
    let (one, kept) = sizes(&model, dir.path());
    for (i, budget) in [None, Some(9), Some(3), Some(1)].into_iter().enumerate() {
        let budget = budget.map(|times| times * one + kept);
        let mut desk = desk(&model, dir.path(), &format!("desk{i}"), budget);
        for name in NAMES {
            desk.create_session(name, "", OPENING, 0).unwrap();
        }
        let mut dice = Dice(7 + i as u64);
        for round in 0..rounds {
            desk.set_pace(Pace {
                batch: 1 + dice.roll(8),
                chunk: 1 + dice.roll(100),
            });
            let tickets = [0, 1, 2, 3].map(|who| desk.submit(turn(who, round)).unwrap());
            for _ in 0..dice.roll(3) {
                let prompt = ids[..1 + dice.roll(150)].to_vec();
                let options = GenerateOptions {
                    tokens_max: Some(dice.roll(20)),
                    ..GenerateOptions::default()
                };
                desk.submit(Request {
                    options,
                    ..Request::completion(prompt)
                })
                .unwrap();
            }
            let said = finish(&mut desk, budget);
            for (who, ticket) in tickets.iter().enumerate() {
                let (said, truth) = (&said[ticket], &truth[who][round]);
                let name = format!("budget {i}, round {round}, {}", NAMES[who]);
                assert_eq!(said.tokens, truth.tokens, "{name}");
                assert_eq!(said.turn, truth.turn, "{name}");
                assert_eq!(said.context, truth.context, "{name}");
            }
        }
        let open = |desk: &Scheduler| {
            let sessions = desk.sessions().unwrap();
            NAMES.map(|name| sessions.opened(name).is_some())
        };
        match budget {
            None => assert_eq!(open(&desk), [true; 4]),
            // They took turns in memory.
            Some(_) if i == 3 => assert!(open(&desk).contains(&false)),
            Some(_) => {}
        }
        desk.suspend_all();
        assert_eq!(open(&desk), [false; 4]);
        assert_eq!(desk.runtime().ledger().kv_live, 0);
    }
}

/// A session that others leave no room for now waits until it can be opened as it was put away: what stayed in its file
/// would be missing in the answer.
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
        let mut desk = desk(&model, dir.path(), &format!("desk{part}"), budget);
        desk.create_session(NAMES[0], "", OPENING, 0).unwrap();
        for round in 0..rounds - 1 {
            desk.submit(turn(0, round)).unwrap();
            finish(&mut desk, budget);
        }
        desk.suspend_all();
        let options = GenerateOptions {
            tokens_max: Some(20),
            ..GenerateOptions::default()
        };
        let other = Request {
            options,
            ..Request::completion(spec.ids(560))
        };
        let other = desk.submit(other).unwrap();
        desk.step(Duration::ZERO, &mut |_, _| ControlFlow::Continue(()))
            .unwrap();
        // Who only looks at it opens it for all that come later.
        match desk.with_session(NAMES[0], |_, _, _| Ok(())) {
            Ok(()) => looked[0] += 1,
            Err(error) if error.is_cannot_fit() => looked[1] += 1,
            Err(error) => panic!("{error}"),
        }
        let last = desk.submit(turn(0, rounds - 1)).unwrap();
        let mut order = Vec::new();
        let mut context = None;
        while !desk.is_idle() {
            desk.step(Duration::ZERO, &mut |ticket, news| {
                match news {
                    RequestEvent::Token { .. } => order.push(ticket),
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
    // With room for both they talk at once.
    assert!(waited.iter().all(|&times| times > 0), "{waited:?}");
    assert!(looked.iter().all(|&times| times > 0), "{looked:?}");
}

/// Turns of one session are said one after the other, in the order they came, and hold nobody else up.
#[test]
fn one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let truth = alone(&model, dir.path(), 3);
    let mut desk = desk(&model, dir.path(), "desk", None);
    for name in &NAMES[..2] {
        desk.create_session(name, "", OPENING, 0).unwrap();
    }
    // Owners take turns, but not in one conversation.
    let mut asked = |r: usize| {
        desk.submit(Request {
            owner: r as u64 / 2,
            ..turn(0, r)
        })
    };
    let anna: Vec<RequestId> = (0..3).map(|r| asked(r).unwrap()).collect();
    let ben = desk.submit(turn(1, 0)).unwrap();
    let mut order = Vec::new();
    while !desk.is_idle() {
        desk.step(Duration::ZERO, &mut |ticket, news| {
            if let RequestEvent::TurnSaved(answer) = news {
                order.push((ticket, answer.tokens));
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    let of = |ticket| order.iter().position(|(t, _)| *t == ticket).unwrap();
    assert!(of(anna[0]) < of(anna[1]) && of(anna[1]) < of(anna[2]));
    assert!(of(ben) < of(anna[1]));
    for (round, &ticket) in anna.iter().enumerate() {
        assert_eq!(order[of(ticket)].1, truth[0][round].tokens);
    }
}

/// What nobody wants more of ends where it is: before its first token the question was never asked, behind it the answer
/// is as long as it got. What waits is never begun.
#[test]
fn cancelled_turns() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let truth = alone(&model, dir.path(), 2);
    let mut desk = desk(&model, dir.path(), "desk", None);
    let ids: Vec<SessionId> = NAMES[..2]
        .iter()
        .map(|name| desk.create_session(name, "", OPENING, 0).unwrap())
        .collect();
    let early = desk.submit(turn(0, 0)).unwrap();
    let late = desk.submit(turn(1, 0)).unwrap();
    let waits = desk.submit(turn(1, 1)).unwrap();
    let mut tokens = 0;
    let mut ends = HashMap::new();
    while !desk.is_idle() {
        if tokens == 0 {
            desk.cancel(early).unwrap();
            desk.cancel(waits).unwrap();
        }
        desk.step(Duration::ZERO, &mut |ticket, news| {
            match news {
                RequestEvent::Token { .. } if ticket == late => tokens += 1,
                RequestEvent::TurnSaved(answer) => drop(ends.insert(ticket, answer)),
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
    let sessions = desk.sessions().unwrap();
    let turns = |id| sessions.stats(desk.runtime(), id).unwrap().turns;
    assert_eq!(turns(ids[0]), 0);
    assert_eq!(turns(ids[1]), 1);
    // And the one that was never asked can be asked again.
    let again = desk.submit(turn(0, 0)).unwrap();
    let said = finish(&mut desk, None);
    assert_eq!(said[&again].tokens, truth[0][0].tokens);
}

#[test]
fn what_could_never_be_said_is_refused_at_once() {
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
    let mut desk = desk(&model, dir.path(), "desk", None);
    for name in ["anna", "../anna", "", "a/b"] {
        let refused = desk.submit(turn_in(name, question(0, 0)));
        let error = SessionError::NoSuchSession { name: name.into() };
        assert_eq!(refused.unwrap_err().to_string(), error.to_string());
        assert!(desk.delete_session(name).is_err());
    }
    desk.create_session("anna", "", OPENING, 0).unwrap();
    let stop = vec![String::new()];
    let options = GenerateOptions {
        stop,
        ..GenerateOptions::default()
    };
    let refused = desk.submit(Request {
        options,
        ..turn(0, 0)
    });
    assert!(matches!(refused, Err(SubmitError::Stop(_))));
    assert!(desk.is_idle());
    desk.delete_session("anna").unwrap();
    assert_eq!(desk.sessions().unwrap().list().unwrap(), []);
    assert_eq!(desk.runtime().ledger().kv_live, 0);
}

/// A fact that is told while others are answered cannot take what they were promised.
#[test]
fn a_promise_is_kept_beside_facts() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let ids = spec.ids(400);
    let (one, scratch) = {
        let runtime = runtime(&model, dir.path(), None);
        let scratch = runtime.scratch_bytes(2, 64, 400);
        (runtime.sequence_bytes(400), scratch)
    };
    let budget = one + scratch + (700 << 10);
    let mut desk = desk(&model, dir.path(), "desk", Some(budget));
    desk.create_session("anna", "", OPENING, 0).unwrap();
    let request = Request {
        options: GenerateOptions {
            tokens_max: Some(200),
            ignore_end: true,
            ..GenerateOptions::default()
        },
        ..Request::completion(ids[..200].to_vec())
    };
    desk.submit(request).unwrap();
    let (mut told, mut refused, mut length) = (0, 0, 0);
    while !desk.is_idle() {
        desk.step(Duration::ZERO, &mut |_, news| {
            match news {
                RequestEvent::Completed(completed, _) => length = completed.tokens.len(),
                RequestEvent::Failed(why) => panic!("{why}"),
                _ => {}
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        let fact = format!("Fact {told} holds and is told.");
        let fact = desk.with_session("anna", |runtime, sessions, id| {
            sessions.add_fact(runtime, id, &fact, 9)
        });
        match fact {
            Ok(_) => told += 1,
            Err(_) => refused += 1,
        }
        assert!(desk.runtime().ledger().peak <= budget);
    }
    assert_eq!(length, 200);
    assert!(told > 0 && refused > 0, "{told} told, {refused} refused");
}

/// The device becomes hot and short of memory and recovers, while everybody talks: the ladder is followed in order,
/// nobody is lost, and nobody says another token.
#[test]
fn heat_and_shortage_change_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, model) = tiny(dir.path());
    let rounds = 6;
    let truth = alone(&model, dir.path(), rounds);
    let ids = spec.ids(200);
    let mut desk = desk(&model, dir.path(), "desk", None);
    for name in NAMES {
        desk.create_session(name, "", OPENING, 0).unwrap();
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
    let (mut second, mut rungs, mut words) = (0, vec![0], Vec::new());
    let mut first = None;
    for round in 0..rounds {
        let tickets = [0, 1, 2, 3].map(|who| desk.submit(turn(who, round)).unwrap());
        desk.submit(request.clone()).unwrap();
        let (mut said, mut answer) = (HashMap::new(), Vec::new());
        let (heat, memory) = match round {
            0 | 1 => (Thermal::Critical, 200),
            2 | 3 => (Thermal::Critical, 0),
            _ => (Thermal::Nominal, 200),
        };
        while !desk.is_idle() {
            desk.step(Duration::ZERO, &mut |ticket, news| {
                match news {
                    RequestEvent::TurnSaved(answer) => drop(said.insert(ticket, *answer)),
                    RequestEvent::Completed(completed, _) => answer = completed.tokens,
                    RequestEvent::Failed(why) => panic!("{why}"),
                    _ => {}
                }
                ControlFlow::Continue(())
            })
            .unwrap();
            second += 1;
            let now = Duration::from_secs(second);
            words.extend(desk.observe(Some(heat), &room(memory), now));
            if *rungs.last().unwrap() != desk.throttle_level() {
                rungs.push(desk.throttle_level());
            }
        }
        for (who, ticket) in tickets.iter().enumerate() {
            assert_eq!(said[ticket].tokens, truth[who][round].tokens);
        }
        assert_eq!(first.get_or_insert(answer.clone()), &answer);
        if round == 3 {
            // Only who talks is in memory.
            let sessions = desk.sessions().unwrap();
            let open = NAMES.iter().filter(|name| sessions.opened(name).is_some());
            assert!(open.count() < 4);
        }
    }
    assert_eq!(rungs, [0, 1, 2, 3, 4, 3, 2, 1, 0], "{words:?}");
    let said = |what: &str| words.iter().any(|word| word.ends_with(what));
    assert!(said("a session leaves memory"), "{words:?}");
    assert!(said("everybody may enter"), "{words:?}");
}

/// A fork where nobody has room: the session that it is made of does not leave memory for it.
#[test]
fn a_fork_keeps_what_it_is_made_of() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let truth = alone(&model, dir.path(), 2);
    let mut desk = desk(&model, dir.path(), "desk", None);
    let short = Reading {
        mem_available_bytes: Some(0),
        ..Reading::default()
    };
    desk.observe(None, &short, Duration::ZERO);
    desk.create_session("anna", "", OPENING, 0).unwrap();
    desk.submit(turn(0, 0)).unwrap();
    finish(&mut desk, None);
    desk.fork_session("anna", "ben").unwrap();
    let ticket = desk.submit(turn_in("ben", question(0, 1))).unwrap();
    let said = finish(&mut desk, None);
    assert_eq!(said[&ticket].tokens, truth[0][1].tokens);
}

/// A turn that somebody asked for is seen by the next answer, though the session left memory in between, or a question
/// was taken back before it was answered.
#[test]
fn what_was_asked_for_is_not_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = tiny(dir.path());
    let about_nothing = || turn_in(NAMES[0], "zebras only".to_owned());
    let seen = |asked_for: bool, between: &dyn Fn(&mut Scheduler)| {
        let runtime = runtime(&model, dir.path(), None);
        let folder = tempfile::tempdir_in(dir.path()).unwrap();
        let sessions = sessions(&runtime, folder.path());
        let mut desk = Scheduler::new(runtime, SchedulerOptions::default()).with_sessions(sessions);
        desk.create_session("anna", "", OPENING, 0).unwrap();
        for round in 0..9 {
            let short = Request {
                options: GenerateOptions {
                    tokens_max: Some(2),
                    ..GenerateOptions::default()
                },
                ..turn_in(NAMES[0], format!("cats {round}"))
            };
            desk.submit(short).unwrap();
            finish(&mut desk, None);
        }
        desk.with_session("anna", |_, sessions, id| {
            let turns = sessions.turns(id)?;
            let spilled = turns.iter().find(|t| t.place == Place::Spilled);
            let oldest = spilled.unwrap().number;
            match asked_for {
                true => sessions.recall(id, oldest),
                false => Ok(()),
            }
        })
        .unwrap();
        between(&mut desk);
        let ticket = desk.submit(about_nothing()).unwrap();
        let answer = finish(&mut desk, None).remove(&ticket).unwrap();
        answer.tokens
    };
    let truth = seen(true, &|_| ());
    assert_ne!(truth, seen(false, &|_| ()));
    assert_eq!(seen(true, &Scheduler::suspend_all), truth);
    let undone = seen(true, &|desk| {
        let ticket = desk.submit(about_nothing()).unwrap();
        desk.step(Duration::ZERO, &mut |_, _| ControlFlow::Break(()))
            .unwrap();
        desk.cancel(ticket).unwrap();
        finish(desk, None);
    });
    assert_eq!(undone, truth);
}
