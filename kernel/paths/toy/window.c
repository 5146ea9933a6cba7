// SPDX-License-Identifier: GPL-2.0
/*
 * window.c - windows that programs have: what a program puts there, the echo reads where
 * a reference says.
 *
 * Owns struct toy_window, one for each file that has one; it lives as long as the file or
 * the window. Of windows of the peer the toy path keeps nothing: echo.c finds them by their
 * numbers.
 *
 * Lock order: the core mutex, @mutex, @wait's. User memory is touched under @mutex, which the
 * core waits for, with page faults off only.
 */
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "toy.h"

/**
 * struct toy_window - a window of a program's
 * @window: the window, held; NULL if it could not be made
 * @mutex: whoever writes to its memory; @usable
 * @wait: programs that wait for @up or @ended
 * @usable: its memory may be written
 * @up: the peer has it, too; set once
 * @ended: it has ended; set once
 * @refs: one for the file, one for the window until its end
 */
struct toy_window {
	struct vmloop_window *window;
	struct mutex mutex;
	wait_queue_head_t wait;
	bool usable;
	bool up;
	bool ended;
	struct kref refs;
};

static void window_free(struct kref *refs)
{
	struct toy_window *toy = container_of(refs, struct toy_window, refs);

	if (toy->window)
		vmloop_window_put(toy->window);
	kfree(toy);
}

/* What the core calls ---------------------------------------------------- */

u32 toy_window_wanted(struct vmloop_peer *peer, u64 size, const u8 *said)
{
	return VMLOOP_REASON_NONE;
}

void toy_window_up(struct vmloop_window *window)
{
	struct toy_window *toy = window->priv;

	if (!window->ours)
		return;
	mutex_lock(&toy->mutex);
	toy->usable = window->memory.base;	/* has an address: the toy needs one */
	mutex_unlock(&toy->mutex);
	/* Pairs with the acquire in has_answer(). */
	smp_store_release(&toy->up, true);
	wake_up_all(&toy->wait);
}

void toy_window_down(struct vmloop_window *window)
{
	struct toy_window *toy = window->priv;

	if (!window->ours)
		return;
	mutex_lock(&toy->mutex);
	toy->usable = false;
	mutex_unlock(&toy->mutex);
}

void toy_window_close(struct vmloop_window *window)
{
	if (!window->ours)
		toy_echo_let_go();
}

void toy_window_ended(struct vmloop_window *window, u32 reason)
{
	struct toy_window *toy = window->priv;

	if (!window->ours)
		return;
	/* Pairs with the acquire in has_answer(). */
	smp_store_release(&toy->ended, true);
	wake_up_all(&toy->wait);
	kref_put(&toy->refs, window_free);
}

/* What a file does ------------------------------------------------------- */

struct opening {
	struct toy_window *toy;
	struct vmloop_window_ask ask;
	struct vmloop_window *window;
};

static void open_in(struct vmloop_channel *channel, void *data)
{
	struct opening *opening = data;
	struct vmloop_window *window;

	window = vmloop_channel_window(channel, &toy_records, &opening->ask);
	opening->window = window;
	if (IS_ERR(window))
		return;
	vmloop_window_get(window);
	opening->toy->window = window;
	kref_get(&opening->toy->refs);
}

static bool has_answer(const struct toy_window *toy)
{
	/* Pairs with the release in toy_window_up(). */
	if (smp_load_acquire(&toy->up))
		return true;
	/* Pairs with the release in toy_window_ended(). */
	return smp_load_acquire(&toy->ended);
}

/**
 * toy_window_open() - have a window of ours for a peer; waits until the peer has it, too
 * @peer: identity of the peer
 * @size: bytes
 * @number: set to the window's number
 *
 * Return: it, for toy_window_end(); or -ECONNREFUSED: the peer, or the host, does not want it;
 * -EINTR; or what the core says.
 */
struct toy_window *toy_window_open(u64 peer, u64 size, u32 *number)
{
	struct toy_window *toy = kzalloc(sizeof(*toy), GFP_KERNEL);
	struct opening opening = {
		.toy = toy,
		.ask = { .size = size, .priv = toy },
	};
	int err;

	if (!toy)
		return ERR_PTR(-ENOMEM);
	mutex_init(&toy->mutex);
	init_waitqueue_head(&toy->wait);
	kref_init(&toy->refs);
	err = vmloop_channel_do(peer, open_in, &opening);
	if (!err)
		err = PTR_ERR_OR_ZERO(opening.window);
	if (err) {
		kref_put(&toy->refs, window_free);
		return ERR_PTR(err);
	}
	err = wait_event_killable(toy->wait, has_answer(toy));
	if (!err && !READ_ONCE(toy->up))
		err = -ECONNREFUSED;
	if (err) {
		toy_window_end(toy);
		return ERR_PTR(err);
	}
	*number = toy->window->number;
	return toy;
}

/**
 * toy_window_end() - a file lets go of its window
 * @toy: from toy_window_open()
 */
void toy_window_end(struct toy_window *toy)
{
	vmloop_window_shut(toy->window, VMLOOP_REASON_NONE);
	kref_put(&toy->refs, window_free);
}

/**
 * toy_window_fill() - put bytes of a program's into its window
 * @toy: the window
 * @from: user memory
 * @offset: where, from the window's start
 * @size: how many
 *
 * Return: 0; -EINVAL: they would not lie in it; -EPIPE: it has ended; -EFAULT.
 */
int toy_window_fill(struct toy_window *toy, const char __user *from, u64 offset, u64 size)
{
	unsigned long left;
	u64 now;

	if (!vmloop_window_has(toy->window, offset, size))
		return -EINVAL;
	if (!access_ok(from, size))
		return -EFAULT;
	while (size) {
		now = min_t(u64, size, VMLOOP_SHM_PAGE);
		mutex_lock(&toy->mutex);
		if (!toy->usable) {
			mutex_unlock(&toy->mutex);
			return -EPIPE;
		}
		pagefault_disable();
		left = __copy_from_user_inatomic(toy->window->memory.base + offset, from,
						 now);
		pagefault_enable();
		mutex_unlock(&toy->mutex);
		now -= left;
		from += now;
		offset += now;
		size -= now;
		if (left && fault_in_readable(from, left) == left)
			return -EFAULT;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}
