// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The structures of `include/vmloop_shm.h`, in its order and with its names.
//!
//! The header is the source of truth; `include/layout.golden` pins every size
//! and offset, and the program `layout` of this crate prints ours.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

#[cfg(target_endian = "big")]
compile_error!("vmloop's shared memory is little-endian, and so must be the host");

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $type = $value;)*
    };
}

macro_rules! wire {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
            pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }

            impl Default for $name {
                fn default() -> Self {
                    Self::new_zeroed()
                }
            }
        )*
    };
}

constants! {
    /// First eight bytes of a region.
    VMLOOP_SHM_MAGIC: u64 = 0x706f_6f6c_6d76_0a01;
    /// Differs: the two cannot talk.
    VMLOOP_SHM_MAJOR: u16 = 1;
    /// Differs: the lower one's rules hold.
    VMLOOP_SHM_MINOR: u16 = 4;
    /// Unit of the layout in bytes, not of the CPU.
    VMLOOP_SHM_PAGE: u64 = 4096;
    /// Lanes that a region can have.
    VMLOOP_SHM_LANES: usize = 16;
    /// Region between two guests.
    VMLOOP_REGION_CHANNEL: u32 = 1;
    /// Region between the agent and one guest.
    VMLOOP_REGION_CONTROL: u32 = 2;
    /// Datagrams larger than the MTU.
    VMLOOP_F_LARGE: u64 = 1 << 0;
    /// UDP segmentation.
    VMLOOP_F_GSO_UDP: u64 = 1 << 1;
    /// Packets that the host would route.
    VMLOOP_F_ROUTED: u64 = 1 << 2;
    /// `VMLOOP_RECORD_RECEIVERS`.
    VMLOOP_F_RECEIVERS: u64 = 1 << 3;
    /// Channels of version 2.
    VMLOOP_F_LANES: u64 = 1 << 4;
    /// Several packet lanes.
    VMLOOP_F_SPREAD: u64 = 1 << 5;
    /// `VMLOOP_MSG_DIR_CHANGE`; in a HELLO only.
    VMLOOP_F_CHANGES: u64 = 1 << 6;
    /// Rings that move; of a lane of version 2 only.
    VMLOOP_F_MOVES: u64 = 1 << 7;
    /// `VMLOOP_MSG_WINDOW_AT`; in a HELLO only.
    VMLOOP_F_WINDOWS: u64 = 1 << 8;
}

wire! {
    /// First page of a region; see `struct vmloop_shm_header`.
    struct Header {
        /// [`VMLOOP_SHM_MAGIC`]
        magic: u64,
        /// [`VMLOOP_SHM_MAJOR`] of whoever made the region
        major: u16,
        /// [`VMLOOP_SHM_MINOR`] of whoever made the region
        minor: u16,
        /// `VMLOOP_REGION_*`
        kind: u32,
        /// bytes of the region that the layout uses
        size: u64,
        /// where the sides begin, bytes from the region's start
        side_offset: [u64; 2],
        /// bytes of each side
        side_size: u32,
        /// zero
        reserved: u32,
        /// where the data of the sides begin, bytes from the region's start
        data_offset: [u64; 2],
        /// bytes of each side's data
        data_size: [u64; 2],
    }
}

constants! {
    /// Nobody here: a new region is zeroed.
    VMLOOP_SIDE_ABSENT: u32 = 0;
    /// Lanes are described and can be read.
    VMLOOP_SIDE_READY: u32 = 1;
    /// Produces nothing more, still consumes.
    VMLOOP_SIDE_CLOSING: u32 = 2;
    /// Neither produces nor consumes.
    VMLOOP_SIDE_CLOSED: u32 = 3;
    /// Lane not opened.
    VMLOOP_LANE_NONE: u32 = 0;
    /// Ethernet frames; lane 0 of a channel.
    VMLOOP_LANE_PACKET: u32 = 1;
    /// `VMLOOP_MSG_*`; lane 0 of a control region.
    VMLOOP_LANE_CONTROL: u32 = 2;
}

wire! {
    /// One lane, as one side sees it; see `struct vmloop_shm_lane`.
    struct Lane {
        /// `VMLOOP_LANE_*`
        kind: u32,
        /// bytes of the ring that this side produces, a power of two
        ring_size: u32,
        /// where that ring begins, bytes from the start of this side's data
        ring_offset: u64,
        /// "ring me when your rx_tail passes this"
        tx_wake: u32,
        /// "ring me when your tx_head passes this"
        rx_wake: u32,
        /// unused
        pad0: [u8; 40],
        /// bytes that this side has produced, modulo 2^32
        tx_head: u32,
        /// how often this side has moved its ring, modulo 2^32
        tx_moves: u32,
        /// the position that the last move was at
        moved_at: u32,
        /// bytes of the new ring
        moved_size: u32,
        /// where it begins, bytes from the start of this side's data
        moved_offset: u64,
        /// unused
        pad1: [u8; 40],
        /// bytes of the other side's ring consumed, modulo 2^32
        rx_tail: u32,
        /// the other side's `tx_moves`, once nothing of the ring before is needed
        rx_moves: u32,
        /// unused
        pad2: [u8; 56],
    }

    /// What one side tells the other; see `struct vmloop_shm_side`.
    struct Side {
        /// `VMLOOP_SIDE_*`
        state: u32,
        /// [`VMLOOP_SHM_MAJOR`] of this side
        major: u16,
        /// [`VMLOOP_SHM_MINOR`] of this side
        minor: u16,
        /// `VMLOOP_F_*` that this side offers
        features: u64,
        /// largest payload in bytes that this side accepts in a record
        max_record: u32,
        /// entries of `lane` in use
        lanes: u32,
        /// random; another value is another life of this side
        incarnation: u64,
        /// unused
        pad: [u8; 32],
        /// the lanes
        lane: [Lane; VMLOOP_SHM_LANES],
    }
}

constants! {
    /// Records begin at multiples of this many bytes.
    VMLOOP_RECORD_ALIGN: u32 = 16;
    /// Fills the ring up to its end.
    VMLOOP_RECORD_PAD: u16 = 0;
}

wire! {
    /// Head of every record in a ring; see `struct vmloop_shm_record`.
    struct Record {
        /// bytes of payload that follow
        size: u32,
        /// what it is
        r#type: u16,
        /// more about it
        info: u16,
    }
}

constants! {
    /// A frame on a packet lane.
    VMLOOP_RECORD_FRAME: u16 = 1;
    /// The interfaces of one side that can receive.
    VMLOOP_RECORD_RECEIVERS: u16 = 2;
    /// `csum_start` and `csum_offset` are set.
    VMLOOP_FRAME_NEEDS_CSUM: u8 = 1 << 0;
    /// The transport checksum was not lost.
    VMLOOP_FRAME_DATA_VALID: u8 = 1 << 1;
    /// `vlan_proto` and `vlan_tci` are set.
    VMLOOP_FRAME_VLAN: u8 = 1 << 2;
    /// No segmentation.
    VMLOOP_GSO_NONE: u8 = 0;
    /// TCP over IPv4.
    VMLOOP_GSO_TCPV4: u8 = 1;
    /// TCP over IPv6.
    VMLOOP_GSO_TCPV6: u8 = 4;
    /// UDP, with [`VMLOOP_F_GSO_UDP`].
    VMLOOP_GSO_UDP_L4: u8 = 5;
    /// Or-ed to a TCP one.
    VMLOOP_GSO_ECN: u8 = 0x80;
}

wire! {
    /// Payload of a frame's record, before the frame; see `struct vmloop_shm_frame`.
    struct Frame {
        /// `VMLOOP_FRAME_*`
        flags: u8,
        /// `VMLOOP_GSO_*`
        gso: u8,
        /// bytes of headers that every segment repeats
        hdr_len: u16,
        /// bytes of payload of each segment
        gso_size: u16,
        /// where the checksummed part begins
        csum_start: u16,
        /// where the checksum goes, from `csum_start`
        csum_offset: u16,
        /// 0x8100 or 0x88a8
        vlan_proto: u16,
        /// the tag that was taken out of the frame
        vlan_tci: u16,
        /// zero
        reserved: u16,
    }
}

constants! {
    /// Entries of one list of receivers.
    VMLOOP_RECEIVERS_MAX: usize = 32;
}

wire! {
    /// Payload of a record that lists receivers; see `struct vmloop_shm_receivers`.
    struct Receivers {
        /// entries of `mac`
        count: u32,
        /// zero
        reserved: u32,
        /// the interfaces that can receive
        mac: [[u8; 6]; VMLOOP_RECEIVERS_MAX],
    }
}

constants! {
    /// Largest frame in a record, in bytes.
    VMLOOP_FRAME_MAX: u32 = 65535 + 14 + 4;
    /// Guest to agent: I am here.
    VMLOOP_MSG_HELLO: u16 = 1;
    /// Guest to agent: my IP addresses.
    VMLOOP_MSG_ADVERTISE: u16 = 2;
    /// Guest to agent: make a channel.
    VMLOOP_MSG_WANT: u16 = 3;
    /// Guest to agent: how I stand to a channel.
    VMLOOP_MSG_STATE: u16 = 4;
    /// Guest to agent: counters of a channel.
    VMLOOP_MSG_STATS: u16 = 5;
    /// Guest to agent: how I stand to a window.
    VMLOOP_MSG_WINDOW: u16 = 6;
    /// Agent to guest: who you are.
    VMLOOP_MSG_WELCOME: u16 = 32;
    /// Agent to guest: a directory begins.
    VMLOOP_MSG_DIR_BEGIN: u16 = 33;
    /// Agent to guest: one interface of a peer.
    VMLOOP_MSG_DIR_PEER: u16 = 34;
    /// Agent to guest: the directory is complete.
    VMLOOP_MSG_DIR_END: u16 = 35;
    /// Agent to guest: no channel for now.
    VMLOOP_MSG_REFUSED: u16 = 36;
    /// Agent to guest: let go of a channel.
    VMLOOP_MSG_CLOSE: u16 = 37;
    /// Agent to guest: send your counters.
    VMLOOP_MSG_STATS_GET: u16 = 38;
    /// What is new in a directory begins.
    VMLOOP_MSG_DIR_CHANGE: u16 = 39;
    /// One entry that is not there any more.
    VMLOOP_MSG_DIR_GONE: u16 = 40;
    /// Agent to guest: this device is a window.
    VMLOOP_MSG_WINDOW_AT: u16 = 41;
}

wire! {
    /// See `struct vmloop_msg_hello`.
    struct Hello {
        /// [`VMLOOP_SHM_MAJOR`] of the guest
        major: u16,
        /// [`VMLOOP_SHM_MINOR`] of the guest
        minor: u16,
        /// CPUs of the guest that are online; 0 of one that does not say so
        cpus: u32,
        /// `VMLOOP_F_*` of the guest
        features: u64,
        /// version of its modules, text, padded with zeros
        version: [u8; 32],
        /// its kernel release, text, padded with zeros
        kernel: [u8; 64],
    }
}

constants! {
    /// An IPv4 address.
    VMLOOP_ADDR_IPV4: u8 = 4;
    /// An IPv6 address.
    VMLOOP_ADDR_IPV6: u8 = 6;
    /// Addresses in one ADVERTISE.
    VMLOOP_ADVERTISE_MAX: usize = 64;
    /// Addresses of one peer in the directory.
    VMLOOP_PEER_IPS: usize = 8;
}

wire! {
    /// See `struct vmloop_msg_address`.
    struct Address {
        /// `VMLOOP_ADDR_*`
        family: u8,
        /// length of its subnet prefix in bits
        prefix: u8,
        /// hardware address of the interface that has it
        mac: [u8; 6],
        /// the address in network order; IPv4 in the first four bytes
        ip: [u8; 16],
    }

    /// See `struct vmloop_msg_advertise`.
    struct Advertise {
        /// entries that follow
        count: u32,
        /// zero
        reserved: u32,
        /// the addresses; the message is as long as `count` says
        address: [Address; VMLOOP_ADVERTISE_MAX],
    }

    /// See `struct vmloop_msg_want`.
    struct Want {
        /// identity of the peer
        peer: u64,
        /// epoch of the peer
        epoch: u64,
        /// 1, 2 or 3
        attempt: u32,
        /// zero
        reserved: u32,
    }
}

constants! {
    /// In use.
    VMLOOP_STATE_UP: u32 = 1;
    /// No traffic for long; may be closed.
    VMLOOP_STATE_IDLE: u32 = 2;
    /// Done with it; the device may go.
    VMLOOP_STATE_CLOSED: u32 = 3;
    /// The peer broke the protocol.
    VMLOOP_STATE_BROKEN: u32 = 4;
    /// It is to be made.
    VMLOOP_WINDOW_WANTED: u32 = 1;
    /// Its device is there.
    VMLOOP_WINDOW_HERE: u32 = 2;
    /// Done with it; the device may go.
    VMLOOP_WINDOW_GONE: u32 = 3;
    /// No place of a device: there is none.
    VMLOOP_WINDOW_NOWHERE: u32 = !0;
}

wire! {
    /// See `struct vmloop_msg_state`.
    struct State {
        /// the channel
        tag: u32,
        /// `VMLOOP_STATE_*`
        state: u32,
    }

    /// See `struct vmloop_msg_stats`.
    struct Stats {
        /// as in STATS_GET
        cookie: u32,
        /// the channel; 0 ends the answer
        tag: u32,
        /// frames given to the channel
        tx_frames: u64,
        /// their bytes
        tx_bytes: u64,
        /// frames received from it
        rx_frames: u64,
        /// their bytes
        rx_bytes: u64,
        /// doorbells rung
        tx_doorbells: u64,
        /// doorbells heard
        rx_doorbells: u64,
        /// times that the ring was full
        tx_full: u64,
        /// frames dropped, for any reason
        rx_dropped: u64,
    }

    /// See `struct vmloop_msg_welcome`.
    struct Welcome {
        /// the guest's own identity
        id: u64,
        /// the guest's own epoch
        epoch: u64,
        /// differs for every start of the agent
        agent: u64,
        /// [`VMLOOP_SHM_MAJOR`] of the agent
        major: u16,
        /// [`VMLOOP_SHM_MINOR`] of the agent
        minor: u16,
        /// report idle channels after so many milliseconds; 0: never
        idle_ms: u32,
        /// the guest's name on the host, text, padded with zeros
        name: [u8; 64],
    }

    /// See `struct vmloop_msg_dir`.
    struct Dir {
        /// the same in DIR_BEGIN and its DIR_END
        generation: u64,
    }

    /// See `struct vmloop_msg_dir_change`.
    struct DirChange {
        /// the directory's, the same in its DIR_END
        generation: u64,
        /// that of the directory which the guest has
        before: u64,
    }

    /// See `struct vmloop_msg_dir_gone`.
    struct DirGone {
        /// as in the entry
        id: u64,
        /// as in the entry
        local_mac: [u8; 6],
        /// as in the entry
        mac: [u8; 6],
        /// zero
        reserved: u32,
    }
}

constants! {
    /// VLAN-tagged frames pass between the two.
    VMLOOP_PEER_TAGGED: u32 = 1 << 0;
    /// Only packets pass, by way of the host.
    VMLOOP_PEER_ROUTED: u32 = 1 << 1;
    /// Its addresses are those said before.
    VMLOOP_PEER_KEEP: u32 = 1 << 2;
    /// From this bit on: the policy has no lanes of a kind for the two.
    VMLOOP_PEER_WITHOUT_SHIFT: u32 = 16;
}

wire! {
    /// See `struct vmloop_msg_peer`.
    struct Peer {
        /// the peer's identity
        id: u64,
        /// its epoch
        epoch: u64,
        /// channel that leads to it; 0 while there is none
        tag: u32,
        /// `VMLOOP_PEER_*`
        flags: u32,
        /// the interface of ours that it is reached by
        local_mac: [u8; 6],
        /// the peer's interface
        mac: [u8; 6],
        /// entries of `ip` in use
        ip_count: u16,
        /// largest MTU in bytes that the network between the two carries
        mtu: u16,
        /// the peer's name on the host, text, padded with zeros
        name: [u8; 32],
        /// its addresses that policy allows
        ip: [Address; VMLOOP_PEER_IPS],
        /// the host's address where `local_mac` is; version 1.0 ends before it
        gateway: [u8; 6],
        /// zero
        reserved: u16,
    }
}

constants! {
    /// Not allowed to talk.
    VMLOOP_REFUSED_POLICY: u32 = 1;
    /// No such peer, or another epoch.
    VMLOOP_REFUSED_GONE: u32 = 2;
    /// One of the two has no free slot.
    VMLOOP_REFUSED_SLOTS: u32 = 3;
    /// The hypervisor would not; see the log.
    VMLOOP_REFUSED_FAILED: u32 = 4;
    /// Asked too often; ask again later.
    VMLOOP_REFUSED_BUSY: u32 = 5;
    /// the pair's channel broke; ask again later
    VMLOOP_REFUSED_BROKEN: u32 = 6;
}

wire! {
    /// See `struct vmloop_msg_refused`.
    struct Refused {
        /// identity of the peer
        peer: u64,
        /// `VMLOOP_REFUSED_*`
        reason: u32,
        /// not again for so many milliseconds; 0: not before the directory changes
        retry_ms: u32,
    }
}

constants! {
    /// No traffic on either side.
    VMLOOP_CLOSE_IDLE: u32 = 1;
    /// Policy or network keeps the two apart now.
    VMLOOP_CLOSE_POLICY: u32 = 2;
    /// The peer is not there any more.
    VMLOOP_CLOSE_PEER_GONE: u32 = 3;
    /// One of the two is about to move.
    VMLOOP_CLOSE_MIGRATION: u32 = 4;
    /// The operator detached one of the two.
    VMLOOP_CLOSE_DETACH: u32 = 5;
}

wire! {
    /// See `struct vmloop_msg_close`.
    struct Close {
        /// the channel
        tag: u32,
        /// `VMLOOP_CLOSE_*`
        reason: u32,
    }

    /// See `struct vmloop_msg_window`.
    struct Window {
        /// the channel
        tag: u32,
        /// of the window
        number: u32,
        /// 1: the guest owns it
        ours: u32,
        /// `VMLOOP_WINDOW_*`
        state: u32,
        /// bytes
        size: u64,
    }

    /// See `struct vmloop_msg_window_at`.
    struct WindowAt {
        /// the channel
        tag: u32,
        /// of the window
        number: u32,
        /// 1: the guest owns it
        ours: u32,
        /// PCI bus << 8 | device << 3 | function, or [`VMLOOP_WINDOW_NOWHERE`]
        place: u32,
        /// bytes
        size: u64,
    }

    /// See `struct vmloop_msg_stats_get`.
    struct StatsGet {
        /// to be repeated in the answers
        cookie: u32,
        /// zero
        reserved: u32,
    }
}
