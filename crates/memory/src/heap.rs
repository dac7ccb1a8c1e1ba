//! The process's heap: how much of it is taken, who may still take from it, and free pages that go back to the system.
//!
//! [`CountedHeap`] is the allocator of a program that keeps a budget. [`HeapBudget`] is that budget as every thread sees
//! it: a thread that is about to allocate in proportion to its input reserves first, and does not wait for the engine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

/// The system's allocator, with a count of the bytes that are taken from it. A program installs it as its
/// `#[global_allocator]`; where it is not installed, [`live_bytes`] is unknown and the heap is part of no budget.
#[derive(Debug)]
pub struct CountedHeap;

/// Counters of as many groups of threads: threads that allocate at the same time rarely wait for one cache line.
const SHARDS: usize = 16;

/// From this size on a block has pages of its own, which go back to the system when it is freed: the default of glibc,
/// held fast by [`configure`]. Left alone, glibc raises it to the largest block that was ever freed.
const MMAP_BYTES: usize = 128 << 10;
const PAGE: usize = 4 << 10;

#[repr(align(64))]
struct Shard {
    live: AtomicIsize,
    /// Of blocks without pages of their own, all of them so far.
    freed: AtomicUsize,
}

static COUNTS: [Shard; SHARDS] = [const {
    Shard {
        live: AtomicIsize::new(0),
        freed: AtomicUsize::new(0),
    }
}; SHARDS];
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    // A constant without a destructor: reading it allocates nothing, in any state of the thread.
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn shard() -> &'static Shard {
    let index = SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    });
    &COUNTS[index]
}

/// What a block takes of the heap: its header, and its share of the rounding.
fn block_bytes(bytes: usize) -> usize {
    match bytes {
        0..MMAP_BYTES => (bytes + 8).next_multiple_of(16).max(32),
        _ => (bytes.saturating_add(16)).next_multiple_of(PAGE),
    }
}

fn count_taken(bytes: usize) {
    let bytes = block_bytes(bytes) as isize;
    shard().live.fetch_add(bytes, Ordering::Relaxed);
}

fn count_freed(bytes: usize) {
    let (shard, taken) = (shard(), block_bytes(bytes));
    shard.live.fetch_sub(taken as isize, Ordering::Relaxed);
    if bytes < MMAP_BYTES {
        shard.freed.fetch_add(taken, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        let block = unsafe { System.alloc(layout) };
        if !block.is_null() {
            count_taken(layout.size());
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            count_taken(layout.size());
        }
        block
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        let block = unsafe { System.realloc(pointer, layout, bytes) };
        // Where it fails, the old block stays.
        if !block.is_null() {
            count_freed(layout.size());
            count_taken(bytes);
        }
        block
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count_freed(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes of the heap that are taken, headers and rounding included; `None` where [`CountedHeap`] is not installed.
pub fn live_bytes() -> Option<usize> {
    let live = COUNTS.iter().map(|s| s.live.load(Ordering::Relaxed));
    // A running program holds something.
    usize::try_from(live.sum::<isize>()).ok().filter(|&n| n > 0)
}

/// Bytes that were freed into the heap so far, without blocks whose pages went back at once.
fn freed_bytes() -> usize {
    let freed = COUNTS.iter().map(|s| s.freed.load(Ordering::Relaxed));
    freed.fold(0, usize::wrapping_add)
}

/// Arenas that threads share. Each keeps the pages of its own bursts, so fewer hold less; the threads that allocate much
/// are the server's and the engine's.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS: i32 = 2;

/// Makes the heap give pages back as soon as it can: to be called once, before there are threads.
pub fn configure() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;
        unsafe extern "C" {
            fn mallopt(param: c_int, value: c_int) -> c_int;
        }
        const M_TRIM_THRESHOLD: c_int = -1;
        const M_MMAP_THRESHOLD: c_int = -3;
        const M_ARENA_MAX: c_int = -8;
        for (param, value) in [
            (M_MMAP_THRESHOLD, MMAP_BYTES as c_int),
            (M_TRIM_THRESHOLD, MMAP_BYTES as c_int),
            (M_ARENA_MAX, ARENAS),
        ] {
            // SAFETY: a function of glibc with this signature; it changes settings of the allocator and no block.
            unsafe { mallopt(param, value) };
        }
    }
}

/// Gives free pages of the heap back to the system. A thread that starts afterwards allocates from an arena of its own, and
/// what loading a model has left behind would stay resident beside it: 0.6 MB with SmolLM2. With musl there is nothing to do:
/// it has no arenas, and gives groups of free blocks back by itself.
pub fn release_free_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: a function of glibc with this signature, which locks the arenas itself and moves no allocation.
        unsafe { malloc_trim(0) };
    }
}

/// Gives free pages back from time to time: after bursts, and at no cost while little is freed.
#[derive(Debug, Default)]
pub struct HeapTrimmer {
    freed: usize,
}

impl HeapTrimmer {
    /// Freed bytes after which it is worth a look: in small blocks, a long answer frees less.
    const FREED_BYTES: usize = 4 << 20;

    /// To be called at calm moments, a few times a second at most. Whether pages were given back.
    pub fn poll(&mut self) -> bool {
        let freed = freed_bytes();
        let is_due = freed.wrapping_sub(self.freed) >= HeapTrimmer::FREED_BYTES;
        if is_due {
            self.freed = freed;
            release_free_pages();
        }
        is_due
    }
}

/// The byte budget of a process as every thread sees it.
///
/// ```text
/// limit ≥ blocks, held and promised + heap accounts of the ledger + growth of the heap beside them + reservations
/// ```
///
/// The engine's thread says what its ledger holds ([`HeapBudget::set_ledger`], after each step); the growth of the heap is
/// counted by [`CountedHeap`] at every call; any thread reserves what it is about to allocate ([`HeapBudget::reserve`]).
/// No call waits for another thread.
#[derive(Debug)]
pub struct HeapBudget {
    /// `usize::MAX` = none.
    limit: AtomicUsize,
    /// Bytes of the heap that are no growth.
    baseline: AtomicUsize,
    /// Blocks, which are not on the heap.
    blocks: AtomicUsize,
    /// What the ledger's accounts hold on the heap.
    accounts: AtomicUsize,
    reserved: AtomicUsize,
    /// The largest reservation that was refused since the engine last looked.
    refused: AtomicUsize,
}

/// What a ledger holds, for [`HeapBudget::set_ledger`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerLevel {
    pub budget_bytes: Option<usize>,
    /// Held or promised outside the heap.
    pub block_bytes: usize,
    /// Held on the heap by accounts of the ledger.
    pub account_bytes: usize,
}

/// The budget has no room for a reservation now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapFull {
    pub bytes: usize,
    pub free_bytes: usize,
}

impl fmt::Display for HeapFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeapFull { bytes, free_bytes } = self;
        write!(
            f,
            "{bytes} bytes do not fit the memory budget now; {free_bytes} are free"
        )
    }
}

impl std::error::Error for HeapFull {}

impl HeapBudget {
    /// Heap that belongs to the baseline beside what was there before the first request: the text, the events and the
    /// sampler of a request, and the buffers of a server's connections. Growth is what goes beyond.
    pub const WORKING_BYTES: usize = 4 << 20;

    /// The heap as it is now is the baseline.
    pub fn new(ledger: LedgerLevel) -> HeapBudget {
        let budget = HeapBudget {
            limit: AtomicUsize::new(usize::MAX),
            baseline: AtomicUsize::new(0),
            blocks: AtomicUsize::new(0),
            accounts: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        };
        budget.set_ledger(ledger);
        let own = live_bytes()
            .unwrap_or(0)
            .saturating_sub(ledger.account_bytes);
        let baseline = own + HeapBudget::WORKING_BYTES;
        budget.baseline.store(baseline, Ordering::Relaxed);
        budget
    }

    /// Takes over what the ledger holds.
    pub fn set_ledger(&self, ledger: LedgerLevel) {
        let limit = ledger.budget_bytes.unwrap_or(usize::MAX);
        self.limit.store(limit, Ordering::Relaxed);
        self.blocks.store(ledger.block_bytes, Ordering::Relaxed);
        self.accounts.store(ledger.account_bytes, Ordering::Relaxed);
    }

    /// Heap beyond the baseline and beyond what the ledger's accounts hold, and what is reserved of it: the account
    /// `heap` of the ledger.
    pub fn growth_bytes(&self) -> usize {
        self.grown(live_bytes().unwrap_or(0)) + self.reserved.load(Ordering::Relaxed)
    }

    fn grown(&self, live: usize) -> usize {
        let known = self.baseline.load(Ordering::Relaxed) + self.accounts.load(Ordering::Relaxed);
        live.saturating_sub(known)
    }

    /// Reserves bytes that the caller is about to allocate, from any thread and without waiting. A reservation stands for
    /// what is not allocated yet: give back what is allocated by now ([`HeapReservation::shrink_to`]), because the heap
    /// itself is counted, and drop it with the last of it. Refused, the engine makes room before its next step (the
    /// prefix cache is emptied, idle sessions leave memory), so a caller may try again.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<HeapReservation, HeapFull> {
        self.reserve_beside(bytes, 0.0)
    }

    /// The same, where this share of the budget stays free.
    pub fn reserve_beside(
        self: &Arc<Self>,
        bytes: usize,
        free_share: f64,
    ) -> Result<HeapReservation, HeapFull> {
        let before = self.reserved.fetch_add(bytes, Ordering::Relaxed);
        let limit = self.limit.load(Ordering::Relaxed);
        let held = [
            self.blocks.load(Ordering::Relaxed),
            self.accounts.load(Ordering::Relaxed),
            self.grown(live_bytes().unwrap_or(0)),
        ];
        let held = held.into_iter().fold(before, usize::saturating_add);
        let spare = (limit as f64 * free_share) as usize;
        let free_bytes = limit.saturating_sub(held).saturating_sub(spare);
        if limit < usize::MAX && bytes > free_bytes {
            self.reserved.fetch_sub(bytes, Ordering::Relaxed);
            self.refused.fetch_max(bytes + spare, Ordering::Relaxed);
            return Err(HeapFull { bytes, free_bytes });
        }
        Ok(HeapReservation {
            budget: self.clone(),
            bytes,
        })
    }

    /// The largest reservation that was refused since this was last called; 0 = none.
    pub fn take_refused(&self) -> usize {
        self.refused.swap(0, Ordering::Relaxed)
    }
}

/// Bytes of the budget that no other thread can take. Dropping it gives them back.
#[derive(Debug)]
#[must_use = "dropping a reservation gives it back"]
pub struct HeapReservation {
    budget: Arc<HeapBudget>,
    bytes: usize,
}

impl HeapReservation {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives back all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.budget.reserved.fetch_sub(less, Ordering::Relaxed);
        self.bytes -= less;
    }
}

impl Drop for HeapReservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The allocator of this crate's unit tests.
    #[global_allocator]
    static HEAP: CountedHeap = CountedHeap;

    const MIB: usize = 1 << 20;

    /// A block that the system refuses is not part of the heap.
    #[test]
    fn what_is_refused_is_not_counted() {
        let before = live_bytes().unwrap();
        let mut block: Vec<u8> = Vec::with_capacity(MIB);
        let huge = isize::MAX as usize - MIB;
        assert!(block.try_reserve_exact(huge).is_err());
        assert!(Vec::<u8>::new().try_reserve_exact(huge).is_err());
        assert!(live_bytes().unwrap() < before + 256 * MIB);
    }

    #[test]
    fn what_is_taken_is_counted_and_what_is_freed_is_not() {
        let before = live_bytes().unwrap();
        let mut taken: Vec<u8> = Vec::with_capacity(64 * MIB);
        let during = live_bytes().unwrap();
        taken.reserve_exact(128 * MIB);
        let grown = live_bytes().unwrap();
        drop(taken);
        let after = live_bytes().unwrap();
        // Other tests of this process allocate meanwhile, by far less.
        let near = |a: usize, b: usize| a.abs_diff(b) < 8 * MIB;
        assert!(near(during, before + 64 * MIB), "{before} {during}");
        assert!(near(grown, before + 128 * MIB), "{before} {grown}");
        assert!(near(after, before), "{before} {after}");
    }

    /// A thread that ends takes its count with it nowhere: blocks freed by another thread count too.
    #[test]
    fn threads_free_what_other_threads_took() {
        let before = live_bytes().unwrap();
        for _ in 0..64 {
            let made = std::thread::spawn(|| vec![1u8; MIB]).join().unwrap();
            drop(made);
        }
        let after = live_bytes().unwrap();
        assert!(after.abs_diff(before) < 8 * MIB, "{before} {after}");
    }

    #[test]
    fn a_reservation_is_refused_where_the_limit_ends() {
        let ledger = LedgerLevel {
            budget_bytes: Some(1 << 40),
            block_bytes: 1 << 39,
            account_bytes: 0,
        };
        let budget = Arc::new(HeapBudget::new(ledger));
        // Far from what other tests take from the heap meanwhile.
        let mut first = budget.reserve(300 << 30).unwrap();
        let full = budget.reserve(300 << 30).unwrap_err();
        assert!(full.bytes == 300 << 30 && full.free_bytes < 300 << 30);
        assert_eq!(
            (budget.take_refused(), budget.take_refused()),
            (300 << 30, 0)
        );
        assert!(budget.growth_bytes() >= 300 << 30);
        first.shrink_to(100 << 30);
        assert!(budget.reserve_beside(300 << 30, 0.25).is_err());
        assert!(budget.reserve_beside(100 << 30, 0.25).is_ok());
        let second = budget.reserve(300 << 30).unwrap();
        drop((first, second));
        assert!(budget.growth_bytes() < 100 << 30);
        budget.set_ledger(LedgerLevel {
            budget_bytes: None,
            ..ledger
        });
        assert!(budget.reserve(usize::MAX / 4).is_ok());
    }

    #[test]
    fn growth_is_what_no_account_holds() {
        let budget = Arc::new(HeapBudget::new(LedgerLevel::default()));
        let near = |bytes: usize, expected: usize| bytes.abs_diff(expected) < 8 * MIB;
        let taken: Vec<u8> = Vec::with_capacity(200 * MIB);
        assert!(near(
            budget.growth_bytes(),
            200 * MIB - HeapBudget::WORKING_BYTES
        ));
        budget.set_ledger(LedgerLevel {
            account_bytes: 150 * MIB,
            ..LedgerLevel::default()
        });
        assert!(near(
            budget.growth_bytes(),
            50 * MIB - HeapBudget::WORKING_BYTES
        ));
        drop(taken);
        assert_eq!(budget.growth_bytes(), 0);
    }
}
