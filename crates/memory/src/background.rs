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
        let _ = rustix::process::setpriority_process(None, NICE_MAX);
        idle::enter();
    }
}

/// The lowest of the usual priorities.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NICE_MAX: i32 = 19;

/// The policy of a thread that runs when no other wants the core. Our crates do not have the call, musl has it in name only,
/// and on other processors it has another number.
#[cfg(all(
    any(target_os = "linux", target_os = "android"),
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod idle {
    use std::ffi::{c_int, c_long};

    const SCHED_IDLE: c_int = 5;
    #[cfg(target_arch = "x86_64")]
    const SET_SCHEDULER: c_long = 144;
    #[cfg(target_arch = "aarch64")]
    const SET_SCHEDULER: c_long = 119;

    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }

    pub fn enter() {
        let priority: c_int = 0;
        // SAFETY: 0 is the calling thread. The kernel reads one integer through the pointer.
        unsafe { syscall(SET_SCHEDULER, 0 as c_int, SCHED_IDLE, &raw const priority) };
    }
}

#[cfg(not(all(
    any(target_os = "linux", target_os = "android"),
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
mod idle {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn enter() {}
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
        let there = std::thread::spawn(move || {
            lower_priority();
            policy()
        });
        assert_eq!(there.join().unwrap(), (NICE_MAX, 5));
        assert_eq!(policy(), before);
    }
}
