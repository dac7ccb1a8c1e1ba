//! Whether the kernel does what an arena asked for: huge pages and merged pages.
//!
//! Both are requests. `madvise` succeeds and then nothing may happen: no huge page is free, or
//! `ksmd` does not run. So the report comes from the kernel's own tables, never from the return value
//! of the call. Only Linux and Android have such tables; elsewhere the request itself fails.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;

use crate::kernel_text::{field_kib, read_capped};

const KSM: &str = "/sys/kernel/mm/ksm";

/// A table of more maps than the kernel allows by default (65,530) is not read to its end.
const SMAPS_BYTES_MAX: u64 = 128 << 20;

/// What became of a request to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It works, for this many bytes at the moment.
    Active { bytes: u64 },
    /// The kernel accepted it and has done nothing so far.
    Pending { reason: String },
    /// It will not happen.
    Unavailable { reason: String },
}

impl Effect {
    /// Of two arenas: the bytes of both, or the first reason.
    pub fn and(self, other: Effect) -> Effect {
        match (self, other) {
            (Effect::Active { bytes: a }, Effect::Active { bytes: b }) => {
                Effect::Active { bytes: a + b }
            }
            (active @ Effect::Active { .. }, _) | (_, active @ Effect::Active { .. }) => active,
            (first, _) => first,
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Active { bytes } => write!(f, "active for {bytes} bytes"),
            Effect::Pending { reason } => write!(f, "no effect so far: {reason}"),
            Effect::Unavailable { reason } => write!(f, "not possible: {reason}"),
        }
    }
}

/// Bytes of `ranges` that lie in huge pages.
pub(super) fn huge_page_bytes(ranges: &[Range<u64>]) -> u64 {
    File::open("/proc/self/smaps").map_or(0, |file| {
        let text = BufReader::new(file.take(SMAPS_BYTES_MAX));
        bytes_in_maps(text, "AnonHugePages", ranges)
    })
}

/// What `ksmd` has merged in this process: the kernel does not say in which map.
pub(super) fn merged() -> Effect {
    let Some(run) = read_capped(Path::new(&format!("{KSM}/run"))) else {
        let reason = format!("this kernel has no {KSM}");
        return Effect::Unavailable { reason };
    };
    let pages = read_capped(Path::new("/proc/self/ksm_merging_pages"))
        .and_then(|t| t.trim().parse::<u64>().ok())
        .or_else(|| {
            let stat = read_capped(Path::new("/proc/self/ksm_stat"))?;
            word_value(&stat, "ksm_merging_pages")
        });
    let run = run.trim();
    let reason = match pages {
        Some(pages @ 1..) => {
            let bytes = pages.saturating_mul(page_bytes());
            return Effect::Active { bytes };
        }
        _ if run != "1" => format!("ksmd does not run ({KSM}/run is {run})"),
        Some(_) => "ksmd runs and has found no equal pages so far".to_string(),
        None => "ksmd runs, and this kernel does not say what it merged".to_string(),
    };
    Effect::Pending { reason }
}

fn page_bytes() -> u64 {
    #[cfg(unix)]
    return rustix::param::page_size() as u64;
    #[cfg(not(unix))]
    4096
}

/// `key 12` or `key: 12` in a list of such lines.
fn word_value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()?.trim_end_matches(':') == key).then_some(())?;
        words.next()?.parse().ok()
    })
}

/// Sums `field` (in kB) over the maps that overlap `ranges`. A map counts for no more than its
/// overlap, because the kernel joins neighbours that have the same advice: with another arena
/// next to this one the sum is an upper bound.
fn bytes_in_maps(smaps: impl BufRead, field: &str, ranges: &[Range<u64>]) -> u64 {
    let mut sum = 0u64;
    let mut overlap = 0u64;
    for line in smaps.lines().map_while(Result::ok) {
        if let Some(map) = map_range(&line) {
            overlap = ranges
                .iter()
                .map(|r| r.end.min(map.end).saturating_sub(r.start.max(map.start)))
                .sum();
        } else if let Some(bytes) = field_kib(&line, field) {
            sum = sum.saturating_add(bytes.min(overlap));
        }
    }
    sum
}

/// `7f12a000-7f12b000 rw-p …` → the addresses; `None` for a line of another kind.
fn map_range(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    Some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      4096 kB
VmFlags: rd wr mr mw me ac sd hg
7f0000800000-7f0000a00000 rw-p 00000000 00:00 0
AnonHugePages:      2048 kB
7f0000b00000-7f0000c00000 r--p 00000000 08:01 77 /lib/a-b.so
AnonHugePages:         x kB
";

    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn only_maps_of_the_slabs_count_and_for_no_more_than_their_overlap() {
        let of = |ranges: &[Range<u64>]| bytes_in_maps(SMAPS.as_bytes(), "AnonHugePages", ranges);
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[0x7f00_0000_0000..0x7f00_0040_0000]), 4 << 20);
        // Half of a joined map.
        assert_eq!(of(&[0x7f00_0020_0000..0x7f00_0040_0000]), 2 << 20);
        assert_eq!(of(&[0..u64::MAX]), 6 << 20);
        assert_eq!(of(&[0x7f00_00b0_0000..0x7f00_00c0_0000]), 0);
        assert_eq!(bytes_in_maps(SMAPS.as_bytes(), "Anon", &[0..u64::MAX]), 0);
    }

    #[test]
    fn counters_are_read_and_garbage_is_none() {
        let stat = "ksm_rmap_items 5\nksm_merging_pages 12\nksm_mergeable: yes\n";
        assert_eq!(word_value(stat, "ksm_merging_pages"), Some(12));
        assert_eq!(word_value(stat, "ksm_mergeable"), None);
        assert_eq!(
            word_value("ksm_merging_pages -1", "ksm_merging_pages"),
            None
        );
        for garbage in ["", "-", "zz-1", "1-", "\u{0}-\u{0}"] {
            assert_eq!(map_range(garbage), None, "{garbage:?}");
        }
    }
}
