// SPDX-License-Identifier: GPL-2.0
/*
 * window.c - memory of a channel beside its region: docs/protocol.md, section 9.
 *
 * Owns the windows of all channels. A window belongs to one side, which writes it; the
 * other can only read it, which the transport sees to. Each stands on a lane without
 * traffic: the owner opens that when the transport has made the memory, the peer accepts
 * it when it has the memory as well, and either closes it. So a window is
 * offered, refused, given up and lost as a lane is, by life.c's rules; its memory is
 * free when the lane has ended. Before its memory is made a window has no lane: it is in the
 * making, and ends with its channel, with its path, or when it is given up.
 *
 * A reference is a number, an offset and a size, which the peer wrote. The path has it
 * checked here, against the size that was agreed upon, and counts as a user
 * while it looks at the bytes: vmloop_window_use(). What a window says may change at any
 * time, as its owner can write to it. No two windows of a side have one number, so that a
 * reference that comes late finds no other window; the number's remainder says which of
 * the few places of its side it has.
 *
 * Context: core mutex held, but for what says otherwise.
 */
#include <linux/slab.h>

#include "core.h"

static struct vmloop_window **place_of(struct vmloop_channel *channel, bool ours,
				       u32 number)
{
	return &channel->windows[ours][number % VMLOOP_WINDOWS_MAX];
}

static void window_free(struct kref *refs)
{
	struct vmloop_window *window = container_of(refs, struct vmloop_window, refs);

	/* vmloop_window_use() may look at it. */
	kfree_rcu(window, rcu);
}

/**
 * vmloop_window_get() - keep a window that may end
 * @window: a window that the path has not been told the end of, or holds
 *
 * Its memory is not kept.
 *
 * Context: any.
 */
void vmloop_window_get(struct vmloop_window *window)
{
	kref_get(&window->refs);
}
EXPORT_SYMBOL_GPL(vmloop_window_get);

/**
 * vmloop_window_put() - let go of what vmloop_window_get() has kept
 * @window: the window
 *
 * Context: any.
 */
void vmloop_window_put(struct vmloop_window *window)
{
	kref_put(&window->refs, window_free);
}
EXPORT_SYMBOL_GPL(vmloop_window_put);

/* Using ------------------------------------------------------------------ */

/**
 * vmloop_window_use() - find the window that a reference names, and keep its memory
 * @lane: the lane that the reference came by, or is to go by
 * @ours: it is a window of ours; else the peer's
 * @number: of the window; untrusted
 *
 * The memory stays until vmloop_window_unuse(), but no longer than the path's
 * window_close: where that comes first, it waits for, or revokes, what the path uses.
 *
 * Context: any, between the path's lane_open and the end of its lane_close.
 * Return: the window, or NULL: there is none that lanes of this path may refer to.
 */
struct vmloop_window *vmloop_window_use(const struct vmloop_lane *lane, bool ours,
					u32 number)
{
	struct vmloop_window *window;

	rcu_read_lock();
	window = rcu_dereference(lane->channel->windows_up[ours][number % VMLOOP_WINDOWS_MAX]);
	if (window && (window->number != number || READ_ONCE(window->path) != lane->path ||
		       !atomic_inc_not_zero(&window->uses)))
		window = NULL;
	rcu_read_unlock();
	return window;
}
EXPORT_SYMBOL_GPL(vmloop_window_use);

/**
 * vmloop_window_unuse() - nothing looks at what vmloop_window_use() has kept any more
 * @window: the window
 *
 * Context: any.
 */
void vmloop_window_unuse(struct vmloop_window *window)
{
	/* Pairs with the acquire in is_used(): what was read, or written, there is done with. */
	(void)atomic_fetch_sub_release(1, &window->uses);
}
EXPORT_SYMBOL_GPL(vmloop_window_unuse);

/**
 * vmloop_window_has() - whether bytes lie in a window
 * @window: the window
 * @offset: of the first, from the window's start; untrusted
 * @size: how many; untrusted
 *
 * Context: any.
 */
bool vmloop_window_has(const struct vmloop_window *window, u64 offset, u64 size)
{
	return offset <= window->size && size <= window->size - offset;
}
EXPORT_SYMBOL_GPL(vmloop_window_has);

/* Coming and going ------------------------------------------------------- */

static struct vmloop_window *window_make(struct vmloop_channel *channel,
					 const struct vmloop_path *path, bool ours,
					 u32 number, u64 size)
{
	struct vmloop_window *window = kzalloc(sizeof(*window), GFP_KERNEL);

	if (!window)
		return NULL;
	window->channel = channel;
	window->path = path;
	window->ours = ours;
	window->number = number;
	window->size = size;
	kref_init(&window->refs);
	*place_of(channel, ours, number) = window;
	return window;
}

/* The number is free again. */
static void place_give(struct vmloop_window *window)
{
	struct vmloop_window **place =
		place_of(window->channel, window->ours, window->number);

	if (*place == window)
		*place = NULL;
}

/* The path's last call. */
static void window_end(struct vmloop_window *window, u32 reason)
{
	place_give(window);
	if (window->path)
		window->path->window_ended(window, reason);
	/* vmloop_window_use() may have found the window, and compares this yet. */
	WRITE_ONCE(window->path, NULL);
	window->channel = NULL;
	vmloop_window_put(window);
}

static void memory_free(struct vmloop_window *window)
{
	struct vmloop_link *link = window->channel->link;

	link->windows->free(link, window->number, &window->memory);
}

static bool size_is_good(u64 size)
{
	return size && IS_ALIGNED(size, VMLOOP_SHM_PAGE) &&
	       size <= VMLOOP_WINDOW_SIZE_MAX;
}

/* The memory is there: tell the peer. */
static int announce(struct vmloop_window *window)
{
	const struct vmloop_window_lane what = {
		.number = window->number,
		.kind = window->path->kind,
		.size = window->size,
		.handle = window->memory.handle,
	};
	struct vmloop_lane_ask ask = {
		.ring_size = VMLOOP_SHM_PAGE,
		.priv = window,
	};
	struct vmloop_lane *lane;

	BUILD_BUG_ON(sizeof(what) != sizeof(ask.say));
	memcpy(ask.say, &what, sizeof(what));
	memcpy(ask.say + offsetof(struct vmloop_window_lane, path), window->said,
	       VMLOOP_WINDOW_BYTES);
	lane = vmloop_channel_lane(window->channel, &vmloop_windows, &ask);
	return PTR_ERR_OR_ZERO(lane);
}

static int may_have(const struct vmloop_channel *channel, const struct vmloop_path *path)
{
	if (channel->state == VMLOOP_CHANNEL_CLOSING)
		return -ENOTCONN;
	if (vmloop_path_find(path->kind) != path)
		return -ENODEV;
	if (!vmloop_policy_has(channel, path) || !vmloop_policy_has(channel, &vmloop_windows))
		return -EACCES;
	return 0;
}

/**
 * vmloop_channel_window() - have memory that the peer can read, for references
 * @channel: a channel that begins or is up; core mutex held
 * @path: whose lanes are to refer to it
 * @ask: what it is to be
 *
 * The path's window_up comes when the peer has it as well; window_ended alone if the peer
 * does not want it, or the memory cannot be had after all.
 *
 * Context: process context, from the path's channel_open or lane_up, or
 * vmloop_channel_do(). None of the path's window callbacks is called before this returns.
 * Return: the window, until its window_ended; or -EINVAL: the size is none; -EOPNOTSUPP:
 * the transport shares none, or the channel has no table of lanes; -ENOSPC: there are
 * VMLOOP_WINDOWS_MAX of ours; -ENOTCONN: the channel is ending; -ENODEV: the
 * path is not registered; -EACCES: the host's policy has no such lanes, or no windows, for the
 * peer; or what the transport or vmloop_channel_lane() returned.
 */
struct vmloop_window *vmloop_channel_window(struct vmloop_channel *channel,
					    const struct vmloop_path *path,
					    const struct vmloop_window_ask *ask)
{
	const struct vmloop_window_ops *ops = channel->link->windows;
	struct vmloop_window *window;
	u32 place, tries;
	int err;

	lockdep_assert_held(&vmloop_mutex);
	if (!channel->slots || !ops)
		return ERR_PTR(-EOPNOTSUPP);
	err = may_have(channel, path);
	if (err)
		return ERR_PTR(err);
	if (!size_is_good(ask->size))
		return ERR_PTR(-EINVAL);
	/* In turn: a transport may be busy with the one that was there before. */
	for (tries = 0; tries < VMLOOP_WINDOWS_MAX; tries++) {
		place = (channel->window_count + tries) % VMLOOP_WINDOWS_MAX;
		if (!channel->windows[true][place])
			break;
	}
	if (tries == VMLOOP_WINDOWS_MAX)
		return ERR_PTR(-ENOSPC);

	window = window_make(channel, path, true,
			     channel->window_count++ * VMLOOP_WINDOWS_MAX + place,
			     ask->size);
	if (!window)
		return ERR_PTR(-ENOMEM);
	window->priv = ask->priv;
	memcpy(window->said, ask->say, sizeof(window->said));
	err = ops->make(channel->link, window->number, window->size, &window->memory);
	if (err == -EINPROGRESS) {
		window->is_being_made = true;
		return window;
	}
	if (err)
		goto err_make;
	err = announce(window);
	if (err)
		goto err_announce;
	return window;

err_announce:
	memory_free(window);
err_make:
	place_give(window);
	vmloop_window_put(window);
	return ERR_PTR(err);
}
EXPORT_SYMBOL_GPL(vmloop_channel_window);

/* One that has no lane, or none any more, ends: nothing of ours touches its memory. */
static void window_drop(struct vmloop_window *window, u32 reason)
{
	window->is_being_made = false;
	memory_free(window);
	window_end(window, reason);
}

/**
 * vmloop_window_made() - the memory of a window is there, or will not be
 * @transport: whose make operation returned -EINPROGRESS for it
 * @tag: of the channel
 * @number: of the window
 * @memory: as make fills it in; NULL: it cannot be had, and the transport has forgotten it
 *
 * A window that was given up meanwhile was freed by the transport's free operation: then
 * nothing happens.
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_window_made(struct vmloop_transport *transport, u32 tag, u32 number,
			const struct vmloop_window_memory *memory)
{
	struct vmloop_channel *channel;
	struct vmloop_window *window;
	int err;

	mutex_lock(&vmloop_mutex);
	channel = vmloop_link_channel(transport, tag);
	window = channel ? *place_of(channel, true, number) : NULL;
	if (!window || window->number != number || !window->is_being_made)
		goto out;
	if (!memory) {
		window_end(window, VMLOOP_REASON_ROOM);
		goto out;
	}
	window->memory = *memory;
	err = may_have(channel, window->path);
	if (!err) {
		window->is_being_made = false;
		err = announce(window);
	}
	if (err)
		window_drop(window, err == -EACCES ? VMLOOP_REASON_POLICY :
						     VMLOOP_REASON_ROOM);
out:
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_window_made);

/**
 * vmloop_windows_drop() - end windows that are in the making
 * @channel: a channel that is being shut, or whose path goes
 * @path: those for lanes of this path only; NULL for all
 */
void vmloop_windows_drop(struct vmloop_channel *channel, const struct vmloop_path *path)
{
	struct vmloop_window *window;
	u32 i;

	lockdep_assert_held(&vmloop_mutex);
	for (i = 0; i < VMLOOP_WINDOWS_MAX; i++) {
		window = channel->windows[true][i];
		if (window && window->is_being_made && (!path || window->path == path))
			window_drop(window, VMLOOP_REASON_NONE);
	}
}

/**
 * vmloop_window_shut() - give a window up
 * @window: a window that the path holds by vmloop_window_get(), or that cannot end now; one
 *	that has ended is left as it is
 * @reason: VMLOOP_REASON_NONE, or one of the path's own, for the peer's path
 *
 * The path's window_down is called before this returns if the window was up, window_ended
 * before it returns or later.
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_window_shut(struct vmloop_window *window, u32 reason)
{
	struct vmloop_channel *channel;

	mutex_lock(&vmloop_mutex);
	channel = window->channel;
	if (channel && window->is_being_made)
		window_drop(window, VMLOOP_REASON_NONE);
	else if (channel && channel->state != VMLOOP_CHANNEL_CLOSING)
		vmloop_lane_shut_locked(window->lane, reason);
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_window_shut);

/**
 * vmloop_window_path() - whose lanes refer to the window that a lane stands for
 * @lane: any lane
 *
 * Return: the path; NULL if the lane stands for none, or the path has gone.
 */
const struct vmloop_path *vmloop_window_path(const struct vmloop_lane *lane)
{
	const struct vmloop_window *window = lane->priv;

	return lane->path == &vmloop_windows && window ? window->path : NULL;
}

/**
 * vmloop_window_forget() - the path whose window a lane stands for goes
 * @lane: that lane; closed
 */
void vmloop_window_forget(const struct vmloop_lane *lane)
{
	struct vmloop_window *window = lane->priv;

	window->path->window_ended(window, VMLOOP_REASON_NONE);
	WRITE_ONCE(window->path, NULL);
}

/* The lane that stands for a window -------------------------------------- */

static u32 lane_wanted(struct vmloop_lane *lane, struct vmloop_lane_ask *ask)
{
	struct vmloop_channel *channel = lane->channel;
	struct vmloop_window_lane what;
	const struct vmloop_path *path;

	memcpy(&what, lane->said, sizeof(what));
	path = what.kind == VMLOOP_LANE_WINDOW ? NULL : vmloop_path_find(what.kind);
	if (!channel->link->windows || !path || !path->window_wanted)
		return VMLOOP_REASON_KIND;
	if (!vmloop_policy_has(channel, path))
		return VMLOOP_REASON_POLICY;
	if (!size_is_good(what.size) || *place_of(channel, false, what.number))
		return VMLOOP_REASON_WINDOW;
	ask->ring_size = VMLOOP_SHM_PAGE;
	return path->window_wanted(channel->peer, what.size, what.path);
}

/* The peer's: it is ours to read from here on. */
static int window_map(struct vmloop_lane *lane)
{
	struct vmloop_channel *channel = lane->channel;
	struct vmloop_link *link = channel->link;
	struct vmloop_window_lane what;
	struct vmloop_window *window;
	int err;

	memcpy(&what, lane->said, sizeof(what));
	window = window_make(channel, vmloop_path_find(what.kind), false, what.number,
			     what.size);
	if (!window)
		return -ENOMEM;
	memcpy(window->said, what.path, sizeof(window->said));
	window->memory.handle = what.handle;
	err = link->windows->map(link, what.number, what.size, &window->memory);
	if (err) {
		place_give(window);
		vmloop_window_put(window);
		return err;
	}
	lane->priv = window;
	return 0;
}

/* From here on references find it. */
static void window_up(struct vmloop_window *window)
{
	const u32 place = window->number % VMLOOP_WINDOWS_MAX;

	window->up = true;
	atomic_set(&window->uses, 1);
	window->path->window_up(window);
	/* Pairs with the load in vmloop_window_use(): all of the window is there. */
	rcu_assign_pointer(window->channel->windows_up[window->ours][place], window);
}

static bool is_found(const struct vmloop_window *window)
{
	const u32 place = window->number % VMLOOP_WINDOWS_MAX;

	return rcu_access_pointer(window->channel->windows_up[window->ours][place]) == window;
}

/* No reference finds it any more that has not found it. */
static void hide(struct vmloop_window *window)
{
	const u32 place = window->number % VMLOOP_WINDOWS_MAX;

	if (!is_found(window))
		return;
	RCU_INIT_POINTER(window->channel->windows_up[window->ours][place], NULL);
	vmloop_window_unuse(window);
}

/* Whether anything uses it, beside what lets references find it. */
static bool is_used(const struct vmloop_window *window)
{
	/* Pairs with the release in vmloop_window_unuse(). */
	return atomic_read_acquire(&window->uses) > is_found(window);
}

/*
 * A window of the peer's is found before its owner hears that we have it, and until its
 * lane is closed, which at the end of a channel is after all others: references come as soon
 * as that, and as late.
 */
static int lane_open(struct vmloop_lane *lane)
{
	struct vmloop_window *window;
	int err;

	if (!lane->opened) {
		err = window_map(lane);
		if (err)
			return err;
	}
	window = lane->priv;
	window->lane = lane;
	if (!window->ours)
		window_up(window);
	return 0;
}

static void lane_up(struct vmloop_lane *lane)
{
	struct vmloop_window *window = lane->priv;

	if (window->ours)
		window_up(window);
}

static void lane_down(struct vmloop_lane *lane)
{
	struct vmloop_window *window = lane->priv;

	if (window->ours)
		hide(window);
	window->path->window_down(window);
}

static bool lane_busy(const struct vmloop_lane *lane)
{
	const struct vmloop_window *window = lane->priv;

	return window->up && is_used(window);
}

static void lane_close(struct vmloop_lane *lane)
{
	struct vmloop_window *window = lane->priv;
	struct vmloop_link *link = lane->channel->link;

	if (window->up) {
		hide(window);
		window->path->window_close(window);
		WARN_ON_ONCE(is_used(window));
		window->up = false;
	}
	/* Ours goes when the peer has let go of it. */
	if (window->ours)
		return;
	link->windows->unmap(link, window->number, &window->memory);
	/* Once we have said CLOSED its owner may have another one in its place. */
	place_give(window);
}

static void lane_ended(struct vmloop_lane *lane, u32 reason)
{
	struct vmloop_window *window = lane->priv;

	if (window->ours)
		memory_free(window);
	lane->priv = NULL;
	window->lane = NULL;
	window_end(window, reason);
}

/* Nothing comes by it: whatever the peer writes there is left where it is. */
static void lane_event(struct vmloop_lane *lane)
{
}

const struct vmloop_path vmloop_windows = {
	.name = "windows",
	.owner = THIS_MODULE,
	.kind = VMLOOP_LANE_WINDOW,
	.grain = VMLOOP_RING_BYTES,
	.lane_wanted = lane_wanted,
	.lane_open = lane_open,
	.lane_up = lane_up,
	.lane_down = lane_down,
	.lane_busy = lane_busy,
	.lane_close = lane_close,
	.lane_ended = lane_ended,
	.lane_event = lane_event,
};
