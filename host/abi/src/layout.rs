// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The layout that [`crate::shm`] has, as text: a test compares it with what the C
//! compiler makes of the header.

use std::fmt::Write;
use std::mem::{offset_of, size_of};

#[allow(clippy::wildcard_imports)]
use crate::shm::*;

/// Every size, offset and constant, one line each, in the header's order:
/// `const NAME VALUE`, `struct NAME SIZE`, `field STRUCT.FIELD OFFSET SIZE`.
/// Sizes and offsets are in bytes; everything is decimal.
pub fn layout() -> String {
    fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
        size_of::<F>()
    }

    let mut out = String::new();
    macro_rules! line {
        ($($arg:tt)*) => { writeln!(out, $($arg)*).expect("a String takes everything") };
    }
    macro_rules! consts {
        ($($name:ident)*) => { $(line!("const {} {}", stringify!($name), $name);)* };
    }
    macro_rules! structure {
        ($rust:ident $c:literal $($field:ident)*) => {
            line!("struct {} {}", $c, size_of::<$rust>());
            $(line!(
                "field {}.{} {} {}",
                $c,
                stringify!($field).trim_start_matches("r#"),
                offset_of!($rust, $field),
                size_of_field(|s: &$rust| &s.$field)
            );)*
        };
    }

    consts!(VMLOOP_SHM_MAGIC VMLOOP_SHM_MAJOR VMLOOP_SHM_MINOR VMLOOP_SHM_PAGE
        VMLOOP_SHM_LANES VMLOOP_REGION_CHANNEL VMLOOP_REGION_CONTROL VMLOOP_F_LARGE
        VMLOOP_F_GSO_UDP VMLOOP_F_ROUTED VMLOOP_F_RECEIVERS VMLOOP_F_LANES
        VMLOOP_F_SPREAD VMLOOP_F_CHANGES VMLOOP_F_MOVES
        VMLOOP_F_WINDOWS);
    structure!(Header "vmloop_shm_header" magic major minor kind size side_offset side_size
        reserved data_offset data_size);
    consts!(VMLOOP_SIDE_ABSENT VMLOOP_SIDE_READY VMLOOP_SIDE_CLOSING VMLOOP_SIDE_CLOSED
        VMLOOP_LANE_NONE VMLOOP_LANE_PACKET VMLOOP_LANE_CONTROL);
    structure!(Lane "vmloop_shm_lane" kind ring_size ring_offset tx_wake rx_wake pad0 tx_head
        tx_moves moved_at moved_size moved_offset pad1 rx_tail rx_moves pad2);
    structure!(Side "vmloop_shm_side" state major minor features max_record lanes incarnation
        pad lane);
    consts!(VMLOOP_RECORD_ALIGN VMLOOP_RECORD_PAD);
    structure!(Record "vmloop_shm_record" size r#type info);
    consts!(VMLOOP_RECORD_FRAME VMLOOP_RECORD_RECEIVERS VMLOOP_FRAME_NEEDS_CSUM VMLOOP_FRAME_DATA_VALID
        VMLOOP_FRAME_VLAN VMLOOP_GSO_NONE VMLOOP_GSO_TCPV4 VMLOOP_GSO_TCPV6 VMLOOP_GSO_UDP_L4
        VMLOOP_GSO_ECN);
    structure!(Frame "vmloop_shm_frame" flags gso hdr_len gso_size csum_start csum_offset
        vlan_proto vlan_tci reserved);
    consts!(VMLOOP_RECEIVERS_MAX);
    structure!(Receivers "vmloop_shm_receivers" count reserved mac);
    consts!(VMLOOP_FRAME_MAX VMLOOP_MSG_HELLO VMLOOP_MSG_ADVERTISE VMLOOP_MSG_WANT
        VMLOOP_MSG_STATE VMLOOP_MSG_STATS VMLOOP_MSG_WINDOW VMLOOP_MSG_WELCOME VMLOOP_MSG_DIR_BEGIN
        VMLOOP_MSG_DIR_PEER VMLOOP_MSG_DIR_END VMLOOP_MSG_REFUSED VMLOOP_MSG_CLOSE
        VMLOOP_MSG_STATS_GET VMLOOP_MSG_DIR_CHANGE VMLOOP_MSG_DIR_GONE
        VMLOOP_MSG_WINDOW_AT);
    structure!(Hello "vmloop_msg_hello" major minor cpus features version kernel);
    consts!(VMLOOP_ADDR_IPV4 VMLOOP_ADDR_IPV6 VMLOOP_ADVERTISE_MAX VMLOOP_PEER_IPS);
    structure!(Address "vmloop_msg_address" family prefix mac ip);
    structure!(Advertise "vmloop_msg_advertise" count reserved address);
    structure!(Want "vmloop_msg_want" peer epoch attempt reserved);
    consts!(VMLOOP_WINDOW_WANTED VMLOOP_WINDOW_HERE VMLOOP_WINDOW_GONE);
    structure!(Window "vmloop_msg_window" tag number ours state size);
    consts!(VMLOOP_STATE_UP VMLOOP_STATE_IDLE VMLOOP_STATE_CLOSED VMLOOP_STATE_BROKEN);
    structure!(State "vmloop_msg_state" tag state);
    structure!(Stats "vmloop_msg_stats" cookie tag tx_frames tx_bytes rx_frames rx_bytes
        tx_doorbells rx_doorbells tx_full rx_dropped);
    structure!(Welcome "vmloop_msg_welcome" id epoch agent major minor idle_ms name);
    structure!(Dir "vmloop_msg_dir" generation);
    structure!(DirChange "vmloop_msg_dir_change" generation before);
    structure!(DirGone "vmloop_msg_dir_gone" id local_mac mac reserved);
    consts!(VMLOOP_PEER_TAGGED VMLOOP_PEER_ROUTED VMLOOP_PEER_KEEP VMLOOP_PEER_WITHOUT_SHIFT);
    structure!(Peer "vmloop_msg_peer" id epoch tag flags local_mac mac ip_count mtu name ip
        gateway reserved);
    consts!(VMLOOP_REFUSED_POLICY VMLOOP_REFUSED_GONE VMLOOP_REFUSED_SLOTS
        VMLOOP_REFUSED_FAILED VMLOOP_REFUSED_BUSY VMLOOP_REFUSED_BROKEN);
    structure!(Refused "vmloop_msg_refused" peer reason retry_ms);
    consts!(VMLOOP_CLOSE_IDLE VMLOOP_CLOSE_POLICY VMLOOP_CLOSE_PEER_GONE
        VMLOOP_CLOSE_MIGRATION VMLOOP_CLOSE_DETACH);
    structure!(Close "vmloop_msg_close" tag reason);
    consts!(VMLOOP_WINDOW_NOWHERE);
    structure!(WindowAt "vmloop_msg_window_at" tag number ours place size);
    structure!(StatsGet "vmloop_msg_stats_get" cookie reserved);
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_layout_is_that_of_c() {
        let golden = include_str!("../../../include/layout.golden");
        for (ours, theirs) in super::layout().lines().zip(golden.lines()) {
            assert_eq!(ours, theirs);
        }
        assert_eq!(super::layout().lines().count(), golden.lines().count());
    }
}
