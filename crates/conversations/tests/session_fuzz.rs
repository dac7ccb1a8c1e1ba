//! Random conversations against a list of tokens that must be seen.
//!
//! Turns, facts, facts that take the place of others, states that change, turns taken back, pinned and let go, forks, sessions put away and
//! resumed, in any order. After every step the positions that attention sees, in every layer, are those of the list.
//! Without an encoder the list says exactly which; with one, which turns are relevant is the sessions' to say, and the list
//! holds them to it: whole turns, the last two always, nothing that was revoked or taken back.
//!
//! 2,000 conversations take 8 s on two cores; `HAVERSACK_FUZZ_CONVERSATIONS` sets another number (20,000 held).

use crate::common;

use common::session::seen;
use common::{load, small};
use haversack_conversations::session::relevance::Relevance;
use haversack_conversations::session::turns::TurnPlace;
use haversack_conversations::session::{
    Embed, SessionError, SessionId, SessionOptions, SessionSettings, Sessions,
};
use haversack_engine::encoder::{DIMENSIONS, Embedding, EncoderError};
use haversack_engine::{
    Codec, KvForm, KvOptions, Model, Repack, Retention, Runtime, RuntimeOptions,
};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// The first letter is the direction.
struct Letters;

impl Embed for Letters {
    fn embed(&self, text: &str) -> Result<Embedding, EncoderError> {
        let mut direction = [0.01; DIMENSIONS];
        let first = text.bytes().next().unwrap_or(0);
        direction[usize::from(first)] = 1.0;
        Ok(Embedding::of(direction).unwrap())
    }
}

const CAPACITY: u64 = 220;

#[derive(Clone, Debug)]
struct Said {
    number: u64,
    span: Range<u64>,
    live: bool,
    pinned: bool,
    state: bool,
}

/// What must be seen, the dumb way.
#[derive(Clone, Debug, Default)]
struct Naive {
    facts: Vec<(u64, Range<u64>)>,
    turns: Vec<Said>,
}

impl Naive {
    /// Makes room for `coming` tokens: the newest turns that fit stay; there is no encoder. Of those that are in the file,
    /// the next before those in memory return, if they fit.
    fn make_room(&mut self, coming: u64, saved: bool) {
        let pinned: u64 = self
            .turns
            .iter()
            .filter(|t| t.pinned)
            .map(|t| t.span.end - t.span.start)
            .sum();
        let mut left = CAPACITY - pinned - coming;
        for turn in self.turns.iter_mut().rev().filter(|t| t.live && !t.pinned) {
            let tokens = turn.span.end - turn.span.start;
            match tokens <= left {
                true => left -= tokens,
                false => turn.live = false,
            }
        }
        for turn in self.turns.iter_mut().rev() {
            let tokens = turn.span.end - turn.span.start;
            if !turn.live && saved && tokens <= left {
                turn.live = true;
                left -= tokens;
            }
            if !turn.live {
                break;
            }
        }
    }

    fn seen(&self) -> BTreeSet<u64> {
        let facts = self.facts.iter().flat_map(|f| f.1.clone());
        let turns = self
            .turns
            .iter()
            .filter(|t| t.live)
            .flat_map(|t| t.span.clone());
        facts.chain(turns).collect()
    }
}

struct World {
    runtime: Runtime,
    sessions: Sessions,
    judged: bool,
    saved: bool,
}

impl World {
    fn new(model: &Arc<Model>, dir: Option<&std::path::Path>, judged: bool) -> World {
        let runtime = Runtime::new(
            model.clone(),
            &RuntimeOptions {
                threads: 1,
                kv: KvOptions {
                    recent: 32,
                    centre: false,
                    ..KvOptions::new(KvForm::both(Codec::Int4.form()))
                },
                retention: Retention::managed(),
                ..RuntimeOptions::default()
            },
        )
        .unwrap();
        let options = SessionOptions {
            settings: SessionSettings {
                capacity: Some(CAPACITY as usize),
                persistent_max: Some(150),
                answer_max: Some(8),
                // Which turns have words of the question is not for the dumb way to say.
                relevance: (!judged).then_some(Relevance::All),
                ..SessionSettings::default()
            },
            dir: dir.map(|d| d.to_owned()),
            ..SessionOptions::default()
        };
        let sessions = Sessions::new(&runtime, options).unwrap();
        World {
            runtime,
            sessions: match judged {
                true => sessions.with_encoder(Arc::new(Letters)),
                false => sessions,
            },
            judged,
            saved: dir.is_some(),
        }
    }

    fn position(&self, id: SessionId) -> u64 {
        self.sessions.stats(&self.runtime, id).unwrap().position
    }

    fn check(&self, id: SessionId, naive: &mut Naive, story: &str) {
        let seen = seen(&self.runtime, &self.sessions, id);
        let turns = self.sessions.turns(id).unwrap();
        if self.judged {
            // Which turns are relevant is theirs to say; that they are whole, and the rest, is not.
            for said in &mut naive.turns {
                let turn = turns.iter().find(|t| t.number == said.number);
                said.live = turn.is_some_and(|t| t.is_visible && t.place == TurnPlace::Live);
            }
            let asked = naive.turns.iter().filter(|t| !t.state);
            let last = asked.rev().take(2);
            assert!(last.clone().all(|t| t.live), "{story}: the last two");
            assert!(
                naive.turns.iter().all(|t| t.live || !t.pinned),
                "{story}: pinned"
            );
        }
        assert_eq!(seen, naive.seen(), "{story}");
        for turn in &turns {
            let said = naive.turns.iter().find(|s| s.number == turn.number);
            assert_eq!(said.map(|s| &s.span), Some(&turn.span), "{story}");
        }
        assert!(
            turns.len() == naive.turns.len() || !self.saved,
            "{story}: turns are somewhere"
        );
    }
}

const WORDS: [&str; 6] = ["apple", "bread", "cat", "door", "egg", "fox"];

fn text(dice: &mut Dice, most: u64) -> String {
    let count = 1 + dice.roll(most);
    let words: Vec<&str> = (0..count).map(|_| WORDS[dice.roll(6) as usize]).collect();
    words.join(" ")
}

fn converse(world: &mut World, seed: u64) {
    let mut dice = Dice(seed);
    let mut story = format!("seed {seed}");
    let opening = text(&mut dice, 12);
    let (runtime, sessions) = (&mut world.runtime, &mut world.sessions);
    let mut id = sessions.create(runtime, "one", &opening, 0).unwrap();
    let mut naive = Naive::default();
    naive.facts.push((0, 0..world.position(id)));
    // Names of forks on the disk.
    let mut forks = 0;
    for _ in 0..3 + dice.roll(10) {
        let before = world.position(id);
        let (runtime, sessions) = (&mut world.runtime, &mut world.sessions);
        match dice.roll(14) {
            0..=5 => {
                let (question, answer) = (text(&mut dice, 8), text(&mut dice, 2));
                story.push_str(&format!("; say {question:?} {answer:?}"));
                // What the session reserves: the question, the answer, the ending.
                match sessions.tell(runtime, id, &question, &answer, 0) {
                    Ok(number) => {
                        let after = world.position(id);
                        let view = world.sessions.turn(id, number).unwrap();
                        naive.make_room(view.tokens.len() as u64 + 1, world.saved);
                        if !world.saved {
                            naive.turns.retain(|t| t.live || world.judged);
                        }
                        naive.turns.push(Said {
                            number,
                            span: before..after,
                            live: true,
                            pinned: false,
                            state: false,
                        });
                        if world.judged && !world.saved {
                            let turns = world.sessions.turns(id).unwrap();
                            naive
                                .turns
                                .retain(|s| turns.iter().any(|t| t.number == s.number));
                        }
                    }
                    Err(SessionError::TooLong(_)) => {
                        assert!(naive.turns.iter().any(|t| t.pinned), "{story}")
                    }
                    Err(SessionError::Limit(_)) => {}
                    Err(error) => panic!("{story}: {error}"),
                }
            }
            6 | 7 => {
                let fact = text(&mut dice, 5);
                let old = naive.facts[dice.roll(naive.facts.len() as u64) as usize].0;
                let told = match old {
                    0 => sessions.add_fact(runtime, id, &fact, 0),
                    old => sessions.supersede(runtime, id, old, &fact, 0),
                };
                story.push_str(&format!("; fact {fact:?} for {old}"));
                match told {
                    Ok(number) => {
                        naive.facts.retain(|f| f.0 != old || old == 0);
                        naive.facts.push((number, before..world.position(id)));
                    }
                    Err(SessionError::PersistentFull { .. }) => {}
                    Err(error) => panic!("{story}: {error}"),
                }
            }
            8 => {
                story.push_str("; retract");
                let gone = sessions.retract(runtime, id).unwrap();
                let last = naive.turns.iter().rposition(|t| !t.state);
                let last = last.map(|i| naive.turns.remove(i).number);
                assert_eq!(gone, last, "{story}");
                if world.judged {
                    // The one before may be hidden: it was not among the last two.
                    let mut asked = naive.turns.iter().rev().filter(|t| !t.state);
                    if let Some(number) = asked.nth(1).map(|t| t.number) {
                        let turns = world.sessions.turns(id).unwrap();
                        let visible = turns.iter().any(|t| t.number == number && t.is_visible);
                        if !visible {
                            return world
                                .sessions
                                .suspend(&mut world.runtime, id)
                                .map(|()| world.sessions.delete("one"))
                                .map(drop)
                                .unwrap_or_default();
                        }
                    }
                }
            }
            9 if !naive.turns.is_empty() => {
                let at = dice.roll(naive.turns.len() as u64) as usize;
                let said = &mut naive.turns[at];
                let small = naive.facts.len() < 4 && said.span.end - said.span.start < 60;
                let pin = said.live && !said.pinned && small && dice.roll(2) == 0;
                story.push_str(&format!("; pin {} {pin}", said.number));
                match sessions.pin(runtime, id, said.number, pin) {
                    Ok(()) => said.pinned = pin,
                    Err(SessionError::TooMuchPinned { max: 55, .. }) => {}
                    Err(error) => panic!("{story}: {error}"),
                }
            }
            10 => {
                forks += 1;
                let name = format!("fork{forks}");
                story.push_str("; fork");
                let fork = sessions.fork(runtime, id, &name).unwrap();
                world.check(fork, &mut naive.clone(), &story);
                let (runtime, sessions) = (&mut world.runtime, &mut world.sessions);
                sessions.suspend(runtime, fork).unwrap();
                if world.saved {
                    sessions.delete(&name).unwrap();
                }
            }
            11 | 12 => {
                let words = text(&mut dice, 3);
                let mut states = naive.turns.iter().filter(|t| t.state).map(|t| t.number);
                let old = states.next().filter(|_| dice.roll(3) > 0);
                story.push_str(&format!("; state {words:?} for {old:?}"));
                match sessions.tell_state(runtime, id, &words, 0, old) {
                    Ok(number) => {
                        naive.turns.retain(|t| Some(t.number) != old);
                        naive.turns.push(Said {
                            number,
                            span: before..world.position(id),
                            live: true,
                            pinned: true,
                            state: true,
                        });
                    }
                    Err(SessionError::TooMuchState { max: 55, .. }) => {}
                    Err(error) => panic!("{story}: {error}"),
                }
            }
            13 if world.saved => {
                story.push_str("; resume");
                sessions.suspend(runtime, id).unwrap();
                id = sessions.resume(runtime, "one").unwrap();
            }
            _ => {}
        }
        world.check(id, &mut naive, &story);
    }
    let (runtime, sessions) = (&mut world.runtime, &mut world.sessions);
    sessions.suspend(runtime, id).unwrap();
    if world.saved {
        sessions.delete("one").unwrap();
    }
    assert_eq!(runtime.ledger().kv_live, 0, "{story}");
}

#[test]
fn what_is_seen_is_what_must_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    small("llama", 1024).write_file(&path).unwrap();
    let model = load(&path, Repack::Into(folder.path().join("packed")));
    let count = std::env::var("HAVERSACK_FUZZ_CONVERSATIONS");
    let count: u64 = count.ok().and_then(|n| n.parse().ok()).unwrap_or(2_000);
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (model, dir) = (&model, folder.path().join(format!("sessions{half}")));
            scope.spawn(move || {
                for judged in [false, true] {
                    // Few have a file: the disk is slow, and its own tests are elsewhere.
                    let mut plain = World::new(model, None, judged);
                    let mut saved = World::new(model, Some(&dir), judged);
                    for seed in (0..count / 2).filter(|seed| seed % 2 == half) {
                        let world = if seed % 32 < 2 {
                            &mut saved
                        } else {
                            &mut plain
                        };
                        converse(world, seed * 2 + u64::from(judged));
                    }
                }
            });
        }
    });
}
