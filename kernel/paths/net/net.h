/* SPDX-License-Identifier: GPL-2.0 */
/*
 * net.h - what the files of the packet path share.
 *
 * The packet path takes frames where they leave an interface and hands them
 * up in the peer as if they had come in there by the same interface.
 *
 *   nic.c    interfaces that we stand at, and their hooks
 *   named.c  those that the administrator names
 *   counters.c  what passed us is in the interface's counters
 *   shaping.c  what an interface's root qdisc would do to a frame
 *   receivers.c  which interfaces can receive, told from side to side
 *   flow.c   which frames must stay in order, and so in one lane
 *   spread.c how many lanes a peer has
 *   tx.c     a frame leaves: into the ring, the queue, or past us
 *   offload.c  its segmentation and checksum: said to the peer, or done before
 *   held.c   a datagram stays its sender's until the peer has read it
 *   hop.c    the hop over the host that a routed packet does not make
 *   large.c  datagrams larger than the MTU are let through whole
 *   lane.c   a lane's NAPI: rings drained both ways
 *   rx.c     a record becomes an skb
 *   main.c   starts and ends
 */
#ifndef VMLOOP_NET_H
#define VMLOOP_NET_H

#include <linux/etherdevice.h>
#include <linux/netdevice.h>
#include <linux/netfilter.h>
#include <linux/skbuff.h>

#include "vmloop.h"

/* No counter: there is no reason for a frame to take the standard network. */
#define NET_NO_REASON	(-1)

struct page_pool;
struct iphdr;

/**
 * struct net_nic - an interface that we stand at
 * @dev: the interface
 * @mac: the address by which the directory knows it
 * @is_named: the administrator names it
 * @is_shared: another one has that address, too; single word
 * @shaping: what its root qdisc does; single word
 * @shaping_looked: when that was looked at, in jiffies; single word
 * @hook: our place at its egress
 * @ops: copy of the driver's operations, with our counters added
 * @driver_ops: the driver's
 * @counters: what passed us, one a CPU
 * @list: in the list of all; under RTNL, read under RCU
 */
struct net_nic {
	struct net_device *dev;
	u8 mac[ETH_ALEN] __aligned(2);
	bool is_named;
	bool is_shared;
	int shaping;
	unsigned long shaping_looked;
	struct nf_hook_ops hook;
	struct net_device_ops ops;
	const struct net_device_ops *driver_ops;
	struct net_counters __percpu *counters;
	struct list_head list;
};

/**
 * struct net_counters - frames that an interface sent and received through us
 * @tx_packets: sent
 * @tx_bytes: sent
 * @rx_packets: received
 * @rx_bytes: received
 * @sync: makes 64-bit reads whole on 32-bit machines
 */
struct net_counters {
	u64_stats_t tx_packets;
	u64_stats_t tx_bytes;
	u64_stats_t rx_packets;
	u64_stats_t rx_bytes;
	struct u64_stats_sync sync;
};

/**
 * struct net_lane - a packet lane at work
 * @lane: the core's
 * @napi_dev: dummy device that carries @napi
 * @napi: drains both directions
 * @pages: memory for large frames, recycled
 * @waiting: frames that wait for room, in order; under the lane's tx_lock
 * @waiting_bytes: their bytes; under the lane's tx_lock
 * @held: datagrams that the peer has not read yet; under the lane's tx_lock
 * @held_bytes: their truesize; under the lane's tx_lock
 * @held_rest: none is held before then, in jiffies; single word
 * @held_pressing: one of their senders needs them back; under the lane's tx_lock
 * @held_asked: the peer rings when it has read to @held_wake; under the lane's
 *	tx_lock
 * @held_wake: a position in the ring; under the lane's tx_lock
 * @ours: the interfaces of ours that the peer was told of; under the lane's tx_lock
 * @telling: it is still to be told; under the lane's tx_lock
 * @theirs: the peer's that can receive. Written by the peer: only its length
 *	is checked; under the lane's tx_lock
 * @up: consume: the lane's rx is there; set before producers find the lane
 * @down: nothing waits any more: frames go past us; under the lane's tx_lock
 * @watch: of the lane's ring; its owner is @napi
 * @closing: @napi is disabled, and the ring is read for the last time
 */
struct net_lane {
	struct vmloop_lane *lane;
	struct net_device *napi_dev;
	struct napi_struct napi;
	struct page_pool *pages;
	struct sk_buff_head waiting;
	unsigned int waiting_bytes;
	struct sk_buff_head held;
	unsigned int held_bytes;
	unsigned long held_rest;
	bool held_pressing;
	bool held_asked;
	u32 held_wake;
	struct vmloop_shm_receivers ours;
	bool telling;
	struct vmloop_shm_receivers theirs;
	bool up;
	bool down;
	struct vmloop_watch watch;
	bool closing;
};

/**
 * struct net_way - where a frame goes, and as what: tx.c decides it once
 * @interface: the peer's that it is for; NULL for none of a peer
 * @lane: by which it goes; NULL if it takes the standard network
 * @reason: the counter of the reason for that, or NET_NO_REASON
 * @is_routed: it goes to the host, and makes that hop in the ring
 * @is_large: it is larger than its interface can send, and still whole
 */
struct net_way {
	struct vmloop_interface *interface;
	struct vmloop_lane *lane;
	int reason;
	bool is_routed;
	bool is_large;
};

/**
 * struct net_frame_cb - what is noted of its way in a frame that waits for the ring
 * @stack: the network stack's, which may get the frame back
 * @mac: the receiver's interface: the directory may change meanwhile
 * @is_routed: as in struct net_way
 * @is_large: the same
 */
struct net_frame_cb {
	u8 stack[40];
	u8 mac[ETH_ALEN];
	bool is_routed;
	bool is_large;
};

static inline struct net_frame_cb *net_frame_cb(const struct sk_buff *skb)
{
	return (struct net_frame_cb *)skb->cb;
}

/**
 * net_nic_is_usable() - whether peers know an interface as it is
 * @nic: the interface
 *
 * Return: false if its address was changed, or another one has it, too.
 */
static inline bool net_nic_is_usable(const struct net_nic *nic)
{
	return !READ_ONCE(nic->is_shared) &&
	       ether_addr_equal(nic->mac, nic->dev->dev_addr);
}

/* nic.c */
struct net_nic *net_nic_find(const u8 *mac);
struct net_nic *net_nic_at(const struct net_device *dev);
int net_nic_why_not(struct net_nic *nic, const struct sk_buff *skb);
struct net_device *net_nic_input(const struct net_nic *nic);
void net_nics_collect(const struct vmloop_peer *peer,
		      struct vmloop_shm_receivers *list);
void net_nics_look(void);
void net_nics_update(void);
int net_nics_init(void);
void net_nics_exit(void);

/* named.c */
bool net_named(const struct net_device *dev);
void net_named_exit(void);

/* counters.c */
int net_counters_init(struct net_nic *nic);
void net_counters_start(struct net_nic *nic);
void net_counters_stop(struct net_nic *nic);
void net_nic_count_tx(struct net_nic *nic, unsigned int bytes);
void net_nic_count_rx(struct net_nic *nic, unsigned int bytes);

/* shaping.c */
bool net_shapes(struct net_nic *nic, const struct sk_buff *skb);

/* receivers.c */
void net_receivers_tell(struct vmloop_lane *lane, bool first);
void net_receivers_changed(void);
void net_receivers_doubt(void);
void net_receivers_send(struct net_lane *net);
int net_receivers_said(struct net_lane *net, const void *payload, u32 size);
bool net_receiver_is_good(const struct net_lane *net,
			  const struct vmloop_interface *interface);
void net_receivers_exit(void);

/* flow.c; any context */
u32 net_flow(const struct sk_buff *skb, unsigned int offset, __be16 protocol);

/* spread.c; core mutex held */
void net_spread_open(struct vmloop_channel *channel, unsigned int side,
		     bool late);
u32 net_spread_wanted(struct vmloop_lane *lane, struct vmloop_lane_ask *ask);
void net_spread_up(struct vmloop_lane *lane);

/* recent.c */
void net_recent_want(void);

/* tx.c; rcu_read_lock() held, bottom halves off */
unsigned int net_tx(struct net_nic *nic, struct sk_buff *skb);
void net_tx_waiting(struct net_lane *net);
void net_tx_flush(struct net_lane *net);

/* tx.c; process context */
void net_tx_gone(struct net_device *dev);

/* offload.c; rcu_read_lock() held, bottom halves off */
unsigned int net_offload_max(const struct vmloop_lane *lane);
int net_offload_why_not(struct sk_buff *skb);
int net_offload_prepare(const struct vmloop_lane *lane, struct sk_buff *skb,
			struct sk_buff_head *frames);
void net_offload_describe(const struct sk_buff *skb,
			  struct vmloop_shm_frame *frame);

/* held.c; bottom halves off */
void net_hold(struct net_lane *net, struct sk_buff *skb, u32 position);
void net_held_look(struct net_lane *net);
void net_held_release(struct net_lane *net);

/* rx.c; NAPI */
int net_rx(struct net_lane *net, int budget);

/* lane.c */
extern const struct vmloop_path net_path;

/* hop.c; rcu_read_lock() held */
struct vmloop_interface *net_hop_find(const struct sk_buff *skb, bool is_large);
struct vmloop_interface *net_hop_find_ipv4(const u8 *local_mac,
					   const u8 *gateway,
					   const struct iphdr *ip);
int net_hop_make(const struct sk_buff *skb, u8 *frame);
int net_hop_check(const struct vmloop_interface *interface,
		  const struct sk_buff *skb, __be16 protocol);

/* large.c */
int net_large_init(void);
void net_large_exit(void);
bool net_large_is(const struct sk_buff *skb);
void net_large_to_standard(struct sk_buff *skb);

#endif /* VMLOOP_NET_H */
