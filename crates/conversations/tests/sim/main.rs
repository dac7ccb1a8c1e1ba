//! Simulation: the real scheduler, store and sessions over tiny models, with requests that come and are cancelled, a device
//! that becomes hot and short of memory, disks and allocations that fail, and processes that are killed. Everything follows
//! from a seed, and a failure is one line with the seed in it (`docs/how-it-works/simulation.md`).
//!
//! 1,000 seeds by default, and those that failed once. `SIM_SEEDS=100000` for a long run, `SIM_FROM=…` to begin elsewhere,
//! and `SIM_SEED=…` for the one that a failure names, with a trace.
#![cfg(target_os = "linux")]

#[path = "../../../cache/tests/common/audit.rs"]
mod audit;
#[path = "../common/mod.rs"]
mod common;
mod event_checker;
mod expected_turns;
mod models;
mod reference_request;
mod rollback;
mod seed_settings;
mod world;

use models::Models;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Seeds of a run without `SIM_SEEDS`.
const SEEDS: u64 = 1000;

/// Seeds beyond them that have failed once: sessions opened in part. Valid while seeds mean the same.
const FAILED_ONCE: [u64; 2] = [19_121, 64_858];

/// Failures after which a run ends.
const FAILURES_MAX: usize = 20;

fn env_number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// In memory where possible, because every write is synced.
fn quick_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// Runs a seed. Panics are errors too.
fn try_seed(models: &mut Models, seed: u64, trace: &mut Option<Vec<String>>) -> Result<(), String> {
    let ran = catch_unwind(AssertUnwindSafe(|| world::run(models, seed, trace)));
    ran.unwrap_or_else(|panic| {
        models.clear();
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or(panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", words.unwrap_or("without a message")))
    })
}

#[test]
fn no_request_is_lost_and_no_token_changes() {
    let folder = quick_dir();
    let models = models::load_all(folder.path());
    if let Some(seed) = env_number("SIM_SEED") {
        let mut trace = Some(Vec::new());
        let mut models = Models::new(&models, folder.path());
        let ran = try_seed(&mut models, seed, &mut trace);
        for line in trace.unwrap_or_default() {
            println!("{line}");
        }
        return ran.unwrap_or_else(|wrong| panic!("SIM_SEED={seed}: {wrong}"));
    }
    let from = env_number("SIM_FROM").unwrap_or(0);
    let seeds: Vec<u64> = match env_number("SIM_SEEDS") {
        Some(count) => (from..from + count).collect(),
        None => (from..from + SEEDS).chain(FAILED_ONCE).collect(),
    };
    let next = AtomicUsize::new(0);
    let failures: Mutex<Vec<(u64, String)>> = Mutex::default();
    let threads = env_number("SIM_THREADS").unwrap_or(2);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let dir = folder.path().join(format!("thread-{thread}"));
            let (models, seeds, next, failures) = (&models, &seeds, &next, &failures);
            scope.spawn(move || {
                let mut models = Models::new(models, &dir);
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
                    if let Err(wrong) = try_seed(&mut models, seed, &mut None) {
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
