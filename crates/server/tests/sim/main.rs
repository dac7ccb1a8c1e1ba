//! Simulation of the HTTP layer: the real server and a real engine over connections in memory. Clients stream, pipeline, read
//! slowly or never, send halves of requests and leave, one by one or in storms; servers are stopped and killed, and others go
//! on with their sessions. What clients do, and the clock of every timeout, follow from a seed; the engine has a thread
//! of its own, so that what meets in a step does not. No answer may depend on that.
//!
//! A failure is one line with its seed. `SIM_SEEDS=5000` for a long run, `SIM_SEED=…` for one, `SIM_FROM=…` to begin elsewhere.
#![cfg(target_os = "linux")]

mod life;
mod script;
mod wire;

use haversack::engine::runtime::{Runtime, RuntimeOptions};
use haversack::engine::{KvForm, KvOptions, LoadOptions, Model, Repack, Residence, Retention};
use haversack::session::{SessionOptions, SessionSettings, Sessions};
use haversack::{Conversation, Engine, EngineOptions};
use haversack_testing::models::Spec;
use life::{Counts, Event, Heard, SessionTurns};
use script::{Ask, Dice, End, Life, SESSIONS, Settings};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const SEEDS: u64 = 100;
const THREADS: usize = 2;
/// Failures after which a run ends.
const FAILURES_MAX: usize = 10;

fn env_number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The body of a completion.
fn completion(ask: &Ask) -> Value {
    json!({ "prompt": ask.text, "max_tokens": ask.max_tokens, "temperature": 0, "stream": ask.is_stream })
}

fn engine(model: &Arc<Model>, dir: Option<&Path>, settings: Option<&Settings>) -> Engine {
    let options = RuntimeOptions {
        threads: 1,
        retention: Retention::managed(),
        // One form for all rows: a turn that is taken back leaves no trace.
        kv: KvOptions::plain(KvForm::F16),
        budget_bytes: settings.map(|settings| settings.budget),
        ..RuntimeOptions::default()
    };
    let runtime = Runtime::new(model.clone(), &options).expect("a runtime");
    let options = SessionOptions {
        dir: dir.map(Path::to_owned),
        prefix_dir: dir.map(|dir| dir.join("prefixes")),
        settings: SessionSettings {
            capacity: Some(384),
            answer_max: Some(32),
            persistent_max: Some(64),
            ..SessionSettings::default()
        },
        ..SessionOptions::default()
    };
    let sessions = Sessions::new(&runtime, options).expect("sessions");
    let usual = EngineOptions::default();
    let options = EngineOptions {
        batch: settings.map_or(usual.batch, |settings| settings.batch),
        queue: settings.map_or(usual.queue, |settings| settings.queue),
        prefix_cache: settings.map_or(0, |settings| settings.prefix_cache),
        logs: false,
        ..usual
    };
    Engine::with_runtime(runtime, Some(sessions), options).expect("an engine")
}

/// What the same questions are answered alone, with all the memory and no HTTP.
struct Reference {
    engine: Engine,
    completions: HashMap<(String, usize), String>,
    turns: HashMap<Vec<Event>, String>,
}

impl Reference {
    fn completion(&mut self, ask: &Ask) -> &str {
        let key = (ask.text.clone(), ask.max_tokens);
        self.completions.entry(key).or_insert_with(|| {
            let prompt = self.engine.complete(&*ask.text).max_tokens(ask.max_tokens);
            prompt.temperature(0.0).run().expect("an answer")
        })
    }

    /// The answer to the last question of a conversation to which this happened.
    fn turn(&mut self, history: &[Event]) -> &str {
        let engine = &self.engine;
        let turns = &mut self.turns;
        turns.entry(history.to_vec()).or_insert_with(|| {
            let (conversation, answer) = replay(engine, history);
            conversation.delete().expect("it is there");
            answer
        })
    }
}

fn replay(engine: &Engine, history: &[Event]) -> (Conversation, String) {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let name = format!("r{}", NAMES.fetch_add(1, Ordering::Relaxed));
    let conversation = engine.conversation(name);
    let conversation = conversation.begin().expect("a conversation");
    let say = |conversation: &Conversation, text: &str, max: usize| {
        let said = conversation.say(text).max_tokens(max).temperature(0.0);
        said.run().expect("an answer")
    };
    let tokens_of_last = |conversation: &Conversation| {
        let view = conversation.view(1).expect("a view");
        view.turns.last().map_or(0, |view| view.turn.tokens())
    };
    let mut answer = String::new();
    for (i, event) in history.iter().enumerate() {
        match event {
            Event::Said { text, max_tokens } => answer = say(&conversation, text, *max_tokens),
            Event::Deleted { text, tokens } => {
                // With an answer of one token, to know how many it had.
                let (short, _) = replay(engine, &history[..i]);
                say(&short, text, 1);
                let answered = 1 + tokens - tokens_of_last(&short);
                short.delete().expect("it is there");
                say(&conversation, text, answered as usize);
                assert_eq!(tokens_of_last(&conversation), *tokens, "{event:?}");
                conversation.retract().expect("it is there");
            }
        }
    }
    (conversation, answer)
}

struct World {
    model: Arc<Model>,
    folder: PathBuf,
    reference: Reference,
    folders: usize,
}

impl World {
    fn new(folder: &Path) -> World {
        std::fs::create_dir_all(folder).expect("a folder");
        let path = folder.join("tiny.gguf");
        let spec = Spec {
            context: 1024,
            layers: 2,
            dim: 32,
            ffn: 32,
            heads: 2,
            kv_heads: 1,
            head_dim: 16,
            rope_dim: 16,
            ..Spec::named("llama").expect("a variant")
        };
        spec.write_file(&path).expect("a model file");
        let load = LoadOptions {
            context: None,
            repack: Repack::Off,
            residence: Residence::Auto,
            threads: 1,
            ..LoadOptions::default()
        };
        let model = Model::load(&path, &load, &mut |_, _| ()).expect("a sound model");
        World {
            reference: Reference {
                engine: engine(&model, None, None),
                completions: HashMap::new(),
                turns: HashMap::new(),
            },
            model,
            folder: folder.to_owned(),
            folders: 0,
        }
    }

    fn fresh_folder(&mut self) -> PathBuf {
        self.folders += 1;
        self.folder.join(format!("sessions-{}", self.folders))
    }

    fn run(&mut self, seed: u64, counts: &mut Counts) -> Result<(), String> {
        let dice = &mut Dice::new(seed);
        let settings = Settings::new(dice);
        let mut lives: Vec<Life> = (0..1 + dice.roll(3)).map(|_| Life::new(dice)).collect();
        lives.push(Life::last(dice));
        let sessions: [Arc<Mutex<SessionTurns>>; SESSIONS] = Default::default();
        let mut dir = self.fresh_folder();
        for (number, life) in lives.iter().enumerate() {
            let wrong = |what: String| format!("server {number}, {settings:?}: {what}");
            let engine = engine(&self.model, Some(&dir), Some(&settings));
            let killed = self.fresh_folder();
            let heard = life::run(&engine, &settings, life, &sessions, (&dir, &killed));
            let heard = heard.map_err(wrong)?;
            engine.close().map_err(|e| wrong(e.to_string()))?;
            if matches!(life.end, End::Kill(_)) {
                let _ = std::fs::remove_dir_all(&dir);
                dir = killed;
            }
            for one in &heard {
                self.check(one, life.end, counts).map_err(wrong)?;
            }
            for session in &sessions {
                self.check_turns(session, counts).map_err(wrong)?;
            }
        }
        let _ = std::fs::remove_dir_all(&dir);
        Ok(())
    }

    fn check(&mut self, heard: &Heard, end: End, counts: &mut Counts) -> Result<(), String> {
        let Heard {
            ask,
            said,
            status,
            is_eager,
        } = heard;
        let expected = self.reference.completion(ask);
        let has_ended = end != End::Calm;
        match status {
            200 if said.is_whole && said.error.is_none() => {
                counts.whole += 1;
                match said.text == expected {
                    true => Ok(()),
                    false => Err(format!("{ask:?}: {:?} instead of {expected:?}", said.text)),
                }
            }
            200 if !expected.starts_with(&said.text) => {
                let begun = &said.text;
                Err(format!("{ask:?}: begins {begun:?} instead of {expected:?}"))
            }
            // A server that is told to stop finishes what it has begun.
            200 if *is_eager && !matches!(end, End::Kill(_)) => {
                Err(format!("{ask:?}: cut: {said:?}"))
            }
            200 => {
                counts.cut += 1;
                Ok(())
            }
            429 | 503 => {
                counts.refused += 1;
                Ok(())
            }
            0 if has_ended || !is_eager => {
                counts.cut += 1;
                Ok(())
            }
            status => Err(format!("{ask:?}: {status}")),
        }
    }

    fn check_turns(
        &mut self,
        session: &Mutex<SessionTurns>,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        // (turn): the place of its question in the history.
        let is_said = |event: &Event| matches!(event, Event::Said { .. });
        let places = session.history.iter().enumerate();
        let places = places.filter(|(_, event)| is_said(event)).map(|(i, _)| i);
        let places: Vec<usize> = places.collect();
        for (i, turn) in session.turns.iter().enumerate() {
            let expected = self.reference.turn(&session.history[..=places[i]]);
            if turn.answer != expected {
                let (text, said, history) = (&turn.text, &turn.answer, &session.history);
                return Err(format!(
                    "turn {i}, {text:?}: {said:?} instead of {expected:?} after {history:?}"
                ));
            }
        }
        for (before, turn) in std::mem::take(&mut session.partial) {
            counts.partial += 1;
            let mut history = session.history[..before].to_vec();
            history.push(Event::Said {
                text: turn.text,
                max_tokens: turn.max_tokens,
            });
            let expected = self.reference.turn(&history);
            // It may end within a character.
            let said = turn.answer.trim_end_matches('\u{fffd}').trim();
            if !expected.trim().starts_with(said) {
                return Err(format!(
                    "turn after {before} events: was left at {:?} of {expected:?}",
                    turn.answer
                ));
            }
        }
        counts.resumed += std::mem::take(&mut session.resumed);
        Ok(())
    }
}

#[test]
fn answers_sessions_and_places_survive_their_clients() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap());
    let one = env_number("SIM_SEED");
    let from = one.or(env_number("SIM_FROM")).unwrap_or(0);
    let seeds = one.map_or(env_number("SIM_SEEDS").unwrap_or(SEEDS), |_| 1);
    let next = AtomicU64::new(from);
    let all: Mutex<(Counts, Vec<String>)> = Mutex::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let dir = folder.path().join(format!("thread-{thread}"));
            let (next, all) = (&next, &all);
            scope.spawn(move || {
                let mut world = World::new(&dir);
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let failures = all.lock().unwrap_or_else(PoisonError::into_inner).1.len();
                    if seed >= from + seeds || failures >= FAILURES_MAX {
                        break;
                    }
                    let mut counts = Counts::default();
                    let ran = world.run(seed, &mut counts);
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    all.0.add(&counts);
                    if let Err(wrong) = ran {
                        println!("SIM_SEED={seed}: {wrong}");
                        all.1.push(wrong);
                    }
                }
            });
        }
    });
    let (counts, failures) = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{seeds} seeds: {counts:?}");
    assert!(failures.is_empty(), "{} seeds failed", failures.len());
    // The checks mean something: all that can happen did. How often is up to threads, too; fewest are refused, 4 to 10 of them.
    if seeds >= SEEDS {
        let Counts {
            whole,
            cut,
            refused,
            partial,
            resumed,
        } = counts;
        assert!(
            whole > seeds && cut > seeds / 4 && refused > seeds / 100,
            "{counts:?}"
        );
        assert!(partial > seeds / 20 && resumed > seeds / 4, "{counts:?}");
    }
}
