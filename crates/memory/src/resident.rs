//! Which pages of a map are in memory: `mincore`.

/// Whole pages of the `len` mapped bytes at `start`, which lies on a page border, that are in
/// memory. `None` where the system has no such call or refuses it. Reads nothing of the pages, so
/// any address is sound: one that is not mapped is refused.
#[cfg(any(
    target_os = "linux",
    target_os = "android",
    target_vendor = "apple",
    target_os = "freebsd",
    target_os = "netbsd"
))]
pub(crate) fn resident_bytes(start: *const u8, len: usize) -> Option<u64> {
    use std::ffi::{c_int, c_void};
    /// Pages of one call; one byte each on the stack.
    const PAGES_AT_ONCE: usize = 4096;
    // The C library that `std` links has it on each of these systems; its vector is `char *` or
    // `unsigned char *`, one byte per page either way.
    unsafe extern "C" {
        fn mincore(start: *mut c_void, len: usize, pages: *mut u8) -> c_int;
    }
    let page = rustix::param::page_size();
    let mut states = [0u8; PAGES_AT_ONCE];
    let mut pages = 0u64;
    let mut at = 0;
    while at < len {
        let part = (len - at).min(PAGES_AT_ONCE * page);
        // SAFETY: the kernel writes one byte per page of `part`, at most PAGES_AT_ONCE of them, to
        // `states`, and checks the range itself.
        let failed = unsafe {
            mincore(
                start.wrapping_add(at).cast_mut().cast(),
                part,
                states.as_mut_ptr(),
            )
        };
        if failed != 0 {
            return None;
        }
        // Only the lowest bit says "in memory"; the others differ between systems.
        let asked = &states[..part.div_ceil(page)];
        pages += asked.iter().filter(|&&s| s & 1 == 1).count() as u64;
        at += part;
    }
    Some(pages * page as u64)
}

#[cfg(all(
    unix,
    not(any(
        target_os = "linux",
        target_os = "android",
        target_vendor = "apple",
        target_os = "freebsd",
        target_os = "netbsd"
    ))
))]
pub(crate) fn resident_bytes(_start: *const u8, _len: usize) -> Option<u64> {
    None
}
