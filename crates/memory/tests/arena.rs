//! Arenas against the real kernel: what is released is gone, by every count there is, and what is
//! shared is seen by others. Each test has the process to itself ([`alone`]), because the kernel
//! counts per process.
#![cfg(target_os = "linux")]

use haversack_memory::{
    Arena, Backing, Effect, Hint, ShareError, SharedSlabs, SlabIndex, Usage, arena,
};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
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

/// What the kernel noted about the map of slab `i`: `hg` is asked for huge pages, `mg` for merging.
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
    let before = Usage::now().unwrap();
    let freed = release_half(&mut arena);
    let after = Usage::now().unwrap();
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
    let mut arena = filled(Backing::Shared);
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
    assert_eq!(arena.release_range(i, 0..usize::MAX), 0);
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
    for backing in [Backing::Private, Backing::Shared] {
        let mut arena = Arena::with_backing(1 << 30, backing).unwrap();
        for _ in 0..4 {
            arena.add_slab().unwrap();
        }
        assert_eq!(arena.resident_bytes(), Some(0), "{backing:?}");
        arena.slab_mut(SlabIndex(3))[5] = 1;
        let page = rustix::param::page_size() as u64;
        assert_eq!(arena.resident_bytes(), Some(page), "{backing:?}");
        // A page given back alone.
        assert_eq!(
            arena.release_range(SlabIndex(3), 0..page as usize),
            page as usize
        );
        assert_eq!(arena.resident_bytes(), Some(0), "{backing:?}");
    }
}

const CHILD: &str = "HAVERSACK_MEMORY_TEST_CHILD";

/// The other process of the test below: maps what it finds on its standard input.
#[test]
fn child_reads_shared_slabs() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let slabs = SharedSlabs::map(std::io::stdin(), 10_000, 2).unwrap();
    let sums: Vec<u64> = (0..2)
        .map(|i| slabs.slab(i).unwrap().iter().map(|&x| x as u64).sum())
        .collect();
    println!("child saw {sums:?}");
}

#[test]
fn another_process_sees_the_bytes_of_a_shared_arena() {
    let _alone = alone();
    let mut arena = Arena::with_backing(10_000, Backing::Shared).unwrap();
    for value in [3, 5] {
        let i = arena.add_slab().unwrap();
        arena.slab_mut(i).fill(value);
    }
    let saw = || {
        let fd: OwnedFd = arena.shared_fd().unwrap().try_clone_to_owned().unwrap();
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["child_reads_shared_slabs", "--exact", "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::from(fd))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}{:?}", out.stderr);
        text
    };
    assert!(saw().contains("child saw [30000, 50000]"));
    arena.release(SlabIndex(0));
    let saw = || {
        let fd: OwnedFd = arena.shared_fd().unwrap().try_clone_to_owned().unwrap();
        let slabs = SharedSlabs::map(fd, 10_000, 2).unwrap();
        (slabs.slab(0).unwrap()[0], slabs.slab(1).unwrap()[9_999])
    };
    assert_eq!(saw(), (0, 5));
}

#[test]
fn a_received_descriptor_is_checked_before_it_is_mapped() {
    let _alone = alone();
    let page = rustix::param::page_size();
    let mut arena = Arena::with_backing(page + 1, Backing::Shared).unwrap();
    let first = arena.add_slab().unwrap();
    let fd = arena.shared_fd().unwrap().try_clone_to_owned().unwrap();
    let slabs = SharedSlabs::map(&fd, page + 1, 1).unwrap();
    assert_eq!(slabs.slab(0).unwrap().len(), page + 1);
    assert!(slabs.slab(1).is_none() && slabs.slab(usize::MAX).is_none());
    // A map made earlier follows the owner's writes.
    arena.slab_mut(first)[page] = 77;
    assert_eq!(slabs.slab(0).unwrap()[page], 77);

    assert_eq!(
        SharedSlabs::map(&fd, page + 1, 2).err(),
        Some(ShareError::TooShort {
            needed_bytes: 4 * page as u64,
            file_bytes: 2 * page as u64,
        })
    );
    for (bytes, count) in [
        (usize::MAX, 1),
        (1, usize::MAX),
        (usize::MAX / 2, 3),
        (usize::MAX - page + 1, 1),
        (1 << 40, 1 << 23),
    ] {
        let e = SharedSlabs::map(&fd, bytes, count).err().unwrap();
        assert!(matches!(e, ShareError::TooLarge { .. }), "{e}");
    }
    assert_eq!(SharedSlabs::map(&fd, 0, 0).unwrap().slabs(), 0);
    assert_eq!(SharedSlabs::map(&fd, 0, 1).unwrap().slab(0).unwrap(), [0]);

    // What can shrink is refused: an ordinary file, and a memory file without the seal.
    let mut plain = tempfile::tempfile().unwrap();
    plain.write_all(&vec![1; 2 * page]).unwrap();
    assert_eq!(
        SharedSlabs::map(&plain, page, 1).err(),
        Some(ShareError::NotSealed)
    );
    let loose = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&loose, 2 * page as u64).unwrap();
    assert_eq!(
        SharedSlabs::map(&loose, page, 1).err(),
        Some(ShareError::NotSealed)
    );
    let (pipe, _) = std::io::pipe().unwrap();
    assert_eq!(
        SharedSlabs::map(&pipe, page, 1).err(),
        Some(ShareError::NotSealed)
    );
}

/// Whoever receives the descriptor can neither write to the slabs nor cut them off; the owner can
/// still punch holes.
#[test]
fn the_shared_descriptor_is_read_only_and_the_file_keeps_its_length() {
    let _alone = alone();
    let mut arena = Arena::with_backing(SLAB, Backing::Shared).unwrap();
    let i = arena.add_slab().unwrap();
    arena.slab_mut(i).fill(4);
    let fd = arena.shared_fd().unwrap().try_clone_to_owned().unwrap();
    assert!(File::from(fd.try_clone().unwrap()).write(b"x").is_err());
    assert!(rustix::fs::ftruncate(&fd, 0).is_err());
    assert!(rustix::fs::fcntl_add_seals(fd.as_fd(), rustix::fs::SealFlags::WRITE).is_err());
    let mut byte = [0];
    File::from(fd.try_clone().unwrap())
        .read_exact(&mut byte)
        .unwrap();
    assert_eq!(byte, [4]);

    let slabs = SharedSlabs::map(&fd, SLAB, 1).unwrap();
    assert!(arena.seal_growth());
    let refused = arena.add_slab().unwrap_err();
    assert_eq!((refused.mapped_bytes, arena.slabs()), (SLAB, 1));
    assert!(arena.release(i));
    assert_eq!(arena.resident_bytes(), Some(0));
    // Reading a hole costs a page, unlike in private memory.
    assert_eq!(slabs.slab(0).unwrap()[SLAB - 1], 0);
    let page = rustix::param::page_size() as u64;
    assert_eq!(arena.resident_bytes(), Some(page));

    let mut private = Arena::new(SLAB);
    assert!(private.shared_fd().is_none());
    assert!(!private.seal_growth());
}

/// Small pages put together hold the same bytes and no more memory, and go back as whole slabs.
#[test]
fn a_slab_in_use_is_put_into_huge_pages() {
    let _alone = alone();
    const LEN: usize = (4 << 20) + 5000;
    let mut arena = Arena::new(LEN);
    let i = arena.add_slab().unwrap();
    assert_eq!(arena.effect(Hint::HugePages), None);
    assert_eq!(arena.slab(i).as_ptr() as usize % (2 << 20), 0);
    for (at, byte) in arena.slab_mut(i).iter_mut().enumerate() {
        *byte = (at / 4096 + at) as u8;
    }
    let before = arena.resident_bytes();
    let done = arena.collapse(i);
    let told = arena.effect(Hint::HugePages).unwrap();
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

    // What has no room for a huge page says no, and so does what is shared.
    let mut small = Arena::new(64 << 10);
    let i = small.add_slab().unwrap();
    assert!(!small.collapse(i));
    let told = small.effect(Hint::HugePages).unwrap();
    assert!(!matches!(told, Effect::Active { .. }), "{told}");
    let mut shared = Arena::with_backing(LEN, Backing::Shared).unwrap();
    let i = shared.add_slab().unwrap();
    assert!(!shared.collapse(i));
}

#[test]
fn huge_pages_are_reported_as_the_kernel_has_them() {
    let _alone = alone();
    let mut arena = Arena::new(8 << 20);
    let i = arena.add_slab().unwrap();
    let before = arena.ask(Hint::HugePages);
    assert!(!matches!(before, Effect::Active { .. }), "{before}");
    let later = arena.add_slab().unwrap();
    if !matches!(before, Effect::NotPossible { .. }) {
        assert!(has_flag(&arena, i, "hg") && has_flag(&arena, later, "hg"));
    }
    arena.slab_mut(i).fill(1);
    let after = arena.effect(Hint::HugePages).unwrap();
    eprintln!("huge pages: before {before}; after {after}");
    let switch = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    match &switch {
        Err(_) => assert!(matches!(after, Effect::NotPossible { .. })),
        Ok(text) if text.contains("[never]") => {
            assert!(after.to_string().contains("never"), "{after}");
        }
        // Free huge pages are luck; but what is claimed must be possible.
        Ok(_) => match &after {
            Effect::Active { bytes } => {
                assert!((1..=8 << 20).contains(bytes), "{after}");
                assert_eq!(arena.resident_bytes(), Some(8 << 20));
            }
            other => eprintln!("SKIPPED: no huge page was granted: {other}"),
        },
    }
    assert!(arena.release(i));
    let gone = arena.effect(Hint::HugePages).unwrap();
    assert!(!matches!(gone, Effect::Active { .. }), "{gone}");

    // A slab smaller than a huge page says so.
    let mut small = Arena::new(64 << 10);
    let i = small.add_slab().unwrap();
    small.slab_mut(i).fill(1);
    if switch.is_ok_and(|t| !t.contains("[never]")) {
        let told = small.ask(Hint::HugePages);
        assert!(told.to_string().contains("no slab has"), "{told}");
    }
}

#[test]
fn shared_memory_is_never_merged_and_says_so() {
    let _alone = alone();
    let mut arena = Arena::with_backing(SLAB, Backing::Shared).unwrap();
    arena.add_slab().unwrap();
    let told = arena.ask(Hint::Merge);
    assert!(matches!(told, Effect::NotPossible { .. }), "{told}");
    assert!(told.to_string().contains("shared"), "{told}");
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
    let mut arena = Arena::new(1 << 20);
    for _ in 0..2 {
        let i = arena.add_slab().unwrap();
        arena.slab_mut(i).fill(0xa5);
    }
    let before = arena.ask(Hint::Merge);
    eprintln!("merge before: {before}");
    if !matches!(before, Effect::NotPossible { .. }) {
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
        let told = arena.effect(Hint::Merge).unwrap();
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
