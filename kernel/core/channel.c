// SPDX-License-Identifier: GPL-2.0
/*
 * channel.c - the life of a channel, from the arrival of its memory (a link)
 * to the departure of it: opening, up, closing. docs/protocol.md, section 3.
 *
 * Owns the links and the channels. All of it runs under the core mutex, in
 * process context, but for what the data path calls: vmloop_peer_lane(),
 * vmloop_lane_*() and vmloop_link_event(), which run anywhere under RCU, and
 * the stall timer.
 *
 * A channel is freed when it ends, while its link stays until the transport
 * takes it away. What may outlive the channel (the work) is the link's.
 */
#include <linux/delay.h>
#include <linux/slab.h>

#include "core.h"
#include "trace.h"

/* How often a closing channel looks whether it is drained. */
#define DRAIN_POLL	msecs_to_jiffies(4)

/* How often a stalled channel looks whether the peer is back. */
#define STALL_POLL	msecs_to_jiffies(20)

static LIST_HEAD(links);	/* under the core mutex */

static struct vmloop_channel *link_channel(struct vmloop_link *link)
{
	return rcu_dereference_protected(link->channel,
					 lockdep_is_held(&vmloop_mutex));
}

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

static void report(struct vmloop_link *link, u32 state)
{
	if (link->transport->ops->report)
		link->transport->ops->report(link->transport, link->tag, state);
}

/* The data path ---------------------------------------------------------- */

/**
 * vmloop_peer_lane() - the lane to produce into for a peer
 * @peer: the peer
 *
 * Context: rcu_read_lock() held; the lane is good until it is let go of.
 * Return: the lane, or NULL while the standard network must be used.
 */
struct vmloop_lane *vmloop_peer_lane(struct vmloop_peer *peer)
{
	struct vmloop_lane *lane = rcu_dereference(peer->up);

	if (lane && unlikely(READ_ONCE(lane->channel->stalled)))
		return NULL;
	return lane;
}
EXPORT_SYMBOL_GPL(vmloop_peer_lane);

/**
 * vmloop_peer_why_no_lane() - why vmloop_peer_lane() has just found none
 * @peer: the peer
 *
 * Context: rcu_read_lock() held.
 * Return: the counter of the reason.
 */
enum vmloop_counter vmloop_peer_why_no_lane(const struct vmloop_peer *peer)
{
	if (rcu_access_pointer(peer->up))
		return VMLOOP_STANDARD_STALLED;
	/* Unlocked look: a state that is changing may count as either. */
	return READ_ONCE(peer->state) == VMLOOP_CHANNEL_CLOSING ?
		VMLOOP_STANDARD_CLOSING : VMLOOP_STANDARD_NO_CHANNEL;
}
EXPORT_SYMBOL_GPL(vmloop_peer_why_no_lane);

/**
 * vmloop_lane_features() - what both sides can do
 * @lane: a lane that is up
 *
 * Return: VMLOOP_F_*.
 */
u64 vmloop_lane_features(const struct vmloop_lane *lane)
{
	return lane->channel->features;
}
EXPORT_SYMBOL_GPL(vmloop_lane_features);

/**
 * vmloop_lane_ring() - ring the peer's doorbell
 * @lane: a lane of the channel
 *
 * Context: any, between the path's lane_open and the end of its lane_close.
 */
void vmloop_lane_ring(struct vmloop_lane *lane)
{
	lane->channel->link->ring(lane->channel->link);
	vmloop_count(lane->peer, VMLOOP_TX_DOORBELLS, 1);
}
EXPORT_SYMBOL_GPL(vmloop_lane_ring);

/* What is published by now is to be consumed in time. */
static void stall_mark(struct vmloop_channel *channel)
{
	WRITE_ONCE(channel->stall_mark, READ_ONCE(channel->lane.tx.published));
	WRITE_ONCE(channel->stall_until, jiffies + VMLOOP_STALL_READ_TIME);
}

/**
 * vmloop_lane_produced() - records were published: watch that they are read
 * @lane: a lane that was up when the caller found it
 *
 * Context: rcu_read_lock() held since vmloop_peer_lane(), or the path's
 * consumer while the lane is up.
 */
void vmloop_lane_produced(struct vmloop_lane *lane)
{
	struct vmloop_channel *channel = lane->channel;

	/* Not once it is being shut: nobody would end the timer. */
	if (timer_pending(&channel->stall) ||
	    READ_ONCE(channel->state) != VMLOOP_CHANNEL_UP)
		return;
	WRITE_ONCE(channel->stall_tail,
		   READ_ONCE(channel->region.theirs->lane[0].rx_tail));
	stall_mark(channel);
	mod_timer(&channel->stall, jiffies + VMLOOP_STALL_TIME);
}
EXPORT_SYMBOL_GPL(vmloop_lane_produced);

/**
 * vmloop_lane_broken() - the peer broke the protocol: end the channel
 * @lane: a lane of the channel
 * @fault: what one of its rings found
 *
 * Context: any, between the path's lane_open and the end of its lane_close.
 */
void vmloop_lane_broken(struct vmloop_lane *lane, enum vmloop_ring_fault fault)
{
	struct vmloop_channel *channel = lane->channel;

	if (READ_ONCE(channel->broken))
		return;
	/* Of two at once either is as good a reason. */
	WRITE_ONCE(channel->broken, (enum vmloop_break)fault);
	mod_delayed_work(vmloop_workqueue, &channel->link->work, 0);
}
EXPORT_SYMBOL_GPL(vmloop_lane_broken);

/**
 * vmloop_lane_stalled() - whether the peer has stopped to consume
 * @lane: a lane of the channel
 *
 * Return: true while the standard network must be used.
 */
bool vmloop_lane_stalled(const struct vmloop_lane *lane)
{
	return READ_ONCE(lane->channel->stalled);
}
EXPORT_SYMBOL_GPL(vmloop_lane_stalled);

static void stall_timer(struct timer_list *timer)
{
	struct vmloop_channel *channel =
		container_of(timer, struct vmloop_channel, stall);
	struct vmloop_lane *lane = &channel->lane;
	bool was = channel->stalled;
	bool pending, moved, read;
	u32 tail;

	/* Only compared, never used as a position. */
	tail = READ_ONCE(channel->region.theirs->lane[0].rx_tail);
	pending = tail != READ_ONCE(lane->tx.published);
	moved = tail != READ_ONCE(channel->stall_tail);
	WRITE_ONCE(channel->stall_tail, tail);
	read = (s32)(tail - READ_ONCE(channel->stall_mark)) >= 0;

	/*
	 * A tail that creeps holds up frames as one that stands: what was there
	 * when the time began must have been consumed when it ends. A peer that
	 * was stalled is back when it has consumed that.
	 */
	if (!pending || read)
		WRITE_ONCE(channel->stalled, false);
	else if (!moved ||
		 time_after_eq(jiffies, READ_ONCE(channel->stall_until)))
		WRITE_ONCE(channel->stalled, true);
	if (read)
		stall_mark(channel);
	if (channel->stalled != was) {
		trace_vmloop_stall(channel->peer, !was);
		if (!was)
			vmloop_count(channel->peer, VMLOOP_STALLS, 1);
		mod_delayed_work(vmloop_workqueue, &channel->link->work, 0);
	}
	/*
	 * What waits for room must go another way; what is kept until the peer
	 * has read it can go.
	 */
	lane->path->lane_event(lane);
	if (channel->stalled && !was)
		vmloop_lane_ring(lane);
	if (pending)
		mod_timer(timer, jiffies + (channel->stalled ?
					    STALL_POLL : VMLOOP_STALL_TIME));
}

/**
 * vmloop_lanes_do() - call a function for each open lane of a path
 * @path: the path
 * @what: the function; core mutex held
 * @data: handed to it
 *
 * Context: process context, takes the core mutex; RTNL may be held.
 */
void vmloop_lanes_do(const struct vmloop_path *path,
		     void (*what)(struct vmloop_lane *lane, void *data),
		     void *data)
{
	struct vmloop_channel *channel;
	struct vmloop_link *link;

	mutex_lock(&vmloop_mutex);
	list_for_each_entry(link, &links, list) {
		channel = link_channel(link);
		if (channel && channel->lane.path == path)
			what(&channel->lane, data);
	}
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_lanes_do);

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
		channel->lane.path->lane_event(&channel->lane);
		/* Ordinarily the peer just is READY, and all is as it was. */
		theirs = READ_ONCE(channel->region.theirs->state);
		if (theirs != VMLOOP_SIDE_READY ||
		    READ_ONCE(channel->state) != VMLOOP_CHANNEL_UP)
			mod_delayed_work(vmloop_workqueue, &link->work, 0);
	}
	rcu_read_unlock();
}
EXPORT_SYMBOL_GPL(vmloop_link_event);

/* Opening ---------------------------------------------------------------- */

static void channel_begin(struct vmloop_link *link, struct vmloop_peer *peer,
			  const struct vmloop_path *path)
{
	struct vmloop_channel *channel;
	struct vmloop_shm_side *ours;

	channel = kzalloc(sizeof(*channel), GFP_KERNEL);
	if (!channel)
		return;	/* the next directory tries again */

	if (vmloop_region_open(&channel->region, link->base, link->size,
			       link->side, VMLOOP_REGION_CHANNEL))
		goto unusable;
	ours = channel->region.ours;
	/* Another life of ours has used it up. */
	if (READ_ONCE(ours->state) != VMLOOP_SIDE_ABSENT)
		goto unusable;
	if (vmloop_region_tx(&channel->region, 0, path->kind,
			     &channel->lane.tx))
		goto unusable;

	channel->peer = peer;
	channel->link = link;
	channel->state = VMLOOP_CHANNEL_OPENING;
	timer_setup(&channel->stall, stall_timer, 0);
	spin_lock_init(&channel->lane.tx_lock);
	channel->lane.channel = channel;
	channel->lane.peer = peer;
	channel->lane.path = path;
	if (path->lane_open(&channel->lane))
		goto unusable;

	vmloop_peer_get(peer);
	peer->channel = channel;
	vmloop_peer_request_cancel(peer);
	vmloop_peer_set_state(peer, VMLOOP_CHANNEL_OPENING, 0);
	rcu_assign_pointer(link->channel, channel);

	WRITE_ONCE(ours->major, VMLOOP_SHM_MAJOR);
	WRITE_ONCE(ours->minor, VMLOOP_SHM_MINOR);
	WRITE_ONCE(ours->features, path->features);
	WRITE_ONCE(ours->max_record, path->max_record);
	WRITE_ONCE(ours->lanes, 1);
	/* Pairs with the acquire in channel_look(). */
	virt_store_release(&ours->state, VMLOOP_SIDE_READY);
	link->ring(link);
	mod_delayed_work(vmloop_workqueue, &link->work, 0);
	return;

unusable:
	kfree(channel);
	link->used = true;
	report(link, VMLOOP_STATE_CLOSED);
}

/**
 * vmloop_channels_adopt() - begin channels for links whose peer is known now
 * @transport: whose links; NULL for all
 *
 * Nothing happens while the paths have yet to be told of the directory: it is
 * called again when they have been.
 *
 * Context: core mutex held.
 */
void vmloop_channels_adopt(struct vmloop_transport *transport)
{
	const struct vmloop_path *path = vmloop_path_find(VMLOOP_LANE_PACKET);
	struct vmloop_link *link;
	struct vmloop_peer *peer;

	lockdep_assert_held(&vmloop_mutex);
	if (!path || !vmloop_enabled() || !vmloop_paths_are_told())
		return;
	list_for_each_entry(link, &links, list) {
		if (link->used || link_channel(link) ||
		    (transport && link->transport != transport))
			continue;
		peer = vmloop_peer_find_tag(link->transport, link->tag);
		if (!peer || peer->channel)
			continue;
		/*
		 * It asked; we do not want to, yet. After too many breaks we do
		 * not ask any more, but an agent that was told to makes one.
		 */
		if (peer->state == VMLOOP_CHANNEL_BROKEN &&
		    time_before(jiffies, peer->retry_at)) {
			link->used = true;
			report(link, VMLOOP_STATE_BROKEN);
			continue;
		}
		channel_begin(link, peer, path);
	}
}

static void channel_up(struct vmloop_channel *channel)
{
	const struct vmloop_shm_side *theirs = channel->region.theirs;
	struct vmloop_lane *lane = &channel->lane;

	if (READ_ONCE(theirs->major) != VMLOOP_SHM_MAJOR) {
		channel->broken = VMLOOP_BREAK_VERSION;
		return;
	}
	if (vmloop_region_rx(&channel->region, 0, lane->path->kind,
			     &lane->rx)) {
		channel->broken = VMLOOP_BREAK_LANE;
		return;
	}
	channel->features = READ_ONCE(theirs->features) & lane->path->features;
	channel->idle_since = jiffies;
	channel->up_since = jiffies;
	WRITE_ONCE(channel->state, VMLOOP_CHANNEL_UP);
	lane->path->lane_up(lane);
	rcu_assign_pointer(channel->peer->up, lane);
	vmloop_peer_set_state(channel->peer, VMLOOP_CHANNEL_UP, 0);
	report(channel->link, VMLOOP_STATE_UP);
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
	struct vmloop_lane *lane = &channel->lane;
	bool was_up = channel->state == VMLOOP_CHANNEL_UP;

	lockdep_assert_held(&vmloop_mutex);
	if (channel->state == VMLOOP_CHANNEL_CLOSING) {
		if (!peer_alive)
			channel->deadline = jiffies;
		mod_delayed_work(vmloop_workqueue, &link->work, 0);
		return;
	}

	RCU_INIT_POINTER(channel->peer->up, NULL);
	WRITE_ONCE(channel->state, VMLOOP_CHANNEL_CLOSING);
	vmloop_peer_set_state(channel->peer, VMLOOP_CHANNEL_CLOSING, 0);
	/*
	 * No producer is left in the lane, and none sets the stall timer.
	 * Expedited, here and below: a guest that is to be saved stands still
	 * until both sides of all its channels are done.
	 */
	synchronize_rcu_expedited();
	if (was_up)
		lane->path->lane_down(lane);
	timer_delete_sync(&channel->stall);

	/* Pairs with the peer's acquire: all that we produced is published. */
	virt_store_release(&channel->region.ours->state, VMLOOP_SIDE_CLOSING);
	link->ring(link);
	channel->deadline = jiffies;
	if (was_up && peer_alive)
		channel->deadline += VMLOOP_DRAIN_TIME;
	mod_delayed_work(vmloop_workqueue, &link->work, 0);
}

/* Whether nothing is left to do for either side, or nobody to do it with. */
static bool channel_is_drained(struct vmloop_channel *channel)
{
	struct vmloop_lane *lane = &channel->lane;
	bool waiting;
	u32 theirs;

	/* Pairs with the peer's release: its last position is there to read. */
	theirs = virt_load_acquire(&channel->region.theirs->state);
	if (READ_ONCE(channel->broken) ||
	    time_after_eq(jiffies, channel->deadline) ||
	    theirs == VMLOOP_SIDE_CLOSED || theirs == VMLOOP_SIDE_ABSENT)
		return true;
	/* The peer must have stopped, or there may be more to consume. */
	if (theirs != VMLOOP_SIDE_CLOSING)
		return false;
	spin_lock_bh(&lane->tx_lock);
	waiting = !vmloop_ring_drained(&lane->tx);
	spin_unlock_bh(&lane->tx_lock);
	/* Only compared: is what they produced what we have consumed? */
	return !waiting && READ_ONCE(lane->rx.theirs->tx_head) ==
			   READ_ONCE(lane->rx.published);
}

/* The end of a channel that was shut; frees it. */
static void channel_end(struct vmloop_channel *channel)
{
	struct vmloop_link *link = channel->link;
	struct vmloop_peer *peer = channel->peer;
	enum vmloop_break broken;

	lockdep_assert_held(&vmloop_mutex);
	/*
	 * Still alive: doorbells, which look at the lane under RCU, and the
	 * lane's own consumer. The stall timer ended when the channel was shut.
	 */
	link->used = true;
	RCU_INIT_POINTER(link->channel, NULL);
	/* No doorbell looks at the lane any more. */
	synchronize_rcu_expedited();
	channel->lane.path->lane_close(&channel->lane);
	/* Pairs with the peer's acquire: we touch nothing of it any more. */
	virt_store_release(&channel->region.ours->state, VMLOOP_SIDE_CLOSED);
	link->ring(link);

	broken = channel->broken;
	peer->channel = NULL;
	peer->attempts = 0;
	clear_bit(0, &peer->wanted);
	if (broken)
		vmloop_peer_broke(peer, broken, channel->up_since ?
				  jiffies - channel->up_since : 0);
	else
		vmloop_peer_set_state(peer, VMLOOP_CHANNEL_NONE, 0);
	report(link, broken ? VMLOOP_STATE_BROKEN : VMLOOP_STATE_CLOSED);
	kfree(channel);
	vmloop_peer_put(peer);
}

/* Shut a channel, give it the time to drain, and end it. */
static void channel_end_now(struct vmloop_channel *channel, bool peer_alive)
{
	vmloop_channel_shut(channel, peer_alive);
	while (!channel_is_drained(channel))
		usleep_range(2000, 4000);
	channel_end(channel);
}

/**
 * vmloop_channels_end() - end all channels at once
 * @path: those of this path only, or NULL for all
 *
 * Context: core mutex held, may sleep for as long as draining takes.
 */
void vmloop_channels_end(const struct vmloop_path *path)
{
	struct vmloop_channel *channel;
	struct vmloop_link *link;

	lockdep_assert_held(&vmloop_mutex);
	/* First all of them, so that they drain side by side. */
	list_for_each_entry(link, &links, list) {
		channel = link_channel(link);
		if (channel && (!path || channel->lane.path == path))
			vmloop_channel_shut(channel, true);
	}
	list_for_each_entry(link, &links, list) {
		channel = link_channel(link);
		if (channel && (!path || channel->lane.path == path))
			channel_end_now(channel, true);
	}
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
	if (frames != channel->idle_frames) {
		channel->idle_frames = frames;
		channel->idle_since = jiffies;
	}
	idle = time_after_eq(jiffies,
			     channel->idle_since + msecs_to_jiffies(idle_ms));
	if (idle != channel->idle) {
		channel->idle = idle;
		report(channel->link, idle ? VMLOOP_STATE_IDLE :
					     VMLOOP_STATE_UP);
	}
	queue_delayed_work(vmloop_workqueue, &channel->link->work,
			   msecs_to_jiffies(idle_ms) / 2 + 1);
}

/* Act upon what the peer's state and our own latches say. */
static void channel_look(struct vmloop_channel *channel)
{
	/* Pairs with the release by which the peer changes its state. */
	u32 theirs = virt_load_acquire(&channel->region.theirs->state);

	if (channel->state == VMLOOP_CHANNEL_OPENING) {
		if (theirs == VMLOOP_SIDE_READY)
			channel_up(channel);
		else if (theirs != VMLOOP_SIDE_ABSENT)
			vmloop_channel_shut(channel, false);
	}
	if (channel->state == VMLOOP_CHANNEL_UP &&
	    theirs != VMLOOP_SIDE_READY)
		vmloop_channel_shut(channel, theirs == VMLOOP_SIDE_CLOSING);
	if (READ_ONCE(channel->broken))
		vmloop_channel_shut(channel, false);

	if (channel->state == VMLOOP_CHANNEL_UP) {
		vmloop_peer_set_state(channel->peer,
				      READ_ONCE(channel->stalled) ?
					      VMLOOP_CHANNEL_STALLED :
					      VMLOOP_CHANNEL_UP, 0);
		channel_look_idle(channel);
	}
	if (channel->state == VMLOOP_CHANNEL_CLOSING) {
		if (channel_is_drained(channel))
			channel_end(channel);
		else
			mod_delayed_work(vmloop_workqueue, &channel->link->work,
					 DRAIN_POLL);
	}
}

static void link_work(struct work_struct *work)
{
	struct vmloop_link *link =
		container_of(work, struct vmloop_link, work.work);
	struct vmloop_channel *channel;

	mutex_lock(&vmloop_mutex);
	channel = link_channel(link);
	if (channel)
		channel_look(channel);
	mutex_unlock(&vmloop_mutex);
}

/**
 * vmloop_link_add() - a channel's memory has arrived
 * @link: filled in by the transport; stays until vmloop_link_remove()
 *
 * Context: process context, takes the core mutex.
 * Return: 0; -ENODEV if the memory is no region of ours; -EPROTO if it is one
 * that cannot be used.
 */
int vmloop_link_add(struct vmloop_link *link)
{
	struct vmloop_region region;
	int err;

	err = vmloop_region_open(&region, link->base, link->size, link->side,
				 VMLOOP_REGION_CHANNEL);
	if (err)
		return err;

	RCU_INIT_POINTER(link->channel, NULL);
	link->used = false;
	INIT_DELAYED_WORK(&link->work, link_work);

	mutex_lock(&vmloop_mutex);
	list_add_tail(&link->list, &links);
	vmloop_channels_adopt(link->transport);
	mutex_unlock(&vmloop_mutex);
	return 0;
}
EXPORT_SYMBOL_GPL(vmloop_link_add);

/**
 * vmloop_link_remove() - a channel's memory goes away
 * @link: added before; the transport delivers no doorbell for it any more
 *
 * After return nobody touches the memory or the link. What the peer has
 * produced until then is consumed.
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_link_remove(struct vmloop_link *link)
{
	struct vmloop_channel *channel;

	mutex_lock(&vmloop_mutex);
	channel = link_channel(link);
	if (channel)
		channel_end_now(channel, false);
	link->used = true;
	list_del(&link->list);
	/* A new link to the same peer may have waited for this one's end. */
	vmloop_channels_adopt(link->transport);
	mutex_unlock(&vmloop_mutex);
	cancel_delayed_work_sync(&link->work);
}
EXPORT_SYMBOL_GPL(vmloop_link_remove);

/**
 * vmloop_channel_close() - the agent wants a channel closed
 * @transport: whose agent
 * @tag: the channel
 *
 * The answer is a report of VMLOOP_STATE_CLOSED, now or when it is drained.
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_channel_close(struct vmloop_transport *transport, u32 tag)
{
	struct vmloop_channel *channel = NULL;
	struct vmloop_link *link;

	mutex_lock(&vmloop_mutex);
	list_for_each_entry(link, &links, list) {
		if (link->transport != transport || link->tag != tag)
			continue;
		link->used = true;
		channel = link_channel(link);
		break;
	}
	if (channel)
		vmloop_channel_shut(channel, true);
	else if (transport->ops->report)
		transport->ops->report(transport, tag, VMLOOP_STATE_CLOSED);
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_channel_close);

/**
 * vmloop_channels_report() - tell a new agent how all channels stand
 * @transport: whose agent
 *
 * Context: core mutex held.
 */
void vmloop_channels_report(struct vmloop_transport *transport)
{
	struct vmloop_channel *channel;
	struct vmloop_link *link;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry(link, &links, list) {
		if (link->transport != transport)
			continue;
		channel = link_channel(link);
		if (channel && channel->state == VMLOOP_CHANNEL_UP)
			report(link, VMLOOP_STATE_UP);
		else if (!channel && link->used)
			report(link, VMLOOP_STATE_CLOSED);
	}
}

/**
 * vmloop_channels_look() - have all channels looked at, soon
 * @transport: those of this transport
 *
 * Context: core mutex held.
 */
void vmloop_channels_look(struct vmloop_transport *transport)
{
	struct vmloop_link *link;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry(link, &links, list)
		if (link->transport == transport && link_channel(link))
			mod_delayed_work(vmloop_workqueue, &link->work, 0);
}

/**
 * vmloop_stats_report() - counters of all channels of a transport
 * @transport: whose
 * @out: called for each channel under the core mutex; cookie is left zero
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_stats_report(struct vmloop_transport *transport,
			 void (*out)(struct vmloop_transport *transport,
				     const struct vmloop_msg_stats *stats))
{
	struct vmloop_msg_stats stats;
	struct vmloop_channel *channel;
	struct vmloop_link *link;
	struct vmloop_peer *peer;
	unsigned int i;

	mutex_lock(&vmloop_mutex);
	list_for_each_entry(link, &links, list) {
		channel = link_channel(link);
		if (link->transport != transport || !channel)
			continue;
		peer = channel->peer;
		stats = (struct vmloop_msg_stats){
			.tag = link->tag,
			.tx_frames = vmloop_peer_counter(peer, VMLOOP_TX_FRAMES),
			.tx_bytes = vmloop_peer_counter(peer, VMLOOP_TX_BYTES),
			.rx_frames = vmloop_peer_counter(peer, VMLOOP_RX_FRAMES),
			.rx_bytes = vmloop_peer_counter(peer, VMLOOP_RX_BYTES),
			.tx_doorbells =
				vmloop_peer_counter(peer, VMLOOP_TX_DOORBELLS),
			.rx_doorbells =
				vmloop_peer_counter(peer, VMLOOP_RX_DOORBELLS),
			.tx_full = vmloop_peer_counter(peer, VMLOOP_TX_FULL),
		};
		for (i = VMLOOP_DROP_SOURCE; i <= VMLOOP_DROP_INTERFACE; i++)
			stats.rx_dropped += vmloop_peer_counter(peer, i);
		out(transport, &stats);
	}
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_stats_report);
