// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory for regions: anonymous, sealed against changes of its size, and laid
//! out as docs/protocol.md, section 1, says.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use zerocopy::IntoBytes;

use crate::shm::{self, Header};

/// Smallest ring of a channel in bytes.
pub const RING_MIN: u32 = 64 << 10;
/// Largest ring of a channel in bytes.
pub const RING_MAX: u32 = 1 << 30;
/// Bytes of a control region.
pub const CONTROL_SIZE: u64 = 1 << 20;
/// Bytes of each of a control region's two rings.
pub const CONTROL_RING: u32 = 256 << 10;

const SIDE_SIZE: u32 = shm::VMLOOP_SHM_PAGE as u32;

/// Header of a control region.
pub fn control_header() -> Header {
    Header {
        magic: shm::VMLOOP_SHM_MAGIC,
        major: shm::VMLOOP_SHM_MAJOR,
        minor: shm::VMLOOP_SHM_MINOR,
        kind: shm::VMLOOP_REGION_CONTROL,
        size: CONTROL_SIZE,
        side_offset: [4096, 8192],
        side_size: SIDE_SIZE,
        reserved: 0,
        data_offset: [512 << 10, 256 << 10],
        data_size: [u64::from(CONTROL_RING); 2],
    }
}

/// Header of a channel with rings of `ring_size` bytes: a power of two from
/// [`RING_MIN`] to [`RING_MAX`].
///
/// # Panics
/// If `ring_size` is something else; the policy's reader has checked it.
pub fn channel_header(ring_size: u32) -> Header {
    assert!(ring_size.is_power_of_two() && (RING_MIN..=RING_MAX).contains(&ring_size));
    let ring = u64::from(ring_size);
    Header {
        magic: shm::VMLOOP_SHM_MAGIC,
        major: shm::VMLOOP_SHM_MAJOR,
        minor: shm::VMLOOP_SHM_MINOR,
        kind: shm::VMLOOP_REGION_CHANNEL,
        size: (2 * ring + (64 << 10)).next_power_of_two(),
        side_offset: [4096, 8192],
        side_size: SIDE_SIZE,
        reserved: 0,
        data_offset: [64 << 10, (64 << 10) + ring],
        data_size: [ring; 2],
    }
}

/// Zeroed anonymous memory of `header.size` bytes that begins with `header`.
/// Its size is sealed; no path leads to it.
///
/// # Errors
/// Those of memfd_create(2), ftruncate(2) and write(2).
pub fn create(name: &str, header: &Header) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, header.size)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let file = File::from(fd);
    file.write_all_at(header.as_bytes(), 0)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts_fit(header: &Header) {
        let mut parts: Vec<(u64, u64)> = vec![(0, 4096)];
        for side in 0..2 {
            parts.push((header.side_offset[side], u64::from(header.side_size)));
            parts.push((header.data_offset[side], header.data_size[side]));
        }
        parts.sort_unstable();
        for pair in parts.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?} overlap");
        }
        let last = parts[parts.len() - 1];
        assert!(last.0 + last.1 <= header.size);
        assert!(header.size.is_power_of_two());
        assert!(size_of::<shm::Side>() <= header.side_size as usize);
    }

    #[test]
    fn layouts_are_possible() {
        parts_fit(&control_header());
        let mut ring = RING_MIN;
        loop {
            parts_fit(&channel_header(ring));
            if ring == RING_MAX {
                break;
            }
            ring *= 2;
        }
        assert_eq!(channel_header(4 << 20).size, 16 << 20);
    }

    #[test]
    fn nobody_can_resize_a_region() {
        let fd = create("test", &control_header()).expect("memfd");
        assert_eq!(ftruncate(&fd, 4096), Err(rustix::io::Errno::PERM));
        assert_eq!(ftruncate(&fd, 2 << 20), Err(rustix::io::Errno::PERM));
    }
}
