//! A limit set on a real control group is what a process inside it reads.
#![cfg(target_os = "linux")]

use haversack_memory::{Arena, Readings};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const CHILD: &str = "HAVERSACK_MEMORY_TEST_CHILD";
const MIB: u64 = 1 << 20;

/// A memory group of version 1, gone with the value. Processes inside end first.
struct Group(PathBuf);

impl Group {
    fn make() -> std::io::Result<Group> {
        let name = format!(
            "/sys/fs/cgroup/memory/haversack-test-{}",
            std::process::id()
        );
        fs::create_dir(&name)?;
        Ok(Group(PathBuf::from(name)))
    }

    fn set(&self, file: &str, value: impl ToString) -> std::io::Result<()> {
        fs::write(self.0.join(file), value.to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel may still be busy with a process that has just ended.
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        eprintln!("{} stays behind", self.0.display());
    }
}

/// Answers each line on its input with what it reads, the files opened before anything happened.
#[test]
fn child_reads_its_group() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let mut readings = Readings::open();
    let mut arena = Arena::new(8 << 20);
    for line in std::io::stdin().lines() {
        if line.unwrap() == "grow" {
            let i = arena.add_slab().unwrap();
            arena.slab_mut(i).fill(1);
        }
        let group = readings.now().cgroup.unwrap();
        println!(
            "\nread {} {} {}",
            group.limit_bytes.unwrap_or(0),
            group.usage_bytes.unwrap(),
            group.anon_bytes.unwrap()
        );
    }
}

struct Talker {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Talker {
    fn start() -> Talker {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_reads_its_group", "--exact", "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Talker { child, answers }
    }

    /// Limit, usage and anonymous bytes as the child sees them.
    fn ask(&mut self, word: &str) -> [u64; 3] {
        writeln!(self.child.stdin.as_mut().unwrap(), "{word}").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "child ended");
            let Some(numbers) = line.strip_prefix("read ") else {
                continue;
            };
            let numbers: Vec<u64> = numbers
                .split_whitespace()
                .map(|n| n.parse().unwrap())
                .collect();
            return numbers.try_into().unwrap();
        }
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_process_reads_the_limit_of_the_group_it_was_moved_to() {
    if !Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
        eprintln!("SKIPPED: no memory controller of version 1 is mounted");
        return;
    }
    let group = match Group::make() {
        Ok(group) => group,
        Err(e) => {
            eprintln!("SKIPPED: no control group can be made: {e}");
            return;
        }
    };
    let mut child = Talker::start();
    let [before, ..] = child.ask("read");
    assert_ne!(before, 96 * MIB);
    if let Err(e) = group
        .set("memory.limit_in_bytes", 96 * MIB)
        .and_then(|()| group.set("cgroup.procs", child.child.id()))
    {
        eprintln!("SKIPPED: the control group cannot be used: {e}");
        drop(child);
        return;
    }
    // The handles were opened in another group.
    let [limit, _, anon] = child.ask("read");
    assert_eq!(limit, 96 * MIB);
    let [_, usage, grown] = child.ask("grow");
    assert!(grown >= anon + 7 * MIB, "{anon} then {grown}");
    assert!(usage >= grown && usage < limit, "{usage}");
    // Lowered and lifted while the child runs.
    group.set("memory.limit_in_bytes", 64 * MIB).unwrap();
    assert_eq!(child.ask("read")[0], 64 * MIB);
    group.set("memory.limit_in_bytes", -1).unwrap();
    assert_eq!(child.ask("read")[0], before);
    drop(child);
}
