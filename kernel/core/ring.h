/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * ring.h - one direction of a lane: records in a ring of bytes, one producer,
 * one consumer, in memory that the other side can write at any time.
 *
 * Pure: no allocation, no locks, no knowledge of skbs, PCI or Xen. The kernel
 * modules, the host agent and the tests in user space compile the same file.
 *
 * Positions are bytes produced or consumed so far, modulo 2^32, and multiples
 * of VMLOOP_RECORD_ALIGN. Private positions are kept here, outside the shared
 * memory; a position of the other side is read once, checked, then used. What
 * cannot be true latches @broken, and the ring refuses to work from then on.
 *
 * Context: any. The caller serialises the producer's calls among themselves
 * and the consumer's among themselves; the two need no lock between them.
 *
 * Barriers, each named with its pair:
 *   (A) vmloop_ring_publish() releases tx_head; rx_available() acquires it:
 *       a record is complete before it can be seen.
 *   (B) vmloop_ring_consume_publish() releases rx_tail; tx_room() acquires it:
 *       a record has been read before its bytes can be overwritten.
 *   (C) vmloop_ring_publish() has a full barrier between storing tx_head and
 *       loading rx_wake; vmloop_ring_sleep() has one between storing rx_wake
 *       and loading tx_head: at least one of the two sees the other.
 *   (D) the same for room: vmloop_ring_consume_publish() between rx_tail and
 *       tx_wake; vmloop_ring_wait_room() and vmloop_ring_wait_read() between
 *       tx_wake and rx_tail.
 */
#ifndef VMLOOP_RING_H
#define VMLOOP_RING_H

#include "ring_os.h"
#include "vmloop_shm.h"

/**
 * enum vmloop_ring_fault - what the other side wrote that cannot be true
 * @VMLOOP_RING_GOOD: nothing
 * @VMLOOP_RING_TAIL: rx_tail behind what it was, beyond what we published, or
 *	no multiple of VMLOOP_RECORD_ALIGN
 * @VMLOOP_RING_HEAD: tx_head beyond the ring, or no multiple of
 *	VMLOOP_RECORD_ALIGN
 * @VMLOOP_RING_SIZE: a record larger than any may be
 * @VMLOOP_RING_SPAN: a record beyond the end of the ring, or of what was
 *	published
 * @VMLOOP_RING_PAD: padding that does not end where the ring does
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
};

/**
 * struct vmloop_ring_tx - the producer's end
 * @data: the ring, in this side's data
 * @size: its bytes, a power of two
 * @head: where the next record goes
 * @reserved: bytes from @head that the record being written takes
 * @published: head as last told to the other side
 * @tail: the other side's rx_tail as last seen and believed
 * @ours: our lane; tx_head and tx_wake are ours to write
 * @theirs: the other side's lane; rx_tail and rx_wake. Written by the peer:
 *	untrusted
 * @broken: what the other side wrote that cannot be true, if it did; latched
 */
struct vmloop_ring_tx {
	u8 *data;
	u32 size;
	u32 head;
	u32 reserved;
	u32 published;
	u32 tail;
	struct vmloop_shm_lane *ours;
	const struct vmloop_shm_lane *theirs;
	enum vmloop_ring_fault broken;
};

/**
 * struct vmloop_ring_rx - the consumer's end
 * @data: the ring, in the other side's data. Written by the peer: untrusted
 * @size: its bytes, a power of two, as checked when the lane was opened
 * @tail: where the next record begins; a watcher beside the consumer reads it
 * @taken: bytes from @tail that the record being read takes
 * @published: tail as last told to the other side
 * @head: the other side's tx_head as last seen and believed
 * @ours: our lane; rx_tail and rx_wake are ours to write
 * @theirs: the other side's lane; tx_head and tx_wake. Written by the peer:
 *	untrusted
 * @broken: what the other side wrote that cannot be true, if it did; latched
 */
struct vmloop_ring_rx {
	const u8 *data;
	u32 size;
	u32 tail;
	u32 taken;
	u32 published;
	u32 head;
	struct vmloop_shm_lane *ours;
	const struct vmloop_shm_lane *theirs;
	enum vmloop_ring_fault broken;
};

#define VMLOOP_RING_MIN		4096U
#define VMLOOP_RING_MAX		(1U << 30)

int vmloop_ring_tx_init(struct vmloop_ring_tx *tx, void *data, u32 size,
			struct vmloop_shm_lane *ours,
			const struct vmloop_shm_lane *theirs);
int vmloop_ring_rx_init(struct vmloop_ring_rx *rx, const void *data, u32 size,
			struct vmloop_shm_lane *ours,
			const struct vmloop_shm_lane *theirs);

u32 vmloop_ring_max_record(u32 size);

/* Producer: reserve, fill, commit; publish once for as many as there are. */
int vmloop_ring_reserve(struct vmloop_ring_tx *tx, u32 size, u16 type, u16 info,
			void **payload);
void vmloop_ring_commit(struct vmloop_ring_tx *tx);
bool vmloop_ring_publish(struct vmloop_ring_tx *tx);
bool vmloop_ring_wait_room(struct vmloop_ring_tx *tx, u32 size);
bool vmloop_ring_has_read(struct vmloop_ring_tx *tx, u32 position);
bool vmloop_ring_wait_read(struct vmloop_ring_tx *tx, u32 position);
bool vmloop_ring_drained(struct vmloop_ring_tx *tx);

/* Consumer: peek, use, release; publish once for as many as there are. */
int vmloop_ring_peek(struct vmloop_ring_rx *rx, struct vmloop_shm_record *record,
		     const void **payload);
void vmloop_ring_release(struct vmloop_ring_rx *rx);
bool vmloop_ring_consume_publish(struct vmloop_ring_rx *rx);
bool vmloop_ring_sleep(struct vmloop_ring_rx *rx);
bool vmloop_ring_ready(struct vmloop_ring_rx *rx);
void vmloop_ring_watch(struct vmloop_ring_rx *rx);
bool vmloop_ring_moved(const struct vmloop_ring_rx *rx);

#endif /* VMLOOP_RING_H */
