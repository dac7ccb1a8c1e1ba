//! Memory with a name that another process can map: `memfd` on Linux and Android.
//!
//! ```text
//! file   [slab 0 ......|pad][slab 1 ......|pad][slab 2 …      slab i at i × stride
//!         <-- stride, whole pages -->
//! ```
//!
//! One file holds all slabs of an arena and grows by one stride per slab. It is sealed against
//! shrinking from its first byte on, which is what makes a map of it safe: a page inside a length
//! that was seen once never goes away under a reader, so no reader gets SIGBUS. A process of the same
//! user opens the file under [`super::Arena::memfd_path`], read-only, and maps it like any file
//! ([`crate::FileMap`]).
//!
//! `MADV_DONTNEED` frees nothing here: the pages belong to the file, not to the map. Punching a
//! hole does, and the hole reads as zero in every process. Reading a hole gives the file a page
//! again, whichever process reads.
//!
//! Android: `memfd_create` is called from API level 30 on. Before that the system may kill a
//! process for the call instead of refusing it, so an older level is an [`super::ArenaError`]. This
//! path is compiled only; it never ran on a device.
//!
//! A limit: the kernel promises address space, not pages. Where the machine cannot supply a page at
//! its first touch, it kills (out of memory) or raises SIGBUS (strict overcommit accounting);
//! private memory under strict accounting fails earlier, in `add_slab`.

#[cfg(any(target_os = "linux", target_os = "android"))]
pub use imp::Memfd;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod imp {
    use super::super::error::Refusal;
    use rustix::fd::{AsRawFd, OwnedFd};
    use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
    use rustix::io::Errno;
    use rustix::mm::{self, MapFlags, ProtFlags};
    use std::path::PathBuf;
    use std::ptr::{self, NonNull};

    /// The file behind an arena.
    pub struct Memfd {
        file: OwnedFd,
        /// Bytes from one slab to the next, whole pages.
        stride: u64,
    }

    impl Memfd {
        pub(in crate::arena) fn create(slab_bytes: usize) -> Result<Memfd, Refusal> {
            memfd_allowed()?;
            let stride = slab_bytes
                .checked_next_multiple_of(rustix::param::page_size())
                .and_then(|bytes| u64::try_from(bytes).ok())
                .ok_or(Refusal::OutOfMemory)?;
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
            Ok(Memfd { file, stride })
        }

        /// Maps slab `index`, which the file grows to hold. On failure the file is as it was.
        pub(in crate::arena) fn map(&self, index: usize, len: usize) -> Option<NonNull<u8>> {
            let offset = u64::try_from(index).ok()?.checked_mul(self.stride)?;
            let end = offset.checked_add(self.stride)?;
            // Mapped first: a file that has grown cannot shrink back when mapping fails.
            // SAFETY: a fresh map at an address the kernel chooses.
            let start = unsafe {
                mm::mmap(
                    ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED,
                    &self.file,
                    offset,
                )
            }
            .ok()?;
            if fs::ftruncate(&self.file, end).is_err() {
                // SAFETY: exactly the range that was just mapped; nothing refers to it.
                let _ = unsafe { mm::munmap(start, len) };
                return None;
            }
            NonNull::new(start.cast())
        }

        /// Frees the pages of slab `index` for every process.
        pub(in crate::arena) fn punch(&self, index: usize) -> bool {
            fs::fallocate(
                &self.file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                index as u64 * self.stride,
                self.stride,
            )
            .is_ok()
        }

        /// Pages the file holds, in memory or swapped out, whichever process wrote them.
        pub(in crate::arena) fn allocated_bytes(&self) -> Option<u64> {
            let stat = fs::fstat(&self.file).ok()?;
            // POSIX leaves the unit open; Linux counts 512 bytes, whatever st_blksize says.
            u64::try_from(stat.st_blocks).ok()?.checked_mul(512)
        }

        pub(in crate::arena) fn path(&self) -> PathBuf {
            let fd = self.file.as_raw_fd();
            PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()))
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
}

/// Systems without memory files: the type has no values, so none of its methods is ever called.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod imp {
    use super::super::error::Refusal;
    use std::path::PathBuf;
    use std::ptr::NonNull;

    pub enum NoMemfd {}

    impl NoMemfd {
        pub(in crate::arena) fn create(_slab_bytes: usize) -> Result<NoMemfd, Refusal> {
            Err(Refusal::NoBacking(
                "memory files exist on Linux and Android only",
            ))
        }

        pub(in crate::arena) fn map(&self, _index: usize, _len: usize) -> Option<NonNull<u8>> {
            match *self {}
        }

        pub(in crate::arena) fn punch(&self, _index: usize) -> bool {
            match *self {}
        }

        pub(in crate::arena) fn allocated_bytes(&self) -> Option<u64> {
            match *self {}
        }

        pub(in crate::arena) fn path(&self) -> PathBuf {
            match *self {}
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub use imp::NoMemfd as Memfd;
