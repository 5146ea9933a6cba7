// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the host needs of `include/vmloop_lanes.h`, channels of version 2: it lays
//! them out, and leaves what is in them to the guests.

/// Version of channels that have a table of lanes.
pub const VMLOOP_TABLE_MAJOR: u16 = 2;
/// The same.
pub const VMLOOP_TABLE_MINOR: u16 = 0;
/// Where a side's entries begin, from the start of the side.
pub const VMLOOP_TABLE_ENTRIES: u32 = 4096;
/// Kind of the lanes that carry connections of TCP.
pub const VMLOOP_LANE_STREAM: u32 = 2;
/// Bytes of an entry: `struct vmloop_shm_entry`.
pub const VMLOOP_ENTRY_SIZE: u32 = 320;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_that_of_c() {
        let golden = include_str!("../../../include/lanes.golden");
        for line in [
            format!("const VMLOOP_TABLE_MAJOR {VMLOOP_TABLE_MAJOR}"),
            format!("const VMLOOP_TABLE_MINOR {VMLOOP_TABLE_MINOR}"),
            format!("const VMLOOP_TABLE_ENTRIES {VMLOOP_TABLE_ENTRIES}"),
            format!("const VMLOOP_LANE_STREAM {VMLOOP_LANE_STREAM}"),
            format!("struct vmloop_shm_entry {VMLOOP_ENTRY_SIZE}"),
        ] {
            assert!(golden.lines().any(|one| one == line), "{line}");
        }
    }
}
