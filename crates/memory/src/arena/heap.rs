//! Slabs from the heap, where there is no `mmap`. Nothing can be given back before the end.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;

use super::effect::{Effect, Hint};

pub struct Slab {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a slab owns its bytes alone; nothing about them belongs to a thread.
unsafe impl Send for Slab {}
// SAFETY: through `&Slab` there are only reads.
unsafe impl Sync for Slab {}

/// No pages: any byte can be the border of a range.
pub fn page_bytes() -> usize {
    1
}

impl Slab {
    pub fn private(len: usize) -> Option<Slab> {
        let layout = Layout::from_size_align(len.max(1), super::ALIGN).ok()?;
        // SAFETY: the size is at least 1.
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

    pub fn release(&mut self, _pages: Range<usize>) -> bool {
        false
    }

    pub fn collapse(&mut self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    pub fn resident_bytes(&self) -> Option<u64> {
        None
    }

    pub fn ask(&self, _hint: Hint) -> Result<(), String> {
        Err("this system has no such advice".to_string())
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated in `private` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

pub fn effect(_hint: Hint, _shared: bool, _slabs: &[Slab]) -> Effect {
    Effect::NotPossible {
        why: "this system has no such advice".to_string(),
    }
}
