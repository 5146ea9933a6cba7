// SPDX-License-Identifier: GPL-2.0
/*
 * rx.c - a record becomes an skb that came in by one of our interfaces.
 *
 * Everything in the record is hostile: it is copied first, and only the copy
 * is looked at. What cannot be is dropped and counted.
 *
 * Context: the lane's NAPI; the lane's end, bottom halves off.
 */
#include <linux/if_vlan.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/virtio_net.h>

#include "net.h"
#include "compat.h"

/*
 * Frames up to this size are copied whole into an skb's linear part: those of
 * an ordinary MTU, of which a socket's buffer would hold only a few if each
 * were charged a block of pages.
 */
#define SMALL_FRAME	1600

/* Bytes of a larger frame that go there: all headers that are parsed. */
#define LINEAR_PART	192

/*
 * The rest of a frame up to this size goes into pieces of pages that it shares
 * with others: a block for itself would charge a socket many times its size.
 */
#define MEDIUM_FRAME	(16U << 10)

/* Room is given back in parts of the ring, and when it is empty. */
#define PUBLISH_PARTS	16

/* Pages of a large frame come in blocks of this order. */
#define NET_BLOCK	(PAGE_SIZE << NET_PAGES_ORDER)

/* Copies @size bytes, a page at most, into a piece of a page. */
static bool copy_to_piece(struct sk_buff *skb, const u8 *from,
			  unsigned int size)
{
	unsigned int truesize = SKB_DATA_ALIGN(size);
	struct page *page;
	void *piece;

	piece = napi_alloc_frag(truesize);
	if (!piece)
		return false;
	memcpy(piece, from, size);
	page = virt_to_head_page(piece);
	skb_add_rx_frag(skb, skb_shinfo(skb)->nr_frags, page,
			piece - page_address(page), size, truesize);
	return true;
}

static bool copy_to_block(struct net_lane *net, struct sk_buff *skb,
			  const u8 *from, unsigned int size)
{
	struct page *page = page_pool_dev_alloc_pages(net->pages);

	if (!page)
		return false;
	memcpy(page_address(page), from, size);
	skb_add_rx_frag(skb, skb_shinfo(skb)->nr_frags, page, 0, size,
			NET_BLOCK);
	return true;
}

/*
 * Copies @size bytes at @from behind the linear part of @skb: into blocks if
 * they are many, as long as there are any. Memory that is split up has pages
 * for longer.
 */
static bool copy_to_pages(struct net_lane *net, struct sk_buff *skb,
			  const u8 *from, unsigned int size)
{
	bool blocks = size > MEDIUM_FRAME;
	unsigned int part;

	if (blocks)
		skb_mark_for_recycle(skb);
	while (size) {
		part = min_t(unsigned int, size, NET_BLOCK);
		blocks = blocks && copy_to_block(net, skb, from, part);
		if (!blocks) {
			part = min_t(unsigned int, size, PAGE_SIZE);
			if (!copy_to_piece(skb, from, part))
				return false;
		}
		from += part;
		size -= part;
	}
	return true;
}

static struct sk_buff *copy(struct net_lane *net, const u8 *from,
			    unsigned int size)
{
	unsigned int linear = size <= SMALL_FRAME ? size : LINEAR_PART;
	struct sk_buff *skb;

	BUILD_BUG_ON(DIV_ROUND_UP(VMLOOP_FRAME_MAX - LINEAR_PART, PAGE_SIZE) >
		     MAX_SKB_FRAGS);

	skb = napi_alloc_skb(&net->napi, linear);
	if (!skb)
		return NULL;
	memcpy(__skb_put(skb, linear), from, linear);
	if (size == linear)
		return skb;

	if (!copy_to_pages(net, skb, from + linear, size - linear)) {
		kfree_skb(skb);
		return NULL;
	}
	return skb;
}

/*
 * Segmentation and checksum, as the sender said. Only what our own tx.c says
 * is believed: segmented frames always come with NEEDS_CSUM, and the checksum
 * lies behind an IP header.
 */
static bool apply_offloads(struct sk_buff *skb,
			   const struct vmloop_shm_frame *frame, u64 features)
{
	struct virtio_net_hdr hdr = {
		.gso_type = frame->gso,
		.hdr_len = __cpu_to_virtio16(true, frame->hdr_len),
		.gso_size = __cpu_to_virtio16(true, frame->gso_size),
		.csum_start = __cpu_to_virtio16(true, frame->csum_start),
		.csum_offset = __cpu_to_virtio16(true, frame->csum_offset),
	};
	unsigned int ip_min = sizeof(struct iphdr);

	BUILD_BUG_ON(VMLOOP_GSO_TCPV4 != VIRTIO_NET_HDR_GSO_TCPV4);
	BUILD_BUG_ON(VMLOOP_GSO_TCPV6 != VIRTIO_NET_HDR_GSO_TCPV6);
	BUILD_BUG_ON(VMLOOP_GSO_ECN != VIRTIO_NET_HDR_GSO_ECN);

	if (frame->flags & VMLOOP_FRAME_NEEDS_CSUM)
		hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;

	switch (frame->gso & ~VMLOOP_GSO_ECN) {
	case VMLOOP_GSO_NONE:
		if (frame->gso)
			return false;
		break;
	case VMLOOP_GSO_TCPV6:
		ip_min = sizeof(struct ipv6hdr);
		fallthrough;
	case VMLOOP_GSO_TCPV4:
		if (!hdr.flags)
			return false;
		break;
	case VMLOOP_GSO_UDP_L4:
		if (!hdr.flags || !(features & VMLOOP_F_GSO_UDP))
			return false;
		break;
	default:
		return false;
	}
	if (hdr.flags && frame->csum_start < ETH_HLEN + ip_min &&
	    frame->gso != VMLOOP_GSO_NONE)
		return false;
	return !virtio_net_hdr_to_skb(skb, &hdr, true);
}

/* Returns the counter of the reason for which the frame is dropped, or -1. */
static int deliver(struct net_lane *net, const u8 *payload, u32 size)
{
	struct vmloop_lane *lane = net->lane;
	struct vmloop_interface *interface;
	struct vmloop_shm_frame frame;
	struct net_device *dev;
	struct sk_buff *skb;
	struct net_nic *nic;
	struct ethhdr eth;
	int reason = -1;
	bool tagged;

	if (size < sizeof(frame) + ETH_HLEN ||
	    size > sizeof(frame) + VMLOOP_FRAME_MAX)
		return VMLOOP_DROP_MALFORMED;

	/* Private copies: the peer may write to the ring at any time. */
	memcpy(&frame, payload, sizeof(frame));
	payload += sizeof(frame);
	size -= sizeof(frame);
	memcpy(&eth, payload, sizeof(eth));
	barrier();

	/* Whose frame it is, by the directory, not by what it says. */
	interface = vmloop_interface_find(eth.h_dest, eth.h_source);
	if (!interface || interface->peer != lane->peer) {
		nic = net_nic_find(eth.h_dest);
		return nic ? VMLOOP_DROP_SOURCE : VMLOOP_DROP_DESTINATION;
	}
	nic = net_nic_find(eth.h_dest);
	dev = nic ? net_nic_input(nic) : NULL;
	if (unlikely(!dev)) {
		/* Nobody tells of some XDP programs: the peer learns it now. */
		net_receivers_doubt();
		return VMLOOP_DROP_INTERFACE;
	}
	tagged = frame.flags & VMLOOP_FRAME_VLAN;
	if ((tagged || eth_type_vlan(eth.h_proto)) &&
	    !(interface->flags & VMLOOP_PEER_TAGGED))
		return VMLOOP_DROP_VLAN;
	if (tagged && !eth_type_vlan(htons(frame.vlan_proto)))
		return VMLOOP_DROP_MALFORMED;

	skb = copy(net, payload, size);
	if (!skb)
		return VMLOOP_DROP_MEMORY;
	if (interface->flags & VMLOOP_PEER_ROUTED) {
		reason = VMLOOP_DROP_SOURCE;
		if (vmloop_lane_features(lane) & VMLOOP_F_ROUTED)
			reason = net_hop_check(interface, skb, eth.h_proto);
		/* It comes from where the host would have sent it. */
		ether_addr_copy(eth.h_source, interface->gateway);
	}
	if (unlikely(reason >= 0)) {
		kfree_skb(skb);
		return reason;
	}
	/* The header that was checked, not the one that is there by now. */
	memcpy(skb->data, &eth, sizeof(eth));

	skb->dev = dev;
	skb_reset_mac_header(skb);
	if (!apply_offloads(skb, &frame, vmloop_lane_features(lane))) {
		kfree_skb(skb);
		return VMLOOP_DROP_MALFORMED;
	}
	/* A checksum that is still to be computed is not valid yet. */
	if ((frame.flags & VMLOOP_FRAME_DATA_VALID) &&
	    skb->ip_summed == CHECKSUM_NONE)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	skb->protocol = eth_type_trans(skb, dev);
	if (tagged)
		__vlan_hwaccel_put_tag(skb, htons(frame.vlan_proto),
				       frame.vlan_tci);

	net_nic_count_rx(nic, size);
	vmloop_count_frame(lane->peer, VMLOOP_RX_FRAMES, size);
	if (unlikely(net->closing))
		netif_receive_skb(skb);
	else
		napi_gro_receive(&net->napi, skb);
	return -1;
}

/**
 * net_rx() - hand up what is in the ring
 * @net: the lane
 * @budget: records to look at, at most
 *
 * Return: records looked at.
 */
int net_rx(struct net_lane *net, int budget)
{
	struct vmloop_ring_rx *rx = &net->lane->rx;
	struct vmloop_shm_record record;
	const void *payload;
	int work, reason;

	rcu_read_lock();
	for (work = 0; work < budget; work++) {
		if (vmloop_ring_peek(rx, &record, &payload) <= 0)
			break;
		/* A kind of record that we do not know is the peer's fault. */
		reason = VMLOOP_DROP_MALFORMED;
		if (record.type == VMLOOP_RECORD_FRAME)
			reason = deliver(net, payload, record.size);
		else if (record.type == VMLOOP_RECORD_RECEIVERS)
			reason = net_receivers_said(net, payload, record.size);
		if (unlikely(reason >= 0))
			vmloop_count(net->lane->peer, reason, 1);
		vmloop_ring_release(rx);
		if (rx->tail - rx->published >= rx->size / PUBLISH_PARTS &&
		    vmloop_ring_consume_publish(rx))
			vmloop_lane_ring(net->lane);
	}
	if (vmloop_ring_consume_publish(rx))
		vmloop_lane_ring(net->lane);
	rcu_read_unlock();
	if (rx->broken)
		vmloop_lane_broken(net->lane, rx->broken);
	return work;
}
