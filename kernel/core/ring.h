/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * ring.h - one direction of a lane: a ring of records or of plain bytes, one
 * producer, one consumer, in memory that the other side can write at any time.
 *
 * Pure: no allocation, no locks, no knowledge of skbs, PCI or Xen. The kernel
 * modules, the host agent and the tests in user space compile the same file.
 *
 * A ring of records has a header before each record, and no record wraps. A
 * ring of bytes has no headers, wraps anywhere and counts single bytes. Which of
 * the two a ring is, both sides know from the lane's kind, never from the ring.
 *
 * Positions are bytes produced or consumed so far, modulo 2^32, from wherever
 * the ring began; multiples of VMLOOP_RECORD_ALIGN in a ring of records. A byte
 * of the stream lies at its position modulo the ring's size. Private positions
 * are kept here, outside the shared memory; a position of the other side is read
 * once, checked, then used. What cannot be true latches @broken, and the ring
 * refuses to work from then on.
 *
 * A producer may move on to another ring, larger or smaller: what is written from then on
 * is there, what was written before is read where it is. The consumer says when it needs
 * nothing of the ring before; only then may that be used for something else, and only then
 * is there another move.
 *
 * The one lane of a channel of version 1 has rings of records that begin at 0, and do not
 * move.
 *
 * Context: any. The caller serialises the producer's calls among themselves
 * and the consumer's among themselves; the two need no lock between them.
 *
 * Barriers, each named with its pair:
 *   (A) vmloop_ring_publish() releases tx_head; rx_available() acquires it:
 *       what was produced is complete before it can be seen.
 *   (B) vmloop_ring_consume_publish() releases rx_tail; tx_room() acquires it:
 *       bytes have been read before they can be overwritten.
 *   (C) vmloop_ring_publish() has a full barrier between storing tx_head and
 *       loading rx_wake; vmloop_ring_wait_bytes() and vmloop_ring_wait_after() have
 *       one between storing rx_wake and loading tx_head: at least one of the two
 *       sees the other.
 *   (D) the same for room: vmloop_ring_consume_publish() between rx_tail and
 *       tx_wake; tx_wait(), vmloop_ring_wait_read() and
 *       vmloop_ring_wait_space_beside() between tx_wake and rx_tail.
 *   (E) vmloop_ring_move() releases tx_moves; see_move() acquires it: where the new ring
 *       is can be read. A tx_head in the new ring comes later, by (A).
 *   (F) vmloop_ring_consume_publish() releases rx_moves; vmloop_ring_has_moved() acquires
 *       it: the ring before has been read, and its memory can be overwritten.
 */
#ifndef VMLOOP_RING_H
#define VMLOOP_RING_H

#include "ring_os.h"
#include "vmloop_shm.h"

/**
 * enum vmloop_ring_fault - what the other side wrote that cannot be true
 * @VMLOOP_RING_GOOD: nothing
 * @VMLOOP_RING_TAIL: rx_tail behind what it was, beyond what we published, or
 *	no multiple of the grain
 * @VMLOOP_RING_HEAD: tx_head behind what it was, beyond the ring, or no multiple
 *	of the grain
 * @VMLOOP_RING_SIZE: a record larger than any may be
 * @VMLOOP_RING_SPAN: a record beyond the end of the ring, or of what was
 *	published
 * @VMLOOP_RING_PAD: padding that does not end where the ring does
 * @VMLOOP_RING_MOVE: a ring that cannot be, or a move at a position where none can be
 *
 * The numbers are those of break-reason in docs/netlink/vmloop.yaml.
 */
enum vmloop_ring_fault {
	VMLOOP_RING_GOOD,
	VMLOOP_RING_TAIL,
	VMLOOP_RING_HEAD,
	VMLOOP_RING_SIZE,
	VMLOOP_RING_SPAN,
	VMLOOP_RING_PAD,
	VMLOOP_RING_MOVE = 8,	/* 6 and 7 are enum vmloop_break's */
};

/**
 * enum vmloop_ring_grain - what a ring carries, by what its positions are
 * multiples of
 * @VMLOOP_RING_BYTES: bytes
 * @VMLOOP_RING_RECORDS: records
 */
enum vmloop_ring_grain {
	VMLOOP_RING_BYTES = 1,
	VMLOOP_RING_RECORDS = VMLOOP_RECORD_ALIGN,
};

/**
 * struct vmloop_ring_tx - the producer's end
 * @data: the ring, in this side's data
 * @size: its bytes, a power of two
 * @grain: enum vmloop_ring_grain
 * @head: where the next record or byte goes
 * @reserved: bytes from @head that the record being written takes
 * @published: head as last told to the other side
 * @tail: the other side's rx_tail as last seen and believed
 * @moves: how often the ring has moved; the core reads it beside the producer
 * @moved_at: the position of the last move
 * @old: the ring before that, for what is unread of it; NULL when it is somebody else's
 * @old_size: its bytes
 * @straddles: @tail has not reached @moved_at
 * @ours: our lane; tx_head and tx_wake are ours to write
 * @theirs: the other side's lane; rx_tail and rx_wake. Written by the peer:
 *	untrusted
 * @broken: what the other side wrote that cannot be true, if it did; latched
 */
struct vmloop_ring_tx {
	u8 *data;
	u32 size;
	u32 grain;
	u32 head;
	u32 reserved;
	u32 published;
	u32 tail;
	u32 moves;
	u32 moved_at;
	const u8 *old;
	u32 old_size;
	bool straddles;
	struct vmloop_shm_lane *ours;
	const struct vmloop_shm_lane *theirs;
	enum vmloop_ring_fault broken;
};

/**
 * enum vmloop_ring_move - how far a consumer is with a move
 * @VMLOOP_RING_STAYS: there is none
 * @VMLOOP_RING_AHEAD: what comes next is in the old ring, and then in @next
 * @VMLOOP_RING_BEHIND: it is in the new ring; the other side has not been told
 */
enum vmloop_ring_move {
	VMLOOP_RING_STAYS,
	VMLOOP_RING_AHEAD,
	VMLOOP_RING_BEHIND,
};

/**
 * struct vmloop_ring_rx - the consumer's end
 * @data: the ring, in the other side's data. Written by the peer: untrusted
 * @size: its bytes, a power of two, as checked when the lane was opened, or the ring moved
 * @grain: enum vmloop_ring_grain
 * @tail: where the next record or byte is; a watcher beside the consumer reads it
 * @taken: bytes from @tail that the record being read takes
 * @published: tail as last told to the other side
 * @head: the other side's tx_head as last seen and believed
 * @area: the other side's data, in which the ring may move; NULL if it does not
 * @area_size: its bytes
 * @most: bytes of the largest ring to move to; a path may have it lower
 * @move: how far the last move is
 * @moves: those that the other side was told of
 * @moved_at: the position of the last one
 * @next: the ring that follows, with VMLOOP_RING_AHEAD
 * @next_size: its bytes, checked
 * @ours: our lane; rx_tail and rx_wake are ours to write
 * @theirs: the other side's lane; tx_head and tx_wake. Written by the peer:
 *	untrusted
 * @broken: what the other side wrote that cannot be true, if it did; latched
 */
struct vmloop_ring_rx {
	const u8 *data;
	u32 size;
	u32 grain;
	u32 tail;
	u32 taken;
	u32 published;
	u32 head;
	const u8 *area;
	u64 area_size;
	u32 most;
	enum vmloop_ring_move move;
	u32 moves;
	u32 moved_at;
	const u8 *next;
	u32 next_size;
	struct vmloop_shm_lane *ours;
	const struct vmloop_shm_lane *theirs;
	enum vmloop_ring_fault broken;
};

#define VMLOOP_RING_MIN		4096U
#define VMLOOP_RING_MAX		(1U << 30)

int vmloop_ring_tx_init(struct vmloop_ring_tx *tx, enum vmloop_ring_grain grain,
			void *data, u32 size, u32 start,
			struct vmloop_shm_lane *ours,
			const struct vmloop_shm_lane *theirs);
int vmloop_ring_rx_init(struct vmloop_ring_rx *rx, enum vmloop_ring_grain grain,
			const void *data, u32 size, u32 start,
			struct vmloop_shm_lane *ours,
			const struct vmloop_shm_lane *theirs);

void vmloop_ring_follow(struct vmloop_ring_rx *rx, const void *area, u64 size);

/* Bytes that may be unread, in the ring and in the one that it moves to. */
static inline u32 vmloop_ring_most(const struct vmloop_ring_rx *rx)
{
	return rx->size + (rx->move == VMLOOP_RING_AHEAD ? rx->next_size : 0);
}

u32 vmloop_ring_max_record(u32 size);

/* Producer of records: reserve, fill, commit; publish once for all there are. */
int vmloop_ring_reserve(struct vmloop_ring_tx *tx, u32 size, u16 type, u16 info,
			void **payload);
void vmloop_ring_commit(struct vmloop_ring_tx *tx);
bool vmloop_ring_wait_room(struct vmloop_ring_tx *tx, u32 size);

/* Producer of bytes: fill the space, add; publish once for all there are. */
u32 vmloop_ring_space(struct vmloop_ring_tx *tx, u32 want, void **at);
void vmloop_ring_add(struct vmloop_ring_tx *tx, u32 bytes);
bool vmloop_ring_wait_space(struct vmloop_ring_tx *tx, u32 want);
bool vmloop_ring_wait_space_beside(struct vmloop_ring_tx *tx);

/* Either. */
bool vmloop_ring_publish(struct vmloop_ring_tx *tx);
bool vmloop_ring_has_read(struct vmloop_ring_tx *tx, u32 position);
bool vmloop_ring_wait_read(struct vmloop_ring_tx *tx, u32 position);
bool vmloop_ring_drained(struct vmloop_ring_tx *tx);
u32 vmloop_ring_account(struct vmloop_ring_tx *tx);
void vmloop_ring_forget(struct vmloop_ring_tx *tx);
u32 vmloop_ring_unread(const struct vmloop_ring_tx *tx, u32 skip, const void **at);
int vmloop_ring_move(struct vmloop_ring_tx *tx, void *data, u32 size, u64 offset);
bool vmloop_ring_has_moved(const struct vmloop_ring_tx *tx);

/* Consumer of records: peek, use, release; publish once for all there are. */
int vmloop_ring_peek(struct vmloop_ring_rx *rx, struct vmloop_shm_record *record,
		     const void **payload);
void vmloop_ring_release(struct vmloop_ring_rx *rx);

/* Consumer of bytes: look, use, take; publish once for all there are. */
u32 vmloop_ring_bytes(struct vmloop_ring_rx *rx, u32 skip, u32 want, const void **at);
void vmloop_ring_take(struct vmloop_ring_rx *rx, u32 bytes);
bool vmloop_ring_wait_bytes(struct vmloop_ring_rx *rx, u32 bytes);

/* Either. */
bool vmloop_ring_consume_publish(struct vmloop_ring_rx *rx);
bool vmloop_ring_sleep(struct vmloop_ring_rx *rx);
u32 vmloop_ring_seen(const struct vmloop_ring_rx *rx);
bool vmloop_ring_wait_after(struct vmloop_ring_rx *rx, u32 seen);
bool vmloop_ring_ready(struct vmloop_ring_rx *rx);
void vmloop_ring_watch(struct vmloop_ring_rx *rx);
bool vmloop_ring_moved(const struct vmloop_ring_rx *rx);

#endif /* VMLOOP_RING_H */
