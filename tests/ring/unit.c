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

static int tx_init(enum vmloop_ring_grain grain, u8 *data, u32 ring_size, u32 position)
{
	return vmloop_ring_tx_init(&tx, grain, data, ring_size, position, producer.producer,
				   producer.consumer);
}

static int rx_init(enum vmloop_ring_grain grain, const u8 *data, u32 ring_size, u32 position)
{
	return vmloop_ring_rx_init(&rx, grain, data, ring_size, position, consumer.consumer,
				   consumer.producer);
}

static void set_up_as(enum vmloop_ring_grain grain, u32 ring_size, u32 start_position)
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
	CHECK(tx_init(grain, producer.data, size, start) == 0);
	CHECK(rx_init(grain, consumer.data, size, start) == 0);
	tap_note("ring %u, start %#x", size, start);
}

static void set_up(u32 ring_size, u32 start_position)
{
	set_up_as(VMLOOP_RING_RECORDS, ring_size, start_position);
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
		CHECK(tx_init(VMLOOP_RING_RECORDS, producer.data, rows[i].size, 0) ==
		      rows[i].result);
		CHECK(rx_init(VMLOOP_RING_RECORDS, consumer.data, rows[i].size, 0) ==
		      rows[i].result);
		CHECK(tx_init(VMLOOP_RING_BYTES, producer.data, rows[i].size, 0) ==
		      rows[i].result);
		CHECK(rx_init(VMLOOP_RING_BYTES, consumer.data, rows[i].size, 0) ==
		      rows[i].result);
	}
}

static void test_init_alignment(void)
{
	set_up(4096, 0);
	for (u32 off = 1; off <= 16; off++) {
		int result = off == 16 ? 0 : -EINVAL;

		tap_note("off by %u", off);
		CHECK(tx_init(VMLOOP_RING_RECORDS, producer.data + off, 4096, 0) == result);
		CHECK(rx_init(VMLOOP_RING_RECORDS, consumer.data + off, 4096, 0) == result);
		CHECK(tx_init(VMLOOP_RING_RECORDS, producer.data, 4096, off) == result);
		CHECK(rx_init(VMLOOP_RING_RECORDS, consumer.data, 4096, off) == result);
		CHECK(tx_init(VMLOOP_RING_BYTES, producer.data + off, 4096, off) == 0);
		CHECK(rx_init(VMLOOP_RING_BYTES, consumer.data + off, 4096, off) == 0);
	}
}

/*
 * A ring begins where it is told to, whatever was in the lanes, and asks to be
 * woken.
 */
static void body_init_lanes(void)
{
	memset(adversary.producer, 0xa5, sizeof(*adversary.producer));
	memset(adversary.consumer, 0x5a, sizeof(*adversary.consumer));
	CHECK(tx_init(VMLOOP_RING_RECORDS, producer.data, size, start) == 0);
	CHECK(producer.producer->tx_head == start);
	CHECK(producer.consumer->rx_tail == 0x5a5a5a5a);
	CHECK(rx_init(VMLOOP_RING_RECORDS, consumer.data, size, start) == 0);
	CHECK(producer.consumer->rx_tail == start);
	CHECK(producer.producer->rx_tail == 0xa5a5a5a5);
	CHECK(vmloop_ring_drained(&tx) && peek() == 0);

	/* The first record rings: a consumer that began is as good as asleep. */
	CHECK(put(1, 100) == 0);
	CHECK(vmloop_ring_publish(&tx));
	get(1, 100);
	/* And nobody waits for room. */
	CHECK(!vmloop_ring_consume_publish(&rx));

	/* Nor in a new region, which is zeroed. */
	memset(adversary.producer, 0, sizeof(*adversary.producer));
	memset(adversary.consumer, 0, sizeof(*adversary.consumer));
	CHECK(tx_init(VMLOOP_RING_RECORDS, producer.data, size, start) == 0);
	CHECK(rx_init(VMLOOP_RING_RECORDS, consumer.data, size, start) == 0);
	CHECK(put(1, 100) == 0);
	CHECK(vmloop_ring_publish(&tx));
	get(1, 100);
	CHECK(!vmloop_ring_consume_publish(&rx));
}

static void test_init_lanes(void)
{
	everywhere(body_init_lanes);
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

/* Who wants to hear of each arrival is rung for, though nothing is read. */
static void body_wait_after(void)
{
	for (u32 i = 0; i < 40; i++) {
		CHECK(vmloop_ring_wait_after(&rx, vmloop_ring_seen(&rx)));
		CHECK(put(1, i) == 0);
		CHECK(vmloop_ring_publish(&tx));
		/* Not asked again, not rung for. */
		CHECK(put(2, i) == 0);
		CHECK(!vmloop_ring_publish(&tx));
		/* What there is by now is not waited for. */
		CHECK(vmloop_ring_wait_after(&rx, vmloop_ring_seen(&rx)));
		CHECK(put(3, i) == 0);
		CHECK(vmloop_ring_publish(&tx));
		/* Nothing of the consumer's has changed: all is still to be read. */
		for (u32 n = 1; n <= 3; n++)
			get(n, i);
		vmloop_ring_consume_publish(&rx);
	}
	/* What has come since it looked is not waited for. */
	u32 seen = vmloop_ring_seen(&rx);

	CHECK(put(4, 4) == 0);
	vmloop_ring_publish(&tx);
	CHECK(!vmloop_ring_wait_after(&rx, seen));
	get(4, 4);
	vmloop_ring_consume_publish(&rx);
	/* It is a hint, too: it believes nothing. */
	adversary.producer->tx_head = rx.tail + 1;
	CHECK(vmloop_ring_wait_after(&rx, vmloop_ring_seen(&rx)));
	CHECK(!rx.broken);
}

static void test_wait_after(void)
{
	everywhere(body_wait_after);
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

/* Bytes ------------------------------------------------------------------ */

/* Runs @body for rings of bytes; they begin anywhere, also between words. */
static void everywhere_bytes(void (*body)(void))
{
	static const u32 sizes[] = { 4096, 16384 };

	for (size_t i = 0; i < COUNT(sizes); i++) {
		const u32 s = sizes[i];
		const u32 starts[] = {
			0, 1, 16, s - 1, s / 2 + 7, (1U << 31) - 3, 0U - 1, 0U - s / 2 + 5,
			0U - s, 0U - 2 * s - 9,
		};

		for (size_t n = 0; n < COUNT(starts); n++) {
			set_up_as(VMLOOP_RING_BYTES, s, starts[n]);
			body();
		}
	}
}

/* The byte at @position of the stream: each differs from those a ring before. */
static u8 byte_at(u32 position)
{
	return pattern(position / 251, position % 251);
}

/* Writes up to @bytes of the stream, in as many pieces as it takes. */
static u32 write_bytes(u32 bytes)
{
	u32 written = 0;

	while (written < bytes) {
		void *where = NULL;
		u32 n = vmloop_ring_space(&tx, bytes - written, &where);
		u8 *at = where;

		if (!n)
			break;
		CHECK(at == producer.data + (tx.head & (size - 1)));
		CHECK(at + n <= producer.data + size);
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
	u32 seen = 0;

	while (seen < bytes) {
		const void *where = NULL;
		u32 n = vmloop_ring_bytes(&rx, skip + seen, bytes - seen, &where);
		const u8 *at = where;

		if (!n)
			break;
		CHECK(at == consumer.data + ((rx.tail + skip + seen) & (size - 1)));
		CHECK(at + n <= consumer.data + size);
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

/* Pieces of all sizes, written and read in different ones, over many laps. */
static void body_bytes_order(void)
{
	u32 produced = 0;
	u32 consumed = 0;
	u32 n = 1;

	while (produced < 5 * size) {
		n = n * 1664525 + 1013904223;
		produced += write_bytes(n >> 20);
		vmloop_ring_publish(&tx);
		n = n * 1664525 + 1013904223;
		consumed += read_bytes(n >> 20);
		CHECK(tx.head - start == produced && rx.tail - start == consumed);
		vmloop_ring_consume_publish(&rx);
	}
	consumed += read_bytes(size);
	CHECK(consumed == produced);
	CHECK(look_bytes(0, 1) == 0);
	CHECK(!tx.broken && !rx.broken);
}

static void test_bytes_order(void)
{
	everywhere_bytes(body_bytes_order);
}

static void body_bytes_full(void)
{
	/* To the last byte, and not one more. */
	CHECK(write_bytes(size + 1) == size);
	CHECK(look_bytes(0, 1) == 0);
	CHECK(!vmloop_ring_drained(&tx));
	vmloop_ring_publish(&tx);
	CHECK(look_bytes(0, size + 1) == size);

	/* Taken is not given back. */
	vmloop_ring_take(&rx, 1);
	CHECK(write_bytes(1) == 0);
	vmloop_ring_consume_publish(&rx);
	CHECK(write_bytes(2) == 1);
	vmloop_ring_publish(&tx);
	CHECK(read_bytes(size) == size);
	vmloop_ring_consume_publish(&rx);
	CHECK(vmloop_ring_drained(&tx));
	CHECK(!tx.broken && !rx.broken);
}

static void test_bytes_full(void)
{
	everywhere_bytes(body_bytes_full);
}

/* Neither end asks the other for its position while it has what it wants. */
static void body_bytes_lazy(void)
{
	const void *from;
	void *to;

	CHECK(write_bytes(100) == 100);
	vmloop_ring_publish(&tx);
	CHECK(read_bytes(10) == 10);
	vmloop_ring_consume_publish(&rx);
	CHECK(write_bytes(50) == 50);
	vmloop_ring_publish(&tx);

	CHECK(rx.head - start == 100 && tx.tail == start);
	vmloop_ring_bytes(&rx, 0, 90, &from);
	vmloop_ring_bytes(&rx, 40, 50, &from);
	vmloop_ring_space(&tx, size - 150, &to);
	CHECK(rx.head - start == 100 && tx.tail == start);
	vmloop_ring_bytes(&rx, 41, 50, &from);
	vmloop_ring_space(&tx, size - 149, &to);
	CHECK(rx.head - start == 150 && tx.tail - start == 10);

	/* All that anybody can want, and more. */
	CHECK(look_bytes(0, 140) == 140);
	CHECK(vmloop_ring_bytes(&rx, 1, 0xffffffff, &from) > 0);
	CHECK(write_bytes(10) == 10);
	vmloop_ring_publish(&tx);
	CHECK(vmloop_ring_bytes(&rx, 1, 0xffffffff, &from) > 0);
	CHECK(rx.head - start == 160);
	CHECK(vmloop_ring_space(&tx, 0xffffffff, &to) > 0);
	/* Behind the last byte there is none. */
	CHECK(vmloop_ring_bytes(&rx, 150, 1, &from) == 0);
	CHECK(vmloop_ring_bytes(&rx, size, 1, &from) == 0);
	CHECK(!rx.broken && !tx.broken);
}

static void test_bytes_lazy(void)
{
	everywhere_bytes(body_bytes_lazy);
}

/* Each byte is one more than none, for the doorbells as well. */
static void body_bytes_bell(void)
{
	static const u32 moves[] = { 1, 2, 15, 100 };

	for (size_t m = 0; m < COUNT(moves); m++) {
		for (int w = -3; w < (int)moves[m] + 3; w++) {
			u32 old = tx.head;
			u32 wake = old + (u32)w;

			CHECK(write_bytes(moves[m]) == moves[m]);
			tap_note("from %#x to %#x, wake %#x", old, tx.head, wake);
			adversary.consumer->rx_wake = wake;
			CHECK(vmloop_ring_publish(&tx) == passes(wake, tx.head, old));
			CHECK(read_bytes(moves[m]) == moves[m]);
			adversary.producer->tx_wake = wake;
			CHECK(vmloop_ring_consume_publish(&rx) == passes(wake, rx.tail, old));
		}
	}
}

static void test_bytes_bell(void)
{
	everywhere_bytes(body_bytes_bell);
}

/* Asked for so many, the bell rings at exactly that byte. */
static void body_bytes_wait(void)
{
	static const u32 counts[] = { 1, 2, 3, 17, 64 };

	for (size_t i = 0; i < COUNT(counts); i++) {
		u32 wanted = counts[i];

		tap_note("ring %u, start %#x, waiting for %u bytes", size, start, wanted);
		CHECK(vmloop_ring_wait_bytes(&rx, wanted));
		for (u32 n = 1; n <= wanted; n++) {
			CHECK(write_bytes(1) == 1);
			CHECK(vmloop_ring_publish(&tx) == (n == wanted));
			CHECK(vmloop_ring_wait_bytes(&rx, wanted) == (n < wanted));
			/* What is there is no reason not to wait for more. */
			CHECK(vmloop_ring_wait_bytes(&rx, n + 1));
			vmloop_ring_wait_bytes(&rx, wanted);
		}
		CHECK(!vmloop_ring_sleep(&rx));
		CHECK(read_bytes(wanted) == wanted);
		vmloop_ring_consume_publish(&rx);
		CHECK(vmloop_ring_sleep(&rx));
		CHECK(write_bytes(1) == 1);
		CHECK(vmloop_ring_publish(&tx));
		CHECK(read_bytes(1) == 1);
		vmloop_ring_consume_publish(&rx);
		/* Who watches is not rung for. */
		CHECK(vmloop_ring_sleep(&rx));
		vmloop_ring_watch(&rx);
		CHECK(!vmloop_ring_moved(&rx));
		CHECK(write_bytes(40) == 40);
		CHECK(!vmloop_ring_publish(&tx));
		CHECK(vmloop_ring_moved(&rx));
		CHECK(read_bytes(40) == 40);
		vmloop_ring_consume_publish(&rx);
	}
}

static void test_bytes_wait(void)
{
	everywhere_bytes(body_bytes_wait);
}

/* A full ring that is read byte by byte: one bell, not too early, never too late. */
static void body_bytes_wait_space(void)
{
	const u32 counts[] = { 0, 1, size / 4 - 1, size / 4, size / 4 + 1, size / 2 + 3,
			       size - 1, size, size + 1, 0xffffffff };

	for (size_t i = 0; i < COUNT(counts); i++) {
		u32 want = counts[i] < size / 4 ? size / 4 : counts[i] > size ? size : counts[i];
		u32 bells = 0;

		tap_note("ring %u, start %#x, waiting for room for %u", size, start, counts[i]);
		CHECK(!vmloop_ring_wait_space(&tx, counts[i]));
		CHECK(write_bytes(size) == size);
		vmloop_ring_publish(&tx);
		CHECK(vmloop_ring_wait_space(&tx, counts[i]));
		for (u32 n = 1; n <= size; n++) {
			vmloop_ring_take(&rx, look_bytes(0, 1));
			if (vmloop_ring_consume_publish(&rx)) {
				bells++;
				CHECK(n == want);
				CHECK(!vmloop_ring_wait_space(&tx, counts[i]));
			}
		}
		CHECK(bells == 1);
		CHECK(vmloop_ring_drained(&tx));
	}
}

/* Somebody beside the producer is told when a quarter is free, and not before. */
static void body_bytes_wait_beside(void)
{
	u32 quarter = size / 4;

	CHECK(!vmloop_ring_wait_space_beside(&tx));
	write_bytes(size - quarter);
	vmloop_ring_publish(&tx);
	CHECK(!vmloop_ring_wait_space_beside(&tx));
	write_bytes(1);
	vmloop_ring_publish(&tx);
	CHECK(vmloop_ring_wait_space_beside(&tx));
	write_bytes(quarter - 1);
	vmloop_ring_publish(&tx);
	/* What it asked for then is early by now. */
	read_bytes(1);
	CHECK(vmloop_ring_consume_publish(&rx));
	CHECK(vmloop_ring_wait_space_beside(&tx));
	read_bytes(quarter - 2);
	CHECK(!vmloop_ring_consume_publish(&rx));
	read_bytes(1);
	CHECK(vmloop_ring_consume_publish(&rx));
	CHECK(!vmloop_ring_wait_space_beside(&tx));
	/* It believes nothing of what the other side says. */
	adversary.consumer->rx_tail = tx.published + 1;
	vmloop_ring_wait_space_beside(&tx);
	CHECK(!tx.broken);
}

static void test_bytes_wait_beside(void)
{
	everywhere_bytes(body_bytes_wait_beside);
}

static void test_bytes_wait_space(void)
{
	everywhere_bytes(body_bytes_wait_space);
}

/* What is counted as unread is what is there to take back, byte for byte. */
static void check_unread(u32 unread)
{
	u32 seen = 0;

	for (;;) {
		const void *where = NULL;
		u32 n = vmloop_ring_unread(&tx, seen, &where);
		const u8 *at = where;

		if (!n)
			break;
		CHECK(at >= producer.data && at + n <= producer.data + size);
		for (u32 i = 0; i < n; i++)
			CHECK(at[i] == byte_at(tx.head - unread + seen + i));
		seen += n;
	}
	CHECK(seen == unread);
	CHECK(vmloop_ring_unread(&tx, unread + 1, &(const void *){ NULL }) == 0);
}

static void body_bytes_account(void)
{
	u32 unread = 0;

	CHECK(vmloop_ring_account(&tx) == 0);
	check_unread(0);
	for (u32 n = 1; n < 200; n += 7) {
		CHECK(write_bytes(size) == size - unread);
		if (n & 1)
			vmloop_ring_publish(&tx);
		/* Not yet published, and not yet given back: unread. */
		CHECK(vmloop_ring_account(&tx) == size);
		check_unread(size);
		vmloop_ring_publish(&tx);
		CHECK(read_bytes(n) == n);
		CHECK(vmloop_ring_account(&tx) == size);
		vmloop_ring_consume_publish(&rx);
		unread = size - n;
		/* What was last seen holds until the account is asked for. */
		check_unread(size);
		CHECK(vmloop_ring_account(&tx) == unread);
		check_unread(unread);
	}
	/* A lie counts for nothing: up to where it was believed. */
	adversary.consumer->rx_tail = tx.head + 1;
	CHECK(vmloop_ring_account(&tx) == unread);
	CHECK(tx.broken == VMLOOP_RING_TAIL);
	check_unread(unread);
	adversary.consumer->rx_tail = tx.head;
	CHECK(vmloop_ring_account(&tx) == unread);
}

static void test_bytes_account(void)
{
	everywhere_bytes(body_bytes_account);
}

/* Records are counted as well, with their headers and padding. */
static void body_records_account(void)
{
	CHECK(vmloop_ring_account(&tx) == 0);
	CHECK(put(1, 40) == 0);
	CHECK(put(2, 8) == 0);
	CHECK(vmloop_ring_account(&tx) == tx.head - start);
	vmloop_ring_publish(&tx);
	get(1, 40);
	vmloop_ring_consume_publish(&rx);
	CHECK(vmloop_ring_account(&tx) == tx.head - rx.tail);
	get(2, 8);
	vmloop_ring_consume_publish(&rx);
	CHECK(vmloop_ring_account(&tx) == 0);
}

static void test_records_account(void)
{
	everywhere(body_records_account);
}

/* The next generation of a lane begins where the last one ended. */
static void body_bytes_again(void)
{
	u32 end;

	CHECK(write_bytes(1234) == 1234);
	vmloop_ring_publish(&tx);
	CHECK(read_bytes(1000) == 1000);
	vmloop_ring_consume_publish(&rx);
	CHECK(vmloop_ring_account(&tx) == 234);
	end = tx.head;

	CHECK(tx_init(VMLOOP_RING_BYTES, producer.data, size, end) == 0);
	CHECK(rx_init(VMLOOP_RING_BYTES, consumer.data, size, end) == 0);
	CHECK(vmloop_ring_account(&tx) == 0 && look_bytes(0, 1) == 0);
	/* What the last one read is a position before the first of this one. */
	adversary.consumer->rx_tail = end - 234;
	CHECK(vmloop_ring_account(&tx) == 0);
	CHECK(write_bytes(10) == 10);
	vmloop_ring_publish(&tx);
	vmloop_ring_account(&tx);
	CHECK(tx.broken == VMLOOP_RING_TAIL);
}

static void test_bytes_again(void)
{
	everywhere_bytes(body_bytes_again);
}

/* Positions that cannot be, though any of them may be odd. @unread: 3 are. */
static const struct {
	int offset;	/* from what is published */
	bool broken;
} byte_tails[] = {
	{ 0, false }, { -1, false }, { -2, false }, { -3, false }, { -4, true }, { 1, true },
	{ 4096, true }, { -4096, true }, { -0x7fffffff - 1, true },
};

static void body_bytes_bad_tail(void)
{
	for (size_t i = 0; i < COUNT(byte_tails); i++) {
		void *at = NULL;

		set_up_as(VMLOOP_RING_BYTES, size, start);
		tap_note("start %#x, tail off by %d", start, byte_tails[i].offset);
		CHECK(write_bytes(3) == 3);
		vmloop_ring_publish(&tx);
		CHECK(write_bytes(2) == 2);
		adversary.consumer->rx_tail = tx.published + (u32)byte_tails[i].offset;
		vmloop_ring_account(&tx);
		CHECK(tx.broken == (byte_tails[i].broken ? VMLOOP_RING_TAIL : VMLOOP_RING_GOOD));
		if (!tx.broken)
			continue;
		adversary.consumer->rx_tail = start;
		CHECK(vmloop_ring_space(&tx, 1, &at) == 0 && !at);
		CHECK(!vmloop_ring_wait_space(&tx, 1));
		CHECK(!vmloop_ring_publish(&tx));
	}
}

static void test_bytes_bad_tail(void)
{
	everywhere_bytes(body_bytes_bad_tail);
}

/* From the last head that was believed; 10 bytes of it are still unread. */
static const struct {
	int offset;
	bool broken;
} byte_heads[] = {
	{ 0, false }, { 1, false }, { 4086, false }, { 4087, true }, { -1, true }, { -10, true },
	{ -11, true }, { 4096, true }, { -0x7fffffff - 1, true },
};

static void body_bytes_bad_head(void)
{
	if (size != 4096)
		return;
	for (size_t i = 0; i < COUNT(byte_heads); i++) {
		const void *at = NULL;
		u32 head;

		set_up_as(VMLOOP_RING_BYTES, size, start);
		tap_note("start %#x, head off by %d", start, byte_heads[i].offset);
		CHECK(write_bytes(30) == 30);
		vmloop_ring_publish(&tx);
		CHECK(read_bytes(20) == 20);
		vmloop_ring_consume_publish(&rx);
		head = rx.head;
		adversary.producer->tx_head = head + (u32)byte_heads[i].offset;
		/* Not looked at while there is what is wanted. */
		CHECK(vmloop_ring_bytes(&rx, 0, 10, &at) > 0 && rx.head == head);
		at = NULL;
		vmloop_ring_bytes(&rx, 0, 11, &at);
		CHECK(rx.broken == (byte_heads[i].broken ? VMLOOP_RING_HEAD : VMLOOP_RING_GOOD));
		if (!rx.broken)
			continue;
		CHECK(!at);
		adversary.producer->tx_head = head;
		CHECK(vmloop_ring_bytes(&rx, 0, 1, &at) == 0 && !at);
		CHECK(!vmloop_ring_wait_bytes(&rx, 20));
		CHECK(vmloop_ring_ready(&rx));
		rx.tail++;
		CHECK(!vmloop_ring_consume_publish(&rx));
	}
}

static void test_bytes_bad_head(void)
{
	everywhere_bytes(body_bytes_bad_head);
}

static const struct tap_test tests[] = {
	{ "init: sizes", test_init_sizes },
	{ "init: alignment", test_init_alignment },
	{ "init: lanes begin where they are told to", test_init_lanes },
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
	{ "wait_after", test_wait_after },
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
	{ "account: records", test_records_account },
	{ "bytes: order and content", test_bytes_order },
	{ "bytes: full to the last byte", test_bytes_full },
	{ "bytes: no look at the other side without need", test_bytes_lazy },
	{ "bytes: bell arithmetic against counting", test_bytes_bell },
	{ "bytes: wait for so many", test_bytes_wait },
	{ "bytes: wait for space", test_bytes_wait_space },
	{ "bytes: wait for space beside", test_bytes_wait_beside },
	{ "bytes: account to the byte", test_bytes_account },
	{ "bytes: begin where the last ended", test_bytes_again },
	{ "bytes: hostile tail", test_bytes_bad_tail },
	{ "bytes: hostile head", test_bytes_bad_head },
};

int main(int argc, char **argv)
{
	return tap_run(tests, COUNT(tests), argc > 1 ? argv[1] : NULL);
}
