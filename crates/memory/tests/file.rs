//! Mapped files against the real kernel: what is in memory, what can be kept there, who may.
#![cfg(target_os = "linux")]

use haversack_memory::{FileMap, MapAdvice};
use std::fs::{self, File};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Locking brings every page in and keeps it there against advice; unmapping lets it go.
#[test]
fn a_locked_map_is_resident_and_costs_nothing_private() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("a");
    let len = (8 << 20) + 100;
    fs::write(&path, vec![7; len]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let map = FileMap::open(&path).unwrap();
    // Written pages are in the page cache; dropping them is a request.
    map.advise(0..len, MapAdvice::DontNeed).unwrap();
    let file = File::open(&path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let cold = map.resident_bytes().unwrap();
    if cold == len as u64 {
        eprintln!("SKIPPED: the file system keeps its pages, so reading them is not seen");
    }
    if let Err(e) = map.lock() {
        assert!(e.to_string().contains("cannot be locked"), "{e}");
        eprintln!("SKIPPED: {e}");
        return;
    }
    assert_eq!(map.resident_bytes(), Some(len as u64));
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert_eq!(map.resident_bytes(), Some(len as u64));
    // The kernel refuses to drop locked pages.
    assert!(map.advise(0..len, MapAdvice::DontNeed).is_err());
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", map.as_slice().as_ptr() as usize);
    let field = |key: &str| {
        let mut lines = smaps.lines().skip_while(|l| !l.starts_with(&start));
        let text = lines.find_map(|l| l.strip_prefix(key)).unwrap();
        text.trim()
            .trim_end_matches(" kB")
            .parse::<usize>()
            .unwrap()
    };
    assert_eq!(field("Private_Dirty:") + field("Anonymous:"), 0);
    assert!(field("Locked:") * 1024 >= 8 << 20);
    drop(map);
    let map = FileMap::open(&path).unwrap();
    map.advise(0..len, MapAdvice::DontNeed).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    eprintln!(
        "resident: cold {cold}, locked {len}, then {:?}",
        map.resident_bytes()
    );
    if cold < len as u64 {
        assert!(map.resident_bytes().unwrap() < len as u64);
        // Whole pages of a range are fetched ahead of use; the kernel may fetch more.
        map.advise(1..100, MapAdvice::WillNeed).unwrap();
        assert_eq!(map.as_slice()[99], 7);
        assert!(map.resident_bytes().unwrap() > 0);
    }
}

const CHILD: &str = "HAVERSACK_MEMORY_TEST_CHILD";

/// The process of the test below: an ordinary user with a small limit.
#[test]
fn child_locks_more_than_it_may() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit {
        current: Some(65_536),
        maximum: Some(65_536),
    };
    setrlimit(Resource::Memlock, limit).unwrap();
    let map = FileMap::open(Path::new(&path)).unwrap();
    match map.lock() {
        Ok(()) => println!("\nchild: locked"),
        Err(e) => println!("\nchild: {e}"),
    }
}

/// Root may lock everything, so another user tries.
#[test]
fn a_lock_beyond_the_limit_is_refused_with_its_name() {
    // The test's own program may lie in a folder that other users cannot enter: a copy does not.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let file = dir.path().join("file");
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o644);
    options.open(&file).unwrap().set_len(1 << 20).unwrap();

    let mut command = Command::new(&program);
    command
        .args(["child_locks_more_than_it_may", "--exact", "--nocapture"])
        .env(CHILD, &file);
    if rustix::process::getuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let out = match command.output() {
        Ok(out) => out,
        Err(e) => {
            eprintln!("SKIPPED: no process of another user can be started: {e}");
            return;
        }
    };
    let text = String::from_utf8_lossy(&out.stdout);
    if text.contains("child: locked") {
        eprintln!("SKIPPED: every user may lock here");
        return;
    }
    assert!(
        text.contains(
            "1048576 bytes cannot be locked: RLIMIT_MEMLOCK lets this process lock 65536"
        ),
        "{text}"
    );
}
