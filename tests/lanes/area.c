// SPDX-License-Identifier: GPL-2.0
/*
 * area.c - the allocator of ring memory against a list of who has each page.
 */
#include "../ring/tap.h"
#include "area.h"

#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))
#define PAGE		((u32)VMLOOP_SHM_PAGE)
#define PAGES_MAX	1024U

static struct vmloop_area area;
static u8 nodes[2 * PAGES_MAX];
static u32 pages;		/* of the area */
static u32 owner[PAGES_MAX];	/* which block has a page, 0 for none */

/* The blocks that were taken: where, and how many pages. */
static struct {
	u32 offset;
	u32 pages;
	bool aside;
} blocks[PAGES_MAX + 1];

static void set_up(u32 count, u32 aside_most)
{
	pages = count;
	memset(nodes, 0xff, sizeof(nodes));
	memset(owner, 0, sizeof(owner));
	memset(blocks, 0, sizeof(blocks));
	CHECK(vmloop_area_nodes(count) <= sizeof(nodes));
	CHECK(vmloop_area_init(&area, nodes, count, aside_most) == 0);
	tap_note("%u pages", count);
}

/* How many pages nobody has. */
static u32 free_pages(void)
{
	u32 count = 0;

	for (u32 n = 0; n < pages; n++)
		count += !owner[n];
	return count;
}

/* Whether so many pages in a row are free, where such a block may begin. */
static bool is_there(u32 count)
{
	for (u32 begin = 0; begin + count <= pages; begin += count) {
		u32 n = 0;

		while (n < count && !owner[begin + n])
			n++;
		if (n == count)
			return true;
	}
	return false;
}

/* What the allocator says is left, and the largest block of it. */
static void check_left(void)
{
	u32 count = 1U << 31;

	while (count && (count > pages || !is_there(count)))
		count /= 2;
	CHECK(area.left == free_pages());
	CHECK(vmloop_area_largest(&area) == count);
}

/* Takes a block of so many pages, and checks that it is one. */
static bool take(u32 number, u32 count)
{
	u32 offset = 0xdeadbeef;
	int result = vmloop_area_take(&area, count * PAGE, &offset);

	CHECK(result == (is_there(count) ? 0 : -ENOSPC));
	if (result) {
		CHECK(offset == 0xdeadbeef);
		return false;
	}
	CHECK(offset % (count * PAGE) == 0);
	CHECK(offset / PAGE + count <= pages);
	for (u32 n = 0; n < count; n++) {
		CHECK(!owner[offset / PAGE + n]);
		owner[offset / PAGE + n] = number;
	}
	check_left();
	blocks[number].offset = offset;
	blocks[number].pages = count;
	return true;
}

static void give(u32 number)
{
	u32 offset = blocks[number].offset;

	CHECK(vmloop_area_give(&area, offset) == 0);
	for (u32 n = 0; n < blocks[number].pages; n++)
		owner[offset / PAGE + n] = 0;
	check_left();
	memset(&blocks[number], 0, sizeof(blocks[number]));
}

static void test_sizes(void)
{
	static const u32 bad[] = {
		0, 1, 2048, 4095, 4097, 6144, 12288, 3U << 30, 0xffffffff, 0x80000001,
	};
	static u8 large[2 * VMLOOP_AREA_MAX];
	u32 offset;

	set_up(64, 0);
	for (size_t i = 0; i < COUNT(bad); i++) {
		tap_note("size %u", bad[i]);
		CHECK(vmloop_area_take(&area, bad[i], &offset) == -EINVAL);
	}
	CHECK(vmloop_area_take(&area, 1U << 31, &offset) == -ENOSPC);
	CHECK(vmloop_area_take(&area, 128 * PAGE, &offset) == -ENOSPC);
	CHECK(vmloop_area_take(&area, 64 * PAGE, &offset) == 0 && offset == 0);
	CHECK(vmloop_area_take(&area, PAGE, &offset) == -ENOSPC);

	CHECK(vmloop_area_init(&area, nodes, 0, 0) == -EINVAL);
	CHECK(vmloop_area_init(&area, nodes, VMLOOP_AREA_MAX + 1, 0) == -EINVAL);
	CHECK(vmloop_area_nodes(1) == 2 && vmloop_area_nodes(2) == 4);
	CHECK(vmloop_area_nodes(3) == 8 && vmloop_area_nodes(1024) == 2048);
	CHECK(vmloop_area_nodes(VMLOOP_AREA_MAX) == sizeof(large));
	CHECK(vmloop_area_init(&area, large, VMLOOP_AREA_MAX, 0) == 0);
	CHECK(vmloop_area_take(&area, 1U << 29, &offset) == 0 && offset == 0);
	CHECK(vmloop_area_take(&area, 1U << 29, &offset) == 0 && offset == 1U << 29);
	CHECK(vmloop_area_take(&area, PAGE, &offset) == -ENOSPC);
	CHECK(vmloop_area_give(&area, 1U << 29) == 0);
	CHECK(vmloop_area_take(&area, PAGE, &offset) == 0 && offset == 1U << 29);
}

/* At random, in areas of all sizes: what is free is given out, and nothing else. */
static void test_random(void)
{
	static const u32 counts[] = { 1, 2, 3, 5, 8, 31, 64, 100, 1000, 1024 };

	for (size_t i = 0; i < COUNT(counts); i++) {
		u32 order = 0;
		u32 n = 1;

		set_up(counts[i], 0);
		for (u32 round = 0; round < 20000; round++) {
			u32 number = 1 + (n = n * 1664525 + 1013904223) % pages;

			if (blocks[number].pages)
				give(number);
			else
				take(number, 1U << (n >> 28 & 7) % 6);
		}
		/* When all of it is back, the largest blocks are there again. */
		for (u32 number = 1; number <= pages; number++) {
			if (blocks[number].pages)
				give(number);
		}
		while (2U << order <= pages)
			order++;
		CHECK(take(1, 1U << order));
	}
}

/* Small blocks are taken from what is broken already, then from the left. */
static void test_best_fit(void)
{
	set_up(64, 0);
	for (u32 number = 1; number <= 8; number++)
		CHECK(take(number, 8));
	give(2);
	give(5);
	give(6);
	CHECK(take(10, 1) && blocks[10].offset == 8 * PAGE);
	CHECK(take(11, 4) && blocks[11].offset == 12 * PAGE);
	CHECK(take(12, 2) && blocks[12].offset == 10 * PAGE);
	CHECK(take(13, 1) && blocks[13].offset == 9 * PAGE);
	/* The large one was left alone. */
	CHECK(take(14, 16) && blocks[14].offset == 32 * PAGE);
	CHECK(!take(15, 1));
	/* So is one that is further left. */
	give(1);
	give(10);
	give(11);
	give(12);
	give(13);
	give(7);
	CHECK(take(15, 4) && blocks[15].offset == 48 * PAGE);
	CHECK(take(16, 16) && blocks[16].offset == 0);
}

/* Only what was taken, and where it begins, can be given back, and once. */
static void test_not_taken(void)
{
	set_up(24, 24);
	CHECK(take(1, 4) && take(2, 1) && take(3, 8));
	for (u32 offset = 0; offset < 64 * PAGE; offset += PAGE / 2) {
		bool begins = offset == blocks[1].offset || offset == blocks[2].offset ||
			      offset == blocks[3].offset;

		tap_note("offset %#x", offset);
		if (begins)
			continue;
		CHECK(vmloop_area_give(&area, offset) == -EINVAL);
		CHECK(vmloop_area_set_aside(&area, offset) == -EINVAL);
	}
	CHECK(vmloop_area_give(&area, 0xfffff000) == -EINVAL);
	CHECK(vmloop_area_give(&area, 0x80000000) == -EINVAL);
	CHECK(area.aside == 0);
	for (u32 number = 1; number <= 3; number++) {
		u32 offset = blocks[number].offset;

		give(number);
		CHECK(vmloop_area_give(&area, offset) == -EINVAL);
		CHECK(vmloop_area_set_aside(&area, offset) == -EINVAL);
	}
	CHECK(take(1, 16) && take(2, 8) && !take(3, 1));
}

/* What a peer does not let go of is not given out, and bounds what is. */
static void test_aside(void)
{
	u32 offset;

	set_up(64, 12);
	for (u32 number = 1; number <= 16; number++)
		CHECK(take(number, 4));
	for (u32 number = 1; number <= 3; number++)
		CHECK(vmloop_area_set_aside(&area, blocks[number].offset) == 0);
	CHECK(area.aside == 12);
	CHECK(vmloop_area_set_aside(&area, blocks[1].offset) == -EINVAL);
	CHECK(area.aside == 12);
	CHECK(!take(20, 1));
	give(16);
	CHECK(take(16, 4));
	/* One more is too much, also for what would fit. */
	give(15);
	CHECK(vmloop_area_set_aside(&area, blocks[4].offset) == 0);
	CHECK(vmloop_area_take(&area, PAGE, &offset) == -EBUSY);
	CHECK(vmloop_area_take(&area, PAGE / 2, &offset) == -EINVAL);
	/* Until the peer lets go of any of it. */
	give(2);
	CHECK(area.aside == 12);
	CHECK(take(2, 4) && take(15, 4));
	CHECK(!take(20, 1));
	give(1);
	give(3);
	give(4);
	CHECK(area.aside == 0);
	CHECK(take(1, 4) && take(3, 4) && take(4, 4) && !take(20, 1));
}

static const struct tap_test tests[] = {
	{ "area: sizes", test_sizes },
	{ "area: at random", test_random },
	{ "area: the smallest that is large enough", test_best_fit },
	{ "area: what was not taken", test_not_taken },
	{ "area: set aside", test_aside },
};

int main(int argc, char **argv)
{
	return tap_run(tests, COUNT(tests), argc > 1 ? argv[1] : NULL);
}
