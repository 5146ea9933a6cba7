// SPDX-License-Identifier: GPL-2.0
/*
 * fuzz.c - the ring against a peer that writes whatever it likes, whenever it
 * likes, wherever it can: a target for libFuzzer.
 *
 * The input is a program: calls that we make, as producer of one ring and
 * consumer of another, both of records or both of bytes, and what the peer
 * writes between them and, by way of fuzz_os.h, in the middle of them. The peer
 * can write all of the shared memory, our own lanes and our own ring included.
 *
 * What must hold: no access outside the rings (guard pages; read-only where we
 * have nothing to write; AddressSanitizer for the rest), payloads within the
 * ring and no larger than allowed, a bounded number of accesses in each call,
 * and broken stays broken and still.
 */
#include <string.h>

#include "shared.h"

#define RING		4096U		/* the first ring */
#define AREA		(4 * RING)	/* where rings move */
#define MOST_TURNS	32	/* of the adversary, in one call of ours */

static struct view ours_tx;	/* the ring that we produce, as we see it */
static struct view ours_rx;	/* the ring that we consume, as we see it */
static struct view peer_tx;	/* the same two, as the peer sees them */
static struct view peer_rx;
static struct vmloop_ring_tx *tx;
static struct vmloop_ring_rx *rx;

static const u8 *input;
static size_t left;
static u32 turns;

/* What the peer writes in the middle of a call: at which of its turns, what. */
static struct {
	u32 at;
	u8 *where;
	u8 bytes[8];
	u32 length;
} ambush;

#define MUST(condition) do {						\
	if (!(condition)) {						\
		fprintf(stderr, "fuzz: line %d: %s does not hold\n",	\
			__LINE__, #condition);				\
		abort();						\
	}								\
} while (0)

void adversary_turn(void)
{
	turns++;
	MUST(turns <= MOST_TURNS);
	if (ambush.length && turns == ambush.at) {
		memcpy(ambush.where, ambush.bytes, ambush.length);
		ambush.length = 0;
	}
}

static u8 next(void)
{
	if (!left)
		return 0;
	left--;
	return *input++;
}

static u32 next32(void)
{
	u32 a = next();
	u32 b = next();
	u32 c = next();

	return a | b << 8 | c << 16 | (u32)next() << 24;
}

/* What the peer writes: chooses the place and the bytes, returns how many. */
static u32 choose_write(u8 **where, u8 *bytes)
{
	u32 * const fields[] = {
		&peer_tx.producer->tx_head, &peer_tx.producer->tx_wake,
		&peer_tx.consumer->rx_tail, &peer_tx.consumer->rx_wake,
		&peer_rx.producer->tx_head, &peer_rx.producer->tx_wake,
		&peer_rx.consumer->rx_tail, &peer_rx.consumer->rx_wake,
	};
	const u32 truths[] = {
		tx->head, tx->published, tx->tail, tx->head - RING,
		rx->tail, rx->published, rx->head, rx->tail + RING,
	};
	u8 how = next();
	u64 value;
	u32 length = 4;

	switch (how & 3) {
	case 0: /* a position, near one that is true */
		*where = (u8 *)fields[how >> 2 & 7];
		value = truths[how >> 5] + (u32)(signed char)next() * tx->grain;
		break;
	case 1: /* a position, any */
		*where = (u8 *)fields[how >> 2 & 7];
		value = next32();
		break;
	case 2: /* the header of a record, where we read or a little further */
		*where = peer_rx.data + (rx->data - ours_rx.data) +
			 ((rx->tail + (how >> 2) * 16U) & (rx->size - 8));
		value = next();
		value |= (u64)(next() & 31) << 8;
		value |= (u64)(next() & 3) << 32;
		length = 8;
		break;
	default: /* anything anywhere */
		*where = (how & 4 ? peer_rx.data : peer_tx.data) + next() % 255 * 16;
		value = next32() | (u64)next32() << 32;
		length = 8;
	}
	memcpy(bytes, &value, length);
	return length;
}

/* Reads all of a payload, as a caller does, so that a stray byte is noticed. */
static void read_all(const u8 *payload, u32 size)
{
	volatile u8 sink;

	for (u32 i = 0; i < size; i++)
		sink = payload[i];
	(void)sink;
}

/* Where a ring may be, in the data of its producer. */
static u32 choose_place(u32 *offset)
{
	u8 how = next();
	u32 bytes = RING << (how & 1);

	*offset = (how >> 1 & 3) * RING;
	if (*offset + bytes > AREA)
		*offset = 0;
	return bytes;
}

/* Ours moves. */
static void call_move(void)
{
	u32 offset, bytes = choose_place(&offset);
	bool was_broken = tx->broken;
	int result = vmloop_ring_move(tx, ours_tx.data + offset, bytes, offset);

	if (!result && vmloop_ring_has_moved(tx))
		vmloop_ring_forget(tx);
	tx->reserved = 0;
	MUST(!result || result == -EBUSY || (result == -EPROTO && tx->broken));
	MUST(result || !was_broken);
}

/* The peer says that its ring moves, near to what can be, and that ours was read. */
static void say_moves(void)
{
	u8 how = next();
	u32 offset, bytes = choose_place(&offset);
	struct vmloop_shm_lane *theirs = peer_rx.producer;

	if (how & 1)
		peer_tx.consumer->rx_moves = tx->moves + (how >> 7);
	if (how & 2)
		return;
	theirs->moved_at = rx->head + (u32)(signed char)next() * rx->grain;
	theirs->moved_size = how & 4 ? bytes : next32();
	theirs->moved_offset = how & 8 ? offset : next32() | (u64)next32() << 32;
	theirs->tx_moves = rx->moves + 1 + (how >> 6 & 1);
}

/* A peer that keeps to the rules for once, so that there is something to read. */
static void honest_record(void)
{
	u8 *data = peer_rx.data + (rx->data - ours_rx.data);
	u32 offset = rx->tail & (rx->size - 1);
	u64 header = next() % 200 | 1ULL << 32;
	u32 span = ((u32)header + 8 + 15) / 16 * 16;

	if (offset + span > rx->size) {
		u64 pad = rx->size - offset - 8;

		memcpy(data + offset, &pad, 8);
		memcpy(data, &header, 8);
		span += rx->size - offset;
	} else {
		memcpy(data + offset, &header, 8);
	}
	peer_rx.producer->tx_head = rx->tail + span;
}

static void call_reserve(void)
{
	u32 size = next() | (next() & 7U) << 8;
	void *payload = NULL;
	int result = vmloop_ring_reserve(tx, size, 1, 2, &payload);

	if (size > vmloop_ring_max_record(tx->size))
		MUST(result == -EMSGSIZE || (result == -EPROTO && tx->broken));
	if (result) {
		MUST(!payload);
		MUST(result == -EAGAIN || result == -EMSGSIZE || result == -EPROTO);
		MUST((result == -EPROTO) == !!tx->broken);
		return;
	}
	MUST((u8 *)payload >= ours_tx.data + 8);
	MUST((u8 *)payload + size <= ours_tx.data + AREA);
	memset(payload, 0x77, size);
}

static void call_peek(void)
{
	struct vmloop_shm_record record;
	const void *payload = NULL;
	int result = vmloop_ring_peek(rx, &record, &payload);

	if (result <= 0) {
		MUST(!payload);
		MUST(result == (rx->broken ? -EPROTO : 0));
		return;
	}
	MUST(result == 1 && !rx->broken);
	MUST(record.size <= vmloop_ring_max_record(rx->size));
	MUST(record.type != VMLOOP_RECORD_PAD);
	MUST((const u8 *)payload >= ours_rx.data + 8);
	MUST((const u8 *)payload + record.size <= ours_rx.data + AREA);
	read_all(payload, record.size);
}

static void call_space(void)
{
	u32 want = next() | (next() & 31U) << 8;
	void *at = NULL;
	u32 room = vmloop_ring_space(tx, want, &at);

	MUST(room <= tx->size && (!room || !tx->broken));
	if (!room)
		return;
	MUST((u8 *)at >= ours_tx.data && (u8 *)at + room <= ours_tx.data + AREA);
	memset(at, 0x77, room);
	vmloop_ring_add(tx, want < room ? want : room);
}

static void call_bytes(void)
{
	u32 skip = next() * 16U;
	u32 want = next() | (next() & 31U) << 8;
	const void *at = NULL;
	u32 length = vmloop_ring_bytes(rx, skip, want, &at);

	MUST(skip + length <= rx->head - rx->tail || !length);
	if (!length) {
		MUST(!at);
		return;
	}
	MUST(!rx->broken);
	MUST((const u8 *)at >= ours_rx.data && (const u8 *)at + length <= ours_rx.data + AREA);
	read_all(at, length);
	vmloop_ring_take(rx, want < skip + length ? want : skip + length);
}

/* What the peer has not read is in our ring, all of it. */
static void call_account(void)
{
	u32 unread = vmloop_ring_account(tx);
	u32 seen = 0;
	u32 length;

	MUST(unread == tx->head - tx->tail && unread <= 2 * AREA);
	if (tx->grain != VMLOOP_RING_BYTES)
		return;
	for (const void *at; (length = vmloop_ring_unread(tx, seen, &at)); seen += length) {
		MUST((const u8 *)at >= ours_tx.data);
		MUST((const u8 *)at + length <= ours_tx.data + AREA);
		read_all(at, length);
	}
	/* What was let go of, and not read, is not there. */
	MUST(seen == unread || tx->broken == VMLOOP_RING_MOVE);
}

/* What holds of our private state whatever the peer did. */
static void check_state(const struct vmloop_ring_tx *tx_before,
			const struct vmloop_ring_rx *rx_before)
{
	MUST(tx->head - tx->tail <= tx->size + tx->old_size);
	MUST(tx->published - tx->tail <= tx->head - tx->tail);
	MUST(tx->reserved <= tx->size / 2);
	MUST(tx->head % tx->grain == 0 && tx->tail % tx->grain == 0);
	MUST(tx->data >= ours_tx.data && tx->data + tx->size <= ours_tx.data + AREA);
	MUST(rx->tail - rx->published <= 2 * AREA);
	MUST(rx->head - rx->published <= 2 * AREA);
	MUST(rx->taken <= rx->size / 4);
	MUST(rx->head % rx->grain == 0 && rx->tail % rx->grain == 0);
	MUST(rx->data >= ours_rx.data && rx->data + rx->size <= ours_rx.data + AREA);
	MUST(rx->moves - rx_before->moves <= 1);
	if (tx_before->broken) {
		MUST(tx->broken);
		MUST(tx->published == tx_before->published && tx->tail == tx_before->tail);
	}
	if (rx_before->broken) {
		MUST(rx->broken);
		MUST(rx->published == rx_before->published && rx->head == rx_before->head);
	}
}

/* One of the calls that only one of the two kinds of rings has. */
static void call_of_kind(u32 what)
{
	bool said;

	if (tx->grain == VMLOOP_RING_BYTES) {
		switch (what) {
		case 0:
		case 1:
			call_space();
			break;
		case 3:
			said = vmloop_ring_wait_space(tx, next() | (next() & 31U) << 8);
			MUST(!said || !tx->broken);
			break;
		default:
			call_bytes();
		}
		return;
	}
	switch (what) {
	case 0:
		call_reserve();
		break;
	case 1:
		call_reserve();
		vmloop_ring_commit(tx);
		break;
	case 3:
		said = vmloop_ring_wait_room(tx, next() | (next() & 7U) << 8);
		MUST(!said || !tx->broken);
		break;
	case 5:
		call_peek();
		break;
	default:
		call_peek();
		vmloop_ring_release(rx);
	}
}

static bool step(void)
{
	struct vmloop_ring_tx tx_before = *tx;
	struct vmloop_ring_rx rx_before = *rx;
	u8 bytes[8];
	u32 length;
	u8 *where;
	bool said;
	u32 what;

	if (!left)
		return false;
	turns = 0;
	what = next() & 31;
	/* Inputs from before there were moves mean nearly what they meant. */
	if (what > 17)
		what &= 15;
	switch (what) {
	case 0:
	case 1:
	case 3:
	case 5:
	case 6:
		call_of_kind(what);
		break;
	case 2:
		said = vmloop_ring_publish(tx);
		MUST(!said || !tx_before.broken);
		break;
	case 4:
		call_account();
		said = vmloop_ring_drained(tx);
		MUST(said || !tx->broken);
		said = vmloop_ring_wait_read(tx, tx->published);
		MUST(!said || !tx->broken);
		break;
	case 7:
		said = vmloop_ring_consume_publish(rx);
		MUST(!said || !rx_before.broken);
		break;
	case 8:
		said = vmloop_ring_sleep(rx);
		MUST(!said || !rx->broken);
		said = vmloop_ring_wait_bytes(rx, rx->head - rx->tail + 1);
		MUST(!said || !rx->broken);
		break;
	case 9:
		said = vmloop_ring_ready(rx);
		MUST(said || !rx->broken);
		if (vmloop_ring_moved(rx))
			vmloop_ring_watch(rx);
		break;
	case 10:
	case 11:
		length = choose_write(&where, bytes);
		memcpy(where, bytes, length);
		break;
	case 12:
	case 13:
		ambush.at = next() % 12 + 1;
		ambush.length = choose_write(&ambush.where, ambush.bytes);
		break;
	case 14:
		if (rx->grain == VMLOOP_RING_BYTES)
			peer_rx.producer->tx_head = rx->head + next();
		else
			honest_record();
		break;
	case 16:
		call_move();
		break;
	case 17:
		say_moves();
		break;
	default: /* an honest consumer: everything is read */
		peer_tx.consumer->rx_tail = tx->published;
	}
	check_state(&tx_before, &rx_before);
	return true;
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	int out = shared_create(AREA);
	int in = shared_create(AREA);

	(void)argc;
	(void)argv;
	shared_map(&ours_tx, out, AREA, PRODUCER);
	shared_map(&ours_rx, in, AREA, CONSUMER);
	shared_map(&peer_tx, out, AREA, ADVERSARY);
	shared_map(&peer_rx, in, AREA, ADVERSARY);
	/* On the heap, where AddressSanitizer sees what is beside them. */
	tx = malloc(sizeof(*tx));
	rx = malloc(sizeof(*rx));
	return tx && rx ? 0 : -1;
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	static const u32 starts[] = { 0, 0U - RING, 0U - 64, RING - 32 };
	enum vmloop_ring_grain grain;
	u32 start;
	u8 first;

	input = data;
	left = size;
	turns = 0;
	ambush.length = 0;
	first = next();
	start = starts[first & 3];
	grain = first & 4 ? VMLOOP_RING_BYTES : VMLOOP_RING_RECORDS;
	if (grain == VMLOOP_RING_BYTES)
		start += first >> 3;
	memset(peer_tx.data, 0, AREA);
	memset(peer_rx.data, 0, AREA);
	memset(peer_tx.producer, 0, sizeof(struct vmloop_shm_lane));
	memset(peer_tx.consumer, 0, sizeof(struct vmloop_shm_lane));
	memset(peer_rx.producer, 0, sizeof(struct vmloop_shm_lane));
	memset(peer_rx.consumer, 0, sizeof(struct vmloop_shm_lane));
	MUST(!vmloop_ring_tx_init(tx, grain, ours_tx.data, RING, start, ours_tx.producer,
				  ours_tx.consumer));
	MUST(!vmloop_ring_rx_init(rx, grain, ours_rx.data, RING, start, ours_rx.consumer,
				  ours_rx.producer));
	vmloop_ring_follow(rx, ours_rx.data, AREA);
	/* As if both had been running for a while. */
	peer_tx.consumer->rx_tail = start;
	peer_rx.producer->tx_head = start;
	while (step())
		;
	return 0;
}
