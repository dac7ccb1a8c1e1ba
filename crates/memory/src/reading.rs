//! What the device has left: the numbers a governor decides on, several times a second.
//!
//! Plain data and no policy. [`Readings`] opens the kernel's files once and reads them again from their
//! beginning; a file that is not there is `None` in the reading, never a zero. The group of the process
//! is read each time, from one small file, because the process may be moved; limits are read each time,
//! because they may be changed.

use std::path::{Path, PathBuf};

use crate::cgroup;
use crate::kernel_text::{KernelFile, TEXT_BYTES_MAX, field_kib, parse_limit};
use crate::pressure::{self, Psi};

/// The machine and the group of this process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// What the kernel thinks can be used without swapping.
    pub mem_available_bytes: Option<u64>,
    pub mem_total_bytes: Option<u64>,
    pub cgroup: Option<Cgroup>,
    /// Stalls of the whole machine.
    pub psi: Option<Psi>,
    /// Stalls of the process's own group (version 2 only).
    pub cgroup_psi: Option<Psi>,
}

/// The group that leaves the process the least room: its own or one above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// 1 or 2.
    pub version: u8,
    /// The smaller of `memory.max` and `memory.high`, or `memory.limit_in_bytes`. `None` if no group
    /// on the way up has a limit; the other numbers are then those of the own group.
    pub limit_bytes: Option<u64>,
    /// Everything charged to the group, page cache included.
    pub usage_bytes: Option<u64>,
    pub anon_bytes: Option<u64>,
    /// Page cache, with shared memory, which is not on disk.
    pub file_bytes: Option<u64>,
    /// The part of `file_bytes` that the kernel can drop: not shared memory, not locked.
    pub reclaimable_bytes: Option<u64>,
}

impl Cgroup {
    /// What still fits if all reclaimable pages are dropped; `None` without a limit. An upper bound:
    /// dropping the pages of weights in use is thrashing.
    pub fn room_bytes(&self) -> Option<u64> {
        let usage = self.usage_bytes?;
        let kept = usage.saturating_sub(self.reclaimable_bytes.unwrap_or(0));
        Some(self.limit_bytes?.saturating_sub(kept))
    }
}

impl Reading {
    /// One reading, with files opened for it. Keep a [`Readings`] to read often.
    pub fn now() -> Reading {
        Readings::open().now()
    }
}

/// Open files of the kernel.
pub struct Readings {
    proc: PathBuf,
    meminfo: KernelFile,
    psi: KernelFile,
    /// /proc/self/cgroup, and what it said when the files below were opened.
    own: KernelFile,
    own_said: String,
    levels: Vec<Level>,
    cgroup_psi: KernelFile,
    /// Reused by every read.
    buffer: Vec<u8>,
}

impl Readings {
    /// Opens what this system has; that may be nothing.
    pub fn open() -> Readings {
        Readings::under(Path::new("/proc"))
    }

    fn under(proc: &Path) -> Readings {
        let mut readings = Readings {
            proc: proc.to_path_buf(),
            meminfo: KernelFile::open(&proc.join("meminfo")),
            psi: KernelFile::open(&proc.join("pressure/memory")),
            own: KernelFile::open(&proc.join("self/cgroup")),
            own_said: String::new(),
            levels: Vec::new(),
            cgroup_psi: KernelFile::default(),
            buffer: vec![0; TEXT_BYTES_MAX],
        };
        readings.find_groups();
        readings
    }

    fn find_groups(&mut self) {
        self.levels.clear();
        self.cgroup_psi = KernelFile::default();
        let said = self.own.read(&mut self.buffer);
        self.own_said = said.unwrap_or_default().to_string();
        let Some(dirs) = cgroup::find(&self.proc) else {
            return;
        };
        self.levels = open_levels(&dirs);
        if let Some(dir) = dirs.v2.first() {
            self.cgroup_psi = KernelFile::open(&dir.join("memory.pressure"));
        }
    }

    pub fn now(&mut self) -> Reading {
        let said = self.own.read(&mut self.buffer);
        if said.unwrap_or_default() != self.own_said {
            self.find_groups();
        }
        let buffer = &mut self.buffer;
        let mut reading = Reading::default();
        if let Some(text) = self.meminfo.read(buffer) {
            reading.mem_available_bytes = field_kib(text, "MemAvailable");
            reading.mem_total_bytes = field_kib(text, "MemTotal");
        }
        let mut psi = |file: &KernelFile| pressure::parse(file.read(buffer)?);
        reading.psi = psi(&self.psi);
        reading.cgroup_psi = psi(&self.cgroup_psi);
        reading.cgroup = tightest(&self.levels, buffer);
        reading
    }
}

/// The limits of this process's control group by themselves, for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupLimits {
    /// 1 or 2.
    pub version: u8,
    /// The smallest `memory.max` (v1: `limit_in_bytes`) from the process's group up to the root:
    /// beyond it the kernel kills processes.
    pub max_bytes: Option<u64>,
    /// The smallest `memory.high` (v2): beyond it the kernel slows processes down.
    pub high_bytes: Option<u64>,
    /// What the group whose `max_bytes` is reported uses now, page cache included.
    pub used_bytes: Option<u64>,
}

impl CgroupLimits {
    /// `None` where there are no control groups for memory.
    pub fn now() -> Option<CgroupLimits> {
        CgroupLimits::of(&cgroup::find(Path::new("/proc"))?)
    }

    fn of(dirs: &cgroup::Dirs) -> Option<CgroupLimits> {
        let levels = open_levels(dirs);
        let buffer = &mut vec![0; TEXT_BYTES_MAX];
        let mut read = |file: &KernelFile| parse_limit(file.read(buffer)?);
        let own = levels.first()?;
        let mut limits = CgroupLimits {
            version: own.version,
            max_bytes: None,
            high_bytes: None,
            used_bytes: read(&own.usage),
        };
        for level in &levels {
            let [max, high] = [&level.limits[0], &level.limits[1]].map(&mut read);
            if max.is_some_and(|max| limits.max_bytes.is_none_or(|old| max < old)) {
                limits.max_bytes = max;
                limits.used_bytes = read(&level.usage);
            }
            if high.is_some_and(|high| limits.high_bytes.is_none_or(|old| high < old)) {
                limits.high_bytes = high;
            }
        }
        Some(limits)
    }
}

/// With both versions mounted, the one that has a memory controller is the one that limits.
fn open_levels(dirs: &cgroup::Dirs) -> Vec<Level> {
    let open = |version, dirs: &[PathBuf]| -> Vec<Level> {
        dirs.iter()
            .filter_map(|dir| Level::open(version, dir))
            .collect()
    };
    match open(1, &dirs.v1) {
        levels if levels.is_empty() => open(2, &dirs.v2),
        levels => levels,
    }
}

/// The level with the least room, own group first among equals. Levels without a limit are not read
/// further: they restrict nothing.
fn tightest(levels: &[Level], buffer: &mut [u8]) -> Option<Cgroup> {
    let limited = levels
        .iter()
        .filter_map(|level| Some(level.read(Some(level.limit(buffer)?), buffer)))
        // A limit whose use cannot be read is worth its own size.
        .min_by_key(|c| c.room_bytes().or(c.limit_bytes));
    limited.or_else(|| Some(levels.first()?.read(None, buffer)))
}

/// The files of one group.
struct Level {
    version: u8,
    limits: [KernelFile; 2],
    usage: KernelFile,
    stat: KernelFile,
}

impl Level {
    /// `None` where the folder has no memory controller, like the root of version 2.
    fn open(version: u8, dir: &Path) -> Option<Level> {
        let open = |name: &str| KernelFile::open(&dir.join(name));
        let (limits, usage) = match version {
            1 => (
                [open("memory.limit_in_bytes"), KernelFile::default()],
                open("memory.usage_in_bytes"),
            ),
            _ => (
                [open("memory.max"), open("memory.high")],
                open("memory.current"),
            ),
        };
        let there = limits.iter().any(KernelFile::is_there) || usage.is_there();
        there.then(|| Level {
            version,
            limits,
            usage,
            stat: open("memory.stat"),
        })
    }

    fn limit(&self, buffer: &mut [u8]) -> Option<u64> {
        let limits = self.limits.iter();
        limits
            .filter_map(|file| parse_limit(file.read(buffer)?))
            .min()
    }

    fn read(&self, limit_bytes: Option<u64>, buffer: &mut [u8]) -> Cgroup {
        let usage = self.usage.read(buffer);
        let usage_bytes = usage.and_then(|t| t.trim().parse().ok());
        Cgroup {
            limit_bytes,
            usage_bytes,
            ..Cgroup::parse(self.version, self.stat.read(buffer).unwrap_or_default())
        }
    }
}

impl Cgroup {
    /// What is used of `memory.stat`, groups below included: lines of `key number`. Version 1 counts a
    /// group alone under `key`, with those below it under `total_key`; its `rss` is anonymous memory only.
    fn parse(version: u8, text: &str) -> Cgroup {
        let keys = match version {
            1 => [
                "total_rss",
                "total_cache",
                "total_inactive_file",
                "total_active_file",
            ],
            _ => ["anon", "file", "inactive_file", "active_file"],
        };
        let mut values = [None; 4];
        for line in text.lines() {
            let Some((key, value)) = line.split_once(' ') else {
                continue;
            };
            if let Some(at) = keys.iter().position(|&k| k == key) {
                values[at] = value.trim().parse::<u64>().ok();
            }
        }
        let [anon, file, inactive, active] = values;
        Cgroup {
            version,
            anon_bytes: anon,
            file_bytes: file,
            reclaimable_bytes: inactive.and_then(|n| n.checked_add(active?)),
            ..Cgroup::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A `proc` and a tree of groups made of text; `{dir}` in a text is the folder itself.
    fn device(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let text = text.replace("{dir}", dir.path().to_str().unwrap());
            write(&dir, path, &text);
        }
        dir
    }

    fn write(dir: &tempfile::TempDir, path: &str, text: &str) {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    const V2: &str = "1 2 0:3 / {dir}/groups rw - cgroup2 cgroup2 rw\n";
    const V1: &str = "1 2 0:3 / {dir}/groups rw - cgroup cgroup rw,memory\n";

    #[test]
    fn a_reading_of_version_2_is_that_of_the_tightest_group() {
        let dir = device(&[
            ("self/mountinfo", V2),
            ("self/cgroup", "0::/app/job\n"),
            (
                "meminfo",
                "MemTotal:  8000 kB\nMemFree: 1 kB\nMemAvailable:  3000 kB\n",
            ),
            (
                "pressure/memory",
                "some avg10=3.00 total=9\nfull avg10=1.00 total=7\n",
            ),
            (
                "groups/app/job/memory.pressure",
                "some avg10=5.00 total=9\nfull avg10=2.00 total=8\n",
            ),
            ("groups/app/job/memory.max", "1000000\n"),
            ("groups/app/job/memory.high", "900000\n"),
            ("groups/app/job/memory.current", "200000\n"),
            (
                "groups/app/job/memory.stat",
                "anon 100000\nfile 90000\nfile_mapped 1\nshmem 30000\ninactive_anon 5\n\
                 inactive_file 20000\nactive_file 40000\nunevictable 0\n",
            ),
            ("groups/app/memory.max", "max\n"),
            ("groups/app/memory.high", "max\n"),
            ("groups/app/memory.current", "5000000\n"),
        ]);
        let mut readings = Readings::under(dir.path());
        let first = readings.now();
        assert_eq!(first.mem_total_bytes, Some(8000 << 10));
        assert_eq!(first.mem_available_bytes, Some(3000 << 10));
        assert_eq!(first.psi.unwrap().full_total_us, 7);
        assert_eq!(first.cgroup_psi.unwrap().some_avg10, 5.0);
        let group = first.cgroup.unwrap();
        assert_eq!(
            group,
            Cgroup {
                version: 2,
                limit_bytes: Some(900_000),
                usage_bytes: Some(200_000),
                anon_bytes: Some(100_000),
                file_bytes: Some(90_000),
                reclaimable_bytes: Some(60_000),
            }
        );
        assert_eq!(group.room_bytes(), Some(760_000));

        // A larger limit above that leaves less room, set while the files are open.
        write(&dir, "groups/app/memory.max", "5100000\n");
        let group = readings.now().cgroup.unwrap();
        assert_eq!(group.limit_bytes, Some(5_100_000));
        assert_eq!(group.room_bytes(), Some(100_000));
        // Its use is above its limit by now.
        write(&dir, "groups/app/memory.current", "5200000\n");
        assert_eq!(readings.now().cgroup.unwrap().room_bytes(), Some(0));

        // Shrunk in place: a shorter text leaves nothing of the longer one.
        write(&dir, "groups/app/memory.max", "max\n");
        write(&dir, "groups/app/job/memory.high", "7\n");
        assert_eq!(readings.now().cgroup.unwrap().limit_bytes, Some(7));

        // The process is moved.
        write(&dir, "self/cgroup", "0::/app\n");
        let group = readings.now().cgroup.unwrap();
        assert_eq!(group.limit_bytes, None);
        assert_eq!(group.usage_bytes, Some(5_200_000));
        assert_eq!((group.anon_bytes, group.room_bytes()), (None, None));
    }

    #[test]
    fn a_reading_of_version_1_counts_the_groups_below() {
        let stat = "cache 1\nrss 2\nhierarchical_memory_limit 3\ntotal_cache 500\ntotal_rss 400\n\
                    total_inactive_file 50\ntotal_active_file 70\n";
        let dir = device(&[
            ("self/mountinfo", V1),
            ("self/cgroup", "4:memory:/box\n1:cpu:/x\n0::/\n"),
            ("groups/box/memory.limit_in_bytes", "9223372036854771712\n"),
            ("groups/box/memory.usage_in_bytes", "900\n"),
            ("groups/box/memory.stat", stat),
            ("groups/memory.limit_in_bytes", "4096000\n"),
            ("groups/memory.usage_in_bytes", "1000\n"),
            ("groups/memory.stat", stat),
        ]);
        let mut readings = Readings::under(dir.path());
        let group = readings.now().cgroup.unwrap();
        assert_eq!(
            group,
            Cgroup {
                version: 1,
                limit_bytes: Some(4_096_000),
                usage_bytes: Some(1000),
                anon_bytes: Some(400),
                file_bytes: Some(500),
                reclaimable_bytes: Some(120),
            }
        );
        // No level has a limit: the own group.
        write(
            &dir,
            "groups/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        let group = readings.now().cgroup.unwrap();
        assert_eq!((group.limit_bytes, group.usage_bytes), (None, Some(900)));
    }

    #[test]
    fn what_is_absent_or_garbage_is_none() {
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(Readings::under(nothing.path()).now(), Reading::default());
        for garbage in [
            "",
            "\n\n",
            "-1",
            "99999999999999999999999",
            "12 34",
            "some full total",
            "\u{0}",
            "MemTotal: kB\nMemAvailable: 18446744073709551615 kB\n",
            "total_rss\nanon x\nfile -3\n inactive_file 1\n",
        ] {
            let dir = device(&[
                ("self/mountinfo", V2),
                ("self/cgroup", "0::/\n"),
                ("meminfo", garbage),
                ("pressure/memory", garbage),
                ("groups/memory.pressure", garbage),
                ("groups/memory.max", garbage),
                ("groups/memory.high", garbage),
                ("groups/memory.current", garbage),
                ("groups/memory.stat", garbage),
            ]);
            let empty = Cgroup {
                version: 2,
                ..Cgroup::default()
            };
            let expected = Reading {
                cgroup: Some(empty),
                ..Reading::default()
            };
            assert_eq!(Readings::under(dir.path()).now(), expected, "{garbage:?}");
            assert_eq!(empty.room_bytes(), None);
        }
        let binary = device(&[("self/mountinfo", V2), ("self/cgroup", "0::/\n")]);
        fs::write(binary.path().join("meminfo"), [0xff; 100]).unwrap();
        assert_eq!(Readings::under(binary.path()).now(), Reading::default());
    }

    /// A file longer than any of the kernel's is cut, and never in the middle of a number.
    #[test]
    fn a_file_without_end_is_cut_at_a_line() {
        // The buffer ends behind the 3 of 123456.
        let mut text = "x 1\n".repeat(TEXT_BYTES_MAX / 4 - 2);
        text.push_str("anon 123456\nfile 5\n");
        let dir = device(&[
            ("self/mountinfo", V2),
            ("self/cgroup", "0::/\n"),
            ("groups/memory.current", "9\n"),
            ("groups/memory.stat", &text),
        ]);
        let group = Readings::under(dir.path()).now().cgroup.unwrap();
        assert_eq!((group.anon_bytes, group.file_bytes), (None, None));
        let path = dir.path().join("groups/memory.stat");
        let cut = crate::kernel_text::read_capped(&path).unwrap();
        assert_eq!(cut.len(), TEXT_BYTES_MAX - 8);
        let sum = Cgroup::parse(2, "inactive_file 18446744073709551615\nactive_file 1\n");
        assert_eq!(sum.reclaimable_bytes, None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_a_reading() {
        let mut readings = Readings::open();
        let reading = readings.now();
        let (available, total) = (reading.mem_available_bytes, reading.mem_total_bytes);
        assert!(available.unwrap() > 0 && available <= total);
        let started = std::time::Instant::now();
        for _ in 0..100 {
            readings.now();
        }
        eprintln!("a reading takes {:?}: {reading:?}", started.elapsed() / 100);
    }

    /// As if `root` were /sys/fs/cgroup.
    fn limits_under(root: &Path, groups: &str) -> Option<CgroupLimits> {
        CgroupLimits::of(&cgroup::dirs(groups, &cgroup::Mounts::usual(root)))
    }

    #[test]
    fn version_2_takes_the_smallest_limit_on_the_way_up() {
        let dir = device(&[
            ("app/memory.max", "1073741824\n"),
            ("app/memory.high", "900000000\n"),
            ("app/memory.current", "500\n"),
            ("app/job/memory.max", "max\n"),
            ("app/job/memory.high", "max\n"),
            ("app/job/memory.current", "100\n"),
        ]);
        let got = limits_under(dir.path(), "0::/app/job\n").unwrap();
        assert_eq!(
            got,
            CgroupLimits {
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
        let dir = device(&[
            ("memory/box/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/box/memory.usage_in_bytes", "77\n"),
        ]);
        let got = limits_under(dir.path(), groups).unwrap();
        assert_eq!((got.version, got.max_bytes), (1, None));
        assert_eq!(got.used_bytes, Some(77));
        let dir = device(&[
            ("memory/memory.limit_in_bytes", "4096000\n"),
            ("memory/memory.usage_in_bytes", "5\n"),
        ]);
        // In a container the named group is not visible and the root is ours.
        let got = limits_under(dir.path(), groups).unwrap();
        assert_eq!(got.max_bytes, Some(4_096_000));
    }

    #[test]
    fn no_groups_or_odd_ones_are_no_reading() {
        let dir = device(&[("memory.max", "123\n")]);
        assert_eq!(limits_under(dir.path(), ""), None);
        assert_eq!(limits_under(dir.path(), "nonsense\n::\n"), None);
        let got = limits_under(dir.path(), "0::/../../etc\n").unwrap();
        assert_eq!(got.max_bytes, Some(123));
        let inside = dir.path().join("inside");
        fs::create_dir(&inside).unwrap();
        assert_eq!(limits_under(&inside, "0::/..\n"), None);
    }
}
