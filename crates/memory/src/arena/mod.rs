//! Memory in slabs, zero until touched, that really goes back when it is released.
//!
//! ```text
//! Arena ─ slab 0 [................]  slab 1 [................]  slab 2 …
//!          one map each, grown on demand, never moved, 64-byte aligned
//! ```
//!
//! A slab costs address space when it is added and pages only where it is written;
//! [`Arena::release`] gives its pages back and it reads as zero again. Where the pages come from is
//! a choice behind one surface:
//!
//! | [`Backing`] | system | pages | release |
//! |---|---|---|---|
//! | `Private` | Linux, Android | private anonymous | `MADV_DONTNEED` |
//! | `Private` | Apple, other unix | private anonymous | fresh pages mapped over the old |
//! | `Private` | elsewhere | heap | cleared, kept until the end |
//! | `Shared` | Linux, Android from API level 30 | `memfd`, see [`shared`] | a hole is punched |
//!
//! A private slab of Linux that can hold a huge page (2 MiB) starts on the border of one, so that
//! [`Arena::collapse`] can put its small pages together once all of them are in use. Until then a page
//! is resident where it was written, and nowhere else.
//!
//! Linux is what runs in tests. The Android and Apple paths are compiled only.
//!
//! What an arena is not: an allocator. Which block lies where inside a slab is its owner's business.
//!
//! Invariants: a slab's address and length never change; every byte of it is readable and
//! initialised (to zero by the kernel, or by its owner); running out is a value, [`ArenaError`],
//! after which the arena is as it was; nothing is written to a slab but by its owner, except zeros
//! where a release failed.

mod effect;
mod faults;
#[cfg(not(unix))]
mod heap;
#[cfg(unix)]
mod map;
pub mod shared;

use std::fmt;
use std::ops::Range;

#[cfg(unix)]
use effect::effect;
#[cfg(not(unix))]
use heap::{Slab, effect, page_bytes};
#[cfg(unix)]
use map::{Slab, page_bytes};

pub use effect::{Effect, Hint};
pub use faults::Faults;
pub use shared::ShareError;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub use shared::SharedSlabs;

/// Every slab starts on such a border: one cache line, one AVX-512 register.
pub const ALIGN: usize = 64;

/// Which slab, in the order they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabIndex(pub usize);

/// Where the pages of an arena come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// This process alone.
    #[default]
    Private,
    /// A memory file that other processes can map, see [`Arena::shared_fd`].
    Shared,
}

/// Why there is no slab, or no arena of the asked kind. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaError {
    pub slab_bytes: usize,
    pub mapped_bytes: usize,
    pub why: Refusal,
}

/// The reason inside an [`ArenaError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The system has no such number of bytes, or of addresses.
    OutOfMemory,
    /// The system has no memory of this [`Backing`].
    NoBacking(&'static str),
    /// A test asked for it, see [`Faults`].
    Injected,
}

impl fmt::Display for ArenaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the system gave no {} bytes more ({} are mapped)",
            self.slab_bytes, self.mapped_bytes
        )?;
        match self.why {
            Refusal::OutOfMemory => Ok(()),
            Refusal::NoBacking(why) => write!(f, ": {why}"),
            Refusal::Injected => write!(f, ": a test made the call fail"),
        }
    }
}

impl std::error::Error for ArenaError {}

/// Slabs of one size.
pub struct Arena {
    slab_bytes: usize,
    slabs: Vec<Slab>,
    /// The file behind the slabs; `None` for private memory.
    shared: Option<shared::Memory>,
    faults: Option<Faults>,
    hints: Vec<Asked>,
    collapsed: Collapsed,
}

/// What became of the last slab that was to be put into huge pages.
enum Collapsed {
    NobodyAsked,
    Done,
    /// What the system said.
    Refused(std::io::Error),
}

/// A hint that every slab gets, and what the kernel said when it refused one.
struct Asked {
    hint: Hint,
    refused: Option<String>,
}

impl Arena {
    /// A private arena without slabs. `slab_bytes` is taken as it is; 0 counts as 1.
    pub fn new(slab_bytes: usize) -> Arena {
        Arena {
            slab_bytes: slab_bytes.max(1),
            slabs: Vec::new(),
            shared: None,
            faults: None,
            hints: Vec::new(),
            collapsed: Collapsed::NobodyAsked,
        }
    }

    /// An arena without slabs of the given kind. Private memory is never refused here.
    pub fn with_backing(slab_bytes: usize, backing: Backing) -> Result<Arena, ArenaError> {
        let mut arena = Arena::new(slab_bytes);
        if backing == Backing::Shared {
            let memory = shared::Memory::create(arena.slab_bytes).map_err(|w| arena.refused(w))?;
            arena.shared = Some(memory);
        }
        Ok(arena)
    }

    /// The same, with calls that fail when `faults` says so.
    pub fn with_faults(
        slab_bytes: usize,
        backing: Backing,
        faults: Faults,
    ) -> Result<Arena, ArenaError> {
        let mut arena = Arena::with_backing(slab_bytes, backing)?;
        arena.faults = Some(faults);
        Ok(arena)
    }

    pub fn backing(&self) -> Backing {
        match self.shared {
            None => Backing::Private,
            Some(_) => Backing::Shared,
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

    /// Whole pages that the slabs hold now. Private: pages in memory (`mincore`; a page that was
    /// only read counts although the kernel lends one page of zeros for all of them, a page in swap
    /// does not). Shared: pages of the file (`st_blocks`), whoever touched them, swap included.
    /// `None` where the system does not say. 7 µs for 16 MiB of private memory, well below one shared.
    pub fn resident_bytes(&self) -> Option<u64> {
        match &self.shared {
            Some(memory) => memory.allocated_bytes(),
            None => self
                .slabs
                .iter()
                .try_fold(0u64, |sum, slab| Some(sum + slab.resident_bytes()?)),
        }
    }

    /// One slab more, all zero, without writing to it.
    pub fn add_slab(&mut self) -> Result<SlabIndex, ArenaError> {
        if self.strike() {
            return Err(self.refused(Refusal::Injected));
        }
        let refused = self.refused(Refusal::OutOfMemory);
        self.slabs.try_reserve(1).map_err(|_| refused)?;
        let slab = match &self.shared {
            None => Slab::private(self.slab_bytes),
            Some(memory) => memory.add(self.slabs.len(), self.slab_bytes),
        }
        .ok_or(refused)?;
        for asked in &mut self.hints {
            asked.put_to(&slab);
        }
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

    /// Two slabs, which are not the same.
    pub fn two_slabs(&mut self, a: SlabIndex, b: SlabIndex) -> (&mut [u8], &mut [u8]) {
        let (low, high) = self.slabs.split_at_mut(a.0.max(b.0));
        let (low, high) = (&mut low[a.0.min(b.0)], &mut high[0]);
        let (low, high) = (low.as_mut_slice(), high.as_mut_slice());
        if a.0 < b.0 { (low, high) } else { (high, low) }
    }

    /// All slabs at once, for work that is split over them.
    pub fn slabs_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.slabs.iter_mut().map(Slab::as_mut_slice)
    }

    /// Gives the pages of slab `i` back; it reads as zero afterwards, whatever the system did.
    /// Returns false where the pages could not be given back (locked memory) and were cleared
    /// instead.
    pub fn release(&mut self, i: SlabIndex) -> bool {
        self.release_range(i, 0..self.slab_bytes) > 0
    }

    /// Gives back the pages that lie wholly inside `range`, cut at the end of the slab, and returns
    /// their bytes. They read as zero afterwards, whatever the system did; 0 means that there is no
    /// whole page, or that the system refused and they were cleared. Bytes of the range that share a
    /// page with others keep what they hold. The last page of a slab is shared with nobody.
    pub fn release_range(&mut self, i: SlabIndex, range: Range<usize>) -> usize {
        let fails = self.strike();
        let slab = &mut self.slabs[i.0];
        let pages = whole_pages(range, self.slab_bytes, page_bytes());
        if pages.is_empty() {
            return 0;
        }
        let gone = !fails
            && match &self.shared {
                None => slab.release(pages.clone()),
                Some(memory) => memory.punch(i.0, pages.clone()),
            };
        if gone {
            return pages.len();
        }
        let end = pages.end.min(self.slab_bytes);
        slab.as_mut_slice()[pages.start..end].fill(0);
        0
    }

    /// Puts the pages of slab `i` together into huge ones now, as far as whole ones fit in, and says
    /// whether the system did. Bytes and addresses stay; small pages that nobody touched become resident,
    /// so this is for a slab that is in use everywhere. The system copies, a tenth of a millisecond to
    /// one for 2 MiB, and needs a huge page more until it has. Private memory of Linux 6.1 and later
    /// only; why not is in [`Arena::effect`] of [`Hint::HugePages`].
    pub fn collapse(&mut self, i: SlabIndex) -> bool {
        if self.shared.is_some() {
            return false;
        }
        let told = match self.strike() {
            true => Err(std::io::ErrorKind::OutOfMemory.into()),
            false => self.slabs[i.0].collapse(),
        };
        let done = told.is_ok();
        self.collapsed = told.map_or_else(Collapsed::Refused, |()| Collapsed::Done);
        done
    }

    /// Asks for `hint` on all slabs, those to come included, and says what became of it so far.
    pub fn ask(&mut self, hint: Hint) -> Effect {
        if !self.hints.iter().any(|a| a.hint == hint) {
            let mut asked = Asked {
                hint,
                refused: None,
            };
            for slab in &self.slabs {
                asked.put_to(slab);
            }
            self.hints.push(asked);
        }
        self.effect_of(hint)
    }

    /// What became of `hint` by now; `None` if nobody asked, and no slab was to be collapsed. Reads a few
    /// files of the kernel, for huge pages a table of all maps: milliseconds, not for the path of a token.
    ///
    /// Bytes of [`Hint::Merge`] are those of the whole process: the kernel does not say where.
    pub fn effect(&self, hint: Hint) -> Option<Effect> {
        let collapsed =
            hint == Hint::HugePages && !matches!(self.collapsed, Collapsed::NobodyAsked);
        let asked = self.hints.iter().any(|a| a.hint == hint);
        (asked || collapsed).then(|| self.effect_of(hint))
    }

    fn effect_of(&self, hint: Hint) -> Effect {
        let refused = self
            .hints
            .iter()
            .find(|a| a.hint == hint)
            .and_then(|a| a.refused.clone());
        if let Some(why) = refused {
            return Effect::NotPossible { why };
        }
        match (effect(hint, self.shared.is_some(), &self.slabs), hint) {
            (Effect::Asked { .. }, Hint::HugePages)
                if let Collapsed::Refused(error) = &self.collapsed =>
            {
                let why_not_yet = format!("the kernel did not put pages together: {error}");
                Effect::Asked { why_not_yet }
            }
            (effect, _) => effect,
        }
    }

    /// The descriptor of a shared arena, to hand to another process, which maps it with
    /// [`SharedSlabs`]; `None` for a private one. It is open for reading only, where the system
    /// lets it be opened again (see [`shared`]), and closes on `exec`.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn shared_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        Some(self.shared.as_ref()?.fd())
    }

    /// Fixes the number of slabs: a shared file takes no more, whoever asks. It cannot be undone.
    /// False for a private arena and where the system refuses.
    pub fn seal_growth(&mut self) -> bool {
        self.shared.as_ref().is_some_and(|m| m.seal_growth())
    }

    fn refused(&self, why: Refusal) -> ArenaError {
        ArenaError {
            slab_bytes: self.slab_bytes,
            mapped_bytes: self.mapped_bytes(),
            why,
        }
    }

    fn strike(&self) -> bool {
        self.faults.as_ref().is_some_and(Faults::strike)
    }
}

impl Asked {
    fn put_to(&mut self, slab: &Slab) {
        if let Err(why) = slab.ask(self.hint) {
            self.refused = Some(why);
        }
    }
}

/// The pages wholly inside `range` of a slab of `len` bytes. The slab ends with its last page, so a
/// range up to `len` reaches to the end of that page.
fn whole_pages(range: Range<usize>, len: usize, page: usize) -> Range<usize> {
    let start = range.start.checked_next_multiple_of(page);
    let end = match range.end >= len {
        true => len.checked_next_multiple_of(page),
        false => Some(range.end / page * page),
    };
    match (start, end) {
        (Some(start), Some(end)) if range.start < len && start < end => start..end,
        _ => 0..0,
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
        for backing in [Backing::Private, Backing::Shared] {
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
        assert!(Arena::with_backing(usize::MAX, Backing::Shared).is_err());
    }

    #[test]
    fn a_size_of_zero_is_one_byte() {
        for backing in [Backing::Private, Backing::Shared] {
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

    #[test]
    fn ranges_shrink_to_whole_pages_and_end_with_the_slab() {
        const P: usize = 4096;
        let len = 3 * P + 5;
        for (range, pages) in [
            (0..len, 0..4 * P),
            (0..usize::MAX, 0..4 * P),
            (1..len, P..4 * P),
            (0..P, 0..P),
            (0..P - 1, 0..0),
            (1..2 * P - 1, 0..0),
            (1..2 * P, P..2 * P),
            // The last, short page: alone, and cut into.
            (3 * P..len, 3 * P..4 * P),
            (3 * P..len - 1, 0..0),
            (3 * P + 1..len, 0..0),
            (len..len, 0..0),
            (len..usize::MAX, 0..0),
            (usize::MAX..usize::MAX, 0..0),
            (usize::MAX - 1..usize::MAX, 0..0),
        ] {
            assert_eq!(whole_pages(range.clone(), len, P), pages, "{range:?}");
        }
        #[allow(clippy::reversed_empty_ranges)]
        let backwards = 2 * P..P;
        assert_eq!(whole_pages(backwards, len, P), 0..0);
        // A heap without pages.
        assert_eq!(whole_pages(3..9, 7, 1), 3..7);
    }

    #[test]
    fn a_released_range_is_zero_and_its_surroundings_stay() {
        for backing in [Backing::Private, Backing::Shared] {
            let page = page_bytes();
            let len = 4 * page + 100;
            let Ok(mut arena) = Arena::with_backing(len, backing) else {
                continue;
            };
            let other = arena.add_slab().unwrap();
            let i = arena.add_slab().unwrap();
            arena.slab_mut(other).fill(8);
            arena.slab_mut(i).fill(9);
            let gone = arena.release_range(i, page - 1..3 * page + 1);
            assert_eq!(gone, 2 * page, "{backing:?}");
            for (at, &byte) in arena.slab(i).iter().enumerate() {
                let inside = (page..3 * page).contains(&at);
                assert_eq!(byte, if inside { 0 } else { 9 }, "{backing:?} {at}");
            }
            assert_eq!(arena.release_range(i, 4 * page..usize::MAX), page);
            assert!(arena.slab(i)[4 * page..].iter().all(|&x| x == 0));
            assert!(arena.slab(other).iter().all(|&x| x == 8));
        }
    }

    /// Every call in turn fails, on both backings: an error or a cleared slab, nothing else.
    #[test]
    fn a_fault_hits_one_call_and_changes_nothing_else() {
        for backing in [Backing::Private, Backing::Shared] {
            for n in 0..=6 {
                let faults = Faults::fail_nth(n);
                let Ok(mut arena) = Arena::with_faults(10_000, backing, faults.clone()) else {
                    continue;
                };
                let mut failed = Vec::new();
                let mut slabs = Vec::new();
                for call in 1..=3 {
                    match arena.add_slab() {
                        Ok(i) => {
                            arena.slab_mut(i).fill(5);
                            slabs.push(i);
                        }
                        Err(e) => {
                            assert_eq!(e.why, Refusal::Injected);
                            assert!(e.to_string().contains("10000 bytes"), "{e}");
                            failed.push(call);
                        }
                    }
                    assert_eq!(arena.slabs(), slabs.len());
                }
                for call in 4..=5 {
                    let i = slabs[call - 4];
                    if !arena.release(i) {
                        failed.push(call);
                    }
                    assert!(arena.slab(i).iter().all(|&x| x == 0));
                }
                let i = slabs[1];
                arena.slab_mut(i).fill(6);
                if arena.release_range(i, 0..10_000) == 0 {
                    failed.push(6);
                }
                assert!(arena.slab(i).iter().all(|&x| x == 0));
                assert_eq!(faults.calls(), 6);
                assert_eq!(faults.struck(), n > 0);
                let expected: Vec<usize> = (n > 0).then_some(n as usize).into_iter().collect();
                assert_eq!(failed, expected, "{backing:?}");
            }
        }
    }

    #[test]
    fn nobody_asked_is_not_an_effect() {
        let mut arena = Arena::new(1 << 20);
        assert_eq!(arena.effect(Hint::Merge), None);
        let told = arena.ask(Hint::Merge);
        assert!(arena.effect(Hint::Merge).is_some(), "{told}");
        assert_eq!(arena.effect(Hint::HugePages), None);
        for effect in [
            Effect::Active { bytes: 4096 },
            Effect::Asked {
                why_not_yet: "ksmd sleeps".to_string(),
            },
            Effect::NotPossible {
                why: "no kernel".to_string(),
            },
        ] {
            assert_eq!(effect.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn an_arena_travels_between_threads() {
        fn travels<T: Send + Sync>() {}
        travels::<Arena>();
        travels::<Faults>();
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
