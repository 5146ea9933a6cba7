// SPDX-License-Identifier: GPL-2.0
/*
 * directory.c - who is here: peers and their interfaces, as the host agent
 * says (staging.c), and the asking for a channel to one of them.
 *
 * Owns the peers, the hash of interfaces, and what the directory says of our
 * own interfaces. Changes happen in process context under the core mutex; the
 * data path reads the hash under RCU.
 */
#include <linux/jhash.h>
#include <linux/rculist.h>
#include <linux/slab.h>

#include "core.h"
#include "trace.h"

#define HASH_BITS_	8

LIST_HEAD(vmloop_peers);

/* Written under the core mutex, read under RCU. */
static struct hlist_head interfaces[1 << HASH_BITS_];

static struct hlist_head *bucket(const u8 *local_mac, const u8 *mac)
{
	u32 hash = jhash(mac, ETH_ALEN, jhash(local_mac, ETH_ALEN, 0));

	return &interfaces[hash >> (32 - HASH_BITS_)];
}

/**
 * vmloop_interface_find() - the peer's interface behind a pair of addresses
 * @local_mac: address of the interface of ours
 * @mac: address of the peer's
 *
 * Context: rcu_read_lock() or the core mutex held.
 * Return: the entry, or NULL.
 */
struct vmloop_interface *vmloop_interface_find(const u8 *local_mac,
					       const u8 *mac)
{
	struct vmloop_interface *interface;

	hlist_for_each_entry_rcu(interface, bucket(local_mac, mac), node,
				 lockdep_is_held(&vmloop_mutex))
		if (ether_addr_equal(interface->mac, mac) &&
		    ether_addr_equal(interface->local_mac, local_mac))
			return interface;
	return NULL;
}
EXPORT_SYMBOL_GPL(vmloop_interface_find);

/**
 * vmloop_mac_is_local() - whether the directory knows an interface of ours
 * @mac: its address
 *
 * Context: process context, takes the core mutex.
 * Return: true if some peer can be reached from it.
 */
bool vmloop_mac_is_local(const u8 *mac)
{
	struct vmloop_interface *interface;
	struct vmloop_peer *peer;
	bool found = false;

	mutex_lock(&vmloop_mutex);
	list_for_each_entry(peer, &vmloop_peers, list)
		list_for_each_entry(interface, &peer->interfaces, list)
			found |= ether_addr_equal(interface->local_mac, mac);
	mutex_unlock(&vmloop_mutex);
	return found;
}
EXPORT_SYMBOL_GPL(vmloop_mac_is_local);

/**
 * vmloop_peer_knows() - whether a peer is reached from an interface of ours
 * @peer: the peer
 * @local_mac: address of the interface
 *
 * Context: core mutex held.
 */
bool vmloop_peer_knows(const struct vmloop_peer *peer, const u8 *local_mac)
{
	const struct vmloop_interface *interface;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry(interface, &peer->interfaces, list)
		if (ether_addr_equal(interface->local_mac, local_mac))
			return true;
	return false;
}
EXPORT_SYMBOL_GPL(vmloop_peer_knows);

/**
 * vmloop_local_macs_are() - whether something holds for each of our interfaces
 * that the directory knows
 * @what: says so of an address, in process context under the core mutex
 *
 * Context: process context, takes the core mutex.
 */
bool vmloop_local_macs_are(bool (*what)(const u8 *mac))
{
	struct vmloop_interface *interface;
	struct vmloop_peer *peer;
	bool all = true;

	mutex_lock(&vmloop_mutex);
	list_for_each_entry(peer, &vmloop_peers, list)
		list_for_each_entry(interface, &peer->interfaces, list)
			all = all && what(interface->local_mac);
	mutex_unlock(&vmloop_mutex);
	return all;
}
EXPORT_SYMBOL_GPL(vmloop_local_macs_are);

static void interface_remove(struct vmloop_interface *interface)
{
	vmloop_routes_remove(interface);
	/* None of ours is in the hash. */
	if (interface->peer) {
		hlist_del_rcu(&interface->node);
		interface->peer->transport->interface_count--;
	}
	list_del(&interface->list);
	kfree_rcu(interface, rcu);
}

/**
 * vmloop_peer_find() - a transport's peer by its identity
 * @transport: whose directory
 * @id: the identity
 *
 * Context: core mutex held.
 * Return: the peer, or NULL.
 */
struct vmloop_peer *vmloop_peer_find(struct vmloop_transport *transport, u64 id)
{
	struct vmloop_peer *peer;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry(peer, &vmloop_peers, list)
		if (peer->transport == transport && peer->id == id)
			return peer;
	return NULL;
}

/**
 * vmloop_peer_find_tag() - a transport's peer by its channel's tag
 * @transport: whose directory
 * @tag: the tag, not 0
 *
 * Context: core mutex held.
 * Return: the peer, or NULL.
 */
struct vmloop_peer *vmloop_peer_find_tag(struct vmloop_transport *transport,
					 u32 tag)
{
	struct vmloop_peer *peer;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry(peer, &vmloop_peers, list)
		if (peer->transport == transport && peer->tag == tag)
			return peer;
	return NULL;
}

static void peer_free_rcu(struct rcu_head *rcu)
{
	struct vmloop_peer *peer = container_of(rcu, struct vmloop_peer, rcu);

	free_percpu(peer->stats);
	kfree(peer);
}

static void peer_release(struct kref *refs)
{
	struct vmloop_peer *peer = container_of(refs, struct vmloop_peer, refs);

	/* The data path may still count for it. */
	call_rcu(&peer->rcu, peer_free_rcu);
}

void vmloop_peer_get(struct vmloop_peer *peer)
{
	kref_get(&peer->refs);
}

void vmloop_peer_put(struct vmloop_peer *peer)
{
	kref_put(&peer->refs, peer_release);
}

/**
 * vmloop_peer_set_state() - note how we stand to a peer, and tell who listens
 * @peer: the peer
 * @state: the new state
 * @reason: VMLOOP_REFUSED_* with VMLOOP_CHANNEL_REFUSED, else 0
 *
 * Context: core mutex held.
 */
void vmloop_peer_set_state(struct vmloop_peer *peer,
			   enum vmloop_channel_state state, u32 reason)
{
	lockdep_assert_held(&vmloop_mutex);
	if (peer->state == state && peer->reason == reason)
		return;
	WRITE_ONCE(peer->state, state);	/* vmloop_peer_why_no_lane() */
	peer->reason = reason;
	trace_vmloop_peer_state(peer);
	vmloop_netlink_peer_changed(peer);
}

/**
 * vmloop_peer_request_in() - ask the agent for a channel, later
 * @peer: the peer
 * @delay: when, in jiffies; if that was said before, it stays as it was
 *
 * The work has a reference to the peer: whoever takes the peer out of the
 * directory does not wait for it.
 *
 * Context: any but hard interrupt; core mutex or rcu_read_lock() held.
 */
void vmloop_peer_request_in(struct vmloop_peer *peer, unsigned long delay)
{
	/* Found under RCU, it may be about to be freed. */
	if (!kref_get_unless_zero(&peer->refs))
		return;
	if (!queue_delayed_work(vmloop_workqueue, &peer->request, delay))
		vmloop_peer_put(peer);
}

/**
 * vmloop_peer_request_cancel() - do not ask after all, unless that has begun
 * @peer: the peer; the caller has another reference
 *
 * Context: core mutex held.
 */
void vmloop_peer_request_cancel(struct vmloop_peer *peer)
{
	lockdep_assert_held(&vmloop_mutex);
	if (cancel_delayed_work(&peer->request))
		vmloop_peer_put(peer);
}

/**
 * vmloop_peer_is_shunned() - whether a peer that broke the protocol is refused
 * @peer: the peer
 *
 * Context: core mutex held.
 * Return: true until it is time to try again.
 */
bool vmloop_peer_is_shunned(const struct vmloop_peer *peer)
{
	lockdep_assert_held(&vmloop_mutex);
	return peer->state == VMLOOP_CHANNEL_BROKEN &&
	       (peer->breaks >= VMLOOP_BREAKS_MAX ||
		time_before(jiffies, peer->retry_at));
}

/**
 * vmloop_peer_broke() - a peer's channel has ended because it broke the protocol
 * @peer: the peer
 * @reason: how
 * @up: for how long the channel was up, in jiffies
 *
 * Context: core mutex held.
 */
void vmloop_peer_broke(struct vmloop_peer *peer, enum vmloop_break reason,
		       unsigned long up)
{
	unsigned long delay;

	lockdep_assert_held(&vmloop_mutex);
	if (up >= VMLOOP_BREAK_FORGOTTEN)
		peer->breaks = 0;
	if (peer->breaks < VMLOOP_BREAKS_MAX)
		peer->breaks++;
	peer->break_reason = reason;
	delay = min_t(unsigned long, VMLOOP_BREAK_RETRY << (peer->breaks - 1),
		      VMLOOP_BREAK_RETRY_MAX);
	peer->retry_at = jiffies + delay;
	vmloop_peer_set_state(peer, VMLOOP_CHANNEL_BROKEN, 0);
	if (!peer->gone && peer->breaks < VMLOOP_BREAKS_MAX)
		vmloop_peer_request_in(peer, delay);
}

/* Ask for a peer that broke the protocol when it is time, at once if that is over. */
static void peer_request_retry(struct vmloop_peer *peer)
{
	long left = peer->retry_at - jiffies;

	vmloop_peer_request_in(peer, max(left, 0L));
}

/* May it be asked for again? */
static void peer_forget_answer(struct vmloop_peer *peer)
{
	vmloop_peer_request_cancel(peer);
	peer->attempts = 0;
	clear_bit(0, &peer->wanted);
	vmloop_peer_set_state(peer, VMLOOP_CHANNEL_NONE, 0);
}

static void request_work(struct work_struct *work)
{
	struct vmloop_peer *peer =
		container_of(work, struct vmloop_peer, request.work);
	const struct vmloop_transport_ops *ops;

	set_bit(1, &peer->wanted);
	mutex_lock(&vmloop_mutex);
	if (peer->gone || peer->channel || peer->tag || !vmloop_enabled())
		goto out;
	if (vmloop_peer_is_shunned(peer)) {
		/* After too many breaks it is the operator's to say when. */
		if (peer->breaks < VMLOOP_BREAKS_MAX)
			peer_request_retry(peer);
		goto out;
	}
	/* The agent, or we, said "later", and now it is later. */
	if (peer->state == VMLOOP_CHANNEL_REFUSED ||
	    peer->state == VMLOOP_CHANNEL_BROKEN) {
		peer_forget_answer(peer);
		goto out;
	}

	if (peer->attempts >= VMLOOP_ATTEMPTS) {
		vmloop_peer_set_state(peer, VMLOOP_CHANNEL_FAILED, 0);
		goto out;
	}
	peer->attempts++;
	vmloop_peer_set_state(peer, VMLOOP_CHANNEL_REQUESTED, 0);
	ops = peer->transport->ops;
	/* A question that could not be put is asked again like a lost one. */
	ops->request(peer->transport, peer->id, peer->epoch, peer->attempts);
	vmloop_peer_request_in(peer, VMLOOP_ATTEMPT_TIME);
out:
	mutex_unlock(&vmloop_mutex);
	vmloop_peer_put(peer);	/* taken when this was queued */
}

/**
 * vmloop_peer_id() - a peer's identity, as vmloop_channel_do() wants it
 * @peer: the peer
 *
 * Context: any.
 */
u64 vmloop_peer_id(const struct vmloop_peer *peer)
{
	return peer->id;
}
EXPORT_SYMBOL_GPL(vmloop_peer_id);

/**
 * vmloop_peer_want() - there is a frame for a peer, and no channel
 * @peer: the peer
 *
 * Asks for a channel unless that was done already. Cheap when it was.
 *
 * Context: any but hard interrupt; rcu_read_lock() or the core mutex held.
 */
void vmloop_peer_want(struct vmloop_peer *peer)
{
	if (test_bit(0, &peer->wanted) || test_and_set_bit(0, &peer->wanted))
		return;
	vmloop_peer_request_in(peer, 0);
}
EXPORT_SYMBOL_GPL(vmloop_peer_want);

/**
 * vmloop_channel_want() - there is something for a peer other than a frame, and no channel
 * @id: the peer's identity
 *
 * As vmloop_peer_want(). Context: process context, takes the core mutex.
 */
void vmloop_channel_want(u64 id)
{
	struct vmloop_peer *peer;

	mutex_lock(&vmloop_mutex);
	list_for_each_entry(peer, &vmloop_peers, list)
		if (peer->id == id)
			vmloop_peer_want(peer);
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_channel_want);

/**
 * vmloop_peer_want_first() - there will be frames for a peer that may be new
 * @peer: the peer
 *
 * Asks for a channel if nobody has since it is in the directory: one that was
 * closed because it was idle stays closed until there is a frame.
 *
 * Context: any but hard interrupt; rcu_read_lock() held.
 */
void vmloop_peer_want_first(struct vmloop_peer *peer)
{
	if (!READ_ONCE(peer->wanted))
		vmloop_peer_want(peer);
}
EXPORT_SYMBOL_GPL(vmloop_peer_want_first);

/**
 * vmloop_peer_refused() - the agent makes no channel to a peer
 * @transport: whose agent
 * @id: the peer's identity
 * @reason: VMLOOP_REFUSED_*
 * @retry_ms: ask again after so many milliseconds at the earliest, 0: when
 *	the directory changes
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_peer_refused(struct vmloop_transport *transport, u64 id,
			 u32 reason, u32 retry_ms)
{
	struct vmloop_peer *peer;

	mutex_lock(&vmloop_mutex);
	peer = vmloop_peer_find(transport, id);
	if (peer && peer->state == VMLOOP_CHANNEL_REQUESTED) {
		vmloop_peer_request_cancel(peer);
		vmloop_peer_set_state(peer, VMLOOP_CHANNEL_REFUSED, reason);
		if (retry_ms)
			vmloop_peer_request_in(peer,
					       msecs_to_jiffies(min(retry_ms,
								    3600000U)));
	}
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_peer_refused);

/* The operator, or a change of the directory, gives it another chance. */
void vmloop_peer_request_now(struct vmloop_peer *peer)
{
	lockdep_assert_held(&vmloop_mutex);
	peer->breaks = 0;
	peer->break_reason = VMLOOP_BREAK_NONE;
	if (!peer->channel)
		peer_forget_answer(peer);
}

static struct vmloop_peer *peer_new(struct vmloop_transport *transport, u64 id)
{
	struct vmloop_peer *peer;
	int cpu;

	peer = kzalloc(sizeof(*peer), GFP_KERNEL);
	if (!peer)
		return NULL;
	peer->stats = alloc_percpu(struct vmloop_stats);
	if (!peer->stats) {
		kfree(peer);
		return NULL;
	}
	for_each_possible_cpu(cpu)
		u64_stats_init(&per_cpu_ptr(peer->stats, cpu)->sync);

	peer->transport = transport;
	peer->id = id;
	INIT_DELAYED_WORK(&peer->request, request_work);
	INIT_LIST_HEAD(&peer->interfaces);
	kref_init(&peer->refs);
	list_add_tail(&peer->list, &vmloop_peers);
	return peer;
}

/*
 * Takes a peer out of the directory. Its channel, if any, is shut at once;
 * the link goes when the transport's device does. A request that runs, or that
 * the data path is about to queue, has its own reference, sees that the peer is
 * gone, and does nothing.
 */
static void peer_remove(struct vmloop_peer *peer)
{
	struct vmloop_interface *interface, *next;

	list_for_each_entry_safe(interface, next, &peer->interfaces, list)
		interface_remove(interface);
	peer->gone = true;
	peer->tag = 0;
	if (peer->channel)
		vmloop_channel_shut(peer->channel, false);
	list_del(&peer->list);
	vmloop_peer_request_cancel(peer);
	vmloop_peer_put(peer);
}

/* An interface as the directory says; found by its addresses, not listed yet. */
static struct vmloop_interface *
interface_new(struct vmloop_peer *peer, const struct vmloop_msg_peer *entry,
	      const struct vmloop_interface *old, u64 mark)
{
	struct vmloop_interface *interface;

	interface = kzalloc(sizeof(*interface), GFP_KERNEL);
	if (!interface)
		return NULL;
	interface->peer = peer;
	ether_addr_copy(interface->local_mac, entry->local_mac);
	ether_addr_copy(interface->mac, entry->mac);
	ether_addr_copy(interface->gateway, entry->gateway);
	interface->flags = entry->flags;
	interface->mtu = entry->mtu;
	if (!(entry->flags & VMLOOP_PEER_KEEP)) {
		interface->ip_count = min_t(u16, entry->ip_count,
					    VMLOOP_PEER_IPS);
		memcpy(interface->ip, entry->ip, sizeof(interface->ip));
	} else if (old) {
		interface->ip_count = old->ip_count;
		memcpy(interface->ip, old->ip, sizeof(interface->ip));
	}
	interface->mark = mark;
	vmloop_routes_add(interface, old);
	return interface;
}

/* Returns 0; -ENOMEM; -ENOSPC if there are too many. */
static int interface_update(struct vmloop_peer *peer,
			    const struct vmloop_msg_peer *entry, u64 mark)
{
	struct vmloop_interface *interface, *old;

	old = vmloop_interface_find(entry->local_mac, entry->mac);
	/* The first to come keeps a pair of addresses. */
	if (old && old->peer != peer && !old->peer->gone)
		return 0;
	if (!old && peer->transport->interface_count >= VMLOOP_DIRECTORY_MAX)
		return -ENOSPC;

	interface = interface_new(peer, entry, old, mark);
	if (!interface)
		return -ENOMEM;
	list_add_tail(&interface->list, &peer->interfaces);

	if (old) {
		vmloop_routes_remove(old);
		hlist_replace_rcu(&old->node, &interface->node);
		list_del(&old->list);
		kfree_rcu(old, rcu);
	} else {
		hlist_add_head_rcu(&interface->node,
				   bucket(entry->local_mac, entry->mac));
		peer->transport->interface_count++;
	}
	return 0;
}

static struct vmloop_interface *ours_find(struct vmloop_transport *transport,
					  const u8 *mac)
{
	struct vmloop_interface *interface;

	list_for_each_entry(interface, &transport->ours, list)
		if (ether_addr_equal(interface->local_mac, mac))
			return interface;
	return NULL;
}

/* One of our own interfaces, with the addresses that peers know of. */
static int ours_update(struct vmloop_transport *transport,
		       const struct vmloop_msg_peer *entry, u64 mark)
{
	struct vmloop_interface *interface, *old;

	old = ours_find(transport, entry->local_mac);
	interface = interface_new(NULL, entry, old, mark);
	if (!interface)
		return -ENOMEM;
	list_add_tail(&interface->list, &transport->ours);
	if (old)
		interface_remove(old);
	return 0;
}

/* What the directory has under the key of an entry: one of ours too; or NULL. */
static struct vmloop_interface *
interface_of(struct vmloop_transport *transport,
	     const struct vmloop_msg_peer *entry)
{
	struct vmloop_interface *interface;

	if (entry->id == transport->id)
		return ours_find(transport, entry->local_mac);
	interface = vmloop_interface_find(entry->local_mac, entry->mac);
	if (!interface || interface->peer->transport != transport ||
	    interface->peer->id != entry->id)
		return NULL;
	return interface;
}

/**
 * vmloop_entry_apply() - an entry of the directory holds from now on
 * @transport: whose
 * @entry: what the agent said, checked by staging.c
 * @mark: of this directory, not 0
 *
 * Context: process context, core mutex held.
 * Return: 0; -ENOMEM; or -ENOSPC for one that is left out, as there are too many.
 */
int vmloop_entry_apply(struct vmloop_transport *transport,
		       const struct vmloop_msg_peer *entry, u64 mark)
{
	struct vmloop_peer *peer;
	u32 without;

	lockdep_assert_held(&vmloop_mutex);
	if (entry->id == transport->id)
		return ours_update(transport, entry, mark);

	peer = vmloop_peer_find(transport, entry->id);
	/* Two lives of the same guest at once: the first one named counts. */
	if (peer && peer->epoch != entry->epoch)
		return 0;
	if (!peer) {
		peer = peer_new(transport, entry->id);
		if (!peer)
			return -ENOMEM;
		peer->epoch = entry->epoch;
		peer->mark = mark;
		strscpy(peer->name, entry->name, sizeof(peer->name));
		vmloop_netlink_peer_changed(peer);
	}

	/* A channel without packets is none. */
	without = entry->flags >> VMLOOP_PEER_WITHOUT_SHIFT &
		  ~BIT(VMLOOP_LANE_PACKET);
	if (peer->without != without) {
		peer->without = without;
		if (peer->channel)
			vmloop_lanes_policy(peer->channel);
	}
	if (peer->tag != entry->tag) {
		if (peer->channel && peer->channel->link->tag != entry->tag)
			vmloop_channel_shut(peer->channel, true);
		peer->tag = entry->tag;
		if (peer->tag)
			vmloop_peer_request_cancel(peer);
		/* Who asked while the old channel was named did so in vain. */
		else if (!peer->channel && peer->state == VMLOOP_CHANNEL_NONE)
			peer_forget_answer(peer);
		/* Its turn may have come while the broken channel was still named. */
		else if (!peer->channel &&
			 peer->state == VMLOOP_CHANNEL_BROKEN &&
			 peer->breaks < VMLOOP_BREAKS_MAX)
			peer_request_retry(peer);
	}
	return interface_update(peer, entry, mark);
}

/**
 * vmloop_entry_remove() - an entry of the directory does not hold any more
 * @transport: whose
 * @entry: one with its id and addresses
 *
 * Its peer stays until vmloop_directory_settle().
 *
 * Context: core mutex held.
 */
void vmloop_entry_remove(struct vmloop_transport *transport,
			 const struct vmloop_msg_peer *entry)
{
	struct vmloop_interface *interface = interface_of(transport, entry);

	lockdep_assert_held(&vmloop_mutex);
	if (interface)
		interface_remove(interface);
}

/**
 * vmloop_entry_ends_life() - the directory names another life of a peer
 * @transport: whose
 * @entry: an entry with an epoch that the peer may not have
 *
 * Context: core mutex held.
 */
void vmloop_entry_ends_life(struct vmloop_transport *transport,
			    const struct vmloop_msg_peer *entry)
{
	struct vmloop_peer *peer = vmloop_peer_find(transport, entry->id);

	if (peer && peer->epoch != entry->epoch)
		peer_remove(peer);
}

/**
 * vmloop_entry_mark() - a directory names what it did before, as far as it did
 * @transport: whose
 * @entry: an entry
 * @mark: of this directory
 *
 * Context: core mutex held.
 */
void vmloop_entry_mark(struct vmloop_transport *transport,
		       const struct vmloop_msg_peer *entry, u64 mark)
{
	struct vmloop_interface *interface;
	struct vmloop_peer *peer;

	if (entry->id != transport->id) {
		peer = vmloop_peer_find(transport, entry->id);
		if (!peer || peer->epoch != entry->epoch)
			return;
		peer->mark = mark;
	}
	interface = interface_of(transport, entry);
	if (interface)
		interface->mark = mark;
}

/**
 * vmloop_directory_sweep() - forget peers and interfaces that a directory does not name
 * @transport: whose
 * @mark: of the directory; 0: of none
 *
 * Context: core mutex held.
 */
void vmloop_directory_sweep(struct vmloop_transport *transport, u64 mark)
{
	struct vmloop_interface *interface, *next;
	struct vmloop_peer *peer, *next_peer;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry_safe(interface, next, &transport->ours, list)
		if (interface->mark != mark)
			interface_remove(interface);
	list_for_each_entry_safe(peer, next_peer, &vmloop_peers, list) {
		if (peer->transport != transport)
			continue;
		if (peer->mark != mark) {
			peer_remove(peer);
			continue;
		}
		list_for_each_entry_safe(interface, next, &peer->interfaces,
					 list)
			if (interface->mark != mark)
				interface_remove(interface);
	}
}

/**
 * vmloop_directory_settle() - all entries of a directory hold
 * @transport: whose
 *
 * Peers without an interface go; what was refused may be asked for again.
 *
 * Context: core mutex held.
 */
void vmloop_directory_settle(struct vmloop_transport *transport)
{
	struct vmloop_peer *peer, *next;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry_safe(peer, next, &vmloop_peers, list) {
		if (peer->transport != transport)
			continue;
		if (list_empty(&peer->interfaces))
			peer_remove(peer);
		else if (!peer->tag && !peer->channel &&
			 (peer->state == VMLOOP_CHANNEL_REFUSED ||
			  peer->state == VMLOOP_CHANNEL_FAILED))
			peer_forget_answer(peer);
	}
	vmloop_paths_directory_changed();
}

/**
 * vmloop_directory_clear() - forget all that a transport's agent said
 * @transport: whose
 *
 * Context: core mutex held.
 */
void vmloop_directory_clear(struct vmloop_transport *transport)
{
	vmloop_staging_clear(transport);
	transport->generation = 0;
	vmloop_directory_sweep(transport, 0);
	vmloop_directory_settle(transport);
}
