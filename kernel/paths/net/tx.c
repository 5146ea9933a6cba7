// SPDX-License-Identifier: GPL-2.0
/*
 * tx.c - a frame leaves an interface: into the peer's ring, into the queue
 * behind a full ring, or past us to the standard network.
 *
 * Context: the egress hook (rcu_read_lock_bh() held), NAPI, and the path's
 * lane_down. The lane's tx_lock serialises all that is written to the ring.
 */
#include <linux/if_vlan.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/netfilter_netdev.h>
#include <net/dst.h>
#include <net/ip.h>
#include <net/pkt_sched.h>
#include <net/sch_generic.h>

#include "net.h"
#include "compat.h"

/* A ring's worth of frames may wait behind a full ring, and no more. */
#define WAITING_FRAMES	1024
#define WAITING_BYTES	(4U << 20)

/* Of these, what goes to the ring while others wait for the lane's lock. */
#define BATCH_BYTES	(256U << 10)

/**
 * struct sent_cb - what is noted in a frame that is in the ring
 * @position: where its record ends
 */
struct sent_cb {
	u32 position;
};

static struct sent_cb *sent_cb(struct sk_buff *skb)
{
	return (struct sent_cb *)skb->cb;
}

/*
 * Copies a frame into the ring; the caller publishes. Returns 0, or -EAGAIN
 * while there is no room, or another negative errno if it can never be.
 */
static int write_frame(struct vmloop_lane *lane, struct sk_buff *skb)
{
	struct vmloop_shm_frame frame;
	void *payload;
	int err;

	lockdep_assert_held(&lane->tx_lock);
	err = vmloop_ring_reserve(&lane->tx, sizeof(frame) + skb->len,
				  VMLOOP_RECORD_FRAME, 0, &payload);
	if (err)
		return err;
	net_offload_describe(skb, &frame);
	memcpy(payload, &frame, sizeof(frame));
	err = skb_copy_bits(skb, 0, payload + sizeof(frame), skb->len);
	if (!err)
		err = net_hop_make(skb, payload + sizeof(frame));
	if (err)
		return err;	/* the reservation is forgotten */
	vmloop_ring_commit(&lane->tx);

	/*
	 * Taps and time stamps before the caller publishes: the peer must not
	 * have answered a frame that a tap has not seen.
	 */
	if (compat_nit_active(skb->dev))
		dev_queue_xmit_nit(skb, skb->dev);
	skb_tx_timestamp(skb);
	sent_cb(skb)->position = lane->tx.head;
	return 0;
}

/*
 * The frame is in the ring, and published: what else its interface's driver
 * would do now.
 */
static void sent(struct net_nic *nic, struct net_lane *net, struct sk_buff *skb)
{
	if (nic)
		net_nic_count_tx(nic, skb->len);
	vmloop_count_frame(net->lane->peer, VMLOOP_TX_FRAMES, skb->len);
	net_hold(net, skb, sent_cb(skb)->position);
}

/* Past us: nftables and our own hook have seen the frame already. */
static void to_standard(struct sk_buff *skb, bool is_large)
{
	if (is_large) {
		net_large_to_standard(skb);
		return;
	}
	nf_skip_egress(skb, true);
	dev_queue_xmit(skb);
}

/* What is to be known of a frame's way when it is written to the ring, or flushed. */
static void note(struct sk_buff *skb, const struct net_way *way)
{
	struct net_frame_cb *cb = net_frame_cb(skb);

	BUILD_BUG_ON(sizeof(*cb) > sizeof(skb->cb));
	BUILD_BUG_ON(sizeof(struct inet_skb_parm) >
		     offsetof(struct net_frame_cb, mac));
	BUILD_BUG_ON(sizeof(struct inet6_skb_parm) >
		     offsetof(struct net_frame_cb, mac));
	ether_addr_copy(cb->mac, way->interface->mac);
	cb->is_routed = way->is_routed;
	cb->is_large = way->is_large;
}

/* The counter of why write_frame() failed for good. */
static int why_unwritable(struct vmloop_lane *lane, int err)
{
	switch (err) {
	case -EPROTO:
		vmloop_lane_broken(lane, lane->tx.broken);
		return VMLOOP_STANDARD_CLOSING;
	case -EMSGSIZE:
		return VMLOOP_STANDARD_TOO_LARGE;
	default:
		return VMLOOP_STANDARD_UNREADABLE;
	}
}

static bool may_wait(const struct net_lane *net,
		     const struct sk_buff_head *frames)
{
	unsigned int bytes = net->waiting_bytes;
	const struct sk_buff *skb;

	skb_queue_walk(frames, skb)
		bytes += skb->len;
	return skb_queue_len(&net->waiting) + skb_queue_len(frames) <=
	       WAITING_FRAMES && bytes <= WAITING_BYTES;
}

/* Asks for a doorbell when @skb has room, in place of one for held.c. */
static bool wait_room(struct net_lane *net, const struct sk_buff *skb)
{
	net->held_asked = false;
	return vmloop_ring_wait_room(&net->lane->tx,
				     sizeof(struct vmloop_shm_frame) +
					     skb->len);
}

/* Has frames wait. The first one asks for the doorbell that lets all go on. */
static void wait(struct net_lane *net, struct sk_buff_head *frames)
{
	bool is_first = skb_queue_empty(&net->waiting);
	struct sk_buff *skb;

	while ((skb = __skb_dequeue(frames))) {
		skb_dst_force(skb);
		net->waiting_bytes += skb->len;
		__skb_queue_tail(&net->waiting, skb);
	}
	if (is_first && !wait_room(net, skb_peek(&net->waiting)))
		napi_schedule(&net->napi);
}

/*
 * Moves what there is room for from @frames, the segments of one, to @done, and
 * what there is not behind the ring. Returns NET_NO_REASON, or the counter of
 * the reason why something is left in @frames; @bell is set if the peer wants a
 * doorbell, @queued to the frames that wait.
 */
static int take(struct net_lane *net, struct sk_buff_head *frames,
		struct sk_buff_head *done, bool *bell, unsigned int *queued)
{
	struct vmloop_lane *lane = net->lane;
	struct sk_buff *skb;
	int err = 0;

	lockdep_assert_held(&lane->tx_lock);
	if (!skb_queue_empty(&net->waiting))
		err = -EAGAIN;
	while (!err && (skb = skb_peek(frames))) {
		err = write_frame(lane, skb);
		if (err)
			break;
		__skb_unlink(skb, frames);
		__skb_queue_tail(done, skb);
	}
	/* Nothing may be held back while the rest waits. */
	if (!skb_queue_empty(done))
		*bell = vmloop_ring_publish(&lane->tx);
	if (!err)
		return NET_NO_REASON;
	if (err != -EAGAIN)
		return why_unwritable(lane, err);
	if (net->down)
		return VMLOOP_STANDARD_CLOSING;
	/* Segments of one frame stay together. */
	if (skb_queue_empty(done) && !may_wait(net, frames))
		return VMLOOP_STANDARD_FULL;
	*queued = skb_queue_len(frames);
	wait(net, frames);
	return NET_NO_REASON;
}

/*
 * Sends frames by their lane. Returns NET_NO_REASON, or the counter of the reason
 * why something is left in @frames.
 */
static int send(struct net_nic *nic, const struct net_way *way,
		struct sk_buff_head *frames)
{
	struct vmloop_lane *lane = way->lane;
	struct net_lane *net = lane->priv;
	unsigned int queued = 0;
	struct sk_buff_head done;
	struct sk_buff *skb;
	bool bell = false;
	int reason;

	__skb_queue_head_init(&done);
	spin_lock(&lane->tx_lock);
	reason = VMLOOP_STANDARD_RECEIVER;
	if (net_receiver_is_good(net, way->interface))
		reason = take(net, frames, &done, &bell, &queued);
	spin_unlock(&lane->tx_lock);

	if (bell)
		vmloop_lane_ring(net->lane);
	if (queued || !skb_queue_empty(&done))
		vmloop_lane_produced(lane);
	if (queued) {
		vmloop_count(lane->peer, VMLOOP_TX_QUEUED, queued);
		vmloop_count(lane->peer, VMLOOP_TX_FULL, 1);
	}
	while ((skb = __skb_dequeue(&done)))
		sent(nic, net, skb);
	return reason;
}

/* Deciding ---------------------------------------------------------------- */

/*
 * What the guest's own traffic control would see or shape must not get around
 * it, and the peer must be one that takes the frame. Returns the counter of the
 * reason why it must take the standard network, or NET_NO_REASON.
 */
static int why_not(const struct net_way *way, struct sk_buff *skb)
{
	const struct ethhdr *eth = (const struct ethhdr *)skb->data;

	if (compat_tc_egress_active(skb->dev))
		return VMLOOP_STANDARD_CLASSIFIED;
	if ((skb_vlan_tag_present(skb) || eth_type_vlan(eth->h_proto)) &&
	    !(way->interface->flags & VMLOOP_PEER_TAGGED))
		return VMLOOP_STANDARD_VLAN;
	if (way->is_routed &&
	    !(vmloop_lane_features(way->lane) & VMLOOP_F_ROUTED))
		return VMLOOP_STANDARD_FEATURE;
	return net_offload_why_not(skb);
}

/*
 * Finds the peer's interface that a frame is for: its neighbour, or over a hop.
 * Returns false if it is for none, or must not be taken for @way's reason.
 */
static bool find_receiver(const struct net_nic *nic, const struct sk_buff *skb,
			  struct net_way *way)
{
	const struct ethhdr *eth = (const struct ethhdr *)skb->data;

	way->interface = vmloop_interface_find(nic->mac, eth->h_dest);
	/* What a bridge in this guest forwards is not ours to vouch for. */
	if (!net_nic_is_usable(nic) ||
	    !ether_addr_equal(nic->mac, eth->h_source)) {
		way->reason = VMLOOP_STANDARD_SOURCE;
		return false;
	}
	if (!way->interface) {
		way->interface = net_hop_find(skb, way->is_large);
		way->is_routed = way->interface;
	} else if (way->interface->flags & VMLOOP_PEER_ROUTED) {
		/* Behind the host's routing nobody is a neighbour. */
		way->interface = NULL;
	}
	return way->interface;
}

/* Where a frame goes, and as what. Does nothing yet, but to ask for a channel. */
static struct net_way decide(struct net_nic *nic, struct sk_buff *skb)
{
	struct net_way way = { .reason = NET_NO_REASON };
	struct vmloop_peer *peer;
	struct ethhdr *eth;
	u32 flow;

	if (!pskb_may_pull(skb, ETH_HLEN))
		return way;
	eth = (struct ethhdr *)skb->data;
	if (is_multicast_ether_addr(eth->h_dest))
		return way;
	way.is_large = net_large_is(skb);
	if (!find_receiver(nic, skb, &way))
		return way;

	peer = way.interface->peer;
	flow = net_flow(skb, ETH_HLEN, eth->h_proto);
	way.lane = vmloop_peer_lane(peer, flow);
	if (!way.lane) {
		way.reason = vmloop_peer_why_no_lane(peer, flow);
		vmloop_peer_want(peer);
		return way;
	}
	way.reason = net_nic_why_not(nic, skb);
	if (way.reason == NET_NO_REASON)
		way.reason = why_not(&way, skb);
	if (way.reason != NET_NO_REASON)
		way.lane = NULL;
	return way;
}

/*
 * A frame that a lane may take: it, or the segments that it is made of, go there
 * together, or to the standard network together.
 */
static unsigned int tx(struct net_nic *nic, const struct net_way *way,
		       struct sk_buff *skb)
{
	struct vmloop_peer *peer = way->interface->peer;
	struct sk_buff_head frames;
	struct sk_buff *frame;
	int reason;

	__skb_queue_head_init(&frames);
	reason = net_offload_prepare(way->lane, skb, &frames);
	if (unlikely(skb_queue_empty(&frames))) {
		vmloop_count(peer, VMLOOP_DROP_MEMORY, 1);
		return NF_STOLEN;
	}
	if (reason == NET_NO_REASON) {
		skb_queue_walk(&frames, frame)
			note(frame, way);
		reason = send(nic, way, &frames);
	}
	if (reason == NET_NO_REASON)
		return NF_STOLEN;

	vmloop_count(peer, reason, skb_queue_len(&frames));
	/*
	 * A frame that is whole goes on where it is. Of a list of fragments the
	 * frame itself is the first segment: all of them go on together.
	 */
	if (skb_queue_len(&frames) == 1 && skb_peek(&frames) == skb &&
	    !way->is_large) {
		__skb_unlink(skb, &frames);
		return NF_ACCEPT;
	}
	while ((frame = __skb_dequeue(&frames)))
		to_standard(frame, way->is_large);
	return NF_STOLEN;
}

/**
 * net_tx() - a frame is about to leave an interface
 * @nic: the interface
 * @skb: the frame, its Ethernet header at the front
 *
 * Context: the egress hook.
 * Return: NF_STOLEN if the frame is ours now, NF_ACCEPT if it goes on.
 */
unsigned int net_tx(struct net_nic *nic, struct sk_buff *skb)
{
	const struct net_way way = decide(nic, skb);

	if (way.lane)
		return tx(nic, &way, skb);
	if (way.interface && way.reason != NET_NO_REASON)
		vmloop_count(way.interface->peer, way.reason, 1);
	if (!way.is_large)
		return NF_ACCEPT;
	net_large_to_standard(skb);
	return NF_STOLEN;
}

/* Waiting ----------------------------------------------------------------- */

/*
 * Moves waiting frames to @done while there is room, BATCH_BYTES at most, and
 * those that cannot be written to @refused. Returns whether there is more to
 * do; @bell is set if the peer wants a doorbell.
 */
static bool take_waiting(struct net_lane *net, struct sk_buff_head *done,
			 struct sk_buff_head *refused, bool *bell)
{
	struct vmloop_lane *lane = net->lane;
	unsigned int bytes = 0;
	struct sk_buff *skb;
	int err;

	lockdep_assert_held(&lane->tx_lock);
	while ((skb = skb_peek(&net->waiting)) && bytes < BATCH_BYTES) {
		err = write_frame(lane, skb);
		if (err == -EAGAIN) {
			/* Nothing may be held back while we wait. */
			*bell |= vmloop_ring_publish(&lane->tx);
			if (wait_room(net, skb))
				return false;
			continue;
		}
		if (err == -EPROTO) {
			vmloop_lane_broken(lane, lane->tx.broken);
			return false;
		}
		__skb_unlink(skb, &net->waiting);
		net->waiting_bytes -= skb->len;
		bytes += skb->len;
		__skb_queue_tail(err ? refused : done, skb);
	}
	*bell |= vmloop_ring_publish(&lane->tx);
	return skb;
}

/**
 * net_tx_waiting() - there may be room: let waiting frames go on, in order
 * @net: the lane
 *
 * Context: NAPI of the lane.
 */
void net_tx_waiting(struct net_lane *net)
{
	struct sk_buff_head done, refused;
	struct vmloop_lane *lane = net->lane;
	bool bell = false, more;
	struct sk_buff *skb;

	/* Unlocked look: who queues one, or makes room, schedules us again. */
	if (skb_queue_empty_lockless(&net->waiting))
		return;

	__skb_queue_head_init(&done);
	__skb_queue_head_init(&refused);
	spin_lock(&lane->tx_lock);
	more = take_waiting(net, &done, &refused, &bell);
	spin_unlock(&lane->tx_lock);

	if (bell)
		vmloop_lane_ring(net->lane);
	if (!skb_queue_empty(&done))
		vmloop_lane_produced(lane);
	rcu_read_lock();
	while ((skb = __skb_dequeue(&done)))
		sent(net_nic_at(skb->dev), net, skb);
	while ((skb = __skb_dequeue(&refused))) {
		vmloop_count(lane->peer, VMLOOP_STANDARD_UNREADABLE, 1);
		to_standard(skb, net_frame_cb(skb)->is_large);
	}
	rcu_read_unlock();
	if (more)
		napi_schedule(&net->napi);
}

/* Lets all waiting frames, or those of one interface, take the standard network. */
static void flush(struct net_lane *net, const struct net_device *dev)
{
	struct sk_buff_head frames;
	struct sk_buff *skb, *next;

	__skb_queue_head_init(&frames);
	spin_lock_bh(&net->lane->tx_lock);
	skb_queue_walk_safe(&net->waiting, skb, next) {
		if (dev && skb->dev != dev)
			continue;
		__skb_unlink(skb, &net->waiting);
		net->waiting_bytes -= skb->len;
		__skb_queue_tail(&frames, skb);
	}
	spin_unlock_bh(&net->lane->tx_lock);

	rcu_read_lock_bh();
	while ((skb = __skb_dequeue(&frames))) {
		vmloop_count(net->lane->peer, VMLOOP_STANDARD_FLUSHED, 1);
		to_standard(skb, net_frame_cb(skb)->is_large);
	}
	rcu_read_unlock_bh();
}

/**
 * net_tx_flush() - let all waiting frames take the standard network
 * @net: the lane
 *
 * Context: the lane is down or stalled, or an interface of the peer's cannot
 * receive any more. None comes back to us.
 */
void net_tx_flush(struct net_lane *net)
{
	flush(net, NULL);
}

static void gone(struct vmloop_lane *lane, void *data)
{
	const struct net_device *dev = data;
	struct net_lane *net = lane->priv;

	flush(net, dev);
	/* Who waits now must ask for its own doorbell. */
	local_bh_disable();
	napi_schedule(&net->napi);
	local_bh_enable();
}

/**
 * net_tx_gone() - an interface goes, or is down: nothing may wait that refers to it
 * @dev: the interface; no frame of it comes to us any more
 *
 * Context: process context, RTNL held, takes the core mutex.
 */
void net_tx_gone(struct net_device *dev)
{
	vmloop_lanes_do(&net_path, gone, dev);
}
