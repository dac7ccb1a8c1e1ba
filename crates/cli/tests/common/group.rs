//! What the kernel says of a process's memory, and limits that it enforces.

use super::PATIENCE;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// A memory group of our own, version 1; gone with the value.
pub struct Group(PathBuf);

impl Group {
    pub fn new(name: &str) -> Option<Group> {
        let name = format!("haversack-{name}-{}", std::process::id());
        let path = Path::new("/sys/fs/cgroup/memory").join(name);
        fs::create_dir(&path).ok()?;
        let group = Group(path);
        group.set_limit(1 << 40).then_some(group)
    }

    pub fn set_limit(&self, bytes: u64) -> bool {
        fs::write(self.0.join("memory.limit_in_bytes"), bytes.to_string()).is_ok()
    }

    pub fn anonymous_bytes(&self) -> u64 {
        let stat = fs::read_to_string(self.0.join("memory.stat")).unwrap();
        let line = stat
            .lines()
            .find_map(|line| line.strip_prefix("total_rss "));
        line.unwrap().parse().unwrap()
    }

    /// Pages that had to be read from a disk before the process could go on, of all processes so far.
    pub fn major_faults(&self) -> u64 {
        let stat = fs::read_to_string(self.0.join("memory.stat")).unwrap();
        let line = stat
            .lines()
            .find_map(|line| line.strip_prefix("total_pgmajfault "));
        line.unwrap().parse().unwrap()
    }

    /// The same command in this group.
    pub fn inside(&self, program: &Command) -> Command {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg("echo $$ > \"$0/cgroup.procs\" && exec \"$@\"")
            .arg(&self.0)
            .arg(program.get_program())
            .args(program.get_args())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        remove_group(&self.0);
    }
}

fn remove_group(path: &Path) {
    // A process that has just ended may hold it for a moment.
    for _ in 0..50 {
        if fs::remove_dir(path).is_ok() {
            return;
        }
        sleep(Duration::from_millis(100));
    }
}

/// A CPU group, version 1, that gets what nothing else wants: for threads that stand for clients on other machines. What those
/// compute would be missing to the server. Gone with the value.
pub struct OtherMachines(PathBuf);

impl OtherMachines {
    pub fn new(name: &str) -> Option<OtherMachines> {
        let name = format!("haversack-{name}-{}", std::process::id());
        let path = Path::new("/sys/fs/cgroup/cpu").join(name);
        fs::create_dir(&path).ok()?;
        let group = OtherMachines(path);
        fs::write(group.0.join("cpu.idle"), "1").ok()?;
        Some(group)
    }

    /// Moves the calling thread there.
    pub fn enter(&self) {
        fs::write(self.0.join("tasks"), "0").unwrap();
    }
}

impl Drop for OtherMachines {
    fn drop(&mut self) {
        remove_group(&self.0);
    }
}

/// Anonymous resident bytes of a process; `None` once it has ended.
pub fn rss_anon(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// Reads [`rss_anon`] of a process ten times a second and more, until it is asked or the process ends.
pub struct RssWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u64, usize)>,
}

impl RssWatch {
    pub fn new(pid: u32) -> RssWatch {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut max, mut samples) = (0, 0);
            while !asked.load(Ordering::Relaxed)
                && let Some(bytes) = rss_anon(pid)
            {
                max = max.max(bytes);
                samples += 1;
                sleep(Duration::from_millis(20));
            }
            (max, samples)
        });
        RssWatch { stop, thread }
    }

    /// The highest reading, and how many there were.
    pub fn end(self) -> (u64, usize) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Waits until `RssAnon` is at most `bytes`.
pub fn wait_until_below(pid: u32, bytes: u64) {
    let began = Instant::now();
    while rss_anon(pid).is_some_and(|now| now > bytes) {
        assert!(began.elapsed() < PATIENCE, "still {:?}", rss_anon(pid));
        sleep(Duration::from_millis(100));
    }
}
