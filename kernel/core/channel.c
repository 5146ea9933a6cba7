// SPDX-License-Identifier: GPL-2.0
/*
 * channel.c - the life of a channel: opening, up, closing. docs/protocol.md,
 * section 3. How its memory comes and goes is link.c's, its lanes are lane.c's.
 *
 * Owns the channels. All of it runs under the core mutex, in process context.
 */
#include <linux/delay.h>
#include <linux/slab.h>

#include "core.h"
#include "trace.h"

/* How often a closing channel looks whether it is drained. */
#define DRAIN_POLL	msecs_to_jiffies(4)

const char *vmloop_channel_state_name(enum vmloop_channel_state state)
{
	static const char * const name[] = {
		[VMLOOP_CHANNEL_NONE] = "none",
		[VMLOOP_CHANNEL_REQUESTED] = "requested",
		[VMLOOP_CHANNEL_OPENING] = "opening",
		[VMLOOP_CHANNEL_UP] = "up",
		[VMLOOP_CHANNEL_STALLED] = "stalled",
		[VMLOOP_CHANNEL_CLOSING] = "closing",
		[VMLOOP_CHANNEL_REFUSED] = "refused",
		[VMLOOP_CHANNEL_FAILED] = "failed",
		[VMLOOP_CHANNEL_BROKEN] = "broken",
	};

	return state < ARRAY_SIZE(name) ? name[state] : "unknown";
}

/* Opening ---------------------------------------------------------------- */

static void channel_free(struct vmloop_channel *channel)
{
	vmloop_table_free(channel);
	kfree(channel);
}

/* What of version 1 needs to be there before we are READY. */
static int begin_lane(struct vmloop_channel *channel)
{
	const struct vmloop_path *path = vmloop_path_find(VMLOOP_LANE_PACKET);
	struct vmloop_shm_side *ours = channel->region.ours;

	if (!path || !vmloop_lane_only(channel, path))
		return -EPROTO;
	WRITE_ONCE(ours->major, VMLOOP_SHM_MAJOR);
	WRITE_ONCE(ours->minor, VMLOOP_SHM_MINOR);
	WRITE_ONCE(ours->max_record, path->max_record);
	WRITE_ONCE(ours->lanes, 1);
	return 0;
}

/* The same of version 2. */
static int begin_table(struct vmloop_channel *channel)
{
	struct vmloop_shm_table *ours =
		vmloop_region_our_table(&channel->region);
	int err = vmloop_table_make(channel);

	if (err)
		return err;
	WRITE_ONCE(ours->major, VMLOOP_TABLE_MAJOR);
	WRITE_ONCE(ours->minor, VMLOOP_TABLE_MINOR);
	WRITE_ONCE(ours->lanes, channel->region.lanes);
	return 0;
}

/**
 * vmloop_channel_begin() - memory has arrived for a peer that has no channel
 * @link: the memory; used up if it cannot be used
 * @peer: whom the link leads to
 *
 * Context: core mutex held, may sleep.
 */
void vmloop_channel_begin(struct vmloop_link *link, struct vmloop_peer *peer)
{
	struct vmloop_channel *channel;
	struct vmloop_shm_side *ours;
	int err;

	channel = kzalloc(sizeof(*channel), GFP_KERNEL);
	if (!channel)
		return;	/* the next directory tries again */

	channel->peer = peer;
	channel->link = link;
	channel->state = VMLOOP_CHANNEL_OPENING;
	INIT_LIST_HEAD(&channel->lanes);
	vmloop_bells_init(channel);
	if (vmloop_region_open(&channel->region, link->base, link->size,
			       link->side, VMLOOP_REGION_CHANNEL))
		goto unusable;
	ours = channel->region.ours;
	/* Another life of ours has used it up. */
	if (READ_ONCE(ours->state) != VMLOOP_SIDE_ABSENT)
		goto unusable;
	if (channel->region.major == VMLOOP_SHM_MAJOR)
		err = begin_lane(channel);
	else
		err = begin_table(channel);
	if (err)
		goto unusable;

	vmloop_peer_get(peer);
	peer->channel = channel;
	vmloop_peer_request_cancel(peer);
	vmloop_peer_set_state(peer, VMLOOP_CHANNEL_OPENING, 0);
	rcu_assign_pointer(link->channel, channel);

	if (channel->slots)
		vmloop_paths_channel_open(channel);
	WRITE_ONCE(ours->features, channel->slots ? vmloop_features() :
						    vmloop_paths_features());
	/* Pairs with the acquire in vmloop_channel_look(). */
	virt_store_release(&ours->state, VMLOOP_SIDE_READY);
	link->ring(link, 0);
	vmloop_link_look(link);
	return;

unusable:
	channel_free(channel);
	link->used = true;
	vmloop_link_report(link, VMLOOP_STATE_CLOSED);
}

/* The peer is READY: see what it says of itself. False if that cannot be. */
static bool channel_meet(struct vmloop_channel *channel)
{
	const struct vmloop_shm_side *theirs = channel->region.theirs;
	u32 used;

	channel->slots_until = jiffies + VMLOOP_SLOTS_TIME;
	if (READ_ONCE(theirs->major) != channel->region.major) {
		WRITE_ONCE(channel->broken, VMLOOP_BREAK_VERSION);
		return false;
	}
	if (!channel->slots) {
		if (!vmloop_lane_only_up(channel))
			return true;
		WRITE_ONCE(channel->broken, VMLOOP_BREAK_LANE);
		return false;
	}
	used = READ_ONCE(vmloop_region_their_table(&channel->region)->lanes);
	if (used < 2 || used % 2) {
		WRITE_ONCE(channel->broken, VMLOOP_BREAK_LANE);
		return false;
	}
	WRITE_ONCE(channel->used, min(used, channel->region.lanes));
	return true;
}

static void channel_up(struct vmloop_channel *channel)
{
	channel->idle_since = jiffies;
	channel->up_since = jiffies;
	WRITE_ONCE(channel->state, VMLOOP_CHANNEL_UP);
	vmloop_peer_set_state(channel->peer, VMLOOP_CHANNEL_UP, 0);
	vmloop_link_report(channel->link, VMLOOP_STATE_UP);
}

/* Closing ---------------------------------------------------------------- */

/**
 * vmloop_channel_shut() - produce nothing more, and begin to drain
 * @channel: the channel
 * @peer_alive: whether it makes sense to wait for the peer
 *
 * Context: core mutex held, may sleep.
 */
void vmloop_channel_shut(struct vmloop_channel *channel, bool peer_alive)
{
	struct vmloop_link *link = channel->link;
	bool was_up = channel->state == VMLOOP_CHANNEL_UP;

	lockdep_assert_held(&vmloop_mutex);
	if (channel->state == VMLOOP_CHANNEL_CLOSING) {
		if (!peer_alive)
			channel->deadline = jiffies;
		vmloop_link_look(link);
		return;
	}

	WRITE_ONCE(channel->state, VMLOOP_CHANNEL_CLOSING);
	vmloop_peer_set_state(channel->peer, VMLOOP_CHANNEL_CLOSING, 0);
	vmloop_windows_drop(channel, NULL);
	vmloop_lanes_down(channel);

	/* Pairs with the peer's acquire: all that we produced is published. */
	virt_store_release(&channel->region.ours->state, VMLOOP_SIDE_CLOSING);
	link->ring(link, 0);
	channel->deadline = jiffies;
	if (was_up && peer_alive)
		channel->deadline += VMLOOP_DRAIN_TIME;
	vmloop_link_look(link);
}

/* Whether nothing is left to do for either side, or nobody to do it with. */
static bool channel_is_drained(struct vmloop_channel *channel)
{
	u32 theirs;

	/* Pairs with the peer's release: its last positions are there to read. */
	theirs = virt_load_acquire(&channel->region.theirs->state);
	if (READ_ONCE(channel->broken) ||
	    time_after_eq(jiffies, channel->deadline) ||
	    theirs == VMLOOP_SIDE_CLOSED || theirs == VMLOOP_SIDE_ABSENT)
		return true;
	/* The peer must have stopped, or there may be more to consume. */
	return theirs == VMLOOP_SIDE_CLOSING &&
	       vmloop_lanes_are_drained(channel);
}

/* The end of a channel that was shut; frees it. */
static void channel_end(struct vmloop_channel *channel)
{
	struct vmloop_link *link = channel->link;
	struct vmloop_peer *peer = channel->peer;
	enum vmloop_break broken;

	lockdep_assert_held(&vmloop_mutex);
	/*
	 * Still alive: doorbells, which look at the lanes under RCU, and the
	 * lanes' own consumers. Stall timers ended when the channel was shut.
	 */
	link->used = true;
	RCU_INIT_POINTER(link->channel, NULL);
	/* No doorbell looks at the channel any more. */
	synchronize_rcu_expedited();
	vmloop_lanes_close(channel);
	/* Pairs with the peer's acquire: we touch nothing of it any more. */
	virt_store_release(&channel->region.ours->state, VMLOOP_SIDE_CLOSED);
	link->ring(link, 0);
	/*
	 * If both sides end at the same time, at least one of them sees that the other is
	 * CLOSED. Pairs with this barrier at the other side.
	 */
	virt_mb();
	vmloop_lanes_end(channel);

	broken = READ_ONCE(channel->broken);
	peer->channel = NULL;
	peer->attempts = 0;
	clear_bit(0, &peer->wanted);
	if (broken)
		vmloop_peer_broke(peer, broken, channel->up_since ?
				  jiffies - channel->up_since : 0);
	else
		vmloop_peer_set_state(peer, VMLOOP_CHANNEL_NONE, 0);
	vmloop_link_report(link, broken ? VMLOOP_STATE_BROKEN :
					  VMLOOP_STATE_CLOSED);
	channel_free(channel);
	vmloop_peer_put(peer);
}

/**
 * vmloop_channel_end() - shut a channel, give it the time to drain, and end it
 * @channel: the channel; freed
 * @peer_alive: whether it makes sense to wait for the peer
 *
 * Context: core mutex held, may sleep for as long as draining takes.
 */
void vmloop_channel_end(struct vmloop_channel *channel, bool peer_alive)
{
	vmloop_channel_shut(channel, peer_alive);
	while (!channel_is_drained(channel))
		usleep_range(2000, 4000);
	channel_end(channel);
}

/* Working ---------------------------------------------------------------- */

static void channel_look_idle(struct vmloop_channel *channel)
{
	struct vmloop_peer *peer = channel->peer;
	u32 idle_ms = min(channel->link->transport->idle_ms, 86400000U);
	u64 frames;
	bool idle;

	if (!idle_ms)
		return;
	frames = vmloop_peer_counter(peer, VMLOOP_TX_FRAMES) +
		 vmloop_peer_counter(peer, VMLOOP_RX_FRAMES);
	if (frames != channel->idle_frames || vmloop_lanes_are_used(channel)) {
		channel->idle_frames = frames;
		channel->idle_since = jiffies;
	}
	idle = time_after_eq(jiffies,
			     channel->idle_since + msecs_to_jiffies(idle_ms));
	if (idle != channel->idle) {
		channel->idle = idle;
		vmloop_link_report(channel->link, idle ? VMLOOP_STATE_IDLE :
							 VMLOOP_STATE_UP);
	}
	vmloop_link_look_in(channel->link, msecs_to_jiffies(idle_ms) / 2 + 1);
}

/* A lane that producers of packets find. */
static struct vmloop_lane *up_lane(const struct vmloop_channel *channel,
				   u32 slot)
{
	return rcu_dereference_protected(channel->peer->up[slot],
					 lockdep_is_held(&vmloop_mutex));
}

/**
 * vmloop_channel_lanes() - how many lanes producers of packets find
 * @channel: the channel; may be NULL
 * @ring_size: set to the bytes of all of our rings there
 *
 * Context: core mutex held.
 * Return: lanes, 0 while there is none.
 */
u32 vmloop_channel_lanes(const struct vmloop_channel *channel, u32 *ring_size)
{
	const struct vmloop_lane *lane;
	u32 slot, count = 0;

	*ring_size = 0;
	for (slot = 0; channel && slot < VMLOOP_PEER_LANES; slot++) {
		lane = up_lane(channel, slot);
		if (!lane)
			continue;
		count++;
		*ring_size += lane->tx.size;
	}
	return count;
}

/* For whoever looks at the channel: frames of some flows take another way. */
static bool is_stalled(const struct vmloop_channel *channel)
{
	const struct vmloop_lane *lane;
	u32 slot;

	for (slot = 0; slot < VMLOOP_PEER_LANES; slot++) {
		lane = up_lane(channel, slot);
		if (lane && READ_ONCE(lane->stalled))
			return true;
	}
	return false;
}

/**
 * vmloop_channel_look() - act upon what the peer's state and our own latches say
 * @channel: the channel; freed if it has ended
 *
 * Context: core mutex held, may sleep.
 */
void vmloop_channel_look(struct vmloop_channel *channel)
{
	/* Pairs with the release by which the peer changes its state. */
	u32 theirs = virt_load_acquire(&channel->region.theirs->state);

	if (channel->state == VMLOOP_CHANNEL_OPENING) {
		if (theirs == VMLOOP_SIDE_READY && !channel->met)
			channel->met = channel_meet(channel);
		else if (theirs != VMLOOP_SIDE_READY &&
			 theirs != VMLOOP_SIDE_ABSENT)
			vmloop_channel_shut(channel, false);
	}
	if (channel->met && channel->state != VMLOOP_CHANNEL_CLOSING) {
		/*
		 * What was told before we could hear it, or by a doorbell that was
		 * lost. As in an interrupt, what that raises runs afterwards.
		 */
		local_bh_disable();
		vmloop_bell_take(channel);
		local_bh_enable();
		vmloop_lanes_look(channel);
	}
	if (channel->state == VMLOOP_CHANNEL_OPENING && channel->met &&
	    !READ_ONCE(channel->broken) && vmloop_lanes_answered(channel))
		channel_up(channel);
	if (channel->state == VMLOOP_CHANNEL_UP &&
	    theirs != VMLOOP_SIDE_READY)
		vmloop_channel_shut(channel, theirs == VMLOOP_SIDE_CLOSING);
	if (READ_ONCE(channel->broken))
		vmloop_channel_shut(channel, false);

	if (channel->state == VMLOOP_CHANNEL_UP) {
		vmloop_peer_set_state(channel->peer, is_stalled(channel) ?
					      VMLOOP_CHANNEL_STALLED :
					      VMLOOP_CHANNEL_UP, 0);
		vmloop_lanes_want(channel);
		channel_look_idle(channel);
	}
	if (channel->state == VMLOOP_CHANNEL_CLOSING) {
		if (channel_is_drained(channel))
			channel_end(channel);
		else
			vmloop_link_look_in(channel->link, DRAIN_POLL);
	}
}
