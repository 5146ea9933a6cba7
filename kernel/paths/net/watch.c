// SPDX-License-Identifier: GPL-2.0
/*
 * watch.c - looks at a lane's ring for a while after it ran empty, so that the
 * next record needs no doorbell, no interrupt and no wake-up of a halted CPU.
 * What remains of a round trip are wake-ups; this is where latency is won.
 *
 * A thread per lane of the lowest class (SCHED_IDLE) uses time that the CPU
 * would spend halted: any other task takes the CPU from it at once. While it
 * looks it holds off preemption and the peer's doorbells; before it lets go,
 * for whatever reason, it schedules NAPI, which consumes what is there or asks
 * for the doorbell again. So a starved watcher costs latency, never a record.
 *
 * How long it looks grows while records come within @watch_us of each other
 * and shrinks while they do not, as KVM does for halting CPUs: traffic that is
 * rare costs nothing.
 *
 * Contexts: net_watch_woken() and net_watch_idle() in the lane's NAPI; the
 * thread in process context.
 */
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <uapi/linux/sched/types.h>

#include "net.h"

#define WINDOW_MIN	(10 * NSEC_PER_USEC)

static unsigned int watch_us = 200;
module_param(watch_us, uint, 0644);
MODULE_PARM_DESC(watch_us, "look at a ring for up to so many microseconds before a doorbell is needed (0: never)");

static u64 window_max(void)
{
	return (u64)min(READ_ONCE(watch_us), 10000U) * NSEC_PER_USEC;
}

/* Looks until there is a record, or it is time to let go. */
static bool look(struct net_lane *net, u64 until)
{
	struct vmloop_ring_rx *rx = &net->lane->rx;
	bool moved;

	preempt_disable();
	vmloop_ring_watch(rx);
	while (!(moved = vmloop_ring_moved(rx)) && !need_resched() &&
	       ktime_get_ns() < until)
		cpu_relax();
	preempt_enable();
	return moved;
}

static void watch(struct net_lane *net)
{
	u64 since = ktime_get_ns();

	while (!kthread_should_stop()) {
		u64 until = since + READ_ONCE(net->window);
		bool moved = look(net, until);

		/* Runs poll() here and now: consume, or ask for the doorbell. */
		local_bh_disable();
		napi_schedule(&net->napi);
		local_bh_enable();

		if (moved) {
			since = ktime_get_ns();
		} else if (ktime_get_ns() >= until) {
			/* For the next doorbell to learn from. */
			WRITE_ONCE(net->idle_since, since);
			return;
		}
		cond_resched();
	}
}

static int watcher(void *data)
{
	struct net_lane *net = data;

	while (!kthread_should_stop()) {
		set_current_state(TASK_IDLE);
		if (!xchg(&net->asked, false)) {
			if (!kthread_should_stop())
				schedule();
			__set_current_state(TASK_RUNNING);
			continue;
		}
		__set_current_state(TASK_RUNNING);
		watch(net);
	}
	return 0;
}

/**
 * net_watch_woken() - NAPI begins to run
 * @net: the lane
 *
 * Learns from how long it was idle whether looking would have been worth it.
 */
void net_watch_woken(struct net_lane *net)
{
	u64 since = READ_ONCE(net->idle_since);
	u64 max = window_max();
	u64 idle;

	/* The watcher is at it: it knows. */
	if (current == net->watcher || !since)
		return;
	idle = ktime_get_ns() - since;
	WRITE_ONCE(net->idle_since, 0);
	if (idle <= max)
		net->window = min_t(u64, max(net->window * 2,
					     (u32)WINDOW_MIN), max);
	else if (net->window / 2 >= WINDOW_MIN)
		net->window /= 2;
	else
		net->window = 0;
}

/**
 * net_watch_idle() - NAPI has consumed records, and the ring is empty
 * @net: the lane
 */
void net_watch_idle(struct net_lane *net)
{
	if (current == net->watcher)
		return;
	WRITE_ONCE(net->idle_since, ktime_get_ns());
	if (!net->window)
		return;
	WRITE_ONCE(net->asked, true);
	wake_up_process(net->watcher);
}

/**
 * net_watch_start() - make the lane's watcher
 * @net: the lane
 *
 * Return: 0 or a negative errno.
 */
int net_watch_start(struct net_lane *net)
{
	const struct sched_attr idle = {
		.size = sizeof(idle),
		.sched_policy = SCHED_IDLE,
	};
	int err;

	net->watcher = kthread_create(watcher, net, "vmloop_watch");
	if (IS_ERR(net->watcher))
		return PTR_ERR(net->watcher);
	err = sched_setattr_nocheck(net->watcher, &idle);
	if (err) {
		kthread_stop(net->watcher);
		return err;
	}
	wake_up_process(net->watcher);
	return 0;
}

/**
 * net_watch_stop() - end the lane's watcher; it does not look any more
 * @net: the lane
 */
void net_watch_stop(struct net_lane *net)
{
	kthread_stop(net->watcher);
}
