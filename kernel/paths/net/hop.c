// SPDX-License-Identifier: GPL-2.0
/*
 * hop.c - the hop over the host that a packet does not make, when its receiver
 * is in another subnet and the host routes between the two.
 *
 * Both ends see what they would see if it made that hop: the sender a frame to
 * the host's address, the receiver one from the host's address there, with one
 * hop less to live. In the ring it stands between the two interfaces, as every
 * other frame, so that the receiver finds in the directory whose it is.
 *
 * What a router would not just pass on goes to that router: packets at the end
 * of their hops, with options, or too large for the receiver's network.
 *
 * Owns nothing. Context: rcu_read_lock() held.
 */
#include <linux/if_vlan.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <net/gso.h>
#include <net/ip.h>
#include <net/ipv6.h>

#include "net.h"
#include "compat.h"

/**
 * net_hop_find_ipv4() - who receives an IPv4 packet that the host would route
 * @local_mac: the interface that it leaves by
 * @gateway: hardware address of its next hop
 * @ip: its header
 *
 * Return: the peer's interface, or NULL if the packet must go to its next hop.
 */
struct vmloop_interface *net_hop_find_ipv4(const u8 *local_mac,
					   const u8 *gateway,
					   const struct iphdr *ip)
{
	struct vmloop_interface *interface;

	/* Options are the router's business, and so is the last hop. */
	if (ip->version != 4 || ip->ihl != sizeof(*ip) / 4 || ip->ttl <= 1)
		return NULL;
	interface = vmloop_route_find(local_mac, gateway, VMLOOP_ADDR_IPV4,
				      &ip->daddr);
	if (!interface || !vmloop_route_is_known(local_mac, VMLOOP_ADDR_IPV4,
						 &ip->saddr))
		return NULL;
	return interface;
}

static struct vmloop_interface *find_ipv6(const u8 *local_mac,
					  const u8 *gateway,
					  const struct ipv6hdr *ip)
{
	struct vmloop_interface *interface;

	if (ip->version != 6 || ip->nexthdr == NEXTHDR_HOP ||
	    ip->hop_limit <= 1)
		return NULL;
	interface = vmloop_route_find(local_mac, gateway, VMLOOP_ADDR_IPV6,
				      &ip->daddr);
	if (!interface || !vmloop_route_is_known(local_mac, VMLOOP_ADDR_IPV6,
						 &ip->saddr))
		return NULL;
	return interface;
}

/*
 * Whether the receiver's network carries the packet: if not, the router
 * fragments it or says so. What large.c lets through, it has judged.
 */
static bool fits(const struct sk_buff *skb, unsigned int mtu, bool is_large)
{
	if (!mtu || is_large)
		return true;
	if (skb_is_gso(skb))
		return skb_gso_validate_network_len(skb, mtu);
	return skb->len - ETH_HLEN <= mtu;
}

/**
 * net_hop_find() - who receives a frame whose next hop is the host
 * @skb: at the egress hook, its Ethernet header at the front
 * @is_large: it is larger than its interface can send, and still whole
 *
 * Return: the peer's interface, or NULL if the frame must go to its next hop.
 */
struct vmloop_interface *net_hop_find(const struct sk_buff *skb, bool is_large)
{
	const struct ethhdr *eth = (const struct ethhdr *)skb->data;
	struct vmloop_interface *interface = NULL;
	struct ipv6hdr copy6;
	struct iphdr copy4;
	const void *ip;

	if (skb_vlan_tag_present(skb))
		return NULL;
	if (eth->h_proto == htons(ETH_P_IP)) {
		ip = skb_header_pointer(skb, ETH_HLEN, sizeof(copy4), &copy4);
		if (ip)
			interface = net_hop_find_ipv4(eth->h_source,
						      eth->h_dest, ip);
	} else if (eth->h_proto == htons(ETH_P_IPV6)) {
		ip = skb_header_pointer(skb, ETH_HLEN, sizeof(copy6), &copy6);
		if (ip)
			interface = find_ipv6(eth->h_source, eth->h_dest, ip);
	}
	if (!interface || !fits(skb, interface->mtu, is_large))
		return NULL;
	return interface;
}

/**
 * net_hop_make() - have a frame make its hop, in the ring only
 * @skb: the frame, its way noted
 * @frame: its copy in the ring; written, not read
 *
 * Return: 0 or a negative errno.
 */
int net_hop_make(const struct sk_buff *skb, u8 *frame)
{
	const struct ethhdr *eth = (const struct ethhdr *)skb->data;
	const struct net_frame_cb *cb = net_frame_cb(skb);
	struct ipv6hdr ip6;
	struct iphdr ip4;
	int err;

	if (!cb->is_routed)
		return 0;
	memcpy(frame, cb->mac, ETH_ALEN);
	if (eth->h_proto == htons(ETH_P_IP)) {
		err = skb_copy_bits(skb, ETH_HLEN, &ip4, sizeof(ip4));
		if (err)
			return err;
		ip_decrease_ttl(&ip4);
		memcpy(frame + ETH_HLEN, &ip4, sizeof(ip4));
		return 0;
	}
	err = skb_copy_bits(skb, ETH_HLEN, &ip6, sizeof(ip6));
	if (err)
		return err;
	ip6.hop_limit--;
	memcpy(frame + ETH_HLEN, &ip6, sizeof(ip6));
	return 0;
}

static bool is_given(const struct vmloop_interface *interface, u8 family,
		     const void *ip, size_t size)
{
	unsigned int i;

	for (i = 0; i < interface->ip_count; i++)
		if (interface->ip[i].family == family &&
		    !memcmp(interface->ip[i].ip, ip, size))
			return true;
	return false;
}

static int check(const struct vmloop_interface *interface, u8 family,
		 const void *source, const void *destination, size_t size)
{
	if (!is_given(interface, family, source, size))
		return VMLOOP_DROP_SOURCE;
	if (!vmloop_route_is_ours(interface->local_mac, family, destination))
		return VMLOOP_DROP_DESTINATION;
	return -1;
}

/**
 * net_hop_check() - whether a peer may send a packet by way of the host
 * @interface: the peer's, with VMLOOP_PEER_ROUTED
 * @skb: a private copy of the frame, from its Ethernet header on
 * @protocol: what the frame carries
 *
 * Return: the counter of the reason for which it is dropped, or -1.
 */
int net_hop_check(const struct vmloop_interface *interface,
		  const struct sk_buff *skb, __be16 protocol)
{
	const void *at = skb->data + ETH_HLEN;
	unsigned int size = skb_headlen(skb) - ETH_HLEN;
	const struct ipv6hdr *ip6 = at;
	const struct iphdr *ip4 = at;

	if (protocol == htons(ETH_P_IP) && size >= sizeof(*ip4) &&
	    ip4->version == 4)
		return check(interface, VMLOOP_ADDR_IPV4, &ip4->saddr,
			     &ip4->daddr, sizeof(ip4->saddr));
	if (protocol == htons(ETH_P_IPV6) && size >= sizeof(*ip6) &&
	    ip6->version == 6)
		return check(interface, VMLOOP_ADDR_IPV6, &ip6->saddr,
			     &ip6->daddr, sizeof(ip6->saddr));
	return VMLOOP_DROP_MALFORMED;
}
