//! Worlds: the real scheduler, store and sessions over tiny models, with guests who come and go, a device that becomes hot
//! and short of memory, disks and allocations that fail, processes that die. Everything follows from a seed, and a failure
//! is one line with the seed in it (`docs/simulation.md`).
//!
//! 5,000 seeds by default, and those that were red once. `SIM_SEEDS=100000` for a long run, `SIM_FROM=…` to begin
//! elsewhere, and `SIM_SEED=…` for the one that a failure names, with its story.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
mod event_checker;
mod expected_turns;
mod models;
mod mutants;
mod reference_request;
mod rollback;
mod seed_settings;
mod world;

use models::Stage;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Seeds of a run that nobody said a number for.
const SEEDS: u64 = 5000;

/// Seeds beyond them that have failed, as long as worlds are as they were: sessions opened in part.
const ONCE_RED: [u64; 2] = [19_121, 64_858];

/// Failures after which a run ends.
const FAILURES_MAX: usize = 20;

fn asked(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// A folder in memory where there is one: everything is synced here.
fn quick_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// What was wrong with a seed, a panic included.
fn try_seed(stage: &mut Stage, seed: u64, story: &mut Option<Vec<String>>) -> Result<(), String> {
    let lived = catch_unwind(AssertUnwindSafe(|| world::live(stage, seed, story)));
    lived.unwrap_or_else(|panic| {
        stage.clear();
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or(panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", words.unwrap_or("without words")))
    })
}

#[test]
fn nobody_is_lost_and_nobody_says_anything_else() {
    let folder = quick_dir();
    let models = models::load_all(folder.path());
    if let Some(seed) = asked("SIM_SEED") {
        let mut story = Some(Vec::new());
        let mut stage = Stage::new(&models, folder.path());
        let lived = try_seed(&mut stage, seed, &mut story);
        for line in story.unwrap_or_default() {
            println!("{line}");
        }
        return lived.unwrap_or_else(|wrong| panic!("SIM_SEED={seed}: {wrong}"));
    }
    let from = asked("SIM_FROM").unwrap_or(0);
    let seeds: Vec<u64> = match asked("SIM_SEEDS") {
        Some(count) => (from..from + count).collect(),
        None => (from..from + SEEDS).chain(ONCE_RED).collect(),
    };
    let next = AtomicUsize::new(0);
    let failures: Mutex<Vec<(u64, String)>> = Mutex::default();
    let threads = asked("SIM_THREADS").unwrap_or(2);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let dir = folder.path().join(format!("thread-{thread}"));
            let (models, seeds, next, failures) = (&models, &seeds, &next, &failures);
            scope.spawn(move || {
                let mut stage = Stage::new(models, &dir);
                loop {
                    let seed = seeds.get(next.fetch_add(1, Ordering::Relaxed));
                    let count = || {
                        failures
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .len()
                    };
                    let Some(&seed) = seed.filter(|_| count() < FAILURES_MAX) else {
                        break;
                    };
                    if let Err(wrong) = try_seed(&mut stage, seed, &mut None) {
                        println!("SIM_SEED={seed}: {wrong}");
                        let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                        failures.push((seed, wrong));
                    }
                }
            });
        }
    });
    let failures = failures
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    println!("{} seeds", next.into_inner().min(seeds.len()));
    assert!(failures.is_empty(), "{} seeds failed", failures.len());
}
