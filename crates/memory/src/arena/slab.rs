//! One slab: private pages, a window of a memory file, or heap where the system has no `mmap`.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::memfd::Memfd;
use crate::system::SystemIo;

/// Every slab starts at a multiple of this: one cache line, one AVX-512 register.
pub const ALIGN: usize = 64;

/// The calls by which an arena takes pages from the system and gives them back. The provided methods make them; a test
/// overrides one to refuse it.
pub trait SlabIo: fmt::Debug + Send + Sync {
    /// Maps slab `index` of an arena, all zero: private memory, or the next part of `memfd`.
    fn map(&self, memfd: Option<&Arc<Memfd>>, index: usize, bytes: usize) -> Option<Slab> {
        Slab::map(memfd, index, bytes)
    }

    /// Gives all pages of a slab back. After `true` it reads as zero; after `false` nothing has changed.
    fn release(&self, slab: &mut Slab) -> bool {
        slab.release()
    }

    /// Replaces the small pages of a slab by huge ones, as far as whole ones fit in.
    fn collapse(&self, slab: &mut Slab) -> io::Result<()> {
        system::collapse(slab.start, slab.len)
    }
}

impl SlabIo for SystemIo {}

/// Bytes of an arena that lie in one piece and never move.
pub struct Slab {
    start: NonNull<u8>,
    len: usize,
    /// The memory file behind the slab, and which slab of it this is.
    file: Option<(Arc<Memfd>, usize)>,
}

// SAFETY: a slab owns its pages alone in this process; nothing about them belongs to a thread.
unsafe impl Send for Slab {}
// SAFETY: through `&Slab` there are only reads.
unsafe impl Sync for Slab {}

impl Slab {
    fn map(memfd: Option<&Arc<Memfd>>, index: usize, len: usize) -> Option<Slab> {
        // A slice may not be longer than this.
        isize::try_from(len).ok()?;
        let start = match memfd {
            None => system::map(len),
            Some(memfd) => memfd.map(index, len),
        }?;
        let file = memfd.map(|memfd| (memfd.clone(), index));
        Some(Slab { start, len, file })
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes, zeroed by the system, alive until `drop`; `&self` keeps writers away.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    fn release(&mut self) -> bool {
        match &self.file {
            Some((memfd, index)) => memfd.punch(*index),
            None => system::release(self.start, self.len),
        }
    }

    pub(super) fn resident_bytes(&self) -> Option<u64> {
        system::resident_bytes(self.start, self.len)
    }

    /// Asks the kernel to merge equal pages of this slab with others (KSM).
    pub(super) fn merge(&self) -> Result<(), String> {
        system::merge(self.start, self.len)
    }

    /// Addresses as the kernel's tables of maps have them.
    pub(super) fn addresses(&self) -> std::ops::Range<u64> {
        let start = self.start.as_ptr() as u64;
        start..start.saturating_add(self.len as u64)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        system::unmap(self.start, self.len);
    }
}

#[cfg(unix)]
mod system {
    use rustix::mm::{self, MapFlags, ProtFlags};
    use std::io;
    use std::ptr::{self, NonNull};

    /// A huge page where pages have 4 KiB.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const HUGE_BYTES: usize = 2 << 20;

    /// Starts at a multiple of a huge page, if one fits in and there are addresses for it.
    pub fn map(len: usize) -> Option<NonNull<u8>> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(start) = map_for_huge_pages(len) {
            return Some(start);
        }
        map_anywhere(len)
    }

    fn map_anywhere(len: usize) -> Option<NonNull<u8>> {
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
        NonNull::new(start.cast())
    }

    /// Maps one huge page more, and unmaps what lies before the first multiple and behind the end.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn map_for_huge_pages(len: usize) -> Option<NonNull<u8>> {
        if len < HUGE_BYTES {
            return None;
        }
        let pages = len.checked_next_multiple_of(rustix::param::page_size())?;
        let all = pages.checked_add(HUGE_BYTES)?;
        let first = map_anywhere(all)?.as_ptr();
        let before = first.align_offset(HUGE_BYTES);
        for part in [0..before, (before + pages)..all] {
            if !part.is_empty() {
                let from = first.wrapping_add(part.start);
                // SAFETY: pages of the fresh map that nothing refers to and no slab will own. Where the
                // system keeps them they cost addresses only.
                let _ = unsafe { mm::munmap(from.cast(), part.len()) };
            }
        }
        NonNull::new(first.wrapping_add(before))
    }

    pub fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: called by `drop` for exactly the range that was mapped; no borrow outlives the slab.
        let _ = unsafe { mm::munmap(start.as_ptr().cast(), len) };
    }

    /// Gives private pages back. The kernel rounds the length up to whole pages.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn release(start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: private anonymous pages of one slab, with no borrow alive (`&mut Slab`). Linux maps
        // fresh zero pages on the next touch, so every byte stays initialised.
        unsafe { mm::madvise(start.as_ptr().cast(), len, mm::Advice::LinuxDontNeed) }.is_ok()
    }

    /// Elsewhere DONTNEED is a hint that may keep the old bytes; mapping fresh pages over them is not.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn release(start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: replaces exactly the pages of one slab, with no borrow alive (`&mut Slab`).
        unsafe {
            mm::mmap_anonymous(
                start.as_ptr().cast(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED,
            )
        }
        .is_ok()
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn collapse(start: NonNull<u8>, len: usize) -> io::Result<()> {
        /// Linux 6.1; kernels before it say EINVAL.
        const MADV_COLLAPSE: std::ffi::c_int = 25;
        // The C library that `std` links has it; rustix does not know the advice.
        unsafe extern "C" {
            fn madvise(
                address: *mut std::ffi::c_void,
                bytes: usize,
                advice: std::ffi::c_int,
            ) -> std::ffi::c_int;
        }
        let bytes = len / HUGE_BYTES * HUGE_BYTES;
        if bytes == 0 || !(start.as_ptr() as usize).is_multiple_of(HUGE_BYTES) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: pages of one slab. The advice changes where bytes lie, never what they are.
        match unsafe { madvise(start.as_ptr().cast(), bytes, MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn collapse(_start: NonNull<u8>, _len: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn merge(start: NonNull<u8>, len: usize) -> Result<(), String> {
        // SAFETY: the range is one slab; the advice changes where bytes lie, never what they are.
        unsafe { mm::madvise(start.as_ptr().cast(), len, mm::Advice::LinuxMergeable) }
            .map_err(|e| format!("the kernel refuses the advice: {e}"))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn merge(_start: NonNull<u8>, _len: usize) -> Result<(), String> {
        Err("this system does not merge pages".to_string())
    }

    pub fn resident_bytes(start: NonNull<u8>, len: usize) -> Option<u64> {
        crate::resident::resident_bytes(start.as_ptr(), len)
    }
}

/// Slabs from the heap, where there is no `mmap`. Nothing is given back before the slab is dropped.
#[cfg(not(unix))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::ptr::NonNull;

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len, super::ALIGN).ok()
    }

    pub fn map(len: usize) -> Option<NonNull<u8>> {
        // SAFETY: an arena's slabs have at least one byte.
        NonNull::new(unsafe { alloc_zeroed(layout(len)?) })
    }

    pub fn unmap(start: NonNull<u8>, len: usize) {
        if let Some(layout) = layout(len) {
            // SAFETY: called by `drop` for memory that `map` allocated with this layout.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }

    pub fn release(_start: NonNull<u8>, _len: usize) -> bool {
        false
    }

    pub fn collapse(_start: NonNull<u8>, _len: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn merge(_start: NonNull<u8>, _len: usize) -> Result<(), String> {
        Err("this system does not merge pages".to_string())
    }

    pub fn resident_bytes(_start: NonNull<u8>, _len: usize) -> Option<u64> {
        None
    }
}
