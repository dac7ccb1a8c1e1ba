//! Private anonymous memory in slabs, zero until touched.
//!
//! ```text
//! Arena ─ slab 0 [................]  slab 1 [................]  slab 2 …
//!          one map each, grown on demand, never moved, 64-byte aligned
//! ```
//!
//! A slab costs address space when it is added and pages only where it is written; [`Arena::release`]
//! gives its pages back and it reads as zero again. Private anonymous memory is the only kind for
//! which that is true: pages of shared memory stay allocated after `MADV_DONTNEED`.
//!
//! What an arena is not: an allocator. Which block lies where inside a slab is its owner's business.
//!
//! Invariants: a slab's address and length never change; every byte of it is readable and
//! initialised (to zero by the kernel, or by its owner); running out is a value, [`ArenaError`],
//! after which the arena is as it was.

use std::fmt;

/// Every slab starts on such a border: one cache line, one AVX-512 register.
pub const ALIGN: usize = 64;

/// Which slab, in the order they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabIndex(pub usize);

/// Why a slab was not added. The arena is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaError {
    pub slab_bytes: usize,
    pub mapped_bytes: usize,
}

impl fmt::Display for ArenaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the system gave no {} bytes more ({} are mapped)",
            self.slab_bytes, self.mapped_bytes
        )
    }
}

impl std::error::Error for ArenaError {}

/// Slabs of one size.
pub struct Arena {
    slab_bytes: usize,
    slabs: Vec<imp::Slab>,
}

impl Arena {
    /// An arena without slabs. `slab_bytes` is taken as it is; 0 counts as 1.
    pub fn new(slab_bytes: usize) -> Arena {
        Arena {
            slab_bytes: slab_bytes.max(1),
            slabs: Vec::new(),
        }
    }

    pub fn slab_bytes(&self) -> usize {
        self.slab_bytes
    }

    pub fn slabs(&self) -> usize {
        self.slabs.len()
    }

    /// Address space taken by all slabs, touched or not.
    pub fn mapped_bytes(&self) -> usize {
        self.slab_bytes.saturating_mul(self.slabs.len())
    }

    /// One slab more, all zero, without writing to it.
    pub fn add_slab(&mut self) -> Result<SlabIndex, ArenaError> {
        let refused = ArenaError {
            slab_bytes: self.slab_bytes,
            mapped_bytes: self.mapped_bytes(),
        };
        self.slabs.try_reserve(1).map_err(|_| refused)?;
        let slab = imp::Slab::new(self.slab_bytes).ok_or(refused)?;
        self.slabs.push(slab);
        Ok(SlabIndex(self.slabs.len() - 1))
    }

    /// The bytes of slab `i`. An index the arena never gave out is a bug and panics.
    pub fn slab(&self, i: SlabIndex) -> &[u8] {
        self.slabs[i.0].as_slice()
    }

    pub fn slab_mut(&mut self, i: SlabIndex) -> &mut [u8] {
        self.slabs[i.0].as_mut_slice()
    }

    /// All slabs at once, for work that is split over them.
    pub fn slabs_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.slabs.iter_mut().map(imp::Slab::as_mut_slice)
    }

    /// Gives the pages of slab `i` back; it reads as zero afterwards, whatever the system did.
    /// Returns false where the pages could not be given back (locked memory) and were cleared
    /// instead.
    pub fn release(&mut self, i: SlabIndex) -> bool {
        let slab = &mut self.slabs[i.0];
        let gone = slab.release();
        if !gone {
            slab.as_mut_slice().fill(0);
        }
        gone
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Arena({} slabs of {} bytes)",
            self.slabs.len(),
            self.slab_bytes
        )
    }
}

#[cfg(unix)]
mod imp {
    use rustix::mm::{self, MapFlags, ProtFlags};
    use std::ptr::{self, NonNull};

    pub struct Slab {
        start: NonNull<u8>,
        len: usize,
    }

    // SAFETY: a slab owns its pages alone; nothing about them belongs to a thread.
    unsafe impl Send for Slab {}
    // SAFETY: through `&Slab` there are only reads.
    unsafe impl Sync for Slab {}

    impl Slab {
        pub fn new(len: usize) -> Option<Slab> {
            // A slice may not be longer than this.
            isize::try_from(len).ok()?;
            // SAFETY: a fresh private map at an address the kernel chooses.
            let start = unsafe {
                mm::mmap_anonymous(
                    ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE,
                )
            }
            .ok()?;
            let start = NonNull::new(start.cast::<u8>())?;
            Some(Slab { start, len })
        }

        pub fn as_slice(&self) -> &[u8] {
            // SAFETY: `len` mapped bytes, zeroed by the kernel, alive until `drop`; `&self` keeps
            // writers away.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
        }

        pub fn as_mut_slice(&mut self) -> &mut [u8] {
            // SAFETY: as above, and `&mut self` makes this the only borrow.
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
        }

        #[cfg(target_os = "linux")]
        pub fn release(&mut self) -> bool {
            // SAFETY: our own private anonymous pages, with no borrow alive (`&mut self`). Linux
            // maps fresh zero pages on the next touch, so every byte stays initialised.
            unsafe {
                mm::madvise(
                    self.start.as_ptr().cast(),
                    self.len,
                    mm::Advice::LinuxDontNeed,
                )
            }
            .is_ok()
        }

        /// Elsewhere DONTNEED is a hint that may keep the old bytes; mapping over is not.
        #[cfg(not(target_os = "linux"))]
        pub fn release(&mut self) -> bool {
            // SAFETY: replaces exactly our own range, with no borrow alive (`&mut self`).
            unsafe {
                mm::mmap_anonymous(
                    self.start.as_ptr().cast(),
                    self.len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::FIXED,
                )
            }
            .is_ok()
        }
    }

    impl Drop for Slab {
        fn drop(&mut self) {
            // SAFETY: exactly the range `new` mapped; no borrow outlives `self`.
            let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(not(unix))]
mod imp {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    pub struct Slab {
        start: NonNull<u8>,
        layout: Layout,
    }

    // SAFETY: a slab owns its bytes alone; nothing about them belongs to a thread.
    unsafe impl Send for Slab {}
    // SAFETY: through `&Slab` there are only reads.
    unsafe impl Sync for Slab {}

    impl Slab {
        pub fn new(len: usize) -> Option<Slab> {
            let layout = Layout::from_size_align(len, super::ALIGN).ok()?;
            // SAFETY: `Arena::new` lets no size of 0 through.
            let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
            Some(Slab { start, layout })
        }

        pub fn as_slice(&self) -> &[u8] {
            // SAFETY: `layout.size()` zeroed bytes that live until `drop`.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
        }

        pub fn as_mut_slice(&mut self) -> &mut [u8] {
            // SAFETY: as above, and `&mut self` makes this the only borrow.
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
        }

        pub fn release(&mut self) -> bool {
            false
        }
    }

    impl Drop for Slab {
        fn drop(&mut self) {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_begin_as_zero_keep_what_is_written_and_forget_it_when_released() {
        let mut arena = Arena::new(100_000);
        let a = arena.add_slab().unwrap();
        let b = arena.add_slab().unwrap();
        assert_eq!((a, b), (SlabIndex(0), SlabIndex(1)));
        assert_eq!(arena.mapped_bytes(), 200_000);
        for i in [a, b] {
            assert_eq!(arena.slab(i).len(), 100_000);
            assert!(arena.slab(i).iter().all(|&x| x == 0));
            assert_eq!(arena.slab(i).as_ptr() as usize % ALIGN, 0);
        }
        arena.slab_mut(a).fill(1);
        arena.slab_mut(b).fill(2);
        assert!(arena.slab(a).iter().all(|&x| x == 1));
        arena.release(a);
        assert!(arena.slab(a).iter().all(|&x| x == 0));
        assert!(arena.slab(b).iter().all(|&x| x == 2));
        arena.slab_mut(a)[99_999] = 9;
        assert_eq!(arena.slab(a)[99_999], 9);
    }

    #[test]
    fn running_out_is_an_answer_and_leaves_the_arena_as_it_was() {
        let mut arena = Arena::new(usize::MAX / 2);
        let refused = arena.add_slab().unwrap_err();
        assert_eq!(refused.slab_bytes, usize::MAX / 2);
        assert_eq!(arena.slabs(), 0);
        let mut arena = Arena::new(usize::MAX);
        assert!(arena.add_slab().is_err());
        assert_eq!(arena.mapped_bytes(), 0);
    }

    /// The reason for the type: adding maps without touching, and releasing gives pages back.
    #[cfg(target_os = "linux")]
    #[test]
    fn only_touched_pages_count_and_released_ones_go() {
        use rustix::mm::{self, MprotectFlags};
        let page = rustix::param::page_size();
        let bytes = 16 << 20;
        let mut arena = Arena::new(bytes);
        let i = arena.add_slab().unwrap();
        // The kernel merges neighbouring maps into one line of smaps; read-only first and last
        // pages make the middle a line of its own, which no other test can add to.
        let start = arena.slab(i).as_ptr() as *mut std::ffi::c_void;
        for at in [0, bytes - page] {
            // SAFETY: one page of our own slab, which nothing borrows now and the test never
            // writes to.
            unsafe { mm::mprotect(start.byte_add(at), page, MprotectFlags::READ) }.unwrap();
        }
        let middle = start as usize + page;
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let mut lines = text
                .lines()
                .skip_while(|line| !line.starts_with(&format!("{middle:x}-")));
            let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
            let kib: usize = rss.trim().trim_end_matches(" kB").parse().unwrap();
            kib * 1024
        };
        assert_eq!(resident(), 0);
        arena.slab_mut(i)[page..page + (8 << 20)].fill(1);
        assert!(resident() >= 8 << 20);
        assert!(arena.release(i));
        assert_eq!(resident(), 0);
    }
}
