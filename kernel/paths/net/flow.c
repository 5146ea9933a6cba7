// SPDX-License-Identifier: GPL-2.0
/*
 * flow.c - which frames must stay in order: a hash that they share, by which they
 * share a lane.
 *
 * - What a local socket of datagrams sends is one flow, whatever becomes of it on its
 *   way: whole, segmented later, or in fragments, of which only the first has ports.
 * - Segments of TCP are one flow by addresses and ports. TCP is not fragmented where
 *   it ends; fragments that somebody made on the way go by addresses.
 * - All else is one flow by its addresses: what tunnels and ESP number, they number in
 *   the order in which it leaves.
 *
 * Owns the hash's seed. Context: any.
 */
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/jhash.h>
#include <linux/net.h>
#include <linux/random.h>
#include <net/ip.h>
#include <net/sock.h>

#include "net.h"

static u32 seed(void)
{
	static u32 random;

	net_get_random_once(&random, sizeof(random));
	return random;
}

static bool is_of_socket(const struct sk_buff *skb)
{
	const struct sock *sk = skb->sk;

	/* In a tunnel it is the socket of what is inside. */
	return sk && !skb->encapsulation && sk_fullsock(sk) &&
	       (sk->sk_type == SOCK_DGRAM || sk->sk_type == SOCK_RAW);
}

/* Both ports of TCP, or 0. */
static u32 ports(const struct sk_buff *skb, unsigned int offset)
{
	const u32 *both;
	u32 copy;

	both = skb_header_pointer(skb, offset, sizeof(copy), &copy);
	return both ? *both : 0;
}

static u32 flow_ipv4(const struct sk_buff *skb, unsigned int offset)
{
	const struct iphdr *ip;
	struct iphdr copy;
	u32 both = 0;

	ip = skb_header_pointer(skb, offset, sizeof(copy), &copy);
	if (!ip)
		return 0;
	if (ip->protocol == IPPROTO_TCP && !ip_is_fragment(ip))
		both = ports(skb, offset + ip->ihl * 4);
	return jhash_3words((__force u32)ip->saddr, (__force u32)ip->daddr,
			    both, seed());
}

static u32 flow_ipv6(const struct sk_buff *skb, unsigned int offset)
{
	const struct ipv6hdr *ip;
	struct ipv6hdr copy;
	u32 both = 0;

	ip = skb_header_pointer(skb, offset, sizeof(copy), &copy);
	if (!ip)
		return 0;
	if (ip->nexthdr == IPPROTO_TCP)
		both = ports(skb, offset + sizeof(*ip));
	/* As they are: only that they are the same counts. */
	return jhash_3words(jhash2((__force const u32 *)&ip->saddr, 4, seed()),
			    jhash2((__force const u32 *)&ip->daddr, 4, seed()),
			    both, seed());
}

/**
 * net_flow() - a hash of what a frame must stay in order with
 * @skb: the frame
 * @offset: where in it the packet begins
 * @protocol: what the packet is, ETH_P_*
 *
 * Return: the same for all frames of a flow, for as long as the module is loaded.
 */
u32 net_flow(const struct sk_buff *skb, unsigned int offset, __be16 protocol)
{
	unsigned long sk = (unsigned long)skb->sk;

	if (is_of_socket(skb))
		return jhash_2words(lower_32_bits(sk), upper_32_bits(sk),
				    seed());
	if (protocol == htons(ETH_P_IP))
		return flow_ipv4(skb, offset);
	if (protocol == htons(ETH_P_IPV6))
		return flow_ipv6(skb, offset);
	return 0;
}
