//! Advice about slabs, and whether it took effect.
//!
//! Both kinds are requests. `madvise` says yes and then nothing may happen: huge pages are switched
//! off or none is free, `ksmd` does not run, or the memory is of a kind it never looks at. So the
//! answer is read from the kernel's own tables, never from the return value of the call.

use std::fmt;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Fewer, larger pages: fewer misses of the address cache in return for coarser residency.
    HugePages,
    /// Equal pages of one or several processes kept once (KSM). Private memory only.
    Merge,
}

/// What became of a [`Hint`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It works, for so many bytes at this moment.
    Active { bytes: u64 },
    /// The kernel accepted it and has done nothing so far.
    Asked { why_not_yet: String },
    /// It will not happen.
    NotPossible { why: String },
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Active { bytes } => write!(f, "active for {bytes} bytes"),
            Effect::Asked { why_not_yet } => write!(f, "asked, not granted: {why_not_yet}"),
            Effect::NotPossible { why } => write!(f, "not possible: {why}"),
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) use linux::effect;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use super::super::map::Slab;
    use super::{Effect, Hint};
    use crate::usage::read_capped;
    use std::fs::File;
    use std::io::{BufRead, BufReader, Read};
    use std::ops::Range;
    use std::path::Path;

    const THP: &str = "/sys/kernel/mm/transparent_hugepage";
    const KSM: &str = "/sys/kernel/mm/ksm";

    /// A table of more maps than the kernel allows by default (65,530) is not read to its end.
    const SMAPS_BYTES_MAX: u64 = 128 << 20;

    /// What became of `hint` on `slabs`, all of one kind.
    pub fn effect(hint: Hint, shared: bool, slabs: &[Slab]) -> Effect {
        match hint {
            Hint::HugePages => huge_pages(shared, slabs),
            Hint::Merge => merge(shared),
        }
    }

    fn huge_pages(shared: bool, slabs: &[Slab]) -> Effect {
        let (switch, field) = match shared {
            false => ("enabled", "AnonHugePages"),
            true => ("shmem_enabled", "ShmemPmdMapped"),
        };
        let switch = format!("{THP}/{switch}");
        let Some(text) = read_capped(Path::new(&switch)) else {
            return Effect::NotPossible {
                why: format!("there is no {switch}"),
            };
        };
        let ranges: Vec<_> = slabs.iter().map(Slab::addresses).collect();
        let bytes = File::open("/proc/self/smaps")
            .map(|f| bytes_in_maps(BufReader::new(f.take(SMAPS_BYTES_MAX)), field, &ranges))
            .unwrap_or(0);
        if bytes > 0 {
            return Effect::Active { bytes };
        }
        let chosen = chosen_word(&text).unwrap_or("unreadable");
        let why_not_yet = match chosen {
            "never" | "deny" | "unreadable" => format!("{switch} is {chosen}"),
            _ => {
                let size = read_capped(Path::new(&format!("{THP}/hpage_pmd_size")))
                    .and_then(|t| t.trim().parse::<u64>().ok());
                match size {
                    Some(size) if ranges.iter().all(|r| r.end - r.start < size) => {
                        format!("no slab has the {size} bytes of a huge page")
                    }
                    _ => "no page was touched since, or no huge one was free".to_string(),
                }
            }
        };
        Effect::Asked { why_not_yet }
    }

    fn merge(shared: bool) -> Effect {
        if shared {
            return Effect::NotPossible {
                why: "the kernel merges private pages only, and these are shared".to_string(),
            };
        }
        let Some(run) = read_capped(Path::new(&format!("{KSM}/run"))) else {
            return Effect::NotPossible {
                why: format!("this kernel has no {KSM}"),
            };
        };
        let pages = read_capped(Path::new("/proc/self/ksm_merging_pages"))
            .and_then(|t| t.trim().parse::<u64>().ok())
            .or_else(|| {
                let stat = read_capped(Path::new("/proc/self/ksm_stat"))?;
                word_value(&stat, "ksm_merging_pages")
            });
        let run = run.trim();
        match pages {
            Some(pages) if pages > 0 => Effect::Active {
                bytes: pages.saturating_mul(super::super::map::page_bytes() as u64),
            },
            _ if run != "1" => Effect::Asked {
                why_not_yet: format!("ksmd does not run ({KSM}/run is {run})"),
            },
            Some(_) => Effect::Asked {
                why_not_yet: "ksmd runs and has found no equal pages so far".to_string(),
            },
            None => Effect::Asked {
                why_not_yet: "ksmd runs, and this kernel does not say what it merged".to_string(),
            },
        }
    }

    /// `always [madvise] never` → `madvise`.
    fn chosen_word(text: &str) -> Option<&str> {
        text.split_whitespace()
            .find_map(|w| w.strip_prefix('[')?.strip_suffix(']'))
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
            } else if overlap > 0
                && let Some(rest) = line.strip_prefix(field)
                && let Some(rest) = rest.strip_prefix(':')
                && let Some(kib) = rest.trim().strip_suffix("kB")
                && let Ok(kib) = kib.trim().parse::<u64>()
            {
                sum = sum.saturating_add(kib.saturating_mul(1024).min(overlap));
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
            let of =
                |ranges: &[Range<u64>]| bytes_in_maps(SMAPS.as_bytes(), "AnonHugePages", ranges);
            assert_eq!(of(&[]), 0);
            assert_eq!(of(&[0x7f00_0000_0000..0x7f00_0040_0000]), 4 << 20);
            // Half of a joined map.
            assert_eq!(of(&[0x7f00_0020_0000..0x7f00_0040_0000]), 2 << 20);
            assert_eq!(of(&[0..u64::MAX]), 6 << 20);
            assert_eq!(of(&[0x7f00_00b0_0000..0x7f00_00c0_0000]), 0);
            assert_eq!(bytes_in_maps(SMAPS.as_bytes(), "Anon", &[0..u64::MAX]), 0);
        }

        #[test]
        fn switches_and_counters_are_read_and_garbage_is_nothing() {
            assert_eq!(chosen_word("always [madvise] never\n"), Some("madvise"));
            assert_eq!(chosen_word("always madvise"), None);
            assert_eq!(chosen_word("[ x ]"), None);
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
}

/// Other unix systems.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
pub(super) fn effect(_hint: Hint, _shared: bool, _slabs: &[super::map::Slab]) -> Effect {
    Effect::NotPossible {
        why: "this system has no such advice".to_string(),
    }
}
