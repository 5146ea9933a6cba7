// SPDX-License-Identifier: GPL-2.0
/*
 * owner.c - the shares of owners, by tables and in a memory that they fill.
 */
#include "../ring/tap.h"
#include "owner.h"

#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))
#define PAGE		((u32)VMLOOP_SHM_PAGE)
#define RING		(64U << 10)
#define MIB		(1U << 20)

#define NONE		{ VMLOOP_OWNER_NONE, 0 }
#define USER(n)		{ VMLOOP_OWNER_USER, n }
#define CGROUP(n)	{ VMLOOP_OWNER_CGROUP, n }

/* Whose a ring is, and what it adds to what user 7 and cgroup 8 have. */
static void test_whose(void)
{
	static const struct vmloop_owner asked[VMLOOP_OWNERS] = { USER(7), CGROUP(8) };
	static const struct {
		struct vmloop_owner owners[VMLOOP_OWNERS];
		bool users, cgroups;
	} rows[] = {
		{ { NONE, NONE }, false, false },
		{ { { VMLOOP_OWNER_NONE, 7 }, { VMLOOP_OWNER_NONE, 8 } }, false, false },
		{ { USER(7), NONE }, true, false },
		{ { NONE, USER(7) }, true, false },
		{ { USER(7), CGROUP(8) }, true, true },
		{ { CGROUP(8), USER(7) }, true, true },
		{ { USER(6), CGROUP(8) }, false, true },
		{ { USER(7), CGROUP(9) }, true, false },
		{ { USER(8), CGROUP(7) }, false, false },
		/* The same one twice has no more than one ring. */
		{ { USER(7), USER(7) }, true, false },
		{ { USER(7 + (1ULL << 32)), CGROUP(8 + (1ULL << 32)) }, false, false },
	};

	for (size_t i = 0; i < COUNT(rows); i++) {
		struct vmloop_owner_sum sum = { .owners = asked };

		tap_note("row %zu", i);
		vmloop_owner_add(&sum, rows[i].owners, 3 * PAGE);
		CHECK(sum.bytes[0] == (rows[i].users ? 3 * PAGE : 0));
		CHECK(sum.bytes[1] == (rows[i].cgroups ? 3 * PAGE : 0));
		vmloop_owner_add(&sum, rows[i].owners, PAGE);
		CHECK(sum.bytes[0] == (rows[i].users ? 4 * PAGE : 0));
		CHECK(sum.bytes[1] == (rows[i].cgroups ? 4 * PAGE : 0));
	}
}

/* What is nobody's counts for nobody, also where nobody asks. */
static void test_nobody(void)
{
	static const struct vmloop_owner nobody[VMLOOP_OWNERS] = { NONE, NONE };
	struct vmloop_owner_sum sum = { .owners = nobody };

	vmloop_owner_add(&sum, nobody, MIB);
	CHECK(!sum.bytes[0] && !sum.bytes[1]);
	CHECK(vmloop_owner_left(&sum, 0, 1) == ~0U);
	CHECK(vmloop_owner_left(&sum, MIB, 75) == ~0U);
}

static void test_left(void)
{
	static const struct vmloop_owner user[VMLOOP_OWNERS] = { NONE, USER(7) };
	static const struct {
		u32 has, free, share, left;
	} rows[] = {
		{ 0, MIB, 75, 3 * MIB / 4 },
		{ MIB / 4, 3 * MIB / 4, 75, MIB / 2 },
		{ 3 * MIB / 4, MIB / 4, 75, 0 },
		{ 3 * MIB / 4, MIB / 4 - PAGE, 75, 0 },
		/* Of what others leave. */
		{ 0, MIB / 4, 75, 3 * MIB / 16 },
		{ MIB / 4, MIB / 4, 75, MIB / 8 },
		{ MIB / 2, 0, 75, 0 },
		{ 0, MIB, 100, MIB },
		{ MIB / 2, MIB / 2, 100, MIB / 2 },
		{ MIB / 2, 0, 100, 0 },
		/* Whole pages. */
		{ 0, 99 * PAGE, 50, 49 * PAGE },
		{ 0, 101 * PAGE, 33, 33 * PAGE },
		/* Something in any case, whether or not it is there. */
		{ 0, MIB, 1, VMLOOP_OWNER_LEAST },
		{ 0, 0, 75, VMLOOP_OWNER_LEAST },
		{ VMLOOP_OWNER_LEAST / 2, MIB, 1, VMLOOP_OWNER_LEAST / 2 },
		{ VMLOOP_OWNER_LEAST, MIB, 1, 0 },
		{ 2 * VMLOOP_OWNER_LEAST, MIB, 1, 0 },
		/* As large as an area can be. */
		{ 0, 1U << 30, 75, 3U << 28 },
		{ 1U << 29, 1U << 29, 100, 1U << 29 },
		{ 1U << 30, 0, 99, 0 },
	};

	for (size_t i = 0; i < COUNT(rows); i++) {
		struct vmloop_owner_sum sum = { .owners = user, .bytes = { MIB, rows[i].has } };

		tap_note("row %zu", i);
		CHECK(vmloop_owner_left(&sum, rows[i].free, rows[i].share) == rows[i].left);
	}
}

/* Of two owners the one who has less left decides, whichever it is. */
static void test_both(void)
{
	static const struct vmloop_owner both[VMLOOP_OWNERS] = { USER(7), CGROUP(8) };
	struct vmloop_owner_sum sum = { .owners = both, .bytes = { MIB / 2, 0 } };

	CHECK(vmloop_owner_left(&sum, MIB / 2, 75) == MIB / 4);
	sum.bytes[0] = 0;
	sum.bytes[1] = MIB / 2;
	CHECK(vmloop_owner_left(&sum, MIB / 2, 75) == MIB / 4);
}

/* Owners who come one after the other and take all they may: each gets something. */
static void test_fill(void)
{
	static const u32 parts[] = { 768, 192, 64 };
	u32 free = MIB;

	for (u64 id = 0; id < COUNT(parts); id++) {
		struct vmloop_owner owners[VMLOOP_OWNERS] = { USER(id), NONE };
		struct vmloop_owner_sum sum = { .owners = owners };

		tap_note("owner %u", (u32)id);
		while (free >= RING && vmloop_owner_left(&sum, free, 75) >= RING) {
			vmloop_owner_add(&sum, owners, RING);
			free -= RING;
		}
		CHECK(sum.bytes[0] == parts[id] << 10);
	}
	CHECK(!free);
}

static const struct tap_test tests[] = {
	{ "owner: whose a ring is", test_whose },
	{ "owner: nobody", test_nobody },
	{ "owner: what is left", test_left },
	{ "owner: two", test_both },
	{ "owner: one after the other", test_fill },
};

int main(int argc, char **argv)
{
	return tap_run(tests, COUNT(tests), argc > 1 ? argv[1] : NULL);
}
