// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A mapped region, as raw memory that the other side writes at any time.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Shared memory of a fixed size. No Rust reference into it exists, other than
/// to atomics.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the memory belongs to no thread; it is reached through raw pointers
// and atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above; &self gives atomics, and raw pointers that promise nothing.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes of `fd`, whose size must be sealed and at least that.
    pub(crate) fn new(fd: BorrowedFd<'_>, size: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice
        // disturbs no other memory.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, size })
    }

    /// Pointer to `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they are not all inside.
    pub(crate) fn at(&self, offset: u64, len: u64) -> *mut u8 {
        let end = offset.checked_add(len).expect("an offset within the region");
        assert!(end <= self.size as u64, "beyond the end of the region");
        // SAFETY: offset is within the mapping, as just checked.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    /// The aligned 32-bit word at `offset`.
    pub(crate) fn u32_at(&self, offset: u64) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: inside, aligned, lives as long as the mapping, and reached
        // by atomic operations on both sides.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// The aligned 64-bit word at `offset`.
    pub(crate) fn u64_at(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: as in u32_at().
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, mapped by new(), and no pointer outlives its owner:
        // rings are dropped with the region that holds them.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.size) };
    }
}
