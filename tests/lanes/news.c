// SPDX-License-Identifier: GPL-2.0
/*
 * news.c - news between two sides: in one thread, rule by rule and at random;
 * with --threads, between two that do nothing but tell and take.
 */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "../ring/tap.h"
#include "news.h"

#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))

static struct vmloop_shm_news shared[2];
static struct vmloop_news_tx tx;	/* of the side that tells */
static struct vmloop_news_rx rx;	/* of the side that takes */

static void set_up(void)
{
	struct vmloop_news_tx unused_tx;
	struct vmloop_news_rx unused_rx;

	memset(shared, 0, sizeof(shared));
	vmloop_news_init(&tx, &unused_rx, &shared[0], &shared[1]);
	vmloop_news_init(&unused_tx, &rx, &shared[1], &shared[0]);
}

/* Takes all news; whether @lane is the only one there is. */
static bool takes_only(u32 lane)
{
	u64 groups = vmloop_news_groups(&rx);
	u32 group = lane / VMLOOP_NEWS_BITS;

	return groups == 1ULL << group &&
	       vmloop_news_lanes(&rx, group) == 1ULL << lane % VMLOOP_NEWS_BITS;
}

static void test_each_lane(void)
{
	set_up();
	for (u32 lap = 0; lap < 3; lap++) {
		for (u32 lane = 0; lane < VMLOOP_LANES_MAX; lane++) {
			tap_note("lane %u, lap %u", lane, lap);
			CHECK(vmloop_news_groups(&rx) == 0);
			CHECK(vmloop_news_tell(&tx, lane));
			CHECK(takes_only(lane));
			CHECK(vmloop_news_lanes(&rx, lane / VMLOOP_NEWS_BITS) == 0);
		}
	}
}

/* Told twice before it is taken is told once, and rung for once. */
static void test_told_twice(void)
{
	set_up();
	CHECK(vmloop_news_tell(&tx, 70));
	CHECK(!vmloop_news_tell(&tx, 70));
	CHECK(!vmloop_news_tell(&tx, 70));
	/* Another lane of a group that was rung for. */
	CHECK(!vmloop_news_tell(&tx, 71));
	/* And of one that was not. */
	CHECK(vmloop_news_tell(&tx, 4095));
	CHECK(vmloop_news_groups(&rx) == (1ULL << 1 | 1ULL << 63));
	CHECK(vmloop_news_lanes(&rx, 1) == (1ULL << 6 | 1ULL << 7));
	CHECK(vmloop_news_lanes(&rx, 63) == 1ULL << 63);
	CHECK(vmloop_news_groups(&rx) == 0);
	CHECK(vmloop_news_tell(&tx, 70));
	CHECK(takes_only(70));
}

/* Between the two takes: told again after the group was taken, it is rung for again. */
static void test_between(void)
{
	set_up();
	CHECK(vmloop_news_tell(&tx, 3));
	CHECK(vmloop_news_groups(&rx) == 1);
	/* Its bit is still to be taken, and will be. */
	CHECK(!vmloop_news_tell(&tx, 3));
	/* That of another is new, and the group is not on its way any more. */
	CHECK(vmloop_news_tell(&tx, 4));
	CHECK(vmloop_news_lanes(&rx, 0) == (1ULL << 3 | 1ULL << 4));
	/* A doorbell for what was taken with the others: for nothing. */
	CHECK(vmloop_news_groups(&rx) == 1);
	CHECK(vmloop_news_lanes(&rx, 0) == 0);
	CHECK(vmloop_news_tell(&tx, 3));
	CHECK(takes_only(3));
}

/* Who tells and who takes each keep to their own words. */
static void test_one_writer(void)
{
	struct vmloop_shm_news before;

	set_up();
	before = shared[1];
	vmloop_news_tell(&tx, 100);
	vmloop_news_tell(&tx, 300);
	CHECK(!memcmp(&before, &shared[1], sizeof(before)));
	before = shared[0];
	CHECK(before.groups_taken == 0 && before.lanes_taken[1] == 0 && before.lanes_taken[4] == 0);
	CHECK(vmloop_news_groups(&rx) == (1ULL << 1 | 1ULL << 4));
	vmloop_news_lanes(&rx, 1);
	vmloop_news_lanes(&rx, 4);
	CHECK(!memcmp(&before, &shared[0], sizeof(before)));
	CHECK(shared[1].groups_taken == before.groups && shared[1].groups == 0);
	CHECK(!memcmp(shared[1].lanes_taken, before.lanes, sizeof(before.lanes)));
}

/* At random, in any order: nothing that was told is never taken. */
static void test_random(void)
{
	static u32 told[VMLOOP_LANES_MAX];
	static u32 seen[VMLOOP_LANES_MAX];
	bool rung = false;
	u32 n = 1;

	set_up();
	memset(told, 0, sizeof(told));
	memset(seen, 0, sizeof(seen));
	for (u32 i = 0; i < 100000; i++) {
		n = n * 1664525 + 1013904223;
		if (n >> 30) {
			u32 lane = n >> 12 & (n >> 26 & 1 ? 7 : VMLOOP_LANES_MAX - 1);

			told[lane]++;
			rung |= vmloop_news_tell(&tx, lane);
			continue;
		}
		if (!rung)
			continue;
		rung = false;
		for (u64 groups = vmloop_news_groups(&rx); groups; groups &= groups - 1) {
			u32 group = (u32)__builtin_ctzll(groups);

			/* One more is told of while we are at it. */
			if (!(n >> 8 & 3)) {
				u32 lane = group * VMLOOP_NEWS_BITS + (n >> 16) % VMLOOP_NEWS_BITS;

				told[lane]++;
				rung |= vmloop_news_tell(&tx, lane);
			}
			for (u64 lanes = vmloop_news_lanes(&rx, group); lanes; lanes &= lanes - 1) {
				u32 lane = group * VMLOOP_NEWS_BITS + (u32)__builtin_ctzll(lanes);

				seen[lane] = told[lane];
			}
		}
		if (rung)
			continue;
		tap_note("step %u", i);
		CHECK(!memcmp(seen, told, sizeof(told)));
	}
}

/* Whatever the other side writes: a look at lanes, and a bell, no more. */
static void test_hostile(void)
{
	u64 groups, lanes;
	u32 n = 1;

	set_up();
	for (u32 i = 0; i < 100000; i++) {
		u64 wild = (u64)(n = n * 1664525 + 1013904223) << 32;

		wild |= n = n * 1664525 + 1013904223;
		/* Our own words as well, which it may be able to write. */
		((__u64 *)&shared[i & 1])[n % (sizeof(shared[0]) / 8)] = wild;
		switch (n >> 29) {
		case 0:
			vmloop_news_groups(&rx);
			break;
		case 1:
			vmloop_news_lanes(&rx, n >> 8 & 63);
			break;
		default:
			vmloop_news_tell(&tx, n >> 8 & (VMLOOP_LANES_MAX - 1));
		}
	}
	/* What was told and taken is known here, not read back from there. */
	memset(&shared[0], 0xa5, sizeof(shared[0]));
	shared[1].groups_taken = tx.groups;
	memcpy(shared[1].lanes_taken, tx.lanes, sizeof(tx.lanes));
	n = 130 / VMLOOP_NEWS_BITS;
	groups = tx.groups ^ 1ULL << n;
	lanes = tx.lanes[n] ^ 1ULL << 130 % VMLOOP_NEWS_BITS;
	CHECK(vmloop_news_tell(&tx, 130));
	CHECK(shared[0].groups == groups && shared[0].lanes[n] == lanes);
	CHECK(shared[0].lanes[3] == 0xa5a5a5a5a5a5a5a5);

	memset(&shared[1], 0xa5, sizeof(shared[1]));
	shared[0].groups = rx.groups ^ 5;
	shared[0].lanes[7] = rx.lanes[7] ^ 9;
	CHECK(vmloop_news_groups(&rx) == 5 && vmloop_news_lanes(&rx, 7) == 9);
	CHECK(shared[1].groups_taken == rx.groups && shared[1].lanes_taken[7] == rx.lanes[7]);
	CHECK(shared[1].lanes_taken[8] == 0xa5a5a5a5a5a5a5a5);

	/* An honest pair is at peace again after one round. */
	shared[0].groups = tx.groups;
	memcpy(shared[0].lanes, tx.lanes, sizeof(tx.lanes));
	shared[1].groups_taken = rx.groups;
	memcpy(shared[1].lanes_taken, rx.lanes, sizeof(rx.lanes));
	vmloop_news_groups(&rx);
	for (u32 group = 0; group < VMLOOP_NEWS_BITS; group++)
		vmloop_news_lanes(&rx, group);
	CHECK(vmloop_news_tell(&tx, 131));
	CHECK(takes_only(131));
}

/* Two threads --------------------------------------------------------- */

/* Lanes in three groups, few enough for the two to meet all the time. */
static const u32 busy[] = { 0, 1, 63, 64, 4095 };

#define ROUNDS		100000
#define DEADLINE	10.0	/* seconds of silence after which a bell is lost */

#define __aligned(n)	__attribute__((aligned(n)))

/* By the one that tells: how often each was told of, and the doorbell. */
static u32 news_told[COUNT(busy)] __aligned(128);
static u32 bells __aligned(128);

/* By the one that takes: what it has seen of the former. */
static u32 news_seen[COUNT(busy)] __aligned(128);

static bool over __aligned(128);

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void look_at(u32 lane)
{
	for (size_t i = 0; i < COUNT(busy); i++) {
		if (busy[i] == lane)
			__atomic_store_n(&news_seen[i],
					 __atomic_load_n(&news_told[i], __ATOMIC_RELAXED),
					 __ATOMIC_RELAXED);
	}
}

/* Does nothing but when the bell has rung. */
static void *taker(void *unused)
{
	u32 heard = 0;
	u32 idle = 0;

	(void)unused;
	while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		u32 rung = __atomic_load_n(&bells, __ATOMIC_ACQUIRE);

		if (rung == heard) {
			__builtin_ia32_pause();
			if (++idle % 1024 == 0)
				sched_yield();
			continue;
		}
		heard = rung;
		for (u64 groups = vmloop_news_groups(&rx); groups; groups &= groups - 1) {
			u32 group = (u32)__builtin_ctzll(groups);

			for (u64 lanes = vmloop_news_lanes(&rx, group); lanes; lanes &= lanes - 1)
				look_at(group * VMLOOP_NEWS_BITS + (u32)__builtin_ctzll(lanes));
		}
	}
	return NULL;
}

static void tell(u32 which)
{
	__atomic_store_n(&news_told[which], news_told[which] + 1, __ATOMIC_RELAXED);
	if (vmloop_news_tell(&tx, busy[which]))
		__atomic_store_n(&bells, bells + 1, __ATOMIC_RELEASE);
}

static bool all_seen(void)
{
	for (size_t i = 0; i < COUNT(busy); i++) {
		if (__atomic_load_n(&news_seen[i], __ATOMIC_RELAXED) != news_told[i])
			return false;
	}
	return true;
}

static void test_threads(void)
{
	bool failed = false;
	pthread_t thread;
	u32 n = 1;

	set_up();
	over = false;
	bells = 0;
	memset(news_told, 0, sizeof(news_told));
	memset(news_seen, 0, sizeof(news_seen));
	CHECK(pthread_create(&thread, NULL, taker, NULL) == 0);
	for (u32 round = 0; round < ROUNDS && !failed; round++) {
		double since = 0;

		/* The last of a few, told while the first are taken, must be seen. */
		for (u32 burst = round % 5 + 1; burst; burst--) {
			n = n * 1664525 + 1013904223;
			/* As long as a doorbell is on its way, or a bit longer. */
			for (volatile u32 turns = n >> 20 & 255; turns;)
				turns--;
			tell((n >> 8) % COUNT(busy));
		}
		for (u32 spins = 1; !all_seen(); spins++) {
			__builtin_ia32_pause();
			if (spins % 1024)
				continue;
			sched_yield();
			if (!since)
				since = now();
			if (now() - since > DEADLINE) {
				failed = true;
				break;
			}
		}
	}
	__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	CHECK(!failed);
}

static const struct tap_test tests[] = {
	{ "news: of each lane", test_each_lane },
	{ "news: told twice is told once", test_told_twice },
	{ "news: told while it is taken", test_between },
	{ "news: one writer a word", test_one_writer },
	{ "news: at random", test_random },
	{ "news: a hostile side", test_hostile },
};

static const struct tap_test two_cpus[] = {
	{ "news: two threads", test_threads },
};

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : NULL;

	if (only && !strcmp(only, "--threads"))
		return tap_run(two_cpus, COUNT(two_cpus), NULL);
	return tap_run(tests, COUNT(tests), only);
}
