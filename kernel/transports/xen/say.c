// SPDX-License-Identifier: GPL-2.0
/*
 * say.c - what we tell dom0: nodes below data/vmloop in XenStore.
 *
 * Owns what is still to be told. Writing to XenStore sleeps and takes long,
 * so what the core says under its mutex is noted under says_lock, and told by
 * a work of our queue. What was told last is the queue's alone.
 */
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/utsname.h>

#include <xen/xenbus.h>

#include "xen.h"

#define OURS		"data/vmloop"

/* What XenStore would not take is told again. */
#define SAY_AGAIN	HZ

/* A question that is answered goes when nothing else is to be told. */
#define SETTLE_AFTER	HZ

/* Addresses in one node: well below what XenStore takes from a guest. */
#define ADDRESSES_A_NODE	16
#define ADDRESS_BYTES		72

/* Channels whose counters are told, as many as dom0 looks at. */
#define STATS_MAX	256

/**
 * struct want - a question for a channel that dom0 has not answered yet
 * @list: in the list of all
 * @peer: to whom
 * @epoch: which life of it
 * @attempt: how often the core has asked
 * @ask: to be told
 * @settled: answered: the node is to go
 */
struct want {
	struct list_head list;
	u64 peer;
	u64 epoch;
	unsigned int attempt;
	bool ask;
	bool settled;
};

/* Protects what follows, up to the next function. */
static DEFINE_SPINLOCK(says_lock);
static bool open;		/* dom0 is told things at all */
static LIST_HEAD(wants);
static struct vmloop_msg_address next_address[VMLOOP_ADVERTISE_MAX];
static u32 next_count;
static bool address_changed;

static void say_work_fn(struct work_struct *work);
static DECLARE_DELAYED_WORK(say_work, say_work_fn);

/* Used by the queue, and while nothing is queued. */
static bool is_said = true;	/* what an earlier life of ours said, too */
static struct vmloop_msg_address said_address[VMLOOP_ADVERTISE_MAX];
static struct vmloop_msg_address new_address[VMLOOP_ADVERTISE_MAX];
static u32 said_count;
static bool has_said;

static int complain(int err, const char *what)
{
	if (err)
		pr_warn_ratelimited("vmloop_xen: XenStore does not take %s: error %d\n",
				    what, -err);
	return err;
}

/* Questions -------------------------------------------------------------- */

static struct want *want_find(u64 peer)
{
	struct want *want;

	list_for_each_entry(want, &wants, list)
		if (want->peer == peer)
			return want;
	return NULL;
}

/**
 * vmloop_xen_request() - the core asks for a channel to a peer
 * @transport: ours
 * @peer: its identity
 * @epoch: its epoch
 * @attempt: 1, 2 or 3
 *
 * Context: core mutex held.
 * Return: 0 or a negative errno if the question could not be put.
 */
int vmloop_xen_request(struct vmloop_transport *transport, u64 peer, u64 epoch,
		       unsigned int attempt)
{
	struct want *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL);
	struct want *want;
	int err = 0;

	spin_lock(&says_lock);
	want = want_find(peer);
	if (!open) {
		err = -ENOTCONN;
	} else if (!want && fresh) {
		want = fresh;
		fresh = NULL;
		want->peer = peer;
		list_add_tail(&want->list, &wants);
	} else if (!want) {
		err = -ENOMEM;
	}
	if (!err) {
		want->epoch = epoch;
		want->attempt = attempt;
		want->ask = true;
		want->settled = false;
		mod_delayed_work(vmloop_xen_queue, &say_work, 0);
	}
	spin_unlock(&says_lock);
	kfree(fresh);
	return err;
}

/**
 * vmloop_xen_wants_settle() - forget questions that are answered
 * @settled: says of a peer whether it is; must not sleep
 * @what: passed to @settled
 *
 * Context: a work of our queue.
 */
void vmloop_xen_wants_settle(bool (*settled)(u64 peer, const void *what),
			     const void *what)
{
	struct want *want;

	spin_lock(&says_lock);
	list_for_each_entry(want, &wants, list) {
		/* A question that dom0 has not seen was not answered. */
		if (want->ask || !settled(want->peer, what))
			continue;
		want->settled = true;
		/* Does nothing if more urgent things are to be told. */
		queue_delayed_work(vmloop_xen_queue, &say_work, SETTLE_AFTER);
	}
	spin_unlock(&says_lock);
}

/* Next question to put or to forget; false if there is none. */
static bool want_take(struct want *copy)
{
	struct want *want;

	spin_lock(&says_lock);
	list_for_each_entry(want, &wants, list) {
		if (!want->ask && !want->settled)
			continue;
		*copy = *want;
		want->ask = false;
		if (want->settled) {
			list_del(&want->list);
			kfree(want);
		}
		spin_unlock(&says_lock);
		return true;
	}
	spin_unlock(&says_lock);
	return false;
}

static void say_wants(void)
{
	struct want want;
	char node[24];

	while (want_take(&want)) {
		snprintf(node, sizeof(node), "%llu", want.peer);
		if (want.settled)
			xenbus_rm(XBT_NIL, OURS "/want", node);
		else
			/* If it fails: the core asks again. */
			complain(xenbus_printf(XBT_NIL, OURS "/want", node,
					       "%016llx %u", want.epoch,
					       want.attempt), "a question");
	}
}

/* Addresses -------------------------------------------------------------- */

/**
 * vmloop_xen_advertise() - the core says all of our IP addresses
 * @transport: ours
 * @address: the addresses
 * @count: how many
 *
 * Context: core mutex held.
 */
void vmloop_xen_advertise(struct vmloop_transport *transport,
			  const struct vmloop_msg_address *address, u32 count)
{
	count = min_t(u32, count, VMLOOP_ADVERTISE_MAX);
	spin_lock(&says_lock);
	memcpy(next_address, address, count * sizeof(*address));
	next_count = count;
	if (open) {
		address_changed = true;
		mod_delayed_work(vmloop_xen_queue, &say_work, 0);
	}
	spin_unlock(&says_lock);
}

static size_t print_address(char *text, size_t size,
			    const struct vmloop_msg_address *address)
{
	return address->family == VMLOOP_ADDR_IPV4 ?
	       scnprintf(text, size, " %pM %pI4/%u", address->mac, address->ip,
			 address->prefix) :
	       scnprintf(text, size, " %pM %pI6c/%u", address->mac, address->ip,
			 address->prefix);
}

/* Tells @count addresses, of which the first node says how many there are. */
static int write_addresses(const struct vmloop_msg_address *address, u32 count)
{
	u32 first = rounddown(count ? count - 1 : 0, ADDRESSES_A_NODE);
	size_t size = ADDRESSES_A_NODE * ADDRESS_BYTES;
	size_t used;
	char node[24];
	char *text;
	int err = 0;
	u32 i;

	text = kmalloc(size, GFP_KERNEL);
	if (!text)
		return -ENOMEM;
	/* The first one last: it says that all is there. */
	for (;; first -= ADDRESSES_A_NODE) {
		used = first ? 0 : scnprintf(text, size, "%u", count);
		for (i = first; i < min(count, first + ADDRESSES_A_NODE); i++)
			used += print_address(text + used, size - used, &address[i]);
		snprintf(node, sizeof(node), first ? "address/%u" : "address",
			 first / ADDRESSES_A_NODE);
		err = xenbus_write(XBT_NIL, OURS, node, text + !!first);
		if (err || !first)
			break;
	}
	kfree(text);
	return err;
}

static int say_addresses(void)
{
	bool changed;
	u32 count;
	int err;

	spin_lock(&says_lock);
	changed = address_changed;
	address_changed = false;
	count = next_count;
	memcpy(new_address, next_address, sizeof(new_address));
	spin_unlock(&says_lock);
	if (!changed || (has_said && count == said_count &&
			 !memcmp(new_address, said_address,
				 count * sizeof(*new_address))))
		return 0;

	err = write_addresses(new_address, count);
	if (err) {
		spin_lock(&says_lock);
		address_changed = true;
		spin_unlock(&says_lock);
		return complain(err, "our addresses");
	}
	memcpy(said_address, new_address, sizeof(said_address));
	said_count = count;
	has_said = true;
	return 0;
}

static void say_work_fn(struct work_struct *work)
{
	say_wants();
	if (say_addresses())
		queue_delayed_work(vmloop_xen_queue, &say_work, SAY_AGAIN);
}

/* Channels --------------------------------------------------------------- */

/**
 * vmloop_xen_say_channel() - tell dom0 how we stand to a channel
 * @tag: the channel
 * @word: docs/protocol.md, section 8
 *
 * Context: a work of our queue.
 * Return: 0 or a negative errno.
 */
int vmloop_xen_say_channel(u32 tag, const char *word)
{
	char node[12];

	snprintf(node, sizeof(node), "%u", tag);
	return complain(xenbus_write(XBT_NIL, OURS "/channel", node, word),
			"a channel's state");
}

/**
 * vmloop_xen_forget_channel() - dom0 knows that a channel has ended
 * @tag: the channel
 *
 * Context: a work of our queue.
 */
void vmloop_xen_forget_channel(u32 tag)
{
	char node[12];

	snprintf(node, sizeof(node), "%u", tag);
	xenbus_rm(XBT_NIL, OURS "/channel", node);
}

/* Counters --------------------------------------------------------------- */

static struct vmloop_msg_stats *stats;	/* while they are collected */
static unsigned int stats_count;

static void collect(struct vmloop_transport *transport,
		    const struct vmloop_msg_stats *one)
{
	if (stats_count < STATS_MAX)
		stats[stats_count++] = *one;
}

/**
 * vmloop_xen_say_stats() - tell dom0 the counters of all channels
 * @cookie: as in its question
 *
 * Context: a work of our queue; takes the core mutex.
 */
void vmloop_xen_say_stats(u32 cookie)
{
	const struct vmloop_msg_stats *one;
	char dir[32], node[12];
	unsigned int i;
	int err = 0;

	stats = kvcalloc(STATS_MAX, sizeof(*stats), GFP_KERNEL);
	if (!stats)
		return;
	stats_count = 0;
	vmloop_stats_report(&vmloop_xen_transport, collect);

	xenbus_rm(XBT_NIL, OURS, "stats");
	snprintf(dir, sizeof(dir), OURS "/stats/%u", cookie);
	for (i = 0; !err && i < stats_count; i++) {
		one = &stats[i];
		snprintf(node, sizeof(node), "%u", one->tag);
		err = xenbus_printf(XBT_NIL, dir, node,
				    "%llu %llu %llu %llu %llu %llu %llu %llu",
				    one->tx_frames, one->tx_bytes,
				    one->rx_frames, one->rx_bytes,
				    one->tx_doorbells, one->rx_doorbells,
				    one->tx_full, one->rx_dropped);
	}
	if (!err)
		err = xenbus_printf(XBT_NIL, OURS, "stats", "%u", cookie);
	complain(err, "counters");
	kvfree(stats);
	stats = NULL;
}

/* Coming and going ------------------------------------------------------- */

/**
 * vmloop_xen_unsay() - take back all that was said, if anything was
 *
 * Context: process context, nothing is queued.
 */
void vmloop_xen_unsay(void)
{
	int err;

	if (!is_said)
		return;
	err = xenbus_rm(XBT_NIL, "data", "vmloop");
	/* If it fails: again before the next hello. */
	is_said = err && err != -ENOENT;
}

/**
 * vmloop_xen_say_begin() - say hello to dom0, and take what the core has to say
 * @incarnation: what dom0 has to echo
 *
 * What an earlier life of ours said is taken back first. Addresses that the
 * core has said before, as in a guest that was restored, go along.
 *
 * Context: process context, nothing is queued.
 * Return: 0 or a negative errno.
 */
int vmloop_xen_say_begin(u64 incarnation)
{
	int err;

	vmloop_xen_unsay();
	is_said = true;
	has_said = false;
	spin_lock(&says_lock);
	address_changed = next_count > 0;
	spin_unlock(&says_lock);
	/* If it fails: it is told below. */
	say_addresses();
	err = xenbus_printf(XBT_NIL, OURS, "hello", "%u %u %016llx %llu %s %s",
			    VMLOOP_SHM_MAJOR, VMLOOP_SHM_MINOR, incarnation,
			    vmloop_features(), VMLOOP_VERSION,
			    init_utsname()->release);
	if (err)
		return err;
	spin_lock(&says_lock);
	open = true;
	/* They may have changed while nobody was told. */
	address_changed = next_count > 0 || has_said;
	if (address_changed)
		mod_delayed_work(vmloop_xen_queue, &say_work, 0);
	spin_unlock(&says_lock);
	return 0;
}

/**
 * vmloop_xen_say_end() - take nothing more, and forget what was not told
 *
 * Context: process context.
 */
void vmloop_xen_say_end(void)
{
	struct want *want, *next;

	spin_lock(&says_lock);
	open = false;
	address_changed = false;
	spin_unlock(&says_lock);
	/* Nobody queues it again. */
	cancel_delayed_work_sync(&say_work);
	/* Nor does anybody add to the list. */
	list_for_each_entry_safe(want, next, &wants, list) {
		list_del(&want->list);
		kfree(want);
	}
}
