// SPDX-License-Identifier: GPL-2.0
/*
 * lane.c - a packet lane at work: its NAPI instance drains both directions.
 *
 * Owns struct net_lane. The callbacks run under the core mutex; poll() runs
 * in softirq, on one CPU at a time.
 *
 * Contexts that are still alive when lane_close() begins: poll(), scheduled by
 * doorbells, by the stall timer and by the watcher. No producer is: lane_down() came before.
 */
#include <linux/slab.h>

#include "net.h"
#include "compat.h"

static int poll(struct napi_struct *napi, int budget)
{
	struct net_lane *net = container_of(napi, struct net_lane, napi);
	struct vmloop_lane *lane = net->lane;
	int work;

	if (!READ_ONCE(net->up)) {
		napi_complete_done(napi, 0);
		return 0;
	}

	if (unlikely(vmloop_lane_stalled(lane))) {
		net_tx_flush(net);
		net_held_release(net);
	} else {
		net_tx_waiting(net);
		net_held_look(net);
	}

	work = net_rx(net, budget);
	if (work)
		net_watch_woken(net);
	if (work == budget && budget)
		return budget;

	/* Only when that is done: what comes after it wakes us again. */
	if (napi_complete_done(napi, work) && !net_watch_idle(net, work) &&
	    !vmloop_ring_sleep(&lane->rx) && !lane->rx.broken)
		napi_schedule(napi);
	return work;
}

static int lane_open(struct vmloop_lane *lane)
{
	struct net_lane *net;
	int err = -ENOMEM;

	net = kzalloc(sizeof(*net), GFP_KERNEL);
	if (!net)
		return -ENOMEM;
	net->lane = lane;
	__skb_queue_head_init(&net->waiting);
	__skb_queue_head_init(&net->held);

	net->napi_dev = alloc_netdev_dummy(0);
	if (!net->napi_dev)
		goto err_dev;
	net->pages = compat_page_pool(NET_PAGES_ORDER);
	if (IS_ERR(net->pages)) {
		err = PTR_ERR(net->pages);
		goto err_pages;
	}
	netif_napi_add(net->napi_dev, &net->napi, poll);
	err = net_watch_start(net);
	if (err)
		goto err_watch;
	napi_enable(&net->napi);
	lane->priv = net;
	return 0;

err_watch:
	netif_napi_del(&net->napi);
	page_pool_destroy(net->pages);
err_pages:
	compat_free_netdev_dummy(net->napi_dev);
err_dev:
	kfree(net);
	return err;
}

static void event(struct vmloop_lane *lane)
{
	struct net_lane *net = lane->priv;

	napi_schedule(&net->napi);
}

static void lane_up(struct vmloop_lane *lane)
{
	struct net_lane *net = lane->priv;

	WRITE_ONCE(net->up, true);
	net_ring(net);	/* once for nothing: to know what it costs */
	/* The peer may have begun to produce before we could look. */
	local_bh_disable();
	napi_schedule(&net->napi);
	local_bh_enable();
}

static void lane_down(struct vmloop_lane *lane)
{
	struct net_lane *net = lane->priv;

	spin_lock_bh(&lane->tx_lock);
	net->down = true;
	spin_unlock_bh(&lane->tx_lock);
	net_tx_flush(net);
	net_held_release(net);
}

static void lane_close(struct vmloop_lane *lane)
{
	struct net_lane *net = lane->priv;

	napi_disable(&net->napi);	/* waits for poll() to be idle */
	if (net->up && !lane->rx.broken) {
		/* What has come since; a ring's worth of records at most. */
		net->closing = true;
		local_bh_disable();
		net_rx(net, lane->rx.size / VMLOOP_RECORD_ALIGN);
		local_bh_enable();
	}
	net_watch_stop(net);
	/* As netif_napi_del(), but for the haste: somebody may wait to be saved. */
	__netif_napi_del(&net->napi);
	synchronize_rcu_expedited();
	page_pool_destroy(net->pages);
	compat_free_netdev_dummy(net->napi_dev);
	kfree(net);
	lane->priv = NULL;
}

static void directory_changed(void)
{
	net_nics_update();
	net_recent_want();
}

const struct vmloop_path net_path = {
	.name = "net",
	.owner = THIS_MODULE,
	.kind = VMLOOP_LANE_PACKET,
	.features = VMLOOP_F_LARGE | VMLOOP_F_ROUTED |
		    (COMPAT_GSO_UDP_L4 ? VMLOOP_F_GSO_UDP : 0),
	.max_record = sizeof(struct vmloop_shm_frame) + VMLOOP_FRAME_MAX,
	.lane_open = lane_open,
	.lane_up = lane_up,
	.lane_down = lane_down,
	.lane_close = lane_close,
	.lane_event = event,
	.directory_changed = directory_changed,
};
