//! Threads for work without a deadline.

/// Gives the calling thread the lowest usual priority, where the system has priorities of single threads (Linux,
/// Android). Elsewhere, and where the system refuses, nothing changes.
pub fn lower_priority() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // To this call a thread is a process, and `None` is the calling one. Refused, its work is still right.
        let _ = rustix::process::setpriority_process(None, NICE_MAX);
    }
}

/// The lowest of the usual priorities.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NICE_MAX: i32 = 19;

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_changes() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let before = priority();
        let there = std::thread::spawn(move || {
            lower_priority();
            priority()
        });
        assert_eq!(there.join().unwrap(), NICE_MAX);
        assert_eq!(priority(), before);
    }
}
