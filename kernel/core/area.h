/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * area.h - memory for rings: a side's own data, given out in powers of two from
 * one page of the layout up. lane.c takes them.
 *
 * Pure, as ring.h: it works on numbers, and in memory that the caller provides;
 * it never touches the data, which the other side may write to.
 *
 * What a peer may still read is no memory to use again. When a lane is closed and
 * the peer has not let go of it, the block is set aside until it does. A peer that
 * never lets go so keeps some of our memory from us, and no more than
 * @aside_most: beyond that nothing is given out.
 *
 * Buddies: a binary tree whose leaves are pages, each node with the largest block
 * that is free below it. Taking and giving back touch one path of it.
 *
 * Context: any. The caller serialises all calls.
 */
#ifndef VMLOOP_AREA_H
#define VMLOOP_AREA_H

#include "ring_os.h"
#include "vmloop_shm.h"

/**
 * struct vmloop_area - a side's own data
 * @node: the tree, its root at 1, the two below n at 2n and 2n + 1
 * @order: of the root: it stands for 1 << @order pages, some of which there may
 *	not be
 * @left: pages that are free
 * @aside: pages set aside
 * @aside_most: nothing is given out while more are
 */
struct vmloop_area {
	u8 *node;
	u32 order;
	u32 left;
	u32 aside;
	u32 aside_most;
};

/* Pages that an area may have: as many as the largest ring there is. */
#define VMLOOP_AREA_MAX		(1U << 18)

u32 vmloop_area_nodes(u32 pages);
int vmloop_area_init(struct vmloop_area *area, u8 *node, u32 pages, u32 aside_most);

int vmloop_area_take(struct vmloop_area *area, u32 size, u32 *offset);
int vmloop_area_set_aside(struct vmloop_area *area, u32 offset);
int vmloop_area_give(struct vmloop_area *area, u32 offset);
u32 vmloop_area_largest(const struct vmloop_area *area);

#endif /* VMLOOP_AREA_H */
