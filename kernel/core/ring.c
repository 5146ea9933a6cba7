// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * ring.c - records or bytes in a ring; see ring.h for the rules.
 */
#include "ring.h"

#define HEADER_SIZE	((u32)sizeof(struct vmloop_shm_record))

/* Bytes that a record with @size bytes of payload takes in the ring. */
static u32 record_span(u32 size)
{
	return (HEADER_SIZE + size + VMLOOP_RECORD_ALIGN - 1) &
	       ~(VMLOOP_RECORD_ALIGN - 1U);
}

/*
 * Whether going from @old to @new passed @wake, that is, whether the byte
 * after @wake lies in the part just covered. The arithmetic of virtio's event
 * index (virtio 1.2, section 2.7.10), in 32 bits. A wild @wake costs whoever
 * wrote it a doorbell too many or too few.
 */
static bool passed(u32 wake, u32 new, u32 old)
{
	return (u32)(new - wake - 1) < (u32)(new - old);
}

/* Whether a position comes before another; they are less than 2^31 apart. */
static bool is_before(u32 position, u32 other)
{
	return (u32)(position - other) >= 1U << 31;
}

/* How many of @bytes from @position on lie in one piece, and where in the ring that is. */
static u32 piece(const u8 *data, u32 size, u32 position, u32 bytes, const void **at)
{
	u32 offset = position & (size - 1);

	*at = data + offset;
	return bytes < size - offset ? bytes : size - offset;
}

/* Headers are read and written as one word each, so they must not straddle. */
static bool ring_is_good(const void *data, u32 size, u32 grain, u32 start)
{
	return size >= VMLOOP_RING_MIN && size <= VMLOOP_RING_MAX &&
	       is_power_of_2(size) &&
	       (((unsigned long)data | start) & (grain - 1)) == 0;
}

/**
 * vmloop_ring_max_record() - largest payload that a ring can carry
 * @size: bytes of the ring
 *
 * A quarter of the ring, so that a record and the padding before it always
 * fit into an empty ring and a producer of large records never runs alone.
 *
 * Return: bytes.
 */
u32 vmloop_ring_max_record(u32 size)
{
	return size / 4 - HEADER_SIZE;
}

/**
 * vmloop_ring_tx_init() - begin to produce into an empty ring
 * @tx: what to initialise
 * @grain: what it carries
 * @data: the ring, aligned to @grain
 * @size: its bytes, a power of two from VMLOOP_RING_MIN to VMLOOP_RING_MAX
 * @start: the position to begin at, a multiple of @grain
 * @ours: our own lane in the shared region
 * @theirs: the other side's
 *
 * Return: 0, or -EINVAL for a size that is out of range, or what is unaligned.
 */
int vmloop_ring_tx_init(struct vmloop_ring_tx *tx, enum vmloop_ring_grain grain,
			void *data, u32 size, u32 start,
			struct vmloop_shm_lane *ours,
			const struct vmloop_shm_lane *theirs)
{
	if (!ring_is_good(data, size, grain, start))
		return -EINVAL;

	*tx = (struct vmloop_ring_tx){
		.data = data,
		.size = size,
		.grain = grain,
		.head = start,
		.published = start,
		.tail = start,
		.ours = ours,
		.theirs = theirs,
	};
	ring_store_once(&ours->tx_wake, start - 1);
	ring_store_once(&ours->tx_moves, 0);
	ring_store_once(&ours->tx_head, start);
	return 0;
}

/**
 * vmloop_ring_rx_init() - begin to consume from an empty ring
 * @rx: what to initialise
 * @grain: what it carries
 * @data: the ring, aligned to @grain
 * @size: its bytes; checked against the region by the caller
 * @start: the position that the producer begins at, a multiple of @grain
 * @ours: our own lane in the shared region
 * @theirs: the other side's
 *
 * Return: 0, or -EINVAL for a size that is out of range, or what is unaligned.
 */
int vmloop_ring_rx_init(struct vmloop_ring_rx *rx, enum vmloop_ring_grain grain,
			const void *data, u32 size, u32 start,
			struct vmloop_shm_lane *ours,
			const struct vmloop_shm_lane *theirs)
{
	if (!ring_is_good(data, size, grain, start))
		return -EINVAL;

	*rx = (struct vmloop_ring_rx){
		.data = data,
		.size = size,
		.grain = grain,
		.tail = start,
		.published = start,
		.head = start,
		.ours = ours,
		.theirs = theirs,
	};
	ring_store_once(&ours->rx_wake, start);
	ring_store_once(&ours->rx_moves, 0);
	ring_store_once(&ours->rx_tail, start);
	return 0;
}

/**
 * vmloop_ring_follow() - the other side may move its ring
 * @rx: a ring that vmloop_ring_rx_init() has just begun
 * @area: the other side's data, to which its offsets count; aligned to a page of the layout
 * @size: its bytes
 */
void vmloop_ring_follow(struct vmloop_ring_rx *rx, const void *area, u64 size)
{
	rx->area = area;
	rx->area_size = size;
	rx->most = VMLOOP_RING_MAX;
}

/* Looks at the other side. False once the ring is broken. */
static bool tx_look(struct vmloop_ring_tx *tx)
{
	u32 tail;

	if (unlikely(tx->broken))
		return false;
	tail = ring_load_acquire(&tx->theirs->rx_tail);	/* pairs with (B) */
	/* It may only have moved forward, and not past what we published. */
	if (unlikely(tail - tx->tail > tx->published - tx->tail ||
		     tail & (tx->grain - 1))) {
		tx->broken = VMLOOP_RING_TAIL;
		return false;
	}
	tx->tail = tail;
	if (tx->straddles && !is_before(tail, tx->moved_at))
		tx->straddles = false;
	return true;
}

/* Free bytes as far as is known. What is left in the ring before takes none of this one. */
static u32 tx_free(const struct vmloop_ring_tx *tx)
{
	u32 from = unlikely(tx->straddles) ? tx->moved_at : tx->tail;

	return tx->size - (tx->head - from);
}

/* Free bytes; looks at the other side again if there seem to be under @want. */
static u32 tx_room(struct vmloop_ring_tx *tx, u32 want)
{
	u32 room = tx_free(tx);

	if (room >= want)
		return room;
	return tx_look(tx) ? tx_free(tx) : 0;
}

/* Bytes that a record takes at the current head, padding before it included. */
static u32 tx_span(const struct vmloop_ring_tx *tx, u32 size)
{
	u32 to_end = tx->size - (tx->head & (tx->size - 1));
	u32 span = record_span(size);

	return span <= to_end ? span : to_end + span;
}

/* One store, as vmloop_ring_peek() is one load. */
static void write_header(struct vmloop_ring_tx *tx, u32 position, u32 size,
			 u16 type, u16 info)
{
	u64 word = size | (u64)type << 32 | (u64)info << 48;

	ring_store_once((u64 *)(tx->data + (position & (tx->size - 1))), word);
}

/**
 * vmloop_ring_reserve() - make room for one record
 * @tx: the ring
 * @size: bytes of payload
 * @type: what it is
 * @info: more about it
 * @payload: where to write the payload; set on success only
 *
 * Nothing is visible to the other side before vmloop_ring_publish(). A
 * reservation that is not committed is forgotten by the next one.
 *
 * Return: 0; -EAGAIN while there is no room; -EMSGSIZE for a record that can
 * never fit; -EPROTO once the ring is broken.
 */
int vmloop_ring_reserve(struct vmloop_ring_tx *tx, u32 size, u16 type, u16 info,
			void **payload)
{
	u32 position = tx->head;
	u32 span, to_end;

	if (unlikely(tx->broken))
		return -EPROTO;
	if (unlikely(size > vmloop_ring_max_record(tx->size)))
		return -EMSGSIZE;

	span = tx_span(tx, size);
	if (tx_room(tx, span) < span)
		return tx->broken ? -EPROTO : -EAGAIN;

	to_end = tx->size - (position & (tx->size - 1));
	if (span > to_end) {
		write_header(tx, position, to_end - HEADER_SIZE,
			     VMLOOP_RECORD_PAD, 0);
		position += to_end;
	}
	write_header(tx, position, size, type, info);
	tx->reserved = span;
	*payload = tx->data + (position & (tx->size - 1)) + HEADER_SIZE;
	return 0;
}

/**
 * vmloop_ring_commit() - the reserved record is complete
 * @tx: the ring
 */
void vmloop_ring_commit(struct vmloop_ring_tx *tx)
{
	ring_store_once(&tx->head, tx->head + tx->reserved);
	tx->reserved = 0;
}

/**
 * vmloop_ring_space() - where the next bytes go
 * @tx: a ring of bytes
 * @want: bytes that the caller has: the other side is asked for its position
 *	only where there seems to be room for less
 * @at: set to where to write
 *
 * Nothing is visible to the other side before vmloop_ring_publish().
 *
 * Return: how many bytes may be written there: up to the end of the ring, so a
 * second call may have more; 0 while there is no room, and once it is broken.
 */
u32 vmloop_ring_space(struct vmloop_ring_tx *tx, u32 want, void **at)
{
	u32 offset = tx->head & (tx->size - 1);
	u32 to_end = tx->size - offset;
	u32 room;

	if (unlikely(tx->broken))
		return 0;
	room = tx_room(tx, want);
	*at = tx->data + offset;
	return room < to_end ? room : to_end;
}

/**
 * vmloop_ring_add() - the next bytes are written
 * @tx: a ring of bytes
 * @bytes: no more than vmloop_ring_space() has just said
 */
void vmloop_ring_add(struct vmloop_ring_tx *tx, u32 bytes)
{
	ring_store_once(&tx->head, tx->head + bytes);
}

/**
 * vmloop_ring_publish() - show all that was committed or added to the other side
 * @tx: the ring
 *
 * Return: whether the other side wants a doorbell.
 */
bool vmloop_ring_publish(struct vmloop_ring_tx *tx)
{
	u32 old = tx->published;

	if (tx->head == old || unlikely(tx->broken))
		return false;

	tx->published = tx->head;
	ring_store_release(&tx->ours->tx_head, tx->head);	/* (A) */
	ring_mb();						/* (C) */
	return passed(ring_load_once(&tx->theirs->rx_wake), tx->head, old);
}

/* Asks for a doorbell when there are @want bytes of room; false if there are. */
static bool tx_wait(struct vmloop_ring_tx *tx, u32 want)
{
	/* Room is @want once the tail reaches head + want - size. */
	ring_store_once(&tx->ours->tx_wake, tx->head + want - tx->size - 1);
	ring_mb();						/* (D) */
	return tx_room(tx, want) < want && !tx->broken;
}

/**
 * vmloop_ring_wait_room() - ask for a doorbell when a record fits again
 * @tx: a ring of records
 * @size: bytes of payload of the record that did not fit
 *
 * Asks for a quarter of the ring at least, so that a full ring costs one
 * doorbell per quarter, not one per record. What was committed must have been
 * published: the other side cannot make room by reading what it does not see.
 *
 * Return: true if the caller may wait for the doorbell; false if there is
 * room already (or never will be, or the ring is broken) and the caller must
 * try again, which tells.
 */
bool vmloop_ring_wait_room(struct vmloop_ring_tx *tx, u32 size)
{
	u32 want;

	if (unlikely(size > vmloop_ring_max_record(tx->size)))
		return false;

	want = tx_span(tx, size);
	if (want < tx->size / 4)
		want = tx->size / 4;
	return tx_wait(tx, want);
}

/**
 * vmloop_ring_wait_space() - ask for a doorbell when there is room for bytes
 * @tx: a ring of bytes
 * @want: how many there must be room for; a quarter of the ring if less, all of
 *	it if more
 *
 * What was added must have been published, as for vmloop_ring_wait_room(). While
 * this and what the other side asks vmloop_ring_wait_bytes() for are together no
 * more than the ring, the two never wait for each other.
 *
 * Return: true if the caller may wait for the doorbell; false if there is
 * room already, or the ring is broken.
 */
bool vmloop_ring_wait_space(struct vmloop_ring_tx *tx, u32 want)
{
	if (want < tx->size / 4)
		want = tx->size / 4;
	if (want > tx->size)
		want = tx->size;
	return tx_wait(tx, want);
}

/**
 * vmloop_ring_wait_space_beside() - as vmloop_ring_wait_space(), beside the producer
 * @tx: a ring of bytes
 *
 * For whoever waits for a quarter of the ring, and is not the producer. What the
 * producer asks for meanwhile may be replaced by this, and the other way round: so the
 * doorbell may come early. Whoever waits looks, and asks again. What is left in the ring
 * before the last move counts as if it were in this one. Changes nothing of the producer's.
 *
 * Return: true if the caller may wait for the doorbell; false if there is room.
 */
bool vmloop_ring_wait_space_beside(struct vmloop_ring_tx *tx)
{
	u32 size = ring_load_once(&tx->size);
	u32 head = ring_load_once(&tx->head);
	u32 used = size - size / 4;

	ring_store_once(&tx->ours->tx_wake, head - used - 1);
	ring_mb();						/* (D) */
	return head - ring_load_once(&tx->theirs->rx_tail) > used;
}

/**
 * vmloop_ring_has_read() - whether the other side has consumed up to a position
 * @tx: the ring
 * @position: a value that @tx->head had, no more than 2^31 bytes ago
 *
 * Return: true also for a broken ring: there is nothing to wait for.
 */
bool vmloop_ring_has_read(struct vmloop_ring_tx *tx, u32 position)
{
	if (is_before(tx->tail, position))
		tx_look(tx);
	return !is_before(tx->tail, position) || tx->broken;
}

/**
 * vmloop_ring_wait_read() - ask for a doorbell when the other side has consumed
 * up to a position
 * @tx: the ring
 * @position: as for vmloop_ring_has_read(), and published
 *
 * There is one doorbell to ask for: this replaces what vmloop_ring_wait_room()
 * asked for, and the other way round.
 *
 * Return: true if the caller may wait for the doorbell; false if the other
 * side has already, or the ring is broken.
 */
bool vmloop_ring_wait_read(struct vmloop_ring_tx *tx, u32 position)
{
	ring_store_once(&tx->ours->tx_wake, position - 1);
	ring_mb();						/* (D) */
	return !vmloop_ring_has_read(tx, position);
}

/**
 * vmloop_ring_drained() - whether the other side has consumed everything
 * @tx: the ring
 *
 * Return: true also for a broken ring: there is nothing to wait for.
 */
bool vmloop_ring_drained(struct vmloop_ring_tx *tx)
{
	return tx->head == tx->tail || !tx_look(tx) || tx->head == tx->tail;
}

/**
 * vmloop_ring_account() - how much the other side has not published as read
 * @tx: the ring
 *
 * For the end of a lane. While the other side still reads this is what it had
 * not read a moment ago; once it has stopped, and said so, or is gone, it is
 * exact, to the byte. A ring that is broken counts up to where it was believed. So it is if
 * the other side has let go of a ring that it has not read.
 *
 * Return: bytes, what was not published included.
 */
u32 vmloop_ring_account(struct vmloop_ring_tx *tx)
{
	if (tx->head != tx->tail)
		tx_look(tx);
	if (tx->straddles && !ring_load_once(&tx->old) && !tx->broken)
		tx->broken = VMLOOP_RING_MOVE;
	return tx->head - tx->tail;
}

/**
 * vmloop_ring_unread() - the bytes that vmloop_ring_account() has counted
 * @tx: a ring of bytes
 * @skip: bytes to leave out, from the oldest on
 * @at: set to where they are. The other side may be able to write there: what
 *	is read here is no more than what it might have said itself
 *
 * Return: how many there are at @at: up to the end of the ring, so a second call
 * may have more; 0 behind the last, and where what is unread is not there any more.
 */
u32 vmloop_ring_unread(const struct vmloop_ring_tx *tx, u32 skip, const void **at)
{
	u32 unread = tx->head - tx->tail;
	u32 position = tx->tail + skip;
	const u8 *data = tx->data;
	u32 size = tx->size, bytes;

	if (skip >= unread)
		return 0;
	bytes = unread - skip;
	if (tx->straddles && is_before(position, tx->moved_at)) {
		data = ring_load_once(&tx->old);
		size = tx->old_size;
		if (!data)
			return 0;
		if (bytes > tx->moved_at - position)
			bytes = tx->moved_at - position;
	}
	return piece(data, size, position, bytes, at);
}

/**
 * vmloop_ring_has_moved() - whether the other side needs nothing of the ring before
 * @tx: the ring
 *
 * It has read all of that, if there ever was one: another move may follow, and after
 * vmloop_ring_forget() the memory may be used for something else. May be called beside the
 * producer.
 */
bool vmloop_ring_has_moved(const struct vmloop_ring_tx *tx)
{
	return ring_load_acquire(&tx->theirs->rx_moves) ==	/* pairs with (F) */
	       ring_load_once(&tx->moves);
}

/**
 * vmloop_ring_forget() - the memory of the ring before is somebody else's
 * @tx: a ring of which vmloop_ring_has_moved() has said so
 *
 * If the other side has not read what was there after all, nobody can say what it was. May be
 * called beside the producer, but not beside vmloop_ring_move(), vmloop_ring_account() and
 * vmloop_ring_unread().
 */
void vmloop_ring_forget(struct vmloop_ring_tx *tx)
{
	ring_store_once(&tx->old, NULL);
}

/**
 * vmloop_ring_move() - go on in another ring
 * @tx: the ring; nothing is reserved. The other side follows moves
 * @data: the new ring, aligned to the grain
 * @size: its bytes, a power of two
 * @offset: where it begins in this side's data, a multiple of the layout's pages
 *
 * What was written stays where it is until the other side has read it. There is room at
 * once; whoever waits for room has to be told.
 *
 * Return: 0; -EBUSY while the other side needs the ring before this one; -EINVAL for a size
 * that is out of range, or what is unaligned; -EPROTO once the ring is broken.
 */
int vmloop_ring_move(struct vmloop_ring_tx *tx, void *data, u32 size, u64 offset)
{
	if (unlikely(tx->broken))
		return -EPROTO;
	if (!ring_is_good(data, size, tx->grain, tx->head))
		return -EINVAL;
	if (!vmloop_ring_has_moved(tx))
		return -EBUSY;
	if (tx->straddles && (!tx_look(tx) || tx->straddles))
		return tx->broken ? -EPROTO : -EBUSY;

	ring_store_once(&tx->old, tx->data);
	ring_store_once(&tx->old_size, tx->size);
	tx->moved_at = tx->head;
	tx->straddles = tx->head != tx->tail;
	tx->data = data;
	ring_store_once(&tx->size, size);
	ring_store_once(&tx->ours->moved_at, tx->head);
	ring_store_once(&tx->ours->moved_size, size);
	ring_store_once(&tx->ours->moved_offset, offset);
	ring_store_once(&tx->moves, tx->moves + 1);
	ring_store_release(&tx->ours->tx_moves, tx->moves);	/* (E) */
	return 0;
}

/* Looks whether the other side has moved its ring. False if it cannot have, like that. */
static bool see_move(struct vmloop_ring_rx *rx)
{
	u32 moves = ring_load_acquire(&rx->theirs->tx_moves);	/* pairs with (E) */
	u32 at, size;
	u64 offset;

	if (moves == rx->moves)
		return true;
	at = ring_load_once(&rx->theirs->moved_at);
	size = ring_load_once(&rx->theirs->moved_size);
	offset = ring_load_once(&rx->theirs->moved_offset);
	/* Behind what was seen before, and within what the old ring can have taken. */
	if (moves - rx->moves != 1 ||
	    at - rx->head > rx->published + rx->size - rx->head ||
	    offset & (VMLOOP_SHM_PAGE - 1) || offset > rx->area_size ||
	    size > rx->area_size - offset || size > rx->most ||
	    !ring_is_good(rx->area + offset, size, rx->grain, at))
		return false;
	rx->moved_at = at;
	rx->next = rx->area + offset;
	rx->next_size = size;
	rx->move = VMLOOP_RING_AHEAD;
	return true;
}

/* What the other side's head cannot have passed: it has had no more room. */
static u32 rx_limit(const struct vmloop_ring_rx *rx)
{
	if (unlikely(rx->move == VMLOOP_RING_AHEAD))
		return rx->moved_at + rx->next_size;
	if (unlikely(rx->move == VMLOOP_RING_BEHIND))
		return rx->moved_at + rx->size;
	return rx->published + rx->size;
}

/* What comes next is in the new ring. */
static void rx_cross(struct vmloop_ring_rx *rx)
{
	if (rx->move != VMLOOP_RING_AHEAD || is_before(rx->tail, rx->moved_at))
		return;
	rx->data = rx->next;
	ring_store_once(&rx->size, rx->next_size);
	rx->move = VMLOOP_RING_BEHIND;
}

/* Bytes to read; looks at the other side again if there seem to be under @want. */
static u32 rx_available(struct vmloop_ring_rx *rx, u32 want)
{
	u32 available = rx->head - rx->tail;
	u32 head;

	if (available >= want)
		return available;
	if (unlikely(rx->broken))
		return 0;

	head = ring_load_acquire(&rx->theirs->tx_head);	/* pairs with (A) */
	/* After the head: one that is in a new ring is seen with its move. */
	if (rx->area && rx->move == VMLOOP_RING_STAYS && unlikely(!see_move(rx))) {
		rx->broken = VMLOOP_RING_MOVE;
		return 0;
	}
	/*
	 * It may only have moved forward, and what we have not given back yet
	 * cannot have been written again.
	 */
	if (unlikely(head - rx->head > rx_limit(rx) - rx->head ||
		     head & (rx->grain - 1))) {
		rx->broken = VMLOOP_RING_HEAD;
		return 0;
	}
	rx->head = head;
	return head - rx->tail;
}

/**
 * vmloop_ring_peek() - look at the next record
 * @rx: the ring
 * @record: set to a private copy of its header, checked
 * @payload: set to its payload, which the other side may change under our
 *	hands: copy it, then check it, then use it
 *
 * A record that was not released is looked at anew, and may have become
 * another one.
 *
 * Return: 1 for a record; 0 for none; -EPROTO once the ring is broken.
 */
int vmloop_ring_peek(struct vmloop_ring_rx *rx, struct vmloop_shm_record *record,
		     const void **payload)
{
	u32 available, to_end, span, offset;
	enum vmloop_ring_fault fault;
	u64 word;

	/* What was looked at before and not released is not what is there now. */
	rx->taken = 0;
	if (unlikely(rx->broken))
		return -EPROTO;

	/* Padding is followed by a record or by nothing; or by a move, and padding once more. */
	for (;;) {
		available = rx_available(rx, 1);
		if (!available)
			return rx->broken ? -EPROTO : 0;

		rx_cross(rx);
		/* No record lies in two rings. */
		if (unlikely(rx->move == VMLOOP_RING_AHEAD) &&
		    available > rx->moved_at - rx->tail)
			available = rx->moved_at - rx->tail;
		offset = rx->tail & (rx->size - 1);
		to_end = rx->size - offset;

		/* One load for the whole header, so that it cannot change. */
		word = ring_load_once((const u64 *)(rx->data + offset));
		record->size = (u32)word;
		record->type = (u16)(word >> 32);
		record->info = (u16)(word >> 48);

		/* Nothing larger is ever produced; below, no sum overflows. */
		fault = VMLOOP_RING_SIZE;
		if (unlikely(record->size > vmloop_ring_max_record(rx->size)))
			goto broken;
		fault = VMLOOP_RING_SPAN;
		span = record_span(record->size);
		if (unlikely(span > to_end || span > available))
			goto broken;

		if (record->type != VMLOOP_RECORD_PAD)
			break;
		/* Padding goes to the end; no larger than a record, it begins late. */
		fault = VMLOOP_RING_PAD;
		if (unlikely(span != to_end))
			goto broken;
		ring_store_once(&rx->tail, rx->tail + span);
	}

	rx->taken = span;
	*payload = rx->data + offset + HEADER_SIZE;
	return 1;

broken:
	rx->broken = fault;
	return -EPROTO;
}

/**
 * vmloop_ring_release() - done with the record that was peeked at
 * @rx: the ring
 *
 * Its bytes stay until vmloop_ring_consume_publish().
 */
void vmloop_ring_release(struct vmloop_ring_rx *rx)
{
	ring_store_once(&rx->tail, rx->tail + rx->taken);
	rx->taken = 0;
}

/**
 * vmloop_ring_bytes() - look at the next bytes
 * @rx: a ring of bytes
 * @skip: bytes to leave out: what lies behind the end of the ring is looked at
 *	without taking what lies before
 * @want: bytes that the caller can use: the other side is asked for its position
 *	only where there seem to be less
 * @at: set to where they are, which the other side may change under our hands
 *
 * Return: how many there are at @at: up to the end of the ring, so a second call
 * may have more; 0 for none, and once the ring is broken.
 */
u32 vmloop_ring_bytes(struct vmloop_ring_rx *rx, u32 skip, u32 want, const void **at)
{
	u32 position = rx->tail + skip;
	u32 available, size, bytes;
	const u8 *data;

	if (unlikely(rx->broken))
		return 0;
	if (want > rx->size)
		want = rx->size;	/* no sum overflows; more come with the next call */
	available = rx_available(rx, skip + want);
	if (available <= skip)
		return 0;
	bytes = available - skip;
	data = rx->data;
	size = rx->size;
	if (unlikely(rx->move == VMLOOP_RING_AHEAD)) {
		if (!is_before(position, rx->moved_at)) {
			data = rx->next;
			size = rx->next_size;
		} else if (bytes > rx->moved_at - position) {
			bytes = rx->moved_at - position;
		}
	}
	return piece(data, size, position, bytes, at);
}

/**
 * vmloop_ring_take() - done with the next bytes
 * @rx: a ring of bytes
 * @bytes: no more than vmloop_ring_bytes() has said that there are
 *
 * They stay until vmloop_ring_consume_publish().
 */
void vmloop_ring_take(struct vmloop_ring_rx *rx, u32 bytes)
{
	ring_store_once(&rx->tail, rx->tail + bytes);
}

/**
 * vmloop_ring_consume_publish() - give what was released or taken back
 * @rx: the ring
 *
 * Return: whether the other side waits for room and wants a doorbell.
 */
bool vmloop_ring_consume_publish(struct vmloop_ring_rx *rx)
{
	u32 old = rx->published;

	rx_cross(rx);
	if ((rx->tail == old && rx->move != VMLOOP_RING_BEHIND) || unlikely(rx->broken))
		return false;

	rx->published = rx->tail;
	ring_store_release(&rx->ours->rx_tail, rx->tail);	/* (B) */
	if (unlikely(rx->move == VMLOOP_RING_BEHIND)) {
		rx->move = VMLOOP_RING_STAYS;
		ring_store_release(&rx->ours->rx_moves, ++rx->moves);	/* (F) */
	}
	ring_mb();						/* (D) */
	return passed(ring_load_once(&rx->theirs->tx_wake), rx->tail, old);
}

/**
 * vmloop_ring_wait_bytes() - ask for a doorbell when there are bytes to read
 * @rx: a ring of bytes
 * @bytes: how many there must be, those included that are there already; at
 *	least 1, and no more than the ring holds
 *
 * What was taken must have been published: the other side may be waiting for
 * that room.
 *
 * Return: true if the caller may wait for the doorbell; false if there are so
 * many already, or the ring is broken.
 */
bool vmloop_ring_wait_bytes(struct vmloop_ring_rx *rx, u32 bytes)
{
	ring_store_once(&rx->ours->rx_wake, rx->tail + bytes - 1);
	ring_mb();						/* (C) */
	return rx_available(rx, bytes) < bytes && !rx->broken;
}

/**
 * vmloop_ring_sleep() - ask for a doorbell at the next record or byte
 * @rx: the ring, read up to its end
 *
 * What was released or taken must have been published: the other side may be
 * waiting for that room.
 *
 * Return: true if the caller may sleep; false if there is something to read
 * already (or the ring is broken) and the caller must go on.
 */
bool vmloop_ring_sleep(struct vmloop_ring_rx *rx)
{
	return vmloop_ring_wait_bytes(rx, 1);
}

/**
 * vmloop_ring_seen() - how far the other side says that it has come
 * @rx: the ring
 *
 * A hint: not checked, only to be compared with what it was. May be called beside the
 * consumer.
 */
u32 vmloop_ring_seen(const struct vmloop_ring_rx *rx)
{
	return ring_load_once(&rx->theirs->tx_head);
}

/**
 * vmloop_ring_wait_after() - ask for a doorbell at what follows what was seen
 * @rx: the ring
 * @seen: by vmloop_ring_seen()
 *
 * For whoever is to be told of each arrival, read or not. May be called beside the
 * consumer, if one lock keeps this and all that it asks for apart: the later of the two
 * counts. Changes nothing of the consumer's.
 *
 * Return: true if nothing has followed yet; false if it has, and may not be rung for.
 */
bool vmloop_ring_wait_after(struct vmloop_ring_rx *rx, u32 seen)
{
	ring_store_once(&rx->ours->rx_wake, seen);
	ring_mb();						/* (C) */
	return vmloop_ring_seen(rx) == seen;
}

/**
 * vmloop_ring_ready() - whether there is something to read, or to report
 * @rx: the ring
 *
 * Cheap, for a loop that polls.
 */
bool vmloop_ring_ready(struct vmloop_ring_rx *rx)
{
	return rx_available(rx, 1) != 0 || rx->broken;
}

/**
 * vmloop_ring_watch() - no doorbell, please: somebody looks by himself
 * @rx: the ring
 *
 * Takes back what vmloop_ring_sleep() asked for. May be called beside the
 * consumer: if both write at once there is a doorbell too many, or one too
 * few, so whoever calls this must let the consumer sleep again afterwards.
 */
void vmloop_ring_watch(struct vmloop_ring_rx *rx)
{
	/* A position in the past is passed only after 4 GiB more. */
	ring_store_once(&rx->ours->rx_wake,
			ring_load_once(&rx->tail) - VMLOOP_RECORD_ALIGN);
}

/**
 * vmloop_ring_moved() - whether there may be something to read
 * @rx: the ring
 *
 * A hint that changes nothing, for a watcher beside the consumer.
 */
bool vmloop_ring_moved(const struct vmloop_ring_rx *rx)
{
	return vmloop_ring_seen(rx) != ring_load_once(&rx->tail);
}
