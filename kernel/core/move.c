// SPDX-License-Identifier: GPL-2.0
/*
 * move.c - a lane goes on in another ring of ours, larger or smaller: docs/protocol.md,
 * section 9.
 *
 * The ring before stays until the peer has read it. No doorbell says when that is: the memory
 * is taken back when a path next asks for memory.
 *
 * Context: core mutex held.
 */
#include <linux/export.h>

#include "core.h"

/* Whether the lane still has the memory of the ring before. */
static bool has_before(const struct vmloop_lane *lane)
{
	return lane->room != lane->tx.size;
}

/* Takes the memory of the ring before back, if the peer has let go of it. */
static void take_back(struct vmloop_channel *channel, struct vmloop_lane *lane)
{
	if (!has_before(lane) || !vmloop_ring_has_moved(&lane->tx))
		return;
	vmloop_ring_forget(&lane->tx);
	vmloop_area_give(&channel->area, lane->before);
	lane->room = lane->tx.size;
}

/**
 * vmloop_lanes_take_back() - have what rings that have moved do not need any more
 * @channel: with a table of lanes
 *
 * Context: core mutex held.
 */
void vmloop_lanes_take_back(struct vmloop_channel *channel)
{
	struct vmloop_lane *lane;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry(lane, &channel->lanes, list)
		if (lane->phase != VMLOOP_LANE_CLOSED)
			take_back(channel, lane);
}

/**
 * vmloop_lane_leave_room() - a lane's rings are touched no more here
 * @lane: the lane, of a channel with a table
 *
 * The peer may read there until it has closed the lane, too: then vmloop_lane_give_room().
 *
 * Context: core mutex held.
 */
void vmloop_lane_leave_room(struct vmloop_lane *lane)
{
	struct vmloop_area *area = &lane->channel->area;

	vmloop_area_set_aside(area, lane->data);
	if (has_before(lane))
		vmloop_area_set_aside(area, lane->before);
}

/**
 * vmloop_lane_give_room() - the peer is done with a lane: so is its memory
 * @lane: the lane, of a channel with a table
 *
 * Context: core mutex held.
 */
void vmloop_lane_give_room(struct vmloop_lane *lane)
{
	struct vmloop_area *area = &lane->channel->area;

	vmloop_area_give(area, lane->data);
	if (has_before(lane))
		vmloop_area_give(area, lane->before);
}

/**
 * vmloop_channel_follows() - whether rings of ours may move in lanes that are opened now
 * @channel: a channel that is up
 *
 * Of a lane that is up its features say so: VMLOOP_F_MOVES.
 *
 * Context: core mutex held.
 */
bool vmloop_channel_follows(const struct vmloop_channel *channel)
{
	return channel->slots &&
	       (READ_ONCE(channel->region.theirs->features) & VMLOOP_F_MOVES);
}
EXPORT_SYMBOL_GPL(vmloop_channel_follows);

/**
 * vmloop_lane_move() - have a lane go on in another ring of ours
 * @channel: a channel that is up
 * @lane: one of its lanes, whose path has lane_move, and may produce
 * @size: bytes of the new ring, a power of two from one page of the layout up
 * @share: as of struct vmloop_lane_ask
 *
 * The path's lane_move is called before this returns.
 *
 * Context: process context, from vmloop_channel_do().
 * Return: 0; -EOPNOTSUPP: the peer does not follow; -ENOTCONN: the lane is not up, or not of
 * this channel; -EBUSY: the peer has not read the ring before; or as vmloop_channel_lane().
 */
int vmloop_lane_move(struct vmloop_channel *channel, struct vmloop_lane *lane, u32 size, u32 share)
{
	struct vmloop_lane_ask ask = { .ring_size = size, .share = share };
	u32 offset;
	int err;

	lockdep_assert_held(&vmloop_mutex);
	if (lane->channel != channel || lane->phase != VMLOOP_LANE_UP)
		return -ENOTCONN;
	if (!(lane->features & VMLOOP_F_MOVES))
		return -EOPNOTSUPP;
	take_back(channel, lane);
	if (has_before(lane))
		return -EBUSY;
	memcpy(ask.owners, lane->owners, sizeof(ask.owners));
	err = vmloop_room_take(channel, &ask, &size, &offset);
	if (err)
		return err;
	err = lane->path->lane_move(lane, channel->region.tx_data + offset, size, offset);
	if (err) {
		vmloop_area_give(&channel->area, offset);
		return err;
	}
	lane->before = lane->data;
	lane->data = offset;
	lane->room += size;
	return 0;
}
EXPORT_SYMBOL_GPL(vmloop_lane_move);
