//! The worker threads: spin, then park.
//!
//! A minimal stand-in with the signature the kernels are written against: scoped threads per
//! region.

use std::sync::atomic::{AtomicUsize, Ordering};

pub struct Pool {
    threads: usize,
}

impl Pool {
    pub fn new(threads: usize) -> Pool {
        Pool {
            threads: threads.max(1),
        }
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f(unit)` for every unit in `0..units`; returns when all are done.
    pub fn run(&self, units: usize, f: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= units {
                    break;
                }
                f(unit);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.min(units) {
                scope.spawn(work);
            }
            work();
        });
    }
}
