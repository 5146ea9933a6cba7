/* SPDX-License-Identifier: GPL-2.0 */
/*
 * core.h - what the files of the core share among themselves.
 */
#ifndef VMLOOP_CORE_H
#define VMLOOP_CORE_H

#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/timer.h>

#include "area.h"
#include "life.h"
#include "news.h"
#include "vmloop.h"

/* How often, and how long, a question to the agent is worth asking. */
#define VMLOOP_ATTEMPTS		3
#define VMLOOP_ATTEMPT_TIME	HZ

/* How long a closing channel may take to drain. */
#define VMLOOP_DRAIN_TIME	(HZ / 5)

/*
 * A peer is stalled that consumes nothing for so long, or has not consumed in
 * VMLOOP_STALL_READ_TIME what was published when that began.
 */
#define VMLOOP_STALL_TIME	msecs_to_jiffies(300)
#define VMLOOP_STALL_READ_TIME	HZ

/*
 * After a peer broke the protocol it is asked again later and later, and after
 * so many times in a row not before an operator says so. A channel that was up
 * for so long begins a new row.
 */
#define VMLOOP_BREAKS_MAX	8
#define VMLOOP_BREAK_RETRY	HZ
#define VMLOOP_BREAK_RETRY_MAX	(300 * HZ)
#define VMLOOP_BREAK_FORGOTTEN	(600 * HZ)

/*
 * Lanes that a peer may open one right after the other, of paths whose lanes have
 * slots: those of all slots, and again.
 */
#define VMLOOP_ACCEPTS_MAX	(2UL * VMLOOP_PEER_LANES)

/* The same of windows, and how many more it gets each second. */
#define VMLOOP_WINDOW_ACCEPTS_MAX	(8UL * VMLOOP_WINDOWS_MAX)
#define VMLOOP_WINDOWS_A_SECOND		8UL

/*
 * How often a peer may open or withdraw a lane, of any kind, at once; and each second after that.
 * Lanes that are refused count: a peer can open those without end, at little cost to itself.
 */
#define VMLOOP_OPENS_MAX	8192UL
#define VMLOOP_OPENS_A_SECOND	4096UL

/* How long a channel that begins waits for those that the peer has yet to open. */
#define VMLOOP_SLOTS_TIME	HZ

/* Interfaces of peers that one transport's directory may hold. */
#define VMLOOP_DIRECTORY_MAX	4096

/* Protects all that changes state: transports, peers, channels, paths. */
extern struct mutex vmloop_mutex;
extern struct workqueue_struct *vmloop_workqueue;

/**
 * struct vmloop_peer - another guest that the directory names
 * @transport: whose directory
 * @id: its identity
 * @epoch: which life of it
 * @name: its name on the host
 * @tag: channel that the agent made for it, 0 for none
 * @without: kinds of lanes that the policy does not have for it, a bit of each
 * @state: how we stand to it
 * @reason: VMLOOP_REFUSED_*, with state REFUSED
 * @attempts: how often we have asked for a channel
 * @breaks: how often in a row it broke the protocol
 * @break_reason: how it did last
 * @retry_at: with state BROKEN: not to be asked before then, in jiffies
 * @gone: it was taken out of the directory
 * @wanted: bit 0: a frame for it asked for a channel; bit 1: one once did
 * @channel: its channel from the link's arrival to its removal
 * @up: the lanes that producers use while the channel is up, by slot; RCU
 * @request: asks the agent; vmloop_peer_request_in()
 * @interfaces: its interfaces
 * @mark: of the last whole directory that named it
 * @stats: its counters; they outlive its channels
 * @list: in the list of all peers
 * @refs: one for the directory, one for each channel, one for @request while
 *	it is queued or runs
 * @rcu: frees it
 *
 * All under the core mutex, but @wanted (atomic), @up (RCU) and @stats.
 */
struct vmloop_peer {
	struct vmloop_transport *transport;
	u64 id;
	u64 epoch;
	char name[32];
	u32 tag;
	u32 without;
	enum vmloop_channel_state state;
	u32 reason;
	unsigned int attempts;
	unsigned int breaks;
	enum vmloop_break break_reason;
	unsigned long retry_at;
	bool gone;
	unsigned long wanted;
	struct vmloop_channel *channel;
	struct vmloop_lane __rcu *up[VMLOOP_PEER_LANES];
	struct delayed_work request;
	struct list_head interfaces;
	u64 mark;
	struct vmloop_stats __percpu *stats;
	struct list_head list;
	struct kref refs;
	struct rcu_head rcu;
};

/**
 * struct vmloop_slot - what is kept of a lane's number from one lane to the next
 * @life: how it stands
 * @seen: @life.theirs, for readers without a lock
 * @tx_end: where our last ring of that number ended
 * @rx_end: where the other side's did
 * @lane: its lane, from its opening here to its end
 * @events: what doorbells for it go to, while there is such a lane; under the
 *	channel's event_lock
 *
 * Under the core mutex, but for @seen and @events.
 */
struct vmloop_slot {
	struct vmloop_life life;
	u32 seen;
	u32 tx_end;
	u32 rx_end;
	struct vmloop_lane *lane;
	struct vmloop_lane *events;
};

/**
 * struct vmloop_bell - a doorbell of ours that is for one lane
 * @lock: as a channel's event_lock
 * @lane: which one, from its opening here to its closing; NULL for none. Changed under the
 *	core mutex as well
 */
struct vmloop_bell {
	spinlock_t lock;	/* protects lane */
	struct vmloop_lane *lane;
} ____cacheline_aligned_in_smp;

/**
 * struct vmloop_accepts - what the peer may have us do
 * @left: how often, at once
 * @at: when that last grew, in jiffies
 */
struct vmloop_accepts {
	unsigned long left;
	unsigned long at;
};

/**
 * struct vmloop_channel - the link to one peer
 * @peer: whom it leads to; holds a reference
 * @link: its memory and doorbells
 * @region: the memory, checked
 * @state: OPENING, UP or CLOSING
 * @met: the peer was seen READY, and is what it says
 * @broken: how the peer broke the protocol, if it did; latched, single word
 * @deadline: when draining ends, in jiffies
 * @up_since: when it came up, in jiffies
 * @idle: reported as idle
 * @idle_frames: sum of frames when last looked at
 * @idle_since: when that sum last changed, in jiffies
 * @lanes: all of its lanes, struct vmloop_lane
 * @event_lock: of what doorbells tell: @news_rx and each slot's events
 * @only: with version 1: its one lane; under @event_lock
 * @slots: with version 2: one for each lane of the region
 * @used: with version 2: lanes in use, at most those of the region; 2 until the
 *	peer has said how many it uses
 * @rung: when it was last rung for the life of a lane, in jiffies
 * @slots_until: how long to wait for slots of the peer's after it was met, in jiffies
 * @accepts: lanes that the peer may open at once, of paths whose lanes have slots
 * @window_accepts: the same of windows
 * @opens: the same of all lanes that it opens or withdraws, whether or not they are accepted
 * @want_delay: how long to wait before a lane is asked for again, in jiffies
 * @want_at: when it is, in jiffies
 * @look: with version 2: a bit for each lane whose other side has moved; atomic
 * @area: with version 2: which parts of our data are rings
 * @nodes: of @area
 * @news_rx: with version 2: what the peer tells by doorbells
 * @tell_lock: of @news_tx
 * @news_tx: with version 2: what we tell by them
 * @bell_ns: what ringing the peer's first doorbell costs, a moving average in ns; single word
 * @bells: our doorbells from number 1 on
 * @windows: the peer's, and ours, by the remainders of their numbers
 * @windows_up: those that are found; under RCU
 * @window_count: how many of ours there have been
 *
 * Under the core mutex, but for the single words and what has a lock here.
 */
struct vmloop_channel {
	struct vmloop_peer *peer;
	struct vmloop_link *link;
	struct vmloop_region region;
	enum vmloop_channel_state state;
	bool met;
	enum vmloop_break broken;
	unsigned long deadline;
	unsigned long up_since;
	bool idle;
	u64 idle_frames;
	unsigned long idle_since;
	struct list_head lanes;

	spinlock_t event_lock;	/* protects only, slots[].events, news_rx */
	struct vmloop_lane *only;
	struct vmloop_slot *slots;
	u32 used;
	unsigned long rung;
	unsigned long slots_until;
	struct vmloop_accepts accepts;
	struct vmloop_accepts window_accepts;
	struct vmloop_accepts opens;
	unsigned long want_delay;
	unsigned long want_at;
	unsigned long *look;
	struct vmloop_area area;
	u8 *nodes;
	struct vmloop_news_rx news_rx;
	spinlock_t tell_lock;	/* protects news_tx */
	struct vmloop_news_tx news_tx;
	u32 bell_ns;
	struct vmloop_bell bells[VMLOOP_BELLS - 1];
	struct vmloop_window *windows[2][VMLOOP_WINDOWS_MAX];
	struct vmloop_window __rcu *windows_up[2][VMLOOP_WINDOWS_MAX];
	u32 window_count;
};

/* Whether the host's policy has lanes of a path for the two. Context: core mutex held. */
static inline bool vmloop_policy_has(const struct vmloop_channel *channel,
				     const struct vmloop_path *path)
{
	return !(channel->peer->without & BIT(path->kind));
}

/* directory.c */
extern struct list_head vmloop_peers;
struct vmloop_peer *vmloop_peer_find(struct vmloop_transport *transport, u64 id);
struct vmloop_peer *vmloop_peer_find_tag(struct vmloop_transport *transport,
					 u32 tag);
void vmloop_peer_get(struct vmloop_peer *peer);
void vmloop_peer_put(struct vmloop_peer *peer);
void vmloop_peer_set_state(struct vmloop_peer *peer,
			   enum vmloop_channel_state state, u32 reason);
void vmloop_peer_request_now(struct vmloop_peer *peer);
void vmloop_peer_request_in(struct vmloop_peer *peer, unsigned long delay);
void vmloop_peer_request_cancel(struct vmloop_peer *peer);
void vmloop_peer_broke(struct vmloop_peer *peer, enum vmloop_break reason,
		       unsigned long up);
bool vmloop_peer_is_shunned(const struct vmloop_peer *peer);
int vmloop_entry_apply(struct vmloop_transport *transport,
		       const struct vmloop_msg_peer *entry, u64 mark);
void vmloop_entry_remove(struct vmloop_transport *transport,
			 const struct vmloop_msg_peer *entry);
void vmloop_entry_ends_life(struct vmloop_transport *transport,
			    const struct vmloop_msg_peer *entry);
void vmloop_entry_mark(struct vmloop_transport *transport,
		       const struct vmloop_msg_peer *entry, u64 mark);
void vmloop_directory_sweep(struct vmloop_transport *transport, u64 mark);
void vmloop_directory_settle(struct vmloop_transport *transport);
void vmloop_directory_clear(struct vmloop_transport *transport);
u64 vmloop_peer_counter(const struct vmloop_peer *peer,
			enum vmloop_counter counter);

/* staging.c */
void vmloop_staging_clear(struct vmloop_transport *transport);

/* route.c */
void vmloop_routes_add(struct vmloop_interface *interface,
		       const struct vmloop_interface *old);
void vmloop_routes_remove(struct vmloop_interface *interface);

/* link.c */
void vmloop_link_look(struct vmloop_link *link);
void vmloop_link_look_in(struct vmloop_link *link, unsigned long delay);
void vmloop_link_report(struct vmloop_link *link, u32 state);
void vmloop_channels_adopt(struct vmloop_transport *transport);
struct vmloop_channel *vmloop_link_channel(const struct vmloop_transport *transport, u32 tag);
void vmloop_channels_report(struct vmloop_transport *transport);
void vmloop_channels_look(struct vmloop_transport *transport);
void vmloop_channels_end(const struct vmloop_path *path);
struct vmloop_channel *vmloop_channel_next(struct vmloop_channel *channel);

/* channel.c */
void vmloop_channel_begin(struct vmloop_link *link, struct vmloop_peer *peer);
void vmloop_channel_look(struct vmloop_channel *channel);
void vmloop_channel_shut(struct vmloop_channel *channel, bool peer_alive);
void vmloop_channel_end(struct vmloop_channel *channel, bool peer_alive);
u32 vmloop_channel_lanes(const struct vmloop_channel *channel, u32 *ring_size);
const char *vmloop_channel_state_name(enum vmloop_channel_state state);

/* table.c */
int vmloop_table_make(struct vmloop_channel *channel);
void vmloop_table_free(struct vmloop_channel *channel);

/* room.c */
int vmloop_room_take(struct vmloop_channel *channel, const struct vmloop_lane_ask *ask,
		     u32 *size, u32 *offset);

/* lane.c */
struct vmloop_lane *vmloop_lane_only(struct vmloop_channel *channel,
				     const struct vmloop_path *path);
int vmloop_lane_only_up(struct vmloop_channel *channel);
void vmloop_lanes_take_back(struct vmloop_channel *channel);
void vmloop_lane_leave_room(struct vmloop_lane *lane);
void vmloop_lane_give_room(struct vmloop_lane *lane);
void vmloop_lane_shut_locked(struct vmloop_lane *lane, u32 reason);
bool vmloop_lanes_have(const struct vmloop_channel *channel,
		       const struct vmloop_path *path);
void vmloop_lanes_path_shut(struct vmloop_channel *channel,
			    const struct vmloop_path *path);
void vmloop_lanes_path_gone(struct vmloop_channel *channel,
			    const struct vmloop_path *path);
void vmloop_lanes_policy(struct vmloop_channel *channel);
void vmloop_lanes_look(struct vmloop_channel *channel);
void vmloop_lanes_want(struct vmloop_channel *channel);
bool vmloop_lanes_are_used(const struct vmloop_channel *channel);
bool vmloop_lanes_answered(const struct vmloop_channel *channel);
void vmloop_lanes_down(struct vmloop_channel *channel);
bool vmloop_lanes_are_drained(struct vmloop_channel *channel);
void vmloop_lanes_close(struct vmloop_channel *channel);
void vmloop_lanes_end(struct vmloop_channel *channel);

/* window.c */
extern const struct vmloop_path vmloop_windows;
void vmloop_windows_drop(struct vmloop_channel *channel, const struct vmloop_path *path);
const struct vmloop_path *vmloop_window_path(const struct vmloop_lane *lane);
void vmloop_window_forget(const struct vmloop_lane *lane);

/* bell.c */
void vmloop_bells_init(struct vmloop_channel *channel);
u32 vmloop_bell_for(const struct vmloop_channel *channel, u32 slot);
void vmloop_bell_enter(struct vmloop_lane *lane);
void vmloop_bell_leave(const struct vmloop_lane *lane);
bool vmloop_bell_tell(struct vmloop_channel *channel, u32 number);
void vmloop_bell_take(struct vmloop_channel *channel);

/* watch.c */
int vmloop_watchers_init(void);
void vmloop_watchers_exit(void);

/* stall.c */
void vmloop_stall_init(struct vmloop_lane *lane);
void vmloop_stall_stop(struct vmloop_lane *lane);

/* path.c */
const struct vmloop_path *vmloop_path_find(u32 kind);
bool vmloop_paths_are_there(void);
u64 vmloop_paths_features(void);
void vmloop_paths_channel_open(struct vmloop_channel *channel);
void vmloop_paths_directory_changed(void);
bool vmloop_paths_are_told(void);
void vmloop_path_init(void);
void vmloop_path_exit(void);

/* transport.c */
extern struct list_head vmloop_transports;

/* address.c */
int vmloop_address_init(void);
void vmloop_address_exit(void);
void vmloop_address_advertise(void);

/* netlink.c */
int vmloop_netlink_init(void);
void vmloop_netlink_exit(void);
void vmloop_netlink_peer_changed(struct vmloop_peer *peer);
bool vmloop_enabled(void);

#endif /* VMLOOP_CORE_H */
