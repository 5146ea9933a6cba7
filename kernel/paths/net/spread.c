// SPDX-License-Identifier: GPL-2.0
/*
 * spread.c - how many packet lanes a pair has, and which of them is opened when.
 *
 * As many as the guest with fewer CPUs has CPUs: each side says in the bytes of the
 * first lane how many it takes part in. When the first lane is up, who opened it opens
 * the others. All of a side's rings together are no larger than one would be if it
 * were alone, and each takes the largest frame.
 *
 * Owns the parameter. Context: the path's callbacks, core mutex held.
 */
#include <linux/cpumask.h>
#include <linux/log2.h>
#include <linux/sizes.h>

#include "net.h"

/* A record may be a quarter of its ring. */
#define RING_LEAST	SZ_512K

/* Why a lane is refused: the pair has not agreed on so many, or not yet. */
#define REASON_SLOT	VMLOOP_REASON_PATH

static unsigned int lanes = VMLOOP_PACKET_LANES;
module_param(lanes, uint, 0644);
MODULE_PARM_DESC(lanes, "lanes that the packets of a peer are spread over, at most (1 to 8); there are no more than either guest has CPUs");

/* Packet lanes that we take part in, 1 at least. */
static u32 offered(const struct vmloop_channel *channel)
{
	u32 cpus = min_t(u32, num_online_cpus(), VMLOOP_PACKET_LANES);
	u32 room = vmloop_channel_ring_max(channel) / RING_LEAST;

	BUILD_BUG_ON(4 * (VMLOOP_FRAME_MAX + sizeof(struct vmloop_shm_frame) +
			  sizeof(struct vmloop_shm_record)) > RING_LEAST);
	return max(1U, min3(cpus, room, READ_ONCE(lanes)));
}

/*
 * Of a slot's ring where there are so many lanes; 0 if it is to be the largest there
 * is. What a power of two of lanes would have is divided among the first ones.
 */
static u32 ring_size(const struct vmloop_channel *channel, u32 count, u32 slot)
{
	u32 parts = roundup_pow_of_two(count);
	u32 size = vmloop_channel_ring_max(channel) / parts;

	if (count <= 1)
		return 0;
	return slot < parts - count ? 2 * size : size;
}

/* What the peer's path says, and cannot do harm. */
static struct vmloop_packet_lane said(const struct vmloop_lane *lane)
{
	struct vmloop_packet_lane said = { .lanes = 1 };

	if (!(vmloop_lane_features(lane) & VMLOOP_F_SPREAD))
		return said;
	memcpy(&said, lane->said, sizeof(said));
	said.lanes = clamp_t(u32, said.lanes, 1, VMLOOP_PACKET_LANES);
	return said;
}

static void say(struct vmloop_lane_ask *ask, u32 count, u32 slot)
{
	const struct vmloop_packet_lane say = { .lanes = count, .slot = slot };

	memcpy(ask->say, &say, sizeof(say));
	ask->slot = slot;
}

/* Whoever opened the first lane opens those that are missing. */
static void open_others(struct vmloop_channel *channel,
			const struct vmloop_lane *first)
{
	struct vmloop_lane_ask ask = {};
	u32 slot;

	if (!first->opened || first->phase != VMLOOP_LANE_UP)
		return;
	for (slot = 1; slot < first->spread; slot++) {
		say(&ask, first->spread, slot);
		ask.ring_size = ring_size(channel, first->spread, slot);
		/* Without it, for want of memory, its flows take the standard network. */
		vmloop_channel_lane(channel, &net_path, &ask);
	}
}

/**
 * net_spread_open() - a channel begins, or lanes of it are missing
 * @channel: the channel
 * @side: which one we are
 * @late: the other side may not have opened any
 *
 * Side 0 opens the first lane, or whichever side gets the path later.
 */
void net_spread_open(struct vmloop_channel *channel, unsigned int side,
		     bool late)
{
	struct vmloop_lane *first = vmloop_channel_slot(channel, &net_path, 0);
	struct vmloop_lane_ask ask = {};

	if (first) {
		open_others(channel, first);
		return;
	}
	if (side && !late)
		return;
	ask.spread = offered(channel);
	ask.ring_size = ring_size(channel, ask.spread, 0);
	say(&ask, ask.spread, 0);
	/* Without it, for want of memory, frames take the standard network. */
	vmloop_channel_lane(channel, &net_path, &ask);
}

/**
 * net_spread_wanted() - the peer has opened a lane
 * @lane: the lane
 * @ask: filled in
 *
 * Return: VMLOOP_REASON_NONE, or why it is refused.
 */
u32 net_spread_wanted(struct vmloop_lane *lane, struct vmloop_lane_ask *ask)
{
	const struct vmloop_packet_lane theirs = said(lane);
	struct vmloop_channel *channel = lane->channel;
	const struct vmloop_lane *first;
	u32 count = offered(channel);

	if (!theirs.slot) {
		ask->spread = min(count, theirs.lanes);
		ask->ring_size = ring_size(channel, ask->spread, 0);
		say(ask, count, 0);
		return VMLOOP_REASON_NONE;
	}
	first = vmloop_channel_slot(channel, &net_path, 0);
	if (!first || first->opened || first->phase != VMLOOP_LANE_UP ||
	    theirs.slot >= first->spread)
		return REASON_SLOT;
	ask->ring_size = ring_size(channel, first->spread, theirs.slot);
	say(ask, first->spread, theirs.slot);
	return VMLOOP_REASON_NONE;
}

/**
 * net_spread_up() - a lane is up: it may be the first, which others follow
 * @lane: the lane
 */
void net_spread_up(struct vmloop_lane *lane)
{
	if (lane->slot || !lane->opened)
		return;
	lane->spread = min(lane->spread, said(lane).lanes);
	open_others(lane->channel, lane);
}
