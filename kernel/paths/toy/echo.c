// SPDX-License-Identifier: GPL-2.0
/*
 * echo.c - lanes that a peer opened: what comes goes back.
 *
 * Owns struct echo, one a lane, and the workqueue that serves all of them. A lane's
 * work is both its producer and its consumer, one at a time; the event schedules it.
 */
#include <linux/delay.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/workqueue.h>

#include "toy.h"

/* Steps before others have their turn. */
#define BUDGET	64

/**
 * struct echo - a lane that the peer opened
 * @lane: the lane
 * @work: echoes
 * @up: both sides are ready; set once
 * @down: produce nothing more, and leave what comes unread, to be counted
 */
struct echo {
	struct vmloop_lane *lane;
	struct work_struct work;
	bool up;
	bool down;
};

static struct workqueue_struct *queue;

/* Bytes that all echoes have published as read, for tests to hold accounts against. */
static atomic64_t bytes_read = ATOMIC64_INIT(0);

static int bytes_read_get(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%lld\n", atomic64_read(&bytes_read));
}

static const struct kernel_param_ops bytes_read_ops = {
	.get = bytes_read_get,
};

module_param_cb(bytes_read, &bytes_read_ops, NULL, 0444);
MODULE_PARM_DESC(bytes_read, "bytes of rings that all echoes have read");

/* How long a reference is held, for tests. */
static unsigned int hold_ms;
module_param(hold_ms, uint, 0600);
MODULE_PARM_DESC(hold_ms, "for tests: how long echoes use a window for each reference, in ms");

/* Whether peers have lanes here. */
static bool serve = true;

static void find_served(struct vmloop_lane *lane, void *data)
{
	struct vmloop_lane **found = data;
	struct echo *echo = lane->priv;

	if (*found || lane->opened || READ_ONCE(echo->down))
		return;
	vmloop_lane_get(lane);
	*found = lane;
}

static void shut_all(const struct vmloop_path *path)
{
	struct vmloop_lane *lane;

	do {
		lane = NULL;
		vmloop_lanes_do(path, find_served, &lane);
		if (!lane)
			return;
		vmloop_lane_shut(lane, VMLOOP_REASON_PATH);
		vmloop_lane_put(lane);
	} while (!READ_ONCE(serve));
}

static int serve_set(const char *text, const struct kernel_param *param)
{
	int err = param_set_bool(text, param);

	if (!err && !serve) {
		shut_all(&toy_bytes);
		shut_all(&toy_records);
	}
	return err;
}

static const struct kernel_param_ops serve_ops = {
	.set = serve_set,
	.get = param_get_bool,
};

module_param_cb(serve, &serve_ops, &serve, 0600);
MODULE_PARM_DESC(serve, "for tests: peers have lanes here; when it becomes false those that they have are closed");

/* How many windows are going: meanwhile no echo holds a reference any longer. */
static atomic_t letting_go = ATOMIC_INIT(0);

/* One step. False: nothing is left to do before the doorbell. */
static bool echo_bytes(struct vmloop_lane *lane)
{
	const void *from;
	u32 bytes, room;
	void *to;

	bytes = vmloop_ring_bytes(&lane->rx, 0, lane->rx.size, &from);
	if (!bytes)
		return !vmloop_ring_sleep(&lane->rx);
	room = vmloop_ring_space(&lane->tx, bytes, &to);
	if (!room)
		return !vmloop_ring_wait_space(&lane->tx, 1);
	bytes = min(bytes, room);
	memcpy(to, from, bytes);
	vmloop_ring_add(&lane->tx, bytes);
	vmloop_ring_take(&lane->rx, bytes);
	return true;
}

static void hold(void)
{
	unsigned long until = jiffies + msecs_to_jiffies(READ_ONCE(hold_ms));

	while (time_before(jiffies, until) && !atomic_read(&letting_go))
		usleep_range(1000, 2000);
}

/**
 * toy_echo_let_go() - no echo uses a window that is going
 *
 * Context: the window cannot be found any more; may sleep.
 */
void toy_echo_let_go(void)
{
	atomic_inc(&letting_go);
	flush_workqueue(queue);
	atomic_dec(&letting_go);
}

/* The window that a reference names, if all of it lies there, and can go back. */
static struct vmloop_window *follow(struct vmloop_lane *lane,
				    const struct vmloop_shm_record *record,
				    const void *from,
				    struct vmloop_shm_reference *reference)
{
	struct vmloop_window *window;

	if (record->size != sizeof(*reference))
		return NULL;
	/* Private copy: the peer may write to its ring at any time. */
	memcpy(reference, from, sizeof(*reference));
	barrier();
	window = vmloop_window_use(lane, false, reference->window);
	if (!window)
		return NULL;
	if (reference->size && window->memory.base &&
	    vmloop_window_has(window, reference->offset, reference->size) &&
	    reference->size <= vmloop_ring_max_record(lane->tx.size))
		return window;
	vmloop_window_unuse(window);
	return NULL;
}

/* What it refers to goes back, or why it cannot. False without room. */
static bool echo_reference(struct vmloop_lane *lane, const struct vmloop_shm_record *record,
			   const void *from)
{
	struct vmloop_shm_reference reference;
	struct vmloop_window *window = follow(lane, record, from, &reference);
	const s32 error = -EINVAL;
	u32 size = window ? reference.size : sizeof(error);
	void *to;
	int err;

	err = vmloop_ring_reserve(&lane->tx, size,
				  window ? VMLOOP_TOY_DATA : VMLOOP_TOY_ERROR, 0, &to);
	if (!err) {
		if (window)
			hold();
		memcpy(to, window ? window->memory.base + reference.offset :
				    (const void *)&error, size);
		vmloop_ring_commit(&lane->tx);
		vmloop_ring_release(&lane->rx);
	}
	if (window)
		vmloop_window_unuse(window);
	return !err || !vmloop_ring_wait_room(&lane->tx, size);
}

static bool echo_record(struct vmloop_lane *lane)
{
	struct vmloop_shm_record record;
	const void *from;
	void *to;
	int err;

	err = vmloop_ring_peek(&lane->rx, &record, &from);
	if (err < 0)
		return false;
	if (!err)
		return !vmloop_ring_sleep(&lane->rx);
	if (record.type == VMLOOP_TOY_REFERENCE)
		return echo_reference(lane, &record, from);
	err = vmloop_ring_reserve(&lane->tx, record.size, record.type,
				  record.info, &to);
	if (err == -EMSGSIZE) {
		/* Our ring is smaller than theirs: the record goes nowhere. */
		vmloop_ring_release(&lane->rx);
		return true;
	}
	if (err)
		return !vmloop_ring_wait_room(&lane->tx, record.size);
	memcpy(to, from, record.size);
	vmloop_ring_commit(&lane->tx);
	vmloop_ring_release(&lane->rx);
	return true;
}

static void publish(struct vmloop_lane *lane)
{
	u32 before = lane->rx.published;
	bool ring;

	/* What came goes back before it counts as read. */
	ring = vmloop_ring_publish(&lane->tx);
	ring |= vmloop_ring_consume_publish(&lane->rx);
	atomic64_add(lane->rx.published - before, &bytes_read);
	if (ring)
		vmloop_lane_ring(lane);
	if (lane->tx.published != READ_ONCE(lane->tx.theirs->rx_tail))
		vmloop_lane_produced(lane);
}

static void echo_work(struct work_struct *work)
{
	struct echo *echo = container_of(work, struct echo, work);
	struct vmloop_lane *lane = echo->lane;
	bool more = true;
	int n;

	/* Pairs with the release in toy_echo_up(): lane->rx is there. */
	if (!smp_load_acquire(&echo->up))
		return;
	for (n = 0; n < BUDGET && more; n++) {
		/* What is not sent back any more is not read, either. */
		if (READ_ONCE(echo->down))
			return;
		more = lane->path == &toy_bytes ? echo_bytes(lane) :
						  echo_record(lane);
		publish(lane);
		if (lane->tx.broken || lane->rx.broken) {
			vmloop_lane_broken(lane, lane->tx.broken ?:
						 lane->rx.broken);
			return;
		}
	}
	if (more)
		queue_work(queue, work);
}

bool toy_echo_serves(void)
{
	return READ_ONCE(serve);
}

int toy_echo_open(struct vmloop_lane *lane)
{
	struct echo *echo = kzalloc(sizeof(*echo), GFP_KERNEL);

	if (!echo)
		return -ENOMEM;
	echo->lane = lane;
	INIT_WORK(&echo->work, echo_work);
	lane->priv = echo;
	return 0;
}

void toy_echo_event(struct vmloop_lane *lane)
{
	struct echo *echo = lane->priv;

	queue_work(queue, &echo->work);
}

void toy_echo_up(struct vmloop_lane *lane)
{
	struct echo *echo = lane->priv;

	/* Pairs with the acquire in echo_work(). */
	smp_store_release(&echo->up, true);
	queue_work(queue, &echo->work);
}

void toy_echo_down(struct vmloop_lane *lane)
{
	struct echo *echo = lane->priv;

	WRITE_ONCE(echo->down, true);
	/* What runs still produces; what runs after it does not. */
	flush_work(&echo->work);
}

void toy_echo_close(struct vmloop_lane *lane)
{
	struct echo *echo = lane->priv;

	cancel_work_sync(&echo->work);
}

void toy_echo_ended(struct vmloop_lane *lane)
{
	struct echo *echo = lane->priv;

	/* The core calls lane_up for each echo as soon as it has made the lane. */
	toy_account_end(lane);
	kfree(echo);
	lane->priv = NULL;
}

int toy_echo_init(void)
{
	queue = alloc_workqueue("vmloop_toy", WQ_UNBOUND, 0);
	return queue ? 0 : -ENOMEM;
}

void toy_echo_exit(void)
{
	destroy_workqueue(queue);
}
