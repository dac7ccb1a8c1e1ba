//! The thread pool: workers spin, then park.
//!
//! A decode step is some 150 short parallel regions, each a few tens of microseconds long, so what
//! matters is how fast a region starts and ends, not fairness or stealing. One region runs at a
//! time. Threads claim its units through one counter, the caller among them; and the caller does not wait for
//! a worker that has not entered the region when the units run out (it may be asleep, or another program
//! may have its core).
//!
//! This is no task scheduler. A region inside a region runs serially on the thread that started it, and
//! so does one started while another thread's region is running.
//!
//! Nothing here decides a result: which thread runs a unit, and in which order, is not defined.
//!
//! ```text
//! state: | generation (32) | open (1) | threads inside (31) |
//!
//! caller                                   worker
//!   job = f; next = 0                        spin until open and generation is new
//!   state = generation + 1, open, 0          state += 1 if still open     (enter)
//!   wake the parked                          claim units
//!   claim units                              state -= 1                   (leave)
//!   state: close
//!   wait until no thread is inside
//! ```

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::thread::{self, JoinHandle, Thread};
use crate::sync::{Arc, Instant, Mutex, MutexGuard, POLLS, Slot, spin_loop};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::time::Duration;

/// How long a worker without work spins before it parks. Longer than the serial gaps inside a
/// token (a norm, a sampler's pass over the logits), shorter than anything a battery notices.
const SPIN: Duration = Duration::from_micros(60);

/// Polls of a caller waiting for the last unit before it starts to yield its core: with more
/// threads than cores the thread it waits for may need it.
const POLLS_BEFORE_YIELD: u32 = 2000;

const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
const GENERATION: u32 = 32;

/// `f(worker, unit)`: `worker` is below the pool's thread count, and no two threads inside one
/// region have the same.
type Body = dyn Fn(usize, usize) + Sync;

/// What a body panicked with.
type Panic = Box<dyn Any + Send>;

/// A value on a cache line of its own (two: x86 prefetches lines in pairs).
#[repr(align(128))]
struct CachePadded<T>(T);

struct Shared {
    state: CachePadded<AtomicU64>,
    next: CachePadded<AtomicUsize>,
    units: AtomicUsize,
    /// Written by the caller while no thread is inside and the state is closed, read by threads
    /// inside.
    body: Slot<Option<*const Body>>,
    quit: AtomicBool,
    panic: Mutex<Option<Panic>>,
    parked: Box<[CachePadded<AtomicBool>]>,
    /// (thread): the next unit of its own run, in [`ThreadPool::run_in_order`].
    runs: Box<[CachePadded<AtomicUsize>]>,
}

// SAFETY: `body` is the only field that is not `Sync` by itself. It is written only by the holder
// of `ThreadPool::busy` while the state is closed with no thread inside, and read only by threads inside.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `body` is to a `Sync` closure and is used only while its region runs.
unsafe impl Send for Shared {}

/// A fixed set of workers. Dropping it joins them.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
    /// A region is running. A caller that starts another, from inside or outside, runs it alone
    /// instead of waiting.
    busy: AtomicBool,
}

impl ThreadPool {
    /// `threads` threads in all: the caller of [`ThreadPool::run`] and `threads - 1` workers. Zero means
    /// one. The pool does without workers that the system refuses to start.
    pub fn new(threads: usize) -> ThreadPool {
        let wanted = threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            state: CachePadded(AtomicU64::new(0)),
            next: CachePadded(AtomicUsize::new(0)),
            units: AtomicUsize::new(0),
            body: Slot::new(None),
            quit: AtomicBool::new(false),
            panic: Mutex::new(None),
            parked: (0..wanted)
                .map(|_| CachePadded(AtomicBool::new(false)))
                .collect(),
            runs: (0..=wanted)
                .map(|_| CachePadded(AtomicUsize::new(0)))
                .collect(),
        });
        let mut workers = Vec::with_capacity(wanted);
        for index in 0..wanted {
            let mine = Arc::clone(&shared);
            let started = thread::Builder::new()
                .name(format!("haversack-{}", index + 1))
                .spawn(move || work(&mine, index));
            match started {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        ThreadPool {
            handles: workers.iter().map(|w| w.thread().clone()).collect(),
            workers,
            shared,
            busy: AtomicBool::new(false),
        }
    }

    /// The threads that may work at once, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// `f(unit)` once for each unit in `0..units`, in any order on any thread; returns when all
    /// are done. A panic in `f` stops the units not yet begun and continues in the caller.
    pub fn run(&self, units: usize, f: &(dyn Fn(usize) + Sync)) {
        self.run_indexed(units, &|_, unit| f(unit));
    }

    /// Like [`ThreadPool::run`], and tells `f` which thread it is on: `f(worker, unit)` with `worker <
    /// threads()`, so that each may have its own scratch.
    pub fn run_indexed(&self, units: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        self.share(units, f, || self.region(units, f));
    }

    /// Like [`ThreadPool::run_indexed`], and a thread that has done a unit goes on with the next one unless
    /// another thread took it: for work that prefetches its next unit's memory. Units may be small:
    /// threads share a counter only where one has finished its own run and helps another.
    pub fn run_in_order(&self, units: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        let runs = &self.shared.runs;
        let start = |run: usize| run * units / runs.len();
        let claim_runs = |worker: usize, _: usize| {
            // Its own run, then what is left of the others.
            for run in (worker..worker + runs.len()).map(|run| run % runs.len()) {
                loop {
                    let unit = runs[run].0.fetch_add(1, Ordering::Relaxed);
                    if unit >= start(run + 1) {
                        break;
                    }
                    f(worker, unit);
                }
            }
        };
        self.share(units, f, || {
            for (run, next) in runs.iter().enumerate() {
                next.0.store(start(run), Ordering::Relaxed);
            }
            self.region(self.threads(), &claim_runs)
        });
    }

    /// Runs all units here if there are no workers or another region is running; else runs `region` and
    /// resumes its panic.
    fn share(
        &self,
        units: usize,
        f: &(dyn Fn(usize, usize) + Sync),
        region: impl FnOnce() -> Option<Panic>,
    ) {
        let alone = units <= 1 || self.workers.is_empty();
        if alone || self.busy.swap(true, Ordering::Acquire) {
            for unit in 0..units {
                f(0, unit);
            }
            return;
        }
        let payload = region();
        self.busy.store(false, Ordering::Release);
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    /// One parallel region; the caller holds `busy`. Returns what `f` panicked with.
    fn region(&self, units: usize, f: &(dyn Fn(usize, usize) + Sync)) -> Option<Panic> {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is used by threads inside the region, and
        // this function does not return before all of them have left.
        let body = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync + '_), *const Body>(f)
        };
        // SAFETY: `busy` is ours and the state is closed with no thread inside, so no thread reads it.
        unsafe { shared.body.set(Some(body)) };
        shared.units.store(units, Ordering::Relaxed);
        shared.next.0.store(0, Ordering::Relaxed);
        let generation = (shared.state.0.load(Ordering::Relaxed) >> GENERATION).wrapping_add(1);
        shared
            .state
            .0
            .store((generation << GENERATION) | OPEN, Ordering::Release);
        // Pairs with the fence in `park`: either this thread sees the worker parked, or the worker
        // sees the region open.
        fence(Ordering::SeqCst);
        for (parked, handle) in shared.parked.iter().zip(&self.handles) {
            if parked.0.load(Ordering::Relaxed) {
                handle.unpark();
            }
        }

        claim(shared, 0, f);

        let mut state = shared.state.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut polls = 0;
        while state & INSIDE != 0 {
            polls += 1;
            if polls < POLLS_BEFORE_YIELD {
                spin_loop();
            } else {
                thread::yield_now();
            }
            state = shared.state.0.load(Ordering::Acquire);
        }
        lock(&shared.panic).take()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches every panic of a body, so joining has nothing to report.
            let _ = worker.join();
        }
    }
}

fn lock(panic: &Mutex<Option<Panic>>) -> MutexGuard<'_, Option<Panic>> {
    panic.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Claims and runs units until there are none. Never unwinds: the first panic is kept for the
/// caller and ends the claiming on every thread.
fn claim(shared: &Shared, worker: usize, f: &(dyn Fn(usize, usize) + Sync)) {
    let units = shared.units.load(Ordering::Relaxed);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        loop {
            let unit = shared.next.0.fetch_add(1, Ordering::Relaxed);
            if unit >= units {
                break;
            }
            f(worker, unit);
        }
    }));
    if let Err(payload) = outcome {
        // Half the range, so that the claims still to come cannot wrap it round.
        shared.next.0.store(usize::MAX / 2, Ordering::Relaxed);
        lock(&shared.panic).get_or_insert(payload);
    }
}

/// The life of worker `index` (thread `index + 1` of the pool).
fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let state = await_region(shared, index, seen);
        if shared.quit.load(Ordering::Acquire) {
            return;
        }
        let enter = shared.state.0.compare_exchange_weak(
            state,
            state + 1,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if enter.is_err() {
            continue;
        }
        seen = state >> GENERATION;
        // SAFETY: this thread is inside, so the caller's write happened before and the next one
        // waits; the closure outlives the region, which lasts until this thread has left.
        unsafe {
            if let Some(body) = shared.body.get() {
                claim(shared, index + 1, &*body);
            }
        }
        shared.state.0.fetch_sub(1, Ordering::Release);
    }
}

/// Waits for an open region of another generation than `seen`, or for the end of the pool.
fn await_region(shared: &Shared, index: usize, seen: u64) -> u64 {
    loop {
        let start = Instant::now();
        loop {
            for _ in 0..POLLS {
                let state = shared.state.0.load(Ordering::Acquire);
                if state & OPEN != 0 && state >> GENERATION != seen {
                    return state;
                }
                spin_loop();
            }
            if shared.quit.load(Ordering::Acquire) {
                return 0;
            }
            if start.elapsed() > SPIN {
                break;
            }
        }
        let parked = &shared.parked[index].0;
        parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let state = shared.state.0.load(Ordering::Relaxed);
        let open = state & OPEN != 0 && state >> GENERATION != seen;
        if !open && !shared.quit.load(Ordering::SeqCst) {
            thread::park();
        }
        parked.store(false, Ordering::Relaxed);
    }
}

/// A pointer that may go to other threads. Its maker promises that no two threads touch the same
/// element.
pub(crate) struct Shareable<T>(pub(crate) *mut T);

// SAFETY: see the type: the maker promises disjoint use, and `T: Send` lets the elements travel.
unsafe impl<T: Send> Sync for Shareable<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shareable<T> {}

impl<T> Shareable<T> {
    /// A method rather than the field, so that a closure captures the wrapper and not the bare
    /// pointer.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

/// `f(index, part)` for each part of `chunk` elements of `slice` (the last may be shorter), in
/// parallel. A chunk of zero means the whole slice.
pub fn chunks_mut<T: Send>(
    pool: &ThreadPool,
    slice: &mut [T],
    chunk: usize,
    f: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let len = slice.len();
    let chunk = if chunk == 0 { len.max(1) } else { chunk };
    let base = Shareable(slice.as_mut_ptr());
    pool.run(len.div_ceil(chunk), &|index| {
        let start = index * chunk;
        let end = len.min(start.saturating_add(chunk));
        // SAFETY: `index < ceil(len / chunk)`, so `start < len`; parts of different indices do not
        // overlap, each index runs once, and `slice` is borrowed until `run` returns.
        let part = unsafe { std::slice::from_raw_parts_mut(base.get().add(start), end - start) };
        f(index, part);
    });
}
