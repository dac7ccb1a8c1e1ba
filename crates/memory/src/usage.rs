//! What this process and this machine use, in bytes.
//!
//! Readings only: text of the kernel parsed by pure functions (tested on fixtures) and a thin layer
//! that reads the files. A system without such a file has no reading, which is `None` or an error,
//! never a zero.
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
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::cgroup;

/// One reading of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Anonymous and dirty private pages, swapped ones included.
    pub private_bytes: u64,
    /// Every page divided by the number of processes that map it.
    pub pss_bytes: u64,
    /// Every resident page, clean file pages included.
    pub rss_bytes: u64,
}

impl Usage {
    /// Costs a walk over the page tables: tens of microseconds for a small process, milliseconds
    /// for many gigabytes. Not for the path of a token.
    pub fn now() -> io::Result<Usage> {
        let text = fs::read_to_string("/proc/self/smaps_rollup")?;
        parse_rollup(&text).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "/proc/self/smaps_rollup lacks Rss, Pss or Private_Dirty",
            )
        })
    }

    /// The larger of each number.
    pub fn max(self, other: Usage) -> Usage {
        Usage {
            private_bytes: self.private_bytes.max(other.private_bytes),
            pss_bytes: self.pss_bytes.max(other.pss_bytes),
            rss_bytes: self.rss_bytes.max(other.rss_bytes),
        }
    }
}

/// The highest readings seen by whoever calls [`PeakMeter::poll`]. There is no thread behind it: a
/// peak between two polls is missed, so poll where memory is taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeakMeter {
    peak: Usage,
    polls: u64,
}

impl PeakMeter {
    pub fn new() -> PeakMeter {
        PeakMeter::default()
    }

    /// Takes a reading and returns it. Where there is none the peak stays.
    pub fn poll(&mut self) -> Option<Usage> {
        let now = Usage::now().ok()?;
        self.note(now);
        Some(now)
    }

    /// Counts a reading taken elsewhere.
    pub fn note(&mut self, reading: Usage) {
        self.peak = self.peak.max(reading);
        self.polls += 1;
    }

    /// `None` before the first successful poll.
    pub fn peak(&self) -> Option<Usage> {
        (self.polls > 0).then_some(self.peak)
    }
}

/// The most that is read of one small file of the kernel. The largest, `memory.stat` of a group,
/// has a few KiB.
pub(crate) const TEXT_BYTES_MAX: usize = 32 << 10;

/// A small text file of the kernel, or `None`. What lies beyond [`TEXT_BYTES_MAX`] is cut at a line.
pub(crate) fn read_capped(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(TEXT_BYTES_MAX as u64)
        .read_to_end(&mut bytes)
        .ok()?;
    if bytes.len() == TEXT_BYTES_MAX {
        bytes.truncate(whole_lines(&bytes));
    }
    String::from_utf8(bytes).ok()
}

/// How many of `bytes` are whole lines: half a number is no number.
pub(crate) fn whole_lines(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&b| b == b'\n').map_or(0, |n| n + 1)
}

/// What the kernel thinks can be used without swapping.
pub fn mem_available() -> Option<u64> {
    field_kib(&read_capped(Path::new("/proc/meminfo"))?, "MemAvailable")
}

/// All memory of the machine.
pub fn mem_total() -> Option<u64> {
    field_kib(&read_capped(Path::new("/proc/meminfo"))?, "MemTotal")
}

/// What the control group of this process allows and uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupMemory {
    /// 1 or 2.
    pub version: u8,
    /// The smallest `memory.max` (v1: `limit_in_bytes`) from the process's group up to the root:
    /// beyond it processes are killed.
    pub max_bytes: Option<u64>,
    /// The smallest `memory.high` (v2): beyond it processes are slowed down.
    pub high_bytes: Option<u64>,
    /// What the group whose `max_bytes` is reported uses now, page cache included.
    pub used_bytes: Option<u64>,
}

/// `None` where there are no control groups for memory.
pub fn cgroup_memory() -> Option<CgroupMemory> {
    cgroup_memory_in(&cgroup::find(Path::new("/proc"))?)
}

/// `key:   1234 kB` → bytes.
pub(crate) fn field_kib(text: &str, key: &str) -> Option<u64> {
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let number = rest.trim().strip_suffix("kB")?.trim();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

fn parse_rollup(text: &str) -> Option<Usage> {
    // Kernels before 4.x had no Anonymous in the rollup, and Swap depends on the configuration.
    let anonymous = field_kib(text, "Anonymous").unwrap_or(0);
    let swap = field_kib(text, "Swap").unwrap_or(0);
    let dirty = field_kib(text, "Private_Dirty")?;
    Some(Usage {
        private_bytes: anonymous.max(dirty).saturating_add(swap),
        pss_bytes: field_kib(text, "Pss")?,
        rss_bytes: field_kib(text, "Rss")?,
    })
}

/// A limit as the kernel writes it: a number, or `max`. Version 1 has no word for "none" and writes
/// the largest multiple of a page below 2^63.
pub(crate) fn parse_limit(text: &str) -> Option<u64> {
    const UNLIMITED: u64 = (1 << 63) - (1 << 20);
    text.trim().parse::<u64>().ok().filter(|&n| n < UNLIMITED)
}

fn cgroup_memory_in(dirs: &cgroup::Dirs) -> Option<CgroupMemory> {
    // With both mounted, the version that has a memory controller is the one that limits.
    let v1 = Files {
        version: 1,
        max: "memory.limit_in_bytes",
        high: None,
        used: "memory.usage_in_bytes",
    };
    let v2 = Files {
        version: 2,
        max: "memory.max",
        high: Some("memory.high"),
        used: "memory.current",
    };
    v1.read(&dirs.v1).or_else(|| v2.read(&dirs.v2))
}

struct Files {
    version: u8,
    max: &'static str,
    high: Option<&'static str>,
    used: &'static str,
}

impl Files {
    fn read(&self, dirs: &[PathBuf]) -> Option<CgroupMemory> {
        let mut found = None;
        for dir in dirs {
            // The root group of version 2 has no memory.max but may have memory.current.
            let max = read_capped(&dir.join(self.max));
            let used = read_capped(&dir.join(self.used)).and_then(|t| parse_limit(&t));
            if max.is_none() && used.is_none() {
                continue;
            }
            let max = max.and_then(|t| parse_limit(&t));
            let high = self
                .high
                .and_then(|name| read_capped(&dir.join(name)))
                .and_then(|t| parse_limit(&t));
            let all = found.get_or_insert(CgroupMemory {
                version: self.version,
                max_bytes: None,
                high_bytes: None,
                used_bytes: used,
            });
            if max.is_some_and(|m| all.max_bytes.is_none_or(|old| m < old)) {
                all.max_bytes = max;
                all.used_bytes = used;
            }
            if high.is_some_and(|h| all.high_bytes.is_none_or(|old| h < old)) {
                all.high_bytes = high;
            }
        }
        found
    }
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
        assert_eq!(parse_rollup(""), None);
        assert_eq!(parse_rollup("Rss: 1 kB\nPss: 1 kB\n"), None);
        // A number that does not fit is no reading.
        assert_eq!(field_kib("Rss: 18446744073709551615 kB\n", "Rss"), None);
        assert_eq!(
            field_kib("RssAnon: 5 kB\nRss: 7 kB\n", "Rss"),
            Some(7 << 10)
        );
    }

    #[test]
    fn a_meter_keeps_the_highest_of_each_number() {
        let mut meter = PeakMeter::new();
        assert_eq!(meter.peak(), None);
        meter.note(Usage {
            private_bytes: 5,
            pss_bytes: 1,
            rss_bytes: 9,
        });
        meter.note(Usage {
            private_bytes: 3,
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
        let before = Usage::now().unwrap();
        let mut arena = crate::arena::Arena::new(32 << 20);
        let i = arena.add_slab().unwrap();
        arena.slab_mut(i).fill(3);
        let mut meter = PeakMeter::new();
        let during = meter.poll().unwrap();
        // Other tests of this process take and free memory meanwhile, by less than half of ours.
        assert!(during.private_bytes > before.private_bytes + (16 << 20));
        assert!(during.rss_bytes >= during.private_bytes / 2);
        assert_eq!(meter.peak(), Some(during));
        assert!(mem_available().unwrap() <= mem_total().unwrap());
    }

    /// As if `root` were /sys/fs/cgroup.
    fn cgroup_memory_under(root: &Path, groups: &str) -> Option<CgroupMemory> {
        cgroup_memory_in(&cgroup::dirs(groups, &cgroup::Mounts::usual(root)))
    }

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn version_2_takes_the_smallest_limit_on_the_way_up() {
        let dir = tree(&[
            ("app/memory.max", "1073741824\n"),
            ("app/memory.high", "900000000\n"),
            ("app/memory.current", "500\n"),
            ("app/job/memory.max", "max\n"),
            ("app/job/memory.high", "max\n"),
            ("app/job/memory.current", "100\n"),
        ]);
        let got = cgroup_memory_under(dir.path(), "0::/app/job\n").unwrap();
        assert_eq!(
            got,
            CgroupMemory {
                version: 2,
                max_bytes: Some(1 << 30),
                high_bytes: Some(900_000_000),
                used_bytes: Some(500),
            }
        );
    }

    #[test]
    fn version_1_knows_its_number_for_none() {
        let groups = "9:cpu,cpuacct:/x\n4:memory:/box\n0::/\n";
        let dir = tree(&[
            ("memory/box/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/box/memory.usage_in_bytes", "77\n"),
        ]);
        let got = cgroup_memory_under(dir.path(), groups).unwrap();
        assert_eq!((got.version, got.max_bytes), (1, None));
        assert_eq!(got.used_bytes, Some(77));
        let dir = tree(&[
            ("memory/memory.limit_in_bytes", "4096000\n"),
            ("memory/memory.usage_in_bytes", "5\n"),
        ]);
        // In a container the named group is not visible and the root is ours.
        let got = cgroup_memory_under(dir.path(), groups).unwrap();
        assert_eq!(got.max_bytes, Some(4_096_000));
    }

    #[test]
    fn no_groups_or_odd_ones_are_no_reading() {
        let dir = tree(&[("memory.max", "123\n")]);
        assert_eq!(cgroup_memory_under(dir.path(), ""), None);
        assert_eq!(cgroup_memory_under(dir.path(), "nonsense\n::\n"), None);
        let got = cgroup_memory_under(dir.path(), "0::/../../etc\n").unwrap();
        assert_eq!(got.max_bytes, Some(123));
        let inside = dir.path().join("inside");
        fs::create_dir(&inside).unwrap();
        assert_eq!(cgroup_memory_under(&inside, "0::/..\n"), None);
        assert_eq!(parse_limit("-1\n"), None);
        assert_eq!(parse_limit("12\n"), Some(12));
    }
}
