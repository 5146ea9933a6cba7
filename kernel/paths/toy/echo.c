// SPDX-License-Identifier: GPL-2.0
/*
 * echo.c - lanes that a peer opened: what comes goes back.
 *
 * Owns struct echo, one a lane, and the workqueue that serves all of them. A lane's
 * work is both its producer and its consumer, one at a time; the event schedules it.
 */
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
