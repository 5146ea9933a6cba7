// SPDX-License-Identifier: GPL-2.0
/*
 * store.c - what dom0 tells us: pages below vmloop in XenStore, which we can
 * read and watch and nobody but dom0 can write. docs/protocol.md, section 8.
 *
 * Owns the watch and what was read last. Whatever changes, a work of our queue
 * reads all pages and hands them to the core and to the channels. Each read is
 * a trip to dom0 and back, so it is pages, of which mostly there is one.
 *
 * dom0 changes all pages at once, and numbers them anew each time. So what was
 * read with one number belongs together. That needs no transaction of ours, in
 * which XenStore lets a guest touch only so many nodes.
 *
 * Events of the watch are taken where they come in, by the thread that reads
 * from XenStore: those that kernel threads hand on wait while a device of ours
 * comes back after a migration, which takes dozens of trips.
 */
#include <linux/random.h>
#include <linux/slab.h>

#include <xen/xenbus.h>

#include "xen.h"

#define THEIRS		"vmloop"
#define PAGES		THEIRS "/page"

/* Longest page that is looked at, how many, and most of what is in them. */
#define PAGE_BYTES_MAX	4096
#define PAGES_MAX	1024
#define ENTRIES_MAX	4096
#define REFUSALS_MAX	1024
#define CHANNELS_MAX	1024

/* dom0 may be writing all the time; then we come back later. */
#define TRIES		8
#define LOOK_AGAIN	HZ

/**
 * struct pile - an array that grows
 * @item: its entries
 * @count: how many
 * @room: for how many there is room
 */
struct pile {
	void *item;
	unsigned int count;
	unsigned int room;
};

/* A refusal is a new one if the peer or the sequence is new. */
struct refusal {
	u64 peer;
	u64 sequence;
	u32 reason;
	u32 retry_ms;
};

/**
 * struct snapshot - all that dom0 says, checked
 * @generation: of all that
 * @pages: how many it is; 0 if there is nothing
 * @peer: whose interfaces follow; its id is 0 before the first
 * @has_agent: the agent's node makes sense
 * @echo: the incarnation that the agent has seen of us
 * @ring_size: bytes of each ring of a new channel
 * @welcome: what the core wants to know of the agent
 * @has_cookie: it asks for counters
 * @cookie: with that
 * @entry: struct vmloop_msg_peer
 * @refusal: struct refusal
 * @told: struct vmloop_xen_told
 */
struct snapshot {
	u64 generation;
	u64 pages;
	struct vmloop_msg_peer peer;
	bool has_agent;
	u64 echo;
	u32 ring_size;
	struct vmloop_msg_welcome welcome;
	bool has_cookie;
	u32 cookie;
	struct pile entry;
	struct pile refusal;
	struct pile told;
};

/* All used by the queue, and while nothing is queued. */
static u64 incarnation;		/* ours */
static u64 seen_generation;
static bool has_seen;		/* the above is set */
static bool agent_is_here;
static struct snapshot known;	/* what the core and the channels know */

static bool is_deaf;		/* what is being read is not needed; single word */
static bool is_calm = true;	/* channels may be opened; single word */

static void look_work_fn(struct work_struct *work);
static DECLARE_DELAYED_WORK(look_work, look_work_fn);
static void calm_work_fn(struct work_struct *work);
static DECLARE_WORK(calm_work, calm_work_fn);

/* Reading ---------------------------------------------------------------- */

static void *pile_add(struct pile *pile, size_t size)
{
	unsigned int room = pile->room ? 2 * pile->room : 16;
	void *item;

	if (pile->count == pile->room) {
		item = kvcalloc(room, size, GFP_KERNEL);
		if (!item)
			return NULL;
		if (pile->count)
			memcpy(item, pile->item, pile->count * size);
		kvfree(pile->item);
		pile->item = item;
		pile->room = room;
	}
	item = pile->item + pile->count++ * size;
	memset(item, 0, size);
	return item;
}

static void snapshot_free(struct snapshot *snapshot)
{
	kvfree(snapshot->entry.item);
	kvfree(snapshot->refusal.item);
	kvfree(snapshot->told.item);
	*snapshot = (struct snapshot){ };
}

static void ignore(const char *line)
{
	atomic_inc(&vmloop_xen_ignored);
	pr_warn_ratelimited("vmloop_xen: %.48s: makes no sense in XenStore: ignored\n",
			    line);
}

/* A page of dom0's, the caller's to kfree(); NULL if there is none. */
static char *read_page(u64 number)
{
	unsigned int length;
	char name[24];
	char *page;

	snprintf(name, sizeof(name), "%llu", number);
	page = xenbus_read(XBT_NIL, PAGES, name, &length);
	if (IS_ERR(page)) {
		int err = PTR_ERR(page);

		/* The latter before dom0 has made the place for us. */
		return err == -ENOENT || err == -EACCES ? NULL : page;
	}
	if (length <= PAGE_BYTES_MAX)
		return page;
	kfree(page);
	ignore(PAGES);
	return NULL;
}

/* A number of a domain that can be a peer; 0 if it is not. */
static domid_t peer_of(const char *name)
{
	u64 peer;

	return vmloop_xen_number(&name, DOMID_FIRST_RESERVED - 1, &peer) ?
	       peer : 0;
}

static bool parse_agent(const char *at, struct snapshot *snapshot)
{
	struct vmloop_msg_welcome *welcome = &snapshot->welcome;
	u64 major, minor, idle_ms, ring_size;

	if (!vmloop_xen_number(&at, U16_MAX, &major) ||
	    !vmloop_xen_number(&at, U16_MAX, &minor) ||
	    !vmloop_xen_random(&at, &welcome->agent) || !welcome->agent ||
	    !vmloop_xen_number(&at, DOMID_FIRST_RESERVED - 1, &welcome->id) ||
	    !vmloop_xen_random(&at, &welcome->epoch) ||
	    !vmloop_xen_random(&at, &snapshot->echo) ||
	    !vmloop_xen_number(&at, U32_MAX, &idle_ms) ||
	    !vmloop_xen_number(&at, U32_MAX, &ring_size) ||
	    !vmloop_xen_name(&at, welcome->name, sizeof(welcome->name)))
		return false;
	welcome->major = major;
	welcome->minor = minor;
	welcome->idle_ms = idle_ms;
	snapshot->ring_size = ring_size;
	return true;
}

static bool parse_peer(const char *at, struct vmloop_msg_peer *entry)
{
	u64 tag;

	if (!vmloop_xen_random(&at, &entry->epoch) ||
	    !vmloop_xen_number(&at, U32_MAX, &tag))
		return false;
	entry->tag = tag;
	/* A name is for people: it is as good without. */
	vmloop_xen_name(&at, entry->name, sizeof(entry->name));
	return true;
}

static bool parse_interface(const char *at, struct vmloop_msg_peer *entry)
{
	struct vmloop_msg_address *ip;
	char word[64];
	u64 flags, mtu;

	if (!vmloop_xen_mac(&at, entry->local_mac) ||
	    !vmloop_xen_mac(&at, entry->mac) ||
	    !vmloop_xen_number(&at, U32_MAX, &flags) ||
	    !vmloop_xen_number(&at, U16_MAX, &mtu))
		return false;
	entry->flags = flags;
	entry->mtu = mtu;
	if ((flags & VMLOOP_PEER_ROUTED) && !vmloop_xen_mac(&at, entry->gateway))
		return false;
	while (entry->ip_count < VMLOOP_PEER_IPS &&
	       vmloop_xen_word(&at, word, sizeof(word))) {
		ip = &entry->ip[entry->ip_count];
		if (!vmloop_xen_ip(word, ip)) {
			/* The peer can be reached without. */
			memset(ip, 0, sizeof(*ip));
			atomic_inc(&vmloop_xen_ignored);
			continue;
		}
		ether_addr_copy(ip->mac, entry->mac);
		entry->ip_count++;
	}
	return true;
}

static bool parse_refusal(const char *at, struct refusal *refusal)
{
	u64 reason, retry_ms;

	if (!vmloop_xen_number(&at, U32_MAX, &reason) ||
	    !vmloop_xen_number(&at, U32_MAX, &retry_ms) ||
	    !vmloop_xen_number(&at, U64_MAX, &refusal->sequence))
		return false;
	refusal->reason = reason;
	refusal->retry_ms = retry_ms;
	return true;
}

/* Whether the agent speaks to us, in a way that we understand. */
static bool is_for_us(const struct snapshot *snapshot)
{
	if (!snapshot->has_agent || snapshot->echo != incarnation)
		return false;
	if (snapshot->welcome.major == VMLOOP_SHM_MAJOR)
		return true;
	pr_err_once("vmloop_xen: the agent speaks another protocol: update vmloop on the host or here\n");
	return false;
}

/* Whose view of channels dom0's is to be; 0 if there is none to look at. */
static u64 own_id(const struct snapshot *snapshot)
{
	if (is_for_us(snapshot))
		return snapshot->welcome.id;
	/* Ours can be taken away without an agent, but none can be added. */
	return atomic_read(&vmloop_xen_channels) ? known.welcome.id : 0;
}

static bool parse_wish(const char *at, struct vmloop_xen_told *told)
{
	char word[16];
	u64 gref, port, major, bells;
	unsigned int i;

	if (!vmloop_xen_word(&at, word, sizeof(word)))
		return false;
	told->wish = VMLOOP_XEN_WAIT;
	if (!strcmp(word, "make"))
		told->wish = VMLOOP_XEN_MAKE;
	else if (!strcmp(word, "close"))
		told->wish = VMLOOP_XEN_CLOSE;
	else if (!strcmp(word, "map"))
		told->wish = VMLOOP_XEN_MAP;
	told->bells = 1;
	if (told->wish == VMLOOP_XEN_MAKE) {
		told->lanes = vmloop_xen_number(&at, U32_MAX, &major) &&
			      major == VMLOOP_TABLE_MAJOR;
		if (told->lanes && vmloop_xen_number(&at, VMLOOP_BELLS, &bells))
			told->bells = max(bells, 1ULL);
	}
	/* Another word is a newer agent's; the channel is there, however. */
	if (told->wish != VMLOOP_XEN_MAP)
		return true;
	if (!vmloop_xen_number(&at, U32_MAX, &gref))
		return false;
	told->gref = gref;
	for (i = 0; i < ARRAY_SIZE(told->port); i++) {
		if (!vmloop_xen_number(&at, U32_MAX, &port))
			break;
		told->port[i] = port;
	}
	told->ports = i;
	return i;
}

static bool parse_channel(const char *name, const char *at, u64 own,
			  struct vmloop_xen_told *told)
{
	u64 tag, peer, side;

	if (!vmloop_xen_number(&name, U32_MAX, &tag) || !tag ||
	    !vmloop_xen_number(&at, DOMID_FIRST_RESERVED - 1, &peer) || !peer ||
	    !vmloop_xen_number(&at, 1, &side) || !parse_wish(at, told))
		return false;
	told->tag = tag;
	told->peer = peer;
	told->side = side;
	/* The lower identity is side 0, and the only one to make a region. */
	return peer != own && side == (peer < own) &&
	       told->wish != (side ? VMLOOP_XEN_MAKE : VMLOOP_XEN_MAP);
}

/* Each of these returns 0 or a negative errno; what makes no sense is ignored. */
static int take_agent(struct snapshot *snapshot, const char *at, const char *line)
{
	snapshot->has_agent = parse_agent(at, snapshot);
	if (!snapshot->has_agent)
		ignore(line);
	return 0;
}

static int take_cookie(struct snapshot *snapshot, const char *at, const char *line)
{
	u64 cookie;

	snapshot->has_cookie = vmloop_xen_number(&at, U32_MAX, &cookie);
	if (snapshot->has_cookie)
		snapshot->cookie = cookie;
	else
		ignore(line);
	return 0;
}

/* @name is PEER or PEER/interface/N. */
static int take_peer(struct snapshot *snapshot, char *name, const char *at,
		     const char *line)
{
	struct vmloop_msg_peer *peer = &snapshot->peer;
	char *rest = strchr(name, '/');
	struct vmloop_msg_peer *entry;

	if (!rest) {
		*peer = (struct vmloop_msg_peer){ .id = peer_of(name) };
		if (peer->id && parse_peer(at, peer))
			return 0;
		peer->id = 0;
		ignore(line);
		return 0;
	}
	*rest = '\0';
	if (!peer->id || peer->id != peer_of(name) ||
	    snapshot->entry.count == ENTRIES_MAX) {
		ignore(line);
		return 0;
	}
	entry = pile_add(&snapshot->entry, sizeof(*entry));
	if (!entry)
		return -ENOMEM;
	*entry = *peer;
	if (!parse_interface(at, entry)) {
		snapshot->entry.count--;
		ignore(line);
	}
	return 0;
}

static int take_refusal(struct snapshot *snapshot, const char *name,
			const char *at, const char *line)
{
	struct refusal *refusal;

	if (snapshot->refusal.count == REFUSALS_MAX) {
		ignore(line);
		return 0;
	}
	refusal = pile_add(&snapshot->refusal, sizeof(*refusal));
	if (!refusal)
		return -ENOMEM;
	refusal->peer = peer_of(name);
	if (!refusal->peer || !parse_refusal(at, refusal)) {
		snapshot->refusal.count--;
		ignore(line);
	}
	return 0;
}

static int take_channel(struct snapshot *snapshot, const char *name,
			const char *at, const char *line)
{
	struct vmloop_xen_told *told;

	if (snapshot->told.count == CHANNELS_MAX) {
		ignore(line);
		return 0;
	}
	told = pile_add(&snapshot->told, sizeof(*told));
	if (!told)
		return -ENOMEM;
	if (!parse_channel(name, at, own_id(snapshot), told)) {
		snapshot->told.count--;
		ignore(line);
	}
	return 0;
}

static int take_line(struct snapshot *snapshot, const char *line)
{
	const char *at = line;
	char word[64];
	char *name;

	/* Whatever begins otherwise is a newer agent's, or its own note. */
	if (!vmloop_xen_word(&at, word, sizeof(word)))
		return 0;
	name = strchr(word, '/');
	if (name)
		*name++ = '\0';
	if (!name && !strcmp(word, "agent"))
		return take_agent(snapshot, at, line);
	if (name && !strcmp(word, "channel"))
		return own_id(snapshot) ?
		       take_channel(snapshot, name, at, line) : 0;
	/* What it said to an earlier life of ours is of no use. */
	if (!is_for_us(snapshot))
		return 0;
	if (name && !strcmp(word, "peer"))
		return take_peer(snapshot, name, at, line);
	if (name && !strcmp(word, "refused"))
		return take_refusal(snapshot, name, at, line);
	if (!name && !strcmp(word, "stats"))
		return take_cookie(snapshot, at, line);
	return 0;
}

/* Whether that is what was read last, and there was an agent then. */
static bool is_old(const struct snapshot *snapshot)
{
	return agent_is_here && has_seen && snapshot->pages &&
	       snapshot->generation == seen_generation;
}

/*
 * Takes the next page. Returns 0, a negative errno, or 1 if it is not of those
 * that were read before.
 */
static int take_page(struct snapshot *snapshot, u64 number)
{
	u64 generation, pages;
	char *page, *line;
	const char *at;
	char *left;
	int err = 0;

	page = read_page(number);
	if (IS_ERR_OR_NULL(page))
		return page ? PTR_ERR(page) : number > 0;
	left = page;
	line = strsep(&left, "\n");
	at = line;
	if (!vmloop_xen_number(&at, U64_MAX, &generation) ||
	    !vmloop_xen_number(&at, PAGES_MAX, &pages) || !pages) {
		ignore(line);
		err = number > 0;
		goto out;
	}
	if (!number) {
		snapshot->generation = generation;
		snapshot->pages = pages;
	}
	if (generation != snapshot->generation || pages != snapshot->pages) {
		err = 1;
		goto out;
	}
	/* One change comes as several events: most find nothing new. */
	if (is_old(snapshot))
		goto out;
	while (!err && (line = strsep(&left, "\n")))
		err = take_line(snapshot, line);
out:
	kfree(page);
	return err;
}

/* Returns 0, a negative errno, or 1 if dom0 wrote meanwhile. */
static int take_all(struct snapshot *snapshot)
{
	u64 number = 0;
	int err;

	do {
		err = take_page(snapshot, number);
		/* It can be many, and whoever suspends us waits. */
		if (!err && READ_ONCE(is_deaf))
			err = -ECANCELED;
	} while (!err && !is_old(snapshot) && ++number < snapshot->pages);
	return err;
}

/* Handing on ------------------------------------------------------------- */

static bool piles_differ(const struct pile *a, const struct pile *b, size_t size)
{
	return a->count != b->count ||
	       (a->count && memcmp(a->item, b->item, a->count * size));
}

/*
 * The core takes a directory for news, and then asks again for what was
 * refused: so it gets one only if something in it, or the agent, is new.
 */
static void hand_directory(const struct snapshot *snapshot, bool agent_is_new)
{
	const struct vmloop_msg_peer *entry = snapshot->entry.item;
	struct vmloop_transport *transport = &vmloop_xen_transport;
	unsigned int i;

	if (!agent_is_new && !piles_differ(&snapshot->entry, &known.entry,
					   sizeof(*entry)))
		return;
	vmloop_directory_begin(transport, snapshot->generation);
	for (i = 0; i < snapshot->entry.count; i++)
		vmloop_directory_peer(transport, &entry[i]);
	vmloop_directory_end(transport, snapshot->generation);
}

static bool refusal_is_new(const struct refusal *refusal)
{
	const struct refusal *old = known.refusal.item;
	unsigned int i;

	for (i = 0; i < known.refusal.count; i++)
		if (old[i].peer == refusal->peer)
			return old[i].sequence != refusal->sequence;
	return true;
}

static void hand_refusals(const struct snapshot *snapshot)
{
	const struct refusal *refusal = snapshot->refusal.item;
	unsigned int i;

	for (i = 0; i < snapshot->refusal.count; i++)
		if (refusal_is_new(&refusal[i]))
			vmloop_peer_refused(&vmloop_xen_transport,
					    refusal[i].peer, refusal[i].reason,
					    refusal[i].retry_ms);
}

/* Whether a question for a channel to that peer needs no answer any more. */
static bool is_settled(u64 peer, const void *what)
{
	const struct snapshot *snapshot = what;
	const struct vmloop_msg_peer *entry = snapshot->entry.item;
	const struct refusal *refusal = snapshot->refusal.item;
	unsigned int i;

	for (i = 0; i < snapshot->refusal.count; i++)
		if (refusal[i].peer == peer && refusal_is_new(&refusal[i]))
			return true;
	for (i = 0; i < snapshot->entry.count; i++)
		if (entry[i].id == peer)
			return entry[i].tag;
	return true;
}

/* Takes over what is in the snapshot. */
static void hand_on(struct snapshot *snapshot)
{
	struct vmloop_transport *transport = &vmloop_xen_transport;
	const struct vmloop_xen_told *told = snapshot->told.item;
	bool is_new;

	if (!is_for_us(snapshot)) {
		/* Channels work without an agent, until dom0 takes them. */
		if (agent_is_here)
			vmloop_agent_gone(transport);
		agent_is_here = false;
		vmloop_xen_channels_tell(told, snapshot->told.count, NULL);
		snapshot_free(snapshot);
		return;
	}
	is_new = !agent_is_here ||
		 snapshot->welcome.agent != known.welcome.agent;
	if (is_new || memcmp(&snapshot->welcome, &known.welcome,
			     sizeof(known.welcome)))
		vmloop_agent_here(transport, &snapshot->welcome);
	agent_is_here = true;

	hand_directory(snapshot, is_new);
	vmloop_xen_wants_settle(is_settled, snapshot);
	hand_refusals(snapshot);
	vmloop_xen_channels_tell(told, snapshot->told.count,
				 READ_ONCE(is_calm) ? &snapshot->ring_size :
						      NULL);
	if (snapshot->has_cookie &&
	    (!known.has_cookie || known.cookie != snapshot->cookie))
		vmloop_xen_say_stats(snapshot->cookie);

	snapshot_free(&known);
	known = *snapshot;
}

static void look_work_fn(struct work_struct *work)
{
	struct snapshot snapshot = { };
	unsigned int tries;
	int err = 0;

	for (tries = 0; !err && tries < TRIES; tries++) {
		err = take_all(&snapshot);
		if (!err && !is_old(&snapshot)) {
			has_seen = snapshot.pages;
			seen_generation = snapshot.generation;
			hand_on(&snapshot);
			return;
		}
		snapshot_free(&snapshot);
		if (!err || err == -ECANCELED)
			return;
		if (err > 0)
			err = 0;
	}
	if (err)
		pr_warn_ratelimited("vmloop_xen: cannot read XenStore: error %d\n",
				    -err);
	queue_delayed_work(vmloop_xen_queue, &look_work, LOOK_AGAIN);
}

/* Channels that were not opened when dom0 said so can be now. */
static void calm_work_fn(struct work_struct *work)
{
	if (agent_is_here)
		vmloop_xen_channels_tell(known.told.item, known.told.count,
					 &known.ring_size);
}

/**
 * vmloop_xen_store_calm() - whether the guest's other devices are at work
 * @calm: false while they come back, when no channel is opened
 *
 * Context: process context.
 */
void vmloop_xen_store_calm(bool calm)
{
	WRITE_ONCE(is_calm, calm);
	/* The queue is ordered: what was read before is handed on by then. */
	if (calm)
		queue_work(vmloop_xen_queue, &calm_work);
}

/* Coming and going ------------------------------------------------------- */

/* Under a spin lock of the kernel's. Returns whether to call the next one. */
static bool changed(struct xenbus_watch *watch, const char *path,
		    const char *token)
{
	mod_delayed_work(vmloop_xen_queue, &look_work, 0);
	return false;
}

/* Not called; without one there can be no watch. */
static void changed_later(struct xenbus_watch *watch, const char *path,
			  const char *token)
{
}

static struct xenbus_watch watch = {
	/* Relative: below /local/domain/ID, whatever our ID is today. */
	.node = THEIRS,
	.will_handle = changed,
	.callback = changed_later,
};

/**
 * vmloop_xen_store_start() - say hello to dom0, and listen
 *
 * Context: process context, nothing is queued.
 * Return: 0 or a negative errno.
 */
int vmloop_xen_store_start(void)
{
	int err;

	do {
		incarnation = get_random_u64();
	} while (!incarnation);
	has_seen = false;
	WRITE_ONCE(is_deaf, false);

	err = vmloop_xen_say_begin(incarnation);
	if (err)
		return err;
	/* Fires once when it is set, so nothing is missed. */
	err = register_xenbus_watch(&watch);
	if (err) {
		vmloop_xen_say_end();
		vmloop_xen_unsay();
	}
	return err;
}

/**
 * vmloop_xen_store_deaf() - listen no more
 *
 * Context: process context.
 */
void vmloop_xen_store_deaf(void)
{
	WRITE_ONCE(is_deaf, true);
	unregister_xenbus_watch(&watch);
	cancel_delayed_work_sync(&look_work);
	cancel_work_sync(&calm_work);
}

/**
 * vmloop_xen_store_stop() - take back all that was said, forget all that was
 * heard
 *
 * Context: process context, nothing is queued; takes the core mutex.
 */
void vmloop_xen_store_stop(void)
{
	vmloop_xen_unsay();
	if (agent_is_here)
		vmloop_agent_gone(&vmloop_xen_transport);
	agent_is_here = false;
	snapshot_free(&known);
}

/**
 * vmloop_xen_store_forget() - have the core forget everybody: we are in
 * another domain, and what numbers mean has changed
 *
 * Context: process context, between vmloop_xen_store_stop() and
 * vmloop_xen_store_start(); takes the core mutex.
 */
void vmloop_xen_store_forget(void)
{
	vmloop_directory_begin(&vmloop_xen_transport, 0);
	vmloop_directory_end(&vmloop_xen_transport, 0);
}
