/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * vmloop_lanes.h - the lane table of channel memory, version 2: docs/protocol.md,
 * section 9, is the normative text. What vmloop_shm.h says of version 1 stays
 * true: control regions keep that version.
 *
 * A region of version 2 has the header of version 1, with another major version.
 * At each side's offset it has a struct vmloop_shm_table, and behind it one
 * struct vmloop_shm_entry for each lane. include/lanes.golden pins every size and
 * offset found here.
 *
 * Plain C, as vmloop_shm.h.
 */
#ifndef VMLOOP_LANES_H
#define VMLOOP_LANES_H

#include "vmloop_shm.h"

#define VMLOOP_TABLE_MAJOR	2	/* vmloop_shm_header.major, and each side's */
#define VMLOOP_TABLE_MINOR	0

#define VMLOOP_LANES_MAX	4096	/* entries of one side's table */
#define VMLOOP_TABLE_ENTRIES	4096	/* where they begin, from the table's start */

/* vmloop_shm_lane.kind; VMLOOP_LANE_PACKET is 1 */
#define VMLOOP_LANE_STREAM	2	/* the byte stream of a TCP connection */
#define VMLOOP_LANE_TOY_RECORDS	6	/* the path of the tests: an echo of records */
#define VMLOOP_LANE_TOY_BYTES	7	/* the same of bytes */
#define VMLOOP_LANE_WINDOW	15	/* carries nothing: it is as long as its window */

/*
 * vmloop_shm_entry.life: generation << VMLOOP_LIFE_BITS | step. It only moves
 * forward, modulo 2^32; FREE of a generation comes after CLOSED or REFUSED of the
 * one before. kernel/core/life.h has the rules.
 */
#define VMLOOP_LIFE_BITS	3
#define VMLOOP_LIFE_FREE	0	/* this side is done with the one before */
#define VMLOOP_LIFE_OPEN	1	/* this side has opened it; so must the other */
#define VMLOOP_LIFE_CLOSING	2	/* produces nothing more, still consumes */
#define VMLOOP_LIFE_CLOSED	3	/* neither; its positions are final */
#define VMLOOP_LIFE_REFUSED	4	/* does not open what the other has opened */

/* vmloop_shm_entry.reason; from VMLOOP_REASON_PATH on the meaning is the path's */
#define VMLOOP_REASON_NONE	0
#define VMLOOP_REASON_KIND	1	/* nobody here serves that kind of lane */
#define VMLOOP_REASON_POLICY	2	/* the host's policy has none for the pair */
#define VMLOOP_REASON_ROOM	3	/* no room for a ring, or for another lane */
#define VMLOOP_REASON_RING	4	/* the ring cannot be that one */
#define VMLOOP_REASON_WINDOW	5	/* the window cannot be that one */
#define VMLOOP_REASON_PATH	256

/**
 * struct vmloop_shm_entry - one lane, as one side sees it
 * @lane: kind, ring and positions, as in version 1
 * @life: VMLOOP_LIFE_*, and the lane's generation
 * @reason: with REFUSED and CLOSED: why; stays until the next OPEN
 * @bell: which of this side's doorbells is to be rung for this lane
 * @features: VMLOOP_F_* that this side's path offers for it
 * @reserved: zero
 * @path: the path's own, written before @life becomes OPEN
 *
 * Of @lane only the positions and the wakes change while a generation is open.
 */
struct vmloop_shm_entry {
	struct vmloop_shm_lane lane;
	__u32 life;
	__u32 reason;
	__u32 bell;
	__u32 pad0;
	__u64 features;
	__u8 reserved[40];
	__u8 path[64];
};

/* Packet lanes that a pair has at most. */
#define VMLOOP_PACKET_LANES	8

/**
 * struct vmloop_packet_lane - the path's bytes of a packet lane
 * @lanes: packet lanes that this side takes part in, 1 to VMLOOP_PACKET_LANES; of
 *	the first lane
 * @slot: which packet lane this is: 0 is the first, others are below the @lanes of
 *	both sides
 *
 * With VMLOOP_F_SPREAD among the lane's features; without it there is one.
 */
struct vmloop_packet_lane {
	__u32 lanes;
	__u32 slot;
};

/* Windows that each side of a channel has at most. */
#define VMLOOP_WINDOWS_MAX	4
/* Bytes of a window, at most; it is whole pages of VMLOOP_SHM_PAGE. */
#define VMLOOP_WINDOW_SIZE_MAX	(64 << 20)

/**
 * struct vmloop_window_lane - the path's bytes of a lane that stands for a window
 * @number: of the window, no other one's of the side that owns it; modulo VMLOOP_WINDOWS_MAX
 *	not that of another one that there is yet
 * @kind: VMLOOP_LANE_* of the lanes whose records refer to it
 * @size: bytes
 * @handle: where it is: the transport's
 * @path: the path's that refers to it
 *
 * The side that owns the window opens the lane. The other one's bytes are zero.
 */
struct vmloop_window_lane {
	__u32 number;
	__u32 kind;
	__u64 size;
	__u64 handle;
	__u8 path[40];
};

/**
 * struct vmloop_shm_reference - bytes in a window of the side that says it
 * @window: number of the window
 * @size: bytes
 * @offset: from the window's start, in bytes
 */
struct vmloop_shm_reference {
	__u32 window;
	__u32 size;
	__u64 offset;
};

/* A word of news has a bit for each of so many lanes, or words. */
#define VMLOOP_NEWS_BITS	64

/**
 * struct vmloop_shm_news - which lanes have something to look at
 * @groups: told by this side: a bit for each word of @lanes
 * @groups_taken: @groups of the other side, as this side has last taken it
 * @lanes: told by this side: a bit for each lane
 * @lanes_taken: @lanes of the other side, as this side has last taken it
 *
 * A bit that differs from the other side's copy of it is news. Hints, all of it:
 * kernel/core/news.h.
 */
struct vmloop_shm_news {
	__u64 groups;
	__u8 pad0[56];
	__u64 groups_taken;
	__u8 pad1[56];
	__u64 lanes[VMLOOP_NEWS_BITS];
	__u64 lanes_taken[VMLOOP_NEWS_BITS];
};

/**
 * struct vmloop_shm_table - what one side tells the other
 * @state: VMLOOP_SIDE_*
 * @major: VMLOOP_TABLE_MAJOR of this side
 * @minor: VMLOOP_TABLE_MINOR of this side
 * @features: VMLOOP_F_* that this side offers
 * @lanes: entries that this side uses, an even number from 2 on; a channel has as
 *	many lanes as the side that uses fewer
 * @reserved: zero
 * @news: which lanes have something to look at
 *
 * Up to @features it is a struct vmloop_shm_side. All of it but @news and @state
 * is written before @state becomes READY, and never changes after that. Entries
 * begin VMLOOP_TABLE_ENTRIES behind it.
 */
struct vmloop_shm_table {
	__u32 state;
	__u16 major;
	__u16 minor;
	__u64 features;
	__u32 lanes;
	__u8 reserved[44];
	struct vmloop_shm_news news;
};

#endif /* VMLOOP_LANES_H */
