//! What this process uses, in bytes. A system without `/proc/self/smaps_rollup` has no reading, which is
//! an error, never a zero.
//!
//! **Private bytes** are what only ending this process or its own effort gives back:
//! `max(Anonymous, Private_Dirty) + Swap` of `/proc/self/smaps_rollup`.
//!
//! - `Anonymous` counts heap, stacks, arenas, and file pages that were written to privately. After a
//!   `fork` it still counts pages shared with the child.
//! - `Private_Dirty` counts nearly the same pages, without the shared ones and with dirty pages of
//!   shared file maps. The two overlap, so the sum would count most pages twice; the larger of them
//!   misses only what is in one and not in the other.
//! - `Swap` is added because an arena that was swapped out has not become smaller.
//!
//! Clean pages of mapped weights are in neither: they are in `rss_bytes` and, shared out over the
//! processes that map them, in `pss_bytes`.

use std::fs;
use std::io;

use crate::kernel_text::field_kib;

/// One reading of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Anonymous and dirty private pages, swapped ones included.
    pub private_bytes: u64,
    /// Anonymous pages alone: without dirty pages of files that were just written, such as the program itself.
    pub anonymous_bytes: u64,
    /// Every page divided by the number of processes that map it.
    pub pss_bytes: u64,
    /// Every resident page, clean file pages included.
    pub rss_bytes: u64,
}

impl ProcessUsage {
    /// Costs a walk over the page tables: tens of microseconds for a small process, milliseconds
    /// for many gigabytes. Not for the path of a token.
    pub fn now() -> io::Result<ProcessUsage> {
        let text = fs::read_to_string("/proc/self/smaps_rollup")?;
        parse_rollup(&text).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "/proc/self/smaps_rollup lacks Rss, Pss or Private_Dirty",
            )
        })
    }

    /// The larger of each number.
    pub fn max(self, other: ProcessUsage) -> ProcessUsage {
        ProcessUsage {
            private_bytes: self.private_bytes.max(other.private_bytes),
            anonymous_bytes: self.anonymous_bytes.max(other.anonymous_bytes),
            pss_bytes: self.pss_bytes.max(other.pss_bytes),
            rss_bytes: self.rss_bytes.max(other.rss_bytes),
        }
    }
}

/// The highest readings among the calls of [`PeakMeter::poll`]. There is no thread behind it: a
/// peak between two polls is missed, so poll where memory is taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeakMeter {
    peak: ProcessUsage,
    polls: u64,
}

impl PeakMeter {
    pub fn new() -> PeakMeter {
        PeakMeter::default()
    }

    /// Takes a reading and returns it. Where there is none the peak stays.
    pub fn poll(&mut self) -> Option<ProcessUsage> {
        let now = ProcessUsage::now().ok()?;
        self.note(now);
        Some(now)
    }

    /// Counts a reading taken elsewhere.
    pub fn note(&mut self, reading: ProcessUsage) {
        self.peak = self.peak.max(reading);
        self.polls += 1;
    }

    /// `None` before the first successful poll.
    pub fn peak(&self) -> Option<ProcessUsage> {
        (self.polls > 0).then_some(self.peak)
    }
}

fn parse_rollup(text: &str) -> Option<ProcessUsage> {
    // Kernels before 4.x had no Anonymous in the rollup, and Swap depends on the configuration.
    let anonymous = field_kib(text, "Anonymous").unwrap_or(0);
    let swap = field_kib(text, "Swap").unwrap_or(0);
    let dirty = field_kib(text, "Private_Dirty")?;
    Some(ProcessUsage {
        private_bytes: anonymous.max(dirty).saturating_add(swap),
        anonymous_bytes: anonymous.saturating_add(swap),
        pss_bytes: field_kib(text, "Pss")?,
        rss_bytes: field_kib(text, "Rss")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLLUP: &str = "\
55d0c0a00000-7ffd3a5e1000 ---p 00000000 00:00 0                          [rollup]
Rss:               90000 kB
Pss:               70000 kB
Pss_Dirty:          4100 kB
Pss_Anon:           4000 kB
Shared_Clean:      20000 kB
Private_Clean:     60000 kB
Private_Dirty:      4100 kB
Anonymous:          4000 kB
Swap:                 24 kB
SwapPss:              24 kB
";

    #[test]
    fn a_rollup_is_read_as_documented() {
        let usage = parse_rollup(ROLLUP).unwrap();
        assert_eq!(usage.rss_bytes, 90_000 << 10);
        assert_eq!(usage.pss_bytes, 70_000 << 10);
        assert_eq!(usage.private_bytes, (4100 + 24) << 10);
        assert_eq!(usage.anonymous_bytes, (4000 + 24) << 10);
        assert_eq!(parse_rollup(""), None);
        assert_eq!(parse_rollup("Rss: 1 kB\nPss: 1 kB\n"), None);
    }

    #[test]
    fn a_meter_keeps_the_highest_of_each_number() {
        let mut meter = PeakMeter::new();
        assert_eq!(meter.peak(), None);
        meter.note(ProcessUsage {
            private_bytes: 5,
            anonymous_bytes: 4,
            pss_bytes: 1,
            rss_bytes: 9,
        });
        meter.note(ProcessUsage {
            private_bytes: 3,
            anonymous_bytes: 3,
            pss_bytes: 4,
            rss_bytes: 2,
        });
        let peak = meter.peak().unwrap();
        assert_eq!(
            (peak.private_bytes, peak.pss_bytes, peak.rss_bytes),
            (5, 4, 9)
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn writing_memory_shows_in_the_private_bytes() {
        let before = ProcessUsage::now().unwrap();
        let mut arena = crate::arena::Arena::new(32 << 20);
        let i = arena.add_slab().unwrap();
        arena.slab_mut(i).fill(3);
        let mut meter = PeakMeter::new();
        let during = meter.poll().unwrap();
        // Other tests of this process take and free memory meanwhile, by less than half of ours.
        assert!(during.private_bytes > before.private_bytes + (16 << 20));
        assert!(during.rss_bytes >= during.private_bytes / 2);
        assert_eq!(meter.peak(), Some(during));
    }
}
