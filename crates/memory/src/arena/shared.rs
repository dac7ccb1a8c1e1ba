//! Memory with a descriptor, which another process can map: `memfd` on Linux and Android.
//!
//! ```text
//! file   [slab 0 ......|pad][slab 1 ......|pad][slab 2 …      slab i at i × stride
//!         <-- stride, whole pages -->
//! ```
//!
//! One file holds all slabs of an arena and grows by one stride per slab. It is sealed against
//! shrinking from the first byte on, which is what makes a map of it safe: a page inside a length
//! that was seen once can never go away under a reader, so no reader meets SIGBUS.
//!
//! `MADV_DONTNEED` frees nothing here: the pages belong to the file, not to the map. Punching a
//! hole does, and the hole reads as zero for everybody. Even reading a hole gives the file a page
//! again, by whichever process: what was released is best left alone. `F_SEAL_FUTURE_WRITE` would keep other
//! processes from writing but also forbids punching, so others get a descriptor that was opened
//! read-only instead; where the system does not let a memory file be opened again (Android's
//! policy for apps), they get the writable one and must be trusted.
//!
//! Android: `memfd_create` is called from API level 30 on. Before that the system may kill a
//! process for the call instead of refusing it, so an older level is an [`super::ArenaError`]. This
//! path is compiled only; it never ran on a device.
//!
//! A limit: the kernel promises address space, not pages. Where the machine cannot supply a page at
//! its first touch, it kills (out of memory) or raises SIGBUS (strict overcommit accounting);
//! private memory under strict accounting fails earlier, in `add_slab`.

use std::fmt;

/// Why a received descriptor was not mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareError {
    /// The file ends before the last slab does.
    TooShort { needed_bytes: u64, file_bytes: u64 },
    /// The numbers name more bytes than this machine can address.
    TooLarge { slab_bytes: usize, slabs: usize },
    /// The file may still shrink, which would end the reader with SIGBUS.
    NotSealed,
    /// The system refused to look at the file or to map it.
    System(String),
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShareError::TooShort {
                needed_bytes,
                file_bytes,
            } => write!(
                f,
                "the shared file has {file_bytes} bytes and the slabs need {needed_bytes}"
            ),
            ShareError::TooLarge { slab_bytes, slabs } => {
                write!(
                    f,
                    "{slabs} slabs of {slab_bytes} bytes exceed the address space"
                )
            }
            ShareError::NotSealed => write!(
                f,
                "the descriptor is no memory file sealed against shrinking"
            ),
            ShareError::System(why) => write!(f, "the shared file cannot be mapped: {why}"),
        }
    }
}

impl std::error::Error for ShareError {}

pub(super) use imp::Memory;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub use imp::SharedSlabs;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod imp {
    use super::super::Refusal;
    use super::super::map::{Slab, page_bytes};
    use super::ShareError;
    use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
    use rustix::fs::{self, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
    use rustix::io::Errno;
    use rustix::mm::{self, MapFlags, ProtFlags};
    use std::ops::Range;
    use std::os::fd::AsRawFd;
    use std::ptr::{self, NonNull};

    /// Where slab 1 begins, whole pages.
    fn stride(slab_bytes: usize) -> Option<u64> {
        let whole = slab_bytes.checked_next_multiple_of(page_bytes())?;
        u64::try_from(whole).ok()
    }

    /// The file behind a shared arena.
    pub struct Memory {
        file: OwnedFd,
        /// The same file opened for reading only, for others.
        read_only: Option<OwnedFd>,
        stride: u64,
    }

    impl Memory {
        pub fn create(slab_bytes: usize) -> Result<Memory, Refusal> {
            memfd_allowed()?;
            let stride = stride(slab_bytes).ok_or(Refusal::OutOfMemory)?;
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            // Kernels before 6.3 do not know the flag that forbids executing the bytes.
            let file = match fs::memfd_create("haversack", flags | MemfdFlags::NOEXEC_SEAL) {
                Err(Errno::INVAL) => fs::memfd_create("haversack", flags),
                made => made,
            }
            .map_err(|e| match e {
                Errno::NOSYS => Refusal::NoBacking("this kernel has no memfd"),
                Errno::MFILE | Errno::NFILE => Refusal::NoBacking("too many open files"),
                Errno::NOMEM => Refusal::OutOfMemory,
                _ => Refusal::NoBacking("the system refuses a memory file"),
            })?;
            fs::fcntl_add_seals(&file, SealFlags::SHRINK)
                .map_err(|_| Refusal::NoBacking("memory files cannot be sealed here"))?;
            let read_only = fs::open(
                format!("/proc/self/fd/{}", file.as_raw_fd()),
                OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .ok();
            Ok(Memory {
                file,
                read_only,
                stride,
            })
        }

        /// Maps slab `index`, which the file grows to hold. On failure the file is as it was.
        pub fn add(&self, index: usize, slab_bytes: usize) -> Option<Slab> {
            let offset = u64::try_from(index).ok()?.checked_mul(self.stride)?;
            let end = offset.checked_add(self.stride)?;
            // Mapped first: a file that has grown cannot shrink back when mapping fails.
            let slab = Slab::shared(self.file.as_fd(), offset, slab_bytes)?;
            fs::ftruncate(&self.file, end).ok()?;
            Some(slab)
        }

        /// Frees `pages` (borders on pages, inside the stride) of slab `index` for every process.
        pub fn punch(&self, index: usize, pages: Range<usize>) -> bool {
            let offset = index as u64 * self.stride + pages.start as u64;
            fs::fallocate(
                &self.file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                offset,
                pages.len() as u64,
            )
            .is_ok()
        }

        /// Pages the file holds, in memory or swapped out, whoever wrote them.
        pub fn allocated_bytes(&self) -> Option<u64> {
            let stat = fs::fstat(&self.file).ok()?;
            // POSIX leaves the unit open; Linux counts 512 bytes, whatever st_blksize says.
            u64::try_from(stat.st_blocks).ok()?.checked_mul(512)
        }

        pub fn fd(&self) -> BorrowedFd<'_> {
            self.read_only.as_ref().unwrap_or(&self.file).as_fd()
        }

        /// No slab can be added afterwards, by anyone.
        pub fn seal_growth(&self) -> bool {
            fs::fcntl_add_seals(&self.file, SealFlags::GROW).is_ok()
        }
    }

    #[cfg(target_os = "linux")]
    fn memfd_allowed() -> Result<(), Refusal> {
        Ok(())
    }

    #[cfg(target_os = "android")]
    fn memfd_allowed() -> Result<(), Refusal> {
        use std::ffi::{CStr, c_char, c_int};
        /// PROP_VALUE_MAX of bionic.
        const VALUE_BYTES: usize = 92;
        unsafe extern "C" {
            fn __system_property_get(name: *const c_char, value: *mut c_char) -> c_int;
        }
        let mut value = [0u8; VALUE_BYTES + 1];
        // SAFETY: a name that ends in NUL, and room for the longest value with its NUL.
        unsafe {
            __system_property_get(c"ro.build.version.sdk".as_ptr(), value.as_mut_ptr().cast())
        };
        let level = CStr::from_bytes_until_nul(&value)
            .ok()
            .and_then(|text| text.to_str().ok()?.trim().parse::<u32>().ok());
        match level {
            Some(level) if level >= 30 => Ok(()),
            _ => Err(Refusal::NoBacking("memory files need Android API level 30")),
        }
    }

    /// Slabs of another process, read-only.
    ///
    /// The owner may write to them while they are read here; as with a mapped file, what is read is
    /// then the old bytes or the new ones. Owners share what they have finished. A slab that the
    /// owner releases reads as zero.
    pub struct SharedSlabs {
        /// Dangling when there are no slabs.
        start: NonNull<u8>,
        mapped: usize,
        stride: usize,
        slab_bytes: usize,
        slabs: usize,
    }

    // SAFETY: read-only for its whole life and freed only by `drop`.
    unsafe impl Send for SharedSlabs {}
    // SAFETY: as above; shared reads of read-only pages.
    unsafe impl Sync for SharedSlabs {}

    impl SharedSlabs {
        /// Maps the first `slabs` slabs of `slab_bytes` (0 counts as 1, as in an arena) of a
        /// descriptor from `Arena::shared_fd`. It is not kept. A file that is too short, or that
        /// could become so, is refused.
        pub fn map(
            fd: impl AsFd,
            slab_bytes: usize,
            slabs: usize,
        ) -> Result<SharedSlabs, ShareError> {
            let slab_bytes = slab_bytes.max(1);
            let too_large = ShareError::TooLarge { slab_bytes, slabs };
            let stride = stride(slab_bytes)
                .and_then(|s| usize::try_from(s).ok())
                .ok_or(too_large.clone())?;
            let mapped = stride
                .checked_mul(slabs)
                .filter(|&n| isize::try_from(n).is_ok())
                .ok_or(too_large)?;
            let fd = fd.as_fd();
            // Seals before the length: once shrinking is sealed, the length seen can only grow.
            let seals = fs::fcntl_get_seals(fd).map_err(|_| ShareError::NotSealed)?;
            if !seals.contains(SealFlags::SHRINK) {
                return Err(ShareError::NotSealed);
            }
            let stat = fs::fstat(fd).map_err(|e| ShareError::System(e.to_string()))?;
            let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
            if (mapped as u64) > file_bytes {
                return Err(ShareError::TooShort {
                    needed_bytes: mapped as u64,
                    file_bytes,
                });
            }
            let start = if mapped == 0 {
                NonNull::dangling()
            } else {
                // SAFETY: a fresh read-only map at an address the kernel chooses.
                let start = unsafe {
                    mm::mmap(
                        ptr::null_mut(),
                        mapped,
                        ProtFlags::READ,
                        MapFlags::SHARED,
                        fd,
                        0,
                    )
                }
                .map_err(|e| ShareError::System(e.to_string()))?;
                NonNull::new(start.cast::<u8>())
                    .ok_or_else(|| ShareError::System("mapped at address 0".to_string()))?
            };
            Ok(SharedSlabs {
                start,
                mapped,
                stride,
                slab_bytes,
                slabs,
            })
        }

        pub fn slabs(&self) -> usize {
            self.slabs
        }

        /// `None` beyond the slabs that were mapped.
        pub fn slab(&self, index: usize) -> Option<&[u8]> {
            if index >= self.slabs {
                return None;
            }
            // SAFETY: slab `index` lies inside `mapped` bytes, all of them inside a file that
            // cannot shrink, readable until `drop`. Nothing in this process writes through this
            // map; writes by the owner are the documented limit of the type.
            Some(unsafe {
                std::slice::from_raw_parts(
                    self.start.as_ptr().add(index * self.stride),
                    self.slab_bytes,
                )
            })
        }
    }

    impl Drop for SharedSlabs {
        fn drop(&mut self) {
            if self.mapped > 0 {
                // SAFETY: exactly the range that `map` mapped; no borrow outlives `self`.
                let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.mapped) };
            }
        }
    }
}

/// Systems without memory files: the type has no values, so nothing of it is ever called.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod imp {
    use super::super::{Refusal, Slab};
    use std::ops::Range;

    pub enum Memory {}

    impl Memory {
        pub fn create(_slab_bytes: usize) -> Result<Memory, Refusal> {
            Err(Refusal::NoBacking(
                "shared slabs exist on Linux and Android only",
            ))
        }

        pub fn add(&self, _index: usize, _slab_bytes: usize) -> Option<Slab> {
            match *self {}
        }

        pub fn punch(&self, _index: usize, _pages: Range<usize>) -> bool {
            match *self {}
        }

        pub fn allocated_bytes(&self) -> Option<u64> {
            match *self {}
        }

        pub fn seal_growth(&self) -> bool {
            match *self {}
        }
    }
}
