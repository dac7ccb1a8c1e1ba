//! Memory in slabs, zero until touched, whose pages go back to the system when they are released.
//!
//! ```text
//! Arena ─ slab 0 [................]  slab 1 [................]  slab 2 …
//!          one map each, grown on demand, never moved, 64-byte aligned
//! ```
//!
//! A slab costs address space when it is added and pages only where it is written;
//! [`Arena::release`] gives its pages back and it reads as zero again. Where the pages come from:
//!
//! | [`Backing`] | system | pages | release |
//! |---|---|---|---|
//! | `Private` | Linux, Android | private anonymous | `MADV_DONTNEED` |
//! | `Private` | Apple, other unix | private anonymous | fresh pages mapped over the old |
//! | `Private` | elsewhere | heap | cleared, kept until the arena is dropped |
//! | `Mergeable` | as `Private` | the same, with `MADV_MERGEABLE` on Linux and Android | as `Private` |
//! | `Memfd` | Linux, Android from API level 30 | a memory file, see `memfd.rs` | a hole is punched |
//!
//! On Linux a private slab that can hold a huge page (2 MiB) starts at a multiple of one, so that
//! [`Arena::collapse`] can replace its small pages once all of them are in use. Until then a page
//! is resident where it was written, and nowhere else.
//!
//! Linux is what runs in tests. The Android and Apple paths are compiled only.
//!
//! What an arena is not: an allocator. Its owner decides which block lies where inside a slab.
//!
//! Invariants: a slab's address and length never change; every byte of it is readable and
//! initialised (to zero by the kernel, or by its owner); running out is a value, [`ArenaError`],
//! after which the arena is as it was; only the owner writes to a slab, except zeros where a release
//! failed.

mod effect;
mod error;
mod memfd;
mod slab;

pub use effect::Effect;
pub use error::{ArenaError, Refusal};
pub use memfd::Memfd;
pub use slab::{ALIGN, Slab, SlabIo};

use crate::system::SystemIo;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Which slab, in the order they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabIndex(pub usize);

/// Where the pages of an arena come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// This process alone.
    #[default]
    Private,
    /// This process alone, and the kernel may keep equal pages once (KSM); see [`Arena::merged`].
    Mergeable,
    /// A memory file that other processes can map; see [`Arena::memfd_path`].
    Memfd,
}

impl Backing {
    pub const ALL: [Backing; 3] = [Backing::Private, Backing::Mergeable, Backing::Memfd];

    pub fn name(self) -> &'static str {
        match self {
            Backing::Private => "private",
            Backing::Mergeable => "mergeable",
            Backing::Memfd => "memfd",
        }
    }
}

/// Slabs of one size.
pub struct Arena {
    slab_bytes: usize,
    slabs: Vec<Slab>,
    backing: Backing,
    /// The file behind the slabs of [`Backing::Memfd`].
    memfd: Option<Arc<Memfd>>,
    io: Arc<dyn SlabIo>,
    /// Why the kernel did not mark a slab of [`Backing::Mergeable`].
    merge_refused: Option<String>,
    /// The result of the last [`Arena::collapse`].
    collapsed: Option<io::Result<()>>,
}

impl Arena {
    /// A private arena without slabs. `slab_bytes` is taken as it is; 0 counts as 1.
    pub fn new(slab_bytes: usize) -> Arena {
        Arena {
            slab_bytes: slab_bytes.max(1),
            slabs: Vec::new(),
            backing: Backing::Private,
            memfd: None,
            io: Arc::new(SystemIo),
            merge_refused: None,
            collapsed: None,
        }
    }

    /// An arena without slabs. Only [`Backing::Memfd`] can be refused here.
    pub fn with_backing(slab_bytes: usize, backing: Backing) -> Result<Arena, ArenaError> {
        let mut arena = Arena::new(slab_bytes);
        arena.backing = backing;
        if backing == Backing::Memfd {
            let memfd = Memfd::create(arena.slab_bytes).map_err(|why| arena.refused(why))?;
            arena.memfd = Some(Arc::new(memfd));
        }
        Ok(arena)
    }

    /// The same, with calls to the system that go through `io`.
    pub fn with_io(
        slab_bytes: usize,
        backing: Backing,
        io: Arc<dyn SlabIo>,
    ) -> Result<Arena, ArenaError> {
        let mut arena = Arena::with_backing(slab_bytes, backing)?;
        arena.io = io;
        Ok(arena)
    }

    pub fn backing(&self) -> Backing {
        self.backing
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

    /// Whole pages that the slabs hold now. Private: pages in memory (`mincore`; a page that was
    /// only read counts although the kernel lends one page of zeros for all of them, a page in swap
    /// does not). Memory file: its pages (`st_blocks`), whichever process touched them, swap included.
    /// `None` where the system does not say. 7 µs for 16 MiB of private memory, less than one for a file.
    pub fn resident_bytes(&self) -> Option<u64> {
        match &self.memfd {
            Some(memfd) => memfd.allocated_bytes(),
            None => self
                .slabs
                .iter()
                .try_fold(0u64, |sum, slab| Some(sum + slab.resident_bytes()?)),
        }
    }

    /// One slab more, all zero, without writing to it.
    pub fn add_slab(&mut self) -> Result<SlabIndex, ArenaError> {
        let refused = self.refused(Refusal::OutOfMemory);
        self.slabs.try_reserve(1).map_err(|_| refused)?;
        let (index, bytes) = (self.slabs.len(), self.slab_bytes);
        let slab = self.io.map(self.memfd.as_ref(), index, bytes);
        let slab = slab.ok_or(refused)?;
        if self.backing == Backing::Mergeable
            && let Err(reason) = slab.merge()
        {
            self.merge_refused = Some(reason);
        }
        self.slabs.push(slab);
        Ok(SlabIndex(index))
    }

    /// The bytes of slab `i`. An index the arena never gave out is a bug and panics.
    pub fn slab(&self, i: SlabIndex) -> &[u8] {
        self.slabs[i.0].as_slice()
    }

    pub fn slab_mut(&mut self, i: SlabIndex) -> &mut [u8] {
        self.slabs[i.0].as_mut_slice()
    }

    /// Two slabs, which are not the same.
    pub fn two_slabs(&mut self, a: SlabIndex, b: SlabIndex) -> (&mut [u8], &mut [u8]) {
        let (low, high) = self.slabs.split_at_mut(a.0.max(b.0));
        let (low, high) = (&mut low[a.0.min(b.0)], &mut high[0]);
        let (low, high) = (low.as_mut_slice(), high.as_mut_slice());
        if a.0 < b.0 { (low, high) } else { (high, low) }
    }

    /// Gives the pages of slab `i` back; it reads as zero afterwards, whatever the system did.
    /// Returns false where the pages could not be given back (locked memory) and were cleared
    /// instead.
    pub fn release(&mut self, i: SlabIndex) -> bool {
        let slab = &mut self.slabs[i.0];
        let released = self.io.release(slab);
        if !released {
            slab.as_mut_slice().fill(0);
        }
        released
    }

    /// Replaces the small pages of slab `i` by huge ones, as far as whole ones fit in, and says
    /// whether the system did. Bytes and addresses stay; small pages that were never touched become
    /// resident, so this is for a slab that is in use everywhere. The system copies, a tenth of a
    /// millisecond to one for 2 MiB, and needs one huge page more meanwhile. Private memory of Linux 6.1
    /// and later only; [`Arena::huge_pages`] says why not.
    pub fn collapse(&mut self, i: SlabIndex) -> bool {
        if self.memfd.is_some() {
            return false;
        }
        let collapsed = self.io.collapse(&mut self.slabs[i.0]);
        let done = collapsed.is_ok();
        self.collapsed = Some(collapsed);
        done
    }

    /// Bytes of the slabs in huge pages; `None` before the first [`Arena::collapse`]. Reads the kernel's
    /// table of all maps: milliseconds, not for the path of a token.
    pub fn huge_pages(&self) -> Option<Effect> {
        let collapsed = self.collapsed.as_ref()?;
        let ranges: Vec<_> = self.slabs.iter().map(Slab::addresses).collect();
        Some(match (effect::huge_page_bytes(&ranges), collapsed) {
            (0, Ok(())) => Effect::Pending {
                reason: "the pages were given back since".to_string(),
            },
            (0, Err(error)) => Effect::Unavailable {
                reason: format!("the kernel did not form huge pages: {error}"),
            },
            (bytes, _) => Effect::Active { bytes },
        })
    }

    /// What the kernel merged so far; `None` unless the backing is [`Backing::Mergeable`]. Bytes are
    /// those of the whole process: the kernel does not say where.
    pub fn merged(&self) -> Option<Effect> {
        (self.backing == Backing::Mergeable).then(|| match &self.merge_refused {
            Some(reason) => Effect::Unavailable {
                reason: reason.clone(),
            },
            None => effect::merged(),
        })
    }

    /// Where another process of this user finds the bytes of a [`Backing::Memfd`], slab after slab in
    /// whole pages, while the arena lives; `None` for private memory.
    pub fn memfd_path(&self) -> Option<PathBuf> {
        Some(self.memfd.as_ref()?.path())
    }

    fn refused(&self, why: Refusal) -> ArenaError {
        ArenaError {
            slab_bytes: self.slab_bytes,
            mapped_bytes: self.mapped_bytes(),
            why,
        }
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
        for backing in Backing::ALL {
            // No map is that long; the last size is not even a whole number of pages.
            for bytes in [usize::MAX / 2, usize::MAX / 2 + 1, usize::MAX - 4095] {
                let Ok(mut arena) = Arena::with_backing(bytes, backing) else {
                    continue;
                };
                let refused = arena.add_slab().unwrap_err();
                assert_eq!(refused.slab_bytes, bytes);
                assert_eq!(refused.why, Refusal::OutOfMemory);
                assert_eq!((arena.slabs(), arena.mapped_bytes()), (0, 0));
            }
        }
        let mut arena = Arena::new(usize::MAX);
        assert!(arena.add_slab().is_err());
        assert_eq!(arena.mapped_bytes(), 0);
        assert!(Arena::with_backing(usize::MAX, Backing::Memfd).is_err());
    }

    #[test]
    fn a_size_of_zero_is_one_byte() {
        for backing in Backing::ALL {
            let Ok(mut arena) = Arena::with_backing(0, backing) else {
                continue;
            };
            let i = arena.add_slab().unwrap();
            arena.slab_mut(i)[0] = 7;
            assert_eq!(arena.slab(i), [7]);
            arena.release(i);
            assert_eq!(arena.slab(i), [0]);
        }
    }

    /// The last page of a slab is only partly its own, and no other slab shares it.
    #[test]
    fn a_released_slab_is_zero_and_its_neighbour_stays() {
        for backing in Backing::ALL {
            let Ok(mut arena) = Arena::with_backing(4 * 4096 + 100, backing) else {
                continue;
            };
            let other = arena.add_slab().unwrap();
            let i = arena.add_slab().unwrap();
            arena.slab_mut(other).fill(8);
            arena.slab_mut(i).fill(9);
            assert_eq!(arena.release(i), cfg!(unix), "{backing:?}");
            assert!(arena.slab(i).iter().all(|&x| x == 0), "{backing:?}");
            assert!(arena.slab(other).iter().all(|&x| x == 8), "{backing:?}");
        }
    }

    #[test]
    fn an_effect_is_reported_only_where_it_was_requested() {
        let arena = Arena::new(1 << 20);
        assert_eq!((arena.merged(), arena.huge_pages()), (None, None));
        assert_eq!(arena.memfd_path(), None);
        let mut arena = Arena::with_backing(1 << 20, Backing::Mergeable).unwrap();
        arena.add_slab().unwrap();
        assert!(arena.merged().is_some());
        assert_eq!(arena.huge_pages(), None);
        for effect in [
            Effect::Active { bytes: 4096 },
            Effect::Pending {
                reason: "ksmd sleeps".to_string(),
            },
            Effect::Unavailable {
                reason: "no kernel".to_string(),
            },
        ] {
            assert_eq!(effect.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn an_arena_travels_between_threads() {
        fn travels<T: Send + Sync>() {}
        travels::<Arena>();
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
