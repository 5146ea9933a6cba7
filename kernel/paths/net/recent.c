// SPDX-License-Identifier: GPL-2.0
/*
 * recent.c - a peer that is new, and that was talked to a moment ago over the
 * standard network, gets its channel before the next frame for it.
 *
 * Ordinarily the first frame asks for one. But when a guest has moved to this
 * host, or we have moved to its, its connections have just waited for longer
 * than they like, and try again after seconds. The neighbour tables know with
 * whom they are.
 *
 * Context: process context, from the core's workqueue; the tables are looked at
 * under RCU, bottom halves off.
 */
#include <net/arp.h>
#include <net/neighbour.h>

#include "net.h"
#include "compat.h"

/* A neighbour that was used within so long will be used again. */
#define RECENT_TIME	(30 * HZ)

/* While a neighbour is known to answer, using it leaves no trace but that. */
static bool is_recent(const struct neighbour *neighbour)
{
	unsigned long since = jiffies - RECENT_TIME;

	return (READ_ONCE(neighbour->nud_state) & NUD_VALID) &&
	       (time_after(READ_ONCE(neighbour->used), since) ||
		time_after(READ_ONCE(neighbour->confirmed), since));
}

static void look(struct neighbour *neighbour, void *unused)
{
	struct net_device *dev = neighbour->dev;
	struct vmloop_interface *interface;
	u8 mac[ETH_ALEN + 2] __aligned(2);
	struct net_nic *nic;

	if (!is_recent(neighbour))
		return;
	nic = net_nic_at(dev);
	if (!nic || !net_nic_is_usable(nic))
		return;
	neigh_ha_snapshot(mac, neighbour, dev);
	interface = vmloop_interface_find(dev->dev_addr, mac);
	/* Behind the host's routing nobody is a neighbour. */
	if (interface && !(interface->flags & VMLOOP_PEER_ROUTED))
		vmloop_peer_want_first(interface->peer);
}

/**
 * net_recent_want() - ask for channels to new peers that were talked to lately
 *
 * Context: process context.
 */
void net_recent_want(void)
{
	struct neigh_table *nd_table = compat_nd_table();

	rcu_read_lock();
	neigh_for_each(&arp_tbl, look, NULL);
	if (nd_table)
		neigh_for_each(nd_table, look, NULL);
	rcu_read_unlock();
}
