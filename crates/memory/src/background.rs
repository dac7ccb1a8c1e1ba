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

#[cfg(any(target_os = "linux", target_os = "android"))]
mod idle {
    pub fn enter() {
        // SAFETY: a C struct of integers.
        let none: libc::sched_param = unsafe { std::mem::zeroed() };
        // SAFETY: 0 is the calling thread, and the call reads the struct, which outlives it.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &none) };
    }

    #[cfg(test)]
    pub fn is_entered() -> bool {
        // SAFETY: 0 is the calling thread; no memory is involved.
        unsafe { libc::sched_getscheduler(0) == libc::SCHED_IDLE }
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_changes() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let before = priority();
        let there = std::thread::spawn(move || {
            lower_priority();
            (priority(), idle::is_entered())
        });
        assert_eq!(there.join().unwrap(), (NICE_MAX, true));
        assert_eq!((priority(), idle::is_entered()), (before, false));
    }
}
