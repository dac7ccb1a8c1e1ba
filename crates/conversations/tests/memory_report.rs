//! What is shown of the memory is what is there: every token once, every byte of blocks in one zone, whatever happens.

mod common;

use common::load;
use common::session::Words;
use haversack_conversations::scheduler::memory_report::{MemoryReport, SequenceReport};
use haversack_conversations::scheduler::token_map::BlockSource;
use haversack_conversations::scheduler::{Request, RequestEvent, Scheduler, SchedulerOptions};
use haversack_conversations::session::turns::Place;
use haversack_conversations::session::{SessionOptions, Sessions};
use haversack_engine::runtime::GenerateOptions;
use haversack_engine::sample::SampleOptions;
use haversack_engine::{Repack, Retention, Runtime, RuntimeOptions};
use haversack_testing::models::Spec;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

fn desk(dir: &Path, arch: &str) -> (Spec, Scheduler) {
    let path = dir.join("tiny.gguf");
    let spec = Spec {
        context: 2048,
        ..Spec::named(arch).unwrap()
    };
    spec.write_file(&path).unwrap();
    let options = RuntimeOptions {
        retention: Retention::managed(),
        cache_dir: Some(dir.to_owned()),
        ..RuntimeOptions::default()
    };
    let runtime = Runtime::new(load(&path, Repack::Off), &options).unwrap();
    let options = SessionOptions {
        dir: Some(dir.join("sessions")),
        prefix_dir: Some(dir.join("prefixes")),
        capacity: 160,
        persistent_max: 64,
        answer_max: 12,
        ..SessionOptions::default()
    };
    let sessions = Sessions::new(&runtime, options).unwrap();
    let sessions = sessions.with_encoder(std::sync::Arc::new(Words));
    let desk = Scheduler::new(runtime, SchedulerOptions::default()).with_sessions(sessions);
    (spec, desk)
}

fn turn(session: &str, text: &str) -> Request {
    Request {
        sample: SampleOptions {
            temperature: 0.0,
            ..SampleOptions::default()
        },
        ..Request::turn(session, text)
    }
}

/// Every token is in each strip once, every layer in one strip, every byte in one zone.
fn check(desk: &Scheduler) -> MemoryReport {
    let picture = desk.memory_report();
    let ledger = desk.runtime().ledger();
    assert_eq!(picture.ledger, ledger);
    let in_budget = picture.zones.iter().map(|z| z.bytes).sum::<usize>();
    let in_files = picture.zones.iter().map(|z| z.file_bytes).sum::<usize>();
    assert_eq!((in_budget, in_files), (ledger.kv_live, ledger.kv_file));
    let layers = desk.runtime().model().config().layers.len();
    for shown in &picture.sequences {
        let zones = shown.zones.iter().map(|z| z.bytes + z.file_bytes);
        assert_eq!(zones.sum::<usize>(), shown.bytes);
        let mut seen: Vec<usize> = shown.strips.iter().flat_map(|s| s.layers.clone()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..layers).collect::<Vec<_>>());
        for strip in &shown.strips {
            let stretches = strip.stretches.iter().map(|s| s.0);
            assert_eq!(stretches.sum::<u64>(), shown.position);
            assert_eq!(strip.tokens.iter().sum::<u64>(), shown.position);
        }
    }
    picture
}

fn step_to_the_end(desk: &mut Scheduler) -> Vec<String> {
    let mut plans = Vec::new();
    while !desk.is_idle() {
        desk.step(Duration::ZERO, &mut |_, news| {
            match news {
                RequestEvent::TurnSaved(answer) => plans.push(answer.context.plan),
                RequestEvent::Failed(why) => panic!("{why}"),
                _ => {}
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        check(desk);
    }
    plans
}

fn of<'a>(picture: &'a MemoryReport, name: &str) -> &'a SequenceReport {
    let is_it = |s: &&SequenceReport| s.who.session().is_some_and(|s| s.stats.name == name);
    picture.sequences.iter().find(is_it).unwrap()
}

#[test]
fn the_picture_is_true_at_every_step() {
    for arch in ["llama", "gemma3"] {
        let dir = tempfile::tempdir().unwrap();
        let (spec, mut desk) = desk(dir.path(), arch);
        desk.create_session("anna", "", "You know things about cats.", 0)
            .unwrap();
        desk.create_session("ben", "", "You know things about cats.", 0)
            .unwrap();
        let mut grew = Vec::new();
        for round in 0..12 {
            let topic = ["cats and milk", "boats and rain", "trees"][round % 3];
            let text = format!("question {round} is about {topic}, please say something on it");
            desk.submit(turn("anna", &text)).unwrap();
            if round < 3 {
                desk.submit(turn("ben", &text)).unwrap();
                let options = GenerateOptions {
                    tokens_max: Some(20),
                    ..GenerateOptions::default()
                };
                desk.submit(Request {
                    options,
                    ..Request::completion(spec.ids(40 + round))
                })
                .unwrap();
            }
            let plans = step_to_the_end(&mut desk);
            let picture = check(&desk);
            let anna = of(&picture, "anna");
            let session = anna.who.session().unwrap();
            assert!(plans.contains(&session.plan), "{plans:?}: {}", session.plan);
            grew.push(anna.position);
            if round == 5 {
                desk.fork_session("anna", "cleo").unwrap();
                let picture = check(&desk);
                let [anna, cleo] = ["anna", "cleo"].map(|name| of(&picture, name));
                assert_eq!(anna.strips, cleo.strips);
            }
        }
        assert!(grew.is_sorted_by(|a, b| a < b));

        let picture = check(&desk);
        let session = of(&picture, "anna").who.session().unwrap();
        let spilled = session
            .turns
            .iter()
            .filter(|t| t.turn.place == Place::Spilled);
        assert!(spilled.count() > 3, "turns have left memory");
        // The last one was said after the question that all were judged by.
        let (last, others) = session.turns.split_last().unwrap();
        assert!(last.relevance.is_none() && others.iter().all(|t| t.relevance.is_some()));
        // Layers with a window of their own have passed what others have on disk.
        let at = BlockSource::ALL
            .iter()
            .position(|l| *l == BlockSource::Disk)
            .unwrap();
        let strips = of(&picture, "anna").strips.iter();
        let on_disk = strips.map(|strip| strip.tokens[at]).max().unwrap();
        let spilled = session.stats.spilled;
        assert!(
            on_disk > 0 && on_disk <= spilled,
            "{arch}: {on_disk}, {spilled}"
        );
        let tally = desk.stats().tally;
        let left = tally.left_for_stream + tally.left_for_budget;
        assert!(left >= session.stats.spilled && tally.forgotten == 0);
        assert_eq!(desk.stats().bound_bytes, idle_bound(&picture));
        let strips = of(&picture, "anna").strips.len();
        assert_eq!(strips, if arch == "gemma3" { 2 } else { 1 });

        // What has left is not shown, and still counted.
        desk.suspend_all();
        assert!(check(&desk).sequences.is_empty());
        assert_eq!(desk.stats().tally, tally);
    }
}

/// With nobody active: what is held beside sessions that would leave.
fn idle_bound(picture: &MemoryReport) -> usize {
    picture.ledger.total().saturating_sub(picture.idle_bytes)
}
