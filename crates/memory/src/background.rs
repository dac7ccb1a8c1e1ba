//! Threads for work without a deadline.

/// Lets the calling thread run when no other thread wants its core, where the system has policies of single threads (Linux,
/// Android). Elsewhere, and where the system refuses, nothing changes.
///
/// The lowest usual priority is not enough: a thread that has it finishes its slice, some 3 ms, before one that wakes up, and
/// every product of a step waits for its slowest thread.
pub fn lower_priority() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // To this call a thread is a process, and `None` is the calling one. Refused, its work is still right.
        let _ = rustix::process::setpriority_process(None, NICE);
        idle::set(None, idle::IDLE);
    }
}

/// A thread that lowers its priority, for those who wait for it.
#[derive(Clone, Copy, Debug)]
pub struct BackgroundThread {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    id: rustix::thread::Pid,
}

impl BackgroundThread {
    /// The calling thread.
    pub fn here() -> BackgroundThread {
        BackgroundThread {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            id: rustix::thread::gettid(),
        }
    }

    /// Lets it have a share of its core even where others want all of it: a client waits for it, and other programs may
    /// compute for hours. The thread must not have ended.
    pub fn take_share(self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        idle::set(Some(self.id), idle::USUAL);
    }
}

/// A fifteenth of a core beside a thread of the usual priority. It cannot be raised again, the policy can.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NICE: i32 = 12;

/// The policy of a thread that runs when no other wants the core. Our crates do not have the call, musl has it in name only,
/// and on other processors it has another number.
#[cfg(all(
    any(target_os = "linux", target_os = "android"),
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod idle {
    use rustix::thread::Pid;
    use std::ffi::{c_int, c_long};

    pub const USUAL: c_int = 0;
    pub const IDLE: c_int = 5;
    #[cfg(target_arch = "x86_64")]
    const SET_SCHEDULER: c_long = 144;
    #[cfg(target_arch = "aarch64")]
    const SET_SCHEDULER: c_long = 119;

    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }

    /// Of a thread, or of the calling one.
    pub fn set(thread: Option<Pid>, policy: c_int) {
        let thread = thread.map_or(0, |id| id.as_raw_nonzero().get());
        let priority: c_int = 0;
        // SAFETY: 0 is the calling thread. The kernel reads one integer through the pointer.
        unsafe { syscall(SET_SCHEDULER, thread, policy, &raw const priority) };
    }
}

#[cfg(not(all(
    any(target_os = "linux", target_os = "android"),
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
mod idle {
    pub const USUAL: i32 = 0;
    pub const IDLE: i32 = 5;

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn set(_: Option<rustix::thread::Pid>, _: i32) {}
}

#[cfg(all(
    test,
    any(target_os = "linux", target_os = "android"),
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_changes() {
        // As the kernel says it: nice value and policy.
        let policy = || -> (i32, u32) {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (_, fields) = stat.rsplit_once(')').unwrap();
            let fields: Vec<&str> = fields.split_whitespace().collect();
            (fields[16].parse().unwrap(), fields[38].parse().unwrap())
        };
        let before = policy();
        let (tell, told) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel();
        let there = std::thread::spawn(move || {
            lower_priority();
            tell.send((BackgroundThread::here(), policy())).unwrap();
            wait.recv().unwrap();
            policy()
        });
        let (thread, lowered) = told.recv().unwrap();
        assert_eq!(lowered, (NICE, 5));
        thread.take_share();
        go.send(()).unwrap();
        assert_eq!(there.join().unwrap(), (NICE, 0));
        assert_eq!(policy(), before);
    }
}
