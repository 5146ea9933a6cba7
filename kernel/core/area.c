// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * area.c - memory for rings; see area.h for the rules.
 */
#include "area.h"

/*
 * A node: the order of the largest free block below it, plus one, or one of these
 * if it is a block that was taken. What is below such a one means nothing.
 */
#define TAKEN	0x40
#define ASIDE	0x80

/* The order of the largest free block below a node, or that it is, plus one. */
static u32 largest(const struct vmloop_area *area, u32 node)
{
	return area->node[node] & (TAKEN | ASIDE) ? 0 : area->node[node];
}

/* A node of @order, from the two below it. */
static void update(struct vmloop_area *area, u32 node, u32 order)
{
	u32 left = largest(area, 2 * node);
	u32 right = largest(area, 2 * node + 1);

	/* Two that are free, all of them, are one. */
	if (left == order && right == order)
		area->node[node] = order + 1;
	else
		area->node[node] = left > right ? left : right;
}

/* All nodes above one of @order that has changed. */
static void update_above(struct vmloop_area *area, u32 node, u32 order)
{
	while (node > 1) {
		node /= 2;
		update(area, node, ++order);
	}
}

static u32 order_of(u32 pages)
{
	u32 order = 0;

	while (1U << order < pages)
		order++;
	return order;
}

/**
 * vmloop_area_nodes() - memory that an area needs
 * @pages: how many it has, VMLOOP_AREA_MAX at most
 *
 * Return: bytes.
 */
u32 vmloop_area_nodes(u32 pages)
{
	return 2U << order_of(pages);
}

/**
 * vmloop_area_init() - all pages are free
 * @area: what to initialise
 * @node: vmloop_area_nodes() bytes
 * @pages: how many there are
 * @aside_most: how many may be set aside before nothing is given out any more
 *
 * Return: 0, or -EINVAL for none, or too many.
 */
int vmloop_area_init(struct vmloop_area *area, u8 *node, u32 pages, u32 aside_most)
{
	u32 order, level, n;

	if (!pages || pages > VMLOOP_AREA_MAX)
		return -EINVAL;

	order = order_of(pages);
	*area = (struct vmloop_area){
		.node = node,
		.order = order,
		.left = pages,
		.aside_most = aside_most,
	};
	for (n = 0; n < 1U << order; n++)
		node[(1U << order) + n] = n < pages;
	for (level = 1; level <= order; level++)
		for (n = 1U << (order - level); n < 2U << (order - level); n++)
			update(area, n, level);
	return 0;
}

/**
 * vmloop_area_take() - memory for a ring
 * @area: where from
 * @size: its bytes, a power of two from VMLOOP_SHM_PAGE on
 * @offset: set to where it begins, a multiple of @size
 *
 * Takes from the smallest block that is large enough, so that large ones stay.
 *
 * Return: 0; -EINVAL for a size that there is not; -ENOSPC while no block is
 * large enough; -EBUSY while too much is set aside.
 */
int vmloop_area_take(struct vmloop_area *area, u32 size, u32 *offset)
{
	u32 order, at, node;

	if (size < VMLOOP_SHM_PAGE || !is_power_of_2(size))
		return -EINVAL;
	if (area->aside > area->aside_most)
		return -EBUSY;
	order = order_of(size / VMLOOP_SHM_PAGE);
	if (largest(area, 1) <= order)
		return -ENOSPC;

	node = 1;
	for (at = area->order; at > order; at--) {
		u32 left = largest(area, 2 * node);
		u32 right = largest(area, 2 * node + 1);

		node *= 2;
		if (left <= order || (right > order && right < left))
			node++;
	}
	area->node[node] = TAKEN;
	area->left -= 1U << order;
	*offset = ((node << order) - (1U << area->order)) * VMLOOP_SHM_PAGE;
	update_above(area, node, order);
	return 0;
}

/* The node of the block that begins at @offset, and its order; 0 if none does. */
static u32 find(const struct vmloop_area *area, u32 offset, u32 *order)
{
	u32 node = (1U << area->order) + offset / VMLOOP_SHM_PAGE;

	*order = 0;
	if (offset % VMLOOP_SHM_PAGE || node >> area->order != 1)
		return 0;
	while (!(area->node[node] & (TAKEN | ASIDE))) {
		/* A block above would begin further left, or there is none. */
		if (node & 1)
			return 0;
		node /= 2;
		++*order;
	}
	return node;
}

/**
 * vmloop_area_set_aside() - a block is not used, and may not be used again yet
 * @area: where it was taken from
 * @offset: where it begins
 *
 * Return: 0, or -EINVAL if no block was taken there.
 */
int vmloop_area_set_aside(struct vmloop_area *area, u32 offset)
{
	u32 order;
	u32 node = find(area, offset, &order);

	if (!node || area->node[node] == ASIDE)
		return -EINVAL;
	area->node[node] = ASIDE;
	area->aside += 1U << order;
	return 0;
}

/**
 * vmloop_area_give() - a block is free, whether it was set aside or not
 * @area: where it was taken from
 * @offset: where it begins
 *
 * Return: 0, or -EINVAL if no block was taken there.
 */
int vmloop_area_give(struct vmloop_area *area, u32 offset)
{
	u32 order;
	u32 node = find(area, offset, &order);

	if (!node)
		return -EINVAL;
	if (area->node[node] == ASIDE)
		area->aside -= 1U << order;
	area->left += 1U << order;
	area->node[node] = order + 1;
	update_above(area, node, order);
	return 0;
}

/**
 * vmloop_area_largest() - the largest block that can be taken
 * @area: where from
 *
 * Return: its pages, a power of two; 0 if none is free.
 */
u32 vmloop_area_largest(const struct vmloop_area *area)
{
	return largest(area, 1) ? 1U << (largest(area, 1) - 1) : 0;
}
