// SPDX-License-Identifier: GPL-2.0
/*
 * unit.c - every rule of the ring, one at a time, in one thread.
 *
 * Most tests run for several rings and several starting positions, among them
 * some from which 32 bits overflow within the test.
 */
#include "shared.h"
#include "tap.h"

#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))
#define HEADER		((u32)sizeof(struct vmloop_shm_record))

static struct vmloop_ring_tx tx;
static struct vmloop_ring_rx rx;
static struct view producer;
static struct view consumer;
static struct view adversary;
static u32 size;	/* of the ring */
static u32 start;	/* position that everything began at */

static void set_up(u32 ring_size, u32 start_position)
{
	static bool mapped;
	int fd = shared_create(ring_size);

	if (mapped) {
		shared_unmap(&producer);
		shared_unmap(&consumer);
		shared_unmap(&adversary);
	}
	mapped = true;
	size = ring_size;
	start = start_position;
	shared_map(&producer, fd, size, PRODUCER);
	shared_map(&consumer, fd, size, CONSUMER);
	shared_map(&adversary, fd, size, ADVERSARY);
	close(fd);
	CHECK(vmloop_ring_tx_init(&tx, producer.data, size, producer.producer,
				  producer.consumer) == 0);
	CHECK(vmloop_ring_rx_init(&rx, consumer.data, size, consumer.consumer,
				  consumer.producer) == 0);
	shared_start_tx(&tx, start);
	shared_start_rx(&rx, start);
	tap_note("ring %u, start %#x", size, start);
}

/* Runs @body for each combination of ring and start. */
static void everywhere(void (*body)(void))
{
	static const u32 sizes[] = { 4096, 16384, 65536 };

	for (size_t i = 0; i < COUNT(sizes); i++) {
		const u32 s = sizes[i];
		const u32 starts[] = {
			0, 16, s - 16, s / 2 + 32, 1U << 31, (1U << 31) - 16,
			0U - 16, 0U - s / 4, 0U - s / 2, 0U - s, 0U - s + 16, 0U - 2 * s,
		};

		for (size_t n = 0; n < COUNT(starts); n++) {
			set_up(s, starts[n]);
			body();
		}
	}
}

/* The byte at @offset of the payload of record @number. */
static u8 pattern(u32 number, u32 offset)
{
	return (u8)((number * 2654435761U) >> 24) ^ (u8)(offset * 37) ^ (u8)(offset >> 8);
}

static u32 span_of(u32 payload)
{
	return (HEADER + payload + 15) / 16 * 16;
}

static int reserve(u32 payload, u16 type, u16 info, u8 **where)
{
	void *at = NULL;
	int result = vmloop_ring_reserve(&tx, payload, type, info, &at);

	*where = at;
	return result;
}

/* Writes and commits a record, or says why not. */
static int put(u32 number, u32 payload)
{
	u8 *at;
	int result = reserve(payload, (u16)(number % 60000 + 1), (u16)~number, &at);

	if (result)
		return result;
	CHECK(at >= producer.data && at + payload <= producer.data + size);
	for (u32 i = 0; i < payload; i++)
		at[i] = pattern(number, i);
	vmloop_ring_commit(&tx);
	return 0;
}

/* Reads, checks and releases the record that put() wrote. */
static void get(u32 number, u32 payload)
{
	struct vmloop_shm_record record;
	const void *where;
	const u8 *at;

	CHECK(vmloop_ring_peek(&rx, &record, &where) == 1);
	at = where;
	CHECK(record.size == payload);
	CHECK(record.type == (u16)(number % 60000 + 1));
	CHECK(record.info == (u16)~number);
	CHECK(at >= consumer.data && at + payload <= consumer.data + size);
	for (u32 i = 0; i < payload; i++)
		CHECK(at[i] == pattern(number, i));
	vmloop_ring_release(&rx);
}

static int peek(void)
{
	struct vmloop_shm_record record;
	const void *where;

	return vmloop_ring_peek(&rx, &record, &where);
}

/* The record header that lies at @position. */
static struct vmloop_shm_record header_at(u32 position)
{
	struct vmloop_shm_record record;

	memcpy(&record, producer.data + (position & (size - 1)), sizeof(record));
	return record;
}

/* Moves both ends to @target bytes from the start of the ring, or a bit less. */
static void advance_to(u32 target)
{
	u32 max = vmloop_ring_max_record(size);
	u32 gap;

	while ((gap = (target - tx.head) & (size - 1)) != 0) {
		u32 payload = gap - HEADER < max ? gap - HEADER : max;

		CHECK(put(1, payload) == 0);
		vmloop_ring_publish(&tx);
		get(1, payload);
		vmloop_ring_consume_publish(&rx);
	}
}

/* Sizes and beginnings --------------------------------------------------- */

static void test_init_sizes(void)
{
	static const struct {
		u32 size;
		int result;
	} rows[] = {
		{ 0, -EINVAL }, { 1, -EINVAL }, { 16, -EINVAL }, { 2048, -EINVAL },
		{ 4095, -EINVAL }, { 4096, 0 }, { 4097, -EINVAL }, { 6144, -EINVAL },
		{ 8192, 0 }, { 1U << 20, 0 }, { 1U << 30, 0 }, { (1U << 30) + 4096, -EINVAL },
		{ 1U << 31, -EINVAL }, { 3U << 30, -EINVAL }, { 0xffffffff, -EINVAL },
	};

	set_up(4096, 0);
	for (size_t i = 0; i < COUNT(rows); i++) {
		tap_note("size %u", rows[i].size);
		CHECK(vmloop_ring_tx_init(&tx, producer.data, rows[i].size, producer.producer,
					  producer.consumer) == rows[i].result);
		CHECK(vmloop_ring_rx_init(&rx, consumer.data, rows[i].size, consumer.consumer,
					  consumer.producer) == rows[i].result);
	}
}

static void test_init_alignment(void)
{
	set_up(4096, 0);
	for (u32 off = 1; off <= 16; off++) {
		int result = off == 16 ? 0 : -EINVAL;

		tap_note("data off by %u", off);
		CHECK(vmloop_ring_tx_init(&tx, producer.data + off, 4096, producer.producer,
					  producer.consumer) == result);
		CHECK(vmloop_ring_rx_init(&rx, consumer.data + off, 4096, consumer.consumer,
					  consumer.producer) == result);
	}
}

/* A ring begins anew whatever was in the lanes, and asks to be woken. */
static void test_init_lanes(void)
{
	set_up(4096, 0);
	memset(adversary.producer, 0xa5, sizeof(*adversary.producer));
	memset(adversary.consumer, 0x5a, sizeof(*adversary.consumer));
	CHECK(vmloop_ring_tx_init(&tx, producer.data, size, producer.producer,
				  producer.consumer) == 0);
	CHECK(producer.producer->tx_head == 0);
	CHECK(producer.consumer->rx_tail == 0x5a5a5a5a);
	CHECK(vmloop_ring_rx_init(&rx, consumer.data, size, consumer.consumer,
				  consumer.producer) == 0);
	CHECK(producer.consumer->rx_tail == 0);
	CHECK(producer.producer->rx_tail == 0xa5a5a5a5);

	/* The first record rings: a consumer that began is as good as asleep. */
	CHECK(put(1, 100) == 0);
	CHECK(vmloop_ring_publish(&tx));
	get(1, 100);
	/* And nobody waits for room. */
	CHECK(!vmloop_ring_consume_publish(&rx));

	/* Nor in a new region, which is zeroed. */
	memset(adversary.producer, 0, sizeof(*adversary.producer));
	memset(adversary.consumer, 0, sizeof(*adversary.consumer));
	CHECK(vmloop_ring_tx_init(&tx, producer.data, size, producer.producer,
				  producer.consumer) == 0);
	CHECK(vmloop_ring_rx_init(&rx, consumer.data, size, consumer.consumer,
				  consumer.producer) == 0);
	CHECK(put(1, 100) == 0);
	CHECK(vmloop_ring_publish(&tx));
	get(1, 100);
	CHECK(!vmloop_ring_consume_publish(&rx));
}

static void test_max_record(void)
{
	static const u32 sizes[] = { 4096, 8192, 65536, 1U << 22, 1U << 30 };

	for (size_t i = 0; i < COUNT(sizes); i++) {
		u32 max = vmloop_ring_max_record(sizes[i]);
		u8 *at;

		tap_note("ring %u", sizes[i]);
		CHECK(max == sizes[i] / 4 - 8);
		set_up(sizes[i], 0);
		CHECK(reserve(max, 1, 0, &at) == 0);
		CHECK(reserve(max + 1, 1, 0, &at) == -EMSGSIZE);
		CHECK(reserve(sizes[i], 1, 0, &at) == -EMSGSIZE);
		CHECK(reserve(0xffffffff, 1, 0, &at) == -EMSGSIZE);
		CHECK(reserve(0xfffffff8, 1, 0, &at) == -EMSGSIZE);
		CHECK(reserve(0xfffffff0, 1, 0, &at) == -EMSGSIZE);
		/* Too large a record is the caller's fault, not the peer's. */
		CHECK(!tx.broken);
		CHECK(reserve(max, 1, 0, &at) == 0);
	}
}

/* Records ---------------------------------------------------------------- */

static void body_every_size(void)
{
	u32 max = vmloop_ring_max_record(size);
	u32 step = max > 5000 ? 4099 : 1;

	for (u32 payload = 0; payload <= max; payload += step) {
		CHECK(put(payload, payload) == 0);
		CHECK(peek() == 0);
		vmloop_ring_publish(&tx);
		get(payload, payload);
		CHECK(peek() == 0);
		vmloop_ring_consume_publish(&rx);
		CHECK(vmloop_ring_drained(&tx));
	}
}

static void test_every_size(void)
{
	everywhere(body_every_size);
}

/* A record is one word of header, and payload where an aligned copy is cheap. */
static void test_layout_of_record(void)
{
	u8 *at;

	set_up(4096, 0);
	for (u32 i = 0; i <= 4; i++) {
		u32 position = tx.head;

		CHECK(reserve(20 + i, 0x1234, 0x5678, &at) == 0);
		vmloop_ring_commit(&tx);
		CHECK(at == producer.data + position + 8);
		CHECK(position % 16 == 0);
		CHECK(memcmp(producer.data + position + 4, "\x34\x12\x78\x56", 4) == 0);
		CHECK(producer.data[position] == 20 + i && producer.data[position + 1] == 0);
		CHECK(tx.head == position + 32);
	}
}

/* At each offset from the end, each size: pad or no pad, and its exact form. */
static void body_wrap(void)
{
	u32 max = vmloop_ring_max_record(size);
	u32 most = size > 4096 ? 256 : max + HEADER;

	for (u32 to_end = 16; to_end <= most; to_end += 16) {
		const u32 rows[] = {
			0, 1, 8, 9, to_end - 9, to_end - 8, to_end - 7, to_end, to_end + 8, max,
		};

		for (size_t i = 0; i < COUNT(rows); i++) {
			u32 payload = rows[i];
			u32 position;
			u32 expected;

			if (payload > max)
				continue;
			advance_to(size - to_end);
			position = tx.head;
			expected = span_of(payload);
			if (expected > to_end)
				expected += to_end;
			tap_note("ring %u, start %#x, %u bytes %u before the end",
				 size, start, payload, to_end);
			CHECK(put(7, payload) == 0);
			CHECK(tx.head - position == expected);
			if (expected > span_of(payload)) {
				struct vmloop_shm_record pad = header_at(position);

				CHECK(pad.type == VMLOOP_RECORD_PAD);
				CHECK(pad.size == to_end - HEADER);
				CHECK(pad.info == 0);
				CHECK(header_at(position + to_end).size == payload);
			} else {
				CHECK(header_at(position).size == payload);
			}
			vmloop_ring_publish(&tx);
			get(7, payload);
			CHECK(rx.tail == tx.head);
			vmloop_ring_consume_publish(&rx);
		}
	}
}

static void test_wrap(void)
{
	everywhere(body_wrap);
}

static void body_order(void)
{
	u32 put_number = 0;
	u32 got_number = 0;
	u32 max = vmloop_ring_max_record(size);

	/* As many as fit, in sizes that go through all remainders. */
	for (int round = 0; round < 20; round++) {
		while (put(put_number, put_number * 7919 % (max / 8)) == 0)
			put_number++;
		CHECK(put_number - got_number > 8);
		vmloop_ring_publish(&tx);
		for (int i = 0; i < 5 + round; i++) {
			get(got_number, got_number * 7919 % (max / 8));
			got_number++;
			if (got_number == put_number)
				break;
		}
		vmloop_ring_consume_publish(&rx);
	}
	while (got_number != put_number) {
		get(got_number, got_number * 7919 % (max / 8));
		got_number++;
	}
	CHECK(peek() == 0);
}

static void test_order(void)
{
	everywhere(body_order);
}

static void body_uncommitted(void)
{
	u8 *at;
	u8 *again;

	CHECK(reserve(100, 1, 0, &at) == 0);
	CHECK(!vmloop_ring_publish(&tx));
	CHECK(producer.producer->tx_head == start);
	CHECK(peek() == 0);
	/* It is forgotten by the next one, which takes its place. */
	CHECK(reserve(50, 2, 0, &again) == 0);
	CHECK(again == at || size - (start & (size - 1)) < span_of(100));
	vmloop_ring_commit(&tx);
	/* A second commit adds nothing. */
	vmloop_ring_commit(&tx);
	vmloop_ring_publish(&tx);
	CHECK(peek() == 1);
	vmloop_ring_release(&rx);
	/* Nor does a second release. */
	vmloop_ring_release(&rx);
	CHECK(rx.tail == tx.head);
	CHECK(peek() == 0);
}

static void test_uncommitted(void)
{
	everywhere(body_uncommitted);
}

static void body_peek_again(void)
{
	CHECK(put(1, 10) == 0);
	CHECK(put(2, 2000 % (size / 4)) == 0);
	vmloop_ring_publish(&tx);
	CHECK(peek() == 1);
	CHECK(peek() == 1);
	get(1, 10);
	CHECK(peek() == 1);
	get(2, 2000 % (size / 4));
	CHECK(peek() == 0);
}

static void test_peek_again(void)
{
	everywhere(body_peek_again);
}

/* Full and empty --------------------------------------------------------- */

static void body_full(void)
{
	u32 count = size / 16;
	u8 *at;

	/* Records of 16 bytes fill the ring to the last byte. */
	for (u32 i = 0; i < count; i++)
		CHECK(put(i, 8) == 0);
	CHECK(tx.head - start == size);
	CHECK(reserve(0, 1, 0, &at) == -EAGAIN);
	CHECK(reserve(8, 1, 0, &at) == -EAGAIN);
	CHECK(!vmloop_ring_drained(&tx));
	vmloop_ring_publish(&tx);

	/* Read is not released, released is not given back. */
	get(0, 8);
	CHECK(reserve(8, 1, 0, &at) == -EAGAIN);
	vmloop_ring_consume_publish(&rx);
	CHECK(reserve(9, 1, 0, &at) == -EAGAIN);
	CHECK(put(count, 8) == 0);
	CHECK(reserve(0, 1, 0, &at) == -EAGAIN);
	vmloop_ring_publish(&tx);

	for (u32 i = 1; i <= count; i++)
		get(i, 8);
	CHECK(peek() == 0);
	CHECK(!vmloop_ring_drained(&tx));
	vmloop_ring_consume_publish(&rx);
	CHECK(vmloop_ring_drained(&tx));
	CHECK(!tx.broken && !rx.broken);
}

static void test_full(void)
{
	everywhere(body_full);
}

/* In an empty ring there is room for the largest record, wherever it begins. */
static void body_largest_fits(void)
{
	u32 max = vmloop_ring_max_record(size);
	u32 step = size > 16384 ? size / 64 : 16;

	for (u32 offset = 0; offset < size; offset += step) {
		advance_to(offset);
		CHECK(put(3, max) == 0);
		vmloop_ring_publish(&tx);
		get(3, max);
		vmloop_ring_consume_publish(&rx);
	}
}

static void test_largest_fits(void)
{
	everywhere(body_largest_fits);
}

static void body_drained(void)
{
	CHECK(vmloop_ring_drained(&tx));
	CHECK(put(1, 0) == 0);
	CHECK(!vmloop_ring_drained(&tx));
	vmloop_ring_publish(&tx);
	CHECK(!vmloop_ring_drained(&tx));
	get(1, 0);
	CHECK(!vmloop_ring_drained(&tx));
	vmloop_ring_consume_publish(&rx);
	CHECK(vmloop_ring_drained(&tx));
}

static void test_drained(void)
{
	everywhere(body_drained);
}

static void body_ready(void)
{
	CHECK(!vmloop_ring_ready(&rx));
	CHECK(put(1, 40) == 0);
	CHECK(!vmloop_ring_ready(&rx));
	vmloop_ring_publish(&tx);
	CHECK(vmloop_ring_ready(&rx));
	get(1, 40);
	CHECK(!vmloop_ring_ready(&rx));
	/* What is broken has something to report. */
	adversary.producer->tx_head = start + 1;
	CHECK(vmloop_ring_ready(&rx));
	CHECK(rx.broken);
	adversary.producer->tx_head = rx.tail;
	CHECK(vmloop_ring_ready(&rx));
}

static void test_ready(void)
{
	everywhere(body_ready);
}

/* Doorbells -------------------------------------------------------------- */

/* Whether @wake lies in [old, new): counted, not computed. */
static bool passes(u32 wake, u32 new, u32 old)
{
	for (u32 at = old; at != new; at++) {
		if (at == wake)
			return true;
	}
	return false;
}

static void body_bell_of_publish(void)
{
	static const u32 moves[] = { 16, 32, 48, 512 };
	static const int wakes[] = {
		-4096, -512, -48, -33, -32, -31, -17, -16, -15, -1, 0, 1, 15, 16, 17,
		31, 32, 47, 48, 49, 496, 511, 512, 513, 4096,
	};

	if (size != 4096)
		return;
	for (size_t m = 0; m < COUNT(moves); m++) {
		for (size_t w = 0; w < COUNT(wakes); w++) {
			u32 old = tx.head;
			u32 wake = old + (u32)wakes[w];

			for (u32 n = 0; n < moves[m]; n += 16)
				CHECK(put(n, 8) == 0);
			tap_note("from %#x to %#x, wake %#x", old, tx.head, wake);
			adversary.consumer->rx_wake = wake;
			CHECK(vmloop_ring_publish(&tx) == passes(wake, tx.head, old));
			CHECK(producer.producer->tx_head == tx.head);
			for (u32 n = 0; n < moves[m]; n += 16)
				get(n, 8);

			/* The same for room, in the other direction. */
			adversary.producer->tx_wake = wake;
			CHECK(vmloop_ring_consume_publish(&rx) == passes(wake, rx.tail, old));
			CHECK(producer.consumer->rx_tail == rx.tail);
		}
	}
}

static void test_bell_arithmetic(void)
{
	everywhere(body_bell_of_publish);
}

/* Nothing new is no reason to ring, and touches nothing. */
static void body_idle_publish(void)
{
	CHECK(put(1, 8) == 0);
	vmloop_ring_publish(&tx);
	get(1, 8);
	vmloop_ring_consume_publish(&rx);
	for (u32 wake = start - 64; wake != start + 64; wake++) {
		adversary.consumer->rx_wake = wake;
		adversary.producer->tx_wake = wake;
		CHECK(!vmloop_ring_publish(&tx));
		CHECK(!vmloop_ring_consume_publish(&rx));
	}
}

static void test_idle_publish(void)
{
	everywhere(body_idle_publish);
}

static void body_sleep(void)
{
	for (int i = 0; i < 40; i++) {
		/* The smallest record is reason enough. */
		CHECK(vmloop_ring_sleep(&rx));
		CHECK(vmloop_ring_sleep(&rx));
		CHECK(put(1, i % 9) == 0);
		CHECK(vmloop_ring_publish(&tx));
		/* Only the first one rings: the consumer is on its way. */
		CHECK(put(2, 40) == 0);
		CHECK(!vmloop_ring_publish(&tx));
		/* There is something that it has not even looked at. */
		CHECK(!vmloop_ring_sleep(&rx));
		get(1, i % 9);
		/* There is something that it knows of. */
		CHECK(!vmloop_ring_sleep(&rx));
		get(2, 40);
		vmloop_ring_consume_publish(&rx);
		/* Awake and done, it is not rung for. */
		CHECK(peek() == 0);
		CHECK(put(3, 40) == 0);
		CHECK(!vmloop_ring_publish(&tx));
		get(3, 40);
		CHECK(put(4, 40) == 0);
		CHECK(!vmloop_ring_publish(&tx));
		get(4, 40);
		vmloop_ring_consume_publish(&rx);
	}
}

static void test_sleep(void)
{
	everywhere(body_sleep);
}

/* Who watches by himself is not rung for, until the consumer sleeps again. */
static void body_watch(void)
{
	for (u32 i = 0; i < 40; i++) {
		CHECK(vmloop_ring_sleep(&rx));
		vmloop_ring_watch(&rx);
		CHECK(!vmloop_ring_moved(&rx));
		for (u32 n = 0; n < i % 4 + 1; n++) {
			CHECK(put(n, i) == 0);
			CHECK(!vmloop_ring_publish(&tx));
			CHECK(vmloop_ring_moved(&rx));
		}
		/* To watch again while there is something changes nothing. */
		vmloop_ring_watch(&rx);
		CHECK(put(i % 4 + 1, 8) == 0);
		CHECK(!vmloop_ring_publish(&tx));
		for (u32 n = 0; n < i % 4 + 1; n++)
			get(n, i);
		get(i % 4 + 1, 8);
		CHECK(!vmloop_ring_moved(&rx));
		vmloop_ring_consume_publish(&rx);

		CHECK(vmloop_ring_sleep(&rx));
		CHECK(put(9, i) == 0);
		CHECK(vmloop_ring_publish(&tx));
		get(9, i);
		vmloop_ring_consume_publish(&rx);
	}
	/* It is a hint: it believes nothing, and breaks nothing. */
	adversary.producer->tx_head = rx.tail + 1;
	CHECK(vmloop_ring_moved(&rx));
	CHECK(!rx.broken);
}

static void test_watch(void)
{
	everywhere(body_watch);
}

/*
 * For each size of record: a full ring, a producer that waits, a consumer that
 * gives back in small steps. One bell, not too early, never too late.
 */
static void body_wait_room(void)
{
	u32 max = vmloop_ring_max_record(size);
	const u32 sizes[] = { 0, 8, 100, max / 8, max / 2, max - 100, max };

	if (size > 16384)
		return;
	for (size_t i = 0; i < COUNT(sizes); i++) {
		u32 filler = 24 + 16 * (u32)i;
		u32 count = 0;
		u32 to_end = 0;
		u32 bells = 0;
		u32 freed = 0;
		u32 want;
		u8 *at;

		tap_note("ring %u, start %#x, waiting for %u bytes", size, start, sizes[i]);
		while (put(count, filler) == 0)
			count++;
		while (put(count, 0) == 0)
			count++;
		vmloop_ring_publish(&tx);
		CHECK(reserve(sizes[i], 1, 0, &at) == -EAGAIN);
		CHECK(vmloop_ring_wait_room(&tx, sizes[i]));
		CHECK(vmloop_ring_wait_room(&tx, sizes[i]));
		/* A quarter of the ring at least: not a bell a record. */
		to_end = size - (tx.head & (size - 1));
		want = span_of(sizes[i]) + (span_of(sizes[i]) > to_end ? to_end : 0);
		if (want < size / 4)
			want = size / 4;
		while (peek() == 1) {
			u32 before = freed;
			bool bell;

			vmloop_ring_release(&rx);
			freed = rx.tail - (tx.head - size);
			bell = vmloop_ring_consume_publish(&rx);
			bells += bell;
			CHECK(bell == (before < want && freed >= want));
			if (bell) {
				CHECK(reserve(sizes[i], 1, 0, &at) == 0);
				CHECK(!vmloop_ring_wait_room(&tx, sizes[i]));
			}
		}
		CHECK(bells == 1);
		CHECK(vmloop_ring_drained(&tx));
	}
}

static void test_wait_room(void)
{
	everywhere(body_wait_room);
}

/* Where the record's own padding makes it need more than a quarter. */
static void body_wait_room_pad(void)
{
	u32 max = vmloop_ring_max_record(size);
	u32 count = 0;
	u8 *at;

	if (size > 16384)
		return;
	/* The head will stand just so that the largest record does not fit. */
	advance_to(size - span_of(max) + 16);
	while (tx.head - producer.consumer->rx_tail < size)
		CHECK(put(count++, 8) == 0);
	vmloop_ring_publish(&tx);
	CHECK(reserve(max, 1, 0, &at) == -EAGAIN);
	CHECK(vmloop_ring_wait_room(&tx, max));
	for (u32 i = 0; i < count; i++) {
		u32 needed = span_of(max) - 16 + span_of(max);
		u32 freed;

		get(i, 8);
		freed = (i + 1) * 16;
		tap_note("ring %u, start %#x, %u freed of %u", size, start, freed, needed);
		CHECK(vmloop_ring_consume_publish(&rx) == (freed == needed));
		if (freed == needed)
			CHECK(reserve(max, 1, 0, &at) == 0);
	}
}

static void test_wait_room_pad(void)
{
	everywhere(body_wait_room_pad);
}

/* Some small records, a wait for each of their ends: one bell, when that is consumed. */
static void body_wait_read(void)
{
	const u32 count = 10;

	for (u32 wanted = 0; wanted < count; wanted++) {
		u32 position = tx.head;

		for (u32 i = 0; i < count; i++) {
			CHECK(put(i, 8) == 0);
			if (i == wanted)
				position = tx.head;
		}
		vmloop_ring_publish(&tx);
		CHECK(!vmloop_ring_has_read(&tx, position));
		CHECK(vmloop_ring_wait_read(&tx, position));
		for (u32 i = 0; i < count; i++) {
			tap_note("ring %u, start %#x, %u read, waiting for %u", size, start,
				 i, wanted);
			get(i, 8);
			/* Released, but not given back: not read as far as we know. */
			CHECK(vmloop_ring_has_read(&tx, position) == (i > wanted));
			CHECK(vmloop_ring_consume_publish(&rx) == (i == wanted));
			CHECK(vmloop_ring_has_read(&tx, position) == (i >= wanted));
		}
		CHECK(!vmloop_ring_wait_read(&tx, position));
	}
	/* Nothing is waited for once the ring is broken. */
	CHECK(put(0, 40) == 0);
	vmloop_ring_publish(&tx);
	CHECK(vmloop_ring_wait_read(&tx, tx.head));
	consumer.consumer->rx_tail = tx.head + 16;
	CHECK(!vmloop_ring_wait_read(&tx, tx.head) && tx.broken);
	CHECK(vmloop_ring_has_read(&tx, tx.head + 1024));
}

static void test_wait_read(void)
{
	everywhere(body_wait_read);
}

static void body_no_wait(void)
{
	u32 max = vmloop_ring_max_record(size);
	u8 *at;

	/* There is room; there was none when we last looked; there never is. */
	CHECK(!vmloop_ring_wait_room(&tx, 8));
	CHECK(!vmloop_ring_wait_room(&tx, max));
	while (put(5, 100) == 0)
		;
	vmloop_ring_publish(&tx);
	CHECK(!vmloop_ring_wait_room(&tx, max + 1));
	CHECK(!vmloop_ring_wait_room(&tx, 0xffffffff));
	while (peek() == 1)
		vmloop_ring_release(&rx);
	vmloop_ring_consume_publish(&rx);
	CHECK(tx.head - tx.tail > size / 2);
	CHECK(!vmloop_ring_wait_room(&tx, max));
	CHECK(reserve(max, 1, 0, &at) == 0);
	CHECK(!vmloop_ring_wait_room(&tx, max + 1));
}

static void test_no_wait(void)
{
	everywhere(body_no_wait);
}

/* Hostile consumers ------------------------------------------------------ */

/* Each entry puts a tail there that cannot be true; @full: three are unread. */
static const struct {
	const char *name;
	int offset;	/* from the published head */
	bool broken;
} tails[] = {
	{ "the head itself", 0, false },
	{ "16 before the head", -16, false },
	{ "as before", -48, false },
	{ "16 backwards", -64, true },
	{ "backwards by a ring", -48 - 4096, true },
	{ "past what is published", 16, true },
	{ "far ahead", 4096, true },
	{ "half the circle ahead", -0x7fffffff - 1, true },
	{ "unaligned by 1", -15, true },
	{ "unaligned by 8", -40, true },
	{ "unaligned by 15", -1, true },
};

/* Each call that looks at the tail, and what it says then. */
static bool refuses_reserve(void)
{
	u8 *at;

	tx.tail = tx.head - size;	/* so that it looks */
	adversary.producer->tx_head = tx.head;
	return reserve(8, 1, 0, &at) == -EPROTO;
}

static void body_bad_tail(void)
{
	if (size != 4096)
		return;
	for (size_t i = 0; i < COUNT(tails); i++) {
		u8 *at;

		set_up(size, start);
		tap_note("start %#x, tail: %s", start, tails[i].name);
		for (u32 n = 0; n < 3; n++)
			CHECK(put(n, 8) == 0);
		vmloop_ring_publish(&tx);
		/* Committed but not published: the consumer cannot be there. */
		CHECK(put(3, 8) == 0);
		adversary.consumer->rx_tail = tx.published + (u32)tails[i].offset;

		CHECK(vmloop_ring_drained(&tx) == tails[i].broken);
		CHECK(tx.broken == (tails[i].broken ? VMLOOP_RING_TAIL : VMLOOP_RING_GOOD));
		if (!tails[i].broken)
			continue;

		/* Latched: the truth comes too late, for every call. */
		adversary.consumer->rx_tail = start;
		CHECK(reserve(8, 1, 0, &at) == -EPROTO);
		CHECK(reserve(0xffffffff, 1, 0, &at) == -EPROTO);
		CHECK(!vmloop_ring_wait_room(&tx, 8));
		CHECK(vmloop_ring_drained(&tx));
		adversary.consumer->rx_wake = tx.published;
		CHECK(!vmloop_ring_publish(&tx));
		CHECK(producer.producer->tx_head == start + 48);
		CHECK(tx.broken);
	}
}

static void test_bad_tail(void)
{
	everywhere(body_bad_tail);
}

/* The same through reserve and wait_room, which look when the ring is full. */
static void body_bad_tail_when_full(void)
{
	for (int way = 0; way < 2; way++) {
		for (u32 lie = 16; lie <= size; lie *= 2) {
			u8 *at;

			set_up(size, start);
			while (put(1, 8) == 0)
				;
			vmloop_ring_publish(&tx);
			adversary.consumer->rx_tail = tx.head + lie;
			tap_note("start %#x, %u ahead", start, lie);
			if (way == 0)
				CHECK(reserve(8, 1, 0, &at) == -EPROTO);
			else
				CHECK(!vmloop_ring_wait_room(&tx, 8));
			CHECK(tx.broken);
			CHECK(refuses_reserve());
		}
	}
}

static void test_bad_tail_when_full(void)
{
	everywhere(body_bad_tail_when_full);
}

/* A wild wake costs at most a bell; it breaks nothing and hangs nobody else. */
static void body_wild_wakes(void)
{
	u32 wild = 1;

	for (u32 i = 0; i < 500; i++) {
		wild = wild * 1664525 + 1013904223;
		adversary.consumer->rx_wake = wild;
		adversary.producer->tx_wake = ~wild;
		CHECK(put(i, i) == 0);
		vmloop_ring_publish(&tx);
		get(i, i);
		vmloop_ring_consume_publish(&rx);
	}
	CHECK(!tx.broken && !rx.broken);
}

static void test_wild_wakes(void)
{
	everywhere(body_wild_wakes);
}

/* Hostile producers ------------------------------------------------------ */

static void write_header(u32 position, u32 payload, u16 type)
{
	struct vmloop_shm_record record = { .size = payload, .type = type };

	memcpy(adversary.data + (position & (size - 1)), &record, sizeof(record));
}

static const struct {
	const char *name;
	int offset;	/* from the tail */
	bool broken;
} heads[] = {
	{ "a record", 16, false },
	{ "a full ring", 4096, false },
	{ "more than a ring", 4096 + 16, true },
	{ "backwards", -16, true },
	{ "backwards by a ring", -4096, true },
	{ "half the circle", -0x7fffffff - 1, true },
	{ "unaligned by 1", 17, true },
	{ "unaligned by 8", 24, true },
	{ "unaligned by 15", 31, true },
};

/* Each call that looks at the head. */
static bool peek_is_broken(void)
{
	return peek() == -EPROTO;
}

static bool sleep_refuses(void)
{
	return !vmloop_ring_sleep(&rx) && rx.broken;
}

static bool ready_reports(void)
{
	return vmloop_ring_ready(&rx) && rx.broken;
}

static bool (*const head_calls[])(void) = { peek_is_broken, sleep_refuses, ready_reports };

static void check_rx_latched(void)
{
	struct vmloop_shm_record record;
	const void *where = NULL;

	CHECK(rx.broken);
	adversary.producer->tx_head = rx.tail + 16;
	write_header(rx.tail, 8, 1);
	CHECK(vmloop_ring_peek(&rx, &record, &where) == -EPROTO);
	CHECK(!vmloop_ring_sleep(&rx));
	CHECK(vmloop_ring_ready(&rx));
	rx.tail += 16;
	adversary.producer->tx_wake = rx.published;
	CHECK(!vmloop_ring_consume_publish(&rx));
	CHECK(producer.consumer->rx_tail == rx.published);
}

static void body_bad_head(void)
{
	if (size != 4096)
		return;
	for (size_t i = 0; i < COUNT(heads); i++) {
		for (size_t call = 0; call < COUNT(head_calls); call++) {
			set_up(size, start);
			tap_note("start %#x, head: %s, call %zu", start, heads[i].name, call);
			write_header(start, 8, 1);
			adversary.producer->tx_head = start + (u32)heads[i].offset;
			CHECK(head_calls[call]() == heads[i].broken);
			CHECK(rx.broken == (heads[i].broken ? VMLOOP_RING_HEAD : VMLOOP_RING_GOOD));
			if (heads[i].broken)
				check_rx_latched();
		}
	}
}

static void test_bad_head(void)
{
	everywhere(body_bad_head);
}

/* What was read but not given back cannot have been written again. */
static void body_head_over_unreleased(void)
{
	for (u32 kept = 16; kept <= 64; kept += 16) {
		set_up(size, start);
		for (u32 n = 0; n < kept; n += 16)
			CHECK(put(n, 8) == 0);
		vmloop_ring_publish(&tx);
		for (u32 n = 0; n < kept; n += 16)
			get(n, 8);
		write_header(rx.tail, 8, 1);
		adversary.producer->tx_head = rx.published + size;
		tap_note("ring %u, start %#x, %u kept", size, start, kept);
		CHECK(peek() == 1);

		rx.head = rx.tail;
		adversary.producer->tx_head = rx.published + size + 16;
		CHECK(peek() == -EPROTO);
	}
}

static void test_head_over_unreleased(void)
{
	everywhere(body_head_over_unreleased);
}

/* Records that cannot be. @produced: bytes that the head claims. */
static const struct {
	const char *name;
	u32 at;		/* offset of the tail in a ring of 4096 bytes */
	u32 produced;
	u32 size;
	u16 type;
	int result;
	enum vmloop_ring_fault fault;
} records[] = {
	{ "empty", 0, 16, 0, 1, 1, VMLOOP_RING_GOOD },
	{ "up to the head", 0, 16, 8, 1, 1, VMLOOP_RING_GOOD },
	{ "a byte past the head", 0, 16, 9, 1, -EPROTO, VMLOOP_RING_SPAN },
	{ "the largest", 0, 1024, 1016, 1, 1, VMLOOP_RING_GOOD },
	{ "the largest, not all there", 0, 1008, 1016, 1, -EPROTO, VMLOOP_RING_SPAN },
	{ "larger than the largest", 0, 4096, 1017, 1, -EPROTO, VMLOOP_RING_SIZE },
	{ "larger than the largest, aligned", 0, 4096, 1032, 1, -EPROTO, VMLOOP_RING_SIZE },
	{ "the whole ring", 0, 4096, 4088, 1, -EPROTO, VMLOOP_RING_SIZE },
	{ "more than the ring", 0, 4096, 4096, 1, -EPROTO, VMLOOP_RING_SIZE },
	{ "up to the end", 4096 - 64, 64, 56, 1, 1, VMLOOP_RING_GOOD },
	{ "past the end", 4096 - 64, 128, 57, 1, -EPROTO, VMLOOP_RING_SPAN },
	{ "far past the end", 4096 - 64, 1024, 1000, 1, -EPROTO, VMLOOP_RING_SPAN },
	{ "sum overflows to 0", 0, 4096, 0xfffffff8, 1, -EPROTO, VMLOOP_RING_SIZE },
	{ "sum overflows to 16", 0, 4096, 0xffffffff, 1, -EPROTO, VMLOOP_RING_SIZE },
	{ "alignment overflows", 0, 4096, 0xfffffff0, 1, -EPROTO, VMLOOP_RING_SIZE },
	{ "sum overflows at the end", 4096 - 16, 16, 0xfffffff8, 1, -EPROTO, VMLOOP_RING_SIZE },
	{ "negative", 0, 4096, 0x80000000, 1, -EPROTO, VMLOOP_RING_SIZE },
	{ "pad to the end", 4096 - 64, 64, 56, VMLOOP_RECORD_PAD, 0, VMLOOP_RING_GOOD },
	{ "pad to the end, shorter by a byte", 4096 - 64, 64, 55, VMLOOP_RECORD_PAD, 0,
	  VMLOOP_RING_GOOD },
	{ "smallest pad", 4096 - 16, 16, 8, VMLOOP_RECORD_PAD, 0, VMLOOP_RING_GOOD },
	{ "pad short of the end", 4096 - 64, 64, 40, VMLOOP_RECORD_PAD, -EPROTO, VMLOOP_RING_PAD },
	{ "empty pad", 4096 - 64, 64, 0, VMLOOP_RECORD_PAD, -EPROTO, VMLOOP_RING_PAD },
	{ "pad past the end", 4096 - 64, 128, 72, VMLOOP_RECORD_PAD, -EPROTO, VMLOOP_RING_SPAN },
	{ "pad past the head", 4096 - 64, 48, 56, VMLOOP_RECORD_PAD, -EPROTO, VMLOOP_RING_SPAN },
	{ "pad larger than a record", 1024, 4096, 3064, VMLOOP_RECORD_PAD, -EPROTO,
	  VMLOOP_RING_SIZE },
	{ "pad over the whole ring", 0, 4096, 4088, VMLOOP_RECORD_PAD, -EPROTO, VMLOOP_RING_SIZE },
	{ "pad at the beginning", 0, 1024, 1016, VMLOOP_RECORD_PAD, -EPROTO, VMLOOP_RING_PAD },
	{ "pad overflows", 4096 - 16, 16, 0xffffffff, VMLOOP_RECORD_PAD, -EPROTO,
	  VMLOOP_RING_SIZE },
};

static void test_bad_record(void)
{
	for (size_t i = 0; i < COUNT(records); i++) {
		for (u32 lap = 0; lap < 3; lap++) {
			u32 position = records[i].at + (lap == 2 ? 0U - 4096 : lap * 4096);

			set_up(4096, position);
			tap_note("%s, lap %u", records[i].name, lap);
			write_header(position, records[i].size, records[i].type);
			adversary.producer->tx_head = position + records[i].produced;
			CHECK(peek() == records[i].result);
			CHECK(rx.broken == records[i].fault);
			if (rx.broken) {
				CHECK(rx.tail == position);
				check_rx_latched();
			}
		}
	}
}

/* Padding with nothing behind it yet is odd but true; padding twice is not. */
static void test_pad_alone(void)
{
	set_up(4096, 4096 - 32);
	write_header(start, 24, VMLOOP_RECORD_PAD);
	adversary.producer->tx_head = start + 32;
	CHECK(peek() == 0);
	CHECK(!rx.broken);
	CHECK(vmloop_ring_sleep(&rx));
	vmloop_ring_consume_publish(&rx);
	CHECK(producer.consumer->rx_tail == 4096);

	write_header(4096, 3, 9);
	adversary.producer->tx_head = 4096 + 16;
	CHECK(peek() == 1);
	vmloop_ring_release(&rx);
	CHECK(rx.tail == 4096 + 16);

	set_up(4096, 4096 - 32);
	write_header(start, 24, VMLOOP_RECORD_PAD);
	write_header(0, 1016, VMLOOP_RECORD_PAD);
	adversary.producer->tx_head = start + 4096;
	CHECK(peek() == -EPROTO);
}

/* The record that was looked at becomes padding: what is released then is nothing. */
static void test_record_becomes_pad(void)
{
	set_up(4096, 4096 - 32);
	write_header(start, 24, 9);
	adversary.producer->tx_head = start + 32;
	CHECK(peek() == 1);
	write_header(start, 24, VMLOOP_RECORD_PAD);
	CHECK(peek() == 0);
	vmloop_ring_release(&rx);
	CHECK(rx.tail == start + 32);
	CHECK(rx.head == rx.tail);
	CHECK(!rx.broken);
}

/* A broken peer of one direction leaves the other direction alone. */
static void test_directions_apart(void)
{
	set_up(4096, 0);
	CHECK(put(1, 8) == 0);
	vmloop_ring_publish(&tx);
	adversary.consumer->rx_tail = 8;
	CHECK(vmloop_ring_drained(&tx) && tx.broken);
	get(1, 8);
	CHECK(!rx.broken);
}

static const struct tap_test tests[] = {
	{ "init: sizes", test_init_sizes },
	{ "init: alignment of data", test_init_alignment },
	{ "init: lanes begin anew", test_init_lanes },
	{ "record: largest", test_max_record },
	{ "record: every size, every offset", test_every_size },
	{ "record: layout", test_layout_of_record },
	{ "record: wrap and padding", test_wrap },
	{ "record: order and content", test_order },
	{ "record: reserved, not committed", test_uncommitted },
	{ "record: looked at twice", test_peek_again },
	{ "room: full to the last byte", test_full },
	{ "room: the largest fits into an empty ring", test_largest_fits },
	{ "room: drained", test_drained },
	{ "ready", test_ready },
	{ "bell: arithmetic against counting", test_bell_arithmetic },
	{ "bell: none for nothing", test_idle_publish },
	{ "sleep", test_sleep },
	{ "watch", test_watch },
	{ "wait for room", test_wait_room },
	{ "wait for room, padding included", test_wait_room_pad },
	{ "wait until it is read", test_wait_read },
	{ "no wait for room", test_no_wait },
	{ "hostile: tail", test_bad_tail },
	{ "hostile: tail when full", test_bad_tail_when_full },
	{ "hostile: wakes", test_wild_wakes },
	{ "hostile: head", test_bad_head },
	{ "hostile: head over what was not given back", test_head_over_unreleased },
	{ "hostile: records", test_bad_record },
	{ "hostile: padding alone", test_pad_alone },
	{ "hostile: a record becomes padding", test_record_becomes_pad },
	{ "hostile: directions apart", test_directions_apart },
};

int main(int argc, char **argv)
{
	return tap_run(tests, COUNT(tests), argc > 1 ? argv[1] : NULL);
}
