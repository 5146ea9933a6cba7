/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * vmloop_shm.h - what two vmloop programs that share memory must agree on:
 * the layout of a shared region, the records in its rings and the messages
 * between a guest and the host agent. docs/protocol.md is the normative text;
 * include/layout.golden pins every size and offset found here.
 *
 * A region is shared by exactly two parties, its sides 0 and 1. There are two
 * kinds of region: a channel (two guests) and a control region (side 0 is the
 * host agent, side 1 the guest). Both have the same shape:
 *
 *	header    | written once, before anybody else maps the region
 *	side 0    | written by side 0 only
 *	side 1    | written by side 1 only
 *	data 0    | written by side 0 only: the rings that side 0 produces
 *	data 1    | written by side 1 only
 *
 * All integers are little-endian. Everything that the other party can write
 * is hostile: read it once into a local, check it, then use the local.
 *
 * Plain C with no dependency but fixed-width integers, so that kernel, user
 * space and tests compile the same file.
 */
#ifndef VMLOOP_SHM_H
#define VMLOOP_SHM_H

#include <linux/types.h>

#define VMLOOP_SHM_MAGIC	0x706f6f6c6d760a01ULL	/* "\1\nvmloop" */
#define VMLOOP_SHM_MAJOR	1	/* differs: the two cannot talk */
#define VMLOOP_SHM_MINOR	4	/* differs: the lower one's rules hold */

#define VMLOOP_SHM_PAGE		4096	/* unit of the layout, not of the CPU */
#define VMLOOP_SHM_LANES	16	/* lanes that a region can have */

/* What a region is for: vmloop_shm_header.kind */
#define VMLOOP_REGION_CHANNEL	1	/* between two guests */
#define VMLOOP_REGION_CONTROL	2	/* between the agent and one guest */

/* Feature bits: vmloop_shm_side.features. A feature holds if both offer it. */
#define VMLOOP_F_LARGE		0x1ULL /* datagrams larger than the MTU */
#define VMLOOP_F_GSO_UDP	0x2ULL /* UDP segmentation (GSO_UDP_L4) */
#define VMLOOP_F_ROUTED		0x4ULL /* packets that the host would route */
#define VMLOOP_F_RECEIVERS	0x8ULL /* VMLOOP_RECORD_RECEIVERS */
#define VMLOOP_F_LANES		0x10ULL /* channels of version 2: vmloop_lanes.h */
#define VMLOOP_F_SPREAD		0x20ULL /* several packet lanes: vmloop_lanes.h */
#define VMLOOP_F_CHANGES	0x40ULL /* VMLOOP_MSG_DIR_CHANGE; in a HELLO only */
#define VMLOOP_F_MOVES		0x80ULL /* rings that move: lanes of version 2 */
#define VMLOOP_F_WINDOWS	0x100ULL /* VMLOOP_MSG_WINDOW_AT; in a HELLO only */

/**
 * struct vmloop_shm_header - first page of a region
 * @magic: VMLOOP_SHM_MAGIC
 * @major: VMLOOP_SHM_MAJOR of whoever made the region
 * @minor: VMLOOP_SHM_MINOR of whoever made the region
 * @kind: VMLOOP_REGION_*
 * @size: bytes of the region that the layout uses, counted from its start;
 *	at most what the transport maps
 * @side_offset: where side 0 and side 1 begin, multiples of VMLOOP_SHM_PAGE
 * @side_size: bytes of each side, a multiple of VMLOOP_SHM_PAGE
 * @reserved: zero
 * @data_offset: where data 0 and data 1 begin, multiples of VMLOOP_SHM_PAGE
 * @data_size: bytes of data 0 and data 1, multiples of VMLOOP_SHM_PAGE
 *
 * Both sides can write to it once the region is shared, so it says only where
 * things are, never who somebody is: identity comes from the transport.
 */
struct vmloop_shm_header {
	__u64 magic;
	__u16 major;
	__u16 minor;
	__u32 kind;
	__u64 size;
	__u64 side_offset[2];
	__u32 side_size;
	__u32 reserved;
	__u64 data_offset[2];
	__u64 data_size[2];
};

/* vmloop_shm_side.state: what this side does with the region */
#define VMLOOP_SIDE_ABSENT	0	/* nobody here: a new region is zeroed */
#define VMLOOP_SIDE_READY	1	/* lanes are described and can be read */
#define VMLOOP_SIDE_CLOSING	2	/* produces nothing more, still consumes */
#define VMLOOP_SIDE_CLOSED	3	/* neither produces nor consumes */

/* vmloop_shm_lane.kind: what a lane carries */
#define VMLOOP_LANE_NONE	0
#define VMLOOP_LANE_PACKET	1	/* Ethernet frames; lane 0 of a channel */
#define VMLOOP_LANE_CONTROL	2	/* VMLOOP_MSG_*; lane 0 of a control region */

/**
 * struct vmloop_shm_lane - one lane, as one side sees it
 * @kind: VMLOOP_LANE_*; VMLOOP_LANE_NONE while this side has not opened it
 * @ring_size: bytes of the ring that this side produces, a power of two
 * @ring_offset: where that ring begins, within this side's data
 * @tx_wake: "ring me when your rx_tail passes this": this side waits for room
 * @rx_wake: "ring me when your tx_head passes this": this side waits for records
 * @tx_head: bytes that this side has produced so far, modulo 2^32
 * @tx_moves: how often this side has moved its ring, modulo 2^32; of lanes of a
 *	vmloop_shm_entry with VMLOOP_F_MOVES only, as all that tells of moves
 * @moved_at: the position that the last move was at: what is from there on is in the
 *	new ring
 * @moved_size: bytes of the new ring, a power of two
 * @moved_offset: where it begins, within this side's data
 * @rx_tail: bytes of the other side's ring consumed so far, modulo 2^32
 * @rx_moves: the other side's @tx_moves, once nothing of the ring before is needed
 *
 * @kind, @ring_size and @ring_offset are written before @state becomes READY
 * (or, for a lane opened later, before @kind) and never change after that.
 * The two positions, which change all the time, have a cache line each; what
 * tells of a move lies in the same lines, so that a look for one costs nothing. The
 * two wakes change only when this side is about to wait; among what is constant
 * they stay in the other side's cache, which looks at them at each publication.
 */
struct vmloop_shm_lane {
	__u32 kind;
	__u32 ring_size;
	__u64 ring_offset;
	__u32 tx_wake;
	__u32 rx_wake;
	__u8 pad0[40];

	__u32 tx_head;
	__u32 tx_moves;
	__u32 moved_at;
	__u32 moved_size;
	__u64 moved_offset;
	__u8 pad1[40];

	__u32 rx_tail;
	__u32 rx_moves;
	__u8 pad2[56];
};

/**
 * struct vmloop_shm_side - what one side tells the other
 * @state: VMLOOP_SIDE_*
 * @major: VMLOOP_SHM_MAJOR of this side
 * @minor: VMLOOP_SHM_MINOR of this side
 * @features: VMLOOP_F_* that this side offers
 * @max_record: largest payload in bytes that this side accepts in a record
 * @lanes: number of entries of @lane that this side uses, 1 to VMLOOP_SHM_LANES
 * @incarnation: control regions only: chosen at random by the guest each time
 *	it begins, echoed by the agent once its own positions are zero again
 * @lane: the lanes
 */
struct vmloop_shm_side {
	__u32 state;
	__u16 major;
	__u16 minor;
	__u64 features;
	__u32 max_record;
	__u32 lanes;
	__u64 incarnation;
	__u8 pad[32];
	struct vmloop_shm_lane lane[VMLOOP_SHM_LANES];
};

/* Records begin at multiples of this, and positions are multiples of it. */
#define VMLOOP_RECORD_ALIGN	16

/* A record that only fills the ring up to its end; it has no payload to read. */
#define VMLOOP_RECORD_PAD	0

/**
 * struct vmloop_shm_record - head of every record in a ring
 * @size: bytes of payload that follow, without the padding to
 *	VMLOOP_RECORD_ALIGN
 * @type: on a packet lane VMLOOP_RECORD_FRAME or VMLOOP_RECORD_RECEIVERS, on a
 *	control lane VMLOOP_MSG_*; VMLOOP_RECORD_PAD on any
 * @info: meaning given by @type, else zero
 *
 * A record never wraps: where it does not fit before the end of the ring, a
 * pad record fills up to there.
 */
struct vmloop_shm_record {
	__u32 size;
	__u16 type;
	__u16 info;
};

/* Packet lanes ----------------------------------------------------------- */

#define VMLOOP_RECORD_FRAME	1
#define VMLOOP_RECORD_RECEIVERS	2	/* with VMLOOP_F_RECEIVERS */

/* vmloop_shm_frame.flags */
#define VMLOOP_FRAME_NEEDS_CSUM	0x01 /* csum_start and csum_offset are set */
#define VMLOOP_FRAME_DATA_VALID	0x02 /* the transport checksum was not lost */
#define VMLOOP_FRAME_VLAN	0x04 /* vlan_proto and vlan_tci are set */

/* vmloop_shm_frame.gso; numbers as in virtio 1.2, section 5.1.6 */
#define VMLOOP_GSO_NONE		0
#define VMLOOP_GSO_TCPV4	1
#define VMLOOP_GSO_TCPV6	4
#define VMLOOP_GSO_UDP_L4	5	/* with VMLOOP_F_GSO_UDP */
#define VMLOOP_GSO_ECN		0x80	/* or-ed to a TCP one */

/**
 * struct vmloop_shm_frame - payload of VMLOOP_RECORD_FRAME, before the frame
 * @flags: VMLOOP_FRAME_*
 * @gso: VMLOOP_GSO_*
 * @hdr_len: bytes of headers that every segment repeats (a hint)
 * @gso_size: bytes of payload of each segment, if @gso is not NONE
 * @csum_start: where the checksummed part begins, from the Ethernet header
 * @csum_offset: where the checksum goes, from @csum_start
 * @vlan_proto: 0x8100 or 0x88a8 (host's numbers, stored little-endian)
 * @vlan_tci: the tag that was taken out of the frame
 * @reserved: zero
 *
 * The frame follows, from its Ethernet header on, without FCS.
 */
struct vmloop_shm_frame {
	__u8 flags;
	__u8 gso;
	__u16 hdr_len;
	__u16 gso_size;
	__u16 csum_start;
	__u16 csum_offset;
	__u16 vlan_proto;
	__u16 vlan_tci;
	__u16 reserved;
};

/* Entries of one list of receivers. */
#define VMLOOP_RECEIVERS_MAX	32

/**
 * struct vmloop_shm_receivers - payload of VMLOOP_RECORD_RECEIVERS
 * @count: entries of @mac, 0 to VMLOOP_RECEIVERS_MAX
 * @reserved: zero
 * @mac: the interfaces of this side that can receive; the record is as long as
 *	@count says
 *
 * Each list replaces the one before. An interface that is in none is sent
 * nothing.
 */
struct vmloop_shm_receivers {
	__u32 count;
	__u32 reserved;
	__u8 mac[VMLOOP_RECEIVERS_MAX][6];
};

/* Largest frame in a record: 64 KiB of IP, Ethernet header, one VLAN tag. */
#define VMLOOP_FRAME_MAX	(65535 + 14 + 4)

/* Control lanes: messages between the agent and a guest ------------------- */

/* guest to agent */
#define VMLOOP_MSG_HELLO	1	/* struct vmloop_msg_hello */
#define VMLOOP_MSG_ADVERTISE	2	/* struct vmloop_msg_advertise */
#define VMLOOP_MSG_WANT		3	/* struct vmloop_msg_want */
#define VMLOOP_MSG_STATE	4	/* struct vmloop_msg_state */
#define VMLOOP_MSG_STATS	5	/* struct vmloop_msg_stats */
#define VMLOOP_MSG_WINDOW	6	/* struct vmloop_msg_window; agent 1.4 */

/* agent to guest */
#define VMLOOP_MSG_WELCOME	32	/* struct vmloop_msg_welcome */
#define VMLOOP_MSG_DIR_BEGIN	33	/* struct vmloop_msg_dir */
#define VMLOOP_MSG_DIR_PEER	34	/* struct vmloop_msg_peer */
#define VMLOOP_MSG_DIR_END	35	/* struct vmloop_msg_dir */
#define VMLOOP_MSG_REFUSED	36	/* struct vmloop_msg_refused */
#define VMLOOP_MSG_CLOSE	37	/* struct vmloop_msg_close */
#define VMLOOP_MSG_STATS_GET	38	/* struct vmloop_msg_stats_get */
#define VMLOOP_MSG_DIR_CHANGE	39	/* struct vmloop_msg_dir_change */
#define VMLOOP_MSG_DIR_GONE	40	/* struct vmloop_msg_dir_gone */
#define VMLOOP_MSG_WINDOW_AT	41	/* struct vmloop_msg_window_at */

/**
 * struct vmloop_msg_hello - guest: I am here, tell me everything
 * @major: VMLOOP_SHM_MAJOR of the guest
 * @minor: VMLOOP_SHM_MINOR of the guest
 * @cpus: CPUs of the guest that are online; 0, as before version 1.3: not known. One
 *	doorbell of a channel more than that is of use to it
 * @features: VMLOOP_F_* of the guest
 * @version: version of its modules, text, padded with zeros
 * @kernel: its kernel release, text, padded with zeros
 *
 * The agent answers with WELCOME and the directory.
 */
struct vmloop_msg_hello {
	__u16 major;
	__u16 minor;
	__u32 cpus;
	__u64 features;
	char version[32];
	char kernel[64];
};

/* vmloop_msg_address.family */
#define VMLOOP_ADDR_IPV4	4
#define VMLOOP_ADDR_IPV6	6

#define VMLOOP_ADVERTISE_MAX	64	/* addresses in one ADVERTISE */
#define VMLOOP_PEER_IPS		8	/* addresses of one peer in the directory */

/**
 * struct vmloop_msg_address - one IP address
 * @family: VMLOOP_ADDR_*
 * @prefix: length of its subnet prefix in bits
 * @mac: hardware address of the interface that has it
 * @ip: the address in network order; IPv4 in the first four bytes
 */
struct vmloop_msg_address {
	__u8 family;
	__u8 prefix;
	__u8 mac[6];
	__u8 ip[16];
};

/**
 * struct vmloop_msg_advertise - guest: these are all of my IP addresses
 * @count: entries that follow, 0 to VMLOOP_ADVERTISE_MAX
 * @reserved: zero
 * @address: the addresses; the message is as long as @count says
 */
struct vmloop_msg_advertise {
	__u32 count;
	__u32 reserved;
	struct vmloop_msg_address address[VMLOOP_ADVERTISE_MAX];
};

/**
 * struct vmloop_msg_want - guest: I have traffic for this peer, make a channel
 * @peer: its identity
 * @epoch: its epoch, as in the directory
 * @attempt: 1, 2 or 3
 * @reserved: zero
 *
 * The agent answers with a directory in which the peer has a tag, or with
 * REFUSED.
 */
struct vmloop_msg_want {
	__u64 peer;
	__u64 epoch;
	__u32 attempt;
	__u32 reserved;
};

/* vmloop_msg_window.state: how the guest stands to a window */
#define VMLOOP_WINDOW_WANTED	1	/* it is to be made; of its owner */
#define VMLOOP_WINDOW_HERE	2	/* its device is there */
#define VMLOOP_WINDOW_GONE	3	/* done with it, or never had it; the device may go */

/**
 * struct vmloop_msg_window - guest: this is how I stand to a window of a channel
 * @tag: the channel
 * @number: of the window: vmloop_window_lane.number
 * @ours: 1: the guest owns it; 0: its peer does
 * @state: VMLOOP_WINDOW_WANTED, _HERE or _GONE
 * @size: bytes, as in vmloop_window_lane; zero but with VMLOOP_WINDOW_WANTED
 *
 * The agent answers VMLOOP_WINDOW_WANTED with WINDOW_AT.
 */
struct vmloop_msg_window {
	__u32 tag;
	__u32 number;
	__u32 ours;
	__u32 state;
	__u64 size;
};

/* vmloop_msg_state.state: how the guest stands to a channel */
#define VMLOOP_STATE_UP		1	/* in use */
#define VMLOOP_STATE_IDLE	2	/* no traffic for long; may be closed */
#define VMLOOP_STATE_CLOSED	3	/* done with it; the device may go */
#define VMLOOP_STATE_BROKEN	4	/* the peer broke the protocol */

/**
 * struct vmloop_msg_state - guest: this is how I stand to a channel
 * @tag: the channel
 * @state: VMLOOP_STATE_*
 */
struct vmloop_msg_state {
	__u32 tag;
	__u32 state;
};

/**
 * struct vmloop_msg_stats - guest: counters of one channel, since it began
 * @cookie: as in STATS_GET
 * @tag: the channel; 0 ends the answer, its counters are zero
 * @tx_frames: frames given to the channel
 * @tx_bytes: their bytes
 * @rx_frames: frames received from it
 * @rx_bytes: their bytes
 * @tx_doorbells: doorbells rung
 * @rx_doorbells: doorbells heard
 * @tx_full: times that the ring was full
 * @rx_dropped: frames dropped, for any reason
 */
struct vmloop_msg_stats {
	__u32 cookie;
	__u32 tag;
	__u64 tx_frames;
	__u64 tx_bytes;
	__u64 rx_frames;
	__u64 rx_bytes;
	__u64 tx_doorbells;
	__u64 rx_doorbells;
	__u64 tx_full;
	__u64 rx_dropped;
};

/**
 * struct vmloop_msg_welcome - agent: who you are
 * @id: the guest's own identity
 * @epoch: the guest's own epoch
 * @agent: number that differs for every start of the agent
 * @major: VMLOOP_SHM_MAJOR of the agent
 * @minor: VMLOOP_SHM_MINOR of the agent
 * @idle_ms: report a channel as idle after so many milliseconds, 0 for never
 * @name: the guest's name on the host, text, padded with zeros
 */
struct vmloop_msg_welcome {
	__u64 id;
	__u64 epoch;
	__u64 agent;
	__u16 major;
	__u16 minor;
	__u32 idle_ms;
	char name[64];
};

/**
 * struct vmloop_msg_dir - agent: a directory begins or ends
 * @generation: the same in DIR_BEGIN and its DIR_END
 *
 * What stands between the two replaces all that the guest knew. A DIR_END
 * whose generation is not that of the last DIR_BEGIN is ignored.
 */
struct vmloop_msg_dir {
	__u64 generation;
};

/**
 * struct vmloop_msg_dir_change - agent: what is new in a directory begins
 * @generation: the directory's, the same in its DIR_END
 * @before: that of the directory which the guest has
 *
 * With VMLOOP_F_CHANGES in the guest's HELLO. Up to DIR_END a DIR_PEER adds an entry, or
 * replaces the one of the same @id, @local_mac and @mac; a DIR_GONE removes one. All else
 * is as it was. A guest that has another directory than @before, or has missed a part,
 * changes nothing, and sends HELLO again after a second: then a whole directory follows.
 */
struct vmloop_msg_dir_change {
	__u64 generation;
	__u64 before;
};

/**
 * struct vmloop_msg_dir_gone - agent: an entry of the directory is not there any more
 * @id: as in the entry
 * @local_mac: as in the entry
 * @mac: as in the entry
 * @reserved: zero
 */
struct vmloop_msg_dir_gone {
	__u64 id;
	__u8 local_mac[6];
	__u8 mac[6];
	__u32 reserved;
};

/* vmloop_msg_peer.flags */
#define VMLOOP_PEER_TAGGED	0x1 /* VLAN-tagged frames pass between them */
#define VMLOOP_PEER_ROUTED	0x2 /* only packets pass, by way of the host */
#define VMLOOP_PEER_KEEP	0x4 /* its addresses are those said before */

/*
 * From this bit on: the host's policy has no lanes of a kind for the two. The bit of a kind
 * is VMLOOP_PEER_WITHOUT_SHIFT + the kind, 2 to 15; the same in all entries of a peer.
 * Modules that do not know it open such lanes, and the other side refuses them.
 */
#define VMLOOP_PEER_WITHOUT_SHIFT	16

/**
 * struct vmloop_msg_peer - agent: one interface of a peer, seen from one of ours
 * @id: the peer's identity; several entries may carry the same. With
 *	VMLOOP_PEER_ROUTED also the guest's own identity: then @mac is
 *	@local_mac, and @ip are the guest's addresses that its peers know of
 * @epoch: its epoch: another value is another life of that guest
 * @tag: channel that leads to it; 0 while there is none
 * @flags: VMLOOP_PEER_*
 * @local_mac: the interface of ours that it is reached by
 * @mac: the peer's interface
 * @ip_count: entries of @ip in use
 * @mtu: largest MTU that the network between the two carries, in bytes
 * @name: the peer's name on the host, text, padded with zeros
 * @ip: its addresses that policy allows
 * @gateway: with VMLOOP_PEER_ROUTED: hardware address that the host has
 *	there where @local_mac is, the next hop of packets to @ip
 * @reserved: zero
 *
 * Version 1.0 ends before @gateway.
 */
struct vmloop_msg_peer {
	__u64 id;
	__u64 epoch;
	__u32 tag;
	__u32 flags;
	__u8 local_mac[6];
	__u8 mac[6];
	__u16 ip_count;
	__u16 mtu;
	char name[32];
	struct vmloop_msg_address ip[VMLOOP_PEER_IPS];
	__u8 gateway[6];
	__u16 reserved;
};

/* vmloop_msg_refused.reason */
#define VMLOOP_REFUSED_POLICY	1	/* not allowed to talk */
#define VMLOOP_REFUSED_GONE	2	/* no such peer, or another epoch */
#define VMLOOP_REFUSED_SLOTS	3	/* one of the two has no free slot */
#define VMLOOP_REFUSED_FAILED	4	/* the hypervisor would not; see the log */
#define VMLOOP_REFUSED_BUSY	5	/* asked too often; ask again later */
#define VMLOOP_REFUSED_BROKEN	6	/* their channel broke; ask again later */

/**
 * struct vmloop_msg_refused - agent: no channel to that peer for now
 * @peer: its identity
 * @reason: VMLOOP_REFUSED_*
 * @retry_ms: do not ask again for so many milliseconds; 0: not before the
 *	directory changes
 */
struct vmloop_msg_refused {
	__u64 peer;
	__u32 reason;
	__u32 retry_ms;
};

/* vmloop_msg_close.reason */
#define VMLOOP_CLOSE_IDLE	1
#define VMLOOP_CLOSE_POLICY	2
#define VMLOOP_CLOSE_PEER_GONE	3
#define VMLOOP_CLOSE_MIGRATION	4
#define VMLOOP_CLOSE_DETACH	5

/**
 * struct vmloop_msg_close - agent: drain that channel and let go of it
 * @tag: the channel; the guest answers with STATE CLOSED
 * @reason: VMLOOP_CLOSE_*
 */
struct vmloop_msg_close {
	__u32 tag;
	__u32 reason;
};

#define VMLOOP_WINDOW_NOWHERE	(~0U)	/* vmloop_msg_window_at.place */

/**
 * struct vmloop_msg_window_at - agent: this device is a window of a channel
 * @tag: the channel
 * @number: of the window
 * @ours: 1: the guest owns it; 0: its peer does
 * @place: PCI bus << 8 | device << 3 | function, in domain 0; VMLOOP_WINDOW_NOWHERE: it
 *	cannot be made, or the agent takes it back
 * @size: bytes of the window; its device's may be more. Without a place it says nothing
 */
struct vmloop_msg_window_at {
	__u32 tag;
	__u32 number;
	__u32 ours;
	__u32 place;
	__u64 size;
};

/**
 * struct vmloop_msg_stats_get - agent: send a STATS for every channel
 * @cookie: to be repeated in the answers
 * @reserved: zero
 */
struct vmloop_msg_stats_get {
	__u32 cookie;
	__u32 reserved;
};

#endif /* VMLOOP_SHM_H */
