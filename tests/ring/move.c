// SPDX-License-Identifier: GPL-2.0
/*
 * move.c - a ring that moves: every rule of it, in one thread.
 *
 * The producer's data has room for rings of several sizes, each in a place of its own.
 */
#include "shared.h"
#include "tap.h"

#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))
#define HEADER		((u32)sizeof(struct vmloop_shm_record))
#define AREA		(1U << 16)

static struct vmloop_ring_tx tx;
static struct vmloop_ring_rx rx;
static struct view producer;
static struct view consumer;
static struct view adversary;
static u32 start;

/* Rings that do not overlap. The first is where all begin. */
static const struct place {
	u32 offset;
	u32 size;
} places[] = { { 4096, 4096 }, { 16384, 16384 }, { 8192, 8192 }, { 32768, 4096 } };

static int move_to(const struct place *to)
{
	return vmloop_ring_move(&tx, producer.data + to->offset, to->size, to->offset);
}

static void set_up(enum vmloop_ring_grain grain, u32 position)
{
	static bool mapped;
	int fd = shared_create(AREA);

	if (mapped) {
		shared_unmap(&producer);
		shared_unmap(&consumer);
		shared_unmap(&adversary);
	}
	mapped = true;
	start = position;
	shared_map(&producer, fd, AREA, PRODUCER);
	shared_map(&consumer, fd, AREA, CONSUMER);
	shared_map(&adversary, fd, AREA, ADVERSARY);
	close(fd);
	/* Of the lane before. */
	adversary.producer->tx_moves = 7;
	adversary.consumer->rx_moves = 7;
	CHECK(!vmloop_ring_tx_init(&tx, grain, producer.data + places[0].offset, places[0].size,
				   start, producer.producer, producer.consumer));
	CHECK(!vmloop_ring_rx_init(&rx, grain, consumer.data + places[0].offset, places[0].size,
				   start, consumer.consumer, consumer.producer));
	vmloop_ring_follow(&rx, consumer.data, AREA);
	tap_note("start %#x", start);
}

/* Runs @body from several positions, among them some from which 32 bits overflow. */
static void everywhere(enum vmloop_ring_grain grain, void (*body)(void))
{
	static const u32 starts[] = {
		0, 16, 4096 - 16, (1U << 31) - 48, 0U - 16, 0U - 2048, 0U - 12288,
	};

	for (size_t i = 0; i < COUNT(starts); i++) {
		set_up(grain, starts[i] + (grain == VMLOOP_RING_BYTES ? i : 0));
		body();
	}
}

static u8 byte_at(u32 position)
{
	return (u8)((position / 251 * 2654435761U) >> 24) ^ (u8)(position % 251 * 37);
}

static u32 write_bytes(u32 bytes)
{
	u32 written = 0, n;

	while (written < bytes) {
		void *where = NULL;
		u8 *at;

		n = vmloop_ring_space(&tx, bytes - written, &where);
		at = where;
		if (!n)
			break;
		CHECK(at >= tx.data && at + n <= tx.data + tx.size);
		if (n > bytes - written)
			n = bytes - written;
		for (u32 i = 0; i < n; i++)
			at[i] = byte_at(tx.head + i);
		vmloop_ring_add(&tx, n);
		written += n;
	}
	return written;
}

/* Looks at up to @bytes from @skip on, and checks them; how many there are. */
static u32 look_bytes(u32 skip, u32 bytes)
{
	u32 seen = 0, n;

	while (seen < bytes) {
		const void *where = NULL;
		const u8 *at;

		n = vmloop_ring_bytes(&rx, skip + seen, bytes - seen, &where);
		at = where;
		if (!n)
			break;
		CHECK(at >= consumer.data && at + n <= consumer.data + AREA);
		if (n > bytes - seen)
			n = bytes - seen;
		for (u32 i = 0; i < n; i++)
			CHECK(at[i] == byte_at(rx.tail + skip + seen + i));
		seen += n;
	}
	return seen;
}

static u32 read_bytes(u32 bytes)
{
	u32 seen = look_bytes(0, bytes);

	vmloop_ring_take(&rx, seen);
	return seen;
}

/* All that is unread, by the producer's own account, and what it is. */
static void check_unread(void)
{
	u32 unread = vmloop_ring_account(&tx);
	u32 seen = 0, n;

	for (const void *where; (n = vmloop_ring_unread(&tx, seen, &where)); seen += n)
		for (u32 i = 0; i < n; i++)
			CHECK(((const u8 *)where)[i] == byte_at(tx.tail + seen + i));
	CHECK(seen == unread);
}

static void body_bytes(void)
{
	u32 produced = 0, consumed = 0, moves = 0, n = start + 1;

	while (moves < 60) {
		n = n * 1664525 + 1013904223;
		if (vmloop_ring_has_moved(&tx) && n >> 30 == 0) {
			/* Not into the one that it is in. */
			const struct place *to = &places[(moves + 1) % COUNT(places)];
			int err = move_to(to);

			CHECK(!err || err == -EBUSY);
			moves += !err;
		}
		produced += write_bytes(n >> 19);
		check_unread();
		if (n & 1 << 8)
			vmloop_ring_publish(&tx);
		n = n * 1664525 + 1013904223;
		look_bytes(n >> 22, 512);
		consumed += read_bytes(n >> 19);
		CHECK(tx.head - start == produced && rx.tail - start == consumed);
		if (n & 1 << 8)
			vmloop_ring_consume_publish(&rx);
		check_unread();
		CHECK(!tx.broken && !rx.broken);
	}
	vmloop_ring_publish(&tx);
	while (consumed < produced) {
		n = read_bytes(AREA);
		CHECK(n);
		consumed += n;
	}
	vmloop_ring_consume_publish(&rx);
	CHECK(vmloop_ring_drained(&tx) && vmloop_ring_account(&tx) == 0);
	CHECK(rx.moves == moves && vmloop_ring_has_moved(&tx));
}

static void test_bytes(void)
{
	everywhere(VMLOOP_RING_BYTES, body_bytes);
}

/* Records of all sizes that the smallest ring takes. */
static void body_records(void)
{
	u32 most = vmloop_ring_max_record(places[0].size);
	u32 put = 0, got = 0, moves = 0, n = start + 1;
	u32 sizes[64];

	while (moves < 60) {
		n = n * 1664525 + 1013904223;
		if (vmloop_ring_has_moved(&tx) && n >> 30 == 0)
			moves += !move_to(&places[(moves + 1) % COUNT(places)]);
		for (u32 i = n >> 28; i && put - got < COUNT(sizes); i--) {
			u32 bytes = (n >> 8) % (most + 1);
			void *payload;

			if (vmloop_ring_reserve(&tx, bytes, 1, (u16)put, &payload))
				break;
			memset(payload, (u8)put, bytes);
			vmloop_ring_commit(&tx);
			sizes[put++ % COUNT(sizes)] = bytes;
			n = n * 1664525 + 1013904223;
		}
		vmloop_ring_publish(&tx);
		for (u32 i = n >> 27; i; i--) {
			struct vmloop_shm_record record;
			const void *payload;
			int err = vmloop_ring_peek(&rx, &record, &payload);

			CHECK(err >= 0);
			if (!err)
				break;
			CHECK(record.info == (u16)got && record.size == sizes[got % COUNT(sizes)]);
			for (u32 at = 0; at < record.size; at++)
				CHECK(((const u8 *)payload)[at] == (u8)got);
			vmloop_ring_release(&rx);
			got++;
		}
		vmloop_ring_consume_publish(&rx);
		CHECK(!tx.broken && !rx.broken);
	}
	CHECK(put > 200);
}

static void test_records(void)
{
	everywhere(VMLOOP_RING_RECORDS, body_records);
}

/* What is left in the ring before takes no room of the new one, and to the last byte. */
static void body_room(void)
{
	CHECK(write_bytes(AREA) == 4096);
	CHECK(move_to(&places[1]) == 0);
	CHECK(write_bytes(AREA) == 16384);
	vmloop_ring_publish(&tx);
	CHECK(!vmloop_ring_drained(&tx));
	CHECK(vmloop_ring_account(&tx) == 4096 + 16384);
	check_unread();
	CHECK(look_bytes(0, AREA) == 4096 + 16384);
	CHECK(look_bytes(4000, 200) == 200);
	CHECK(look_bytes(4096, 200) == 200);

	/* Room comes by the new ring's bytes alone. */
	CHECK(read_bytes(4096) == 4096);
	vmloop_ring_consume_publish(&rx);
	CHECK(write_bytes(1) == 0);
	CHECK(read_bytes(3) == 3);
	vmloop_ring_consume_publish(&rx);
	CHECK(write_bytes(AREA) == 3);
	vmloop_ring_publish(&tx);
	CHECK(read_bytes(AREA) == 16384);
	vmloop_ring_consume_publish(&rx);
	CHECK(vmloop_ring_drained(&tx));
	CHECK(!tx.broken && !rx.broken);
}

static void test_room(void)
{
	everywhere(VMLOOP_RING_BYTES, body_room);
}

/* Before the consumer has said that it needs the ring before no more there is no other move. */
static void body_one_at_a_time(void)
{
	CHECK(vmloop_ring_has_moved(&tx));
	CHECK(write_bytes(100) == 100);
	vmloop_ring_publish(&tx);
	CHECK(move_to(&places[1]) == 0);
	CHECK(!vmloop_ring_has_moved(&tx));
	CHECK(move_to(&places[2]) == -EBUSY);
	CHECK(write_bytes(1) == 1);
	vmloop_ring_publish(&tx);
	/* What is read is not given back yet, or not all is read. */
	CHECK(read_bytes(99) == 99);
	vmloop_ring_consume_publish(&rx);
	CHECK(look_bytes(0, 2) == 2);
	CHECK(!vmloop_ring_has_moved(&tx));
	CHECK(read_bytes(1) == 1);
	CHECK(!vmloop_ring_has_moved(&tx));
	CHECK(move_to(&places[2]) == -EBUSY);
	vmloop_ring_consume_publish(&rx);
	CHECK(vmloop_ring_has_moved(&tx));
	CHECK(read_bytes(1) == 1);
	CHECK(move_to(&places[2]) == 0);
	CHECK(move_to(&places[0]) == -EBUSY);
	/* Nor where all was read before, and the consumer has not seen that there is a move. */
	CHECK(write_bytes(1) == 1);
	vmloop_ring_publish(&tx);
	CHECK(read_bytes(1) == 1);
	vmloop_ring_consume_publish(&rx);
	CHECK(vmloop_ring_drained(&tx));
	CHECK(move_to(&places[0]) == 0);
	CHECK(move_to(&places[1]) == -EBUSY);
	CHECK(write_bytes(1) == 1);
	vmloop_ring_publish(&tx);
	CHECK(read_bytes(1) == 1);
	vmloop_ring_consume_publish(&rx);
	CHECK(move_to(&places[1]) == 0);
}

static void test_one_at_a_time(void)
{
	everywhere(VMLOOP_RING_BYTES, body_one_at_a_time);
}

/* A peer that says that it needs no more what it has not read. */
static void test_said_too_early(void)
{
	set_up(VMLOOP_RING_BYTES, 0);
	CHECK(write_bytes(100) == 100);
	CHECK(move_to(&places[1]) == 0);
	vmloop_ring_publish(&tx);
	adversary.consumer->rx_moves = 1;
	CHECK(vmloop_ring_has_moved(&tx));
	CHECK(move_to(&places[2]) == -EBUSY);
	CHECK(!tx.broken);
	adversary.consumer->rx_tail = 101;
	CHECK(move_to(&places[2]) == -EPROTO);
	CHECK(tx.broken == VMLOOP_RING_TAIL);
}

/* The memory of a ring that was let go of is not looked at any more, read or not. */
static void test_forgotten(void)
{
	static const u32 tails[] = { 0, 99, 100, 140 };
	const void *at;

	/* Of one that was empty nothing is missed. */
	set_up(VMLOOP_RING_BYTES, 0);
	CHECK(write_bytes(4096) == 4096);
	vmloop_ring_publish(&tx);
	CHECK(read_bytes(4096) == 4096);
	vmloop_ring_consume_publish(&rx);
	CHECK(vmloop_ring_drained(&tx));
	CHECK(move_to(&places[1]) == 0);
	CHECK(vmloop_ring_has_moved(&tx) || !vmloop_ring_ready(&rx));
	vmloop_ring_consume_publish(&rx);
	CHECK(vmloop_ring_has_moved(&tx));
	vmloop_ring_forget(&tx);
	CHECK(vmloop_ring_account(&tx) == 0 && !tx.broken);

	for (size_t i = 0; i < COUNT(tails); i++) {
		set_up(VMLOOP_RING_BYTES, 0U - 50);
		tap_note("%u are read", tails[i]);
		CHECK(write_bytes(100) == 100);
		CHECK(move_to(&places[1]) == 0);
		CHECK(write_bytes(50) == 50);
		vmloop_ring_publish(&tx);
		adversary.consumer->rx_tail = start + tails[i];
		adversary.consumer->rx_moves = 1;
		CHECK(vmloop_ring_has_moved(&tx));
		vmloop_ring_forget(&tx);
		/* It may say something else by now. */
		adversary.consumer->rx_moves = 0;
		CHECK(vmloop_ring_account(&tx) == 150 - tails[i]);
		CHECK(tx.broken == (tails[i] < 100 ? VMLOOP_RING_MOVE : VMLOOP_RING_GOOD));
		CHECK(!!vmloop_ring_unread(&tx, 0, &at) == (tails[i] >= 100));
		CHECK(vmloop_ring_unread(&tx, 150 - tails[i] - 1, &at) == 1);
		CHECK(*(const u8 *)at == byte_at(start + 149));
	}
}

static void test_what_is_refused(void)
{
	set_up(VMLOOP_RING_BYTES, 0);
	CHECK(vmloop_ring_move(&tx, producer.data, 4096 + 1, 0) == -EINVAL);
	CHECK(vmloop_ring_move(&tx, producer.data, 2048, 0) == -EINVAL);
	CHECK(vmloop_ring_has_moved(&tx) && tx.size == 4096);
	set_up(VMLOOP_RING_RECORDS, 0);
	CHECK(vmloop_ring_move(&tx, producer.data + 8, 4096, 0) == -EINVAL);
}

/* With the ring before unread, waiting for room is waiting for room in the new one. */
static void body_wait(void)
{
	CHECK(write_bytes(4096) == 4096);
	CHECK(move_to(&places[2]) == 0);
	CHECK(!vmloop_ring_wait_space(&tx, 1));
	CHECK(write_bytes(AREA) == 8192);
	vmloop_ring_publish(&tx);
	CHECK(vmloop_ring_wait_space(&tx, 1));
	CHECK(read_bytes(4096 + 2047) == 4096 + 2047);
	CHECK(!vmloop_ring_consume_publish(&rx));
	CHECK(vmloop_ring_wait_space(&tx, 1));
	CHECK(read_bytes(1) == 1);
	CHECK(vmloop_ring_consume_publish(&rx));
	CHECK(!vmloop_ring_wait_space(&tx, 1));
	CHECK(vmloop_ring_wait_read(&tx, tx.head));
	CHECK(read_bytes(AREA) == 8192 - 2048);
	CHECK(vmloop_ring_consume_publish(&rx));
	CHECK(!vmloop_ring_wait_read(&tx, tx.head));
}

static void test_wait(void)
{
	everywhere(VMLOOP_RING_BYTES, body_wait);
}

/* The consumer is rung for at the right byte, in whichever ring that is. */
static void body_bell(void)
{
	CHECK(vmloop_ring_wait_bytes(&rx, 3));
	CHECK(write_bytes(1) == 1);
	CHECK(!vmloop_ring_publish(&tx));
	CHECK(move_to(&places[1]) == 0);
	CHECK(write_bytes(1) == 1);
	CHECK(!vmloop_ring_publish(&tx));
	CHECK(vmloop_ring_wait_bytes(&rx, 3));
	CHECK(write_bytes(1) == 1);
	CHECK(vmloop_ring_publish(&tx));
	CHECK(!vmloop_ring_wait_bytes(&rx, 3));
	CHECK(read_bytes(3) == 3);
}

static void test_bell(void)
{
	everywhere(VMLOOP_RING_BYTES, body_bell);
}

/* One who does not follow reads on where it was. */
static void test_not_followed(void)
{
	set_up(VMLOOP_RING_BYTES, 0);
	rx.area = NULL;
	CHECK(write_bytes(4096) == 4096);
	vmloop_ring_publish(&tx);
	adversary.producer->tx_moves = 9;
	adversary.producer->moved_size = 1;
	CHECK(read_bytes(4096) == 4096);
	CHECK(!rx.broken && rx.size == 4096);
}

/* What the producer may say ----------------------------------------------- */

/*
 * 64 bytes are published and unread, 16 of them taken, none given back, when a move comes
 * at start + @at, and the head is start + @head.
 */
static const struct bad_move {
	const char *name;
	u32 moves;
	u32 at;
	u32 size;
	u64 offset;
	u32 head;
	enum vmloop_ring_fault fault;
} bad_moves[] = {
	{ "a move", 1, 64, 8192, 8192, 64 + 8192, VMLOOP_RING_GOOD },
	{ "later", 1, 4096, 8192, 8192, 128, VMLOOP_RING_GOOD },
	{ "to the end", 1, 64, 4096, AREA - 4096, 80, VMLOOP_RING_GOOD },
	{ "where it is", 1, 64, 4096, 4096, 80, VMLOOP_RING_GOOD },
	{ "two at once", 2, 64, 8192, 8192, 80, VMLOOP_RING_MOVE },
	{ "backwards", 0xffffffff, 64, 8192, 8192, 80, VMLOOP_RING_MOVE },
	{ "before what was seen", 1, 48, 8192, 8192, 80, VMLOOP_RING_MOVE },
	{ "behind a full ring", 1, 4096 + 16, 8192, 8192, 80, VMLOOP_RING_MOVE },
	{ "half the circle", 1, 1U << 31, 8192, 8192, 80, VMLOOP_RING_MOVE },
	{ "unaligned position", 1, 72, 8192, 8192, 80, VMLOOP_RING_MOVE },
	{ "no power of two", 1, 64, 8192 + 4096, 8192, 80, VMLOOP_RING_MOVE },
	{ "too small", 1, 64, 2048, 8192, 80, VMLOOP_RING_MOVE },
	{ "nothing", 1, 64, 0, 8192, 80, VMLOOP_RING_MOVE },
	{ "unaligned offset", 1, 64, 8192, 8192 + 2048, 80, VMLOOP_RING_MOVE },
	{ "beyond the end", 1, 64, 8192, AREA - 4096, 80, VMLOOP_RING_MOVE },
	{ "at the end", 1, 64, 4096, AREA, 80, VMLOOP_RING_MOVE },
	{ "behind the end", 1, 64, 4096, AREA + 4096, 80, VMLOOP_RING_MOVE },
	{ "far behind", 1, 64, 4096, 0xfffffffffffff000ULL, 80, VMLOOP_RING_MOVE },
	{ "larger than is wanted", 1, 64, 32768, 0, 80, VMLOOP_RING_MOVE },
	{ "more than the new ring", 1, 64, 8192, 8192, 64 + 8192 + 16, VMLOOP_RING_HEAD },
	{ "back", 1, 64, 8192, 8192, 48, VMLOOP_RING_HEAD },
};

static void set_up_bad(void)
{
	set_up(VMLOOP_RING_RECORDS, 0U - 128);
	rx.most = 16384;
	/* Records of 8 bytes each. */
	for (u32 i = 0; i < 5; i++)
		*(u64 *)(adversary.data + 4096 + ((start + 16 * i) & 4095)) = 8 | 1ULL << 32;
	adversary.producer->tx_head = start + 64;
}

static void test_bad_moves(void)
{
	for (size_t i = 0; i < COUNT(bad_moves); i++) {
		const struct bad_move *bad = &bad_moves[i];
		struct vmloop_shm_record record;
		const void *payload;

		set_up_bad();
		tap_note("%s", bad->name);
		CHECK(vmloop_ring_peek(&rx, &record, &payload) == 1);
		vmloop_ring_release(&rx);
		adversary.producer->moved_at = start + bad->at;
		adversary.producer->moved_size = bad->size;
		adversary.producer->moved_offset = bad->offset;
		adversary.producer->tx_moves = bad->moves;
		adversary.producer->tx_head = start + bad->head;
		while (!rx.broken && rx.tail != start + 64) {
			CHECK(vmloop_ring_peek(&rx, &record, &payload) == 1);
			vmloop_ring_release(&rx);
		}
		vmloop_ring_ready(&rx);
		CHECK(rx.broken == bad->fault);
	}
}

/* What was seen in a ring does not become another one's, read or not. */
static void test_move_over_what_was_seen(void)
{
	static const u32 positions[] = { 63, 64 };
	const void *at;

	for (size_t i = 0; i < COUNT(positions); i++) {
		set_up(VMLOOP_RING_BYTES, 0U - 100);
		tap_note("at %u", positions[i]);
		CHECK(write_bytes(64) == 64);
		vmloop_ring_publish(&tx);
		CHECK(look_bytes(0, 64) == 64);
		adversary.producer->moved_at = start + positions[i];
		adversary.producer->moved_size = 8192;
		adversary.producer->moved_offset = 8192;
		adversary.producer->tx_moves = 1;
		vmloop_ring_bytes(&rx, 0, AREA, &at);
		CHECK(rx.broken == (positions[i] < 64 ? VMLOOP_RING_MOVE : VMLOOP_RING_GOOD));
	}
}

/* Until the consumer has given back what was before, the head may be as far as the new ring. */
static void test_head_behind(void)
{
	static const u32 heads[] = { 8192, 8192 + 1 };
	const void *at;

	for (size_t i = 0; i < COUNT(heads); i++) {
		set_up(VMLOOP_RING_BYTES, 0U - 1000);
		tap_note("head %u", heads[i]);
		CHECK(write_bytes(4096) == 4096);
		vmloop_ring_publish(&tx);
		CHECK(read_bytes(4000) == 4000);
		CHECK(move_to(&places[2]) == 0);
		CHECK(write_bytes(100) == 100);
		vmloop_ring_publish(&tx);
		/* In the new ring, and nothing given back. */
		CHECK(read_bytes(150) == 150);
		CHECK(rx.published == start);
		adversary.producer->tx_head = start + 4096 + heads[i];
		vmloop_ring_bytes(&rx, 0, AREA, &at);
		CHECK(rx.broken == (heads[i] > 8192 ? VMLOOP_RING_HEAD : VMLOOP_RING_GOOD));
	}
	/* And no further, once it has. */
	set_up(VMLOOP_RING_BYTES, 0U - 1000);
	CHECK(write_bytes(4096) == 4096);
	CHECK(move_to(&places[2]) == 0);
	CHECK(write_bytes(100) == 100);
	vmloop_ring_publish(&tx);
	CHECK(read_bytes(4096 + 60) == 4096 + 60);
	vmloop_ring_consume_publish(&rx);
	CHECK(rx.move == VMLOOP_RING_STAYS);
	adversary.producer->tx_head = start + 4096 + 60 + 8192;
	CHECK(vmloop_ring_bytes(&rx, 0, AREA, &at) && !rx.broken);
	adversary.producer->tx_head++;
	vmloop_ring_bytes(&rx, 0, 8192, &at);
	CHECK(!rx.broken);
	CHECK(read_bytes(0) == 0);
	vmloop_ring_bytes(&rx, 1, 8192, &at);
	CHECK(rx.broken == VMLOOP_RING_HEAD);
}

/* No record lies in two rings. */
static void test_record_over_the_move(void)
{
	struct vmloop_shm_record record;
	const void *payload;

	set_up_bad();
	*(u64 *)(adversary.data + 4096 + (start & 4095)) = 56 | 1ULL << 32;
	adversary.producer->moved_at = start + 64;
	adversary.producer->moved_size = 8192;
	adversary.producer->moved_offset = 8192;
	adversary.producer->tx_moves = 1;
	adversary.producer->tx_head = start + 128;
	CHECK(vmloop_ring_peek(&rx, &record, &payload) == 1);
	*(u64 *)(adversary.data + 4096 + (start & 4095)) = 57 | 1ULL << 32;
	CHECK(vmloop_ring_peek(&rx, &record, &payload) == -EPROTO);
	CHECK(rx.broken == VMLOOP_RING_SPAN);
}

static const struct tap_test tests[] = {
	{ "move: bytes, time and again", test_bytes },
	{ "move: records, time and again", test_records },
	{ "move: room at once, and no more than there is", test_room },
	{ "move: one at a time", test_one_at_a_time },
	{ "move: done with, says the peer, and has not read", test_said_too_early },
	{ "move: done with, and forgotten", test_forgotten },
	{ "move: what is refused", test_what_is_refused },
	{ "move: wait for room", test_wait },
	{ "move: wait for bytes", test_bell },
	{ "move: not followed", test_not_followed },
	{ "move: hostile moves", test_bad_moves },
	{ "move: over what was seen", test_move_over_what_was_seen },
	{ "move: hostile head", test_head_behind },
	{ "move: a hostile record", test_record_over_the_move },
};

int main(int argc, char **argv)
{
	return tap_run(tests, COUNT(tests), argc > 1 ? argv[1] : NULL);
}
