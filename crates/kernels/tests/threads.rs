//! The pool: every unit once, cheap, and alive after a panic.

use haversack_kernels::threads::{ThreadPool, chunks_mut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// More threads than any machine this runs on should mind; two cores get oversubscribed.
const THREADS: [usize; 6] = [0, 1, 2, 3, 8, 17];

#[test]
fn every_unit_runs_exactly_once() {
    for threads in THREADS {
        let pool = ThreadPool::new(threads);
        assert_eq!(pool.threads(), threads.max(1));
        for units in [0, 1, 2, 7, 64, 1000] {
            let hits: Vec<AtomicU32> = (0..units).map(|_| AtomicU32::new(0)).collect();
            pool.run(units, &|unit| {
                hits[unit].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }
}

/// What a unit wrote is visible to the caller afterwards, and what the caller wrote before is
/// visible to the unit: plain memory, no atomics, so a missing release or acquire shows as a wrong
/// sum sooner or later.
#[test]
fn stress_tiny_regions() {
    let pool = ThreadPool::new(2);
    let mut values = [0u64; 4];
    for round in 0..100_000u64 {
        values[0] = round;
        let first = values[0];
        chunks_mut(&pool, &mut values, 1, &|index, part| {
            part[0] = first + index as u64;
        });
        let expected = [round, round + 1, round + 2, round + 3];
        assert_eq!(values, expected);
    }
}

#[test]
fn stress_with_pauses_that_let_workers_park() {
    let pool = ThreadPool::new(3);
    for round in 0..200 {
        let sum = AtomicUsize::new(0);
        pool.run(16, &|unit| {
            sum.fetch_add(unit + 1, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 136);
        if round % 4 == 0 {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }
}

#[test]
fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
    for threads in [1, 2, 5] {
        let pool = ThreadPool::new(threads);
        for bad in [0, 3, 63] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, &|unit| assert!(unit != bad, "unit {unit} is bad"));
            }));
            let payload = caught.expect_err("the panic is not swallowed");
            let text = payload.downcast_ref::<String>().expect("a message");
            assert_eq!(text, &format!("unit {bad} is bad"));

            let count = AtomicUsize::new(0);
            pool.run(64, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 64);
        }
    }
}

#[test]
fn a_region_inside_a_region_runs_serially() {
    let pool = ThreadPool::new(3);
    let count = AtomicUsize::new(0);
    pool.run(8, &|_| {
        let thread = std::thread::current().id();
        pool.run(8, &|_| {
            assert_eq!(std::thread::current().id(), thread);
            count.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(count.into_inner(), 64);
}

#[test]
fn two_callers_do_not_wait_for_each_other() {
    let pool = ThreadPool::new(2);
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    pool.run(8, &|_| {
                        count.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 4 * 500 * 8);
}

#[test]
fn worker_indices_are_exclusive() {
    let pool = ThreadPool::new(4);
    let held: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
    for _ in 0..200 {
        pool.run_indexed(64, &|worker, _| {
            assert_eq!(held[worker].fetch_add(1, Ordering::AcqRel), 0);
            std::hint::spin_loop();
            assert_eq!(held[worker].fetch_sub(1, Ordering::AcqRel), 1);
        });
    }
}

#[test]
fn chunks_cover_the_slice_with_a_short_last_one() {
    let pool = ThreadPool::new(2);
    for len in [0, 1, 5, 64, 67] {
        for chunk in [0, 1, 4, 64, 100] {
            let mut values = vec![0usize; len];
            chunks_mut(&pool, &mut values, chunk, &|index, part| {
                for (i, v) in part.iter_mut().enumerate() {
                    *v += index * chunk + i + 1;
                }
            });
            let expected: Vec<usize> = (1..=len).collect();
            assert_eq!(values, expected);
        }
    }
}

/// Every unit runs once, on whichever thread; on one thread, in order.
#[test]
fn units_in_order_are_each_done_once() {
    for threads in [1, 2, 3, 5] {
        let pool = ThreadPool::new(threads);
        for units in [0, 1, 2, 3, 7, 64, 1000] {
            let done: Vec<AtomicUsize> = (0..units).map(|_| AtomicUsize::new(0)).collect();
            let last = AtomicUsize::new(0);
            pool.run_in_order(units, &|worker, unit| {
                assert!(worker < threads);
                done[unit].fetch_add(1, Ordering::Relaxed);
                if threads == 1 {
                    assert_eq!(last.fetch_add(1, Ordering::Relaxed), unit);
                }
            });
            assert!(done.iter().all(|n| n.load(Ordering::Relaxed) == 1));
        }
    }
}
