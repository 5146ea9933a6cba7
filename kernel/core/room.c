// SPDX-License-Identifier: GPL-2.0
/*
 * room.c - how much of our data of a channel there is for one more ring, and for whom.
 *
 * Context: core mutex held.
 */
#include <linux/export.h>
#include <linux/log2.h>

#include "core.h"

/**
 * vmloop_channel_ring_max() - how large a ring of ours can be
 * @channel: the channel, with a table of lanes
 *
 * Context: core mutex held.
 * Return: bytes of the largest ring if there is no other lane, a power of two.
 */
u32 vmloop_channel_ring_max(const struct vmloop_channel *channel)
{
	u64 data = min_t(u64, VMLOOP_RING_MAX, channel->region.tx_size);

	/* Never all of our data, for the sake of other lanes. */
	return rounddown_pow_of_two(data - 1);
}
EXPORT_SYMBOL_GPL(vmloop_channel_ring_max);

/**
 * vmloop_channel_free() - how much of our data no lane has
 * @channel: the channel, with a table of lanes
 * @largest: set to the largest ring of that, in bytes
 *
 * Context: core mutex held.
 * Return: bytes.
 */
u32 vmloop_channel_free(struct vmloop_channel *channel, u32 *largest)
{
	lockdep_assert_held(&vmloop_mutex);
	vmloop_lanes_take_back(channel);
	*largest = vmloop_area_largest(&channel->area) * VMLOOP_SHM_PAGE;
	return channel->area.left * VMLOOP_SHM_PAGE;
}
EXPORT_SYMBOL_GPL(vmloop_channel_free);

/**
 * vmloop_channel_left() - how large a ring may be that is for somebody
 * @channel: the channel, with a table of lanes
 * @ask: its @owners and @share
 *
 * A ring counts from its making until the peer has let go of it: when its lane leaves the
 * channel's list, or has moved on to another.
 *
 * Context: core mutex held.
 * Return: bytes; more than there are if it is for nobody.
 */
u32 vmloop_channel_left(const struct vmloop_channel *channel, const struct vmloop_lane_ask *ask)
{
	struct vmloop_owner_sum sum = { .owners = ask->owners };
	const struct vmloop_lane *lane;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry(lane, &channel->lanes, list)
		vmloop_owner_add(&sum, lane->owners, lane->room);
	return vmloop_owner_left(&sum, channel->area.left * VMLOOP_SHM_PAGE, ask->share);
}
EXPORT_SYMBOL_GPL(vmloop_channel_left);

/**
 * vmloop_room_take() - memory for a ring of ours
 * @channel: the channel, with a table of lanes
 * @ask: what the lane is to be
 * @size: set to its bytes: what was asked for, or the largest that there is
 * @offset: set to where in our data it begins
 *
 * Return: 0; -EDQUOT: it is there, but above the share of whom it is for; or as
 * vmloop_area_take().
 */
int vmloop_room_take(struct vmloop_channel *channel, const struct vmloop_lane_ask *ask,
		     u32 *size, u32 *offset)
{
	bool any = !ask->ring_size;
	u32 left;
	int err;

	vmloop_lanes_take_back(channel);
	left = vmloop_channel_left(channel, ask);
	*size = any ? vmloop_channel_ring_max(channel) : ask->ring_size;
	do {
		err = vmloop_area_take(&channel->area, *size, offset);
		if (!err && *size > left) {
			vmloop_area_give(&channel->area, *offset);
			err = -EDQUOT;
		}
		if ((err != -ENOSPC && err != -EDQUOT) || !any)
			return err;
		*size /= 2;
	} while (*size >= VMLOOP_RING_MIN);
	return err;
}

/**
 * vmloop_channel_try() - whether there is memory for a ring of ours
 * @channel: the channel, with a table of lanes
 * @ask: what the lane is to be
 *
 * For a path's lane_wanted, which is not told why nothing came of it.
 *
 * Context: core mutex held.
 * Return: 0, or what is wrong, as vmloop_channel_lane().
 */
int vmloop_channel_try(struct vmloop_channel *channel, const struct vmloop_lane_ask *ask)
{
	u32 size, offset;
	int err = vmloop_room_take(channel, ask, &size, &offset);

	if (!err)
		vmloop_area_give(&channel->area, offset);
	return err;
}
EXPORT_SYMBOL_GPL(vmloop_channel_try);
