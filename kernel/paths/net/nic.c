// SPDX-License-Identifier: GPL-2.0
/*
 * nic.c - the interfaces that we stand at: the hardware's own, whose permanent
 * address the directory knows as one of ours, or knew (a guest on its way to
 * another host arrives with the same ones, and has no time there to wait for
 * RTNL); and those that the administrator names (named.c).
 *
 * The directory says addresses, and anybody who may make a network namespace
 * can make an interface with any address. So an address alone counts for
 * nothing: a device on a bus, with that address in its hardware, is none that
 * a user can make.
 *
 * Owns the list of interfaces and their egress hooks. The list changes under
 * RTNL and is read under RCU.
 */
#include <linux/etherdevice.h>
#include <linux/if_arp.h>
#include <linux/netfilter_netdev.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>

#include "net.h"

static LIST_HEAD(nics);
static bool started;	/* notifiers tell of interfaces; under RTNL */

/**
 * net_nic_find() - the interface with a hardware address, if we stand there
 * @mac: the address, as the directory has it
 *
 * Context: rcu_read_lock() held.
 * Return: the interface; NULL if there is none, if its address was changed, or
 * if several could be meant.
 */
struct net_nic *net_nic_find(const u8 *mac)
{
	struct net_nic *nic;

	list_for_each_entry_rcu(nic, &nics, list)
		if (ether_addr_equal(nic->mac, mac) && net_nic_is_usable(nic))
			return nic;
	return NULL;
}

/**
 * net_nic_at() - what we know of an interface, if we stand there
 * @dev: the interface
 *
 * Context: rcu_read_lock() or RTNL held.
 * Return: the interface, or NULL.
 */
struct net_nic *net_nic_at(const struct net_device *dev)
{
	struct net_nic *nic;

	list_for_each_entry_rcu(nic, &nics, list, lockdep_rtnl_is_held())
		if (nic->dev == dev)
			return nic;
	return NULL;
}

/* What it can do as it is ------------------------------------------------- */

/* The egress rules of nft may have our priority, and then come after us. */
static bool hook_is_last(const struct net_nic *nic)
{
	const struct nf_hook_entries *entries;
	unsigned int count;

	entries = rcu_dereference(nic->dev->nf_hooks_egress);
	count = entries ? entries->num_hook_entries : 0;
	return count && entries->hooks[count - 1].priv == nic;
}

/* Up, there, and with a carrier: frames would reach its network. */
static bool is_running(const struct net_device *dev)
{
	return netif_running(dev) && netif_device_present(dev) &&
	       netif_carrier_ok(dev);
}

/* Which of its ports sends and receives, the bond decides from time to time. */
static bool is_port(const struct net_device *dev)
{
	return netif_is_lag_port(dev) || netif_is_failover_slave(dev);
}

/* What the driver runs for each frame sees none of ours. */
static bool has_native_xdp(const struct net_device *dev)
{
	unsigned int mode;

	for (mode = XDP_MODE_DRV; mode < __MAX_XDP_MODE; mode++)
		if (READ_ONCE(dev->xdp_state[mode].prog) ||
		    READ_ONCE(dev->xdp_state[mode].link))
			return true;
	return false;
}

/**
 * net_nic_why_not() - why a frame must leave an interface by its driver
 * @nic: the interface; peers know it as it is
 * @skb: the frame
 *
 * Context: rcu_read_lock() held, bottom halves off.
 * Return: the counter of the reason, or NET_NO_REASON.
 */
int net_nic_why_not(struct net_nic *nic, const struct sk_buff *skb)
{
	if (!is_running(nic->dev) || is_port(nic->dev))
		return VMLOOP_STANDARD_INTERFACE;
	if (!hook_is_last(nic))
		return VMLOOP_STANDARD_HOOK;
	if (net_shapes(nic, skb))
		return VMLOOP_STANDARD_SHAPED;
	return NET_NO_REASON;
}

/**
 * net_nic_input() - where a frame for an interface is handed up
 * @nic: the interface; peers know it as it is
 *
 * A bond drops what comes in by a port that is not the active one. Peers send
 * nothing to a port, once they know; what they have sent goes to the bond.
 *
 * Context: rcu_read_lock() held.
 * Return: the device, or NULL if the frame must be dropped.
 */
struct net_device *net_nic_input(const struct net_nic *nic)
{
	struct net_device *dev = nic->dev;

	if (!is_running(dev) || has_native_xdp(dev))
		return NULL;
	if (is_port(dev)) {
		dev = netdev_master_upper_dev_get_rcu(dev);
		if (!dev || !is_running(dev))
			return NULL;
	}
	return dev;
}

/**
 * net_nics_collect() - the interfaces of ours that can receive from a peer
 * @peer: the peer
 * @list: gets their addresses
 *
 * Context: core mutex held.
 */
void net_nics_collect(const struct vmloop_peer *peer,
		      struct vmloop_shm_receivers *list)
{
	struct net_nic *nic;

	rcu_read_lock();
	list_for_each_entry_rcu(nic, &nics, list) {
		if (list->count == VMLOOP_RECEIVERS_MAX)
			break;
		if (net_nic_is_usable(nic) && is_running(nic->dev) &&
		    !is_port(nic->dev) && !has_native_xdp(nic->dev) &&
		    vmloop_peer_knows(peer, nic->mac))
			ether_addr_copy(list->mac[list->count++], nic->mac);
	}
	rcu_read_unlock();
}

/* Standing there --------------------------------------------------------- */

static unsigned int egress(void *priv, struct sk_buff *skb,
			   const struct nf_hook_state *state)
{
	return net_tx(priv, skb);
}

/*
 * Whether an interface has an address in spite of another one that has it, too: a
 * bond that the administrator names has the address of one of its ports. Any other
 * that is named may have been given it by whoever owns its namespace.
 */
static bool is_above(const struct net_nic *nic, const struct net_nic *other)
{
	return nic->is_named && !other->is_named &&
	       netdev_has_upper_dev(other->dev, nic->dev);
}

/* Several with one address: the bond above its port, else none. */
static void mark_shared(void)
{
	struct net_nic *nic, *other;
	bool is_shared;

	ASSERT_RTNL();
	list_for_each_entry(nic, &nics, list) {
		is_shared = false;
		list_for_each_entry(other, &nics, list)
			is_shared |= other != nic &&
				     ether_addr_equal(other->mac, nic->mac) &&
				     !is_above(nic, other);
		WRITE_ONCE(nic->is_shared, is_shared);
	}
}

static void nic_add(struct net_device *dev, const u8 *mac, bool is_named)
{
	struct net_nic *nic;

	nic = kzalloc(sizeof(*nic), GFP_KERNEL);
	if (!nic)
		return;
	if (net_counters_init(nic))
		goto err_counters;

	nic->dev = dev;
	nic->shaping_looked = jiffies - 1;
	nic->is_named = is_named;
	ether_addr_copy(nic->mac, mac);
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

	list_add_rcu(&nic->list, &nics);
	mark_shared();
	net_counters_start(nic);
	net_receivers_changed();
	netdev_info(dev, "vmloop: local peers are reached through shared memory\n");
	return;

err_hook:
	free_percpu(nic->counters);
err_counters:
	kfree(nic);
}

static void nic_remove(struct net_nic *nic)
{
	net_counters_stop(nic);
	list_del_rcu(&nic->list);
	mark_shared();
	nf_unregister_net_hook(dev_net(nic->dev), &nic->hook);
	synchronize_net();	/* no frame, and no reader of the counters */
	net_tx_gone(nic->dev);
	net_receivers_changed();
	free_percpu(nic->counters);
	kfree(nic);
}

/*
 * The address by which the directory would know an interface, or NULL if it is
 * none to stand at. What stands above hardware (VLAN, bridge, bond) has not yet
 * made of a frame what goes out: we stand there only if it is named.
 */
static const u8 *address(const struct net_device *dev, bool is_named)
{
	if (dev->type != ARPHRD_ETHER || (dev->flags & IFF_LOOPBACK) ||
	    dev->reg_state != NETREG_REGISTERED)
		return NULL;
	if (is_named)
		return dev->dev_addr;
	if (vmloop_dev_is_hardware(dev) && list_empty(&dev->adj_list.lower))
		return dev->perm_addr;
	return NULL;
}

static void nic_update(struct net_device *dev)
{
	struct net_nic *nic = net_nic_at(dev);
	bool is_named = net_named(dev);
	const u8 *mac;

	mac = address(dev, is_named);
	if (nic && (!mac || nic->is_named != is_named ||
		    !ether_addr_equal(nic->mac, mac))) {
		nic_remove(nic);
		nic = NULL;
	}
	if (!nic && mac && vmloop_mac_is_local(mac))
		nic_add(dev, mac, is_named);
}

/**
 * net_nics_look() - look at all interfaces of all namespaces
 *
 * Context: RTNL held.
 */
void net_nics_look(void)
{
	struct net_device *dev;
	struct net *net;

	ASSERT_RTNL();
	if (!started)
		return;
	/* The kernel's order: RTNL, then what protects the list of namespaces. */
	down_read(&net_rwsem);
	for_each_net(net)
		for_each_netdev(net, dev)
			nic_update(dev);
	up_read(&net_rwsem);
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
	if (vmloop_local_macs_are(is_stood_at))
		return;
	rtnl_lock();
	net_nics_look();
	rtnl_unlock();
}

static int netdev_event(struct notifier_block *block, unsigned long event,
			void *data)
{
	struct net_device *dev = netdev_notifier_info_to_dev(data);
	struct netdev_notifier_changeupper_info *link = data;
	struct net_nic *nic;

	switch (event) {
	case NETDEV_REGISTER:
	case NETDEV_CHANGENAME:
		nic_update(dev);
		break;
	case NETDEV_CHANGEADDR:
		nic_update(dev);
		net_receivers_changed();
		break;
	case NETDEV_CHANGEUPPER:
		/* It is registered before it is linked. */
		nic_update(link->upper_dev);
		mark_shared();
		net_receivers_changed();
		break;
	case NETDEV_DOWN:
		/* The kernel has waited for all that were about to send. */
		if (net_nic_at(dev))
			net_tx_gone(dev);
		fallthrough;
	case NETDEV_UP:
	case NETDEV_CHANGE:	/* its carrier, or an XDP program */
		if (net_nic_at(dev))
			net_receivers_changed();
		break;
	case NETDEV_UNREGISTER:	/* also when it moves to another namespace */
		nic = net_nic_at(dev);
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
	int err = register_netdevice_notifier(&netdev_notifier);

	if (err)
		return err;
	rtnl_lock();
	started = true;
	rtnl_unlock();
	return 0;
}

void net_nics_exit(void)
{
	struct net_nic *nic, *next;

	unregister_netdevice_notifier(&netdev_notifier);
	rtnl_lock();
	started = false;
	list_for_each_entry_safe(nic, next, &nics, list)
		nic_remove(nic);
	rtnl_unlock();
}
