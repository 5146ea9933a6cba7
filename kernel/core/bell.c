// SPDX-License-Identifier: GPL-2.0
/*
 * bell.c - doorbells: which lane one of ours is for, and which one of the peer's.
 *
 * Owns what ringing costs. Context: any, also hard interrupt, under RCU or where the
 * channel cannot end; the two locks are the innermost but what a path's lane_event takes.
 */
#include <linux/bitmap.h>
#include <linux/ktime.h>

#include "core.h"

/* Rings, and learns what that costs: mostly an exit to the hypervisor. */
static void ring(struct vmloop_channel *channel)
{
	u32 average = READ_ONCE(channel->bell_ns);
	u64 start = ktime_get_ns();
	u32 took;

	channel->link->ring(channel->link);
	took = min_t(u64, ktime_get_ns() - start, NSEC_PER_MSEC);
	/* Somebody else may have had the CPU: not more at once than may be true. */
	if (average)
		took = min_t(u64, took, 2ULL * average + NSEC_PER_USEC);
	/* Races lose a sample, and no more. */
	WRITE_ONCE(channel->bell_ns,
		   average ? average - average / 8 + took / 8 : took);
	vmloop_count(channel->peer, VMLOOP_TX_DOORBELLS, 1);
}

/**
 * vmloop_bell_tell() - there is something new about a lane
 * @channel: the channel
 * @number: the lane
 *
 * Rings, unless the peer has yet to look at what it was rung for.
 *
 * Return: whether it was rung.
 */
bool vmloop_bell_tell(struct vmloop_channel *channel, u32 number)
{
	unsigned long flags;
	bool wanted = true;

	if (channel->slots) {
		spin_lock_irqsave(&channel->tell_lock, flags);
		wanted = vmloop_news_tell(&channel->news_tx, number);
		spin_unlock_irqrestore(&channel->tell_lock, flags);
	}
	if (!wanted)
		return false;
	ring(channel);
	return true;
}

/**
 * vmloop_lane_ring() - ring the peer's doorbell for a lane
 * @lane: a lane of the channel
 *
 * Context: any but lane_event, between the path's lane_open and the end of its
 * lane_close.
 * Return: whether it was rung; false while the peer has yet to look at what it
 * was rung for before.
 */
bool vmloop_lane_ring(struct vmloop_lane *lane)
{
	return vmloop_bell_tell(lane->channel, lane->number);
}
EXPORT_SYMBOL_GPL(vmloop_lane_ring);

/**
 * vmloop_lane_ring_anyway() - ring the peer's doorbell whatever it was rung for
 * @lane: a lane of the channel
 *
 * For when a doorbell may have been lost, or its cost is to be measured.
 *
 * Context: as vmloop_lane_ring().
 */
void vmloop_lane_ring_anyway(struct vmloop_lane *lane)
{
	ring(lane->channel);
}
EXPORT_SYMBOL_GPL(vmloop_lane_ring_anyway);

/**
 * vmloop_lane_bell_ns() - what ringing the peer's doorbell costs
 * @lane: a lane of the channel
 *
 * Context: as vmloop_lane_ring().
 * Return: a moving average in ns, at most a millisecond; 0 if it was never rung.
 */
u32 vmloop_lane_bell_ns(const struct vmloop_lane *lane)
{
	return READ_ONCE(lane->channel->bell_ns);
}
EXPORT_SYMBOL_GPL(vmloop_lane_bell_ns);

/* A lane has news: its path looks at the rings. Whether the core is to look at its life. */
static bool lane_event(struct vmloop_channel *channel, u32 number)
{
	const struct vmloop_shm_entry *theirs =
		vmloop_region_their_entry(&channel->region, number);
	struct vmloop_slot *slot = &channel->slots[number];

	if (slot->events)
		slot->events->path->lane_event(slot->events);
	/* A hint: the work loads it again, in order, and believes nothing. */
	if (READ_ONCE(theirs->life) == READ_ONCE(slot->seen))
		return false;
	set_bit(number, channel->look);
	return true;
}

/**
 * vmloop_bell_take() - look at what the peer has told
 * @channel: the channel
 *
 * In a time that grows with the lanes that it told of, not with those there are.
 * A peer that tells of all at once, and of numbers that there are not, is looked at
 * once for each bit of the table.
 */
void vmloop_bell_take(struct vmloop_channel *channel)
{
	u32 group, number;
	unsigned long flags;
	bool look = false;
	u64 groups, lanes;

	spin_lock_irqsave(&channel->event_lock, flags);
	if (!channel->slots) {
		if (channel->only)
			channel->only->path->lane_event(channel->only);
		goto out;
	}
	groups = vmloop_news_groups(&channel->news_rx);
	for (; groups; groups &= groups - 1) {
		group = __ffs64(groups);
		lanes = vmloop_news_lanes(&channel->news_rx, group);
		for (; lanes; lanes &= lanes - 1) {
			number = group * VMLOOP_NEWS_BITS + __ffs64(lanes);
			/*
			 * Not of those in use only: a peer that has met us before
			 * we met it may tell of more than we know of yet.
			 */
			if (number < channel->region.lanes)
				look |= lane_event(channel, number);
		}
	}
out:
	spin_unlock_irqrestore(&channel->event_lock, flags);
	if (look)
		vmloop_link_look(channel->link);
}

/**
 * vmloop_link_event() - the peer rang the doorbell
 * @link: of which channel
 *
 * Context: any, also hard interrupt.
 */
void vmloop_link_event(struct vmloop_link *link)
{
	struct vmloop_channel *channel;
	u32 theirs;

	rcu_read_lock();
	channel = rcu_dereference(link->channel);
	if (channel) {
		vmloop_count(channel->peer, VMLOOP_RX_DOORBELLS, 1);
		vmloop_bell_take(channel);
		/* Ordinarily the peer just is READY, and all is as it was. */
		theirs = READ_ONCE(channel->region.theirs->state);
		if (theirs != VMLOOP_SIDE_READY ||
		    READ_ONCE(channel->state) != VMLOOP_CHANNEL_UP)
			vmloop_link_look(link);
	}
	rcu_read_unlock();
}
EXPORT_SYMBOL_GPL(vmloop_link_event);
