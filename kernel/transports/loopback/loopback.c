// SPDX-License-Identifier: GPL-2.0
/*
 * loopback.c - transport between two interfaces of the same guest.
 *
 * The reference for what a transport does, the test double for those that
 * need a hypervisor, and a way to exercise core and paths in one guest: its
 * "agent" is this file, its "host" the module's parameter. Two interfaces
 * (say, the ends of a veth pair in two network namespaces) are peers 1 and 2
 * of each other; the first frame between them brings a channel. One that an end
 * found broken is ended for both, and asked for again after a second at the
 * earliest.
 *
 * Owns the region and the two links that share it. Links come and go in a
 * work, as the core asks for them under its mutex.
 */
#include <linux/bottom_half.h>
#include <linux/hex.h>
#include <linux/log2.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "vmloop.h"

static char *interfaces = "";
module_param(interfaces, charp, 0444);
MODULE_PARM_DESC(interfaces, "hardware addresses of the two interfaces, separated by a comma");

static unsigned int ring_size = SZ_1M;
module_param(ring_size, uint, 0444);
MODULE_PARM_DESC(ring_size, "bytes of each ring of packets, a power of two from 65536 to 16777216");

static unsigned int lanes = 512;
module_param(lanes, uint, 0444);
MODULE_PARM_DESC(lanes, "lanes of the channel, an even number from 2 to 4096; 0 makes one of version 1, for tests");

static unsigned int bells = VMLOOP_BELLS;
module_param(bells, uint, 0444);
MODULE_PARM_DESC(bells, "doorbells of each end, from 1 to 9: one for all lanes, and one for each lane that packets are spread over");

static int without_set(const char *value, const struct kernel_param *param);

static const struct kernel_param_ops without_ops = {
	.set = without_set,
};

static u32 without[2];
module_param_cb(without, &without_ops, NULL, 0200);
MODULE_PARM_DESC(without, "for tests: kinds of lanes that the policy does not have for the first and for the second interface, a bit of each, as in 4,0");

static bool lose;
module_param(lose, bool, 0600);
MODULE_PARM_DESC(lose, "for tests: what is new in the directory next fits none that anybody has");

/* An end of the one channel: what peer @id is reached through. */
struct end {
	u64 id;		/* of the peer */
	u8 local_mac[ETH_ALEN];
	u8 mac[ETH_ALEN];
	struct vmloop_link link;
};

static struct end ends[2];
static void *region;		/* NULL while there is no channel */
static u32 tag;			/* of the channel, 0 while there is none */
static bool closed[2];		/* which ends have reported it closed */
static unsigned long broken_until;	/* no other one before, in jiffies */
static u64 generation;		/* of the directory, 0 before the first */
static bool ending;		/* the module goes: make nothing more */
/* Protects all above and @without, but @closed and @broken_until: the core's does. */
static DEFINE_MUTEX(loopback_mutex);

static struct vmloop_transport transport;

/* A ring of packets, and as much for all other lanes. */
static void plan(struct vmloop_shm_header *header)
{
	vmloop_region_plan(header, lanes, (lanes ? 2 : 1) * (u64)ring_size);
}

static size_t region_size(void)
{
	struct vmloop_shm_header header;

	plan(&header);
	return header.size;
}

/**
 * struct window - memory of a window, as long as either end has it
 * @base: for the end that owns it
 * @pages: its pages
 * @count: of them
 * @users: ends that have it
 */
struct window {
	void *base;
	struct page **pages;
	unsigned int count;
	unsigned int users;
};

/* By end, and by the remainders of their numbers; under the core mutex. */
static struct window *windows[2][VMLOOP_WINDOWS_MAX];

static unsigned int make_ms;
module_param(make_ms, uint, 0600);
MODULE_PARM_DESC(make_ms, "for tests: milliseconds after which a new window's memory is there, as where a host makes it; 0: at once");

/**
 * struct making - a window whose memory is told of later
 * @work: tells
 * @number: of the window; single word
 * @memory: what there is to tell; it does not change while the window with @number waits for it
 */
struct making {
	struct delayed_work work;
	u32 number;
	struct vmloop_window_memory memory;
};

static struct making makings[2][VMLOOP_WINDOWS_MAX];

static unsigned int end_of(const struct vmloop_link *link)
{
	return link == &ends[1].link;
}

static void window_put(struct window *window)
{
	if (!window || --window->users)
		return;
	vfree(window->base);
	kvfree(window->pages);
	kfree(window);
}

static struct making *making_of(unsigned int i)
{
	return &makings[i / VMLOOP_WINDOWS_MAX][i % VMLOOP_WINDOWS_MAX];
}

static void tell(struct work_struct *work)
{
	struct making *making = container_of(work, struct making, work.work);
	bool second = making >= makings[1];

	vmloop_window_made(&transport, ends[second].link.tag, READ_ONCE(making->number),
			   &making->memory);
}

/* Returns -EINPROGRESS; 0 if it need not be told. */
static int tell_later(struct vmloop_link *link, u32 number,
		      const struct vmloop_window_memory *memory)
{
	struct making *making = &makings[end_of(link)][number % VMLOOP_WINDOWS_MAX];
	unsigned int ms = READ_ONCE(make_ms);

	if (!ms)
		return 0;
	/* That of a window that was given up finds that nobody waits for it. */
	WRITE_ONCE(making->number, number);
	making->memory = *memory;
	mod_delayed_work(system_wq, &making->work, msecs_to_jiffies(ms));
	return -EINPROGRESS;
}

static int window_make(struct vmloop_link *link, u32 number, u64 size,
		       struct vmloop_window_memory *memory)
{
	struct window *window;
	unsigned int i;

	if (size % PAGE_SIZE)
		return -EINVAL;
	window = kzalloc(sizeof(*window), GFP_KERNEL);
	if (!window)
		return -ENOMEM;
	window->users = 1;
	window->count = size / PAGE_SIZE;
	window->base = vzalloc(size);
	window->pages = kvcalloc(window->count, sizeof(*window->pages), GFP_KERNEL);
	if (!window->base || !window->pages) {
		window_put(window);
		return -ENOMEM;
	}
	for (i = 0; i < window->count; i++)
		window->pages[i] = vmalloc_to_page(window->base + i * PAGE_SIZE);
	windows[end_of(link)][number % VMLOOP_WINDOWS_MAX] = window;
	*memory = (struct vmloop_window_memory){
		.base = window->base,
		.pages = window->pages,
		.handle = number,
	};
	return tell_later(link, number, memory);
}

static void window_free(struct vmloop_link *link, u32 number,
			struct vmloop_window_memory *memory)
{
	window_put(windows[end_of(link)][number % VMLOOP_WINDOWS_MAX]);
	windows[end_of(link)][number % VMLOOP_WINDOWS_MAX] = NULL;
}

/* A write of the end that may only read faults, as it would where pages are granted. */
static int window_map(struct vmloop_link *link, u32 number, u64 size,
		      struct vmloop_window_memory *memory)
{
	struct window *window = windows[!end_of(link)][number % VMLOOP_WINDOWS_MAX];

	if (!window || size != (u64)window->count * PAGE_SIZE ||
	    memory->handle != number)
		return -EINVAL;
	memory->base = vmap(window->pages, window->count, VM_MAP, PAGE_KERNEL_RO);
	if (!memory->base)
		return -ENOMEM;
	memory->pages = window->pages;
	memory->priv = window;
	window->users++;
	return 0;
}

static void window_unmap(struct vmloop_link *link, u32 number,
			 struct vmloop_window_memory *memory)
{
	vunmap(memory->base);
	window_put(memory->priv);
}

static const struct vmloop_window_ops window_ops = {
	.make = window_make,
	.free = window_free,
	.map = window_map,
	.unmap = window_unmap,
};

/* What the first end says of its windows, for tests; see forge_window(). */
static unsigned int forge;
module_param(forge, uint, 0600);
MODULE_PARM_DESC(forge, "for tests: what the first interface's side says wrong of new windows, from 1 to 8; 0: nothing");

/* A window that cannot be: its side has just said OPEN, and the other has not looked. */
static void forge_window(struct vmloop_window_lane *what)
{
	switch (READ_ONCE(forge)) {
	case 1:
		what->number = VMLOOP_WINDOWS_MAX;
		break;
	case 2:
		what->number = 0;
		break;
	case 3:
		what->kind = VMLOOP_LANE_WINDOW;
		break;
	case 4:
		what->kind = U32_MAX;
		break;
	case 5:
		what->size = 0;
		break;
	case 6:
		what->size += VMLOOP_SHM_PAGE / 2;
		break;
	case 7:
		what->size += VMLOOP_SHM_PAGE;
		break;
	case 8:
		what->handle++;
		break;
	}
}

/* Of windows that the other end has not looked at yet. */
static void forge_windows(void)
{
	const struct vmloop_shm_entry *theirs;
	struct vmloop_shm_entry *entry;
	struct vmloop_region ours;
	u32 i;

	if (vmloop_region_open(&ours, region, region_size(), 0, VMLOOP_REGION_CHANNEL) ||
	    ours.major != VMLOOP_TABLE_MAJOR)
		return;
	for (i = 0; i < ours.lanes; i += 2) {
		entry = vmloop_region_our_entry(&ours, i);
		theirs = vmloop_region_their_entry(&ours, i);
		if (entry->lane.kind == VMLOOP_LANE_WINDOW &&
		    READ_ONCE(entry->life) == READ_ONCE(theirs->life) + VMLOOP_LIFE_OPEN)
			forge_window((struct vmloop_window_lane *)entry->path);
	}
}

/*
 * A doorbell is a plain call: the other end looks at its lanes. As in an interrupt,
 * what that raises runs when this is over, also where nobody else would run it.
 */
static void ring(struct vmloop_link *link, u32 bell)
{
	if (unlikely(READ_ONCE(forge)) && !end_of(link))
		forge_windows();
	local_bh_disable();
	vmloop_link_event(&ends[link == &ends[0].link].link, bell);
	local_bh_enable();
}

static void say_directory(bool whole)
{
	struct vmloop_msg_peer entry;
	unsigned int i;

	if (whole)
		vmloop_directory_begin(&transport, generation + 1);
	else
		vmloop_directory_change(&transport, generation + 1,
					lose ? generation + 1 : generation);
	generation++;
	if (!whole)
		lose = false;
	for (i = 0; i < ARRAY_SIZE(ends); i++) {
		entry = (struct vmloop_msg_peer){
			.id = ends[i].id,
			.epoch = 1,
			.tag = tag ? tag + i : 0,
			.flags = VMLOOP_PEER_TAGGED |
				 without[i] << VMLOOP_PEER_WITHOUT_SHIFT,
		};
		ether_addr_copy(entry.local_mac, ends[i].local_mac);
		ether_addr_copy(entry.mac, ends[i].mac);
		snprintf(entry.name, sizeof(entry.name), "loopback%u", i);
		vmloop_directory_peer(&transport, &entry);
	}
	vmloop_directory_end(&transport, generation);
}

static void channel_make(void)
{
	unsigned int i;

	region = vzalloc(region_size());
	if (!region)
		return;
	plan(region);

	/* Each end has a tag of its own, as both are in one directory. */
	tag = 1;
	for (i = 0; i < ARRAY_SIZE(ends); i++) {
		closed[i] = false;
		ends[i].link = (struct vmloop_link){
			.transport = &transport,
			.tag = tag + i,
			.side = i,
			.base = region,
			.size = region_size(),
			.bells = bells,
			.peer_bells = bells,
			.ring = ring,
			.windows = &window_ops,
		};
	}
	say_directory(false);
	for (i = 0; i < ARRAY_SIZE(ends); i++)
		WARN_ON_ONCE(vmloop_link_add(&ends[i].link));
}

static void channel_unmake(void)
{
	unsigned int i;

	if (!region)
		return;
	for (i = 0; i < ARRAY_SIZE(ends); i++)
		vmloop_link_remove(&ends[i].link);
	for (i = 0; i < 2 * VMLOOP_WINDOWS_MAX; i++)
		cancel_delayed_work_sync(&making_of(i)->work);
	vfree(region);
	region = NULL;
	tag = 0;
}

/* What was refused is asked for again when it may be. */
static bool refuse(void)
{
	long left = READ_ONCE(broken_until) - jiffies;
	unsigned int i;

	if (left <= 0 || left > HZ)
		return false;
	for (i = 0; i < ARRAY_SIZE(ends); i++)
		vmloop_peer_refused(&transport, ends[i].id,
				    VMLOOP_REFUSED_BROKEN,
				    jiffies_to_msecs(left));
	return true;
}

static void make_work(struct work_struct *work)
{
	mutex_lock(&loopback_mutex);
	if (!region && !ending && !refuse())
		channel_make();
	mutex_unlock(&loopback_mutex);
}

static void unmake_work(struct work_struct *work)
{
	mutex_lock(&loopback_mutex);
	channel_unmake();
	if (!ending)
		say_directory(false);
	mutex_unlock(&loopback_mutex);
}

static void again_work(struct work_struct *work)
{
	mutex_lock(&loopback_mutex);
	if (!ending)
		say_directory(true);
	mutex_unlock(&loopback_mutex);
}

static DECLARE_DELAYED_WORK(again, again_work);
static DECLARE_WORK(make, make_work);
static DECLARE_WORK(unmake, unmake_work);

static int request(struct vmloop_transport *transport, u64 peer, u64 epoch,
		   unsigned int attempt)
{
	schedule_work(&make);
	return 0;
}

static void report(struct vmloop_transport *transport, u32 tag, u32 state)
{
	if (state != VMLOOP_STATE_CLOSED && state != VMLOOP_STATE_BROKEN)
		return;
	/* Under the core mutex: nobody else writes. */
	closed[tag - 1] = true;
	if (state == VMLOOP_STATE_BROKEN)
		WRITE_ONCE(broken_until, jiffies + HZ);
	if ((closed[0] && closed[1]) || state == VMLOOP_STATE_BROKEN)
		schedule_work(&unmake);
}

static void ask_again(struct vmloop_transport *transport)
{
	schedule_delayed_work(&again, HZ);
}

static const struct vmloop_transport_ops ops = {
	.request = request,
	.report = report,
	.again = ask_again,
};

static struct vmloop_transport transport = {
	.name = "loopback",
	.owner = THIS_MODULE,
	.ops = &ops,
};

/* A position that cannot be, and news of it. */
static void spoil_head(const struct vmloop_region *region)
{
	struct vmloop_shm_news *news;
	u32 *head;

	if (region->major == VMLOOP_SHM_MAJOR) {
		head = &region->ours->lane[0].tx_head;
	} else {
		news = &vmloop_region_our_table(region)->news;
		head = &vmloop_region_our_entry(region, 0)->lane.tx_head;
		WRITE_ONCE(news->lanes[0], READ_ONCE(news->lanes[0]) ^ 1);
		WRITE_ONCE(news->groups, READ_ONCE(news->groups) ^ 1);
	}
	WRITE_ONCE(*head, READ_ONCE(*head) + 1);
}

/* For tests: an end says a position that cannot be. */
static int spoil_set(const char *value, const struct kernel_param *param)
{
	struct vmloop_region theirs;
	unsigned int end;
	int err;

	err = kstrtouint(value, 0, &end);
	if (err)
		return err;
	if (end >= ARRAY_SIZE(ends))
		return -EINVAL;

	mutex_lock(&loopback_mutex);
	err = region ? vmloop_region_open(&theirs, region, region_size(), end,
					  VMLOOP_REGION_CHANNEL) : -ENOENT;
	if (!err) {
		spoil_head(&theirs);
		ring(&ends[end].link, 0);
	}
	mutex_unlock(&loopback_mutex);
	return err;
}

static const struct kernel_param_ops spoil_ops = {
	.set = spoil_set,
};

module_param_cb(spoil, &spoil_ops, NULL, 0200);
MODULE_PARM_DESC(spoil, "for tests: 0 or 1, the end that breaks the protocol now");

static int without_set(const char *value, const struct kernel_param *param)
{
	u16 kinds[2];

	if (sscanf(value, "%hu,%hu", &kinds[0], &kinds[1]) != 2)
		return -EINVAL;
	mutex_lock(&loopback_mutex);
	without[0] = kinds[0];
	without[1] = kinds[1];
	/* Before the first one the module is being loaded. */
	if (generation && !ending)
		say_directory(true);
	mutex_unlock(&loopback_mutex);
	return 0;
}

static int parse(u8 *first, u8 *second)
{
	char *comma = strchr(interfaces, ',');

	if (!comma || !mac_pton(interfaces, first) ||
	    !mac_pton(comma + 1, second)) {
		pr_err("vmloop_loopback: interfaces=MAC,MAC is needed, as in interfaces=02:00:00:00:00:01,02:00:00:00:00:02\n");
		return -EINVAL;
	}
	if (!is_power_of_2(ring_size) || ring_size < SZ_64K ||
	    ring_size > SZ_16M) {
		pr_err("vmloop_loopback: ring_size is a power of two from 65536 to 16777216\n");
		return -EINVAL;
	}
	if (lanes % 2 || lanes > VMLOOP_LANES_MAX) {
		pr_err("vmloop_loopback: lanes is an even number from 2 to %u, or 0\n",
		       VMLOOP_LANES_MAX);
		return -EINVAL;
	}
	if (!bells || bells > VMLOOP_BELLS) {
		pr_err("vmloop_loopback: bells is a number from 1 to %u\n",
		       VMLOOP_BELLS);
		return -EINVAL;
	}
	return 0;
}

static int __init loopback_init(void)
{
	const struct vmloop_msg_welcome welcome = {
		.id = U64_MAX,
		.epoch = 1,
		.agent = 1,
		.name = "loopback",
	};
	unsigned int i;
	int err;

	for (i = 0; i < 2 * VMLOOP_WINDOWS_MAX; i++)
		INIT_DELAYED_WORK(&making_of(i)->work, tell);
	broken_until = jiffies;
	err = parse(ends[0].local_mac, ends[1].local_mac);
	if (err)
		return err;
	ether_addr_copy(ends[0].mac, ends[1].local_mac);
	ether_addr_copy(ends[1].mac, ends[0].local_mac);
	ends[0].id = 2;
	ends[1].id = 1;

	err = vmloop_transport_register(&transport);
	if (err)
		return err;
	vmloop_agent_here(&transport, &welcome);
	mutex_lock(&loopback_mutex);
	say_directory(true);
	mutex_unlock(&loopback_mutex);
	return 0;
}

static void __exit loopback_exit(void)
{
	mutex_lock(&loopback_mutex);
	ending = true;
	channel_unmake();
	mutex_unlock(&loopback_mutex);
	vmloop_transport_unregister(&transport);
	/* A request or a report may have come until just now. */
	cancel_work_sync(&make);
	cancel_work_sync(&unmake);
	cancel_delayed_work_sync(&again);
}

module_init(loopback_init);
module_exit(loopback_exit);

MODULE_DESCRIPTION("Shared-memory networking between virtual machines: loopback transport");
MODULE_AUTHOR("The vmloop developers");
MODULE_VERSION(VMLOOP_VERSION);
MODULE_LICENSE("GPL");
