// SPDX-License-Identifier: GPL-2.0
/*
 * receivers.c - each side tells the other which of its interfaces can receive,
 * so that no frame is sent to one that cannot (docs/protocol.md, section 4).
 *
 * An interface without a driver, down, without a cable, in a bond, with an XDP
 * program in its driver: what is sent to it by the channel would be lost, or
 * would get past something. Its frames take the standard network.
 *
 * The list is sent whole when the lane comes up and whenever it has changed. It
 * goes by the ring, so it may have to wait for room there; NAPI tries again.
 *
 * Owns a lane's two lists, under its tx_lock.
 */
#include <linux/workqueue.h>

#include "net.h"

static u32 list_size(const struct vmloop_shm_receivers *list)
{
	return offsetof(struct vmloop_shm_receivers, mac) +
	       list->count * ETH_ALEN;
}

/**
 * net_receivers_send() - let the list go, if there is one to be sent
 * @net: the lane
 *
 * Context: NAPI of the lane, or before producers find it; bottom halves off.
 */
void net_receivers_send(struct net_lane *net)
{
	struct vmloop_lane *lane = net->lane;
	bool bell = false;
	void *payload;
	u32 size;
	int err;

	/* Unlocked look: who sets it schedules NAPI. */
	if (!READ_ONCE(net->telling))
		return;
	spin_lock(&lane->tx_lock);
	if (net->telling && !net->down) {
		size = list_size(&net->ours);
		err = vmloop_ring_reserve(&lane->tx, size,
					  VMLOOP_RECORD_RECEIVERS, 0, &payload);
		if (!err) {
			memcpy(payload, &net->ours, size);
			vmloop_ring_commit(&lane->tx);
			bell = vmloop_ring_publish(&lane->tx);
			net->telling = false;
		} else if (err == -EPROTO) {
			vmloop_lane_broken(lane, lane->tx.broken);
		} else if (err == -EAGAIN && skb_queue_empty(&net->waiting)) {
			/* Frames that wait have asked for a doorbell before. */
			net->held_asked = false;
			if (!vmloop_ring_wait_room(&lane->tx, size))
				napi_schedule(&net->napi);
		}
	}
	spin_unlock(&lane->tx_lock);
	if (bell)
		vmloop_lane_ring(net->lane);
}

/**
 * net_receivers_tell() - tell a peer of the interfaces that can receive
 * @lane: the lane to it
 * @first: the lane comes up: tell in any case
 *
 * Context: core mutex held.
 */
void net_receivers_tell(struct vmloop_lane *lane, bool first)
{
	struct vmloop_shm_receivers list = { };
	struct net_lane *net = lane->priv;

	if (!READ_ONCE(net->up) ||
	    !(vmloop_lane_features(lane) & VMLOOP_F_RECEIVERS))
		return;
	net_nics_collect(lane->peer, &list);
	spin_lock_bh(&lane->tx_lock);
	if (first || memcmp(&list, &net->ours, sizeof(list))) {
		net->ours = list;
		WRITE_ONCE(net->telling, true);
	}
	spin_unlock_bh(&lane->tx_lock);
	local_bh_disable();
	net_receivers_send(net);
	local_bh_enable();
}

static void tell(struct vmloop_lane *lane, void *unused)
{
	net_receivers_tell(lane, false);
}

static void tell_work(struct work_struct *work)
{
	vmloop_lanes_do(&net_path, tell, NULL);
}

static DECLARE_DELAYED_WORK(telling, tell_work);

/**
 * net_receivers_changed() - an interface may receive now, or not any more
 *
 * Context: any.
 */
void net_receivers_changed(void)
{
	mod_delayed_work(system_wq, &telling, 0);
}

/**
 * net_receivers_doubt() - a frame came for an interface that cannot receive
 *
 * The peer may not have heard of it yet, or go on as long as it likes.
 *
 * Context: any.
 */
void net_receivers_doubt(void)
{
	schedule_delayed_work(&telling, HZ / 10);
}

/**
 * net_receivers_said() - a peer has told which of its interfaces can receive
 * @net: the lane
 * @payload: what it wrote: untrusted
 * @size: bytes of it
 *
 * Context: NAPI of the lane.
 * Return: the counter of the reason for which it is ignored, or -1.
 */
int net_receivers_said(struct net_lane *net, const void *payload, u32 size)
{
	struct vmloop_shm_receivers list = { };
	struct vmloop_lane *lane = net->lane;
	bool is_new;

	if (!(vmloop_lane_features(lane) & VMLOOP_F_RECEIVERS) ||
	    size < offsetof(struct vmloop_shm_receivers, mac) ||
	    size > sizeof(list))
		return VMLOOP_DROP_MALFORMED;
	/* A private copy: the peer may write to the ring at any time. */
	memcpy(&list, payload, size);
	barrier();
	if (list.count > VMLOOP_RECEIVERS_MAX || size != list_size(&list))
		return VMLOOP_DROP_MALFORMED;

	spin_lock(&lane->tx_lock);
	is_new = memcmp(&net->theirs, &list, sizeof(list));
	net->theirs = list;
	spin_unlock(&lane->tx_lock);
	/* What waits may be for one that cannot receive any more. */
	if (is_new && !skb_queue_empty_lockless(&net->waiting))
		net_tx_flush(net);
	return -1;
}

/**
 * net_receiver_is_good() - whether a peer's interface can receive
 * @net: the lane to the peer
 * @interface: its interface, by the directory
 *
 * Context: the lane's tx_lock held.
 */
bool net_receiver_is_good(const struct net_lane *net,
			  const struct vmloop_interface *interface)
{
	unsigned int i;

	lockdep_assert_held(&net->lane->tx_lock);
	if (!(vmloop_lane_features(net->lane) & VMLOOP_F_RECEIVERS))
		return true;
	for (i = 0; i < net->theirs.count; i++)
		if (ether_addr_equal_unaligned(net->theirs.mac[i],
					       interface->mac))
			return true;
	return false;
}

void net_receivers_exit(void)
{
	cancel_delayed_work_sync(&telling);
}
