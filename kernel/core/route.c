// SPDX-License-Identifier: GPL-2.0
/*
 * route.c - which IP addresses are reached by way of the host: those of peers
 * behind the host's routing, and our own that such peers know of.
 *
 * An address that is new is told to both ends at about the same time. Whoever
 * hears of it first waits with sending until the other surely knows it, too:
 * what it sent before would be taken for forged. Receiving does not wait.
 *
 * Owns the hash of routes; what is in it belongs to the interfaces. Changes
 * happen under the core mutex; the data path reads the hash under RCU.
 */
#include <linux/jhash.h>
#include <linux/jiffies.h>
#include <linux/rculist.h>

#include "core.h"

#define HASH_BITS_	10

/* How long a new address is only received from, or for. */
#define SETTLE_TIME	(HZ / 2)

/* Written under the core mutex, read under RCU. */
static struct hlist_head routes[1 << HASH_BITS_];

static size_t ip_size(u8 family)
{
	switch (family) {
	case VMLOOP_ADDR_IPV4:
		return 4;
	case VMLOOP_ADDR_IPV6:
		return 16;
	}
	return 0;
}

static struct hlist_head *bucket(const u8 *local_mac, u8 family, const void *ip)
{
	u32 hash = jhash(ip, ip_size(family),
			 jhash(local_mac, ETH_ALEN, family));

	return &routes[hash >> (32 - HASH_BITS_)];
}

static bool matches(const struct vmloop_route *route, const u8 *local_mac,
		    u8 family, const void *ip)
{
	return route->ip->family == family &&
	       !memcmp(route->ip->ip, ip, ip_size(family)) &&
	       ether_addr_equal(route->interface->local_mac, local_mac);
}

static bool has_settled(const struct vmloop_route *route)
{
	/* 64 bits: it may be there for longer than jiffies count. */
	return time_after_eq64(get_jiffies_64(), route->since + SETTLE_TIME);
}

static const struct vmloop_route *ours(const u8 *local_mac, u8 family,
				       const void *ip)
{
	const struct vmloop_route *route;

	hlist_for_each_entry_rcu(route, bucket(local_mac, family, ip), node)
		if (!route->interface->peer &&
		    matches(route, local_mac, family, ip))
			return route;
	return NULL;
}

/**
 * vmloop_route_find() - the peer's interface that has an address
 * @local_mac: the interface of ours
 * @gateway: the next hop's hardware address
 * @family: VMLOOP_ADDR_*
 * @ip: the address, in network order
 *
 * Context: rcu_read_lock() held.
 * Return: the entry; NULL if no peer has the address, if the next hop is not
 * the host, or if the address is too new.
 */
struct vmloop_interface *vmloop_route_find(const u8 *local_mac,
					   const u8 *gateway, u8 family,
					   const void *ip)
{
	struct vmloop_interface *interface;
	struct vmloop_route *route;

	hlist_for_each_entry_rcu(route, bucket(local_mac, family, ip), node) {
		interface = route->interface;
		if (interface->peer && matches(route, local_mac, family, ip) &&
		    ether_addr_equal(interface->gateway, gateway))
			return has_settled(route) ? interface : NULL;
	}
	return NULL;
}
EXPORT_SYMBOL_GPL(vmloop_route_find);

/**
 * vmloop_route_is_ours() - whether peers send to an address of ours
 * @local_mac: the interface of ours
 * @family: VMLOOP_ADDR_*
 * @ip: the address, in network order
 *
 * Context: rcu_read_lock() held.
 * Return: false if the directory does not give us the address there.
 */
bool vmloop_route_is_ours(const u8 *local_mac, u8 family, const void *ip)
{
	return ours(local_mac, family, ip);
}
EXPORT_SYMBOL_GPL(vmloop_route_is_ours);

/**
 * vmloop_route_is_known() - whether peers take packets from an address of ours
 * @local_mac: the interface of ours
 * @family: VMLOOP_ADDR_*
 * @ip: the address, in network order
 *
 * Context: rcu_read_lock() held.
 * Return: false if they would hold it for forged, or may not know it yet.
 */
bool vmloop_route_is_known(const u8 *local_mac, u8 family, const void *ip)
{
	const struct vmloop_route *route = ours(local_mac, family, ip);

	return route && has_settled(route);
}
EXPORT_SYMBOL_GPL(vmloop_route_is_known);

/* When an address was first named, as far as its interface was known. */
static u64 since(const struct vmloop_interface *old,
		 const struct vmloop_msg_address *ip)
{
	unsigned int i;

	for (i = 0; old && i < old->ip_count; i++)
		if (old->route[i].interface && old->ip[i].family == ip->family &&
		    !memcmp(old->ip[i].ip, ip->ip, ip_size(ip->family)))
			return old->route[i].since;
	return get_jiffies_64();
}

/**
 * vmloop_routes_add() - let packets find an interface by its addresses
 * @interface: with all of its addresses
 * @old: what it replaces, or NULL
 *
 * Context: core mutex held.
 */
void vmloop_routes_add(struct vmloop_interface *interface,
		       const struct vmloop_interface *old)
{
	struct vmloop_route *route;
	unsigned int i;

	lockdep_assert_held(&vmloop_mutex);
	if (!(interface->flags & VMLOOP_PEER_ROUTED))
		return;
	for (i = 0; i < interface->ip_count; i++) {
		/* Of a family that we do not know: for newer ones than us. */
		if (!ip_size(interface->ip[i].family))
			continue;
		route = &interface->route[i];
		route->interface = interface;
		route->ip = &interface->ip[i];
		route->since = since(old, route->ip);
		hlist_add_head_rcu(&route->node,
				   bucket(interface->local_mac,
					  route->ip->family, route->ip->ip));
	}
}

/**
 * vmloop_routes_remove() - no packet finds an interface any more
 * @interface: stays until all readers are gone
 *
 * Context: core mutex held.
 */
void vmloop_routes_remove(struct vmloop_interface *interface)
{
	unsigned int i;

	lockdep_assert_held(&vmloop_mutex);
	for (i = 0; i < interface->ip_count; i++)
		if (interface->route[i].interface)
			hlist_del_rcu(&interface->route[i].node);
}
