// SPDX-License-Identifier: GPL-2.0
/*
 * nic.c - the interfaces that we stand at: those whose hardware address the
 * directory knows as one of ours, or knew: a guest on its way to another host
 * arrives with the same ones, and has no time there to wait for RTNL.
 *
 * Owns the list of interfaces, their egress hooks, and the copy of the
 * driver's operations by which the interface's counters show what passed us.
 * The list changes under RTNL and is read under RCU.
 *
 * An interface is never hooked above another one (VLAN, bridge, bond): the
 * frame must be as it leaves the machine.
 */
#include <linux/etherdevice.h>
#include <linux/if_arp.h>
#include <linux/netfilter_netdev.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>

#include "net.h"

static LIST_HEAD(nics);

/**
 * net_nic_find() - the interface with a hardware address, if we stand there
 * @mac: the address
 *
 * Context: rcu_read_lock() held.
 * Return: the interface, or NULL.
 */
struct net_nic *net_nic_find(const u8 *mac)
{
	struct net_nic *nic;

	list_for_each_entry_rcu(nic, &nics, list)
		if (ether_addr_equal_64bits(nic->dev->dev_addr, mac))
			return nic;
	return NULL;
}

/* Counters --------------------------------------------------------------- */

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
static void driver_stats(struct net_nic *nic, struct rtnl_link_stats64 *stats)
{
	if (nic->driver_ops->ndo_get_stats64)
		nic->driver_ops->ndo_get_stats64(nic->dev, stats);
	else if (nic->driver_ops->ndo_get_stats)
		netdev_stats_to_stats64(stats,
					nic->driver_ops->ndo_get_stats(nic->dev));
	else
		netdev_stats_to_stats64(stats, &nic->dev->stats);
}

static void get_stats64(struct net_device *dev, struct rtnl_link_stats64 *stats)
{
	struct net_nic *nic = container_of(dev->netdev_ops, struct net_nic, ops);
	u64 tx_packets, tx_bytes, rx_packets, rx_bytes;
	const struct net_counters *counters;
	unsigned int start;
	int cpu;

	driver_stats(nic, stats);
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

/* Standing there --------------------------------------------------------- */

static unsigned int egress(void *priv, struct sk_buff *skb,
			   const struct nf_hook_state *state)
{
	return net_tx(priv, skb);
}

static struct net_nic *nic_of(const struct net_device *dev)
{
	struct net_nic *nic;

	ASSERT_RTNL();
	list_for_each_entry(nic, &nics, list)
		if (nic->dev == dev)
			return nic;
	return NULL;
}

static void nic_add(struct net_device *dev)
{
	struct net_nic *nic;
	int cpu;

	nic = kzalloc(sizeof(*nic), GFP_KERNEL);
	if (!nic)
		return;
	nic->counters = alloc_percpu(struct net_counters);
	if (!nic->counters)
		goto err_counters;
	for_each_possible_cpu(cpu)
		u64_stats_init(&per_cpu_ptr(nic->counters, cpu)->sync);

	nic->dev = dev;
	ether_addr_copy(nic->mac, dev->dev_addr);
	nic->driver_ops = dev->netdev_ops;
	nic->ops = *dev->netdev_ops;
	nic->ops.ndo_get_stats64 = get_stats64;
	nic->hook = (struct nf_hook_ops){
		.hook = egress,
		.dev = dev,
		.priv = nic,
		.pf = NFPROTO_NETDEV,
		.hooknum = NF_NETDEV_EGRESS,
		.priority = INT_MAX,	/* after all rules */
	};
	if (nf_register_net_hook(dev_net(dev), &nic->hook))
		goto err_hook;

	WRITE_ONCE(dev->netdev_ops, &nic->ops);
	list_add_rcu(&nic->list, &nics);
	netdev_info(dev, "vmloop: local peers are reached through shared memory\n");
	return;

err_hook:
	free_percpu(nic->counters);
err_counters:
	kfree(nic);
}

static void nic_remove(struct net_nic *nic)
{
	list_del_rcu(&nic->list);
	nf_unregister_net_hook(dev_net(nic->dev), &nic->hook);
	/*
	 * The driver's counters alone would run backwards for who reads them,
	 * but nothing of ours may stay behind.
	 */
	WRITE_ONCE(nic->dev->netdev_ops, nic->driver_ops);
	synchronize_net();	/* no frame, and no reader of the counters */
	free_percpu(nic->counters);
	kfree(nic);
}

/*
 * Only the lowest of several interfaces with one address: what stands above it
 * (VLAN, bridge, bond) has not yet made of a frame what goes out.
 */
static bool dev_is_suitable(struct net_device *dev)
{
	return dev->type == ARPHRD_ETHER && !(dev->flags & IFF_LOOPBACK) &&
	       list_empty(&dev->adj_list.lower) &&
	       dev->reg_state == NETREG_REGISTERED;
}

/* Does the directory know it, or did it when we came? */
static bool dev_is_ours(const struct net_device *dev, const struct net_nic *nic)
{
	return (nic && ether_addr_equal(nic->mac, dev->dev_addr)) ||
	       vmloop_mac_is_local(dev->dev_addr);
}

static void nic_update(struct net_device *dev)
{
	struct net_nic *nic = nic_of(dev);
	bool wanted = dev_is_suitable(dev) && dev_is_ours(dev, nic);

	if (wanted && !nic)
		nic_add(dev);
	else if (!wanted && nic)
		nic_remove(nic);
}

static bool is_stood_at(const u8 *mac)
{
	bool found;

	rcu_read_lock();
	found = net_nic_find(mac);
	rcu_read_unlock();
	return found;
}

/**
 * net_nics_update() - stand at the interfaces that the directory knows
 *
 * Where one comes with an address that we know already, its registration or the
 * change of its address tells. So RTNL, which others may hold for long, is taken
 * for a new address only.
 *
 * Context: process context, may take RTNL.
 */
void net_nics_update(void)
{
	struct net_device *dev;
	struct net *net;

	if (vmloop_local_macs_are(is_stood_at))
		return;
	down_read(&net_rwsem);
	rtnl_lock();
	for_each_net(net)
		for_each_netdev(net, dev)
			nic_update(dev);
	rtnl_unlock();
	up_read(&net_rwsem);
}

static int netdev_event(struct notifier_block *block, unsigned long event,
			void *data)
{
	struct net_device *dev = netdev_notifier_info_to_dev(data);
	struct netdev_notifier_changeupper_info *link = data;
	struct net_nic *nic;

	switch (event) {
	case NETDEV_REGISTER:
	case NETDEV_CHANGEADDR:
		nic_update(dev);
		break;
	case NETDEV_CHANGEUPPER:
		/* A VLAN's interface, say, is registered before it is linked. */
		nic_update(link->upper_dev);
		break;
	case NETDEV_UNREGISTER:	/* also when it moves to another namespace */
		nic = nic_of(dev);
		if (nic)
			nic_remove(nic);
		break;
	}
	return NOTIFY_DONE;
}

static struct notifier_block netdev_notifier = {
	.notifier_call = netdev_event,
};

int net_nics_init(void)
{
	return register_netdevice_notifier(&netdev_notifier);
}

void net_nics_exit(void)
{
	struct net_nic *nic, *next;

	unregister_netdevice_notifier(&netdev_notifier);
	rtnl_lock();
	list_for_each_entry_safe(nic, next, &nics, list)
		nic_remove(nic);
	rtnl_unlock();
}
