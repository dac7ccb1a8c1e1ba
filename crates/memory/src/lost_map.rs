//! Mapped files that another program made shorter.
//!
//! Reading a page behind the new end of a mapped file raises SIGBUS, which ends a process without a word. A program that
//! calls [`report`] ends with one line that names the file instead, and exit code 1. There is nothing to go on with: the
//! bytes are gone, and a sum over some of them is already wrong.
//!
//! The handler does what a signal handler may: it reads a table of atomics and calls `write` and `_exit`. A fault
//! outside the table is not ours: the default action follows, which ends the process as before.
//!
//! Linux on x86-64 and Arm; elsewhere the default action stays.

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub(crate) use imp::Watched;
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub use imp::report;

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
pub(crate) struct Watched;

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
impl Watched {
    pub fn new(_file: &std::fs::File, _start: usize, _len: usize) -> Watched {
        Watched
    }
}

/// Does nothing here.
#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
pub fn report() {}

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod imp {
    use std::ffi::{c_int, c_void};
    use std::fs::File;
    use std::mem;
    use std::os::fd::AsRawFd;
    use std::ptr;
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

    /// Maps with a name. A model has a few, a session file and a prefix one each; those beyond it have none.
    const SLOTS: usize = 1024;

    struct Slot {
        /// 0: free; 1: being filled.
        start: AtomicUsize,
        end: AtomicUsize,
        /// The line to print, with its length.
        line: AtomicPtr<u8>,
        len: AtomicUsize,
    }

    static TABLE: [Slot; SLOTS] = [const {
        Slot {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            line: AtomicPtr::new(ptr::null_mut()),
            len: AtomicUsize::new(0),
        }
    }; SLOTS];

    const FILLING: usize = 1;

    /// A map in the table, until it is dropped.
    pub(crate) struct Watched(Option<&'static Slot>);

    impl Watched {
        pub fn new(file: &File, start: usize, len: usize) -> Watched {
            let take = |slot: &&Slot| {
                let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
                let taken = slot.start.compare_exchange(0, FILLING, success, failure);
                taken.is_ok()
            };
            let Some(slot) = TABLE.iter().find(take) else {
                return Watched(None);
            };
            // The name by which the file was opened; of one that was removed since the kernel says so.
            let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let name = name.map_or("a mapped file".into(), |name| name.display().to_string());
            let name: String = name.chars().filter(|c| !c.is_control()).collect();
            let line = format!("error: {name}: it was made shorter while it was in use\n");
            let line = line.into_bytes().into_boxed_slice();
            slot.len.store(line.len(), Ordering::Relaxed);
            let line = Box::into_raw(line).cast::<u8>();
            slot.line.store(line, Ordering::Relaxed);
            slot.end.store(start.saturating_add(len), Ordering::Relaxed);
            slot.start.store(start, Ordering::Release);
            Watched(Some(slot))
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            let Some(slot) = self.0 else { return };
            slot.start.store(FILLING, Ordering::Relaxed);
            slot.end.store(0, Ordering::Relaxed);
            let line = slot.line.swap(ptr::null_mut(), Ordering::Relaxed);
            let line = ptr::slice_from_raw_parts_mut(line, slot.len.load(Ordering::Relaxed));
            // SAFETY: `new` made this box and put it into the slot, which was ours alone since. A handler reads a line
            // only for an address inside its map, and no thread reads a map that is being dropped.
            drop(unsafe { Box::from_raw(line) });
            slot.start.store(0, Ordering::Release);
        }
    }

    /// `struct sigaction` of the C library, which is the same in glibc and musl on these CPUs.
    #[repr(C)]
    struct Action {
        handler: usize,
        mask: [u64; 16],
        flags: c_int,
        restorer: usize,
    }

    /// The beginning of `siginfo_t`, up to the address of a fault.
    #[repr(C)]
    struct FaultInfo {
        signal: c_int,
        error: c_int,
        code: c_int,
        address: usize,
    }

    const SIGBUS: c_int = 7;
    const SA_SIGINFO: c_int = 4;
    const SA_ONSTACK: c_int = 0x0800_0000;
    const SA_RESETHAND: c_int = 0x8000_0000_u32 as c_int;
    const STDERR: c_int = 2;

    unsafe extern "C" {
        fn sigaction(signal: c_int, action: *const Action, old: *mut Action) -> c_int;
        fn write(file: c_int, bytes: *const c_void, count: usize) -> isize;
        fn _exit(code: c_int) -> !;
    }

    /// Ends the process with a line that names the file when a mapped file was made shorter. For programs: a library
    /// leaves signals to its caller.
    pub fn report() {
        let handler: extern "C" fn(c_int, *const FaultInfo, *const c_void) = on_fault;
        // SAFETY: zeros are a valid action: no flags, nothing masked.
        let mut action: Action = unsafe { mem::zeroed() };
        action.handler = handler as usize;
        // A fault that is not ours happens again when the handler returns, and then has the default action.
        action.flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
        // SAFETY: the action is complete and lives during the call; the handler is async-signal-safe. Failing leaves the
        // default, which is what happened before.
        unsafe { sigaction(SIGBUS, &action, ptr::null_mut()) };
    }

    extern "C" fn on_fault(_: c_int, info: *const FaultInfo, _: *const c_void) {
        // SAFETY: with SA_SIGINFO the kernel passes a valid `siginfo_t`.
        let address = unsafe { (*info).address };
        for slot in &TABLE {
            let start = slot.start.load(Ordering::Acquire);
            if start > FILLING && (start..slot.end.load(Ordering::Relaxed)).contains(&address) {
                let line = slot.line.load(Ordering::Relaxed).cast::<c_void>();
                let len = slot.len.load(Ordering::Relaxed);
                // SAFETY: a filled slot has a line of that length, which lives as long as the map that is being read.
                unsafe {
                    write(STDERR, line, len);
                    _exit(1);
                }
            }
        }
    }
}
