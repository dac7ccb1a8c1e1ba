//! The process's heap.

/// Gives free pages of the heap back to the system. A thread that starts afterwards allocates from an arena of its own, and
/// what loading a model has left behind would stay resident beside it: 0.6 MB with SmolLM2.
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
