// SPDX-License-Identifier: GPL-2.0
/*
 * offload.c - what is still to be done with a frame that leaves: segmentation
 * and checksums.
 *
 * A record says it to the peer, if it can. Else it is done here, in software, as
 * the stack would do it before a driver that cannot: so that all frames of a
 * flow go the same way, whatever they look like. What cannot be done here goes
 * to the standard network.
 *
 * Context: rcu_read_lock() held, bottom halves off.
 */
#include <linux/if_vlan.h>
#include <linux/virtio_net.h>
#include <net/gso.h>
#include <net/sock.h>
#include <net/xfrm.h>

#include "net.h"
#include "compat.h"

/* Segmentation that the record's metadata can say. */
#define GSO_KNOWN	(SKB_GSO_TCPV4 | SKB_GSO_TCPV6 | SKB_GSO_TCP_ECN | \
			 SKB_GSO_TCP_FIXEDID | SKB_GSO_DODGY | \
			 COMPAT_GSO_UDP_L4)

/* What segments may leave to the peer: any 16-bit sum. */
#define SEGMENT_FEATURES	(NETIF_F_SG | NETIF_F_HW_CSUM)

/**
 * net_offload_max() - the largest frame that a lane can carry
 * @lane: the lane
 *
 * Return: bytes.
 */
unsigned int net_offload_max(const struct vmloop_lane *lane)
{
	unsigned int record = vmloop_ring_max_record(lane->tx.size);

	return min_t(unsigned int, VMLOOP_FRAME_MAX,
		     record - sizeof(struct vmloop_shm_frame));
}

/**
 * net_offload_why_not() - whether a frame must not be copied as it is
 * @skb: the frame
 *
 * With software offload (esp4_offload) IPsec encrypts a packet only when it
 * leaves for the driver, behind our hook. The same holds for TLS and PSP done by
 * a device. Until then its bytes are the plaintext.
 *
 * Return: the counter of the reason why it must take the standard network, or
 * NET_NO_REASON.
 */
int net_offload_why_not(struct sk_buff *skb)
{
	if (xfrm_offload(skb) || skb_is_decrypted(skb))
		return VMLOOP_STANDARD_ENCRYPTED;
	if (!skb_frags_readable(skb))
		return VMLOOP_STANDARD_UNREADABLE;
	return NET_NO_REASON;
}

static bool can_be_said(const struct vmloop_lane *lane,
			const struct sk_buff *skb)
{
	unsigned int gso = skb_shinfo(skb)->gso_type;

	if (!skb_is_gso(skb))
		return true;
	if ((gso & ~GSO_KNOWN) || skb->encapsulation ||
	    skb->ip_summed != CHECKSUM_PARTIAL)
		return false;
	if ((gso & COMPAT_GSO_UDP_L4) &&
	    !(vmloop_lane_features(lane) & VMLOOP_F_GSO_UDP))
		return false;
	return skb->len <= net_offload_max(lane);
}

/*
 * Replaces a frame by its segments, in @frames. Returns false if that cannot be
 * done, and the frame is as it was. A list of fragments that could not be taken
 * apart is lost, and @frames stays empty: the stack has freed the list by then.
 */
static bool segment(struct sk_buff *skb, struct sk_buff_head *frames)
{
	bool is_list = skb_shinfo(skb)->gso_type & SKB_GSO_FRAGLIST;
	struct sk_buff *segments, *next;

	/* The stack would warn: a frame with segments lacks its checksum. */
	if (skb->ip_summed != CHECKSUM_PARTIAL &&
	    skb->ip_summed != CHECKSUM_UNNECESSARY)
		return false;
	segments = skb_gso_segment(skb, SEGMENT_FEATURES);
	if (IS_ERR(segments) && is_list) {
		kfree_skb(skb);
		return true;
	}
	if (IS_ERR_OR_NULL(segments))
		return false;
	skb_list_walk_safe(segments, segments, next) {
		skb_mark_not_on_list(segments);
		__skb_queue_tail(frames, segments);
	}
	consume_skb(skb);
	return true;
}

/**
 * net_offload_prepare() - make a frame one or several that records can carry
 * @lane: the lane that they will go by
 * @skb: the frame; belongs to @frames afterwards, whatever is returned
 * @frames: empty; gets the frame, or its segments in order; stays empty if there
 *	was no memory and the frame is lost
 *
 * Return: NET_NO_REASON, or the counter of the reason why all of @frames must
 * take the standard network.
 */
int net_offload_prepare(const struct vmloop_lane *lane, struct sk_buff *skb,
			struct sk_buff_head *frames)
{
	unsigned int max = net_offload_max(lane);

	if (can_be_said(lane, skb)) {
		__skb_queue_tail(frames, skb);
	} else if (!segment(skb, frames)) {
		__skb_queue_tail(frames, skb);
		return VMLOOP_STANDARD_SEGMENTATION;
	}
	skb_queue_walk(frames, skb) {
		if (skb->len > max)
			return VMLOOP_STANDARD_TOO_LARGE;
		/* A CRC32c, as SCTP's, is none that a record can say. */
		if (skb->ip_summed == CHECKSUM_PARTIAL &&
		    skb_csum_hwoffload_help(skb, SEGMENT_FEATURES))
			return VMLOOP_STANDARD_CHECKSUM;
	}
	return NET_NO_REASON;
}

/*
 * Whether our own stack has just computed the datagram's checksum, so that to
 * compute it again on the other side of the memory would only cost time. Raw
 * sockets and forwarded packets may carry a wrong one that must be found.
 */
static bool checksum_is_fresh(const struct sk_buff *skb)
{
	const struct sock *sk = skb->sk;

	return net_frame_cb(skb)->is_large && sk && sk_fullsock(sk) &&
	       sk->sk_type == SOCK_DGRAM && sk->sk_protocol == IPPROTO_UDP;
}

/**
 * net_offload_describe() - say in a record what is to be done with its frame
 * @skb: the frame, prepared by net_offload_prepare(), its way noted
 * @frame: filled in
 */
void net_offload_describe(const struct sk_buff *skb,
			  struct vmloop_shm_frame *frame)
{
	*frame = (struct vmloop_shm_frame){};

	if (skb_is_gso(skb)) {
		const struct skb_shared_info *info = skb_shinfo(skb);

		frame->hdr_len = min_t(unsigned int, skb_headlen(skb), U16_MAX);
		frame->gso_size = info->gso_size;
		if (info->gso_type & SKB_GSO_TCPV4)
			frame->gso = VMLOOP_GSO_TCPV4;
		else if (info->gso_type & SKB_GSO_TCPV6)
			frame->gso = VMLOOP_GSO_TCPV6;
		else
			frame->gso = VMLOOP_GSO_UDP_L4;
		if (info->gso_type & SKB_GSO_TCP_ECN)
			frame->gso |= VMLOOP_GSO_ECN;
	}
	if (skb->ip_summed == CHECKSUM_PARTIAL) {
		frame->flags |= VMLOOP_FRAME_NEEDS_CSUM;
		frame->csum_start = skb_checksum_start_offset(skb);
		frame->csum_offset = skb->csum_offset;
	} else if (skb->ip_summed == CHECKSUM_UNNECESSARY ||
		   checksum_is_fresh(skb)) {
		frame->flags |= VMLOOP_FRAME_DATA_VALID;
	}
	if (skb_vlan_tag_present(skb)) {
		frame->flags |= VMLOOP_FRAME_VLAN;
		frame->vlan_proto = ntohs(skb->vlan_proto);
		frame->vlan_tci = skb_vlan_tag_get(skb);
	}
}
