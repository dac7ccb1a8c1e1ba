//! Arenas against the real kernel: what is released is gone, by every count there is, and what is
//! shared is seen by others. Each test has the process to itself ([`alone`]), because the kernel
//! counts per process.
#![cfg(target_os = "linux")]

use haversack_memory::{Arena, Backing, Effect, FileMap, ProcessUsage, Refusal, SlabIndex, arena};
use haversack_testing::ArenaFaults;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

const SLAB: usize = 4 << 20;
const SLABS: usize = 16;

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// `Key:   12 kB` of /proc/self/status, in bytes.
fn status_bytes(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(key)).unwrap();
    let kib = line.trim_start_matches(':').trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() * 1024
}

/// Whether the kernel's flags of the map of slab `i` have `flag`; `mg` is merging.
fn has_flag(arena: &Arena, i: SlabIndex, flag: &str) -> bool {
    let address = arena.slab(i).as_ptr() as usize;
    let text = fs::read_to_string("/proc/self/smaps").unwrap();
    let holds = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        Some((start..end).contains(&address))
    };
    let mut lines = text.lines().skip_while(|l| holds(l) != Some(true));
    let flags = lines.find_map(|l| l.strip_prefix("VmFlags:")).unwrap();
    flags.split_whitespace().any(|f| f == flag)
}

fn filled(backing: Backing) -> Arena {
    let mut arena = Arena::with_backing(SLAB, backing).unwrap();
    for _ in 0..SLABS {
        let i = arena.add_slab().unwrap();
        assert_eq!(arena.slab(i)[SLAB - 1], 0);
        arena.slab_mut(i).fill(1 + i.0 as u8);
    }
    arena
}

fn release_half(arena: &mut Arena) -> u64 {
    for i in (0..SLABS).step_by(2) {
        assert!(arena.release(SlabIndex(i)));
    }
    (SLABS / 2 * SLAB) as u64
}

/// At least 95 % of what was freed, the bar of the product.
fn fell_by(before: u64, after: u64, freed: u64, what: &str) {
    let fell = before.saturating_sub(after);
    eprintln!("{what}: {before} - {after} = {fell} of {freed} bytes");
    assert!(fell * 100 >= freed * 95, "{what} fell by {fell} of {freed}");
}

#[test]
fn half_of_a_private_arena_goes_back() {
    let _alone = alone();
    let mut arena = filled(Backing::Private);
    let whole = (SLABS * SLAB) as u64;
    assert_eq!(arena.resident_bytes(), Some(whole));
    let before = ProcessUsage::now().unwrap();
    let freed = release_half(&mut arena);
    let after = ProcessUsage::now().unwrap();
    assert_eq!(arena.resident_bytes(), Some(whole - freed));
    fell_by(
        before.private_bytes,
        after.private_bytes,
        freed,
        "private bytes",
    );
    for i in 0..SLABS {
        let expected = if i % 2 == 0 { 0 } else { 1 + i as u8 };
        assert!(arena.slab(SlabIndex(i)).iter().all(|&x| x == expected));
    }
}

/// `MADV_DONTNEED` would lower RssShmem too and free nothing, so the blocks of the file count.
#[test]
fn half_of_a_shared_arena_goes_back() {
    let _alone = alone();
    let mut arena = filled(Backing::Memfd);
    let whole = (SLABS * SLAB) as u64;
    assert_eq!(arena.resident_bytes(), Some(whole));
    let rss = status_bytes("RssShmem");
    let freed = release_half(&mut arena);
    assert_eq!(arena.resident_bytes(), Some(whole - freed));
    fell_by(rss, status_bytes("RssShmem"), freed, "RssShmem");
    for i in 0..SLABS {
        let expected = if i % 2 == 0 { 0 } else { 1 + i as u8 };
        assert!(arena.slab(SlabIndex(i)).iter().all(|&x| x == expected));
    }
}

/// The kernel does not take locked pages back; the slab is cleared instead, and says so.
#[test]
fn a_locked_slab_is_cleared_and_stays() {
    let _alone = alone();
    let mut arena = Arena::new(64 << 10);
    let i = arena.add_slab().unwrap();
    arena.slab_mut(i).fill(3);
    let start = arena.slab(i).as_ptr() as *mut std::ffi::c_void;
    // SAFETY: locking our own pages changes no byte.
    if let Err(e) = unsafe { rustix::mm::mlock(start, 64 << 10) } {
        eprintln!("SKIPPED: nothing can be locked: {e}");
        return;
    }
    assert!(!arena.release(i));
    assert!(arena.slab(i).iter().all(|&x| x == 0));
    assert_eq!(arena.resident_bytes(), Some(64 << 10));
    // SAFETY: as above.
    unsafe { rustix::mm::munlock(start, 64 << 10) }.unwrap();
    assert!(arena.release(i));
    assert_eq!(arena.resident_bytes(), Some(0));
}

#[test]
fn slabs_cost_no_page_before_they_are_touched() {
    let _alone = alone();
    for backing in Backing::ALL {
        let mut arena = Arena::with_backing(1 << 30, backing).unwrap();
        for _ in 0..4 {
            arena.add_slab().unwrap();
        }
        assert_eq!(arena.resident_bytes(), Some(0), "{backing:?}");
        arena.slab_mut(SlabIndex(3))[5] = 1;
        let page = rustix::param::page_size() as u64;
        assert_eq!(arena.resident_bytes(), Some(page), "{backing:?}");
        assert!(arena.release(SlabIndex(3)));
        assert_eq!(arena.resident_bytes(), Some(0), "{backing:?}");
    }
}

const CHILD: &str = "HAVERSACK_MEMORY_TEST_CHILD";

/// The other process of the test below: maps the file whose name it gets, as any file.
#[test]
fn child_reads_a_memory_file() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let map = FileMap::open(Path::new(&path)).unwrap();
    let stride = 10_000usize.next_multiple_of(rustix::param::page_size());
    let sum = |slab: &[u8]| slab[..10_000].iter().map(|&x| x as u64).sum::<u64>();
    let sums: Vec<u64> = map.as_slice().chunks(stride).map(sum).collect();
    println!("child saw {sums:?}");
}

#[test]
fn another_process_reads_a_memory_file() {
    let _alone = alone();
    let mut arena = Arena::with_backing(10_000, Backing::Memfd).unwrap();
    for value in [3, 5] {
        let i = arena.add_slab().unwrap();
        arena.slab_mut(i).fill(value);
    }
    let path = arena.memfd_path().unwrap();
    let saw = || {
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["child_reads_a_memory_file", "--exact", "--nocapture"])
            .env(CHILD, &path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}{:?}", out.stderr);
        text
    };
    assert!(saw().contains("child saw [30000, 50000]"));
    // A map made earlier follows the owner's writes.
    let map = FileMap::open(&path).unwrap();
    arena.slab_mut(SlabIndex(0))[9_999] = 77;
    assert_eq!(map.as_slice()[9_999], 77);
    assert!(arena.release(SlabIndex(0)));
    assert!(saw().contains("child saw [0, 50000]"));
}

/// A reader cannot cut the file off: its length only grows, so no map of it meets SIGBUS.
#[test]
fn a_memory_file_keeps_its_length() {
    let _alone = alone();
    let mut arena = Arena::with_backing(SLAB, Backing::Memfd).unwrap();
    let i = arena.add_slab().unwrap();
    arena.slab_mut(i).fill(4);
    let path = arena.memfd_path().unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(SLAB as u64 - 1).is_err());
    assert_eq!(file.metadata().unwrap().len(), SLAB as u64);

    let map = FileMap::open(&path).unwrap();
    assert_eq!(map.as_slice()[SLAB - 1], 4);
    assert!(arena.release(i));
    assert_eq!(arena.resident_bytes(), Some(0));
    // Reading a hole costs a page, unlike in private memory.
    assert_eq!(map.as_slice()[SLAB - 1], 0);
    let page = rustix::param::page_size() as u64;
    assert_eq!(arena.resident_bytes(), Some(page));
}

/// Small pages put together hold the same bytes and no more memory, and go back as whole slabs.
#[test]
fn a_slab_in_use_is_put_into_huge_pages() {
    let _alone = alone();
    const LEN: usize = (4 << 20) + 5000;
    let mut arena = Arena::new(LEN);
    let i = arena.add_slab().unwrap();
    assert_eq!(arena.huge_pages(), None);
    assert_eq!(arena.slab(i).as_ptr() as usize % (2 << 20), 0);
    for (at, byte) in arena.slab_mut(i).iter_mut().enumerate() {
        *byte = (at / 4096 + at) as u8;
    }
    let before = arena.resident_bytes();
    let done = arena.collapse(i);
    let told = arena.huge_pages().unwrap();
    eprintln!("collapse: {done}, {told}");
    match (done, &told) {
        (true, told) => assert_eq!(*told, Effect::Active { bytes: 4 << 20 }),
        (false, Effect::Active { .. }) => panic!("refused and active"),
        (false, _) => eprintln!("SKIPPED: the kernel did not put pages together: {told}"),
    }
    assert_eq!(arena.resident_bytes(), before);
    let bytes = arena.slab(i).iter().enumerate();
    assert!(
        bytes
            .into_iter()
            .all(|(at, &b)| b == (at / 4096 + at) as u8)
    );
    assert!(arena.release(i));
    assert_eq!(arena.resident_bytes(), Some(0));
    assert!(arena.slab(i).iter().all(|&b| b == 0));
    let told = arena.huge_pages().unwrap();
    assert!(!matches!(told, Effect::Active { .. }), "{told}");

    // What has no room for a huge page says no, and so does what is shared.
    let mut small = Arena::new(64 << 10);
    let i = small.add_slab().unwrap();
    assert!(!small.collapse(i));
    let told = small.huge_pages().unwrap();
    assert!(!matches!(told, Effect::Active { .. }), "{told}");
    let mut shared = Arena::with_backing(LEN, Backing::Memfd).unwrap();
    let i = shared.add_slab().unwrap();
    assert!(!shared.collapse(i));
}

#[test]
fn a_memory_file_is_never_merged() {
    let _alone = alone();
    let mut arena = Arena::with_backing(SLAB, Backing::Memfd).unwrap();
    let i = arena.add_slab().unwrap();
    assert_eq!(arena.merged(), None);
    assert!(!has_flag(&arena, i, "mg"));
}

/// ksmd on for the length of a test. The lock on the switch keeps two test runs from restoring each
/// other's value.
struct Ksmd {
    switch: File,
    was: String,
}

impl Ksmd {
    fn start() -> Option<Ksmd> {
        let path = "/sys/kernel/mm/ksm/run";
        let switch = File::options().read(true).write(true).open(path).ok()?;
        rustix::fs::flock(&switch, rustix::fs::FlockOperation::LockExclusive).ok()?;
        let was = fs::read_to_string(path).ok()?;
        let mut ksmd = Ksmd { switch, was };
        ksmd.switch.write_all(b"1").ok()?;
        Some(ksmd)
    }
}

impl Drop for Ksmd {
    fn drop(&mut self) {
        let was = self.was.trim().to_string();
        if fs::write("/sys/kernel/mm/ksm/run", &was).is_err() {
            eprintln!("ksmd could not be set back to {was}");
        }
    }
}

fn full_scans() -> u64 {
    let text = fs::read_to_string("/sys/kernel/mm/ksm/full_scans").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

#[test]
fn equal_private_pages_merge_when_ksmd_runs() {
    let _alone = alone();
    let mut arena = Arena::with_backing(1 << 20, Backing::Mergeable).unwrap();
    for _ in 0..2 {
        let i = arena.add_slab().unwrap();
        arena.slab_mut(i).fill(0xa5);
    }
    let before = arena.merged().unwrap();
    eprintln!("merge before: {before}");
    if !matches!(before, Effect::Unavailable { .. }) {
        let later = arena.add_slab().unwrap();
        assert!(has_flag(&arena, SlabIndex(0), "mg") && has_flag(&arena, later, "mg"));
    }
    let Some(_ksmd) = Ksmd::start() else {
        eprintln!("SKIPPED: /sys/kernel/mm/ksm/run cannot be written; merging said: {before}");
        assert!(!matches!(before, Effect::Active { .. }), "{before}");
        return;
    };
    // The first scan takes checksums, the second merges; two more for pages it was late for.
    let scans = full_scans();
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        let told = arena.merged().unwrap();
        if let Effect::Active { bytes } = told {
            eprintln!("merge after: {told}");
            assert!(bytes <= 2 << 20, "{told}");
            break;
        }
        assert!(told.to_string().contains("ksmd runs"), "{told}");
        assert!(full_scans() < scans + 4, "four scans and {told}");
        if Instant::now() > patience {
            eprintln!("SKIPPED: ksmd did not finish its scans in a minute: {told}");
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // Merging changes no byte, and writing takes a page out of it again.
    arena.slab_mut(SlabIndex(0))[0] = 1;
    assert_eq!(arena.slab(SlabIndex(0))[0], 1);
    assert_eq!(arena.slab(SlabIndex(1))[0], 0xa5);
    assert_eq!(arena.slab(SlabIndex(1)).as_ptr() as usize % arena::ALIGN, 0);
    assert!(arena.release(SlabIndex(0)));
    assert!(arena.slab(SlabIndex(0)).iter().all(|&x| x == 0));
}

/// Every call in turn fails, on every backing: an error or a cleared slab, nothing else.
#[test]
fn a_fault_hits_one_call_and_changes_nothing_else() {
    for backing in Backing::ALL {
        for n in 0..=6 {
            let faults = ArenaFaults::fail_nth(n);
            let Ok(mut arena) = Arena::with_io(10_000, backing, faults.io()) else {
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
                        assert_eq!(e.why, Refusal::OutOfMemory);
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
            if !arena.release(i) {
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
