//! The memory report is true at every step: each token once, each byte of blocks in one zone.

use crate::common;

use common::load;
use common::session::Words;
use haversack_conversations::scheduler::memory_report::{MemoryReport, SequenceReport};
use haversack_conversations::scheduler::token_map::BlockSource;
use haversack_conversations::scheduler::{Request, RequestEvent, Scheduler, SchedulerOptions};
use haversack_conversations::session::turns::TurnPlace;
use haversack_conversations::session::{Owner, SessionOptions, SessionSettings, Sessions};
use haversack_engine::runtime::GenerateOptions;
use haversack_engine::sample::SampleOptions;
use haversack_engine::{Repack, Retention, Runtime, RuntimeOptions};
use haversack_testing::models::Spec;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

fn scheduler(dir: &Path, arch: &str) -> (Spec, Scheduler) {
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
        settings: SessionSettings {
            capacity: Some(160),
            persistent_max: Some(96),
            answer_max: Some(12),
            ..SessionSettings::default()
        },
        dir: Some(dir.join("sessions")),
        prefix_dir: Some(dir.join("prefixes")),
        ..SessionOptions::default()
    };
    let sessions = Sessions::new(&runtime, options).unwrap();
    let sessions = sessions.with_encoder(std::sync::Arc::new(Words));
    let scheduler = Scheduler::new(runtime, SchedulerOptions::default()).with_sessions(sessions);
    (spec, scheduler)
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

/// Every token is in each map once, every layer in one map, every byte in one zone.
fn check(scheduler: &Scheduler) -> MemoryReport {
    let report = scheduler.memory_report(Owner::default());
    let ledger = scheduler.runtime().ledger();
    assert_eq!(report.ledger, ledger);
    let in_budget = report.zones.iter().map(|z| z.bytes).sum::<usize>();
    let in_files = report.zones.iter().map(|z| z.file_bytes).sum::<usize>();
    assert_eq!((in_budget, in_files), (ledger.kv_live, ledger.kv_file));
    let layers = scheduler.runtime().model().config().layers.len();
    for sequence in &report.sequences {
        let zones = sequence.zones.iter().map(|z| z.bytes + z.file_bytes);
        assert_eq!(zones.sum::<usize>(), sequence.bytes);
        let mut seen: Vec<usize> = sequence
            .token_maps
            .iter()
            .flat_map(|s| s.layers.clone())
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..layers).collect::<Vec<_>>());
        for map in &sequence.token_maps {
            let runs = map.runs.iter().map(|s| s.0);
            assert_eq!(runs.sum::<u64>(), sequence.position);
            assert_eq!(map.tokens.iter().sum::<u64>(), sequence.position);
        }
    }
    report
}

fn finish(scheduler: &mut Scheduler) -> Vec<String> {
    let mut plans = Vec::new();
    while !scheduler.is_idle() {
        scheduler
            .step(Duration::ZERO, &mut |_, event| {
                match event {
                    RequestEvent::TurnSaved(answer) => plans.push(answer.context.plan),
                    RequestEvent::Failed(why) => panic!("{why}"),
                    _ => {}
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        check(scheduler);
    }
    plans
}

fn of<'a>(report: &'a MemoryReport, name: &str) -> &'a SequenceReport {
    let is_it = |s: &&SequenceReport| s.owner.session().is_some_and(|s| s.stats.name == name);
    report.sequences.iter().find(is_it).unwrap()
}

#[test]
fn the_report_is_true_at_every_step() {
    for arch in ["llama", "gemma3"] {
        let dir = tempfile::tempdir().unwrap();
        let (spec, mut scheduler) = scheduler(dir.path(), arch);
        scheduler
            .create_session("anna", "", "You know things about cats.", 0)
            .unwrap();
        scheduler
            .create_session("ben", "", "You know things about cats.", 0)
            .unwrap();
        let mut grew = Vec::new();
        for round in 0..12 {
            let topic = ["cats and milk", "boats and rain", "trees"][round % 3];
            let text = format!("question {round} is about {topic}, please say something on it");
            scheduler.submit(turn("anna", &text)).unwrap();
            if round < 3 {
                scheduler.submit(turn("ben", &text)).unwrap();
                let options = GenerateOptions {
                    tokens_max: Some(20),
                    ..GenerateOptions::default()
                };
                scheduler
                    .submit(Request {
                        options,
                        ..Request::completion(spec.ids(40 + round))
                    })
                    .unwrap();
            }
            let plans = finish(&mut scheduler);
            let report = check(&scheduler);
            let anna = of(&report, "anna");
            let session = anna.owner.session().unwrap();
            assert!(plans.contains(&session.plan), "{plans:?}: {}", session.plan);
            grew.push(anna.position);
            if round == 5 {
                scheduler.fork_session("anna", "cleo").unwrap();
                let report = check(&scheduler);
                let [anna, cleo] = ["anna", "cleo"].map(|name| of(&report, name));
                assert_eq!(anna.token_maps, cleo.token_maps);
            }
        }
        assert!(grew.is_sorted_by(|a, b| a < b));

        let report = check(&scheduler);
        let session = of(&report, "anna").owner.session().unwrap();
        let spilled = session
            .turns
            .iter()
            .filter(|t| t.turn.place == TurnPlace::Spilled);
        assert!(spilled.count() > 3, "turns have left memory");
        // Turns were rated against the last question, before its answer.
        let (last, others) = session.turns.split_last().unwrap();
        assert!(last.rank.is_none() && others.iter().all(|t| t.rank.is_some()));
        // Tokens that other layers have on disk are outside the window of layers that have one.
        let at = BlockSource::ALL
            .iter()
            .position(|l| *l == BlockSource::Disk)
            .unwrap();
        let maps = of(&report, "anna").token_maps.iter();
        let on_disk = maps.map(|map| map.tokens[at]).max().unwrap();
        let spilled = session.stats.spilled;
        assert!(
            on_disk > 0 && on_disk <= spilled,
            "{arch}: {on_disk}, {spilled}"
        );
        let tally = scheduler.stats().tally;
        let left = tally.left_for_stream + tally.left_for_budget;
        assert!(left >= session.stats.spilled && tally.forgotten == 0);
        assert_eq!(scheduler.stats().bound_bytes, idle_bound(&report));
        let maps = of(&report, "anna").token_maps.len();
        assert_eq!(maps, if arch == "gemma3" { 2 } else { 1 });

        // Suspended sessions are not listed, and still counted.
        scheduler.suspend_all();
        assert!(check(&scheduler).sequences.is_empty());
        assert_eq!(scheduler.stats().tally, tally);
    }
}

/// With no request running: what is held beyond idle sessions.
fn idle_bound(report: &MemoryReport) -> usize {
    report.ledger.total().saturating_sub(report.idle_bytes)
}
