// SPDX-License-Identifier: GPL-2.0
/*
 * watch.c - holds off the peer's doorbell while a ring is expected to fill.
 *
 * A doorbell costs the peer an exit to the hypervisor, and us an interrupt and
 * often the wake-up of a halted CPU: most of a round trip, and a good part of
 * a stream. So after something was consumed, a path does not ask for one at once.
 * The ring is *watched* for a while instead:
 *
 * - While the CPU has nothing else to do, its watcher looks at the ring: a thread
 *   of the lowest class (SCHED_IDLE), one a CPU, for all rings that were consumed
 *   there. Any other task takes the CPU from it at once.
 * - A timer is always pending beside it, and has the path look. It comes soon while
 *   nobody looks, so that what came meanwhile is consumed together, and late
 *   while the watcher does: then it is there for the case that the watcher loses
 *   the CPU unseen. Whatever becomes of the watcher costs latency up to the
 *   timer's, never a record.
 *
 * When neither finds anything, the path asks for the doorbell again.
 *
 * Each watch has an *owner*: the context that consumes the ring, of which there is
 * one at a time. For the packet path it is the lane's NAPI, for a stream whoever
 * has its lane_lock. What the watcher and the timer do is to wake it.
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
 * How nothing can be left behind. Only the owner decides: whether a ring is watched,
 * by which watcher, until when, and all that is learned, belong to it, and only it
 * starts the timer. The watcher and the timer read, and wake it, and that is all they
 * do. So
 *
 * - each record is seen: between two turns of the owner either a doorbell is asked
 *   for, or the timer is pending. What is woken while it has its turn must have
 *   another one.
 * - after vmloop_watch_stop() nobody has the ring watched or starts the timer. A
 *   watcher that has just found the ring is in a section of RCU that cannot be
 *   preempted, and may still wake the path once. Before the ring or the path's memory
 *   goes, vmloop_watch_wait() waits for a grace period.
 * - a watcher outlives all rings: module's memory, no references.
 *
 * With PREEMPT_RT paths take locks that sleep, and a thread of the lowest class
 * must not be the one that holds them. The watcher raises an interrupt there, in
 * which the path is woken, and ksoftirqd does the rest.
 *
 * Contexts: vmloop_watch_woken(), vmloop_watch_idle() and vmloop_watch_end() in the
 * owner's, with bottom halves off; the watcher in process context, bound to its CPU;
 * timer and kick in hard interrupt context. Lock order: a watcher's lock is inside of
 * all others.
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

#include "core.h"
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

/*
 * Places for rings that one watcher has; a ring without a place asks for doorbells. The
 * last RINGS_KEPT places are for channels that have none there: a peer with many lanes
 * cannot take all of them.
 */
#define RINGS_MAX	16
#define RINGS_KEPT	4

/**
 * struct vmloop_watcher - looks at rings while its CPU has nothing else to do
 * @lock: protects writes to @watches and @end
 * @watches: of the rings that it looks at, with gaps; read under RCU
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
 * @kick: wakes paths from an interrupt, for PREEMPT_RT
 */
struct vmloop_watcher {
	spinlock_t lock;	/* protects writes to watches and end */
	struct vmloop_watch __rcu *watches[RINGS_MAX];
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

static DEFINE_PER_CPU_SHARED_ALIGNED(struct vmloop_watcher, watchers);
static DEFINE_PER_CPU(struct task_struct *, watcher_tasks);

static int watch_us = -1;
module_param(watch_us, int, 0644);
MODULE_PARM_DESC(watch_us, "look at a ring for up to so many microseconds before a doorbell is asked for (0: never, -1: by what a doorbell costs)");

static u32 window_max(const struct vmloop_watch *watch)
{
	int us = READ_ONCE(watch_us);

	if (us >= 0)
		return min_t(u64, (u64)us * NSEC_PER_USEC, WINDOW_MAX);
	return min_t(u64, (u64)vmloop_lane_bell_ns(watch->lane) * WINDOW_BELLS,
		     WINDOW_MAX);
}

/* The timer --------------------------------------------------------------- */

static u64 timer_ns(const struct vmloop_watch *watch)
{
	return clamp_t(u64, (u64)vmloop_lane_bell_ns(watch->lane) * TIMER_BELLS,
		       TIMER_MIN, TIMER_MAX);
}

static enum hrtimer_restart timer_fires(struct hrtimer *timer)
{
	struct vmloop_watch *watch = container_of(timer, struct vmloop_watch, timer);

	watch->ops->wake(watch);
	return HRTIMER_NORESTART;
}

/*
 * Has it pending; @soon if nobody looks. Setting it costs exits: what is pending
 * soon is left so, and comes soon again where the watcher has let others have the
 * CPU meanwhile.
 */
static void timer_begin(struct vmloop_watch *watch, bool soon, u64 now)
{
	u64 ns = timer_ns(watch);

	/*
	 * Not hrtimer_active(): a callback that is still on its way out on another
	 * CPU has had its turn, and will not see to what comes now. One that fires
	 * now has the owner woken again.
	 */
	if (hrtimer_is_queued(&watch->timer) && !(soon && watch->timer_late))
		return;
	soon |= (s64)(READ_ONCE(watch->watcher->since) - watch->timer_set) > 0;
	if (!soon)
		ns = min_t(u64, ns * TIMER_LATE, TIMER_MAX);
	WRITE_ONCE(watch->timer_late, !soon);
	watch->timer_set = now;
	hrtimer_start(&watch->timer, ns_to_ktime(ns), HRTIMER_MODE_REL_PINNED_HARD);
}

/* The watcher ------------------------------------------------------------- */

/* Since when the watcher has looked in vain, and nobody else had the CPU. */
static u64 in_vain_since(const struct vmloop_watch *watch,
			 const struct vmloop_watcher *watcher)
{
	return max(READ_ONCE(watch->since), READ_ONCE(watcher->since));
}

static bool window_is_over(const struct vmloop_watch *watch,
			   const struct vmloop_watcher *watcher, u64 now)
{
	return now >= in_vain_since(watch, watcher) + READ_ONCE(watch->window);
}

/*
 * Whether a ring is one for its owner: something has come, or its time is over, or the
 * watcher @yields, and the timer must come sooner then.
 */
static bool is_due(const struct vmloop_watch *watch,
		   const struct vmloop_watcher *watcher, u64 now, bool yields)
{
	/* The owner sees to what has come. */
	if (watch->ops->is_awake(watch))
		return false;
	return watch->ops->has_moved(watch) ||
	       window_is_over(watch, watcher, now) ||
	       (yields && READ_ONCE(watch->timer_late));
}

/* Wakes the owners of all rings that are due, or only says whether there are any. */
static bool due(struct vmloop_watcher *watcher, u64 now, bool yields,
		bool only_ask)
{
	unsigned int end = READ_ONCE(watcher->end);
	struct vmloop_watch *watch;
	unsigned int i;
	bool found = false;

	rcu_read_lock();
	for (i = 0; i < end; i++) {
		watch = rcu_dereference(watcher->watches[i]);
		if (!watch || !is_due(watch, watcher, now, yields))
			continue;
		found = true;
		if (only_ask)
			break;
		watch->ops->wake(watch);
	}
	rcu_read_unlock();
	return found;
}

static void kick_fires(struct irq_work *kick)
{
	struct vmloop_watcher *watcher =
		container_of(kick, struct vmloop_watcher, kick);

	due(watcher, ktime_get_ns(), !READ_ONCE(watcher->looking), false);
}

/*
 * Looks once. Nobody may take the CPU meanwhile: on a busy one the lowest class
 * waits long for its next turn, and a grace period of RCU with it.
 */
static void look(struct vmloop_watcher *watcher, u64 now, bool yields)
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

/* How often the CPU was taken from this thread: the scheduler counts, amid whatever it does. */
static unsigned long times_preempted(void)
{
	return READ_ONCE(current->nivcsw);
}

static void resume(struct vmloop_watcher *watcher, unsigned int cpu)
{
	u64 now = ktime_get_ns();

	watcher->switches = times_preempted();
	watcher->counted = now;
	watcher->steal = stolen_time(cpu);
	WRITE_ONCE(watcher->since, now);
	WRITE_ONCE(watcher->looked, now);
	WRITE_ONCE(watcher->looking, true);
}

/* Ticks count what is stolen, so that short times show it on average only. */
static void count(struct vmloop_watcher *watcher, unsigned int cpu)
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

static void let_others(struct vmloop_watcher *watcher, unsigned int cpu)
{
	count(watcher, cpu);
	WRITE_ONCE(watcher->looking, false);
	look(watcher, watcher->looked, true);
	schedule();
	resume(watcher, cpu);
}

static void watcher_run(unsigned int cpu)
{
	struct vmloop_watcher *watcher = per_cpu_ptr(&watchers, cpu);
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
		if (watcher->switches != times_preempted())
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

/* A ring's side: all of it belongs to the owner --------------------------- */

/* The watcher's first place that a ring of this channel may have; RINGS_MAX: none. */
static unsigned int free_place(const struct vmloop_watcher *watcher,
			       const struct vmloop_channel *channel)
{
	const struct vmloop_watch *watch;
	unsigned int place = RINGS_MAX;
	unsigned int taken = 0;
	unsigned int i;

	for (i = 0; i < RINGS_MAX; i++) {
		if (rcu_access_pointer(watcher->watches[i]))
			taken++;
		else
			place = min(place, i);
	}
	if (taken < RINGS_MAX - RINGS_KEPT)
		return place;
	for (i = 0; i < RINGS_MAX; i++) {
		watch = rcu_dereference_protected(watcher->watches[i],
						  lockdep_is_held(&watcher->lock));
		if (watch && watch->lane->channel == channel)
			return RINGS_MAX;
	}
	return place;
}

/* This CPU's watcher looks from now on. Returns false if it has no place for the ring. */
static bool watch_begin(struct vmloop_watch *watch)
{
	struct vmloop_watcher *watcher = this_cpu_ptr(&watchers);
	struct task_struct *task;
	unsigned int i;

	spin_lock(&watcher->lock);
	i = free_place(watcher, watch->lane->channel);
	if (i < RINGS_MAX) {
		rcu_assign_pointer(watcher->watches[i], watch);
		WRITE_ONCE(watcher->end, max(watcher->end, i + 1));
		watch->watcher = watcher;
		watch->slot = i;
	}
	spin_unlock(&watcher->lock);
	if (!watch->watcher)
		return false;

	/* Pairs with the barrier of smpboot's loop before watcher_should_run(). */
	task = this_cpu_read(watcher_tasks);
	if (task)
		wake_up_process(task);
	return true;
}

static void watch_end(struct vmloop_watch *watch)
{
	struct vmloop_watcher *watcher = watch->watcher;
	unsigned int end;

	if (!watcher)
		return;
	spin_lock_bh(&watcher->lock);
	RCU_INIT_POINTER(watcher->watches[watch->slot], NULL);
	end = watcher->end;
	while (end && !rcu_access_pointer(watcher->watches[end - 1]))
		end--;
	WRITE_ONCE(watcher->end, end);
	spin_unlock_bh(&watcher->lock);
	watch->watcher = NULL;
}

/* Whether the owner has its turn in the watcher, or interrupts it. */
static bool is_in_watcher(const struct vmloop_watcher *watcher)
{
	return watcher == this_cpu_ptr(&watchers) &&
	       current == this_cpu_read(watcher_tasks) &&
	       READ_ONCE(watcher->looking);
}

/* Whether it has looked not longer ago than the timer comes soon. */
static bool has_looked(const struct vmloop_watch *watch, u64 now)
{
	return (s64)(now - READ_ONCE(watch->watcher->looked)) <
	       (s64)timer_ns(watch);
}

/* Whether it will see the next record, as far as can be known. */
static bool is_looking(const struct vmloop_watch *watch, u64 now)
{
	const struct vmloop_watcher *watcher = watch->watcher;

	return watcher && (is_in_watcher(watcher) ||
			   (READ_ONCE(watcher->looking) && has_looked(watch, now)));
}

static void missed(struct vmloop_watch *watch)
{
	watch->misses++;
	if (watch->misses >= MISSES_MAX)
		watch->rest_until = jiffies + REST_TIME;
}

static bool rests(struct vmloop_watch *watch)
{
	const struct vmloop_watcher *watcher =
		watch->watcher ?: this_cpu_ptr(&watchers);

	if (READ_ONCE(watcher->rest) &&
	    time_before(jiffies, READ_ONCE(watcher->rest_until)))
		return true;
	if (watch->misses < MISSES_MAX)
		return false;
	if (time_before(jiffies, watch->rest_until))
		return true;
	watch->misses = 0;
	return false;
}

/**
 * vmloop_watch_woken() - the owner has consumed something
 * @watch: the watch
 *
 * Learns from how long it was idle whether looking would have been worth it.
 */
void vmloop_watch_woken(struct vmloop_watch *watch)
{
	u32 max = window_max(watch);
	u64 idle;

	/* The watcher is at it: it knows. */
	if (!watch->idle_since || (watch->watcher && is_in_watcher(watch->watcher)))
		return;
	idle = ktime_get_ns() - watch->idle_since;
	watch->idle_since = 0;
	if (idle <= max)
		WRITE_ONCE(watch->window,
			   min(max_t(u32, watch->window * 2, WINDOW_MIN), max));
	else if (watch->window / 2 >= WINDOW_MIN)
		WRITE_ONCE(watch->window, watch->window / 2);
	else
		WRITE_ONCE(watch->window, 0);
}
EXPORT_SYMBOL_GPL(vmloop_watch_woken);

/* Something was consumed: whether the ring is to be watched from now on. */
static bool is_watched_after_work(struct vmloop_watch *watch, u64 now, bool looking)
{
	if (!looking)
		watch->idle_since = now;
	else if (window_is_over(watch, watch->watcher,
				READ_ONCE(watch->watcher->looked)))
		missed(watch);	/* somebody had the CPU that it looked on */
	else
		watch->misses = 0;
	WRITE_ONCE(watch->since, now);
	if (!watch->window || rests(watch))
		return false;
	if (watch->watcher && (looking || watch->watcher == this_cpu_ptr(&watchers)))
		return true;
	watch_end(watch);	/* another CPU's, which does not get to it */
	vmloop_ring_watch(&watch->lane->rx);
	return watch_begin(watch);
}

/* There was nothing: whether the ring is watched on. */
static bool is_watched_on(struct vmloop_watch *watch, u64 now, bool looking)
{
	if (looking && !window_is_over(watch, watch->watcher, now))
		return true;
	/* It has just let others have the CPU, or the timer is still to come. */
	if (!looking && (has_looked(watch, now) || hrtimer_is_queued(&watch->timer)))
		return true;
	/* While the window can grow, the next doorbell says whether it should. */
	if (looking && watch->window > window_max(watch) / 2)
		missed(watch);
	watch->idle_since = in_vain_since(watch, watch->watcher);
	return false;
}

/**
 * vmloop_watch_idle() - the owner has consumed what there was
 * @watch: the watch
 * @work: whether that was anything
 *
 * Context: the owner's, before it is done.
 * Return: true if somebody looks again without a doorbell; false if the
 * caller must ask for one.
 */
bool vmloop_watch_idle(struct vmloop_watch *watch, bool work)
{
	bool looking, soon, on;
	u64 now;

	if (watch->stopped || (!work && !watch->watcher))
		return false;
	now = ktime_get_ns();
	looking = is_looking(watch, now);
	on = work ? is_watched_after_work(watch, now, looking) :
		    is_watched_on(watch, now, looking);
	if (!on) {
		watch_end(watch);
		return false;
	}
	/* With PREEMPT_RT the watcher's CPU is taken from it unseen. */
	soon = !looking || IS_ENABLED(CONFIG_PREEMPT_RT) ||
	       (is_in_watcher(watch->watcher) && compat_others_wait());
	timer_begin(watch, soon, now);
	return true;
}
EXPORT_SYMBOL_GPL(vmloop_watch_idle);

/**
 * vmloop_watch_end() - the ring is not to be looked at any more
 * @watch: the watch
 *
 * Context: the owner's, before it is done.
 */
void vmloop_watch_end(struct vmloop_watch *watch)
{
	watch_end(watch);
}
EXPORT_SYMBOL_GPL(vmloop_watch_end);

/**
 * vmloop_watch_later() - have the owner woken after a while, whatever comes
 * @watch: the watch
 *
 * For an owner that has had too many turns for what a peer did.
 *
 * Context: the owner's, before it is done.
 */
void vmloop_watch_later(struct vmloop_watch *watch)
{
	if (!watch->stopped && !hrtimer_is_queued(&watch->timer))
		hrtimer_start(&watch->timer, ns_to_ktime(timer_ns(watch)),
			      HRTIMER_MODE_REL_PINNED_HARD);
}
EXPORT_SYMBOL_GPL(vmloop_watch_later);

/**
 * vmloop_watch_start() - make ready what watching a ring takes
 * @watch: the watch, zeroed, or stopped and waited for
 * @ops: what it does
 * @lane: whose ring it is
 *
 * Context: process context; there is no owner yet.
 */
void vmloop_watch_start(struct vmloop_watch *watch,
			const struct vmloop_watch_ops *ops,
			struct vmloop_lane *lane)
{
	memset(watch, 0, sizeof(*watch));
	watch->ops = ops;
	watch->lane = lane;
	hrtimer_setup(&watch->timer, timer_fires, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED_HARD);
}
EXPORT_SYMBOL_GPL(vmloop_watch_start);

/**
 * vmloop_watch_stop() - nobody begins to look any more
 * @watch: the watch
 *
 * From now on vmloop_watch_idle() says that a doorbell must be asked for. Once is
 * enough.
 *
 * Context: the owner's, or where there is none any more.
 */
void vmloop_watch_stop(struct vmloop_watch *watch)
{
	if (watch->stopped)
		return;
	watch->stopped = true;
	watch_end(watch);
	hrtimer_cancel(&watch->timer);
	watch->grace = get_state_synchronize_rcu();
}
EXPORT_SYMBOL_GPL(vmloop_watch_stop);

/**
 * vmloop_watch_wait() - wait until nobody looks any more
 * @watch: the watch, stopped
 *
 * Those that were stopped together wait once, all in all. Context: may sleep.
 */
void vmloop_watch_wait(struct vmloop_watch *watch)
{
	cond_synchronize_rcu_expedited(watch->grace);
}
EXPORT_SYMBOL_GPL(vmloop_watch_wait);

/**
 * vmloop_watchers_init() - make a watcher for each CPU
 *
 * Return: 0 or a negative errno.
 */
int vmloop_watchers_init(void)
{
	struct vmloop_watcher *watcher;
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		watcher = per_cpu_ptr(&watchers, cpu);
		spin_lock_init(&watcher->lock);
		watcher->kick = IRQ_WORK_INIT_HARD(kick_fires);
	}
	return smpboot_register_percpu_thread(&watcher_threads);
}

/**
 * vmloop_watchers_exit() - end all watchers; nothing is watched
 */
void vmloop_watchers_exit(void)
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
