// SPDX-License-Identifier: GPL-2.0
/*
 * channel.c - the life of a channel on Xen: what dom0 says makes a region or
 * maps one, binds an event channel, and hands both to the core as a link;
 * what the core or dom0 says ends it, and returns all that it took.
 *
 * Owns the channels. They change in works of our queue, of which one runs at a
 * time; the list, and what the core reported, are also looked at under the
 * core mutex, and are under channels_lock. Doorbells run in hard interrupt
 * from before a link is added until disable_irq() in withdraw().
 *
 *	WAITING   nothing here yet
 *	OPEN      the core has the link
 *	REVOKING  the core is done with it; the peer may still map our region or windows
 *	DONE      nothing is held any more; dom0 has the last word to remove it
 */
#include <linux/cpumask.h>
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
 * so many in so long, by all doorbells of a channel, Xen delivers the next one late.
 */
#define FLOOD_TIME	msecs_to_jiffies(20)
#define FLOOD_RINGS	5000

/*
 * Event channels that all channels have before new ones get one alone: libxl gives a
 * domain 1,023 by default, and a kernel that has none left for a CPU that comes panics.
 */
#define PORTS_MAX	256

static unsigned int bells = VMLOOP_BELLS;
module_param(bells, uint, 0644);
MODULE_PARM_DESC(bells, "event channels of a new channel, at most (1 to 9): one for all lanes, and one for each packet lane; never more than dom0 allows, or than one more than there are CPUs");

static atomic_t ports;	/* event channels that we have */

enum phase {
	WAITING,
	OPEN,
	REVOKING,
	DONE,
};

/**
 * struct vmloop_xen_bell - one doorbell: an event channel, whose other end is the peer's
 *	doorbell of the same number
 * @channel: whose
 * @number: which one
 * @port: our end, 0 for none
 * @irq: rings here, 0 for none
 * @rings: how often since @window; used by the doorbell only
 * @window: when counting began, in jiffies; used by the doorbell only
 */
struct vmloop_xen_bell {
	struct vmloop_xen_channel *channel;
	unsigned int number;
	evtchn_port_t port;
	int irq;
	unsigned int rings;
	unsigned long window;
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
 * @windows: windows of ours that the core is done with, and the peer may still map; under
 *	channels_lock, as the next
 * @revoking: how many they are, with those that are being tried
 * @bells: doorbells that there are
 * @bell: those
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
	char said[128];
	struct vmloop_xen_offer *offer;
	struct vmloop_xen_accepted accepted;
	grant_ref_t gref;
	struct list_head windows;
	unsigned int revoking;
	unsigned int bells;
	struct vmloop_xen_bell bell[VMLOOP_BELLS];
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

/* Doorbells -------------------------------------------------------------- */

static void ring(struct vmloop_link *link, u32 bell)
{
	struct vmloop_xen_channel *channel =
		container_of(link, struct vmloop_xen_channel, link);

	notify_remote_via_evtchn(channel->bell[bell].port);
}

static bool is_flood(struct vmloop_xen_bell *bell)
{
	/* It may ring while others are made yet. */
	unsigned int count = max(READ_ONCE(bell->channel->bells), 1U);

	if (time_after(jiffies, bell->window + FLOOD_TIME)) {
		bell->window = jiffies;
		bell->rings = 0;
	}
	return ++bell->rings > FLOOD_RINGS / count;
}

static irqreturn_t doorbell(int irq, void *data)
{
	struct vmloop_xen_bell *bell = data;

	vmloop_link_event(&bell->channel->link, bell->number);
	/*
	 * The one that was passed: this may run before bell->irq is set,
	 * and without an end of interrupt there is never another.
	 */
	xen_irq_lateeoi(irq, is_flood(bell) ? XEN_EOI_FLAG_SPURIOUS : 0);
	return IRQ_HANDLED;
}

/* Whether our port leads to the peer; if not, it is no longer ours. */
static bool port_is_ours(const struct vmloop_xen_bell *bell)
{
	struct evtchn_status status = {
		.dom = DOMID_SELF,
		.port = bell->port,
	};
	domid_t peer = bell->channel->peer;

	if (HYPERVISOR_event_channel_op(EVTCHNOP_status, &status))
		return false;
	return (status.status == EVTCHNSTAT_unbound &&
		status.u.unbound.dom == peer) ||
	       (status.status == EVTCHNSTAT_interdomain &&
		status.u.interdomain.dom == peer);
}

static void port_close(struct vmloop_xen_bell *bell)
{
	struct evtchn_close close = { .port = bell->port };

	HYPERVISOR_event_channel_op(EVTCHNOP_close, &close);
	bell->port = 0;
}

/* Side 0: a port that only the peer can bind to. */
static int port_alloc(struct vmloop_xen_bell *bell)
{
	struct evtchn_alloc_unbound alloc = {
		.dom = DOMID_SELF,
		.remote_dom = bell->channel->peer,
	};
	int err;

	err = HYPERVISOR_event_channel_op(EVTCHNOP_alloc_unbound, &alloc);
	if (!err)
		bell->port = alloc.port;
	return err;
}

/* Side 1: Xen checks that the port is the peer's and meant for us. */
static int port_bind(struct vmloop_xen_bell *bell, evtchn_port_t remote)
{
	struct evtchn_bind_interdomain bind = {
		.remote_dom = bell->channel->peer,
		.remote_port = remote,
	};
	int err;

	err = HYPERVISOR_event_channel_op(EVTCHNOP_bind_interdomain, &bind);
	if (!err)
		bell->port = bind.local_port;
	return err;
}

static const char * const bell_name[VMLOOP_BELLS] = {
	"vmloop_xen",
	"vmloop_xen-lane0", "vmloop_xen-lane1",
	"vmloop_xen-lane2", "vmloop_xen-lane3",
	"vmloop_xen-lane4", "vmloop_xen-lane5",
	"vmloop_xen-lane6", "vmloop_xen-lane7",
};

/*
 * Have the port ring; it is closed if that fails. Each doorbell but the first is for one
 * lane: its interrupt has a CPU of its own.
 */
static int doorbell_bind(struct vmloop_xen_bell *bell, unsigned int turn)
{
	unsigned int cpu;
	int irq;

	irq = bind_evtchn_to_irqhandler_lateeoi(bell->port, doorbell, 0,
						bell_name[bell->number], bell);
	if (irq < 0) {
		/* It may be closed already, and somebody else's by now. */
		if (port_is_ours(bell))
			port_close(bell);
		bell->port = 0;
		return irq;
	}
	bell->irq = irq;
	if (!bell->number)
		return 0;
	cpu = vmloop_bell_cpu(turn + bell->number);
	if (cpu < nr_cpu_ids)
		irq_set_affinity_and_hint(irq, cpumask_of(cpu));
	return 0;
}

static void doorbells_unbind(struct vmloop_xen_channel *channel)
{
	struct vmloop_xen_bell *bell;

	while (channel->bells) {
		bell = &channel->bell[channel->bells - 1];
		WRITE_ONCE(channel->bells, channel->bells - 1);
		atomic_dec(&ports);
		if (bell->number)
			irq_update_affinity_hint(bell->irq, NULL);
		/* Closes the port as well. */
		unbind_from_irqhandler(bell->irq, bell);
		bell->irq = 0;
		bell->port = 0;
	}
}

/* As many as are of use to us, with the @count ports of the peer's, or NULL: new ones. */
static int doorbells_make(struct vmloop_xen_channel *channel,
			  const evtchn_port_t *remote, unsigned int count)
{
	unsigned int turn = vmloop_bell_turn(), i;
	struct vmloop_xen_bell *bell;
	int err = 0;

	if (num_online_cpus() == 1 || atomic_read(&ports) >= PORTS_MAX)
		count = 1;
	count = clamp(READ_ONCE(bells), 1U,
		      min_t(unsigned int, count, 1 + num_online_cpus()));
	for (i = 0; i < count; i++) {
		bell = &channel->bell[i];
		bell->channel = channel;
		bell->number = i;
		bell->window = jiffies;
		err = remote ? port_bind(bell, remote[i]) : port_alloc(bell);
		if (!err)
			err = doorbell_bind(bell, turn);
		if (err)
			break;
		WRITE_ONCE(channel->bells, i + 1);
		atomic_inc(&ports);
	}
	if (!i)
		return err;
	if (err)
		pr_info_ratelimited("vmloop_xen: lanes to domain %u share doorbells: error %d\n",
				    channel->peer, -err);
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
	channel->link.bells = channel->bells;
	/* What the peer hears it says; each leads to the one of ours of the same number. */
	channel->link.peer_bells = channel->bells;
	channel->link.ring = ring;
	channel->link.windows = &vmloop_xen_windows;
	return vmloop_link_add(&channel->link);
}

static int channel_make(struct vmloop_xen_channel *channel, u32 ring_size,
			const struct vmloop_xen_told *told)
{
	int err;

	channel->offer = vmloop_xen_offer_make(channel->peer, ring_size,
					       told->lanes);
	if (IS_ERR(channel->offer)) {
		err = PTR_ERR(channel->offer);
		channel->offer = NULL;
		return err;
	}
	channel->gref = channel->offer->gref[0];
	err = doorbells_make(channel, NULL, told->bells);
	if (err)
		goto err_bells;
	err = link_add(channel, channel->offer->base, channel->offer->size);
	if (err)
		goto err_link;
	return 0;

err_link:
	doorbells_unbind(channel);
err_bells:
	/* Nobody has heard of the grants, but anybody can guess them. */
	vmloop_xen_offer_end(channel->offer);
	channel->offer = NULL;
	return err;
}

static int channel_map(struct vmloop_xen_channel *channel,
		       const struct vmloop_xen_told *told)
{
	struct vmloop_xen_mapping *region = &channel->accepted.region;
	int err;

	err = vmloop_xen_accept(&channel->accepted, channel->peer, told->gref);
	if (err)
		return err;
	err = doorbells_make(channel, told->port, told->ports);
	if (err)
		goto err_bells;
	err = link_add(channel, region->base,
		       (size_t)region->count * VMLOOP_XEN_PAGE);
	if (err)
		goto err_link;
	return 0;

err_link:
	doorbells_unbind(channel);
err_bells:
	vmloop_xen_accept_end(&channel->accepted);
	return err;
}

static void channel_open(struct vmloop_xen_channel *channel,
			 const struct vmloop_xen_told *told, u32 ring_size)
{
	int err;

	err = told->wish == VMLOOP_XEN_MAKE ?
	      channel_make(channel, ring_size, told) :
	      channel_map(channel, told);
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
	unsigned int i;

	/*
	 * No doorbell comes in any more, but the core can still ring out: its
	 * last ring says that it has closed.
	 */
	for (i = 0; i < channel->bells; i++)
		disable_irq(channel->bell[i].irq);
	vmloop_link_remove(&channel->link);
	doorbells_unbind(channel);
	if (channel->side)
		vmloop_xen_accept_end(&channel->accepted);
	channel->phase = REVOKING;
	channel->deadline = jiffies + REVOKE_TIME;
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

/* Windows that the core is done with. Returns whether some are left. */
static bool revoke_windows(struct vmloop_xen_channel *channel)
{
	struct vmloop_xen_offer *offer, *next;
	unsigned int done = 0;
	LIST_HEAD(windows);
	bool left;

	spin_lock(&channels_lock);
	list_splice_init(&channel->windows, &windows);
	spin_unlock(&channels_lock);
	list_for_each_entry_safe(offer, next, &windows, list) {
		if (READ_ONCE(ending) && time_after(offer->deadline, ending_by))
			offer->deadline = ending_by;
		if (!vmloop_xen_offer_revoke(offer) &&
		    time_before(jiffies, offer->deadline))
			continue;
		list_del(&offer->list);
		vmloop_xen_offer_end(offer);
		done++;
	}
	spin_lock(&channels_lock);
	list_splice(&windows, &channel->windows);
	channel->revoking -= done;
	left = channel->revoking;
	spin_unlock(&channels_lock);
	return left;
}

/* The region. Returns whether nothing is left of it. */
static bool revoke(struct vmloop_xen_channel *channel)
{
	if (!channel->offer)
		return true;
	if (!vmloop_xen_offer_revoke(channel->offer) &&
	    time_before(jiffies, channel->deadline))
		return false;
	/* All of it is free now, or what is not goes into the quarantine. */
	vmloop_xen_offer_end(channel->offer);
	channel->offer = NULL;
	return true;
}

/**
 * vmloop_xen_peer_of() - which domain a link leads to
 * @link: one of ours
 *
 * Context: core mutex held.
 */
domid_t vmloop_xen_peer_of(const struct vmloop_link *link)
{
	return container_of(link, struct vmloop_xen_channel, link)->peer;
}

/**
 * vmloop_xen_revoke_later() - a window's pages are still mapped by the peer
 * @link: of its channel, which does not end before they are revoked, or given up
 * @offer: the window; ours from here on
 *
 * Context: core mutex held.
 */
void vmloop_xen_revoke_later(struct vmloop_link *link, struct vmloop_xen_offer *offer)
{
	struct vmloop_xen_channel *channel =
		container_of(link, struct vmloop_xen_channel, link);

	offer->deadline = jiffies + REVOKE_TIME;
	spin_lock(&channels_lock);
	list_add_tail(&offer->list, &channel->windows);
	channel->revoking++;
	spin_unlock(&channels_lock);
	look_again(0);
}

/**
 * vmloop_xen_is_revoking() - whether the peer still maps windows that have ended
 * @link: of its channel
 *
 * No other one is made meanwhile, so that a peer can hold as many as there may be at a time.
 *
 * Context: core mutex held.
 */
bool vmloop_xen_is_revoking(const struct vmloop_link *link)
{
	const struct vmloop_xen_channel *channel =
		container_of(link, struct vmloop_xen_channel, link);
	bool is_revoking;

	spin_lock(&channels_lock);
	is_revoking = channel->revoking;
	spin_unlock(&channels_lock);
	return is_revoking;
}

static void offer_word(const struct vmloop_xen_channel *channel, char *word,
		       size_t size)
{
	unsigned int i;
	int at;

	at = scnprintf(word, size, "offer %u", channel->gref);
	for (i = 0; i < channel->bells; i++)
		at += scnprintf(word + at, size - at, " %u",
				channel->bell[i].port);
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
		offer_word(channel, word, size);
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
	bool ended, left;

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
	left = revoke_windows(channel);
	if (channel->phase == REVOKING && revoke(channel) && !left)
		channel->phase = DONE;
	if (left || channel->phase == REVOKING)
		delay = REVOKE_POLL;
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
	INIT_LIST_HEAD(&channel->windows);
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
