// SPDX-License-Identifier: GPL-2.0
/*
 * counters.c - the interface's counters show what passed us: a copy of the
 * driver's operations adds it to what the driver has counted
 * (docs/decisions/0003).
 *
 * Readers of the operations hold RTNL or rcu_read_lock(), so the copy goes one
 * period of RCU after the driver's own operations are back. A reader may come
 * here as late as that, so the interface is looked up in the list: what
 * @dev->netdev_ops points to by then need not be ours any more.
 */
#include <linux/netdevice.h>

#include "net.h"

/**
 * net_nic_count_tx() - a frame left the interface through us
 * @nic: the interface
 * @bytes: of the frame
 *
 * Context: bottom halves off.
 */
void net_nic_count_tx(struct net_nic *nic, unsigned int bytes)
{
	struct net_counters *counters = this_cpu_ptr(nic->counters);

	u64_stats_update_begin(&counters->sync);
	u64_stats_inc(&counters->tx_packets);
	u64_stats_add(&counters->tx_bytes, bytes);
	u64_stats_update_end(&counters->sync);
}

/**
 * net_nic_count_rx() - a frame came in by the interface through us
 * @nic: the interface
 * @bytes: of the frame
 *
 * Context: bottom halves off.
 */
void net_nic_count_rx(struct net_nic *nic, unsigned int bytes)
{
	struct net_counters *counters = this_cpu_ptr(nic->counters);

	u64_stats_update_begin(&counters->sync);
	u64_stats_inc(&counters->rx_packets);
	u64_stats_add(&counters->rx_bytes, bytes);
	u64_stats_update_end(&counters->sync);
}

/* What the driver has counted, as dev_get_stats() would find it. */
static void driver_stats(struct net_device *dev,
			 const struct net_device_ops *ops,
			 struct rtnl_link_stats64 *stats)
{
	if (ops->ndo_get_stats64)
		ops->ndo_get_stats64(dev, stats);
	else if (ops->ndo_get_stats)
		netdev_stats_to_stats64(stats, ops->ndo_get_stats(dev));
#ifdef HAVE_NETDEV_PCPU_STAT_TSTATS
	else if (dev->pcpu_stat_type == NETDEV_PCPU_STAT_TSTATS)
		dev_get_tstats64(dev, stats);
#endif
	else
		netdev_stats_to_stats64(stats, &dev->stats);
}

static void add(const struct net_nic *nic, struct rtnl_link_stats64 *stats)
{
	u64 tx_packets, tx_bytes, rx_packets, rx_bytes;
	const struct net_counters *counters;
	unsigned int start;
	int cpu;

	for_each_possible_cpu(cpu) {
		counters = per_cpu_ptr(nic->counters, cpu);
		do {
			start = u64_stats_fetch_begin(&counters->sync);
			tx_packets = u64_stats_read(&counters->tx_packets);
			tx_bytes = u64_stats_read(&counters->tx_bytes);
			rx_packets = u64_stats_read(&counters->rx_packets);
			rx_bytes = u64_stats_read(&counters->rx_bytes);
		} while (u64_stats_fetch_retry(&counters->sync, start));
		stats->tx_packets += tx_packets;
		stats->tx_bytes += tx_bytes;
		stats->rx_packets += rx_packets;
		stats->rx_bytes += rx_bytes;
	}
}

static void get_stats64(struct net_device *dev, struct rtnl_link_stats64 *stats)
{
	struct net_nic *nic;

	rcu_read_lock();
	/* Pairs with the release in net_counters_start(). */
	smp_rmb();
	nic = net_nic_at(dev);
	if (nic) {
		driver_stats(dev, nic->driver_ops, stats);
		add(nic, stats);
	} else {
		/* Pairs with net_counters_stop(): the driver's are back. */
		smp_rmb();
		driver_stats(dev, READ_ONCE(dev->netdev_ops), stats);
	}
	rcu_read_unlock();
}

/**
 * net_counters_init() - make room for an interface's counters
 * @nic: the interface
 *
 * Return: 0 or a negative errno.
 */
int net_counters_init(struct net_nic *nic)
{
	int cpu;

	nic->counters = alloc_percpu(struct net_counters);
	if (!nic->counters)
		return -ENOMEM;
	for_each_possible_cpu(cpu)
		u64_stats_init(&per_cpu_ptr(nic->counters, cpu)->sync);
	return 0;
}

/**
 * net_counters_start() - show what passes us from now on
 * @nic: the interface, in the list
 *
 * Context: RTNL held.
 */
void net_counters_start(struct net_nic *nic)
{
	nic->driver_ops = nic->dev->netdev_ops;
	nic->ops = *nic->driver_ops;
	nic->ops.ndo_get_stats64 = get_stats64;
	/* Pairs with get_stats64(): whoever gets there finds the interface. */
	smp_store_release(&nic->dev->netdev_ops, &nic->ops);
}

/**
 * net_counters_stop() - the driver's counters alone again
 * @nic: the interface, still in the list
 *
 * They run backwards for who reads them, but nothing of ours may stay behind.
 *
 * Context: RTNL held. The caller takes @nic out of the list and lets a period
 * of RCU pass before it frees it.
 */
void net_counters_stop(struct net_nic *nic)
{
	WRITE_ONCE(nic->dev->netdev_ops, nic->driver_ops);
	/*
	 * Pairs with get_stats64(): where the interface is not found, the
	 * driver's operations are.
	 */
	smp_wmb();
}
