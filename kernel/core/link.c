// SPDX-License-Identifier: GPL-2.0
/*
 * link.c - the memory of channels: it arrives, becomes a channel when its peer is
 * known and the paths are ready, and goes away.
 *
 * Owns the list of links. Under the core mutex, in process context, but for
 * vmloop_link_look(), which runs anywhere.
 *
 * A channel is freed when it ends, while its link stays until the transport
 * takes it away. What may outlive the channel (the work) is the link's.
 */
#include "core.h"

static LIST_HEAD(links);	/* under the core mutex */

static struct vmloop_channel *link_channel(struct vmloop_link *link)
{
	return rcu_dereference_protected(link->channel,
					 lockdep_is_held(&vmloop_mutex));
}

/**
 * vmloop_link_look() - have the link's channel looked at, soon
 * @link: the link
 *
 * Context: any, while the link cannot go.
 */
void vmloop_link_look(struct vmloop_link *link)
{
	mod_delayed_work(vmloop_workqueue, &link->work, 0);
}

/**
 * vmloop_link_look_in() - have the link's channel looked at in a while
 * @link: the link
 * @delay: in jiffies; a look that is due sooner stays
 *
 * Context: core mutex held.
 */
void vmloop_link_look_in(struct vmloop_link *link, unsigned long delay)
{
	/* One whose time has come waits for its turn: it is not put off. */
	if (!queue_delayed_work(vmloop_workqueue, &link->work, delay) &&
	    time_before(jiffies + delay, READ_ONCE(link->work.timer.expires)))
		mod_delayed_work(vmloop_workqueue, &link->work, delay);
}

/**
 * vmloop_link_report() - tell the agent how the link's channel stands
 * @link: the link
 * @state: VMLOOP_STATE_*
 *
 * Context: core mutex held.
 */
void vmloop_link_report(struct vmloop_link *link, u32 state)
{
	if (link->transport->ops->report)
		link->transport->ops->report(link->transport, link->tag, state);
}

/**
 * vmloop_channel_next() - go through all channels
 * @channel: the one before; NULL for the first
 *
 * Context: core mutex held; the list stays as it is between.
 * Return: the channel, or NULL behind the last.
 */
struct vmloop_channel *vmloop_channel_next(struct vmloop_channel *channel)
{
	struct vmloop_link *link = channel ? channel->link :
		list_entry(&links, struct vmloop_link, list);

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry_continue(link, &links, list)
		if (link_channel(link))
			return link_channel(link);
	return NULL;
}

static struct vmloop_link *link_find(const struct vmloop_transport *transport, u32 tag)
{
	struct vmloop_link *link;

	list_for_each_entry(link, &links, list)
		if (link->transport == transport && link->tag == tag)
			return link;
	return NULL;
}

/**
 * vmloop_link_channel() - find a channel by its tag
 * @transport: whose
 * @tag: its tag
 *
 * Context: core mutex held.
 * Return: the channel, or NULL.
 */
struct vmloop_channel *vmloop_link_channel(const struct vmloop_transport *transport, u32 tag)
{
	struct vmloop_link *link = link_find(transport, tag);

	return link ? link_channel(link) : NULL;
}

/**
 * vmloop_channels_adopt() - begin channels for links whose peer is known now
 * @transport: whose links; NULL for all
 *
 * Nothing happens while the paths have yet to be told of the directory: it is
 * called again when they have been.
 *
 * Context: core mutex held.
 */
void vmloop_channels_adopt(struct vmloop_transport *transport)
{
	struct vmloop_link *link;
	struct vmloop_peer *peer;

	lockdep_assert_held(&vmloop_mutex);
	if (!vmloop_paths_are_there() || !vmloop_enabled() || !vmloop_paths_are_told())
		return;
	list_for_each_entry(link, &links, list) {
		if (link->used || link_channel(link) ||
		    (transport && link->transport != transport))
			continue;
		peer = vmloop_peer_find_tag(link->transport, link->tag);
		if (!peer || peer->channel)
			continue;
		/*
		 * It asked; we do not want to, yet. After too many breaks we do
		 * not ask any more, but an agent that was told to makes one.
		 */
		if (peer->state == VMLOOP_CHANNEL_BROKEN &&
		    time_before(jiffies, peer->retry_at)) {
			link->used = true;
			vmloop_link_report(link, VMLOOP_STATE_BROKEN);
			continue;
		}
		vmloop_channel_begin(link, peer);
	}
}

/*
 * Whether a channel ends with the path: the last one, or that of the only lane of
 * version 1. One that is ending already is not worth more.
 */
static bool ends_with(const struct vmloop_channel *channel,
		      const struct vmloop_path *path)
{
	return !path || !vmloop_paths_are_there() ||
	       channel->state == VMLOOP_CHANNEL_CLOSING ||
	       (!channel->slots && vmloop_lanes_have(channel, path));
}

/**
 * vmloop_channels_end() - end all channels at once
 * @path: NULL for all; else a path that is no longer found: of channels that do
 *	not end with it, its lanes only
 *
 * Context: core mutex held, may sleep for as long as draining takes.
 */
void vmloop_channels_end(const struct vmloop_path *path)
{
	struct vmloop_channel *channel;
	struct vmloop_link *link;

	lockdep_assert_held(&vmloop_mutex);
	/* First all of them, so that they drain side by side. */
	list_for_each_entry(link, &links, list) {
		channel = link_channel(link);
		if (!channel)
			continue;
		if (ends_with(channel, path))
			vmloop_channel_shut(channel, true);
		else
			vmloop_lanes_path_shut(channel, path);
	}
	list_for_each_entry(link, &links, list) {
		channel = link_channel(link);
		if (!channel)
			continue;
		if (ends_with(channel, path))
			vmloop_channel_end(channel, true);
		else
			vmloop_lanes_path_gone(channel, path);
	}
}

static void link_work(struct work_struct *work)
{
	struct vmloop_link *link =
		container_of(work, struct vmloop_link, work.work);
	struct vmloop_channel *channel;

	mutex_lock(&vmloop_mutex);
	channel = link_channel(link);
	if (channel)
		vmloop_channel_look(channel);
	mutex_unlock(&vmloop_mutex);
}

/**
 * vmloop_link_add() - a channel's memory has arrived
 * @link: filled in by the transport; stays until vmloop_link_remove()
 *
 * Context: process context, takes the core mutex.
 * Return: 0; -ENODEV if the memory is no region of ours; -EPROTO if it is one
 * that cannot be used.
 */
int vmloop_link_add(struct vmloop_link *link)
{
	struct vmloop_region region;
	int err;

	err = vmloop_region_open(&region, link->base, link->size, link->side,
				 VMLOOP_REGION_CHANNEL);
	if (err)
		return err;
	if (region.major == VMLOOP_TABLE_MAJOR &&
	    !(vmloop_features() & VMLOOP_F_LANES))
		return -EPROTO;

	RCU_INIT_POINTER(link->channel, NULL);
	link->used = false;
	INIT_DELAYED_WORK(&link->work, link_work);

	mutex_lock(&vmloop_mutex);
	list_add_tail(&link->list, &links);
	vmloop_channels_adopt(link->transport);
	mutex_unlock(&vmloop_mutex);
	return 0;
}
EXPORT_SYMBOL_GPL(vmloop_link_add);

/**
 * vmloop_link_remove() - a channel's memory goes away
 * @link: added before; the transport delivers no doorbell for it any more
 *
 * After return nobody touches the memory or the link. What the peer has
 * produced until then is consumed.
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_link_remove(struct vmloop_link *link)
{
	struct vmloop_channel *channel;

	mutex_lock(&vmloop_mutex);
	channel = link_channel(link);
	if (channel)
		vmloop_channel_end(channel, false);
	link->used = true;
	list_del(&link->list);
	/* A new link to the same peer may have waited for this one's end. */
	vmloop_channels_adopt(link->transport);
	mutex_unlock(&vmloop_mutex);
	cancel_delayed_work_sync(&link->work);
}
EXPORT_SYMBOL_GPL(vmloop_link_remove);

/**
 * vmloop_channel_close() - the agent wants a channel closed
 * @transport: whose agent
 * @tag: the channel
 *
 * The answer is a report of VMLOOP_STATE_CLOSED, now or when it is drained.
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_channel_close(struct vmloop_transport *transport, u32 tag)
{
	struct vmloop_channel *channel = NULL;
	struct vmloop_link *link;

	mutex_lock(&vmloop_mutex);
	link = link_find(transport, tag);
	if (link) {
		link->used = true;
		channel = link_channel(link);
	}
	if (channel)
		vmloop_channel_shut(channel, true);
	else if (transport->ops->report)
		transport->ops->report(transport, tag, VMLOOP_STATE_CLOSED);
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_channel_close);

/**
 * vmloop_channel_lose() - a part of what a channel stands on goes away at once
 * @transport: whose channel
 * @tag: the channel
 *
 * After return there is no such channel, and nothing touches its windows. The peer is not
 * waited for.
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_channel_lose(struct vmloop_transport *transport, u32 tag)
{
	struct vmloop_channel *channel;

	mutex_lock(&vmloop_mutex);
	channel = vmloop_link_channel(transport, tag);
	if (channel)
		vmloop_channel_end(channel, false);
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_channel_lose);

/**
 * vmloop_channels_report() - tell a new agent how all channels stand
 * @transport: whose agent
 *
 * Context: core mutex held.
 */
void vmloop_channels_report(struct vmloop_transport *transport)
{
	struct vmloop_channel *channel;
	struct vmloop_link *link;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry(link, &links, list) {
		if (link->transport != transport)
			continue;
		channel = link_channel(link);
		if (channel && channel->state == VMLOOP_CHANNEL_UP)
			vmloop_link_report(link, VMLOOP_STATE_UP);
		else if (!channel && link->used)
			vmloop_link_report(link, VMLOOP_STATE_CLOSED);
	}
}

/**
 * vmloop_channels_look() - have all channels looked at, soon
 * @transport: those of this transport
 *
 * Context: core mutex held.
 */
void vmloop_channels_look(struct vmloop_transport *transport)
{
	struct vmloop_link *link;

	lockdep_assert_held(&vmloop_mutex);
	list_for_each_entry(link, &links, list)
		if (link->transport == transport && link_channel(link))
			vmloop_link_look(link);
}

/**
 * vmloop_stats_report() - counters of all channels of a transport
 * @transport: whose
 * @out: called for each channel under the core mutex; cookie is left zero
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_stats_report(struct vmloop_transport *transport,
			 void (*out)(struct vmloop_transport *transport,
				     const struct vmloop_msg_stats *stats))
{
	struct vmloop_msg_stats stats;
	struct vmloop_channel *channel;
	struct vmloop_link *link;
	struct vmloop_peer *peer;
	unsigned int i;

	mutex_lock(&vmloop_mutex);
	list_for_each_entry(link, &links, list) {
		channel = link_channel(link);
		if (link->transport != transport || !channel)
			continue;
		peer = channel->peer;
		stats = (struct vmloop_msg_stats){
			.tag = link->tag,
			.tx_frames = vmloop_peer_counter(peer, VMLOOP_TX_FRAMES),
			.tx_bytes = vmloop_peer_counter(peer, VMLOOP_TX_BYTES),
			.rx_frames = vmloop_peer_counter(peer, VMLOOP_RX_FRAMES),
			.rx_bytes = vmloop_peer_counter(peer, VMLOOP_RX_BYTES),
			.tx_doorbells =
				vmloop_peer_counter(peer, VMLOOP_TX_DOORBELLS),
			.rx_doorbells =
				vmloop_peer_counter(peer, VMLOOP_RX_DOORBELLS),
			.tx_full = vmloop_peer_counter(peer, VMLOOP_TX_FULL),
		};
		for (i = VMLOOP_DROP_SOURCE; i <= VMLOOP_DROP_INTERFACE; i++)
			stats.rx_dropped += vmloop_peer_counter(peer, i);
		out(transport, &stats);
	}
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_stats_report);
