// SPDX-License-Identifier: GPL-2.0
/*
 * store.c - what dom0 tells us: nodes below vmloop in XenStore, which we can
 * read and watch and nobody but dom0 can write. docs/protocol.md, section 8.
 *
 * Owns the watch and what was read last. The watch runs in the kernel's
 * xenwatch thread and only queues a work of our queue, which reads everything
 * and hands it to the core and to the channels.
 *
 * dom0 changes several nodes at once in a transaction, and with them always
 * the directory's generation. So what was read between two equal generations
 * belongs together. That needs no transaction of ours, in which XenStore lets
 * a guest touch only so many nodes.
 */
#include <linux/random.h>
#include <linux/slab.h>

#include <xen/xenbus.h>

#include "xen.h"

#define THEIRS		"vmloop"

/* Longest value that is looked at, and most nodes in one place. */
#define VALUE_MAX	1024
#define PEERS_MAX	1024
#define INTERFACES_MAX	64
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
 * @is_valid: there is a generation at all
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
	bool is_valid;
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

static void look_work_fn(struct work_struct *work);
static DECLARE_DELAYED_WORK(look_work, look_work_fn);

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

static void ignore(const char *dir, const char *node)
{
	atomic_inc(&vmloop_xen_ignored);
	pr_warn_ratelimited("vmloop_xen: %s/%s in XenStore makes no sense: ignored\n",
			    dir, node);
}

/* Whether that only means that there is nothing. */
static bool is_absent(long err)
{
	return err == -ENOENT || err == -EACCES;
}

/* A node's value, the caller's to kfree(); NULL if there is none. */
static char *read_value(const char *dir, const char *node)
{
	unsigned int length;
	char *value;

	value = xenbus_read(XBT_NIL, dir, node, &length);
	if (IS_ERR(value))
		return is_absent(PTR_ERR(value)) ? NULL : value;
	if (length <= VALUE_MAX)
		return value;
	kfree(value);
	ignore(dir, node);
	return NULL;
}

/* The nodes in a place; *@name is the caller's to kfree(). */
static int read_names(const char *dir, const char *node, unsigned int most,
		      char ***name, unsigned int *count)
{
	*count = 0;
	*name = xenbus_directory(XBT_NIL, dir, node, count);
	if (IS_ERR(*name)) {
		int err = PTR_ERR(*name);

		*name = NULL;
		*count = 0;
		return is_absent(err) ? 0 : err;
	}
	if (*count > most) {
		ignore(dir, node);
		*count = most;
	}
	return 0;
}

/* A name that is the number of a domain that can be a peer; 0 if it is not. */
static domid_t peer_of(const char *name)
{
	u64 peer;

	return vmloop_xen_number(&name, DOMID_FIRST_RESERVED - 1, &peer) ?
	       peer : 0;
}

static int read_generation(u64 *generation, bool *is_valid)
{
	char *value = read_value(THEIRS, "directory");
	const char *at = value;

	*generation = 0;
	*is_valid = false;
	if (IS_ERR_OR_NULL(value))
		return PTR_ERR_OR_ZERO(value);
	*is_valid = vmloop_xen_number(&at, U64_MAX, generation);
	kfree(value);
	return 0;
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

static int read_agent(struct snapshot *snapshot)
{
	char *value = read_value(THEIRS, "agent");

	if (IS_ERR_OR_NULL(value))
		return PTR_ERR_OR_ZERO(value);
	snapshot->has_agent = parse_agent(value, snapshot);
	if (!snapshot->has_agent)
		ignore(THEIRS, "agent");
	kfree(value);
	return 0;
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

static int read_interface(struct snapshot *snapshot, const char *dir,
			  const char *name, const struct vmloop_msg_peer *peer)
{
	struct vmloop_msg_peer *entry;
	char *value;
	int err = 0;

	value = read_value(dir, name);
	if (IS_ERR_OR_NULL(value))
		return PTR_ERR_OR_ZERO(value);
	entry = pile_add(&snapshot->entry, sizeof(*entry));
	if (entry) {
		*entry = *peer;
		if (!parse_interface(value, entry)) {
			snapshot->entry.count--;
			ignore(dir, name);
		}
	} else {
		err = -ENOMEM;
	}
	kfree(value);
	return err;
}

static int read_peer(struct snapshot *snapshot, const char *name)
{
	struct vmloop_msg_peer peer = { .id = peer_of(name) };
	unsigned int count, i;
	char **interface;
	char dir[48];
	char *value;
	bool good;
	int err;

	value = read_value(THEIRS "/peer", name);
	if (IS_ERR_OR_NULL(value))
		return PTR_ERR_OR_ZERO(value);
	good = peer.id && parse_peer(value, &peer);
	kfree(value);
	if (!good) {
		ignore(THEIRS "/peer", name);
		return 0;
	}

	snprintf(dir, sizeof(dir), THEIRS "/peer/%llu/interface", peer.id);
	err = read_names(dir, "", INTERFACES_MAX, &interface, &count);
	for (i = 0; !err && i < count; i++)
		err = read_interface(snapshot, dir, interface[i], &peer);
	kfree(interface);
	return err;
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

static int read_refusal(struct snapshot *snapshot, const char *name)
{
	struct refusal *refusal;
	char *value;
	int err = 0;

	value = read_value(THEIRS "/refused", name);
	if (IS_ERR_OR_NULL(value))
		return PTR_ERR_OR_ZERO(value);
	refusal = pile_add(&snapshot->refusal, sizeof(*refusal));
	if (refusal) {
		refusal->peer = peer_of(name);
		if (!refusal->peer || !parse_refusal(value, refusal)) {
			snapshot->refusal.count--;
			ignore(THEIRS "/refused", name);
		}
	} else {
		err = -ENOMEM;
	}
	kfree(value);
	return err;
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
	u64 gref, port;

	if (!vmloop_xen_word(&at, word, sizeof(word)))
		return false;
	told->wish = VMLOOP_XEN_WAIT;
	if (!strcmp(word, "make"))
		told->wish = VMLOOP_XEN_MAKE;
	else if (!strcmp(word, "close"))
		told->wish = VMLOOP_XEN_CLOSE;
	else if (!strcmp(word, "map"))
		told->wish = VMLOOP_XEN_MAP;
	/* Another word is a newer agent's; the channel is there, however. */
	if (told->wish != VMLOOP_XEN_MAP)
		return true;
	if (!vmloop_xen_number(&at, U32_MAX, &gref) ||
	    !vmloop_xen_number(&at, U32_MAX, &port))
		return false;
	told->gref = gref;
	told->port = port;
	return true;
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

static int read_channel(struct snapshot *snapshot, const char *name)
{
	struct vmloop_xen_told *told;
	char *value;
	int err = 0;

	value = read_value(THEIRS "/channel", name);
	if (IS_ERR_OR_NULL(value))
		return PTR_ERR_OR_ZERO(value);
	told = pile_add(&snapshot->told, sizeof(*told));
	if (told) {
		if (!parse_channel(name, value, own_id(snapshot), told)) {
			snapshot->told.count--;
			ignore(THEIRS "/channel", name);
		}
	} else {
		err = -ENOMEM;
	}
	kfree(value);
	return err;
}

static int read_cookie(struct snapshot *snapshot)
{
	char *value = read_value(THEIRS, "stats");
	const char *at = value;
	u64 cookie;

	if (IS_ERR_OR_NULL(value))
		return PTR_ERR_OR_ZERO(value);
	snapshot->has_cookie = vmloop_xen_number(&at, U32_MAX, &cookie);
	if (snapshot->has_cookie)
		snapshot->cookie = cookie;
	else
		ignore(THEIRS, "stats");
	kfree(value);
	return 0;
}

static int read_each(struct snapshot *snapshot, const char *node,
		     unsigned int most,
		     int (*one)(struct snapshot *snapshot, const char *name))
{
	unsigned int count, i;
	char **name;
	int err;

	err = read_names(THEIRS, node, most, &name, &count);
	/* A directory can be long, and whoever suspends us waits. */
	for (i = 0; !err && i < count; i++)
		err = READ_ONCE(is_deaf) ? -ECANCELED : one(snapshot, name[i]);
	kfree(name);
	return err;
}

/* Returns 0, a negative errno, or 1 if dom0 wrote meanwhile. */
static int read_all(struct snapshot *snapshot)
{
	u64 generation;
	bool is_valid;
	int err;

	err = read_generation(&snapshot->generation, &snapshot->is_valid);
	if (!err)
		err = read_agent(snapshot);
	/* What it said to an earlier life of ours is of no use. */
	if (!err && is_for_us(snapshot)) {
		err = read_each(snapshot, "peer", PEERS_MAX, read_peer);
		if (!err)
			err = read_each(snapshot, "refused", PEERS_MAX,
					read_refusal);
		if (!err)
			err = read_cookie(snapshot);
	}
	if (!err && own_id(snapshot))
		err = read_each(snapshot, "channel", CHANNELS_MAX,
				read_channel);
	if (!err)
		err = read_generation(&generation, &is_valid);
	if (err)
		return err;
	return generation != snapshot->generation ||
	       is_valid != snapshot->is_valid;
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
				 &snapshot->ring_size);
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
	u64 generation;
	bool is_valid;
	int err;

	/* One change comes as many events: most find nothing new. */
	err = read_generation(&generation, &is_valid);
	if (!err && agent_is_here && has_seen && is_valid &&
	    generation == seen_generation)
		return;
	for (tries = 0; !err && tries < TRIES; tries++) {
		err = read_all(&snapshot);
		if (!err) {
			has_seen = snapshot.is_valid;
			seen_generation = snapshot.generation;
			hand_on(&snapshot);
			return;
		}
		snapshot_free(&snapshot);
		if (err == -ECANCELED)
			return;
		if (err > 0)
			err = 0;
	}
	if (err)
		pr_warn_ratelimited("vmloop_xen: cannot read XenStore: error %d\n",
				    -err);
	queue_delayed_work(vmloop_xen_queue, &look_work, LOOK_AGAIN);
}

/* Coming and going ------------------------------------------------------- */

static void changed(struct xenbus_watch *watch, const char *path,
		    const char *token)
{
	mod_delayed_work(vmloop_xen_queue, &look_work, 0);
}

static struct xenbus_watch watch = {
	/* Relative: below /local/domain/ID, whatever our ID is today. */
	.node = THEIRS,
	.callback = changed,
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

	err = vmloop_xen_hello(incarnation);
	if (err)
		return err;
	/* Fires once when it is set, so nothing is missed. */
	err = register_xenbus_watch(&watch);
	if (err)
		xenbus_rm(XBT_NIL, "data", "vmloop");
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
}

/**
 * vmloop_xen_store_stop() - take back all that was said, forget all that was
 * heard
 *
 * Context: process context, nothing is queued; takes the core mutex.
 */
void vmloop_xen_store_stop(void)
{
	xenbus_rm(XBT_NIL, "data", "vmloop");
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
