/* SPDX-License-Identifier: GPL-2.0 */
/*
 * vmloop.h - what the core offers to transports (how memory is shared and
 * doorbells are rung) and to paths (what of the guest's traffic uses
 * channels). Transports and paths see this header and never each other.
 *
 * A transport learns from its host agent who is here (the directory), asks
 * for channels when the core tells it to, and hands each channel's memory to
 * the core as a link. The core checks the region, opens its lanes through the
 * paths, and keeps the channel's state. A path finds the channel for a frame
 * and produces into, and consumes from, the channel's lane.
 *
 * Contexts and locks: everything that changes state runs in process context
 * under the core's one mutex. The callbacks of transports and paths that say
 * "core mutex held" must not call back into the core, except for what says
 * "any context". The data path holds rcu_read_lock() and the lane's tx_lock.
 *
 * Lock order, the outermost first; vmloop_path_init() shows lockdep all of it but
 * what is one module's own:
 *
 *   path_mutex		path.c: which paths there are
 *   a transport's own	ivshmem: handle_mutex; loopback: loopback_mutex
 *   RTNL
 *   net_rwsem		the list of network namespaces; read
 *   vmloop_mutex	the core mutex: all that changes state
 *   tx_lock		a lane's; bottom halves off
 *   control_lock	or whatever a transport uses to queue a message
 *
 * A path's directory_changed is called under path_mutex alone; its other callbacks,
 * and a transport's, under the core mutex. Works that must be waited for under a
 * lock take none that is further out.
 */
#ifndef VMLOOP_H
#define VMLOOP_H

#include <linux/etherdevice.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/u64_stats_sync.h>
#include <linux/workqueue.h>

#include "ring.h"
#include "vmloop_shm.h"

#define VMLOOP_VERSION	"0.1.0"

/* What all modules together understand, for the agent to know. */
#define VMLOOP_FEATURES	(VMLOOP_F_LARGE | VMLOOP_F_GSO_UDP | VMLOOP_F_ROUTED | \
			 VMLOOP_F_RECEIVERS)

struct vmloop_channel;
struct vmloop_lane;
struct vmloop_link;
struct vmloop_peer;
struct vmloop_transport;

/* Numbers as in docs/netlink/vmloop.yaml. */
enum vmloop_channel_state {
	VMLOOP_CHANNEL_NONE,		/* no channel, none asked for */
	VMLOOP_CHANNEL_REQUESTED,	/* asked for, waiting for the agent */
	VMLOOP_CHANNEL_OPENING,		/* memory is there, waiting for the peer */
	VMLOOP_CHANNEL_UP,		/* carries traffic */
	VMLOOP_CHANNEL_STALLED,		/* up, but the peer does not consume */
	VMLOOP_CHANNEL_CLOSING,		/* draining */
	VMLOOP_CHANNEL_REFUSED,		/* the agent said no */
	VMLOOP_CHANNEL_FAILED,		/* asked three times without an answer */
	VMLOOP_CHANNEL_BROKEN,		/* the peer broke the protocol */
};

/* How a peer broke the protocol. Numbers as in docs/netlink/vmloop.yaml. */
enum vmloop_break {
	VMLOOP_BREAK_NONE = VMLOOP_RING_GOOD,
	VMLOOP_BREAK_TAIL = VMLOOP_RING_TAIL,
	VMLOOP_BREAK_HEAD = VMLOOP_RING_HEAD,
	VMLOOP_BREAK_SIZE = VMLOOP_RING_SIZE,
	VMLOOP_BREAK_SPAN = VMLOOP_RING_SPAN,
	VMLOOP_BREAK_PAD = VMLOOP_RING_PAD,
	VMLOOP_BREAK_VERSION,		/* another major version than said */
	VMLOOP_BREAK_LANE,		/* describes a lane that cannot be */
};

/* Statistics ------------------------------------------------------------- */

/* Order as in the stats attribute set of docs/netlink/vmloop.yaml. */
enum vmloop_counter {
	VMLOOP_TX_FRAMES,
	VMLOOP_TX_BYTES,
	VMLOOP_RX_FRAMES,
	VMLOOP_RX_BYTES,
	VMLOOP_TX_DOORBELLS,
	VMLOOP_RX_DOORBELLS,
	VMLOOP_TX_FULL,
	VMLOOP_TX_QUEUED,
	VMLOOP_TX_STANDARD,		/* sum of VMLOOP_STANDARD_*: not counted */
	VMLOOP_STALLS,
	VMLOOP_DROP_SOURCE,
	VMLOOP_DROP_DESTINATION,
	VMLOOP_DROP_VLAN,
	VMLOOP_DROP_MALFORMED,
	VMLOOP_DROP_MEMORY,
	VMLOOP_DROP_INTERFACE,
	/* Why frames took the standard network. */
	VMLOOP_STANDARD_NO_CHANNEL,	/* there is none, or it is being opened */
	VMLOOP_STANDARD_CLOSING,	/* it is ending, or has just broken */
	VMLOOP_STANDARD_STALLED,	/* the peer does not consume */
	VMLOOP_STANDARD_FULL,		/* neither ring nor queue had room */
	VMLOOP_STANDARD_FLUSHED,	/* waited for room, and gave it up */
	VMLOOP_STANDARD_SHAPED,		/* our interface's root qdisc shapes */
	VMLOOP_STANDARD_CLASSIFIED,	/* classifiers at our interface's egress */
	VMLOOP_STANDARD_HOOK,		/* another egress hook runs after ours */
	VMLOOP_STANDARD_RECEIVER,	/* the peer's interface cannot receive */
	VMLOOP_STANDARD_SOURCE,		/* not our interface's own address */
	VMLOOP_STANDARD_INTERFACE,	/* ours is down, or in a bond */
	VMLOOP_STANDARD_VLAN,		/* a tag that may not pass */
	VMLOOP_STANDARD_FEATURE,	/* the peer's modules do not know it */
	VMLOOP_STANDARD_SEGMENTATION,	/* a kind that a record cannot say */
	VMLOOP_STANDARD_CHECKSUM,	/* a kind that a record cannot say */
	VMLOOP_STANDARD_ENCRYPTED,	/* to be encrypted behind us */
	VMLOOP_STANDARD_UNREADABLE,	/* its bytes are in a device's memory */
	VMLOOP_STANDARD_TOO_LARGE,	/* for a record, or for this ring */
	VMLOOP_COUNTERS,
	VMLOOP_STANDARD_LAST = VMLOOP_STANDARD_TOO_LARGE,
};

/**
 * struct vmloop_stats - counters of one peer, one of these a CPU
 * @value: indexed by enum vmloop_counter
 * @sync: makes 64-bit reads whole on 32-bit machines
 */
struct vmloop_stats {
	u64_stats_t value[VMLOOP_COUNTERS];
	struct u64_stats_sync sync;
};

void vmloop_count(struct vmloop_peer *peer, enum vmloop_counter counter, u64 n);
void vmloop_count_frame(struct vmloop_peer *peer, enum vmloop_counter frames,
			u64 bytes);

/* Regions ---------------------------------------------------------------- */

/**
 * struct vmloop_region - a shared region whose header was found good
 * @base: its first byte
 * @ours: the side that we write
 * @theirs: the other side. Written by the peer: untrusted
 * @tx_data: our data
 * @rx_data: the other side's data. Written by the peer: untrusted
 * @tx_size: bytes of @tx_data
 * @rx_size: bytes of @rx_data
 */
struct vmloop_region {
	void *base;
	struct vmloop_shm_side *ours;
	const struct vmloop_shm_side *theirs;
	u8 *tx_data;
	const u8 *rx_data;
	u64 tx_size;
	u64 rx_size;
};

int vmloop_region_open(struct vmloop_region *region, void *base, size_t size,
		       unsigned int side, u32 kind);
int vmloop_region_tx(struct vmloop_region *region, unsigned int lane, u32 kind,
		     struct vmloop_ring_tx *tx);
int vmloop_region_rx(struct vmloop_region *region, unsigned int lane, u32 kind,
		     struct vmloop_ring_rx *rx);

/* Lanes and paths -------------------------------------------------------- */

/**
 * struct vmloop_lane - one lane of a channel, as a path uses it
 * @channel: where it belongs
 * @peer: whom it leads to; lives as long as the lane
 * @path: whose it is
 * @priv: the path's own
 * @tx_lock: serialises producers; taken with bottom halves off
 * @tx: what we produce; under @tx_lock
 * @rx: what we consume; the path has one consumer at a time
 */
struct vmloop_lane {
	struct vmloop_channel *channel;
	struct vmloop_peer *peer;
	const struct vmloop_path *path;
	void *priv;

	spinlock_t tx_lock;	/* protects tx */
	struct vmloop_ring_tx tx;

	struct vmloop_ring_rx rx ____cacheline_aligned_in_smp;
};

/**
 * struct vmloop_path - what of the guest's traffic uses channels
 * @name: for people
 * @owner: its module
 * @kind: VMLOOP_LANE_* that it serves
 * @features: VMLOOP_F_* that it understands
 * @max_record: largest record payload in bytes that it accepts
 * @lane_open: mandatory. The lane's rings are ready; make what is needed to
 *	use them. Nothing is produced or consumed yet. Core mutex held, may
 *	sleep. Returns 0 or a negative errno: the channel is then closed.
 * @lane_up: mandatory. Both sides are ready: consume from now on; producers
 *	find the lane through vmloop_peer_lane(). Core mutex held, may sleep.
 * @lane_down: mandatory. No producer finds the lane any more and none is
 *	still in it; what the path holds back for it must go another way.
 *	Consuming goes on. Core mutex held, may sleep.
 * @lane_close: mandatory. Consume what is there, then stop; after return the
 *	path touches neither the rings nor the lane. Core mutex held, may sleep.
 * @lane_event: mandatory. The peer rang: look at both directions. Any
 *	context, also hard interrupt; between @lane_open and the return of
 *	@lane_close.
 * @directory_changed: mandatory. Interfaces may have come or gone. Process
 *	context, no core lock held, may sleep and call the core.
 */
struct vmloop_path {
	const char *name;
	struct module *owner;
	u32 kind;
	u64 features;
	u32 max_record;

	int (*lane_open)(struct vmloop_lane *lane);
	void (*lane_up)(struct vmloop_lane *lane);
	void (*lane_down)(struct vmloop_lane *lane);
	void (*lane_close)(struct vmloop_lane *lane);
	void (*lane_event)(struct vmloop_lane *lane);
	void (*directory_changed)(void);
};

int vmloop_path_register(const struct vmloop_path *path);
void vmloop_path_unregister(const struct vmloop_path *path);
void vmloop_lanes_do(const struct vmloop_path *path,
		     void (*what)(struct vmloop_lane *lane, void *data),
		     void *data);

/* For paths, on the data path. */
struct vmloop_lane *vmloop_peer_lane(struct vmloop_peer *peer);
enum vmloop_counter vmloop_peer_why_no_lane(const struct vmloop_peer *peer);
u64 vmloop_lane_features(const struct vmloop_lane *lane);
void vmloop_lane_ring(struct vmloop_lane *lane);
void vmloop_lane_produced(struct vmloop_lane *lane);
void vmloop_lane_broken(struct vmloop_lane *lane,
			enum vmloop_ring_fault fault);
bool vmloop_lane_stalled(const struct vmloop_lane *lane);
void vmloop_peer_want(struct vmloop_peer *peer);
void vmloop_peer_want_first(struct vmloop_peer *peer);

/* Directory -------------------------------------------------------------- */

/**
 * struct vmloop_route - one of an interface's addresses, where packets find it
 * @interface: whose
 * @ip: the address
 * @since: when the directory first named it, in jiffies
 * @node: in the hash of all routes; under the core mutex, read under RCU
 */
struct vmloop_route {
	struct vmloop_interface *interface;
	const struct vmloop_msg_address *ip;
	u64 since;
	struct hlist_node node;
};

/**
 * struct vmloop_interface - a peer's interface, seen from one of ours
 * @peer: whose it is; NULL for one of ours, with the addresses that peers know
 * @local_mac: the interface of ours
 * @mac: the peer's interface
 * @gateway: with VMLOOP_PEER_ROUTED: the host's address where ours is
 * @flags: VMLOOP_PEER_*
 * @mtu: of the network between the two, in bytes; 0 if not known
 * @ip_count: entries of @ip
 * @ip: its addresses, for people and for routed mode
 * @route: with VMLOOP_PEER_ROUTED: where each of @ip is found
 * @node: in the hash of all interfaces, unless ours; under the core mutex, read
 *	under RCU
 * @list: in @peer's list, or the transport's; under the core mutex
 * @mark: of the directory that last named it; under the core mutex
 * @rcu: frees it
 */
struct vmloop_interface {
	struct vmloop_peer *peer;
	u8 local_mac[ETH_ALEN] __aligned(2);
	u8 mac[ETH_ALEN] __aligned(2);
	u8 gateway[ETH_ALEN] __aligned(2);
	u32 flags;
	u16 mtu;
	u16 ip_count;
	struct vmloop_msg_address ip[VMLOOP_PEER_IPS];
	struct vmloop_route route[VMLOOP_PEER_IPS];

	struct hlist_node node;
	struct list_head list;
	u64 mark;
	struct rcu_head rcu;
};

struct vmloop_interface *vmloop_interface_find(const u8 *local_mac,
					       const u8 *mac);
bool vmloop_mac_is_local(const u8 *mac);
bool vmloop_peer_knows(const struct vmloop_peer *peer, const u8 *local_mac);
bool vmloop_local_macs_are(bool (*what)(const u8 *mac));
struct vmloop_interface *vmloop_route_find(const u8 *local_mac,
					   const u8 *gateway, u8 family,
					   const void *ip);
bool vmloop_route_is_ours(const u8 *local_mac, u8 family, const void *ip);
bool vmloop_route_is_known(const u8 *local_mac, u8 family, const void *ip);

/**
 * vmloop_dev_is_hardware() - whether an interface is a device on a bus
 * @dev: the interface
 *
 * Hardware, the hypervisor, or root in person made it; no user can, whatever
 * network namespace is his.
 *
 * Return: false for all that is made of other interfaces, or of nothing.
 */
static inline bool vmloop_dev_is_hardware(const struct net_device *dev)
{
	return dev->dev.parent && dev->dev.parent->bus;
}

/* Transports ------------------------------------------------------------- */

/**
 * struct vmloop_transport_ops - what the core asks of a transport
 * @request: mandatory. Ask the agent for a channel to a peer; the answer comes
 *	as a directory with a tag and a link, or as vmloop_peer_refused().
 *	Core mutex held, must not wait for the answer. Returns 0 or a negative
 *	errno if the question could not be put.
 * @report: optional. Tell the agent how a channel stands (VMLOOP_STATE_*).
 *	Core mutex held.
 * @advertise: optional. Tell the agent all of our IP addresses. Core mutex
 *	held.
 */
struct vmloop_transport_ops {
	int (*request)(struct vmloop_transport *transport, u64 peer, u64 epoch,
		       unsigned int attempt);
	void (*report)(struct vmloop_transport *transport, u32 tag, u32 state);
	void (*advertise)(struct vmloop_transport *transport,
			  const struct vmloop_msg_address *address, u32 count);
};

/**
 * struct vmloop_transport - one way to share memory and ring doorbells
 * @name: for people
 * @owner: its module
 * @ops: what it can do
 * @id: our own identity there, 0 until the agent said it
 * @epoch: our own epoch
 * @agent: number of the agent's start, 0 while there is none
 * @idle_ms: report a channel as idle after so many milliseconds, 0 for never
 * @guest: our name on the host
 * @list: in the core's list of transports
 * @ours: our own interfaces, as its peers know them
 * @staged: entries of the directory that is being received
 * @staged_count: entries of @staged
 * @staged_generation: of that directory
 *
 * A transport fills in the first three; the core keeps the rest under its
 * mutex.
 */
struct vmloop_transport {
	const char *name;
	struct module *owner;
	const struct vmloop_transport_ops *ops;

	u64 id;
	u64 epoch;
	u64 agent;
	u32 idle_ms;
	char guest[64];
	struct list_head list;
	struct list_head ours;
	struct list_head staged;
	u32 staged_count;
	u64 staged_generation;
};

int vmloop_transport_register(struct vmloop_transport *transport);
void vmloop_transport_unregister(struct vmloop_transport *transport);

void vmloop_agent_here(struct vmloop_transport *transport,
		       const struct vmloop_msg_welcome *welcome);
void vmloop_agent_gone(struct vmloop_transport *transport);
void vmloop_directory_begin(struct vmloop_transport *transport, u64 generation);
void vmloop_directory_peer(struct vmloop_transport *transport,
			   const struct vmloop_msg_peer *entry);
void vmloop_directory_end(struct vmloop_transport *transport, u64 generation);
void vmloop_peer_refused(struct vmloop_transport *transport, u64 peer,
			 u32 reason, u32 retry_ms);
void vmloop_channel_close(struct vmloop_transport *transport, u32 tag);
void vmloop_stats_report(struct vmloop_transport *transport,
			 void (*report)(struct vmloop_transport *transport,
					const struct vmloop_msg_stats *stats));

/**
 * struct vmloop_link - the memory and the doorbell of one channel
 * @transport: whose it is
 * @tag: the channel's number in the directory; from the hypervisor
 * @side: which side of the region we are, 0 or 1; from the hypervisor
 * @base: the region, mapped as ordinary memory
 * @size: bytes mapped
 * @ring: ring the peer's doorbell; any context
 * @channel: the core's; under RCU, set under the core mutex
 * @used: the core's: its channel has ended, and there will be no other
 * @work: the core's: acts upon what the peer or the lane did
 * @list: the core's
 *
 * A transport fills in all up to @ring, then calls vmloop_link_add().
 */
struct vmloop_link {
	struct vmloop_transport *transport;
	u32 tag;
	unsigned int side;
	void *base;
	size_t size;
	void (*ring)(struct vmloop_link *link);

	struct vmloop_channel __rcu *channel;
	bool used;
	struct delayed_work work;
	struct list_head list;
};

int vmloop_link_add(struct vmloop_link *link);
void vmloop_link_remove(struct vmloop_link *link);
void vmloop_link_event(struct vmloop_link *link);

#endif /* VMLOOP_H */
