//! What the thread pool synchronises with. Tests compile the pool with another module of this name, under which its threads
//! run in every order (`tests/schedules`).

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::{Arc, Mutex, MutexGuard, atomic};
pub(crate) use std::thread;
pub(crate) use std::time::Instant;

use std::cell::UnsafeCell;

/// Polls between two looks at the clock while spinning.
pub(crate) const POLLS: u32 = 32;

/// A value that threads read and write without a lock.
pub(crate) struct Slot<T>(UnsafeCell<T>);

impl<T: Copy> Slot<T> {
    pub(crate) fn new(value: T) -> Slot<T> {
        Slot(UnsafeCell::new(value))
    }

    /// # Safety
    ///
    /// - No thread calls [`Slot::set`] at the same time.
    pub(crate) unsafe fn get(&self) -> T {
        // SAFETY: no thread writes, as the caller promises.
        unsafe { *self.0.get() }
    }

    /// # Safety
    ///
    /// - No other thread calls [`Slot::get`] or [`Slot::set`] at the same time.
    pub(crate) unsafe fn set(&self, value: T) {
        // SAFETY: no other thread reads or writes, as the caller promises.
        unsafe { *self.0.get() = value };
    }
}
