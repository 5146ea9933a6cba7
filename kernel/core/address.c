// SPDX-License-Identifier: GPL-2.0
/*
 * address.c - tells the host agents all of our IP addresses, at the start and
 * whenever they change.
 *
 * Owns the two address notifiers and one work. The notifiers run under RTNL
 * or in atomic context and only queue the work.
 *
 * In the first network namespace all interfaces count, in others devices on a
 * bus only: a user can make any other kind there, with any address.
 */
#include <linux/if_arp.h>
#include <linux/inetdevice.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <net/addrconf.h>
#include <net/if_inet6.h>
#include <net/net_namespace.h>

#include "core.h"

/* Several addresses tend to change at once. */
#define SETTLE_TIME	msecs_to_jiffies(50)

static struct vmloop_msg_address addresses[VMLOOP_ADVERTISE_MAX];
static u32 address_count;	/* both only used by the work */

static void add(const struct net_device *dev, u8 family, u8 prefix,
		const void *ip, size_t size)
{
	struct vmloop_msg_address *address;

	if (address_count >= ARRAY_SIZE(addresses))
		return;
	address = &addresses[address_count++];
	memset(address, 0, sizeof(*address));
	address->family = family;
	address->prefix = prefix;
	ether_addr_copy(address->mac, dev->dev_addr);
	memcpy(address->ip, ip, size);
}

static void add_ipv4(const struct net_device *dev)
{
	const struct in_device *in_dev = __in_dev_get_rtnl(dev);
	const struct in_ifaddr *ifa;

	if (!in_dev)
		return;
	in_dev_for_each_ifa_rtnl(ifa, in_dev)
		add(dev, VMLOOP_ADDR_IPV4, ifa->ifa_prefixlen, &ifa->ifa_local,
		    sizeof(ifa->ifa_local));
}

static void add_ipv6(const struct net_device *dev)
{
	struct inet6_dev *in6_dev = __in6_dev_get(dev);
	const struct inet6_ifaddr *ifa;

	if (!in6_dev)
		return;
	read_lock_bh(&in6_dev->lock);
	list_for_each_entry(ifa, &in6_dev->addr_list, if_list)
		add(dev, VMLOOP_ADDR_IPV6, ifa->prefix_len, &ifa->addr,
		    sizeof(ifa->addr));
	read_unlock_bh(&in6_dev->lock);
}

static bool is_of_guest(const struct net_device *dev)
{
	return net_eq(dev_net(dev), &init_net) || vmloop_dev_is_hardware(dev);
}

static void add_namespace(const struct net *net)
{
	const struct net_device *dev;

	for_each_netdev(net, dev) {
		if (dev->type != ARPHRD_ETHER || !(dev->flags & IFF_UP))
			continue;
		if (!is_of_guest(dev))
			continue;
		add_ipv4(dev);
		add_ipv6(dev);
	}
}

static void advertise_work(struct work_struct *work)
{
	struct vmloop_transport *transport;
	struct net *net;

	rtnl_lock();
	address_count = 0;
	add_namespace(&init_net);
	down_read(&net_rwsem);
	for_each_net(net)
		if (!net_eq(net, &init_net))
			add_namespace(net);
	up_read(&net_rwsem);
	mutex_lock(&vmloop_mutex);
	list_for_each_entry(transport, &vmloop_transports, list)
		if (transport->agent && transport->ops->advertise)
			transport->ops->advertise(transport, addresses,
						  address_count);
	mutex_unlock(&vmloop_mutex);
	rtnl_unlock();
}

static DECLARE_DELAYED_WORK(advertise, advertise_work);

/**
 * vmloop_address_advertise() - tell the agents our addresses again
 *
 * Context: any.
 */
void vmloop_address_advertise(void)
{
	queue_delayed_work(vmloop_workqueue, &advertise, SETTLE_TIME);
}

/* A user's own namespaces must not keep RTNL busy: there nothing is looked at. */
static int inet_changed(struct notifier_block *block, unsigned long event,
			void *data)
{
	const struct in_ifaddr *ifa = data;

	if (is_of_guest(ifa->ifa_dev->dev))
		vmloop_address_advertise();
	return NOTIFY_DONE;
}

static int inet6_changed(struct notifier_block *block, unsigned long event,
			 void *data)
{
	const struct inet6_ifaddr *ifa = data;

	if (is_of_guest(ifa->idev->dev))
		vmloop_address_advertise();
	return NOTIFY_DONE;
}

static struct notifier_block inet_notifier = {
	.notifier_call = inet_changed,
};

static struct notifier_block inet6_notifier = {
	.notifier_call = inet6_changed,
};

int vmloop_address_init(void)
{
	int err;

	err = register_inetaddr_notifier(&inet_notifier);
	if (err)
		return err;
	err = register_inet6addr_notifier(&inet6_notifier);
	if (err)
		unregister_inetaddr_notifier(&inet_notifier);
	return err;
}

void vmloop_address_exit(void)
{
	unregister_inet6addr_notifier(&inet6_notifier);
	unregister_inetaddr_notifier(&inet_notifier);
	cancel_delayed_work_sync(&advertise);
}
