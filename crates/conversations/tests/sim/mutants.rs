//! Some seed must find each mutant. `MUTANT=…` tries one of them.

use crate::models::{self, Models};
use crate::{quick_dir, try_seed};
use haversack_memory::mutants::{Mutant, plant};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Seeds within which a mutant must be found.
const SEEDS_MAX: u64 = 1000;

#[test]
fn every_mutant_is_found() {
    let folder = quick_dir();
    let models = models::load_all(folder.path());
    let only = std::env::var("MUTANT").ok();
    let mutants: Vec<Mutant> = Mutant::ALL
        .into_iter()
        .filter(|mutant| {
            only.as_ref()
                .is_none_or(|only| format!("{mutant:?}") == *only)
        })
        .collect();
    assert!(!mutants.is_empty(), "no mutant is called {only:?}");
    let next = AtomicUsize::new(0);
    // (mutant, the seed that found it)
    type Found = (usize, Option<(u64, String)>);
    let found: Mutex<Vec<Found>> = Mutex::default();
    // Many of them panic, which counts as found.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let dir = folder.path().join(format!("thread-{thread}"));
            let (models, next, found, mutants) = (&models, &next, &found, &mutants);
            scope.spawn(move || {
                let mut models = Models::new(models, &dir);
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&mutant) = mutants.get(i) else { break };
                    plant(Some(mutant));
                    let noticed = (0..SEEDS_MAX).find_map(|seed| {
                        let ran = try_seed(&mut models, seed, &mut None);
                        plant(Some(mutant));
                        ran.err().map(|wrong| (seed, wrong))
                    });
                    plant(None);
                    println!("{mutant:?}: {noticed:?}");
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
        let mutant = mutants[i];
        match noticed {
            Some((seed, wrong)) => {
                let line = wrong.lines().next().unwrap_or_default();
                println!("| {mutant:?} | {seed} | {line} |");
            }
            None => missed.push(mutant),
        }
    }
    let total = mutants.len();
    println!("{} of {total} mutants found", total - missed.len());
    assert!(
        missed.is_empty(),
        "not found in {SEEDS_MAX} seeds: {missed:?}"
    );
}
