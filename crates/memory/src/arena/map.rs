//! One slab as one map: private anonymous pages, or a window of a shared memory file.

use rustix::mm::{self, MapFlags, ProtFlags};
use std::ops::Range;
use std::ptr::{self, NonNull};

use super::effect::Hint;

pub struct Slab {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a slab owns its pages alone in this process; nothing about them belongs to a thread.
unsafe impl Send for Slab {}
// SAFETY: through `&Slab` there are only reads.
unsafe impl Sync for Slab {}

pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// A huge page where pages have 4 KiB.
#[cfg(any(target_os = "linux", target_os = "android"))]
const HUGE_BYTES: usize = 2 << 20;

impl Slab {
    /// Starts where a huge page can, if one fits in and there are addresses for it.
    pub fn private(len: usize) -> Option<Slab> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(slab) = Slab::on_huge_border(len) {
            return Some(slab);
        }
        Slab::anywhere(len)
    }

    fn anywhere(len: usize) -> Option<Slab> {
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

    /// Maps more, and gives back what is before the border and behind the end.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn on_huge_border(len: usize) -> Option<Slab> {
        if len < HUGE_BYTES {
            return None;
        }
        let pages = len.checked_next_multiple_of(page_bytes())?;
        let all = Slab::anywhere(pages.checked_add(HUGE_BYTES)?)?;
        let before = all.start.as_ptr().align_offset(HUGE_BYTES);
        let behind = (before + pages)..all.len;
        let all = std::mem::ManuallyDrop::new(all);
        for part in [0..before, behind] {
            if !part.is_empty() {
                let from = all.start.as_ptr().wrapping_add(part.start);
                // SAFETY: pages of the fresh map that nothing refers to and no slab will own. Where the
                // system keeps them they cost addresses only.
                let _ = unsafe { mm::munmap(from.cast(), part.len()) };
            }
        }
        let start = NonNull::new(all.start.as_ptr().wrapping_add(before))?;
        Some(Slab { start, len })
    }

    /// `len` bytes of `file` from `offset` on, a multiple of the page. The file may still be shorter
    /// than that: the caller makes it long enough before the first touch.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn shared(file: rustix::fd::BorrowedFd<'_>, offset: u64, len: usize) -> Option<Slab> {
        isize::try_from(len).ok()?;
        // SAFETY: a fresh map at an address the kernel chooses.
        let start = unsafe {
            mm::mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                offset,
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

    /// Gives private pages back. `pages` has its borders on pages, the end possibly on that of the
    /// slab's last page, beyond `len`.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn release(&mut self, pages: Range<usize>) -> bool {
        // SAFETY: our own private anonymous pages, with no borrow alive (`&mut self`). Linux maps
        // fresh zero pages on the next touch, so every byte stays initialised.
        unsafe {
            mm::madvise(
                self.start.as_ptr().wrapping_add(pages.start).cast(),
                pages.len(),
                mm::Advice::LinuxDontNeed,
            )
        }
        .is_ok()
    }

    /// Elsewhere DONTNEED is a hint that may keep the old bytes; mapping over is not.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn release(&mut self, pages: Range<usize>) -> bool {
        // SAFETY: replaces exactly our own pages, with no borrow alive (`&mut self`).
        unsafe {
            mm::mmap_anonymous(
                self.start.as_ptr().wrapping_add(pages.start).cast(),
                pages.len(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED,
            )
        }
        .is_ok()
    }

    /// Puts the pages of every whole huge page of the slab together into one, at once. The rest stays in
    /// small pages.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn collapse(&mut self) -> std::io::Result<()> {
        /// Linux 6.1; kernels before it say EINVAL.
        const MADV_COLLAPSE: std::ffi::c_int = 25;
        // The system interface that the standard library is linked with; rustix does not know the advice.
        unsafe extern "C" {
            fn madvise(
                address: *mut std::ffi::c_void,
                bytes: usize,
                advice: std::ffi::c_int,
            ) -> std::ffi::c_int;
        }
        let bytes = self.len / HUGE_BYTES * HUGE_BYTES;
        if bytes == 0 || !(self.start.as_ptr() as usize).is_multiple_of(HUGE_BYTES) {
            return Err(std::io::ErrorKind::Unsupported.into());
        }
        // SAFETY: our own pages. The advice changes where bytes lie, never what they are.
        match unsafe { madvise(self.start.as_ptr().cast(), bytes, MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn collapse(&mut self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    pub fn resident_bytes(&self) -> Option<u64> {
        crate::resident::resident_bytes(self.start.as_ptr(), self.len)
    }

    /// Address range, for the kernel's tables of maps.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn addresses(&self) -> Range<u64> {
        let start = self.start.as_ptr() as u64;
        start..start.saturating_add(self.len as u64)
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn ask(&self, hint: Hint) -> Result<(), String> {
        let advice = match hint {
            Hint::HugePages => mm::Advice::LinuxHugepage,
            Hint::Merge => mm::Advice::LinuxMergeable,
        };
        // SAFETY: the range is our own map; both advices change where bytes lie, never what they
        // are.
        unsafe { mm::madvise(self.start.as_ptr().cast(), self.len, advice) }
            .map_err(|e| format!("the kernel refuses the advice: {e}"))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn ask(&self, _hint: Hint) -> Result<(), String> {
        Err("this system has no such advice".to_string())
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped; no borrow outlives `self`.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
