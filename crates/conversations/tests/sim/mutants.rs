//! The bug zoo: each mistake that others have shipped is planted, and a seed must notice.
//!
//! `ZOO_BUG=…` looks at one of them.

use crate::models::{self, Stage};
use crate::{quick_dir, try_seed};
use haversack_memory::zoo::{Bug, plant};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Seeds within which a mistake must be found.
const SEEDS_MAX: u64 = 1000;

#[test]
fn every_planted_bug_is_found() {
    let folder = quick_dir();
    let models = models::load_all(folder.path());
    let only = std::env::var("ZOO_BUG").ok();
    let bugs: Vec<Bug> = Bug::ALL
        .into_iter()
        .filter(|bug| only.as_ref().is_none_or(|only| format!("{bug:?}") == *only))
        .collect();
    let next = AtomicUsize::new(0);
    // Which one, and the seed that noticed.
    type Found = (usize, Option<(u64, String)>);
    let found: Mutex<Vec<Found>> = Mutex::default();
    // Many of them end in a panic, which is one way to notice.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let dir = folder.path().join(format!("thread-{thread}"));
            let (models, next, found, bugs) = (&models, &next, &found, &bugs);
            scope.spawn(move || {
                let mut stage = Stage::new(models, &dir);
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&bug) = bugs.get(i) else { break };
                    plant(Some(bug));
                    let noticed = (0..SEEDS_MAX).find_map(|seed| {
                        let lived = try_seed(&mut stage, seed, &mut None);
                        plant(Some(bug));
                        lived.err().map(|wrong| (seed, wrong))
                    });
                    plant(None);
                    println!("{bug:?}: {noticed:?}");
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    found.push((i, noticed));
                }
            });
        }
    });
    std::panic::set_hook(hook);
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|found| found.0);
    let mut missed = Vec::new();
    for (i, noticed) in found {
        let bug = bugs[i];
        match noticed {
            Some((seed, wrong)) => {
                let line = wrong.lines().next().unwrap_or_default();
                println!("| {bug:?} | {seed} | {line} |");
            }
            None => missed.push(bug),
        }
    }
    assert!(
        missed.is_empty(),
        "not found in {SEEDS_MAX} seeds: {missed:?}"
    );
}
