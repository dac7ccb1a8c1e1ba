//! Counts what asks the heap for memory, for tests of paths that must not allocate, or only within a bound.
//!
//! A test makes [`CountingAllocator`] its global allocator and compares [`allocations`] or [`held_bytes`] before and
//! after. It counts every thread of the process. The one `unsafe` of this crate: a global allocator has no safe form.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The system's allocator, a count of calls that take memory, and the bytes that are taken.
#[derive(Debug)]
pub struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Blocks taken from the heap so far, growing one included.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Bytes of the heap in use, as they were requested.
pub fn held_bytes() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// The peak of [`held_bytes`] since this was last called.
pub fn take_peak_bytes() -> usize {
    PEAK.swap(held_bytes(), Ordering::Relaxed)
}

fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    let held = HELD.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
    PEAK.fetch_max(held, Ordering::Relaxed);
}

fn free(bytes: usize) {
    HELD.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        free(layout.size());
        count(bytes);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        free(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}
