//! Stands for `crate::sync` of the thread pool: loom's types, whose operations happen in every order that the memory model
//! allows, and a clock by which a worker parks as soon as it has looked for work once.

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard, atomic};
pub(crate) use loom::thread;

use loom::cell::UnsafeCell;
use std::time::Duration;

pub(crate) const POLLS: u32 = 1;

/// Time that has always run out.
pub(crate) struct Instant;

impl Instant {
    pub(crate) fn now() -> Instant {
        Instant
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::MAX
    }
}

/// Reports a read beside a write, and a write that does not happen before.
pub(crate) struct Slot<T>(UnsafeCell<T>);

impl<T: Copy> Slot<T> {
    pub(crate) fn new(value: T) -> Slot<T> {
        Slot(UnsafeCell::new(value))
    }

    pub(crate) unsafe fn get(&self) -> T {
        // SAFETY: the caller promises that nobody writes; loom checks it.
        self.0.with(|value| unsafe { *value })
    }

    pub(crate) unsafe fn set(&self, new: T) {
        // SAFETY: the caller promises that nobody else reads or writes; loom checks it.
        self.0.with_mut(|value| unsafe { *value = new });
    }
}
