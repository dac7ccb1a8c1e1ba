//! Read-only private maps of files: weights are read where they lie and never copied to the heap.
//!
//! A map is not a copy. Clean pages belong to the page cache, the kernel may take them back at any
//! time, and the next read fetches them again: they cost no private memory.
//!
//! Invariants:
//!
//! - only regular files are mapped. A directory, pipe, socket or device is refused by name, and
//!   opening one never waits (a FIFO without a writer would otherwise block for ever);
//! - the length is taken once, from the opened file, and never grows;
//! - an empty file is an empty slice, without a map.
//!
//! **A limit we document and do not remove.** If another process *truncates* a mapped file, reading
//! a page beyond its new end raises SIGBUS and ends the process, with a line that names the file where
//! the program asked for that ([`crate::lost_map`]); if it *rewrites* the file, the bytes change under us. Checked offsets stay inside the map either way, and what is read is
//! checked where it is used, but model files must not be edited while they are open. Replacing a
//! file by `rename` is safe: the map keeps the old one.
//!
//! Where there is no `mmap` the file is read into memory instead; the interface is the same.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the kernel should expect, for [`FileMap::advise`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAdvice {
    /// Start reading these pages now.
    WillNeed,
    /// Drop them from this process; the next read fetches them again.
    DontNeed,
    /// Read once, front to back: the kernel reads further ahead.
    Sequential,
    /// The default; ends [`MapAdvice::Sequential`].
    Normal,
}

/// Opens a file that is read once, front to back, without a map: the kernel reads further ahead.
pub fn open_sequential(path: impl AsRef<Path>) -> io::Result<File> {
    let file = File::open(path)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
    Ok(file)
}

/// A file on its way: it has a temporary name, locked by this process, until [`UnfinishedFile::place`] gives it its
/// own. Dropped before that it is removed; left by a process that was killed, [`remove_unfinished`] finds it.
pub struct UnfinishedFile {
    file: File,
    path: PathBuf,
    is_placed: bool,
}

/// What temporary names end in.
const UNFINISHED: &str = ".tmp";

impl UnfinishedFile {
    /// An empty file next to `target`.
    pub fn create(target: &Path) -> io::Result<UnfinishedFile> {
        let path = target.with_extension(format!("{}{UNFINISHED}", std::process::id()));
        let file = File::create(&path)?;
        file.try_lock()?;
        Ok(UnfinishedFile {
            file,
            path,
            is_placed: false,
        })
    }

    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Its temporary name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it durable under its own name; a file of that name is replaced.
    pub fn place(mut self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, target)?;
        self.is_placed = true;
        // Where a folder cannot be synced, a power cut costs the file, not its truth.
        if let Some(folder) = target.parent().and_then(|folder| File::open(folder).ok()) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes what killed processes left of their [`UnfinishedFile`]s. Those that are being written stay.
pub fn remove_unfinished(folder: &Path) {
    remove_left(folder, |name| name.ends_with(UNFINISHED));
}

/// The same for one target, in a folder that may hold temporary files of other programs.
pub fn remove_unfinished_of(target: &Path) {
    let stem = target.file_stem().unwrap_or_default().to_string_lossy();
    let is_of_target = |name: &str| {
        let number = name.strip_prefix(&*stem).and_then(|name| {
            let name = name.strip_prefix('.')?;
            name.strip_suffix(UNFINISHED)
        });
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let folder = target
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    remove_left(folder.unwrap_or(Path::new(".")), is_of_target);
}

fn remove_left(folder: &Path, is_temporary: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || !is_temporary(&entry.file_name().to_string_lossy()) {
            continue;
        }
        let left = fs::OpenOptions::new().write(true).open(&path);
        if left.is_ok_and(|left| left.try_lock().is_ok()) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// A file's bytes, read-only.
pub struct FileMap {
    inner: imp::Mapping,
}

impl FileMap {
    /// Maps the whole file. Fails with a sentence for anything that is not a regular file.
    pub fn open(path: impl AsRef<Path>) -> io::Result<FileMap> {
        let path = path.as_ref();
        // Checking first avoids opening devices, where `open` alone may have effects.
        refuse_irregular(&fs::metadata(path)?)?;
        let file = imp::open_without_waiting(path)?;
        // The check that counts: the name may mean another file since.
        let meta = file.metadata()?;
        refuse_irregular(&meta)?;
        let len = usize::try_from(meta.len()).map_err(|_| {
            io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!(
                    "{} bytes do not fit this machine's address space",
                    meta.len()
                ),
            )
        })?;
        FileMap::of(&file, len)
    }

    /// Maps the first `len` bytes of an open file, which is at least that long.
    pub(crate) fn of(file: &File, len: usize) -> io::Result<FileMap> {
        Ok(FileMap {
            inner: imp::Mapping::new(file, len)?,
        })
    }

    pub fn as_slice(&self) -> &[u8] {
        self.range(0..self.len()).unwrap_or_default()
    }

    /// A part of it, without a reference to any other byte: those may be written meanwhile.
    pub(crate) fn range(&self, range: Range<usize>) -> Option<&[u8]> {
        self.inner.range(range)
    }

    pub fn len(&self) -> usize {
        self.inner.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells the kernel what to expect of `range`, widened to whole pages and cut at the end of the
    /// file. Advice changes speed and residency, never what is read.
    pub fn advise(&self, range: Range<usize>, advice: MapAdvice) -> io::Result<()> {
        let end = range.end.min(self.len());
        if range.start >= end {
            return Ok(());
        }
        self.inner.advise(range.start, end, advice)
    }

    /// Reads the whole file into memory and keeps it there while it is mapped. Pages of the
    /// page cache are locked where they are: this costs no private memory, but the system cannot take them
    /// back under pressure. The error names the limit of the process where that is the cause.
    pub fn lock(&self) -> io::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        self.inner.lock()
    }

    /// Bytes of the file that are in memory, in whole pages and at most its length, whichever process
    /// read them. `None` where the system does not say. Linux answers correctly for files that the user
    /// owns or may write to; of any other file every page counts as in memory.
    pub fn resident_bytes(&self) -> Option<u64> {
        if self.is_empty() {
            return Some(0);
        }
        Some(self.inner.resident_bytes()?.min(self.len() as u64))
    }
}

impl std::fmt::Debug for FileMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileMap({} bytes)", self.len())
    }
}

/// A part of a map, which it keeps alive. Clones are cheap and share the bytes.
#[derive(Clone)]
pub struct Region {
    map: Arc<FileMap>,
    range: Range<usize>,
}

impl Region {
    /// `None` where the map does not have the range.
    pub fn new(map: Arc<FileMap>, range: Range<usize>) -> Option<Region> {
        map.range(range.clone())?;
        Some(Region { map, range })
    }

    pub fn as_slice(&self) -> &[u8] {
        // The range was there when this was made, and a map's length never changes.
        self.map.range(self.range.clone()).unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        self.range.len()
    }

    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Whether both are the same bytes of one map, not merely equal ones.
    pub fn is_same(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.map, &other.map) && self.range == other.range
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({:?} of {:?})", self.range, self.map)
    }
}

fn refuse_irregular(meta: &fs::Metadata) -> io::Result<()> {
    if meta.is_file() {
        return Ok(());
    }
    let what = if meta.is_dir() {
        "it is a directory, not a file"
    } else {
        "it is a pipe, socket or device, not a regular file"
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// Names the limit of the process where that is the cause.
#[cfg_attr(not(unix), allow(dead_code))]
fn lock_refused(cause: io::Error, bytes: u64, limit: Option<u64>) -> io::Error {
    let why = match limit {
        Some(limit) if limit < bytes => format!(
            "{bytes} bytes cannot be locked: RLIMIT_MEMLOCK lets this process lock {limit} ({cause})"
        ),
        _ => format!("{bytes} bytes cannot be locked: {cause}"),
    };
    io::Error::new(cause.kind(), why)
}

#[cfg(unix)]
mod imp {
    use super::*;
    use crate::lost_map::Watched;
    use rustix::fs::OFlags;
    use rustix::mm::{self, MapFlags, ProtFlags};
    use std::os::unix::fs::OpenOptionsExt;
    use std::ptr::{self, NonNull};

    pub fn open_without_waiting(path: &Path) -> io::Result<File> {
        // NONBLOCK means nothing to a regular file and keeps `open` of a FIFO from waiting.
        fs::OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(path)
    }

    pub struct Mapping {
        /// Dangling when `len` is 0.
        start: NonNull<u8>,
        len: usize,
        _watched: Option<Watched>,
    }

    // SAFETY: the map is read-only for its whole life and freed only by `drop`; nothing about it
    // belongs to the thread that made it.
    unsafe impl Send for Mapping {}
    // SAFETY: as above; shared reads of read-only pages.
    unsafe impl Sync for Mapping {}

    impl Mapping {
        pub fn new(file: &File, len: usize) -> io::Result<Mapping> {
            if len == 0 {
                return Ok(Mapping {
                    start: NonNull::dangling(),
                    len: 0,
                    _watched: None,
                });
            }
            // SAFETY: a fresh private read-only map at an address the kernel chooses; no existing
            // memory is touched, and the descriptor is open for the call.
            let start = unsafe {
                mm::mmap(
                    ptr::null_mut(),
                    len,
                    ProtFlags::READ,
                    MapFlags::PRIVATE,
                    file,
                    0,
                )
            }?;
            match NonNull::new(start.cast::<u8>()) {
                Some(start) => Ok(Mapping {
                    _watched: Some(Watched::new(file, start.as_ptr() as usize, len)),
                    start,
                    len,
                }),
                None => Err(io::Error::other("the kernel mapped the file at address 0")),
            }
        }

        pub fn range(&self, range: Range<usize>) -> Option<&[u8]> {
            if range.start > range.end || range.end > self.len {
                return None;
            }
            // SAFETY: `start` is either dangling with `len` 0 or the first of `len` mapped readable
            // bytes that live until `drop`, and the range lies inside of them, as just checked. Nothing
            // in this process writes to them; writes by others are the documented limit of the module.
            Some(unsafe {
                std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len())
            })
        }

        pub fn len(&self) -> usize {
            self.len
        }

        /// `begin < end <= len`, as the caller has checked.
        pub fn advise(&self, begin: usize, end: usize, advice: MapAdvice) -> io::Result<()> {
            let page = rustix::param::page_size();
            let begin = begin / page * page;
            let advice = match advice {
                MapAdvice::WillNeed => mm::Advice::WillNeed,
                #[cfg(any(target_os = "linux", target_os = "android"))]
                MapAdvice::DontNeed => mm::Advice::LinuxDontNeed,
                #[cfg(not(any(target_os = "linux", target_os = "android")))]
                MapAdvice::DontNeed => mm::Advice::DontNeed,
                MapAdvice::Sequential => mm::Advice::Sequential,
                MapAdvice::Normal => mm::Advice::Normal,
            };
            // SAFETY: the range lies inside our own map, whose start is on a page. The pages are
            // clean and backed by the file, so dropping them changes nothing a reader can see.
            unsafe { mm::madvise(self.start.as_ptr().add(begin).cast(), end - begin, advice) }?;
            Ok(())
        }

        pub fn lock(&self) -> io::Result<()> {
            // SAFETY: locking changes where our own pages may go, never what they hold.
            unsafe { mm::mlock(self.start.as_ptr().cast(), self.len) }
                .map_err(|e| lock_refused(e.into(), self.len as u64, memlock_limit()))
        }

        pub fn resident_bytes(&self) -> Option<u64> {
            crate::resident::resident_bytes(self.start.as_ptr(), self.len)
        }
    }

    /// What this process may lock; `None` is no limit.
    fn memlock_limit() -> Option<u64> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        return rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        None
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            if self.len > 0 {
                // SAFETY: exactly the range that `new` mapped, and no borrow outlives `self`.
                // Unmapping a whole map does not fail; if it did, leaking it is all one could do.
                let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
            }
        }
    }
}

#[cfg(not(unix))]
mod imp {
    use super::*;
    use std::io::{Read, Seek, SeekFrom};

    pub fn open_without_waiting(path: &Path) -> io::Result<File> {
        File::open(path)
    }

    pub struct Mapping {
        bytes: Vec<u8>,
    }

    impl Mapping {
        pub fn new(file: &File, len: usize) -> io::Result<Mapping> {
            let mut bytes = Vec::new();
            bytes
                .try_reserve_exact(len)
                .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
            let mut file = file;
            file.seek(SeekFrom::Start(0))?;
            file.take(len as u64).read_to_end(&mut bytes)?;
            Ok(Mapping { bytes })
        }

        pub fn range(&self, range: Range<usize>) -> Option<&[u8]> {
            self.bytes.get(range)
        }

        pub fn len(&self) -> usize {
            self.bytes.len()
        }

        pub fn advise(&self, _begin: usize, _end: usize, _advice: MapAdvice) -> io::Result<()> {
            Ok(())
        }

        pub fn lock(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub fn resident_bytes(&self) -> Option<u64> {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_shows_the_bytes_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let map = FileMap::open(&path).unwrap();
        assert_eq!(map.as_slice(), bytes);
        assert_eq!(map.len(), bytes.len());
        // The map outlives the name.
        fs::remove_file(&path).unwrap();
        assert_eq!(map.as_slice(), bytes);
    }

    #[test]
    fn advice_of_every_kind_and_range_changes_no_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let bytes: Vec<u8> = (0..50_000u32).map(|i| (i / 3) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let map = FileMap::open(&path).unwrap();
        for advice in [
            MapAdvice::WillNeed,
            MapAdvice::DontNeed,
            MapAdvice::Sequential,
            MapAdvice::Normal,
        ] {
            for range in [
                0..50_000,
                1..2,
                4095..4097,
                49_999..usize::MAX,
                60_000..70_000,
            ] {
                map.advise(range.clone(), advice)
                    .unwrap_or_else(|e| panic!("{advice:?} {range:?}: {e}"));
            }
            #[allow(clippy::reversed_empty_ranges)]
            map.advise(9..3, advice).unwrap();
            assert_eq!(map.as_slice(), bytes, "{advice:?}");
        }
    }

    #[test]
    fn a_refused_lock_names_the_limit() {
        let cause = || io::Error::from(io::ErrorKind::OutOfMemory);
        let e = lock_refused(cause(), 1 << 30, Some(65_536));
        assert!(e.to_string().contains("RLIMIT_MEMLOCK"), "{e}");
        assert!(e.to_string().contains("65536"), "{e}");
        assert_eq!(e.kind(), io::ErrorKind::OutOfMemory);
        for limit in [None, Some(1 << 31)] {
            let e = lock_refused(cause(), 1 << 30, limit);
            assert!(!e.to_string().contains("RLIMIT"), "{e}");
        }
    }

    #[test]
    fn an_empty_file_is_an_empty_slice() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let map = FileMap::open(file.path()).unwrap();
        assert!(map.is_empty());
        map.advise(0..10, MapAdvice::WillNeed).unwrap();
        map.lock().unwrap();
        assert_eq!(map.resident_bytes(), Some(0));
    }

    /// Next to a model of the user only what our own killed processes left is removed.
    #[test]
    fn of_one_target_only_its_own_unfinished_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a.b.packed");
        let names = [
            "a.b.12.tmp",
            "a.b.tmp",
            "a.b.1x.tmp",
            "a.12.tmp",
            "a.b.12.tmpx",
        ];
        for name in names {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let written = UnfinishedFile::create(&target).unwrap();
        remove_unfinished_of(&target);
        assert!(written.path().exists(), "it is being written");
        drop(written);
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
        left.sort_by_key(|entry| entry.file_name());
        let left: Vec<_> = left.iter().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["a.12.tmp", "a.b.12.tmpx", "a.b.1x.tmp", "a.b.tmp"]);
    }

    #[test]
    fn what_is_not_a_regular_file_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let e = FileMap::open(dir.path()).unwrap_err();
        assert!(e.to_string().contains("directory"), "{e}");
        let e = FileMap::open(dir.path().join("absent")).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
    }

    /// A FIFO without a writer blocks an ordinary `open` for ever; /dev/zero has no end.
    #[cfg(target_os = "linux")]
    #[test]
    fn pipes_and_devices_are_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        for path in [fifo.as_path(), Path::new("/dev/zero")] {
            let e = FileMap::open(path).unwrap_err();
            assert!(e.to_string().contains("not a regular file"), "{e}");
        }
    }

    #[test]
    fn a_region_keeps_its_map() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, b"0123456789").unwrap();
        let map = Arc::new(FileMap::open(&path).unwrap());
        let gone = Arc::downgrade(&map);
        let region = Region::new(map.clone(), 3..7).unwrap();
        assert!(Region::new(map.clone(), 3..11).is_none());
        #[allow(clippy::reversed_empty_ranges)]
        let backwards = Region::new(map.clone(), 7..3);
        assert!(backwards.is_none());
        let other = Arc::new(FileMap::open(&path).unwrap());
        assert!(region.is_same(&region.clone()));
        assert!(!region.is_same(&Region::new(map, 3..8).unwrap()));
        assert!(!region.is_same(&Region::new(other, 3..7).unwrap()));
        assert_eq!(region.as_slice(), b"3456");
        assert!(gone.upgrade().is_some());
        drop(region);
        assert!(gone.upgrade().is_none());
    }

    #[test]
    fn a_map_travels_between_threads() {
        fn travels<T: Send + Sync>() {}
        travels::<FileMap>();
    }
}
