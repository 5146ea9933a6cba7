// SPDX-License-Identifier: GPL-2.0
/*
 * channel.c - the life of a channel on Xen: what dom0 says makes a region or
 * maps one, binds an event channel, and hands both to the core as a link;
 * what the core or dom0 says ends it, and returns all that it took.
 *
 * Owns the channels. They change in works of our queue, of which one runs at a
 * time; the list, and what the core reported, are also looked at under the
 * core mutex, and are under channels_lock. The doorbell runs in hard interrupt
 * from before a link is added until disable_irq() in withdraw().
 *
 *	WAITING   nothing here yet
 *	OPEN      the core has the link
 *	REVOKING  side 0: the core is done with it, the peer may still map it
 *	DONE      nothing is held any more; dom0 has the last word to remove it
 */
#include <linux/interrupt.h>
#include <linux/jiffies.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include <asm/xen/hypercall.h>
#include <xen/events.h>
#include <xen/interface/event_channel.h>

#include "xen.h"

/* The core drains for a fifth of a second; what takes longer is ended. */
#define CLOSE_TIME	HZ

/* How long, and how often, a peer is asked whether it has unmapped. */
#define REVOKE_TIME	(2 * HZ)
#define REVOKE_POLL	msecs_to_jiffies(4)

/* How long the end of all channels may keep a guest from being suspended. */
#define HASTE_TIME	(HZ / 2)

/* What XenStore would not take is told again. */
#define SAY_AGAIN	HZ

/*
 * A peer that rings without being asked costs an interrupt each time. Beyond
 * so many in so long, Xen delivers the next one late.
 */
#define FLOOD_TIME	msecs_to_jiffies(20)
#define FLOOD_RINGS	5000

enum phase {
	WAITING,
	OPEN,
	REVOKING,
	DONE,
};

/**
 * struct vmloop_xen_channel - one channel that dom0 has told us about
 * @list: in the list of all; changed by the queue under channels_lock
 * @tag: its number
 * @side: which side we are
 * @peer: the other side
 * @phase: how far it is
 * @error: why it could not be made or mapped, as a positive errno; 0 if it was
 * @told: it was in what dom0 said last
 * @closing: dom0 wants it closed, has forgotten it, or we end
 * @deadline: when @phase ends by itself, in jiffies; OPEN: only with @closing
 * @reported: what the core said last, VMLOOP_STATE_*; under channels_lock
 * @ended: the core is done with it; under channels_lock
 * @broken: the peer broke the protocol; under channels_lock
 * @said: what dom0 was told last
 * @offer: side 0: the region
 * @accepted: side 1: the region
 * @gref: side 0: grant that is offered
 * @port: our event channel, 0 for none
 * @irq: the doorbell, 0 for none
 * @rings: doorbells since @window; used by the doorbell only
 * @window: when counting began, in jiffies; used by the doorbell only
 * @link: what the core knows of it
 */
struct vmloop_xen_channel {
	struct list_head list;
	u32 tag;
	unsigned int side;
	domid_t peer;
	enum phase phase;
	int error;
	bool told;
	bool closing;
	unsigned long deadline;
	u32 reported;
	bool ended;
	bool broken;
	char said[48];
	struct vmloop_xen_offer *offer;
	struct vmloop_xen_accepted accepted;
	grant_ref_t gref;
	evtchn_port_t port;
	int irq;
	unsigned int rings;
	unsigned long window;
	struct vmloop_link link;
};

static DEFINE_SPINLOCK(channels_lock);	/* protects as said above */
static LIST_HEAD(channels);
static bool ending;	/* no new ones, the others go; single word */
static unsigned long ending_by;	/* in jiffies; set before the above */
static DECLARE_WAIT_QUEUE_HEAD(emptied);

static void channels_work_fn(struct work_struct *work);
static DECLARE_DELAYED_WORK(channels_work, channels_work_fn);

static void look_again(unsigned long delay)
{
	mod_delayed_work(vmloop_xen_queue, &channels_work, delay);
}

static struct vmloop_xen_channel *find(u32 tag)
{
	struct vmloop_xen_channel *channel;

	list_for_each_entry(channel, &channels, list)
		if (channel->tag == tag)
			return channel;
	return NULL;
}

/* The doorbell ----------------------------------------------------------- */

static void ring(struct vmloop_link *link)
{
	struct vmloop_xen_channel *channel =
		container_of(link, struct vmloop_xen_channel, link);

	notify_remote_via_evtchn(channel->port);
}

static bool is_flood(struct vmloop_xen_channel *channel)
{
	if (time_after(jiffies, channel->window + FLOOD_TIME)) {
		channel->window = jiffies;
		channel->rings = 0;
	}
	return ++channel->rings > FLOOD_RINGS;
}

static irqreturn_t doorbell(int irq, void *data)
{
	struct vmloop_xen_channel *channel = data;

	vmloop_link_event(&channel->link);
	/*
	 * The one that was passed: this may run before channel->irq is set,
	 * and without an end of interrupt there is never another.
	 */
	xen_irq_lateeoi(irq, is_flood(channel) ? XEN_EOI_FLAG_SPURIOUS : 0);
	return IRQ_HANDLED;
}

/* Whether our port leads to the peer; if not, it is no longer ours. */
static bool port_is_ours(const struct vmloop_xen_channel *channel)
{
	struct evtchn_status status = {
		.dom = DOMID_SELF,
		.port = channel->port,
	};

	if (HYPERVISOR_event_channel_op(EVTCHNOP_status, &status))
		return false;
	return (status.status == EVTCHNSTAT_unbound &&
		status.u.unbound.dom == channel->peer) ||
	       (status.status == EVTCHNSTAT_interdomain &&
		status.u.interdomain.dom == channel->peer);
}

static void port_close(struct vmloop_xen_channel *channel)
{
	struct evtchn_close close = { .port = channel->port };

	HYPERVISOR_event_channel_op(EVTCHNOP_close, &close);
	channel->port = 0;
}

/* Side 0: a port that only the peer can bind to. */
static int port_alloc(struct vmloop_xen_channel *channel)
{
	struct evtchn_alloc_unbound alloc = {
		.dom = DOMID_SELF,
		.remote_dom = channel->peer,
	};
	int err;

	err = HYPERVISOR_event_channel_op(EVTCHNOP_alloc_unbound, &alloc);
	if (!err)
		channel->port = alloc.port;
	return err;
}

/* Side 1: Xen checks that the port is the peer's and meant for us. */
static int port_bind(struct vmloop_xen_channel *channel, evtchn_port_t remote)
{
	struct evtchn_bind_interdomain bind = {
		.remote_dom = channel->peer,
		.remote_port = remote,
	};
	int err;

	err = HYPERVISOR_event_channel_op(EVTCHNOP_bind_interdomain, &bind);
	if (!err)
		channel->port = bind.local_port;
	return err;
}

/* Make a doorbell of the port; the port is closed if that fails. */
static int doorbell_bind(struct vmloop_xen_channel *channel)
{
	int irq;

	irq = bind_evtchn_to_irqhandler_lateeoi(channel->port, doorbell, 0,
						"vmloop_xen", channel);
	if (irq < 0) {
		/* It may be closed already, and somebody else's by now. */
		if (port_is_ours(channel))
			port_close(channel);
		channel->port = 0;
		return irq;
	}
	channel->irq = irq;
	return 0;
}

/* Coming ----------------------------------------------------------------- */

static int link_add(struct vmloop_xen_channel *channel, void *base, size_t size)
{
	channel->link.transport = &vmloop_xen_transport;
	channel->link.tag = channel->tag;
	channel->link.side = channel->side;
	channel->link.base = base;
	channel->link.size = size;
	channel->link.ring = ring;
	return vmloop_link_add(&channel->link);
}

static void doorbell_unbind(struct vmloop_xen_channel *channel)
{
	/* Closes the port as well. */
	unbind_from_irqhandler(channel->irq, channel);
	channel->irq = 0;
	channel->port = 0;
}

static int channel_make(struct vmloop_xen_channel *channel, u32 ring_size,
			bool lanes)
{
	int err;

	channel->offer = vmloop_xen_offer_make(channel->peer, ring_size, lanes);
	if (IS_ERR(channel->offer)) {
		err = PTR_ERR(channel->offer);
		channel->offer = NULL;
		return err;
	}
	channel->gref = channel->offer->gref[0];
	err = port_alloc(channel);
	if (err)
		goto err_port;
	err = doorbell_bind(channel);
	if (err)
		goto err_port;
	err = link_add(channel, channel->offer->base, channel->offer->size);
	if (err)
		goto err_link;
	return 0;

err_link:
	doorbell_unbind(channel);
err_port:
	/* Nobody has heard of the grants, but anybody can guess them. */
	vmloop_xen_offer_end(channel->offer);
	channel->offer = NULL;
	return err;
}

static int channel_map(struct vmloop_xen_channel *channel, grant_ref_t gref,
		       evtchn_port_t port)
{
	struct vmloop_xen_mapping *region = &channel->accepted.region;
	int err;

	err = vmloop_xen_accept(&channel->accepted, channel->peer, gref);
	if (err)
		return err;
	err = port_bind(channel, port);
	if (err)
		goto err_port;
	err = doorbell_bind(channel);
	if (err)
		goto err_port;
	err = link_add(channel, region->base,
		       (size_t)region->count * VMLOOP_XEN_PAGE);
	if (err)
		goto err_link;
	return 0;

err_link:
	doorbell_unbind(channel);
err_port:
	vmloop_xen_accept_end(&channel->accepted);
	return err;
}

static void channel_open(struct vmloop_xen_channel *channel,
			 const struct vmloop_xen_told *told, u32 ring_size)
{
	int err;

	err = told->wish == VMLOOP_XEN_MAKE ?
	      channel_make(channel, ring_size, told->lanes) :
	      channel_map(channel, told->gref, told->port);
	if (err) {
		pr_warn_ratelimited("vmloop_xen: no channel to domain %u: error %d\n",
				    channel->peer, -err);
		channel->error = -err;
		channel->phase = DONE;
		return;
	}
	channel->phase = OPEN;
}

/* Going ------------------------------------------------------------------ */

/* Take the link from the core, and let go of all that needs no waiting. */
static void withdraw(struct vmloop_xen_channel *channel)
{
	/*
	 * No doorbell comes in any more, but the core can still ring out: its
	 * last ring says that it has closed.
	 */
	disable_irq(channel->irq);
	vmloop_link_remove(&channel->link);
	doorbell_unbind(channel);
	if (channel->side) {
		vmloop_xen_accept_end(&channel->accepted);
		channel->phase = DONE;
	} else {
		channel->phase = REVOKING;
		channel->deadline = jiffies + REVOKE_TIME;
	}
}

static void channel_close(struct vmloop_xen_channel *channel)
{
	if (channel->closing)
		return;
	channel->closing = true;
	if (channel->phase == WAITING)
		channel->phase = DONE;
	if (channel->phase == OPEN) {
		channel->deadline = jiffies + CLOSE_TIME;
		/* Answered by vmloop_xen_report(). */
		vmloop_channel_close(&vmloop_xen_transport, channel->tag);
	}
}

static void revoke(struct vmloop_xen_channel *channel)
{
	bool revoked = vmloop_xen_offer_revoke(channel->offer);

	if (!revoked && time_before(jiffies, channel->deadline))
		return;
	/* All of it is free now, or what is not goes into the quarantine. */
	vmloop_xen_offer_end(channel->offer);
	channel->offer = NULL;
	channel->phase = DONE;
}

/* What dom0 is to know of the channel now; empty for nothing new. */
static void word_of(const struct vmloop_xen_channel *channel, char *word,
		    size_t size)
{
	u32 reported;
	bool broken;

	spin_lock(&channels_lock);
	reported = channel->reported;
	broken = channel->broken;
	spin_unlock(&channels_lock);

	word[0] = '\0';
	if (channel->phase == WAITING)
		return;
	if (channel->phase == DONE && channel->closing)
		strscpy(word, "closed", size);
	else if (channel->error)
		snprintf(word, size, "fail %d", channel->error);
	else if (broken)
		strscpy(word, "broken", size);
	else if (channel->phase == DONE)
		strscpy(word, "closed", size);
	else if (channel->phase == REVOKING)
		return;
	else if (reported == VMLOOP_STATE_UP)
		strscpy(word, "up", size);
	else if (reported == VMLOOP_STATE_IDLE)
		strscpy(word, "idle", size);
	else if (!reported && !channel->side)
		snprintf(word, size, "offer %u %u", channel->gref,
			 channel->port);
}

/* Returns when to try again, in jiffies; 0 for never. */
static unsigned long say(struct vmloop_xen_channel *channel)
{
	char word[sizeof(channel->said)];

	/* What dom0 has forgotten, and all when we go, is removed anyway. */
	if (READ_ONCE(ending) || !channel->told)
		return 0;
	word_of(channel, word, sizeof(word));
	if (!word[0] || !strcmp(word, channel->said))
		return 0;
	if (vmloop_xen_say_channel(channel->tag, word))
		return SAY_AGAIN;
	strscpy(channel->said, word, sizeof(channel->said));
	return 0;
}

static unsigned long until(unsigned long deadline)
{
	unsigned long now = jiffies;

	return time_before(now, deadline) ? deadline - now : 1;
}

/* Returns when the channel is to be looked at again, in jiffies; 0: never. */
static unsigned long step(struct vmloop_xen_channel *channel)
{
	unsigned long delay = 0;
	unsigned long again;
	bool ended;

	/* Pairs with the release in vmloop_xen_channels_end(). */
	if (smp_load_acquire(&ending) || !channel->told)
		channel_close(channel);
	if (READ_ONCE(ending) && time_after(channel->deadline, ending_by))
		channel->deadline = ending_by;

	spin_lock(&channels_lock);
	ended = channel->ended;
	spin_unlock(&channels_lock);
	if (channel->phase == OPEN) {
		if (ended || (channel->closing &&
			      time_after_eq(jiffies, channel->deadline)))
			withdraw(channel);
		else if (channel->closing)
			delay = until(channel->deadline);
	}
	if (channel->phase == REVOKING) {
		revoke(channel);
		if (channel->phase == REVOKING)
			delay = REVOKE_POLL;
	}
	again = say(channel);
	if (again && (!delay || again < delay))
		delay = again;
	return delay;
}

static void channels_work_fn(struct work_struct *work)
{
	struct vmloop_xen_channel *channel, *next;
	unsigned long soonest = 0;
	unsigned long delay;

	list_for_each_entry_safe(channel, next, &channels, list) {
		delay = step(channel);
		if (delay && (!soonest || delay < soonest))
			soonest = delay;
		/* Until dom0 has read our last word, it stays there to read. */
		if (channel->phase != DONE || (channel->told && !READ_ONCE(ending)))
			continue;
		if (!READ_ONCE(ending))
			vmloop_xen_forget_channel(channel->tag);
		spin_lock(&channels_lock);
		list_del(&channel->list);
		spin_unlock(&channels_lock);
		atomic_dec(&vmloop_xen_channels);
		kfree(channel);
	}
	if (list_empty(&channels))
		wake_up_all(&emptied);
	else if (soonest)
		/* Does nothing if a report has queued it already. */
		queue_delayed_work(vmloop_xen_queue, &channels_work, soonest);
}

/* What others say -------------------------------------------------------- */

static struct vmloop_xen_channel *add(const struct vmloop_xen_told *told)
{
	struct vmloop_xen_channel *channel;

	channel = kzalloc(sizeof(*channel), GFP_KERNEL);
	if (!channel)
		return NULL;	/* looked at again with the next change */
	channel->tag = told->tag;
	channel->side = told->side;
	channel->peer = told->peer;
	channel->window = jiffies;
	spin_lock(&channels_lock);
	list_add_tail(&channel->list, &channels);
	spin_unlock(&channels_lock);
	atomic_inc(&vmloop_xen_channels);
	return channel;
}

static void tell(const struct vmloop_xen_told *told, const u32 *ring_size)
{
	struct vmloop_xen_channel *channel = find(told->tag);

	if (!channel && ring_size)
		channel = add(told);
	if (!channel)
		return;
	/* A tag that has another meaning now: the old one has to go first. */
	if (channel->peer != told->peer || channel->side != told->side)
		return;
	channel->told = true;
	if (told->wish == VMLOOP_XEN_CLOSE)
		channel_close(channel);
	else if (told->wish != VMLOOP_XEN_WAIT && ring_size &&
		 channel->phase == WAITING)
		channel_open(channel, told, *ring_size);
}

/**
 * vmloop_xen_channels_tell() - dom0 has said which channels there are to be
 * @told: all of them, checked
 * @count: entries of @told
 * @ring_size: bytes of each ring that dom0 wants; NULL without an agent, when
 *	none can be opened
 *
 * A channel that is not among them any more is closed.
 *
 * Context: a work of our queue; takes the core mutex.
 */
void vmloop_xen_channels_tell(const struct vmloop_xen_told *told,
			      unsigned int count, const u32 *ring_size)
{
	struct vmloop_xen_channel *channel;
	unsigned int i;

	list_for_each_entry(channel, &channels, list)
		channel->told = false;
	for (i = 0; i < count; i++)
		tell(&told[i], ring_size);
	look_again(0);
}

/**
 * vmloop_xen_report() - the core says how a channel stands
 * @transport: ours
 * @tag: the channel
 * @state: VMLOOP_STATE_*
 *
 * Context: core mutex held.
 */
void vmloop_xen_report(struct vmloop_transport *transport, u32 tag, u32 state)
{
	struct vmloop_xen_channel *channel;

	spin_lock(&channels_lock);
	channel = find(tag);
	if (channel) {
		channel->reported = state;
		channel->broken |= state == VMLOOP_STATE_BROKEN;
		channel->ended |= state == VMLOOP_STATE_BROKEN ||
				  state == VMLOOP_STATE_CLOSED;
	}
	spin_unlock(&channels_lock);
	look_again(0);
}

/**
 * vmloop_xen_channels_begin() - channels may come
 *
 * Context: process context, nothing else is queued.
 */
void vmloop_xen_channels_begin(void)
{
	WRITE_ONCE(ending, false);
}

/**
 * vmloop_xen_channels_end() - end all channels
 * @hasty: wait for peers half a second at most, else 3 seconds
 *
 * After return nothing of a peer is mapped, no event channel is left, and
 * nothing is granted but what is in the quarantine. That takes as long as
 * draining and a peer's unmapping do: a peer that runs hears of it by the
 * doorbell, sees it in the region, and answers there.
 *
 * Context: process context, nothing else is queued; takes the core mutex.
 */
void vmloop_xen_channels_end(bool hasty)
{
	ending_by = jiffies + (hasty ? HASTE_TIME : CLOSE_TIME + REVOKE_TIME);
	/* Pairs with the acquire in step(), which may be running. */
	smp_store_release(&ending, true);
	look_again(0);
	wait_event(emptied, list_empty_careful(&channels));
	/* A report may have come until just now. */
	cancel_delayed_work_sync(&channels_work);
}
