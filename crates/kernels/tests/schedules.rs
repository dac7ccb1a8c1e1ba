//! The thread pool under loom: its source once more, with other atomics, locks and threads (`schedules/sync.rs`), in every
//! order of their operations up to a number of preemptions. No schedule loses a wake-up, stops for ever, runs a unit twice or
//! not at all, swallows a panic, or reads what was not yet written.
//!
//! `SCHEDULES_PREEMPTIONS=4 cargo test --release -p haversack-kernels --test all schedules::` goes further.

#[allow(dead_code)]
#[path = "../src/threads.rs"]
mod threads;

use crate::sync::{Arc, Slot};
use loom::sync::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use threads::ThreadPool;

/// Every schedule of `scenario` with at most `preemptions` switches that no thread asked for.
fn explore(preemptions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let asked = std::env::var("SCHEDULES_PREEMPTIONS").ok();
    let asked = asked.map(|number| number.parse().expect("a number"));
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(asked.unwrap_or(preemptions));
    model.max_branches = 10_000;
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = count.clone();
    model.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        scenario();
    });
    println!(
        "{} schedules",
        count.load(std::sync::atomic::Ordering::Relaxed)
    );
}

/// Plain memory, one place for each unit.
struct Rows(Vec<Slot<u64>>);

// SAFETY: tests only; loom reports what is not ordered.
unsafe impl Sync for Rows {}
// SAFETY: as above.
unsafe impl Send for Rows {}

impl Rows {
    fn new(units: usize) -> Rows {
        Rows((0..units).map(|_| Slot::new(0)).collect())
    }

    /// Every unit adds one to its own row.
    fn add(&self, unit: usize) {
        // SAFETY: each unit runs once in a region, and the caller waits for all of them; loom checks it.
        unsafe { self.0[unit].set(self.0[unit].get() + 1) };
    }

    fn all(&self) -> Vec<u64> {
        // SAFETY: the region is over; loom checks it.
        self.0.iter().map(|row| unsafe { row.get() }).collect()
    }
}

#[test]
fn every_unit_runs_once_and_its_writes_are_seen() {
    explore(3, || {
        let pool = ThreadPool::new(2);
        let rows = Rows::new(3);
        pool.run(3, &|unit| rows.add(unit));
        assert_eq!(rows.all(), [1, 1, 1]);
        pool.run(2, &|unit| rows.add(unit));
        assert_eq!(rows.all(), [2, 2, 1]);
    });
}

#[test]
fn two_workers_share_a_region() {
    explore(1, || {
        let pool = ThreadPool::new(3);
        let rows = Rows::new(3);
        pool.run(3, &|unit| rows.add(unit));
        assert_eq!(rows.all(), [1, 1, 1]);
    });
}

#[test]
fn units_in_order_run_once() {
    explore(2, || {
        let pool = ThreadPool::new(2);
        let rows = Rows::new(3);
        pool.run_in_order(3, &|_, unit| rows.add(unit));
        assert_eq!(rows.all(), [1, 1, 1]);
    });
}

/// Each unit waits for the other, so that two threads have to come: a worker that sleeps through its region stops both.
#[test]
fn a_parked_worker_is_woken() {
    explore(3, || {
        let pool = ThreadPool::new(2);
        for _ in 0..2 {
            let (came, all) = (Mutex::new(0), Condvar::new());
            pool.run(2, &|_| {
                let mut here = came.lock().unwrap();
                *here += 1;
                all.notify_all();
                while *here < 2 {
                    here = all.wait(here).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_next_region_runs() {
    for bad in 0..2 {
        explore(2, move || {
            let pool = ThreadPool::new(2);
            let run = AssertUnwindSafe(|| {
                pool.run(2, &|unit| {
                    if unit == bad {
                        std::panic::resume_unwind(Box::new(unit));
                    }
                });
            });
            let payload = catch_unwind(run).expect_err("it is not swallowed");
            assert_eq!(payload.downcast_ref(), Some(&bad));
            let rows = Rows::new(2);
            pool.run(2, &|unit| rows.add(unit));
            assert_eq!(rows.all(), [1, 1]);
        });
    }
}

#[test]
fn two_callers_do_not_wait_for_each_other() {
    explore(2, || {
        let pool = Arc::new(ThreadPool::new(2));
        let other = pool.clone();
        let caller = loom::thread::spawn(move || {
            let rows = Rows::new(2);
            other.run(2, &|unit| rows.add(unit));
            assert_eq!(rows.all(), [1, 1]);
        });
        let rows = Rows::new(2);
        pool.run(2, &|unit| rows.add(unit));
        assert_eq!(rows.all(), [1, 1]);
        caller.join().unwrap();
    });
}

#[test]
fn a_pool_without_work_ends() {
    explore(3, || drop(ThreadPool::new(3)));
}
