// SPDX-License-Identifier: GPL-2.0
/*
 * staging.c - a directory on its way: what the agent has said of it so far. All of it
 * holds at once, when it is complete. docs/protocol.md, section 6.
 *
 * A directory is whole, or says what is new since the one before. Where a part of that is
 * lost here, for want of memory, nothing of it is taken, and the agent is asked for a
 * whole one.
 *
 * Owns the staged entries of each transport. Context: process context, under the core
 * mutex.
 */
#include <linux/slab.h>

#include "core.h"
#include "trace.h"

/**
 * struct staged_entry - a part of a directory that is not complete yet
 * @list: in the transport's staged list
 * @gone: an entry that is not there any more; else one that is
 * @entry: what the agent said; with @gone its id and its addresses alone
 */
struct staged_entry {
	struct list_head list;
	bool gone;
	struct vmloop_msg_peer entry;
};

static bool entry_is_good(const struct vmloop_transport *transport,
			  const struct vmloop_msg_peer *entry)
{
	if (!entry->id || !is_valid_ether_addr(entry->mac) ||
	    !is_valid_ether_addr(entry->local_mac))
		return false;
	if (entry->flags & VMLOOP_PEER_ROUTED)
		return is_valid_ether_addr(entry->gateway);
	return entry->id != transport->id;
}

/**
 * vmloop_staging_clear() - forget a directory that is not complete
 * @transport: whose
 *
 * Context: core mutex held.
 */
void vmloop_staging_clear(struct vmloop_transport *transport)
{
	struct staged_entry *staged, *next;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry_safe(staged, next, &transport->staged, list) {
		list_del(&staged->list);
		kfree(staged);
	}
	transport->staged_count = 0;
	transport->staged_begun = false;
	transport->staged_whole = false;
	transport->staged_lost = false;
}

static void begin(struct vmloop_transport *transport, u64 generation)
{
	vmloop_staging_clear(transport);
	transport->staged_generation = generation;
	transport->staged_begun = true;
}

/**
 * vmloop_directory_begin() - a whole directory follows
 * @transport: whose
 * @generation: its number, to be repeated at its end
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_directory_begin(struct vmloop_transport *transport, u64 generation)
{
	mutex_lock(&vmloop_mutex);
	begin(transport, generation);
	transport->staged_whole = true;
	transport->left_out = false;
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_directory_begin);

/**
 * vmloop_directory_change() - what is new in the directory follows
 * @transport: whose; it has the operation "again"
 * @generation: number of the directory, to be repeated at its end
 * @before: number of the directory in which it is new
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_directory_change(struct vmloop_transport *transport, u64 generation,
			     u64 before)
{
	mutex_lock(&vmloop_mutex);
	begin(transport, generation);
	transport->staged_lost = before != transport->generation;
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_directory_change);

static void stage(struct vmloop_transport *transport,
		  const struct vmloop_msg_peer *entry, bool gone)
{
	struct staged_entry *staged;

	if (transport->staged_count >= VMLOOP_DIRECTORY_MAX) {
		if (transport->staged_whole)
			transport->left_out = true;
		else
			transport->staged_lost = true;
		return;
	}
	staged = kmalloc(sizeof(*staged), GFP_KERNEL);
	if (!staged) {
		transport->staged_lost = true;
		return;
	}
	staged->gone = gone;
	staged->entry = *entry;
	staged->entry.name[sizeof(entry->name) - 1] = '\0';
	list_add_tail(&staged->list, &transport->staged);
	transport->staged_count++;
}

/**
 * vmloop_directory_peer() - one entry of the directory
 * @transport: whose
 * @entry: a private copy of what the agent said
 *
 * Entries that make no sense, and those beyond VMLOOP_DIRECTORY_MAX, are left
 * out: their peers are reached over the standard network.
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_directory_peer(struct vmloop_transport *transport,
			   const struct vmloop_msg_peer *entry)
{
	mutex_lock(&vmloop_mutex);
	if (transport->staged_begun && entry_is_good(transport, entry))
		stage(transport, entry, false);
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_directory_peer);

/**
 * vmloop_directory_gone() - one entry of the directory is not there any more
 * @transport: whose
 * @gone: a private copy of what the agent said
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_directory_gone(struct vmloop_transport *transport,
			   const struct vmloop_msg_dir_gone *gone)
{
	struct vmloop_msg_peer entry = { .id = gone->id };

	ether_addr_copy(entry.local_mac, gone->local_mac);
	ether_addr_copy(entry.mac, gone->mac);
	mutex_lock(&vmloop_mutex);
	if (transport->staged_begun && !transport->staged_whole)
		stage(transport, &entry, true);
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_directory_gone);

/* Before a whole directory holds: all that it does not name goes. */
static void apply_absence(struct vmloop_transport *transport, u64 mark)
{
	struct staged_entry *staged;

	list_for_each_entry(staged, &transport->staged, list)
		vmloop_entry_mark(transport, &staged->entry, mark);
	vmloop_directory_sweep(transport, mark);
}

/* Before what is new holds: what it says to be gone goes. */
static void apply_gone(struct vmloop_transport *transport)
{
	struct staged_entry *staged, *next;

	list_for_each_entry_safe(staged, next, &transport->staged, list) {
		if (!staged->gone)
			continue;
		vmloop_entry_remove(transport, &staged->entry);
		list_del(&staged->list);
		kfree(staged);
	}
	list_for_each_entry(staged, &transport->staged, list)
		vmloop_entry_ends_life(transport, &staged->entry);
}

static void apply(struct vmloop_transport *transport)
{
	static u64 mark;	/* under the core mutex; 0 is no directory's */
	struct staged_entry *staged;
	int err;

	mark++;
	if (transport->staged_whole)
		apply_absence(transport, mark);
	else
		apply_gone(transport);
	list_for_each_entry(staged, &transport->staged, list) {
		err = vmloop_entry_apply(transport, &staged->entry, mark);
		if (err == -ENOSPC)
			transport->left_out = true;
		else if (err)
			transport->staged_lost = true;
	}
	/* What was left out may have room now. */
	if (!transport->staged_whole && transport->left_out &&
	    transport->interface_count < VMLOOP_DIRECTORY_MAX)
		transport->staged_lost = true;
	/* What is new next fits nothing then, should asking be in vain. */
	transport->generation = transport->staged_lost ?
				0 : transport->staged_generation;
	vmloop_directory_settle(transport);
}

/**
 * vmloop_directory_end() - the directory is complete: it holds from now on
 * @transport: whose
 * @generation: as at its beginning, or it is ignored
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_directory_end(struct vmloop_transport *transport, u64 generation)
{
	bool is_taken;

	mutex_lock(&vmloop_mutex);
	if (!transport->staged_begun ||
	    generation != transport->staged_generation)
		goto out;
	/* Of a whole one the rest is better than nothing. */
	is_taken = transport->staged_whole || !transport->staged_lost;
	trace_vmloop_directory(generation, transport->staged_count,
			       transport->staged_whole, is_taken);
	if (is_taken)
		apply(transport);
	if (transport->staged_lost && transport->ops->again)
		transport->ops->again(transport);
	vmloop_staging_clear(transport);
out:
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_directory_end);
