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
 *   a transport's own	loopback: loopback_mutex; ivshmem: the PCI core's, of adding and
 *			removing, and a device's
 *   RTNL
 *   net_rwsem		the list of network namespaces; read
 *   vmloop_mutex	the core mutex: all that changes state
 *   windows_mutex	ivshmem's
 *   tx_lock		a lane's; bottom halves off
 *   control_lock	or whatever a transport uses to queue a message
 *   tell_lock		a channel's, of what is told by doorbells; interrupts off
 *   event_lock		a channel's, of what doorbells tell, and that of each bell of its
 *			own; interrupts off. A path's lane_event runs in it; by loopback,
 *			inside of tx_lock
 *   a watcher's	inside of what a path's owners of rings hold; watch.c
 *
 * A path's directory_changed is called under path_mutex alone; its other callbacks,
 * and a transport's, under the core mutex. Works that must be waited for under a
 * lock take none that is further out.
 */
#ifndef VMLOOP_H
#define VMLOOP_H

#include <linux/etherdevice.h>
#include <linux/hrtimer.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/spinlock.h>
#include <linux/timer.h>
#include <linux/types.h>
#include <linux/u64_stats_sync.h>
#include <linux/workqueue.h>

#include "owner.h"
#include "ring.h"
#include "vmloop_lanes.h"

#define VMLOOP_VERSION	"0.1.0"

struct vmloop_channel;
struct vmloop_lane;
struct vmloop_link;
struct vmloop_window;
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
	VMLOOP_BREAK_LANE,		/* says of a lane what cannot be */
	VMLOOP_BREAK_MOVE = VMLOOP_RING_MOVE,
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
 * @major: version of its layout: VMLOOP_SHM_MAJOR or VMLOOP_TABLE_MAJOR
 * @lanes: lanes that each side has room for
 * @ours: the side that we write; with VMLOOP_TABLE_MAJOR a vmloop_shm_table
 * @theirs: the other side. Written by the peer: untrusted
 * @tx_data: our data
 * @rx_data: the other side's data. Written by the peer: untrusted
 * @tx_size: bytes of @tx_data
 * @rx_size: bytes of @rx_data
 */
struct vmloop_region {
	void *base;
	u16 major;
	u32 lanes;
	struct vmloop_shm_side *ours;
	const struct vmloop_shm_side *theirs;
	u8 *tx_data;
	const u8 *rx_data;
	u64 tx_size;
	u64 rx_size;
};

/* Lanes that a region with packet rings of so many bytes has by default. */
#define VMLOOP_REGION_LANES(ring_size)	clamp_t(u32, (ring_size) / 8192, 12, 512)

void vmloop_region_plan(struct vmloop_shm_header *header, u32 lanes,
			u64 data_size);
int vmloop_region_open(struct vmloop_region *region, void *base, size_t size,
		       unsigned int side, u32 kind);
int vmloop_region_tx(struct vmloop_region *region, unsigned int lane, u32 kind,
		     struct vmloop_ring_tx *tx);
int vmloop_region_rx(struct vmloop_region *region, unsigned int lane, u32 kind,
		     struct vmloop_ring_rx *rx);

static inline struct vmloop_shm_table *
vmloop_region_our_table(const struct vmloop_region *region)
{
	return (struct vmloop_shm_table *)region->ours;
}

static inline const struct vmloop_shm_table *
vmloop_region_their_table(const struct vmloop_region *region)
{
	return (const struct vmloop_shm_table *)region->theirs;
}

/* With VMLOOP_TABLE_MAJOR; @lane is below region->lanes. */
static inline struct vmloop_shm_entry *
vmloop_region_our_entry(const struct vmloop_region *region, u32 lane)
{
	return (struct vmloop_shm_entry *)((u8 *)region->ours +
					   VMLOOP_TABLE_ENTRIES) + lane;
}

static inline const struct vmloop_shm_entry *
vmloop_region_their_entry(const struct vmloop_region *region, u32 lane)
{
	return (const struct vmloop_shm_entry *)((const u8 *)region->theirs +
						 VMLOOP_TABLE_ENTRIES) + lane;
}

/* Lanes and paths -------------------------------------------------------- */

/* How a lane stands on our side. */
enum vmloop_lane_phase {
	VMLOOP_LANE_OPENING,		/* open here, not yet on the other side */
	VMLOOP_LANE_UP,			/* open on both sides */
	VMLOOP_LANE_HIDDEN,		/* no producer finds it any more */
	VMLOOP_LANE_CLOSING,		/* no producer is in it any more; drains */
	VMLOOP_LANE_CLOSED,		/* its rings are touched no more */
};

#define VMLOOP_LANE_BYTES	sizeof_field(struct vmloop_shm_entry, path)

/**
 * struct vmloop_lane - one lane of a channel, as a path uses it
 * @channel: where it belongs; not to be used after the path's lane_close
 * @peer: where it leads to; as long as @channel
 * @path: whose it is; not to be used after its lane_ended
 * @priv: the path's own
 * @number: its number in the channel; both sides have the same
 * @opened: we opened it, and the peer accepted it; false: the other way round
 * @slot: with @path's by_peer: which of the peer's lanes it is, 0 for the first
 * @spread: of slot 0: among so many slots producers are spread; the path's to set,
 *	until its lane_up returns
 * @features: VMLOOP_F_* that both sides' paths offer; from lane_up on
 * @said: what the peer's path said of it; from lane_up on, and for a lane that
 *	the peer opened from lane_wanted on. Written by the peer: untrusted
 * @tx_lock: serialises producers; taken with bottom halves off
 * @tx: what we produce; under @tx_lock
 * @rx: what we consume; the path has one consumer at a time
 * @phase: the core's; under the core mutex, read anywhere
 * @stalled: the core's: the peer does not consume; single word, of @stall
 * @stall_tail: the core's: the peer's position when the timer was set; of @stall,
 *	and of the caller that sets it
 * @stall_mark: the core's: what the peer must have consumed by @stall_until; of
 *	the same
 * @stall_until: the core's: in jiffies; of the same
 * @stall: the core's: watches over what is not consumed
 * @data: the core's: where in our data its ring is
 * @before: the core's: and the one before, as long as @room is more than that ring has
 * @room: the core's: bytes of both
 * @bell: the core's: which of our doorbells is for this lane alone; 0: the one that is
 *	for all
 * @peer_bell: the core's: which of the peer's is; single word
 * @bell_ns: the core's: what ringing that costs, a moving average in ns; single word
 * @owners: the core's: whom it is for
 * @deadline: the core's: when draining ends, in jiffies
 * @reason: the core's: VMLOOP_REASON_*, why it is closed
 * @their_reason: the core's: what the peer says of that, any number, where it was the first to
 *	close it, and all that it has produced is there; else VMLOOP_REASON_NONE; final before
 *	lane_down
 * @refs: the core's: one for the core, others by vmloop_lane_get()
 * @list: the core's: in the channel's list
 */
struct vmloop_lane {
	struct vmloop_channel *channel;
	struct vmloop_peer *peer;
	const struct vmloop_path *path;
	void *priv;
	u32 number;
	bool opened;
	u32 slot;
	u32 spread;
	u64 features;
	u8 said[VMLOOP_LANE_BYTES];

	spinlock_t tx_lock;	/* protects tx */
	struct vmloop_ring_tx tx;

	enum vmloop_lane_phase phase;
	bool stalled;
	u32 stall_tail;
	u32 stall_mark;
	unsigned long stall_until;
	struct timer_list stall;
	u32 data;
	u32 before;
	u32 room;
	u32 bell;
	u32 peer_bell;
	u32 bell_ns;
	struct vmloop_owner owners[VMLOOP_OWNERS];
	unsigned long deadline;
	u32 reason;
	u32 their_reason;
	struct kref refs;
	struct list_head list;

	struct vmloop_ring_rx rx ____cacheline_aligned_in_smp;
};

/* Lanes of a peer that producers find, at most. */
#define VMLOOP_PEER_LANES	VMLOOP_PACKET_LANES

/**
 * struct vmloop_lane_ask - what a path wants a lane to be
 * @ring_size: bytes of our ring, a power of two from one page of the layout up;
 *	0 for the largest that our data has room for
 * @slot: with by_peer: becomes the lane's; below VMLOOP_PEER_LANES, and no other
 *	lane's that is open
 * @spread: becomes the lane's
 * @say: the path's own bytes, for the other side's path
 * @priv: becomes the lane's
 * @owners: whom it is for, at our end; all zero: nobody, and nothing bounds it
 * @share: percent of our memory that each of them may have, for rings of this channel, of
 *	what others leave: see owner.h; from 1 to 100, which bounds nothing
 */
struct vmloop_lane_ask {
	u32 ring_size;
	u32 slot;
	u32 spread;
	u8 say[VMLOOP_LANE_BYTES];
	void *priv;
	struct vmloop_owner owners[VMLOOP_OWNERS];
	u32 share;
};

/**
 * struct vmloop_path - what of the guest's traffic uses channels
 * @name: for people
 * @owner: its module
 * @kind: VMLOOP_LANE_* that it serves
 * @grain: what its rings carry
 * @features: VMLOOP_F_* that it understands
 * @max_record: largest record payload in bytes that it accepts
 * @by_peer: producers find its lanes of a peer by vmloop_peer_lane(); a peer has
 *	one for each slot
 * @channel_open: optional. A channel begins, or the path is loaded while it is
 *	there (@late); @side is ours. Open the lanes that are to be there from
 *	the first moment, by vmloop_channel_lane(). With @by_peer it comes again
 *	(@late) while some are missing. Core mutex held, may sleep.
 * @lane_wanted: optional. The peer has opened a lane (@lane: number, said, peer).
 *	Fill in @ask, and make nothing yet: it may still come to nothing. Returns
 *	VMLOOP_REASON_NONE to accept it, or why not. Core mutex held, may
 *	sleep. Without it lanes are accepted with the largest ring.
 * @lane_open: mandatory. The lane's own ring is ready; make what is needed to
 *	use it. Nothing is produced or consumed yet. Core mutex held, may
 *	sleep. Returns 0 or a negative errno: then there is no lane.
 * @lane_up: mandatory. Both sides are ready: consume from now on. Other lanes may
 *	be opened. Core mutex held, may sleep.
 * @lane_down: mandatory, after @lane_up. Produce nothing more: after return no
 *	producer is in the lane (with @by_peer none is by then), and what the path
 *	holds back for it has gone another way. Consuming goes on. Core mutex
 *	held, may sleep.
 * @lane_close: mandatory, after @lane_open. Consume what is there, then stop;
 *	after return the path touches neither the rings nor the channel. Core
 *	mutex held, may sleep.
 * @lane_ended: optional, after @lane_close. The lane has ended: if it was up, ask
 *	vmloop_lane_is_final(), then vmloop_ring_account() for how much the peer has not
 *	published as read, and vmloop_ring_unread() for what; @reason is why the peer closed
 *	or refused it. Last call; the lane goes when nobody holds it. Core mutex held, may
 *	sleep.
 * @lane_move: optional: its rings may move, those of peers too. Call vmloop_ring_move()
 *	for the lane's ring with these, where no producer is, or return a negative errno; tell
 *	whoever waits for room. From vmloop_lane_move(); core mutex held, may sleep.
 * @lane_busy: optional, between @lane_down and @lane_close: draining goes on while this
 *	is true, for VMLOOP_DRAIN_TIME at most. Core mutex held.
 * @window_wanted: optional. The peer has a window for lanes of @kind: @size bytes, and
 *	what its path says of it, VMLOOP_WINDOW_BYTES that are untrusted. Returns
 *	VMLOOP_REASON_NONE to have it, or why not. Core mutex held, may sleep. Without
 *	it the peer's windows are refused.
 * @window_up: mandatory for paths that have windows, as are the next three. Both sides
 *	have the window. When this has returned references to one of ours may go out, and
 *	those to the peer's may come. Core mutex held, may sleep.
 * @window_down: after @window_up. Give out no more references to it; those that the peer
 *	has given out are still followed. Core mutex held, may sleep.
 * @window_close: after @window_up: when nothing uses the window any more, as
 *	vmloop_window_use() counts, or after VMLOOP_DRAIN_TIME, or at once if the channel ends
 *	without its peer. It is not found any more. Wait for, or take back, what uses it yet:
 *	after return nothing of the path touches its memory. Core mutex held, may sleep.
 * @window_ended: last call for a window, also of one that never came up: @reason is why
 *	the peer, or we, refused or closed it: VMLOOP_REASON_* or any other number. Core mutex
 *	held, may sleep.
 * @lane_event: mandatory. The peer rang: look at both directions. Any
 *	context, also hard interrupt, under a lock that vmloop_lane_ring() of the
 *	other end may want: schedule, and do not ring; between @lane_open and the
 *	return of @lane_close. On two CPUs at once where the lane has a doorbell of its own.
 * @directory_changed: optional. Interfaces may have come or gone. Process
 *	context, no core lock held, may sleep and call the core.
 */
struct vmloop_path {
	const char *name;
	struct module *owner;
	u32 kind;
	enum vmloop_ring_grain grain;
	u64 features;
	u32 max_record;
	bool by_peer;

	void (*channel_open)(struct vmloop_channel *channel, unsigned int side,
			     bool late);
	u32 (*lane_wanted)(struct vmloop_lane *lane,
			   struct vmloop_lane_ask *ask);
	int (*lane_open)(struct vmloop_lane *lane);
	void (*lane_up)(struct vmloop_lane *lane);
	void (*lane_down)(struct vmloop_lane *lane);
	void (*lane_close)(struct vmloop_lane *lane);
	void (*lane_ended)(struct vmloop_lane *lane, u32 reason);
	int (*lane_move)(struct vmloop_lane *lane, void *data, u32 size, u64 offset);
	bool (*lane_busy)(const struct vmloop_lane *lane);
	u32 (*window_wanted)(struct vmloop_peer *peer, u64 size, const u8 *said);
	void (*window_up)(struct vmloop_window *window);
	void (*window_down)(struct vmloop_window *window);
	void (*window_close)(struct vmloop_window *window);
	void (*window_ended)(struct vmloop_window *window, u32 reason);
	void (*lane_event)(struct vmloop_lane *lane);
	void (*directory_changed)(void);
};

int vmloop_path_register(const struct vmloop_path *path);
void vmloop_path_unregister(const struct vmloop_path *path);
void vmloop_lanes_do(const struct vmloop_path *path,
		     void (*what)(struct vmloop_lane *lane, void *data),
		     void *data);

/* For paths: lanes come and go. */
struct vmloop_lane *vmloop_channel_lane(struct vmloop_channel *channel,
					const struct vmloop_path *path,
					const struct vmloop_lane_ask *ask);
u32 vmloop_channel_ring_max(const struct vmloop_channel *channel);
bool vmloop_channel_follows(const struct vmloop_channel *channel);
u32 vmloop_channel_free(struct vmloop_channel *channel, u32 *largest);
u32 vmloop_channel_left(const struct vmloop_channel *channel,
			const struct vmloop_lane_ask *ask);
int vmloop_channel_try(struct vmloop_channel *channel,
		       const struct vmloop_lane_ask *ask);
struct vmloop_lane *vmloop_channel_slot(const struct vmloop_channel *channel,
					const struct vmloop_path *path,
					u32 slot);
int vmloop_channel_do(u64 peer,
		      void (*what)(struct vmloop_channel *channel, void *data),
		      void *data);
int vmloop_lane_move(struct vmloop_channel *channel, struct vmloop_lane *lane, u32 size,
		     u32 share);
void vmloop_lane_get(struct vmloop_lane *lane);
void vmloop_lane_put(struct vmloop_lane *lane);
void vmloop_lane_shut(struct vmloop_lane *lane, u32 reason);

/* For paths, on the data path. */
struct vmloop_lane *vmloop_peer_lane(struct vmloop_peer *peer, u32 flow);
enum vmloop_counter vmloop_peer_why_no_lane(const struct vmloop_peer *peer,
					    u32 flow);
u64 vmloop_lane_features(const struct vmloop_lane *lane);
bool vmloop_lane_ring(struct vmloop_lane *lane);
void vmloop_lane_ring_anyway(struct vmloop_lane *lane);
u32 vmloop_lane_bell_ns(const struct vmloop_lane *lane);
void vmloop_lane_produced(struct vmloop_lane *lane);
void vmloop_lane_read(struct vmloop_lane *lane);
void vmloop_lane_broken(struct vmloop_lane *lane,
			enum vmloop_ring_fault fault);
bool vmloop_lane_is_final(const struct vmloop_lane *lane);
bool vmloop_lane_stalled(const struct vmloop_lane *lane);
u64 vmloop_peer_id(const struct vmloop_peer *peer);
void vmloop_peer_want(struct vmloop_peer *peer);
void vmloop_peer_want_first(struct vmloop_peer *peer);
void vmloop_channel_want(u64 id);

/* Watching --------------------------------------------------------------- */

struct vmloop_watch;
struct vmloop_watcher;

/**
 * struct vmloop_watch_ops - what the core asks about a ring that it looks at
 * @is_awake: whether the owner is about to look by itself; any context
 * @has_moved: whether there is something that the owner has not seen; any context,
 *	preemption off; changes nothing
 * @wake: have the owner look: it calls vmloop_watch_idle() when it has. Softirq, or
 *	hard interrupt: schedule
 */
struct vmloop_watch_ops {
	bool (*is_awake)(const struct vmloop_watch *watch);
	bool (*has_moved)(const struct vmloop_watch *watch);
	void (*wake)(struct vmloop_watch *watch);
};

/**
 * struct vmloop_watch - a ring that is looked at while it is expected to fill
 * @ops: of the path
 * @lane: whose ring
 * @watcher: looks at it, or NULL
 * @slot: where in @watcher's table
 * @timer: wakes the owner in any case while @watcher is set
 * @timer_late: it comes late, not being expected to be needed; the watcher reads it
 * @timer_set: when it was set last, in ns
 * @since: when something came last, in ns; the watcher reads it
 * @window: how long the watcher looks after that, in ns; the watcher reads it
 * @idle_since: when the owner last began to wait, in ns
 * @rest_until: not watched before then, in jiffies
 * @misses: windows in a row in which nothing came
 * @stopped: not watched any more
 * @grace: of RCU, when it was stopped
 *
 * All of it belongs to the owner: see watch.c, which keeps it.
 */
struct vmloop_watch {
	const struct vmloop_watch_ops *ops;
	struct vmloop_lane *lane;
	struct vmloop_watcher *watcher;
	unsigned int slot;
	struct hrtimer timer;
	bool timer_late;
	u64 timer_set;
	u64 since;
	u32 window;
	u64 idle_since;
	unsigned long rest_until;
	unsigned int misses;
	bool stopped;
	unsigned long grace;
};

void vmloop_watch_start(struct vmloop_watch *watch,
			const struct vmloop_watch_ops *ops,
			struct vmloop_lane *lane);
void vmloop_watch_woken(struct vmloop_watch *watch);
bool vmloop_watch_idle(struct vmloop_watch *watch, bool work);
void vmloop_watch_end(struct vmloop_watch *watch);
void vmloop_watch_later(struct vmloop_watch *watch);
void vmloop_watch_stop(struct vmloop_watch *watch);
void vmloop_watch_wait(struct vmloop_watch *watch);

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
 * @mark: of the last whole directory that named it; under the core mutex
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

/* Windows ---------------------------------------------------------------- */

#define VMLOOP_WINDOW_BYTES	sizeof_field(struct vmloop_window_lane, path)

/**
 * struct vmloop_window_memory - a window's memory, as a transport has it
 * @base: its first byte, NULL where it has no address
 * @pages: its pages of PAGE_SIZE, in order, for fragments of skbs and for bios; NULL
 *	where it has none
 * @handle: where the peer's transport finds it; the transport's own
 * @priv: the transport's own
 */
struct vmloop_window_memory {
	void *base;
	struct page **pages;
	u64 handle;
	void *priv;
};

/**
 * struct vmloop_window - memory beside a channel's region, for references
 * @channel: whose; not to be used after the path's window_close
 * @path: whose lanes refer to it
 * @priv: the path's own
 * @number: no other one's of its owner in this channel
 * @ours: this side owns it, and writes it; else it can only be read
 * @size: bytes
 * @memory: where it is, from window_up to window_close
 * @said: what the path of its owner says of it: of a window of the peer's it is untrusted
 * @lane: the core's: the lane that stands for it
 * @is_being_made: the core's: it has no memory yet, and no lane
 * @up: the core's: window_up was called, and window_close was not
 * @uses: the core's: who uses it, and one while it is found
 * @refs: the core's: one for the core, others by vmloop_window_get()
 * @rcu: the core's
 */
struct vmloop_window {
	struct vmloop_channel *channel;
	const struct vmloop_path *path;
	void *priv;
	u32 number;
	bool ours;
	u64 size;
	struct vmloop_window_memory memory;
	u8 said[VMLOOP_WINDOW_BYTES];

	struct vmloop_lane *lane;
	bool is_being_made;
	bool up;
	atomic_t uses;
	struct kref refs;
	struct rcu_head rcu;
};

/**
 * struct vmloop_window_ask - what a path wants a window to be
 * @size: bytes, whole pages of VMLOOP_SHM_PAGE, at most VMLOOP_WINDOW_SIZE_MAX
 * @say: for the peer's path
 * @priv: becomes the window's
 */
struct vmloop_window_ask {
	u64 size;
	u8 say[VMLOOP_WINDOW_BYTES];
	void *priv;
};

/* For paths. */
struct vmloop_window *vmloop_channel_window(struct vmloop_channel *channel,
					    const struct vmloop_path *path,
					    const struct vmloop_window_ask *ask);
void vmloop_window_shut(struct vmloop_window *window, u32 reason);
void vmloop_window_get(struct vmloop_window *window);
void vmloop_window_put(struct vmloop_window *window);
struct vmloop_window *vmloop_window_use(const struct vmloop_lane *lane, bool ours,
					u32 number);
void vmloop_window_unuse(struct vmloop_window *window);
bool vmloop_window_has(const struct vmloop_window *window, u64 offset, u64 size);

/**
 * struct vmloop_window_ops - how a transport shares windows; core mutex held
 * @make: memory of so many bytes for our window of that number, zeroed; the peer is to be
 *	able to read it, and nothing more. Fills in @memory and returns 0, or a negative errno.
 *	-EINPROGRESS: vmloop_window_made() follows, unless @free comes before.
 * @free: nothing of ours touches the memory of our window any more, or nothing wants it
 *	any more that was to follow. The peer may have it yet:
 *	what it can read must not be used for anything else before it cannot.
 * @map: have the peer's window of that number, of so many bytes, and with that
 *	@memory->handle (untrusted). Fills in the rest. Returns 0 or a negative errno.
 * @unmap: nothing of ours touches the memory of the peer's window any more.
 */
struct vmloop_window_ops {
	int (*make)(struct vmloop_link *link, u32 number, u64 size,
		    struct vmloop_window_memory *memory);
	void (*free)(struct vmloop_link *link, u32 number,
		     struct vmloop_window_memory *memory);
	int (*map)(struct vmloop_link *link, u32 number, u64 size,
		   struct vmloop_window_memory *memory);
	void (*unmap)(struct vmloop_link *link, u32 number,
		      struct vmloop_window_memory *memory);
};

void vmloop_window_made(struct vmloop_transport *transport, u32 tag, u32 number,
			const struct vmloop_window_memory *memory);

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
 * @again: mandatory for those that call vmloop_directory_change(). Tell the agent anew what
 *	we understand, and have it say the whole directory, not before a second from now: a
 *	part of it was lost, or vmloop_paths_have_windows() has changed. Core mutex held, must
 *	not wait.
 */
struct vmloop_transport_ops {
	int (*request)(struct vmloop_transport *transport, u64 peer, u64 epoch,
		       unsigned int attempt);
	void (*report)(struct vmloop_transport *transport, u32 tag, u32 state);
	void (*advertise)(struct vmloop_transport *transport,
			  const struct vmloop_msg_address *address, u32 count);
	void (*again)(struct vmloop_transport *transport);
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
 * @generation: of the directory; 0: of none
 * @interface_count: interfaces of peers that it has
 * @left_out: it has not all that was said, as that was too much
 * @staged: entries of the directory that is being received
 * @staged_count: entries of @staged
 * @staged_generation: of that directory
 * @staged_begun: one is being received
 * @staged_whole: it replaces the one before, and is not what is new in that
 * @staged_lost: a part of it was
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
	u64 generation;
	u32 interface_count;
	bool left_out;
	struct list_head staged;
	u32 staged_count;
	u64 staged_generation;
	bool staged_begun;
	bool staged_whole;
	bool staged_lost;
};

u64 vmloop_features(void);
bool vmloop_paths_have_windows(void);
int vmloop_transport_register(struct vmloop_transport *transport);
void vmloop_transport_unregister(struct vmloop_transport *transport);

void vmloop_agent_here(struct vmloop_transport *transport,
		       const struct vmloop_msg_welcome *welcome);
void vmloop_agent_gone(struct vmloop_transport *transport);
void vmloop_directory_begin(struct vmloop_transport *transport, u64 generation);
void vmloop_directory_peer(struct vmloop_transport *transport,
			   const struct vmloop_msg_peer *entry);
void vmloop_directory_change(struct vmloop_transport *transport, u64 generation,
			     u64 before);
void vmloop_directory_gone(struct vmloop_transport *transport,
			   const struct vmloop_msg_dir_gone *gone);
void vmloop_directory_end(struct vmloop_transport *transport, u64 generation);
void vmloop_peer_refused(struct vmloop_transport *transport, u64 peer,
			 u32 reason, u32 retry_ms);
void vmloop_channel_close(struct vmloop_transport *transport, u32 tag);
void vmloop_channel_lose(struct vmloop_transport *transport, u32 tag);
void vmloop_stats_report(struct vmloop_transport *transport,
			 void (*report)(struct vmloop_transport *transport,
					const struct vmloop_msg_stats *stats));

/* Doorbells of a side that are of use: one for all lanes, one for each of a peer's. */
#define VMLOOP_BELLS	(1 + VMLOOP_PEER_LANES)

/**
 * struct vmloop_link - the memory and the doorbells of one channel
 * @transport: whose it is
 * @tag: the channel's number in the directory; from the hypervisor
 * @side: which side of the region we are, 0 or 1; from the hypervisor
 * @base: the region, mapped as ordinary memory
 * @size: bytes mapped
 * @bells: how many doorbells of ours there are, from 1 to VMLOOP_BELLS. The first is for
 *	all lanes; each other one is best heard by a CPU of its own
 * @peer_bells: how many of the peer's there are, 1 at least
 * @ring: ring one of the peer's, below @peer_bells; any context
 * @windows: how windows are shared; NULL: they are not
 * @channel: the core's; under RCU, set under the core mutex
 * @used: the core's: its channel has ended, and there will be no other
 * @work: the core's: acts upon what the peer or the lane did
 * @list: the core's
 *
 * A transport fills in all up to @windows, then calls vmloop_link_add().
 */
struct vmloop_link {
	struct vmloop_transport *transport;
	u32 tag;
	unsigned int side;
	void *base;
	size_t size;
	u32 bells;
	u32 peer_bells;
	void (*ring)(struct vmloop_link *link, u32 bell);
	const struct vmloop_window_ops *windows;

	struct vmloop_channel __rcu *channel;
	bool used;
	struct delayed_work work;
	struct list_head list;
};

int vmloop_link_add(struct vmloop_link *link);
void vmloop_link_remove(struct vmloop_link *link);
void vmloop_link_event(struct vmloop_link *link, u32 bell);
unsigned int vmloop_bell_turn(void);
unsigned int vmloop_bell_cpu(unsigned int turn);

#endif /* VMLOOP_H */
