// SPDX-License-Identifier: GPL-2.0
/*
 * watch.c - holds off the peer's doorbell while records come close together.
 *
 * A doorbell costs the peer an exit to the hypervisor, and us an interrupt and
 * often the wake-up of a halted CPU: most of a round trip, and a good part of
 * a stream. So after records were consumed we do not ask for one at once. The
 * lane is *watched* for a while instead:
 *
 * - While the CPU has nothing else to do, its watcher looks at the ring: a thread
 *   of the lowest class (SCHED_IDLE), one a CPU, for all lanes whose NAPI runs
 *   there. Any other task takes the CPU from it at once.
 * - A timer is always pending beside it, and has NAPI look. It comes soon while
 *   nobody looks, so that what came meanwhile is consumed together, and late
 *   while the watcher does: then it is there for the case that the watcher loses
 *   the CPU unseen. Whatever becomes of the watcher costs latency up to the
 *   timer's, never a record.
 *
 * When neither finds anything, NAPI asks for the doorbell again.
 *
 * All times are multiples of what ringing was measured to cost here: an
 * optimum on one hypervisor is waste on another. The time that the watcher
 * looks grows while records come within it and shrinks while they do not, as
 * KVM does for halting CPUs: traffic that is rare costs nothing.
 *
 * Looking takes time from others where the host has fewer CPUs than its guests
 * want, first of all from the peer that we wait for. Two things tell:
 *
 * - Misses. Where the peer shares a CPU with us, no record can come while we
 *   look, and each comes soon after, though the window is as long as it may be;
 *   or it is there when we have the CPU back, after the window. After some of
 *   either in a row the lane is not watched for a while.
 * - Stolen time. Where the hypervisor took a good part of the time that the
 *   watcher looked, the watcher rests, for longer each time that this comes again.
 *
 * How nothing can be left behind. Only poll() decides: whether a lane is watched,
 * by which watcher, until when, and all that is learned, belong to NAPI's owner,
 * and only it starts the timer. The watcher and the timer read, and schedule
 * NAPI, and that is all they do. So
 *
 * - each record is seen: between two polls either a doorbell is asked for, or the
 *   timer is pending. Where the timer fires while NAPI is owned, NAPI runs again.
 * - after napi_disable() there is no poll(), and so nobody who has a lane watched
 *   or starts the timer. net_watch_stop() takes the lane from its watcher and
 *   cancels the timer. A watcher that has just found the lane is in a section of
 *   RCU that cannot be preempted; all that it can do there is to mark NAPI as
 *   missed. lane_close() waits for a grace period before it frees anything.
 * - a watcher outlives all lanes: module's memory, no references.
 *
 * With PREEMPT_RT poll() takes locks that sleep, and a thread of the lowest class
 * must not be the one that holds them. The watcher raises an interrupt there, in
 * which NAPI is scheduled, and ksoftirqd runs poll().
 *
 * Contexts: net_watch_woken(), net_watch_idle() and net_watch_end() in the lane's
 * NAPI, on one CPU at a time; the watcher in process context, bound to its CPU;
 * timer and kick in hard interrupt context; net_ring() wherever frames are
 * produced. Lock order: a watcher's lock is inside of all others.
 */
#include <linux/irq_work.h>
#include <linux/kernel_stat.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <linux/smpboot.h>
#include <uapi/linux/sched/types.h>

#include "net.h"
#include "compat.h"

#define WINDOW_MIN	(10 * NSEC_PER_USEC)
#define WINDOW_MAX	(5 * NSEC_PER_MSEC)
#define WINDOW_BELLS	64
#define TIMER_MIN	(10 * NSEC_PER_USEC)
#define TIMER_MAX	(4 * NSEC_PER_MSEC)
#define TIMER_BELLS	32

/* So much later the timer comes while the watcher looks. */
#define TIMER_LATE	8

#define MISSES_MAX	8
#define REST_TIME	(HZ / 4)

/* Stolen time is counted each so often, and judged after so much of looking. */
#define STEAL_STEP	NSEC_PER_MSEC
#define STEAL_PERIOD	(20 * NSEC_PER_MSEC)

/* One part of so many, or more, was stolen: the watcher rests. */
#define STEAL_PARTS	4
#define STEAL_REST_MAX	(8 * HZ)

/* Lanes that one watcher has at a time; others ask for doorbells. */
#define LANES_MAX	16

/**
 * struct net_watcher - looks at rings while its CPU has nothing else to do
 * @lock: protects writes to @lanes and @end
 * @lanes: those that it looks at, with gaps; read under RCU
 * @end: there is none from here on; single word
 * @looking: it has the CPU, as far as it knows; single word, only it writes
 * @looked: when it looked last, in ns; only it writes
 * @since: since when it has looked without giving the CPU up, in ns; only it writes
 * @switches: how often it had lost the CPU by then; its own
 * @counted: until when @spent and @stolen have been counted, in ns; its own
 * @steal: the CPU's stolen time then; its own
 * @spent: time for which it looked; its own
 * @stolen: and what was stolen of it; its own
 * @rest: how long its last rest was, in jiffies, 0 for none; only it writes
 * @rest_until: it rests until then, in jiffies, if @rest; only it writes
 * @kick: schedules NAPI from an interrupt, for PREEMPT_RT
 */
struct net_watcher {
	spinlock_t lock;	/* protects writes to lanes and end */
	struct net_lane __rcu *lanes[LANES_MAX];
	unsigned int end;
	bool looking;
	u64 looked;
	u64 since;
	unsigned long switches;
	u64 counted;
	u64 steal;
	u64 spent;
	u64 stolen;
	unsigned long rest;
	unsigned long rest_until;
	struct irq_work kick;
};

static DEFINE_PER_CPU_SHARED_ALIGNED(struct net_watcher, watchers);
static DEFINE_PER_CPU(struct task_struct *, watcher_tasks);

static int watch_us = -1;
module_param(watch_us, int, 0644);
MODULE_PARM_DESC(watch_us, "look at a ring for up to so many microseconds before a doorbell is asked for (0: never, -1: by what a doorbell costs)");

/**
 * net_ring() - ring the peer's doorbell, and learn what that costs
 * @net: the lane
 * @anyway: whatever it was rung for before
 *
 * Context: any, between lane_open and the end of lane_close.
 */
void net_ring(struct net_lane *net, bool anyway)
{
	u64 start = ktime_get_ns();
	u32 average = READ_ONCE(net->bell_ns);
	u32 took;

	if (anyway)
		vmloop_lane_ring_anyway(net->lane);
	else if (!vmloop_lane_ring(net->lane))
		return;	/* not rung: nothing learned */
	took = min_t(u64, ktime_get_ns() - start, NSEC_PER_MSEC);
	/* Races lose a sample, and no more. */
	WRITE_ONCE(net->bell_ns, average ? average - average / 8 + took / 8 :
					   took);
}

static u32 window_max(const struct net_lane *net)
{
	int us = READ_ONCE(watch_us);

	if (us >= 0)
		return min_t(u64, (u64)us * NSEC_PER_USEC, WINDOW_MAX);
	return min_t(u64, (u64)READ_ONCE(net->bell_ns) * WINDOW_BELLS,
		     WINDOW_MAX);
}

/* The timer --------------------------------------------------------------- */

static u64 timer_ns(const struct net_lane *net)
{
	return clamp_t(u64, (u64)READ_ONCE(net->bell_ns) * TIMER_BELLS,
		       TIMER_MIN, TIMER_MAX);
}

static enum hrtimer_restart timer_fires(struct hrtimer *timer)
{
	struct net_lane *net = container_of(timer, struct net_lane, timer);

	napi_schedule(&net->napi);
	return HRTIMER_NORESTART;
}

/*
 * Has it pending; @soon if nobody looks. Setting it costs exits: what is pending
 * soon is left so, and comes soon again where the watcher has let others have the
 * CPU meanwhile.
 */
static void timer_begin(struct net_lane *net, bool soon, u64 now)
{
	u64 ns = timer_ns(net);

	/*
	 * Not hrtimer_active(): a callback that is still on its way out on another
	 * CPU has had its turn, and will not see to what comes now. One that fires
	 * now has NAPI run again.
	 */
	if (hrtimer_is_queued(&net->timer) && !(soon && net->timer_late))
		return;
	soon |= (s64)(READ_ONCE(net->watcher->since) - net->timer_set) > 0;
	if (!soon)
		ns = min_t(u64, ns * TIMER_LATE, TIMER_MAX);
	WRITE_ONCE(net->timer_late, !soon);
	net->timer_set = now;
	hrtimer_start(&net->timer, ns_to_ktime(ns), HRTIMER_MODE_REL_PINNED_HARD);
}

/* The watcher ------------------------------------------------------------- */

/* Since when the watcher has looked in vain, and nobody else had the CPU. */
static u64 in_vain_since(const struct net_lane *net,
			 const struct net_watcher *watcher)
{
	return max(READ_ONCE(net->since), READ_ONCE(watcher->since));
}

static bool window_is_over(const struct net_lane *net,
			   const struct net_watcher *watcher, u64 now)
{
	return now >= in_vain_since(net, watcher) + READ_ONCE(net->window);
}

/*
 * Whether a lane is one for NAPI: something has come, or its time is over, or the
 * watcher @yields, and the timer must come sooner then.
 */
static bool is_due(const struct net_lane *net,
		   const struct net_watcher *watcher, u64 now, bool yields)
{
	/* Whoever has NAPI by now sees to what has come. */
	if (test_bit(NAPI_STATE_SCHED, &net->napi.state))
		return false;
	return vmloop_ring_moved(&net->lane->rx) ||
	       window_is_over(net, watcher, now) ||
	       (yields && READ_ONCE(net->timer_late));
}

/* Has NAPI see to all that is due, or only says whether anything is. */
static bool due(struct net_watcher *watcher, u64 now, bool yields,
		bool only_ask)
{
	unsigned int end = READ_ONCE(watcher->end);
	struct net_lane *net;
	unsigned int i;
	bool found = false;

	rcu_read_lock();
	for (i = 0; i < end; i++) {
		net = rcu_dereference(watcher->lanes[i]);
		if (!net || !is_due(net, watcher, now, yields))
			continue;
		found = true;
		if (only_ask)
			break;
		napi_schedule(&net->napi);
	}
	rcu_read_unlock();
	return found;
}

static void kick_fires(struct irq_work *kick)
{
	struct net_watcher *watcher =
		container_of(kick, struct net_watcher, kick);

	due(watcher, ktime_get_ns(), !READ_ONCE(watcher->looking), false);
}

/*
 * Looks once. Nobody may take the CPU meanwhile: on a busy one the lowest class
 * waits long for its next turn, and a grace period of RCU with it.
 */
static void look(struct net_watcher *watcher, u64 now, bool yields)
{
	bool found;

	preempt_disable();
	found = due(watcher, now, yields, true);
	preempt_enable();
	if (!found)
		return;
	if (IS_ENABLED(CONFIG_PREEMPT_RT)) {
		irq_work_queue(&watcher->kick);
		return;
	}
	local_bh_disable();
	due(watcher, now, yields, false);
	local_bh_enable();	/* runs poll() */
}

static u64 stolen_time(unsigned int cpu)
{
	return READ_ONCE(kcpustat_cpu(cpu).cpustat[CPUTIME_STEAL]);
}

static void resume(struct net_watcher *watcher, unsigned int cpu)
{
	u64 now = ktime_get_ns();

	watcher->switches = current->nivcsw;
	watcher->counted = now;
	watcher->steal = stolen_time(cpu);
	WRITE_ONCE(watcher->since, now);
	WRITE_ONCE(watcher->looked, now);
	WRITE_ONCE(watcher->looking, true);
}

/* Ticks count what is stolen, so that short times show it on average only. */
static void count(struct net_watcher *watcher, unsigned int cpu)
{
	u64 steal = stolen_time(cpu);
	unsigned long rest = 0;

	watcher->spent += watcher->looked - watcher->counted;
	watcher->stolen += steal - watcher->steal;
	watcher->counted = watcher->looked;
	watcher->steal = steal;
	if (watcher->spent < STEAL_PERIOD)
		return;
	if (watcher->stolen * STEAL_PARTS >= watcher->spent) {
		rest = clamp_t(unsigned long, watcher->rest * 2, REST_TIME,
			       STEAL_REST_MAX);
		WRITE_ONCE(watcher->rest_until, jiffies + rest);
	}
	WRITE_ONCE(watcher->rest, rest);
	watcher->spent = 0;
	watcher->stolen = 0;
}

static void let_others(struct net_watcher *watcher, unsigned int cpu)
{
	count(watcher, cpu);
	WRITE_ONCE(watcher->looking, false);
	look(watcher, watcher->looked, true);
	schedule();
	resume(watcher, cpu);
}

static void watcher_run(unsigned int cpu)
{
	struct net_watcher *watcher = per_cpu_ptr(&watchers, cpu);
	u64 now;

	resume(watcher, cpu);
	while (READ_ONCE(watcher->end) && !kthread_should_stop() &&
	       !kthread_should_park()) {
		now = ktime_get_ns();
		WRITE_ONCE(watcher->looked, now);
		look(watcher, now, false);
		if (compat_others_wait()) {
			let_others(watcher, cpu);
			continue;
		}
		/* They had their turn, and nobody asked us. */
		if (watcher->switches != current->nivcsw)
			resume(watcher, cpu);
		if (now - watcher->counted >= STEAL_STEP) {
			count(watcher, cpu);
			cond_resched_tasks_rcu_qs();
		}
		cpu_relax();
	}
	count(watcher, cpu);
	WRITE_ONCE(watcher->looking, false);
}

static int watcher_should_run(unsigned int cpu)
{
	return READ_ONCE(per_cpu_ptr(&watchers, cpu)->end);
}

static void watcher_setup(unsigned int cpu)
{
	const struct sched_attr idle = {
		.size = sizeof(idle),
		.sched_policy = SCHED_IDLE,
	};

	WARN_ON_ONCE(sched_setattr_nocheck(current, &idle));
}

static struct smp_hotplug_thread watcher_threads = {
	.store = &watcher_tasks,
	.thread_should_run = watcher_should_run,
	.thread_fn = watcher_run,
	.setup = watcher_setup,
	.thread_comm = "vmloop_watch/%u",
};

/* A lane's side: all of it belongs to NAPI's owner ------------------------ */

/* This CPU's watcher looks from now on. Returns false if it has enough. */
static bool watch_begin(struct net_lane *net)
{
	struct net_watcher *watcher = this_cpu_ptr(&watchers);
	struct task_struct *task;
	unsigned int i;

	spin_lock(&watcher->lock);
	for (i = 0; i < LANES_MAX; i++)
		if (!rcu_access_pointer(watcher->lanes[i]))
			break;
	if (i < LANES_MAX) {
		rcu_assign_pointer(watcher->lanes[i], net);
		WRITE_ONCE(watcher->end, max(watcher->end, i + 1));
		net->watcher = watcher;
		net->watcher_slot = i;
	}
	spin_unlock(&watcher->lock);
	if (!net->watcher)
		return false;

	/* Pairs with the barrier of smpboot's loop before watcher_should_run(). */
	task = this_cpu_read(watcher_tasks);
	if (task)
		wake_up_process(task);
	return true;
}

static void watch_end(struct net_lane *net)
{
	struct net_watcher *watcher = net->watcher;
	unsigned int end;

	if (!watcher)
		return;
	spin_lock_bh(&watcher->lock);
	RCU_INIT_POINTER(watcher->lanes[net->watcher_slot], NULL);
	end = watcher->end;
	while (end && !rcu_access_pointer(watcher->lanes[end - 1]))
		end--;
	WRITE_ONCE(watcher->end, end);
	spin_unlock_bh(&watcher->lock);
	net->watcher = NULL;
}

/* Whether the watcher runs poll() just now, or is interrupted by it. */
static bool is_in_watcher(const struct net_watcher *watcher)
{
	return watcher == this_cpu_ptr(&watchers) &&
	       current == this_cpu_read(watcher_tasks) &&
	       READ_ONCE(watcher->looking);
}

/* Whether it has looked not longer ago than the timer comes soon. */
static bool has_looked(const struct net_lane *net, u64 now)
{
	return (s64)(now - READ_ONCE(net->watcher->looked)) <
	       (s64)timer_ns(net);
}

/* Whether it will see the next record, as far as can be known. */
static bool is_looking(const struct net_lane *net, u64 now)
{
	const struct net_watcher *watcher = net->watcher;

	return watcher && (is_in_watcher(watcher) ||
			   (READ_ONCE(watcher->looking) && has_looked(net, now)));
}

static void missed(struct net_lane *net)
{
	net->misses++;
	if (net->misses >= MISSES_MAX)
		net->rest_until = jiffies + REST_TIME;
}

static bool rests(struct net_lane *net)
{
	const struct net_watcher *watcher =
		net->watcher ?: this_cpu_ptr(&watchers);

	if (READ_ONCE(watcher->rest) &&
	    time_before(jiffies, READ_ONCE(watcher->rest_until)))
		return true;
	if (net->misses < MISSES_MAX)
		return false;
	if (time_before(jiffies, net->rest_until))
		return true;
	net->misses = 0;
	return false;
}

/**
 * net_watch_woken() - NAPI has consumed records
 * @net: the lane
 *
 * Learns from how long it was idle whether looking would have been worth it.
 */
void net_watch_woken(struct net_lane *net)
{
	u32 max = window_max(net);
	u64 idle;

	/* The watcher is at it: it knows. */
	if (!net->idle_since || (net->watcher && is_in_watcher(net->watcher)))
		return;
	idle = ktime_get_ns() - net->idle_since;
	net->idle_since = 0;
	if (idle <= max)
		WRITE_ONCE(net->window,
			   min(max_t(u32, net->window * 2, WINDOW_MIN), max));
	else if (net->window / 2 >= WINDOW_MIN)
		WRITE_ONCE(net->window, net->window / 2);
	else
		WRITE_ONCE(net->window, 0);
}

/* Records were consumed: whether the lane is to be watched from now on. */
static bool is_watched_after_work(struct net_lane *net, u64 now, bool looking)
{
	if (!looking)
		net->idle_since = now;
	else if (window_is_over(net, net->watcher,
				READ_ONCE(net->watcher->looked)))
		missed(net);	/* somebody had the CPU that it looked on */
	else
		net->misses = 0;
	WRITE_ONCE(net->since, now);
	if (!net->window || rests(net))
		return false;
	if (net->watcher && (looking || net->watcher == this_cpu_ptr(&watchers)))
		return true;
	watch_end(net);	/* another CPU's, which does not get to it */
	vmloop_ring_watch(&net->lane->rx);
	return watch_begin(net);
}

/* There was nothing: whether the lane is watched on. */
static bool is_watched_on(struct net_lane *net, u64 now, bool looking)
{
	if (looking && !window_is_over(net, net->watcher, now))
		return true;
	/* It has just let others have the CPU, or the timer is still to come. */
	if (!looking && (has_looked(net, now) || hrtimer_is_queued(&net->timer)))
		return true;
	/* While the window can grow, the next doorbell says whether it should. */
	if (looking && net->window > window_max(net) / 2)
		missed(net);
	net->idle_since = in_vain_since(net, net->watcher);
	return false;
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
	bool looking, soon, on;
	u64 now;

	if (!work && !net->watcher)
		return false;
	now = ktime_get_ns();
	looking = is_looking(net, now);
	on = work ? is_watched_after_work(net, now, looking) :
		    is_watched_on(net, now, looking);
	if (!on) {
		watch_end(net);
		return false;
	}
	/* With PREEMPT_RT the watcher's CPU is taken from it unseen. */
	soon = !looking || IS_ENABLED(CONFIG_PREEMPT_RT) ||
	       (is_in_watcher(net->watcher) && compat_others_wait());
	timer_begin(net, soon, now);
	return true;
}

/**
 * net_watch_end() - the lane is not to be looked at any more
 * @net: the lane
 *
 * Context: the lane's NAPI, before it completes.
 */
void net_watch_end(struct net_lane *net)
{
	watch_end(net);
}

/**
 * net_watch_start() - make ready what watching a lane takes
 * @net: the lane
 */
void net_watch_start(struct net_lane *net)
{
	hrtimer_setup(&net->timer, timer_fires, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED_HARD);
}

/**
 * net_watch_stop() - nobody begins to look any more
 * @net: the lane, its NAPI disabled
 *
 * A watcher may still be looking: wait for a grace period before freeing.
 */
void net_watch_stop(struct net_lane *net)
{
	watch_end(net);
	hrtimer_cancel(&net->timer);
}

/**
 * net_watchers_init() - make a watcher for each CPU
 *
 * Return: 0 or a negative errno.
 */
int net_watchers_init(void)
{
	struct net_watcher *watcher;
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		watcher = per_cpu_ptr(&watchers, cpu);
		spin_lock_init(&watcher->lock);
		watcher->kick = IRQ_WORK_INIT_HARD(kick_fires);
	}
	return smpboot_register_percpu_thread(&watcher_threads);
}

/**
 * net_watchers_exit() - end all watchers; there are no lanes
 */
void net_watchers_exit(void)
{
	struct task_struct *task;
	unsigned int cpu;

	/* On a busy CPU the lowest class may have to wait long for its end. */
	for_each_possible_cpu(cpu) {
		task = per_cpu(watcher_tasks, cpu);
		if (task)
			sched_set_normal(task, 0);
	}
	smpboot_unregister_percpu_thread(&watcher_threads);
	for_each_possible_cpu(cpu)
		irq_work_sync(&per_cpu_ptr(&watchers, cpu)->kick);
}
