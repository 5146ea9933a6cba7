// SPDX-License-Identifier: GPL-2.0
/*
 * lane.c - the life of a lane: opened by a path of either side, accepted or refused
 * by the other, up, closing, ended. docs/protocol.md, section 9; life.c has which
 * steps there are, this file what belongs to each.
 *
 * Owns the lanes of all channels. All of it runs under the core mutex, in process
 * context, but for what the data path calls, which says so.
 *
 * A lane that is closed stays in its channel until the peer is done with it as
 * well, or the channel ends: only then is it known what the peer has read.
 *
 * A channel of version 1 has one lane, which lives as long as the channel and has
 * no life of its own.
 */
#include <linux/delay.h>
#include <linux/slab.h>

#include "core.h"

/* How often a closing lane looks whether it is drained. */
#define DRAIN_POLL	msecs_to_jiffies(4)

/* How often a lane that waits for the peer looks, and rings: a doorbell can be lost. */
#define ANSWER_POLL	HZ

/* Lanes that are looked at before others have their turn with the core mutex. */
#define LOOK_BUDGET	64

/* When a lane that a path should have is asked for again. */
#define WANT_FIRST	HZ
#define WANT_MAX	(64UL * HZ)

/* The data path ---------------------------------------------------------- */

/*
 * The lane of a flow. Among how many the flows are spread, the first lane says: its
 * @spread does not change while producers find it, so no flow changes its lane. A
 * slot that is empty takes no flow from another.
 */
static struct vmloop_lane *flow_lane(const struct vmloop_peer *peer, u32 flow)
{
	struct vmloop_lane *first = rcu_dereference(peer->up[0]);

	if (!first || first->spread <= 1)
		return first;
	return rcu_dereference(peer->up[reciprocal_scale(flow, first->spread)]);
}

/**
 * vmloop_peer_lane() - the lane to produce into for a peer
 * @peer: the peer
 * @flow: a hash of what must stay in order: the same one has the same lane
 *
 * Context: rcu_read_lock() held; the lane is good until it is let go of.
 * Return: the lane, or NULL while the standard network must be used.
 */
struct vmloop_lane *vmloop_peer_lane(struct vmloop_peer *peer, u32 flow)
{
	struct vmloop_lane *lane = flow_lane(peer, flow);

	if (lane && unlikely(READ_ONCE(lane->stalled)))
		return NULL;
	return lane;
}
EXPORT_SYMBOL_GPL(vmloop_peer_lane);

/**
 * vmloop_peer_why_no_lane() - why vmloop_peer_lane() has just found none
 * @peer: the peer
 * @flow: as there
 *
 * Context: rcu_read_lock() held.
 * Return: the counter of the reason.
 */
enum vmloop_counter vmloop_peer_why_no_lane(const struct vmloop_peer *peer,
					    u32 flow)
{
	if (flow_lane(peer, flow))
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
	return lane->features;
}
EXPORT_SYMBOL_GPL(vmloop_lane_features);

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
	vmloop_link_look(channel->link);
}
EXPORT_SYMBOL_GPL(vmloop_lane_broken);

/**
 * vmloop_lane_read() - the path has read all that came by a lane that is closing
 * @lane: the lane
 *
 * It is looked at whether the lane can be closed now, which would else be seen at the next look
 * at the clock. Cheap where it cannot. Context: as vmloop_lane_broken().
 */
void vmloop_lane_read(struct vmloop_lane *lane)
{
	struct vmloop_channel *channel = lane->channel;

	if (channel->look)
		set_bit(lane->number, channel->look);
	vmloop_link_look(channel->link);
}
EXPORT_SYMBOL_GPL(vmloop_lane_read);

/**
 * vmloop_lane_is_final() - whether what the peer has published as read is its last word
 * @lane: a lane; from the path's lane_ended, before vmloop_ring_account(): what that finds
 *	is no older then
 *
 * Context: core mutex held.
 * Return: false where the peer may go on reading, as far as we know.
 */
bool vmloop_lane_is_final(const struct vmloop_lane *lane)
{
	const struct vmloop_channel *channel = lane->channel;

	lockdep_assert_held(&vmloop_mutex);
	if (channel->slots && vmloop_life_is_final(&channel->slots[lane->number].life))
		return true;
	/* Pairs with the release in the peer's channel_end(): it has read what it has. */
	return virt_load_acquire(&channel->region.theirs->state) == VMLOOP_SIDE_CLOSED;
}
EXPORT_SYMBOL_GPL(vmloop_lane_is_final);

static void lane_free(struct kref *refs)
{
	kfree(container_of(refs, struct vmloop_lane, refs));
}

/**
 * vmloop_lane_get() - keep a lane that has ended
 * @lane: a lane that the path has not been told the end of, or holds
 *
 * Its memory stays; its channel and its rings do not.
 *
 * Context: any.
 */
void vmloop_lane_get(struct vmloop_lane *lane)
{
	kref_get(&lane->refs);
}
EXPORT_SYMBOL_GPL(vmloop_lane_get);

/**
 * vmloop_lane_put() - let go of what vmloop_lane_get() has kept
 * @lane: the lane
 *
 * Context: any.
 */
void vmloop_lane_put(struct vmloop_lane *lane)
{
	kref_put(&lane->refs, lane_free);
}
EXPORT_SYMBOL_GPL(vmloop_lane_put);

/* Words of the table ----------------------------------------------------- */

static struct vmloop_slot *slot_of(const struct vmloop_lane *lane)
{
	return lane->channel->slots ? &lane->channel->slots[lane->number] : NULL;
}

/* Take a step that is ours to take, and tell the peer. */
static void go(struct vmloop_channel *channel, u32 number, u32 step, u32 reason)
{
	struct vmloop_shm_entry *ours =
		vmloop_region_our_entry(&channel->region, number);
	struct vmloop_slot *slot = &channel->slots[number];

	/* Stays until the next OPEN: the peer may see CLOSED late, or not at all. */
	if (step != VMLOOP_LIFE_FREE)
		WRITE_ONCE(ours->reason, reason);
	/* Pairs with see(): all that belongs to the step is there. */
	virt_store_release(&ours->life, vmloop_life_go(&slot->life, step));
	channel->rung = jiffies;
	vmloop_bell_tell(channel, number);
}

/* Load the peer's word. False if it says what cannot be: the channel is broken. */
static bool see(struct vmloop_channel *channel, u32 number)
{
	const struct vmloop_shm_entry *theirs =
		vmloop_region_their_entry(&channel->region, number);
	struct vmloop_slot *slot = &channel->slots[number];

	/* Pairs with the release by which the peer takes a step. */
	if (vmloop_life_see(&slot->life, virt_load_acquire(&theirs->life)) < 0) {
		WRITE_ONCE(channel->broken, VMLOOP_BREAK_LANE);
		return false;
	}
	WRITE_ONCE(slot->seen, slot->life.theirs);
	return true;
}

/* The same at the end of a channel: a word that cannot be is ignored. */
static void see_last(struct vmloop_channel *channel, u32 number)
{
	const struct vmloop_shm_entry *theirs =
		vmloop_region_their_entry(&channel->region, number);

	/* Pairs with the release by which the peer takes a step. */
	vmloop_life_see(&channel->slots[number].life, virt_load_acquire(&theirs->life));
}

/* The lane is ready, here: doorbells may come. */
static void lane_enter(struct vmloop_lane *lane)
{
	struct vmloop_channel *channel = lane->channel;

	list_add_tail(&lane->list, &channel->lanes);
	if (channel->slots)
		channel->slots[lane->number].lane = lane;
	vmloop_bell_enter(lane);
}

/* Making ----------------------------------------------------------------- */

static struct vmloop_lane *lane_make(struct vmloop_channel *channel, u32 number,
				     const struct vmloop_path *path)
{
	struct vmloop_lane *lane = kzalloc(sizeof(*lane), GFP_KERNEL);

	if (!lane)
		return NULL;
	lane->channel = channel;
	lane->peer = channel->peer;
	lane->path = path;
	lane->number = number;
	spin_lock_init(&lane->tx_lock);
	vmloop_stall_init(lane);
	kref_init(&lane->refs);
	lane->phase = VMLOOP_LANE_OPENING;
	INIT_LIST_HEAD(&lane->list);
	return lane;
}

/* The path's features. Where a path moves its rings, the lane follows the peer's moves, too. */
static u64 offers(const struct vmloop_lane *lane)
{
	return lane->path->features | (lane->path->lane_move ? VMLOOP_F_MOVES : 0);
}

/* Describe our ring in our entry. It begins where the last one of the number ended. */
static int ring_describe(struct vmloop_lane *lane,
			 const struct vmloop_lane_ask *ask)
{
	struct vmloop_channel *channel = lane->channel;
	struct vmloop_shm_entry *ours =
		vmloop_region_our_entry(&channel->region, lane->number);
	const struct vmloop_shm_entry *theirs =
		vmloop_region_their_entry(&channel->region, lane->number);
	struct vmloop_slot *slot = slot_of(lane);
	u32 size;
	int err;

	err = vmloop_room_take(channel, ask, &size, &lane->data);
	if (err)
		return err;
	err = vmloop_ring_tx_init(&lane->tx, lane->path->grain,
				  channel->region.tx_data + lane->data, size,
				  vmloop_life_start(slot->tx_end), &ours->lane,
				  &theirs->lane);
	if (err) {
		vmloop_area_give(&channel->area, lane->data);
		return err;
	}
	lane->room = size;
	WRITE_ONCE(ours->lane.ring_offset, lane->data);
	WRITE_ONCE(ours->lane.ring_size, size);
	WRITE_ONCE(ours->lane.kind, lane->path->kind);
	/* Lanes among which a peer's packets are spread have a doorbell, and a CPU, each. */
	if (lane->path->by_peer)
		lane->bell = vmloop_bell_for(channel, ask->slot);
	WRITE_ONCE(ours->bell, lane->bell);
	WRITE_ONCE(ours->features, offers(lane));
	memcpy(ours->path, ask->say, sizeof(ours->path));
	memcpy(lane->owners, ask->owners, sizeof(lane->owners));
	lane->priv = ask->priv;
	lane->slot = ask->slot;
	lane->spread = ask->spread;
	return 0;
}

/*
 * Check what the peer says of its ring, and begin to read it at @start. After said(), which
 * says whether the ring may move.
 */
static int ring_read(struct vmloop_lane *lane, u32 start)
{
	struct vmloop_region *region = &lane->channel->region;
	struct vmloop_shm_entry *ours =
		vmloop_region_our_entry(region, lane->number);
	const struct vmloop_shm_entry *theirs =
		vmloop_region_their_entry(region, lane->number);
	u64 offset = READ_ONCE(theirs->lane.ring_offset);
	u32 size = READ_ONCE(theirs->lane.ring_size);
	int err;

	if (READ_ONCE(theirs->lane.kind) != lane->path->kind ||
	    !IS_ALIGNED(offset, VMLOOP_SHM_PAGE) ||
	    offset > region->rx_size || size > region->rx_size - offset)
		return -EPROTO;
	/* The ring itself refuses sizes that are no power of two. */
	err = vmloop_ring_rx_init(&lane->rx, lane->path->grain,
				  region->rx_data + offset, size, start,
				  &ours->lane, &theirs->lane);
	if (!err && (lane->features & VMLOOP_F_MOVES))
		vmloop_ring_follow(&lane->rx, region->rx_data, region->rx_size);
	return err;
}

static void said(struct vmloop_lane *lane)
{
	const struct vmloop_shm_entry *theirs =
		vmloop_region_their_entry(&lane->channel->region, lane->number);
	u32 bell = READ_ONCE(theirs->bell);

	/* One that there is not is not rung: the peer hears of the lane as of others. */
	WRITE_ONCE(lane->peer_bell,
		   bell < lane->channel->link->peer_bells ? bell : 0);
	/* Private copy: the peer may write to its own at any time. */
	memcpy(lane->said, theirs->path, sizeof(lane->said));
	barrier();
	lane->features = READ_ONCE(theirs->features) & offers(lane);
}

static void lane_up(struct vmloop_lane *lane)
{
	WRITE_ONCE(lane->phase, VMLOOP_LANE_UP);
	lane->path->lane_up(lane);
	if (!lane->path->by_peer)
		return;
	lane->spread = clamp_t(u32, lane->spread, 1, VMLOOP_PEER_LANES);
	rcu_assign_pointer(lane->peer->up[lane->slot], lane);
}

/**
 * vmloop_channel_slot() - the lane that has a slot
 * @channel: the channel
 * @path: whose lane, with by_peer
 * @slot: which one
 *
 * Context: core mutex held.
 * Return: the lane, open here and perhaps not yet on the other side, or NULL.
 */
struct vmloop_lane *vmloop_channel_slot(const struct vmloop_channel *channel,
					const struct vmloop_path *path,
					u32 slot)
{
	struct vmloop_lane *lane;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry(lane, &channel->lanes, list)
		if (lane->path == path && lane->slot == slot &&
		    lane->phase != VMLOOP_LANE_CLOSED)
			return lane;
	return NULL;
}
EXPORT_SYMBOL_GPL(vmloop_channel_slot);

/**
 * vmloop_channel_lane() - open a lane
 * @channel: a channel that begins or is up; core mutex held
 * @path: whose lane
 * @ask: what it is to be
 *
 * The path's lane_open is called before this returns; lane_up when the peer has
 * accepted it; lane_close and lane_ended if it is refused.
 *
 * Context: process context, from the path's channel_open or lane_up, or
 * vmloop_channel_do().
 * Return: the lane, which the path may use until its lane_close; or -ENOSPC: no
 * number or no memory is free; -EDQUOT: it is, but above the share of whom the lane is
 * for; -EBUSY: the peer has not let go of most of our memory; -EINVAL: the ring's size
 * is none, or the slot; -EOPNOTSUPP: the channel has no table of lanes; -ENOTCONN: it is
 * ending; -EEXIST: the slot has a lane; -ENODEV: the path is not registered; -EACCES: the
 * host's policy has no such lanes for the peer; or what its lane_open returned.
 */
struct vmloop_lane *vmloop_channel_lane(struct vmloop_channel *channel,
					const struct vmloop_path *path,
					const struct vmloop_lane_ask *ask)
{
	struct vmloop_lane *lane;
	u32 number;
	int err;

	lockdep_assert_held(&vmloop_mutex);
	if (!channel->slots)
		return ERR_PTR(-EOPNOTSUPP);
	if (channel->state == VMLOOP_CHANNEL_CLOSING)
		return ERR_PTR(-ENOTCONN);
	if (vmloop_path_find(path->kind) != path)
		return ERR_PTR(-ENODEV);
	if (!vmloop_policy_has(channel, path))
		return ERR_PTR(-EACCES);
	if (ask->slot >= VMLOOP_PEER_LANES)
		return ERR_PTR(-EINVAL);
	if (path->by_peer && vmloop_channel_slot(channel, path, ask->slot))
		return ERR_PTR(-EEXIST);
	for (number = channel->link->side; number < channel->used; number += 2)
		if (!channel->slots[number].lane &&
		    vmloop_life_may(&channel->slots[number].life,
				    VMLOOP_LIFE_OPEN))
			break;
	if (number >= channel->used)
		return ERR_PTR(-ENOSPC);

	lane = lane_make(channel, number, path);
	if (!lane)
		return ERR_PTR(-ENOMEM);
	lane->opened = true;
	err = ring_describe(lane, ask);
	if (err)
		goto err_ring;
	err = path->lane_open(lane);
	if (err)
		goto err_open;
	/* Where the peer will begin; it checks its first position against that. */
	WRITE_ONCE(lane->tx.ours->rx_tail,
		   vmloop_life_start(slot_of(lane)->rx_end));
	WRITE_ONCE(lane->tx.ours->rx_moves, 0);
	lane_enter(lane);
	go(channel, number, VMLOOP_LIFE_OPEN, VMLOOP_REASON_NONE);
	return lane;

err_open:
	vmloop_area_give(&channel->area, lane->data);
err_ring:
	vmloop_lane_put(lane);
	return ERR_PTR(err);
}
EXPORT_SYMBOL_GPL(vmloop_channel_lane);

/* Whether a slot is not the peer's to open. Where both sides have, side 0's stays. */
static bool is_taken(const struct vmloop_channel *channel,
		     const struct vmloop_path *path, u32 slot)
{
	const struct vmloop_lane *lane;

	if (slot >= VMLOOP_PEER_LANES)
		return true;
	lane = vmloop_channel_slot(channel, path, slot);
	return lane && (!channel->link->side ||
			lane->phase != VMLOOP_LANE_OPENING);
}

/*
 * Whether the peer opens lanes too often that cost us much: one after the other. It gets
 * some at once, and then so many a second.
 */
static bool is_one_too_many(struct vmloop_accepts *accepts, unsigned long a_second,
			    unsigned long most)
{
	unsigned long seconds = (jiffies - accepts->at) / HZ;

	if (seconds) {
		accepts->left = min(accepts->left + seconds * a_second, most);
		accepts->at = jiffies;
	}
	if (!accepts->left)
		return true;
	accepts->left--;
	return false;
}

static bool costs_too_much(struct vmloop_channel *channel, const struct vmloop_path *path)
{
	if (path == &vmloop_windows)
		return is_one_too_many(&channel->window_accepts, VMLOOP_WINDOWS_A_SECOND,
				       VMLOOP_WINDOW_ACCEPTS_MAX);
	return path->by_peer && is_one_too_many(&channel->accepts, 1, VMLOOP_ACCEPTS_MAX);
}

/* The peer has opened a lane: accept it. Returns VMLOOP_REASON_*. */
static u32 lane_accept(struct vmloop_channel *channel, u32 number)
{
	const struct vmloop_shm_entry *theirs =
		vmloop_region_their_entry(&channel->region, number);
	const struct vmloop_path *path;
	struct vmloop_lane_ask ask = {};
	struct vmloop_lane *lane;
	u32 reason;

	path = vmloop_path_find(READ_ONCE(theirs->lane.kind));
	if (!path)
		return VMLOOP_REASON_KIND;
	if (!vmloop_policy_has(channel, path))
		return VMLOOP_REASON_POLICY;
	if (costs_too_much(channel, path))
		return VMLOOP_REASON_ROOM;
	lane = lane_make(channel, number, path);
	if (!lane)
		return VMLOOP_REASON_ROOM;
	said(lane);
	/* Before OPEN: our position in its ring is where it begins. */
	reason = VMLOOP_REASON_RING;
	if (ring_read(lane, READ_ONCE(theirs->lane.tx_head)))
		goto err_wanted;
	if (path->lane_wanted) {
		reason = path->lane_wanted(lane, &ask);
		if (reason)
			goto err_wanted;
	}
	reason = VMLOOP_REASON_ROOM;
	if (path->by_peer && is_taken(channel, path, ask.slot))
		goto err_wanted;
	if (ring_describe(lane, &ask))
		goto err_wanted;
	if (path->lane_open(lane))
		goto err_ring;
	lane_enter(lane);
	go(channel, number, VMLOOP_LIFE_OPEN, VMLOOP_REASON_NONE);
	lane_up(lane);
	return VMLOOP_REASON_NONE;

err_ring:
	vmloop_area_give(&channel->area, lane->data);
err_wanted:
	vmloop_lane_put(lane);
	return reason;
}

/* Closing ---------------------------------------------------------------- */

/* No producer finds the lane any more; one may still be in it until RCU says. */
static void lane_hide(struct vmloop_lane *lane)
{
	if (lane->path->by_peer &&
	    rcu_access_pointer(lane->peer->up[lane->slot]) == lane)
		RCU_INIT_POINTER(lane->peer->up[lane->slot], NULL);
	WRITE_ONCE(lane->phase, VMLOOP_LANE_HIDDEN);
}

/* No producer is in the lane any more. */
static void lane_down(struct vmloop_lane *lane)
{
	lane->path->lane_down(lane);
	vmloop_stall_stop(lane);
	WRITE_ONCE(lane->phase, VMLOOP_LANE_CLOSING);
}

/* Its rings are touched no more. What the peer has not read stays where it is. */
static void lane_close(struct vmloop_lane *lane)
{
	struct vmloop_channel *channel = lane->channel;

	vmloop_bell_leave(lane);
	lane->path->lane_close(lane);
	WRITE_ONCE(lane->phase, VMLOOP_LANE_CLOSED);
	/* The peer may read there until it has closed the lane, too. */
	if (channel->slots)
		vmloop_lane_leave_room(lane);
}

/* The path learns what the peer has read; it has nothing to do with it any more. */
static void tell_end(struct vmloop_lane *lane, u32 reason)
{
	if (lane->path && lane->path->lane_ended)
		lane->path->lane_ended(lane, reason);
	lane->path = NULL;
}

static void lane_end(struct vmloop_lane *lane, u32 reason)
{
	tell_end(lane, reason);
	list_del(&lane->list);
	if (lane->channel->slots)
		lane->channel->slots[lane->number].lane = NULL;
	lane->channel = NULL;
	vmloop_lane_put(lane);
}

/* The peer is done with the lane, or refused it: its number is free again. */
static void lane_finish(struct vmloop_lane *lane)
{
	struct vmloop_channel *channel = lane->channel;
	const struct vmloop_shm_entry *theirs =
		vmloop_region_their_entry(&channel->region, lane->number);
	struct vmloop_slot *slot = slot_of(lane);
	u32 number = lane->number;

	slot->tx_end = lane->tx.published;
	/* Whatever it says: a ring that begins elsewhere breaks the channel. */
	slot->rx_end = READ_ONCE(theirs->lane.tx_head);
	vmloop_lane_give_room(lane);
	lane_end(lane, READ_ONCE(theirs->reason));
	go(channel, number, VMLOOP_LIFE_FREE, VMLOOP_REASON_NONE);
}

/* Produce nothing more; drain, and close when that is done. */
static void lane_shut(struct vmloop_lane *lane, u32 reason)
{
	struct vmloop_channel *channel = lane->channel;

	/* Once is enough: the first reason and the first deadline hold. */
	if (lane->phase != VMLOOP_LANE_OPENING && lane->phase != VMLOOP_LANE_UP)
		return;
	lane->reason = reason;
	lane->deadline = jiffies + VMLOOP_DRAIN_TIME;
	if (lane->phase == VMLOOP_LANE_UP) {
		lane_hide(lane);
		if (lane->path->by_peer)
			synchronize_rcu_expedited();
		lane_down(lane);
		go(channel, lane->number, VMLOOP_LIFE_CLOSING, reason);
	} else {
		lane_close(lane);
		go(channel, lane->number, VMLOOP_LIFE_CLOSED, reason);
	}
	set_bit(lane->number, channel->look);
	vmloop_link_look(channel->link);
}

/**
 * vmloop_lane_shut_locked() - close a lane, as vmloop_lane_shut() does
 * @lane: a lane of a channel that is not ending
 * @reason: VMLOOP_REASON_*
 *
 * Context: core mutex held, may sleep.
 */
void vmloop_lane_shut_locked(struct vmloop_lane *lane, u32 reason)
{
	lockdep_assert_held(&vmloop_mutex);
	lane_shut(lane, reason);
}

/**
 * vmloop_lane_shut() - close a lane
 * @lane: a lane that the path holds by vmloop_lane_get(), or that cannot end now;
 *	one that has ended already is left as it is
 * @reason: VMLOOP_REASON_NONE, or one from VMLOOP_REASON_PATH on, for the other
 *	side's path
 *
 * The path's lane_down is called before this returns; lane_close when both sides
 * have consumed what there is, or after VMLOOP_DRAIN_TIME; lane_ended when the
 * other side is done with it.
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_lane_shut(struct vmloop_lane *lane, u32 reason)
{
	mutex_lock(&vmloop_mutex);
	if (lane->channel && lane->channel->state != VMLOOP_CHANNEL_CLOSING)
		lane_shut(lane, reason);
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_lane_shut);

/* Whether our path needs the lane yet, though it produces nothing more. */
static bool is_busy(const struct vmloop_lane *lane)
{
	return lane->path->lane_busy && lane->path->lane_busy(lane);
}

/* Whether both sides have consumed what there is. */
static bool both_have_read(struct vmloop_lane *lane)
{
	bool drained;

	spin_lock_bh(&lane->tx_lock);
	drained = vmloop_ring_drained(&lane->tx);
	spin_unlock_bh(&lane->tx_lock);
	/* Only compared: is what they produced what we have consumed? */
	return drained && READ_ONCE(lane->rx.theirs->tx_head) ==
			  READ_ONCE(lane->rx.published);
}

static bool is_drained(struct vmloop_lane *lane)
{
	const struct vmloop_life *life = &slot_of(lane)->life;

	if (time_after_eq(jiffies, lane->deadline))
		return true;
	if (is_busy(lane))
		return false;
	if (vmloop_life_is_final(life))
		return true;
	/* The peer must have stopped, or there may be more to consume. */
	return vmloop_life_step(life->theirs) == VMLOOP_LIFE_CLOSING &&
	       both_have_read(lane);
}

/* Looking ---------------------------------------------------------------- */

/*
 * A number without a lane: the peer may have opened, withdrawn or let go of one. False if that has
 * been put off, because it does so too often.
 */
static bool look_free(struct vmloop_channel *channel, u32 number)
{
	struct vmloop_slot *slot = &channel->slots[number];
	bool lets_go = vmloop_life_may(&slot->life, VMLOOP_LIFE_FREE);
	u32 reason;

	if (slot->life.opens && !lets_go)
		return true;
	if (!lets_go && !vmloop_life_may(&slot->life, VMLOOP_LIFE_OPEN))
		return true;
	if (is_one_too_many(&channel->opens, VMLOOP_OPENS_A_SECOND, VMLOOP_OPENS_MAX)) {
		set_bit(number, channel->look);
		vmloop_link_look_in(channel->link, HZ);
		return false;
	}
	if (lets_go)
		go(channel, number, VMLOOP_LIFE_FREE, VMLOOP_REASON_NONE);
	if (slot->life.opens || !vmloop_life_may(&slot->life, VMLOOP_LIFE_OPEN))
		return true;
	reason = lane_accept(channel, number);
	if (reason)
		go(channel, number, VMLOOP_LIFE_REFUSED, reason);
	return true;
}

/* The peer accepted a lane of ours. False if it cannot be what it describes. */
static bool accepted(struct vmloop_lane *lane)
{
	said(lane);
	if (ring_read(lane, vmloop_life_start(slot_of(lane)->rx_end))) {
		WRITE_ONCE(lane->channel->broken, VMLOOP_BREAK_LANE);
		return false;
	}
	lane_up(lane);
	return true;
}

/*
 * Why the peer closes the lane. It counts with CLOSING alone, and from a side that is READY: what
 * the peer had produced is there then, while a relay says CLOSED, or ends, with bytes that it has
 * not copied.
 */
static u32 reason_of_peer(const struct vmloop_lane *lane)
{
	const struct vmloop_region *region = &lane->channel->region;
	u32 reason = READ_ONCE(vmloop_region_their_entry(region, lane->number)->reason);

	/* A side that leaves READY says so before its lanes do, which see() has acquired. */
	if (vmloop_life_step(slot_of(lane)->life.theirs) != VMLOOP_LIFE_CLOSING ||
	    READ_ONCE(region->theirs->state) != VMLOOP_SIDE_READY)
		return VMLOOP_REASON_NONE;
	return reason;
}

static void lane_look(struct vmloop_lane *lane)
{
	struct vmloop_channel *channel = lane->channel;
	const struct vmloop_life *life = &slot_of(lane)->life;

	if (lane->phase == VMLOOP_LANE_OPENING) {
		if (vmloop_life_may_consume(life)) {
			if (!accepted(lane))
				return;
		} else if (vmloop_life_is_final(life)) {
			lane_close(lane);
			lane_finish(lane);
			return;
		}
	}
	if (lane->phase == VMLOOP_LANE_UP &&
	    vmloop_life_may(life, VMLOOP_LIFE_CLOSING) &&
	    vmloop_life_step(life->theirs) != VMLOOP_LIFE_OPEN) {
		lane->their_reason = reason_of_peer(lane);
		lane_shut(lane, VMLOOP_REASON_NONE);
		/* The next look waits for RCU once for all lanes that a peer ends together. */
		return;
	}
	if (lane->phase == VMLOOP_LANE_CLOSING && is_drained(lane)) {
		lane_close(lane);
		go(channel, lane->number, VMLOOP_LIFE_CLOSED, lane->reason);
	}
	if (lane->phase == VMLOOP_LANE_CLOSED && vmloop_life_is_final(life))
		lane_finish(lane);
}

/* When a lane is to be looked at again, whatever the peer does; 0 for never. */
static unsigned long look_again(struct vmloop_lane *lane)
{
	switch (lane->phase) {
	case VMLOOP_LANE_CLOSING:
		return DRAIN_POLL;
	case VMLOOP_LANE_OPENING:
	case VMLOOP_LANE_CLOSED:
		return ANSWER_POLL;
	default:
		return 0;
	}
}

/* Have lanes that wait for something looked at again, the first one in time. */
static void look_at_waiting(struct vmloop_channel *channel)
{
	unsigned long soonest = 0, delay;
	struct vmloop_lane *lane;
	bool unanswered = false;

	list_for_each_entry(lane, &channel->lanes, list) {
		delay = look_again(lane);
		if (!delay)
			continue;
		set_bit(lane->number, channel->look);
		unanswered |= delay == ANSWER_POLL;
		if (!soonest || delay < soonest)
			soonest = delay;
	}
	if (unanswered && time_after_eq(jiffies, channel->rung + ANSWER_POLL)) {
		channel->rung = jiffies;
		channel->link->ring(channel->link, 0);
	}
	if (soonest)
		vmloop_link_look_in(channel->link, soonest);
}

static bool is_window(const struct vmloop_lane *lane)
{
	return lane && lane->path == &vmloop_windows;
}

/**
 * vmloop_lanes_look() - act upon what the peer has done to lanes
 * @channel: a channel whose peer is READY, or has been
 *
 * A peer that does much has it done a part at a time.
 *
 * Context: core mutex held, may sleep.
 */
void vmloop_lanes_look(struct vmloop_channel *channel)
{
	unsigned int budget = LOOK_BUDGET;
	struct vmloop_lane *lane, *now;
	enum vmloop_lane_phase phase;
	bool was_window;
	u32 number;

	lockdep_assert_held(&vmloop_mutex);
	if (!channel->slots)
		return;
	for_each_set_bit(number, channel->look, channel->used) {
		if (!budget--) {
			vmloop_link_look(channel->link);
			return;
		}
		clear_bit(number, channel->look);
		/* Before the look: what comes during it is looked at again. */
		smp_mb__after_atomic();
		if (!see(channel, number))
			return;
		lane = channel->slots[number].lane;
		was_window = is_window(lane);
		phase = was_window ? lane->phase : VMLOOP_LANE_OPENING;
		if (lane)
			lane_look(lane);
		else if (!look_free(channel, number))
			budget++;	/* it is done with for a second */
		if (READ_ONCE(channel->broken))
			return;
		now = channel->slots[number].lane;
		/* One that was mapped, or unmapped, has taken as long as many others. */
		if ((was_window || is_window(now)) &&
		    !(was_window && now == lane && now->phase == phase))
			budget = 0;
	}
	look_at_waiting(channel);
}

/* How far the lanes of a path whose lanes have slots have come. */
enum slots_are {
	SLOTS_MISSING,		/* some are not there */
	SLOTS_OPENING,		/* all are, some not yet on the other side */
	SLOTS_UP,
};

/* Of all slots, or of those only that are ours to open. */
static enum slots_are slots_are(const struct vmloop_channel *channel,
				const struct vmloop_path *path, bool only_ours)
{
	const struct vmloop_lane *first = vmloop_channel_slot(channel, path, 0);
	enum slots_are are = SLOTS_UP;
	const struct vmloop_lane *lane;
	u32 slot;

	if (!first)
		return SLOTS_MISSING;
	if (first->phase != VMLOOP_LANE_UP)
		return SLOTS_OPENING;
	/* Who opened the first one opens the others. */
	if (only_ours && !first->opened)
		return SLOTS_UP;
	for (slot = 1; slot < first->spread; slot++) {
		lane = vmloop_channel_slot(channel, path, slot);
		if (!lane)
			return SLOTS_MISSING;
		if (lane->phase != VMLOOP_LANE_UP)
			are = SLOTS_OPENING;
	}
	return are;
}

/**
 * vmloop_lanes_want() - open lanes that paths should have and have not
 * @channel: a channel that is up
 *
 * The peer may have refused them, for want of memory or of a module, or closed them.
 * It is asked again, later and later.
 *
 * Context: core mutex held, may sleep.
 */
void vmloop_lanes_want(struct vmloop_channel *channel)
{
	const struct vmloop_path *path = vmloop_path_find(VMLOOP_LANE_PACKET);
	enum slots_are are;

	if (!channel->slots || !path || !path->by_peer || !path->channel_open)
		return;
	are = slots_are(channel, path, true);
	/* What may yet be refused does not end the waiting. */
	if (are == SLOTS_UP)
		channel->want_delay = 0;
	if (are != SLOTS_MISSING)
		return;
	if (!channel->want_delay) {
		channel->want_delay = WANT_FIRST;
		channel->want_at = jiffies + channel->want_delay;
	} else if (time_after_eq(jiffies, channel->want_at)) {
		path->channel_open(channel, channel->link->side, true);
		channel->want_delay = min(2 * channel->want_delay, WANT_MAX);
		channel->want_at = jiffies + channel->want_delay;
	}
	vmloop_link_look_in(channel->link,
			    max_t(long, channel->want_at - jiffies, 1));
}

/**
 * vmloop_lanes_answered() - whether the peer has answered for all lanes of ours
 * @channel: the channel, its peer met
 *
 * And has opened those slots that are its own to open, or let the time for it pass.
 *
 * Context: core mutex held.
 * Return: false while one waits to be accepted or refused, or for the peer.
 */
bool vmloop_lanes_answered(const struct vmloop_channel *channel)
{
	const struct vmloop_path *path = vmloop_path_find(VMLOOP_LANE_PACKET);
	const struct vmloop_lane *lane;

	list_for_each_entry(lane, &channel->lanes, list)
		if (lane->phase == VMLOOP_LANE_OPENING && lane->path != &vmloop_windows)
			return false;
	if (!path || !path->by_peer ||
	    !vmloop_channel_slot(channel, path, 0) ||
	    slots_are(channel, path, false) != SLOTS_MISSING ||
	    time_after_eq(jiffies, channel->slots_until))
		return true;
	vmloop_link_look_in(channel->link, channel->slots_until - jiffies);
	return false;
}

/* The end of a channel --------------------------------------------------- */

/**
 * vmloop_lanes_down() - a channel ends: produce nothing more in any lane
 * @channel: whose lanes; its state says that it is closing
 *
 * Waits once for all producers, however many lanes there are.
 *
 * Context: core mutex held, may sleep.
 */
void vmloop_lanes_down(struct vmloop_channel *channel)
{
	struct vmloop_lane *lane;

	list_for_each_entry(lane, &channel->lanes, list)
		if (lane->phase == VMLOOP_LANE_UP)
			lane_hide(lane);
	/*
	 * No producer is left in a lane, and none sets the stall timer. Expedited,
	 * here and elsewhere: a guest that is to be saved stands still until both
	 * sides of all its channels are done.
	 */
	synchronize_rcu_expedited();
	list_for_each_entry(lane, &channel->lanes, list)
		if (lane->phase == VMLOOP_LANE_HIDDEN)
			lane_down(lane);
}

/**
 * vmloop_lanes_are_drained() - whether nothing is left in any lane, for either side
 * @channel: whose lanes; the peer has stopped to produce
 *
 * Context: core mutex held.
 */
bool vmloop_lanes_are_drained(struct vmloop_channel *channel)
{
	struct vmloop_lane *lane;

	list_for_each_entry(lane, &channel->lanes, list)
		if (lane->phase == VMLOOP_LANE_CLOSING &&
		    (is_busy(lane) || !both_have_read(lane)))
			return false;
	return true;
}

/**
 * vmloop_lanes_close() - a channel ends: touch the rings of no lane any more
 * @channel: whose lanes; no doorbell comes for it any more
 *
 * Context: core mutex held, may sleep.
 */
void vmloop_lanes_close(struct vmloop_channel *channel)
{
	struct vmloop_lane *lane;

	/* Windows last: others refer to them. */
	list_for_each_entry(lane, &channel->lanes, list)
		if (lane->phase != VMLOOP_LANE_CLOSED && lane->path != &vmloop_windows)
			lane_close(lane);
	list_for_each_entry(lane, &channel->lanes, list)
		if (lane->phase != VMLOOP_LANE_CLOSED)
			lane_close(lane);
}

/**
 * vmloop_lanes_end() - a channel has ended: so have all its lanes
 * @channel: whose lanes; its memory is still there
 *
 * Context: core mutex held, may sleep.
 */
void vmloop_lanes_end(struct vmloop_channel *channel)
{
	struct vmloop_lane *lane, *next;

	list_for_each_entry_safe(lane, next, &channel->lanes, list) {
		/* The peer may have closed it since we last looked. */
		if (channel->slots)
			see_last(channel, lane->number);
		lane_end(lane, VMLOOP_REASON_NONE);
	}
}

/* Version 1 -------------------------------------------------------------- */

/**
 * vmloop_lane_only() - make the one lane of a channel of version 1
 * @channel: the channel
 * @path: whose lane
 *
 * Context: core mutex held, may sleep.
 * Return: the lane, or NULL if there cannot be one.
 */
struct vmloop_lane *vmloop_lane_only(struct vmloop_channel *channel,
				     const struct vmloop_path *path)
{
	struct vmloop_lane *lane = lane_make(channel, 0, path);

	if (!lane)
		return NULL;
	if (vmloop_region_tx(&channel->region, 0, path->kind, &lane->tx) ||
	    path->lane_open(lane)) {
		vmloop_lane_put(lane);
		return NULL;
	}
	lane_enter(lane);
	return lane;
}

/**
 * vmloop_lane_only_up() - the peer of a channel of version 1 is READY
 * @channel: the channel
 *
 * Context: core mutex held, may sleep.
 * Return: 0, or -EPROTO if the peer describes a lane that cannot be.
 */
int vmloop_lane_only_up(struct vmloop_channel *channel)
{
	struct vmloop_lane *lane =
		list_first_entry(&channel->lanes, struct vmloop_lane, list);

	if (vmloop_region_rx(&channel->region, 0, lane->path->kind, &lane->rx))
		return -EPROTO;
	lane->features = READ_ONCE(channel->region.theirs->features) &
			 lane->path->features;
	lane_up(lane);
	return 0;
}

/* The lanes of one path -------------------------------------------------- */

/**
 * vmloop_lanes_have() - whether a channel has a lane of a path
 * @channel: the channel
 * @path: the path
 *
 * Context: core mutex held.
 */
bool vmloop_lanes_have(const struct vmloop_channel *channel,
		       const struct vmloop_path *path)
{
	const struct vmloop_lane *lane;

	list_for_each_entry(lane, &channel->lanes, list)
		if (lane->path == path)
			return true;
	return false;
}

/**
 * vmloop_lanes_are_used() - whether a channel has lanes that are not of packets, nor windows
 * @channel: the channel
 *
 * Their traffic is not counted, so as long as there are any the channel is in use.
 *
 * Context: core mutex held.
 */
bool vmloop_lanes_are_used(const struct vmloop_channel *channel)
{
	const struct vmloop_lane *lane;

	list_for_each_entry(lane, &channel->lanes, list)
		if (lane->path && !lane->path->by_peer &&
		    lane->path != &vmloop_windows &&
		    lane->phase != VMLOOP_LANE_CLOSED)
			return true;
	return false;
}

/**
 * vmloop_lanes_path_shut() - begin to close all lanes of a path
 * @channel: a channel of version 2 that is not ending
 * @path: the path, which is no longer found
 *
 * Context: core mutex held, may sleep.
 */
void vmloop_lanes_path_shut(struct vmloop_channel *channel,
			    const struct vmloop_path *path)
{
	struct vmloop_lane *lane;

	vmloop_windows_drop(channel, path);
	list_for_each_entry(lane, &channel->lanes, list)
		if (lane->path == path || vmloop_window_path(lane) == path)
			lane_shut(lane, VMLOOP_REASON_KIND);
}

/* The same of whose lanes refer to the window that a lane stands for, if it does. */
static bool policy_has_window(const struct vmloop_channel *channel,
			      const struct vmloop_lane *lane)
{
	const struct vmloop_path *path = vmloop_window_path(lane);

	return !path || vmloop_policy_has(channel, path);
}

/**
 * vmloop_lanes_policy() - begin to close lanes that the policy does not have any more
 * @channel: a channel whose peer's @without has changed
 *
 * Context: core mutex held, may sleep.
 */
void vmloop_lanes_policy(struct vmloop_channel *channel)
{
	struct vmloop_lane *lane;

	if (!channel->slots || channel->state == VMLOOP_CHANNEL_CLOSING)
		return;
	list_for_each_entry(lane, &channel->lanes, list)
		if (lane->path && (!vmloop_policy_has(channel, lane->path) ||
				   !policy_has_window(channel, lane)))
			lane_shut(lane, VMLOOP_REASON_POLICY);
}

/* Wait until a lane that was shut is closed. */
static void lane_await_close(struct vmloop_lane *lane)
{
	struct vmloop_channel *channel = lane->channel;

	if (lane->phase == VMLOOP_LANE_CLOSED)
		return;
	while (see(channel, lane->number) && !is_drained(lane))
		usleep_range(2000, 4000);
	lane_close(lane);
	go(channel, lane->number, VMLOOP_LIFE_CLOSED, lane->reason);
}

/**
 * vmloop_lanes_path_gone() - wait until lanes that were shut are closed
 * @channel: as for vmloop_lanes_path_shut(), called before
 * @path: the path; none of its callbacks is called any more
 *
 * It does not wait until the peer is done with them as well: the path is told how
 * far the peer is now.
 *
 * Context: core mutex held, may sleep for as long as draining takes.
 */
void vmloop_lanes_path_gone(struct vmloop_channel *channel,
			    const struct vmloop_path *path)
{
	struct vmloop_lane *lane;

	list_for_each_entry(lane, &channel->lanes, list) {
		if (lane->path != path)
			continue;
		lane_await_close(lane);
		tell_end(lane, VMLOOP_REASON_NONE);
		set_bit(lane->number, channel->look);
	}
	/* Behind those that refer to them. A window itself goes when the peer lets go of it. */
	list_for_each_entry(lane, &channel->lanes, list) {
		if (vmloop_window_path(lane) != path)
			continue;
		lane_await_close(lane);
		vmloop_window_forget(lane);
		set_bit(lane->number, channel->look);
	}
	vmloop_link_look(channel->link);
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
	struct vmloop_channel *channel = NULL;
	struct vmloop_lane *lane;

	mutex_lock(&vmloop_mutex);
	while ((channel = vmloop_channel_next(channel)))
		list_for_each_entry(lane, &channel->lanes, list)
			if (lane->path == path &&
			    lane->phase != VMLOOP_LANE_CLOSED)
				what(lane, data);
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_lanes_do);

/**
 * vmloop_channel_do() - do something with the channel to a peer, if it is up
 * @peer: the peer's identity
 * @what: called under the core mutex
 * @data: handed to it
 *
 * Context: process context, takes the core mutex.
 * Return: 0; -ENOTCONN if there is no such channel; -EOPNOTSUPP if it has no table
 * of lanes.
 */
int vmloop_channel_do(u64 peer,
		      void (*what)(struct vmloop_channel *channel, void *data),
		      void *data)
{
	struct vmloop_channel *channel = NULL;
	int err = -ENOTCONN;

	mutex_lock(&vmloop_mutex);
	while ((channel = vmloop_channel_next(channel))) {
		if (channel->peer->id != peer ||
		    channel->state != VMLOOP_CHANNEL_UP)
			continue;
		err = channel->slots ? 0 : -EOPNOTSUPP;
		if (!err)
			what(channel, data);
		break;
	}
	mutex_unlock(&vmloop_mutex);
	return err;
}
EXPORT_SYMBOL_GPL(vmloop_channel_do);
