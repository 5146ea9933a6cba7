// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The structures of `include/vmloop_lanes.h`, channels of version 2. The agent lays
//! such channels out and leaves what is in them to the guests; a relay is a side of them.

use crate::shm::Lane;

/// Version of channels that have a table of lanes.
pub const VMLOOP_TABLE_MAJOR: u16 = 2;
/// The same.
pub const VMLOOP_TABLE_MINOR: u16 = 0;
/// Entries of one side's table.
pub const VMLOOP_LANES_MAX: u32 = 4096;
/// Where a side's entries begin, from the start of the side.
pub const VMLOOP_TABLE_ENTRIES: u32 = 4096;
/// Kind of the lanes that carry connections of TCP.
pub const VMLOOP_LANE_STREAM: u32 = 2;
/// Kind of the tests' lanes of records.
pub const VMLOOP_LANE_TOY_RECORDS: u32 = 6;
/// Kind of the tests' lanes of bytes.
pub const VMLOOP_LANE_TOY_BYTES: u32 = 7;
/// Kind of the lanes that windows stand on.
pub const VMLOOP_LANE_WINDOW: u32 = 15;
/// Windows of one side of a channel, at most.
pub const VMLOOP_WINDOWS_MAX: u32 = 4;
/// Bytes of a window, at most.
pub const VMLOOP_WINDOW_SIZE_MAX: u32 = 64 << 20;
/// Lanes that packets of a pair are spread over, at most.
pub const VMLOOP_PACKET_LANES: u32 = 8;
/// Bytes of an entry: `struct vmloop_shm_entry`.
pub const VMLOOP_ENTRY_SIZE: u32 = 320;

/// Bits of a life that are its step; the others are the lane's generation.
pub const VMLOOP_LIFE_BITS: u32 = 3;
/// This side is done with the generation before.
pub const VMLOOP_LIFE_FREE: u32 = 0;
/// This side has opened it; so must the other.
pub const VMLOOP_LIFE_OPEN: u32 = 1;
/// Produces nothing more, still consumes.
pub const VMLOOP_LIFE_CLOSING: u32 = 2;
/// Neither; its positions are final.
pub const VMLOOP_LIFE_CLOSED: u32 = 3;
/// Does not open what the other has opened.
pub const VMLOOP_LIFE_REFUSED: u32 = 4;

/// No reason.
pub const VMLOOP_REASON_NONE: u32 = 0;
/// Nobody here serves that kind of lane.
pub const VMLOOP_REASON_KIND: u32 = 1;
/// No room for a ring, or for another lane.
pub const VMLOOP_REASON_ROOM: u32 = 3;
/// The ring cannot be that one.
pub const VMLOOP_REASON_RING: u32 = 4;
/// From here on reasons are the path's.
pub const VMLOOP_REASON_PATH: u32 = 256;

/// Bits of a word of news.
pub const VMLOOP_NEWS_BITS: u32 = 64;

/// One lane, as one side sees it: `struct vmloop_shm_entry`.
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) lane: Lane,
    pub(crate) life: u32,
    pub(crate) reason: u32,
    pub(crate) bell: u32,
    pad0: u32,
    pub(crate) features: u64,
    reserved: [u8; 40],
    pub(crate) path: [u8; 64],
}

/// Which lanes have something to look at: `struct vmloop_shm_news`.
#[repr(C)]
pub(crate) struct News {
    groups: u64,
    pad0: [u8; 56],
    groups_taken: u64,
    pad1: [u8; 56],
    lanes: [u64; 64],
    lanes_taken: [u64; 64],
}

/// What one side tells the other: `struct vmloop_shm_table`.
#[repr(C)]
pub(crate) struct Table {
    pub(crate) state: u32,
    pub(crate) major: u16,
    pub(crate) minor: u16,
    pub(crate) features: u64,
    pub(crate) lanes: u32,
    reserved: [u8; 44],
    pub(crate) news: News,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_table_is_that_of_c() {
        let golden = include_str!("../../../include/lanes.golden");
        let mut lines = Vec::new();
        macro_rules! consts {
            ($($name:ident)*) => { $(lines.push(format!("const {} {}", stringify!($name), $name));)* };
        }
        macro_rules! structure {
            ($rust:ident $c:literal $($field:ident)*) => {
                lines.push(format!("struct {} {}", $c, size_of::<$rust>()));
                $(lines.push(format!("field {}.{} {} ", $c, stringify!($field),
                    offset_of!($rust, $field)));)*
            };
        }
        consts!(VMLOOP_TABLE_MAJOR VMLOOP_TABLE_MINOR VMLOOP_LANES_MAX VMLOOP_TABLE_ENTRIES
            VMLOOP_LANE_STREAM VMLOOP_LANE_TOY_RECORDS VMLOOP_LANE_TOY_BYTES VMLOOP_LANE_WINDOW VMLOOP_PACKET_LANES
            VMLOOP_LIFE_BITS VMLOOP_LIFE_FREE VMLOOP_LIFE_OPEN VMLOOP_LIFE_CLOSING VMLOOP_LIFE_CLOSED
            VMLOOP_LIFE_REFUSED VMLOOP_REASON_NONE VMLOOP_REASON_KIND VMLOOP_REASON_ROOM
            VMLOOP_REASON_RING VMLOOP_REASON_PATH VMLOOP_NEWS_BITS VMLOOP_WINDOWS_MAX
            VMLOOP_WINDOW_SIZE_MAX);
        structure!(Entry "vmloop_shm_entry" lane life reason bell pad0 features reserved path);
        structure!(News "vmloop_shm_news" groups pad0 groups_taken pad1 lanes lanes_taken);
        structure!(Table "vmloop_shm_table" state major minor features lanes reserved news);
        assert_eq!(size_of::<Entry>(), VMLOOP_ENTRY_SIZE as usize);
        for line in lines {
            assert!(golden.lines().any(|one| one == line || one.starts_with(&line)), "{line}");
        }
    }
}
