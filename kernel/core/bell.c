// SPDX-License-Identifier: GPL-2.0
/*
 * bell.c - doorbells: which lane one of ours is for, and which one of the peer's.
 *
 * The first of a side is for all of its lanes, and for what happens to the channel and
 * to the life of any lane; what it was rung for, news.h says. Each other one is for one
 * lane, and says by itself that there is data, or room: no word is written that other lanes
 * use, so that each can be heard, and looked at, by a CPU of its own.
 *
 * Owns what ringing costs, and which lane a doorbell is for. Context: any, also hard
 * interrupt, under RCU or where the channel cannot end; the locks are the innermost but
 * what a path's lane_event takes.
 */
#include <linux/bitmap.h>
#include <linux/cpumask.h>
#include <linux/ktime.h>
#include <linux/sched/isolation.h>

#include "core.h"

/* Rings, and learns what that costs: mostly an exit to the hypervisor. */
static void ring(struct vmloop_channel *channel, u32 bell, u32 *cost)
{
	u32 average = READ_ONCE(*cost);
	u64 start = ktime_get_ns();
	u32 took;

	channel->link->ring(channel->link, bell);
	took = min_t(u64, ktime_get_ns() - start, NSEC_PER_MSEC);
	/* Somebody else may have had the CPU: not more at once than may be true. */
	if (average)
		took = min_t(u64, took, 2ULL * average + NSEC_PER_USEC);
	/* Races lose a sample, and no more. */
	WRITE_ONCE(*cost,
		   average ? average - average / 8 + took / 8 : took);
	vmloop_count(channel->peer, VMLOOP_TX_DOORBELLS, 1);
}

/**
 * vmloop_bells_init() - no doorbell is for a lane yet
 * @channel: a channel that begins
 */
void vmloop_bells_init(struct vmloop_channel *channel)
{
	unsigned int i;

	spin_lock_init(&channel->event_lock);
	spin_lock_init(&channel->tell_lock);
	for (i = 0; i < ARRAY_SIZE(channel->bells); i++)
		spin_lock_init(&channel->bells[i].lock);
}

/**
 * vmloop_bell_for() - which of our doorbells a lane gets
 * @channel: the channel
 * @slot: of the lane, whose path has slots
 *
 * Context: core mutex held.
 * Return: one that is for no other lane, or 0: the one that is for all.
 */
u32 vmloop_bell_for(const struct vmloop_channel *channel, u32 slot)
{
	lockdep_assert_held(&vmloop_mutex);
	/* Where both sides open the same slot, the first of the two lanes has it. */
	if (1 + slot >= channel->link->bells || channel->bells[slot].lane)
		return 0;
	return 1 + slot;
}

/* The doorbell that is for a lane alone, or NULL. */
static struct vmloop_bell *own_bell(const struct vmloop_lane *lane)
{
	return lane->bell ? &lane->channel->bells[lane->bell - 1] : NULL;
}

/* Doorbells for the lane go to it, or to nobody. */
static void lead(const struct vmloop_lane *lane, struct vmloop_lane *to)
{
	struct vmloop_channel *channel = lane->channel;
	struct vmloop_bell *bell = own_bell(lane);

	spin_lock_irq(&channel->event_lock);
	if (channel->slots)
		channel->slots[lane->number].events = to;
	else
		channel->only = to;
	spin_unlock_irq(&channel->event_lock);
	if (!bell)
		return;
	spin_lock_irq(&bell->lock);
	bell->lane = to;
	spin_unlock_irq(&bell->lock);
}

/**
 * vmloop_bell_enter() - doorbells for a lane go to it
 * @lane: the lane, which has its ring
 *
 * Context: core mutex held.
 */
void vmloop_bell_enter(struct vmloop_lane *lane)
{
	lead(lane, lane);
}

/**
 * vmloop_bell_leave() - doorbells for a lane go to nobody
 * @lane: entered before
 *
 * After return none of its path's lane_event runs.
 *
 * Context: core mutex held.
 */
void vmloop_bell_leave(const struct vmloop_lane *lane)
{
	lead(lane, NULL);
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
	ring(channel, 0, &channel->bell_ns);
	return true;
}

/**
 * vmloop_lane_ring() - ring the peer's doorbell for a lane
 * @lane: a lane of the channel
 *
 * Context: any but lane_event, between the path's lane_open and the end of its
 * lane_close.
 * Return: whether it was rung. It is not while the peer has yet to look at what it was
 * rung for before, unless that doorbell is for this lane alone.
 */
bool vmloop_lane_ring(struct vmloop_lane *lane)
{
	u32 bell = READ_ONCE(lane->peer_bell);

	if (!bell)
		return vmloop_bell_tell(lane->channel, lane->number);
	ring(lane->channel, bell, &lane->bell_ns);
	return true;
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
	struct vmloop_channel *channel = lane->channel;
	u32 bell = READ_ONCE(lane->peer_bell);

	if (!bell) {
		ring(channel, 0, &channel->bell_ns);
		return;
	}
	ring(channel, bell, &lane->bell_ns);
	/* The other one may be heard where this one is not. */
	vmloop_bell_tell(channel, lane->number);
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
	return READ_ONCE(lane->peer_bell) ? READ_ONCE(lane->bell_ns) :
					    READ_ONCE(lane->channel->bell_ns);
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

/* One of our doorbells that are for one lane has rung. */
static void bell_rang(struct vmloop_bell *bell)
{
	unsigned long flags;

	spin_lock_irqsave(&bell->lock, flags);
	if (bell->lane)
		bell->lane->path->lane_event(bell->lane);
	spin_unlock_irqrestore(&bell->lock, flags);
}

/**
 * vmloop_bell_turn() - where the CPUs of a channel's doorbells begin
 *
 * Each channel begins with another one: the first lanes are those that every channel has.
 *
 * Context: any.
 * Return: for vmloop_bell_cpu(), with the number of each doorbell added.
 */
unsigned int vmloop_bell_turn(void)
{
	static atomic_t turns;

	return atomic_fetch_inc(&turns);
}
EXPORT_SYMBOL_GPL(vmloop_bell_turn);

/**
 * vmloop_bell_cpu() - the CPU that is to hear a doorbell that is for one lane
 * @turn: which one, counted around those that are online and that the kernel may work on
 *
 * Context: any.
 * Return: the CPU; nr_cpu_ids or above if there is none.
 */
unsigned int vmloop_bell_cpu(unsigned int turn)
{
	unsigned int cpu, count = 0;
	const struct cpumask *mask;

	rcu_read_lock();
	mask = housekeeping_cpumask(HK_TYPE_DOMAIN);
	for_each_cpu_and(cpu, mask, cpu_online_mask)
		count++;
	if (count)
		turn %= count;
	for_each_cpu_and(cpu, mask, cpu_online_mask)
		if (!turn--)
			break;
	rcu_read_unlock();
	return cpu;
}
EXPORT_SYMBOL_GPL(vmloop_bell_cpu);

/**
 * vmloop_link_event() - the peer rang a doorbell of ours
 * @link: of which channel
 * @bell: which one; below VMLOOP_BELLS
 *
 * Context: any, also hard interrupt.
 */
void vmloop_link_event(struct vmloop_link *link, u32 bell)
{
	struct vmloop_channel *channel;
	u32 theirs;

	rcu_read_lock();
	channel = rcu_dereference(link->channel);
	if (channel) {
		vmloop_count(channel->peer, VMLOOP_RX_DOORBELLS, 1);
		if (bell)
			bell_rang(&channel->bells[bell - 1]);
		else
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
