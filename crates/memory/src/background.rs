//! Threads whose work can wait.

/// From here on the calling thread gives way to every other, where the system lets a single thread do so (Linux,
/// Android). Elsewhere, and where it is refused, nothing changes.
pub fn give_way() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // A thread is a process of its own to this call; none named is the caller. Refused, its work is still right.
        let _ = rustix::process::setpriority_process(None, LEAST);
    }
}

/// The lowest of the usual priorities.
#[cfg(any(target_os = "linux", target_os = "android"))]
const LEAST: i32 = 19;

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_that_asks() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let before = priority();
        let there = std::thread::spawn(move || {
            give_way();
            priority()
        });
        assert_eq!(there.join().unwrap(), LEAST);
        assert_eq!(priority(), before);
    }
}
