// SPDX-License-Identifier: GPL-2.0
/*
 * table.c - what we keep of the lane table of a channel of version 2: how each
 * number stands, what of our data is in use, what was told and taken.
 *
 * Owns what vmloop_table_make() allocates, for as long as the channel lives. None
 * of it is in the shared memory, so the peer cannot write to it.
 *
 * Context: core mutex held, may sleep.
 */
#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "core.h"

/**
 * vmloop_table_free() - the channel ends, or has not begun
 * @channel: whose table; may be one without
 */
void vmloop_table_free(struct vmloop_channel *channel)
{
	kvfree(channel->nodes);
	bitmap_free(channel->look);
	kvfree(channel->slots);
}

/**
 * vmloop_table_make() - begin with a table in which every lane is free
 * @channel: with a region of version 2
 *
 * Return: 0; -ENOMEM; -EPROTO if the region's data cannot be used. The caller
 * frees the table in any case.
 */
int vmloop_table_make(struct vmloop_channel *channel)
{
	const struct vmloop_region *region = &channel->region;
	u32 pages = min_t(u64, region->tx_size / VMLOOP_SHM_PAGE,
			  VMLOOP_AREA_MAX);
	unsigned int side = channel->link->side;
	u32 i;

	channel->slots = kvcalloc(region->lanes, sizeof(*channel->slots),
				  GFP_KERNEL);
	channel->look = bitmap_zalloc(region->lanes, GFP_KERNEL);
	channel->nodes = kvzalloc(vmloop_area_nodes(pages), GFP_KERNEL);
	if (!channel->slots || !channel->look || !channel->nodes)
		return -ENOMEM;

	for (i = 0; i < region->lanes; i++)
		channel->slots[i].life.opens = i % 2 == side;
	/* Most of it: a ring of packets that has been closed must not be too much. */
	if (vmloop_area_init(&channel->area, channel->nodes, pages,
			     pages - pages / 8))
		return -EPROTO;
	vmloop_news_init(&channel->news_tx, &channel->news_rx,
			 &vmloop_region_our_table(region)->news,
			 &vmloop_region_their_table(region)->news);
	/* Until the peer has said how many it uses: it has these for certain. */
	channel->used = 2;
	channel->rung = jiffies;
	channel->accepts.left = VMLOOP_ACCEPTS_MAX;
	channel->accepts.at = jiffies;
	channel->window_accepts.left = VMLOOP_WINDOW_ACCEPTS_MAX;
	channel->window_accepts.at = jiffies;
	channel->opens.left = VMLOOP_OPENS_MAX;
	channel->opens.at = jiffies;
	return 0;
}
