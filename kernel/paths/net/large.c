// SPDX-License-Identifier: GPL-2.0
/*
 * large.c - lets IPv4 datagrams larger than the MTU leave whole when a channel
 * carries them.
 *
 * At POST_ROUTING a datagram is still whole. If its next hop is a peer with a
 * channel that is up, or the host with such a peer behind it, its route is
 * exchanged for a copy with a larger MTU, so that the stack does not fragment
 * it: it still passes all later hooks and connection tracking, gets its Ethernet
 * header, and meets us at the egress. There, if the channel is gone by then, it
 * is fragmented after all.
 *
 * Owns the hook. Context: softirq or process, rcu_read_lock() held.
 */
#include <linux/if_vlan.h>
#include <linux/ip.h>
#include <linux/netfilter_ipv4.h>
#include <linux/netfilter_netdev.h>
#include <net/arp.h>
#include <net/ip.h>
#include <net/net_namespace.h>
#include <net/netns/generic.h>
#include <net/route.h>

#include "net.h"

/* Life of a route's copy: as long as the datagram's way down the stack. */
#define ROUTE_TIME	HZ

/**
 * net_large_is() - whether a frame is a datagram that we let through whole
 * @skb: at the egress hook
 *
 * Return: true if it is larger than its interface can send, and can still be
 * fragmented.
 */
bool net_large_is(const struct sk_buff *skb)
{
	const struct rtable *rt;

	if (likely(skb->len <= skb->dev->mtu + ETH_HLEN) || skb_is_gso(skb) ||
	    skb->protocol != htons(ETH_P_IP) || skb_vlan_tag_present(skb))
		return false;
	rt = skb_rtable(skb);
	return rt && rt->rt_gw_family != AF_INET6;
}

/* The peer's hardware address, if the neighbour table knows the next hop. */
static bool next_hop(const struct sk_buff *skb, struct net_device *dev,
		     const struct rtable *rt, u8 *mac)
{
	struct neighbour *neighbour;
	u32 hop;

	if (rt->rt_gw_family == AF_INET6)
		return false;
	hop = (__force u32)rt_nexthop(rt, ip_hdr(skb)->daddr);
	neighbour = __ipv4_neigh_lookup_noref(dev, hop);
	if (!neighbour || !(READ_ONCE(neighbour->nud_state) & NUD_VALID))
		return false;
	neigh_ha_snapshot(mac, neighbour, dev);
	return true;
}

/* The peer's interface that the next hop is, or that lies behind it. */
static struct vmloop_interface *receiver(const struct sk_buff *skb,
					 const struct net_device *dev,
					 const u8 *mac)
{
	struct vmloop_interface *interface;

	interface = vmloop_interface_find(dev->dev_addr, mac);
	if (!interface)
		return net_hop_find_ipv4(dev->dev_addr, mac, ip_hdr(skb));
	return interface->flags & VMLOOP_PEER_ROUTED ? NULL : interface;
}

static bool channel_takes_it(struct sk_buff *skb, struct net_device *dev,
			     const struct rtable *rt)
{
	struct vmloop_interface *interface;
	u64 needed = VMLOOP_F_LARGE;
	struct vmloop_lane *lane;
	u8 mac[ETH_ALEN + 2] __aligned(2);
	struct net_nic *nic;
	bool is_good;

	nic = net_nic_at(dev);
	if (!nic || !net_nic_is_usable(nic) ||
	    net_nic_why_not(nic, skb) != NET_NO_REASON ||
	    !next_hop(skb, dev, rt, mac))
		return false;
	interface = receiver(skb, dev, mac);
	if (!interface)
		return false;
	if (interface->flags & VMLOOP_PEER_ROUTED)
		needed |= VMLOOP_F_ROUTED;
	lane = vmloop_peer_lane(interface->peer,
				net_flow(skb, 0, htons(ETH_P_IP)));
	if (!lane || (vmloop_lane_features(lane) & needed) != needed ||
	    skb->len + ETH_HLEN > net_offload_max(lane))
		return false;
	spin_lock_bh(&lane->tx_lock);
	is_good = net_receiver_is_good(lane->priv, interface);
	spin_unlock_bh(&lane->tx_lock);
	return is_good;
}

/* The route again, for one datagram. What the kernel has for it, not all kernels export. */
static struct rtable *clone(struct net_device *dev, const struct rtable *rt)
{
	struct rtable *copy = rt_dst_alloc(dev, rt->rt_flags, rt->rt_type,
					   rt->dst.flags & DST_NOXFRM);

	if (!copy)
		return NULL;
	copy->dst.flags |= rt->dst.flags & DST_NOPOLICY;
	copy->dst.input = READ_ONCE(rt->dst.input);
	copy->dst.output = READ_ONCE(rt->dst.output);
	copy->dst.error = rt->dst.error;
	copy->dst.lastuse = jiffies;
	copy->dst.lwtstate = lwtstate_get(rt->dst.lwtstate);
	copy->rt_is_input = rt->rt_is_input;
	copy->rt_uses_gateway = rt->rt_uses_gateway;
	copy->rt_iif = rt->rt_iif;
	copy->rt_gw_family = rt->rt_gw_family;
	if (rt->rt_gw_family == AF_INET)
		copy->rt_gw4 = rt->rt_gw4;
	else if (rt->rt_gw_family == AF_INET6)
		copy->rt_gw6 = rt->rt_gw6;
	return copy;
}

static unsigned int post_routing(void *priv, struct sk_buff *skb,
				 const struct nf_hook_state *state)
{
	struct net_device *dev = state->out;
	struct rtable *rt = skb_rtable(skb);
	struct rtable *large;

	if (likely(skb->len <= dev->mtu) || skb_is_gso(skb) || !rt ||
	    dst_xfrm(&rt->dst) || IPCB(skb)->frag_max_size)
		return NF_ACCEPT;
	/* Who asked to be told of fragmentation is told. */
	if ((ip_hdr(skb)->frag_off & htons(IP_DF)) && !skb->ignore_df)
		return NF_ACCEPT;
	if (!channel_takes_it(skb, dev, rt))
		return NF_ACCEPT;

	large = clone(dev, rt);
	if (!large)
		return NF_ACCEPT;
	large->rt_pmtu = IP_MAX_MTU;
	large->dst.expires = jiffies + ROUTE_TIME;
	skb_dst_drop(skb);
	skb_dst_set(skb, &large->dst);
	return NF_ACCEPT;
}

/* A fragment gets an Ethernet header of its own and goes its way. */
static int fragment_out(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	struct rtable *rt = skb_rtable(skb);
	struct neighbour *neighbour;
	u32 hop;

	hop = (__force u32)rt_nexthop(rt, ip_hdr(skb)->daddr);
	neighbour = __ipv4_neigh_lookup_noref(skb->dev, hop);
	if (!neighbour) {
		kfree_skb(skb);
		return -EHOSTUNREACH;
	}
	/* Its datagram has passed all hooks at the egress. */
	nf_skip_egress(skb, true);
	return neigh_output(neighbour, skb, false);
}

/**
 * net_large_to_standard() - fragment a datagram after all
 * @skb: net_large_is(); its Ethernet header at the front; consumed
 *
 * Context: rcu_read_lock_bh() held.
 */
void net_large_to_standard(struct sk_buff *skb)
{
	struct rtable *rt = skb_rtable(skb);

	/* The route's copy is this datagram's alone: back to the true MTU. */
	rt->rt_pmtu = 0;
	skb_pull(skb, ETH_HLEN);
	ip_do_fragment(dev_net(skb->dev), skb->sk, skb, fragment_out);
}

static const struct nf_hook_ops hook = {
	.hook = post_routing,
	.pf = NFPROTO_IPV4,
	.hooknum = NF_INET_POST_ROUTING,
	.priority = NF_IP_PRI_LAST,
};

static int __net_init net_init(struct net *net)
{
	return nf_register_net_hook(net, &hook);
}

static void __net_exit net_exit(struct net *net)
{
	nf_unregister_net_hook(net, &hook);
}

static struct pernet_operations net_operations = {
	.init = net_init,
	.exit = net_exit,
};

int net_large_init(void)
{
	return register_pernet_subsys(&net_operations);
}

void net_large_exit(void)
{
	unregister_pernet_subsys(&net_operations);
}
