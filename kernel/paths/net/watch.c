// SPDX-License-Identifier: GPL-2.0
/*
 * watch.c - holds off the peer's doorbell while records come close together.
 *
 * A doorbell costs the peer an exit to the hypervisor, and us an interrupt and
 * often the wake-up of a halted CPU: most of a round trip, and a good part of
 * a stream. So after records were consumed we do not ask for one at once:
 *
 * - While the CPU has nothing else to do, a thread of the lowest class
 *   (SCHED_IDLE), one a lane, looks at the ring. Any other task takes the CPU
 *   from it at once.
 * - While the CPU is busy, a timer has NAPI look after a while, so that what
 *   came meanwhile is consumed together.
 *
 * When neither finds anything, NAPI asks for the doorbell again. A starved
 * watcher costs latency up to the timer's, never a record.
 *
 * Both times are multiples of what ringing was measured to cost here: an
 * optimum on one hypervisor is waste on another. The time that the watcher
 * looks grows while records come within it and shrinks while they do not, as
 * KVM does for halting CPUs: traffic that is rare costs nothing. Where the
 * peer shares a CPU with us, no record can come while we look, and each comes
 * soon after: so after some looks in a row that found nothing there are none
 * for a while.
 *
 * A kernel with PREEMPT_RT has neither: poll() takes locks that sleep there, which
 * must not be taken with preemption off. NAPI asks for a doorbell each time.
 *
 * Contexts: net_watch_woken() and net_watch_idle() in the lane's NAPI, on one
 * CPU at a time; the thread in process context; the timer in interrupt
 * context; net_ring() wherever frames are produced.
 */
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <uapi/linux/sched/types.h>

#include "net.h"

#define WINDOW_MIN	(10 * NSEC_PER_USEC)
#define WINDOW_MAX	(5 * NSEC_PER_MSEC)
#define WINDOW_BELLS	64
#define TIMER_MIN	(10 * NSEC_PER_USEC)
#define TIMER_MAX	(4 * NSEC_PER_MSEC)
#define TIMER_BELLS	32
#define MISSES_MAX	8
#define REST_TIME	(HZ / 4)

static int watch_us = -1;
module_param(watch_us, int, 0644);
MODULE_PARM_DESC(watch_us, "look at a ring for up to so many microseconds before a doorbell is asked for (0: never, -1: by what a doorbell costs)");

/**
 * net_ring() - ring the peer's doorbell, and learn what that costs
 * @net: the lane
 *
 * Context: any, between lane_open and the end of lane_close.
 */
void net_ring(struct net_lane *net)
{
	u64 start = ktime_get_ns();
	u32 average = READ_ONCE(net->bell_ns);
	u32 took;

	vmloop_lane_ring(net->lane);
	took = min_t(u64, ktime_get_ns() - start, NSEC_PER_MSEC);
	/* Races lose a sample, and no more. */
	WRITE_ONCE(net->bell_ns, average ? average - average / 8 + took / 8 :
					   took);
}

static u32 window_max(const struct net_lane *net)
{
	int us = READ_ONCE(watch_us);

	/* The watcher runs poll() with preemption off, where RT's locks sleep. */
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		return 0;
	if (us >= 0)
		return min_t(u64, (u64)us * NSEC_PER_USEC, WINDOW_MAX);
	return min_t(u64, (u64)READ_ONCE(net->bell_ns) * WINDOW_BELLS,
		     WINDOW_MAX);
}

static void timer_begin(struct net_lane *net)
{
	u64 ns;

	/*
	 * Not hrtimer_active(): a callback that is still on its way out on another
	 * CPU has had its turn, and will not see to what comes now.
	 */
	if (hrtimer_is_queued(&net->timer))
		return;
	ns = clamp_t(u64, (u64)READ_ONCE(net->bell_ns) * TIMER_BELLS,
		     TIMER_MIN, TIMER_MAX);
	hrtimer_start(&net->timer, ns_to_ktime(ns), HRTIMER_MODE_REL_PINNED);
}

static enum hrtimer_restart timer_fires(struct hrtimer *timer)
{
	struct net_lane *net = container_of(timer, struct net_lane, timer);

	napi_schedule(&net->napi);
	return HRTIMER_NORESTART;
}

/* Looks until there is a record, or it is time to let go. */
static bool look(struct net_lane *net, u64 until)
{
	struct vmloop_ring_rx *rx = &net->lane->rx;
	bool moved;

	WRITE_ONCE(net->looking, true);
	vmloop_ring_watch(rx);
	while (!(moved = vmloop_ring_moved(rx)) && !need_resched() &&
	       ktime_get_ns() < until)
		cpu_relax();
	WRITE_ONCE(net->looking, false);
	return moved;
}

/* Runs poll() here and now. */
static void run(struct net_lane *net)
{
	local_bh_disable();
	napi_schedule(&net->napi);
	local_bh_enable();
}

/*
 * Nobody else runs here from look to look: who took the CPU between them would
 * find neither a doorbell asked for nor a timer set.
 */
static void watch(struct net_lane *net)
{
	u64 since = ktime_get_ns();

	preempt_disable();
	WRITE_ONCE(net->watching, true);
	while (!kthread_should_stop()) {
		u64 until = since + READ_ONCE(net->window);

		if (look(net, until)) {
			WRITE_ONCE(net->misses, 0);
			run(net);
			since = ktime_get_ns();
		} else if (ktime_get_ns() >= until) {
			WRITE_ONCE(net->misses, net->misses + 1);
			if (net->misses >= MISSES_MAX)
				WRITE_ONCE(net->rest_until,
					   jiffies + REST_TIME);
			/* For the next doorbell to learn from. */
			WRITE_ONCE(net->idle_since, since);
			/* What came since the last look is not ours to watch. */
			WRITE_ONCE(net->watching, false);
			run(net);
			break;
		}
		/* Nobody looks while others run: the timer must. */
		if (need_resched()) {
			timer_begin(net);
			preempt_enable();
			cond_resched();
			preempt_disable();
		}
	}
	preempt_enable();
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
 * net_watch_woken() - NAPI has consumed records after it was idle
 * @net: the lane
 *
 * Learns from how long it was idle whether looking would have been worth it.
 */
void net_watch_woken(struct net_lane *net)
{
	u64 since = READ_ONCE(net->idle_since);
	u32 max = window_max(net);
	u64 idle;

	/* The watcher is at it: it knows. */
	if (current == net->watcher || !since)
		return;
	idle = ktime_get_ns() - since;
	WRITE_ONCE(net->idle_since, 0);
	if (idle <= max)
		net->window = min(max(net->window * 2, (u32)WINDOW_MIN), max);
	else if (net->window / 2 >= WINDOW_MIN)
		net->window /= 2;
	else
		net->window = 0;
}

/**
 * net_watch_idle() - NAPI has consumed what there was
 * @net: the lane
 * @work: records that it consumed
 *
 * Context: the lane's NAPI, before it completes.
 * Return: true if somebody looks again without a doorbell; false if the
 * caller must ask for one.
 */
bool net_watch_idle(struct net_lane *net, int work)
{
	if (current == net->watcher && READ_ONCE(net->watching))
		return work;	/* it looks again */
	if (READ_ONCE(net->looking))
		return true;
	if (!work)
		return false;
	WRITE_ONCE(net->idle_since, ktime_get_ns());
	if (!net->window)
		return false;
	if (READ_ONCE(net->misses) >= MISSES_MAX) {
		if (time_before(jiffies, READ_ONCE(net->rest_until)))
			return false;
		WRITE_ONCE(net->misses, 0);
	}

	vmloop_ring_watch(&net->lane->rx);
	timer_begin(net);
	WRITE_ONCE(net->asked, true);
	wake_up_process(net->watcher);
	return true;
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

	hrtimer_setup(&net->timer, timer_fires, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED);
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
 * net_watch_stop() - nobody looks any more
 * @net: the lane, its NAPI disabled
 */
void net_watch_stop(struct net_lane *net)
{
	/* On a busy CPU the lowest class may have to wait long for its end. */
	sched_set_normal(net->watcher, 0);
	kthread_stop(net->watcher);
	hrtimer_cancel(&net->timer);
}
