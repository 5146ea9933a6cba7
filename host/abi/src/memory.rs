// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory for regions: anonymous, sealed against changes of its size, and laid
//! out as docs/protocol.md, section 1, says.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use zerocopy::IntoBytes;

use crate::lanes;
use crate::shm::{self, Header};

/// Smallest ring of a channel in bytes.
pub const RING_MIN: u32 = 64 << 10;
/// Largest ring of a channel in bytes.
pub const RING_MAX: u32 = 1 << 30;
/// Bytes of a control region.
pub const CONTROL_SIZE: u64 = 1 << 20;
/// Bytes of a control region's rings: what the agent says, what the guest says. The agent
/// waits for room where a directory is larger, and a guest has room for what it says of 256
/// channels at once. All of it is used in the end, whoever says little, and 1,000 guests
/// have that many.
pub const CONTROL_RINGS: [u32; 2] = [8 << 10, 32 << 10];

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
        data_size: CONTROL_RINGS.map(u64::from),
    }
}

/// What is in a channel's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Version 1: one lane, of packets.
    Lane,
    /// Version 2: a table of lanes.
    Table,
}

/// Header of a channel with rings of packets of `ring_size` bytes: a power of two
/// from [`RING_MIN`] to [`RING_MAX`].
///
/// The region is a power of two, as a PCI device's memory is. With a table what is
/// left of it is data as well, for the rings of other lanes.
///
/// # Panics
/// If `ring_size` is something else; the policy's reader has checked it.
pub fn channel_header(ring_size: u32, layout: Layout) -> Header {
    assert!(ring_size.is_power_of_two() && (RING_MIN..=RING_MAX).contains(&ring_size));
    let ring = u64::from(ring_size);
    let size = (2 * ring + (64 << 10)).next_power_of_two();
    let page = shm::VMLOOP_SHM_PAGE;
    let (major, minor, side, data, data_size) = match layout {
        Layout::Lane => (shm::VMLOOP_SHM_MAJOR, shm::VMLOOP_SHM_MINOR, SIDE_SIZE, 64 << 10, ring),
        Layout::Table => {
            let side =
                lanes::VMLOOP_TABLE_ENTRIES + lanes_for(ring_size) * lanes::VMLOOP_ENTRY_SIZE;
            let side = side.next_multiple_of(SIDE_SIZE);
            let data = page + 2 * u64::from(side);
            let data_size = (size - data) / 2 / page * page;
            (lanes::VMLOOP_TABLE_MAJOR, lanes::VMLOOP_TABLE_MINOR, side, data, data_size)
        }
    };
    Header {
        magic: shm::VMLOOP_SHM_MAGIC,
        major,
        minor,
        kind: shm::VMLOOP_REGION_CHANNEL,
        size,
        side_offset: [page, page + u64::from(side)],
        side_size: side,
        reserved: 0,
        data_offset: [data, data + data_size],
        data_size: [data_size; 2],
    }
}

/// Bytes that a channel with rings of packets of so many bytes may take, whatever
/// the guests put there; one that guests make themselves takes less.
pub fn channel_size(ring_size: u32) -> u64 {
    channel_header(ring_size, Layout::Table).size
}

/// Lanes that a channel with rings of packets of so many bytes has room for.
fn lanes_for(ring_size: u32) -> u32 {
    (ring_size / 8192).clamp(12, 512)
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

/// Zeroed anonymous memory of a window: a power of two of bytes, as a PCI device's memory
/// is, at least `size`. Its size is sealed; no path leads to it.
///
/// # Errors
/// Those of memfd_create(2) and ftruncate(2).
pub fn create_window(size: u64) -> io::Result<(OwnedFd, u64)> {
    let size = size.next_power_of_two().max(shm::VMLOOP_SHM_PAGE);
    let fd = memfd_create("vmloop-window", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, size)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok((fd, size))
}

/// The owner of a window has mapped it: whoever opens or maps it from now on can only read
/// (`F_SEAL_FUTURE_WRITE`).
///
/// # Errors
/// Those of fcntl(2).
pub fn seal_window(memory: impl AsFd) -> io::Result<()> {
    Ok(fcntl_add_seals(memory, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_written_by_those_who_have_mapped_it() {
        for (size, whole) in [(1, 4096), (4096, 4096), (12288, 16384), (64 << 20, 64 << 20)] {
            let (fd, got) = create_window(size).expect("memory");
            assert_eq!(
                (got, rustix::fs::fstat(&fd).expect("a size").st_size as u64),
                (whole, whole)
            );
        }
        let (fd, size) = create_window(4096).expect("memory");
        let file = File::from(fd);
        file.write_all_at(b"before", 0).expect("written");
        seal_window(&file).expect("sealed");
        assert!(file.write_all_at(b"behind", 0).is_err());
        assert!(file.set_len(2 * size).is_err());
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"before");
    }

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
            for layout in [Layout::Lane, Layout::Table] {
                let header = channel_header(ring, layout);
                parts_fit(&header);
                // A ring is the largest power of two below the data.
                assert!(header.data_size[0] >= u64::from(ring));
                assert!(layout == Layout::Lane || header.data_size[0] > u64::from(ring));
            }
            if ring == RING_MAX {
                break;
            }
            ring *= 2;
        }
        assert_eq!(channel_header(4 << 20, Layout::Table).size, 16 << 20);
    }

    #[test]
    fn nobody_can_resize_a_region() {
        let fd = create("test", &control_header()).expect("memfd");
        assert_eq!(ftruncate(&fd, 4096), Err(rustix::io::Errno::PERM));
        assert_eq!(ftruncate(&fd, 2 << 20), Err(rustix::io::Errno::PERM));
    }
}
