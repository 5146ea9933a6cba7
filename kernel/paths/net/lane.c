// SPDX-License-Identifier: GPL-2.0
/*
 * lane.c - a packet lane at work: its NAPI instance drains both directions.
 *
 * Owns struct net_lane. The callbacks run under the core mutex; poll() runs
 * in softirq, on one CPU at a time.
 *
 * Contexts that are still alive when lane_close() begins: poll(), scheduled by
 * doorbells, by the stall timer, by the watcher and by the watcher's timer. No
 * producer is: lane_down() came before.
 */
#include <linux/slab.h>

#include "net.h"
#include "compat.h"

/*
 * All that the consumer owns (lane->rx, the choice between doorbell, watcher
 * and timer) changes while NAPI is ours. After napi_complete_done() another CPU
 * may be in here: nothing is touched any more. A doorbell that comes between
 * marks NAPI as missed, so that napi_complete_done() has it run again.
 */
static int poll(struct napi_struct *napi, int budget)
{
	struct net_lane *net = container_of(napi, struct net_lane, napi);
	struct vmloop_lane *lane = net->lane;
	int work = 0;

	/* Netpoll, which wants nothing received; no device leads it here. */
	if (unlikely(!budget))
		return 0;
	/* Pairs with the release in lane_up(): lane->rx is there. */
	if (!smp_load_acquire(&net->up)) {
		napi_complete_done(napi, 0);
		return 0;
	}

	net_receivers_send(net);
	if (unlikely(vmloop_lane_stalled(lane))) {
		net_tx_flush(net);
		net_held_release(net);
	} else {
		net_tx_waiting(net);
		net_held_look(net);
	}

	/*
	 * Each turn but the last consumes records, or padding, which never comes
	 * twice in a row.
	 */
	do {
		work += net_rx(net, budget - work);
		if (work)
			vmloop_watch_woken(&net->watch);
		if (work == budget)
			return budget;
	} while (!lane->rx.broken && !vmloop_watch_idle(&net->watch, work) &&
		 !vmloop_ring_sleep(&lane->rx));
	if (unlikely(lane->rx.broken))
		vmloop_watch_end(&net->watch);

	napi_complete_done(napi, work);
	return work;
}

static struct net_lane *of_watch(const struct vmloop_watch *watch)
{
	return container_of(watch, struct net_lane, watch);
}

static bool is_awake(const struct vmloop_watch *watch)
{
	return test_bit(NAPI_STATE_SCHED, &of_watch(watch)->napi.state);
}

static bool has_moved(const struct vmloop_watch *watch)
{
	return vmloop_ring_moved(&watch->lane->rx);
}

static void wake(struct vmloop_watch *watch)
{
	napi_schedule(&of_watch(watch)->napi);
}

static const struct vmloop_watch_ops watch_ops = {
	.is_awake = is_awake,
	.has_moved = has_moved,
	.wake = wake,
};

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
	net->held_rest = jiffies;

	net->napi_dev = alloc_netdev_dummy(0);
	if (!net->napi_dev)
		goto err_dev;
	net->pages = compat_page_pool(NET_PAGES_ORDER);
	if (IS_ERR(net->pages)) {
		err = PTR_ERR(net->pages);
		goto err_pages;
	}
	netif_napi_add(net->napi_dev, &net->napi, poll);
	vmloop_watch_start(&net->watch, &watch_ops, lane);
	napi_enable(&net->napi);
	lane->priv = net;
	return 0;

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

	/* Pairs with the acquire in poll(): lane->rx was filled in before. */
	smp_store_release(&net->up, true);
	net_spread_up(lane);
	net_receivers_tell(lane, true);
	vmloop_lane_ring_anyway(lane);	/* once for nothing: to know what it costs */
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

/*
 * What has come since; a ring's worth of records at most, and others have their
 * turn between as they do between NAPI's.
 */
static void consume_last(struct net_lane *net)
{
	struct vmloop_lane *lane = net->lane;
	unsigned int records, most;
	int work;

	net->closing = true;
	most = lane->rx.size / VMLOOP_RECORD_ALIGN;
	for (records = 0; records < most; records += work) {
		local_bh_disable();
		work = net_rx(net, NAPI_POLL_WEIGHT);
		local_bh_enable();
		if (work < NAPI_POLL_WEIGHT)
			break;
		cond_resched();
	}
}

static void lane_close(struct vmloop_lane *lane)
{
	struct net_lane *net = lane->priv;

	/*
	 * Waits for poll(), and with it for all that starts the timer or has a
	 * watcher look. What these two schedule now only marks NAPI as missed.
	 */
	napi_disable(&net->napi);
	vmloop_watch_stop(&net->watch);
	if (net->up && !lane->rx.broken)
		consume_last(net);
	/* As netif_napi_del(), but for the haste: somebody may wait to be saved. */
	__netif_napi_del(&net->napi);
	/* Waits for NAPI's readers, and for a watcher that still looks at the lane. */
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
	net_receivers_changed();
}

const struct vmloop_path net_path = {
	.name = "net",
	.owner = THIS_MODULE,
	.kind = VMLOOP_LANE_PACKET,
	.grain = VMLOOP_RING_RECORDS,
	.by_peer = true,
	.channel_open = net_spread_open,
	.lane_wanted = net_spread_wanted,
	.features = VMLOOP_F_LARGE | VMLOOP_F_ROUTED | VMLOOP_F_RECEIVERS |
		    VMLOOP_F_SPREAD |
		    (COMPAT_GSO_UDP_L4 ? VMLOOP_F_GSO_UDP : 0),
	.max_record = sizeof(struct vmloop_shm_frame) + VMLOOP_FRAME_MAX,
	.lane_open = lane_open,
	.lane_up = lane_up,
	.lane_down = lane_down,
	.lane_close = lane_close,
	.lane_event = event,
	.directory_changed = directory_changed,
};
