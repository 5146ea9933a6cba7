// SPDX-License-Identifier: GPL-2.0
/*
 * tx.c - a frame leaves an interface: into the peer's ring, into the queue
 * behind a full ring, or past us to the standard network.
 *
 * Context: the egress hook (rcu_read_lock_bh() held), NAPI, and the path's
 * lane_down. The lane's tx_lock serialises all that is written to the ring.
 */
#include <linux/if_vlan.h>
#include <linux/virtio_net.h>
#include <net/pkt_sched.h>
#include <net/sch_generic.h>
#include <net/sock.h>

#include "net.h"
#include "compat.h"

/* A ring's worth of frames may wait behind a full ring, and no more. */
#define WAITING_FRAMES	1024
#define WAITING_BYTES	(4U << 20)

/* No counter: there is no reason to take the standard network. */
#define NONE	(-1)

/* Segmentation that the record's metadata can say. */
#define GSO_KNOWN	(SKB_GSO_TCPV4 | SKB_GSO_TCPV6 | SKB_GSO_TCP_ECN | \
			 SKB_GSO_TCP_FIXEDID | SKB_GSO_DODGY | \
			 COMPAT_GSO_UDP_L4)

/*
 * Whether our own stack has just computed the datagram's checksum, so that to
 * compute it again on the other side of the memory would only cost time. Raw
 * sockets and forwarded packets may carry a wrong one that must be found.
 */
static bool checksum_is_fresh(const struct sk_buff *skb)
{
	const struct sock *sk = skb->sk;

	return net_large_is(skb) && sk && sk_fullsock(sk) &&
	       sk->sk_type == SOCK_DGRAM && sk->sk_protocol == IPPROTO_UDP;
}

static void describe(const struct sk_buff *skb, struct vmloop_shm_frame *frame)
{
	*frame = (struct vmloop_shm_frame){};

	if (skb_is_gso(skb)) {
		const struct skb_shared_info *info = skb_shinfo(skb);

		frame->hdr_len = min_t(unsigned int, skb_headlen(skb), U16_MAX);
		frame->gso_size = info->gso_size;
		if (info->gso_type & SKB_GSO_TCPV4)
			frame->gso = VMLOOP_GSO_TCPV4;
		else if (info->gso_type & SKB_GSO_TCPV6)
			frame->gso = VMLOOP_GSO_TCPV6;
		else
			frame->gso = VMLOOP_GSO_UDP_L4;
		if (info->gso_type & SKB_GSO_TCP_ECN)
			frame->gso |= VMLOOP_GSO_ECN;
	}
	if (skb->ip_summed == CHECKSUM_PARTIAL) {
		frame->flags |= VMLOOP_FRAME_NEEDS_CSUM;
		frame->csum_start = skb_checksum_start_offset(skb);
		frame->csum_offset = skb->csum_offset;
	} else if (skb->ip_summed == CHECKSUM_UNNECESSARY ||
		   checksum_is_fresh(skb)) {
		frame->flags |= VMLOOP_FRAME_DATA_VALID;
	}
	if (skb_vlan_tag_present(skb)) {
		frame->flags |= VMLOOP_FRAME_VLAN;
		frame->vlan_proto = ntohs(skb->vlan_proto);
		frame->vlan_tci = skb_vlan_tag_get(skb);
	}
}

/*
 * Copies a frame into the ring; the caller publishes. Returns 0, or -EAGAIN
 * while there is no room, or another negative errno if it can never be.
 */
static int write_frame(struct vmloop_lane *lane, const struct sk_buff *skb)
{
	struct vmloop_shm_frame frame;
	void *payload;
	int err;

	lockdep_assert_held(&lane->tx_lock);
	err = vmloop_ring_reserve(&lane->tx, sizeof(frame) + skb->len,
				  VMLOOP_RECORD_FRAME, 0, &payload);
	if (err)
		return err;
	describe(skb, &frame);
	memcpy(payload, &frame, sizeof(frame));
	err = skb_copy_bits(skb, 0, payload + sizeof(frame), skb->len);
	if (!err)
		err = net_hop_make(skb, payload + sizeof(frame));
	if (err)
		return err;	/* the reservation is forgotten */
	vmloop_ring_commit(&lane->tx);
	return 0;
}

/*
 * The frame is in the ring, its record ends at @position: what its interface's
 * driver would do now.
 */
static void sent(struct net_nic *nic, struct net_lane *net,
		 struct sk_buff *skb, u32 position)
{
	if (compat_nit_active(skb->dev))
		dev_queue_xmit_nit(skb, skb->dev);
	skb_tx_timestamp(skb);
	if (nic)
		net_nic_count_tx(nic, skb->len);
	vmloop_count_frame(net->lane->peer, VMLOOP_TX_FRAMES, skb->len);
	net_hold(net, skb, position);
}

/* The counter of why write_frame() failed for good. */
static int why_unwritable(int err)
{
	return err == -EMSGSIZE ? VMLOOP_STANDARD_TOO_LARGE :
				  VMLOOP_STANDARD_UNREADABLE;
}

static bool may_wait(const struct net_lane *net, const struct sk_buff *skb)
{
	return !net->down &&
	       skb_queue_len(&net->waiting) < WAITING_FRAMES &&
	       net->waiting_bytes + skb->len <= WAITING_BYTES;
}

static void wait(struct net_lane *net, struct sk_buff *skb)
{
	skb_dst_force(skb);
	net->waiting_bytes += skb->len;
	__skb_queue_tail(&net->waiting, skb);
}

/* Asks for a doorbell when @skb has room, in place of one for held.c. */
static bool wait_room(struct net_lane *net, const struct sk_buff *skb)
{
	net->held_asked = false;
	return vmloop_ring_wait_room(&net->lane->tx,
				     sizeof(struct vmloop_shm_frame) +
					     skb->len);
}

/*
 * Puts a frame into the ring or behind it. Returns NONE if it is ours now, else
 * the counter of the reason why not; @bell is set if the peer wants a doorbell,
 * @queued if it waits.
 */
static int take(struct net_lane *net, struct sk_buff *skb, bool *bell,
		bool *queued)
{
	struct vmloop_lane *lane = net->lane;
	int err = -EAGAIN;

	lockdep_assert_held(&lane->tx_lock);
	*bell = false;
	*queued = false;

	if (skb_queue_empty(&net->waiting))
		err = write_frame(lane, skb);
	if (!err) {
		*bell = vmloop_ring_publish(&lane->tx);
		return NONE;
	}
	if (err == -EPROTO) {
		vmloop_lane_broken(lane);
		return VMLOOP_STANDARD_CLOSING;
	}
	if (err != -EAGAIN)
		return why_unwritable(err);
	if (!may_wait(net, skb))
		return net->down ? VMLOOP_STANDARD_CLOSING :
				   VMLOOP_STANDARD_FULL;

	wait(net, skb);
	*queued = true;
	/* The first one asks for the doorbell that lets all of them go on. */
	if (skb_queue_len(&net->waiting) == 1 && !wait_room(net, skb))
		napi_schedule(&net->napi);
	return NONE;
}

/*
 * What the guest's own traffic control would see or shape must not get around
 * it, and a record must be able to say to the peer what is still to be done
 * with the frame. Returns the counter of the reason why it must take the
 * standard network, or NONE.
 */
static int why_not(const struct vmloop_interface *interface,
		   const struct vmloop_lane *lane, const struct sk_buff *skb)
{
	const struct ethhdr *eth = (const struct ethhdr *)skb->data;
	unsigned int gso = skb_is_gso(skb) ? skb_shinfo(skb)->gso_type : 0;
	u64 features = vmloop_lane_features(lane);

	if (compat_tc_egress_active(skb->dev))
		return VMLOOP_STANDARD_CLASSIFIED;
	if (skb->len > VMLOOP_FRAME_MAX)
		return VMLOOP_STANDARD_TOO_LARGE;
	if (gso && ((gso & ~GSO_KNOWN) || skb->encapsulation ||
		    skb->ip_summed != CHECKSUM_PARTIAL))
		return VMLOOP_STANDARD_SEGMENTATION;
	if ((skb_vlan_tag_present(skb) || eth_type_vlan(eth->h_proto)) &&
	    !(interface->flags & VMLOOP_PEER_TAGGED))
		return VMLOOP_STANDARD_VLAN;
	if ((gso & COMPAT_GSO_UDP_L4) && !(features & VMLOOP_F_GSO_UDP))
		return VMLOOP_STANDARD_FEATURE;
	if ((interface->flags & VMLOOP_PEER_ROUTED) &&
	    !(features & VMLOOP_F_ROUTED))
		return VMLOOP_STANDARD_FEATURE;
	return NONE;
}

/* The peer's interface that a frame is for: its neighbour, or over a hop. */
static struct vmloop_interface *receiver(const struct net_nic *nic,
					 const struct sk_buff *skb)
{
	const struct ethhdr *eth = (const struct ethhdr *)skb->data;
	struct vmloop_interface *interface;

	interface = vmloop_interface_find(nic->mac, eth->h_dest);
	/* What a bridge in this guest forwards is not ours to vouch for. */
	if (!net_nic_is_usable(nic) ||
	    !ether_addr_equal(nic->mac, eth->h_source)) {
		if (interface)
			vmloop_count(interface->peer, VMLOOP_STANDARD_SOURCE, 1);
		return NULL;
	}
	if (!interface)
		return net_hop_find(skb);
	/* Behind the host's routing nobody is a neighbour. */
	return interface->flags & VMLOOP_PEER_ROUTED ? NULL : interface;
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
	struct vmloop_interface *interface;
	struct vmloop_lane *lane;
	struct net_lane *net;
	bool bell, queued;
	struct ethhdr *eth;
	u32 position;
	int reason;

	if (!pskb_may_pull(skb, ETH_HLEN))
		return NF_ACCEPT;
	eth = (struct ethhdr *)skb->data;
	if (is_multicast_ether_addr(eth->h_dest))
		return NF_ACCEPT;
	interface = receiver(nic, skb);
	if (!interface)
		goto standard;

	lane = vmloop_peer_lane(interface->peer);
	if (!lane) {
		reason = vmloop_peer_why_no_lane(interface->peer);
		vmloop_peer_want(interface->peer);
		goto past;
	}
	reason = why_not(interface, lane, skb);
	if (reason != NONE)
		goto past;

	net_hop_note(skb, interface);
	net = lane->priv;
	spin_lock(&lane->tx_lock);
	reason = take(net, skb, &bell, &queued);
	position = lane->tx.head;
	spin_unlock(&lane->tx_lock);
	if (reason != NONE)
		goto past;

	if (bell)
		net_ring(net);
	vmloop_lane_produced(lane);
	if (queued) {
		vmloop_count(lane->peer, VMLOOP_TX_QUEUED, 1);
		vmloop_count(lane->peer, VMLOOP_TX_FULL, 1);
	} else {
		sent(nic, net, skb, position);
	}
	return NF_STOLEN;

past:
	vmloop_count(interface->peer, reason, 1);
standard:
	if (net_large_is(skb)) {
		net_large_to_standard(skb);
		return NF_STOLEN;
	}
	return NF_ACCEPT;
}

/**
 * net_tx_waiting() - there may be room: let waiting frames go on, in order
 * @net: the lane
 *
 * Context: NAPI of the lane.
 */
void net_tx_waiting(struct net_lane *net)
{
	struct vmloop_lane *lane = net->lane;
	struct sk_buff_head done;
	bool bell = false;
	struct sk_buff *skb;
	u32 position;
	int err;

	/* Unlocked look: who queues one, or makes room, schedules us again. */
	if (skb_queue_empty_lockless(&net->waiting))
		return;

	__skb_queue_head_init(&done);
	spin_lock(&lane->tx_lock);
	while ((skb = skb_peek(&net->waiting))) {
		err = write_frame(lane, skb);
		if (err == -EAGAIN) {
			/* Nothing may be held back while we wait. */
			bell |= vmloop_ring_publish(&lane->tx);
			if (wait_room(net, skb))
				break;
			continue;
		}
		if (err == -EPROTO) {
			vmloop_lane_broken(lane);
			break;
		}
		__skb_unlink(skb, &net->waiting);
		net->waiting_bytes -= skb->len;
		if (err)
			kfree_skb(skb);	/* its data cannot be read */
		else
			__skb_queue_tail(&done, skb);
	}
	bell |= vmloop_ring_publish(&lane->tx);
	position = lane->tx.head;
	spin_unlock(&lane->tx_lock);

	if (bell)
		net_ring(net);
	if (!skb_queue_empty(&done))
		vmloop_lane_produced(lane);
	rcu_read_lock();
	while ((skb = __skb_dequeue(&done)))
		sent(net_nic_at(skb->dev), net, skb, position);
	rcu_read_unlock();
}

/**
 * net_tx_flush() - let all waiting frames take the standard network
 * @net: the lane
 *
 * Context: the lane is down or stalled, so that they do not come back to us.
 */
void net_tx_flush(struct net_lane *net)
{
	struct sk_buff_head frames;
	struct sk_buff *skb;

	__skb_queue_head_init(&frames);
	spin_lock_bh(&net->lane->tx_lock);
	skb_queue_splice_init(&net->waiting, &frames);
	net->waiting_bytes = 0;
	spin_unlock_bh(&net->lane->tx_lock);

	while ((skb = __skb_dequeue(&frames))) {
		vmloop_count(net->lane->peer, VMLOOP_STANDARD_FLUSHED, 1);
		dev_queue_xmit(skb);
	}
}
