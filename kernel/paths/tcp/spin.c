// SPDX-License-Identifier: GPL-2.0
/*
 * spin.c - a task looks at a ring for a while before it sleeps.
 *
 * Before that it asks for no doorbell, which spares the peer an exit to the
 * hypervisor, and us an interrupt and a switch of tasks. The core's watcher (watch.c)
 * does the same for those who poll, and for tasks that sleep by now, while the CPU has
 * nothing else to do.
 *
 * How long it looks it learns, as the watcher does: longer while what it waits for comes
 * within what a doorbell is worth, shorter while it does not, down to not at all. Where the
 * peer shares a CPU with us nothing can come while we look: after some looks in vain in a
 * row it rests.
 *
 * What is learned belongs to nobody: two tasks that wait at once spoil each other's, which
 * costs time, and no byte. Context: process context.
 */
#include <linux/ktime.h>
#include <linux/sched/signal.h>

#include "stream.h"
#include "compat.h"

#define SPIN_LEAST	(5 * NSEC_PER_USEC)
#define SPIN_BELLS	24
#define SPIN_MOST	NSEC_PER_MSEC

#define MISSES_MAX	8
#define REST_TIME	(HZ / 4)

/* How long looking can be worth it, in ns; 0 without a lane. */
static u32 most(struct stream *stream)
{
	int us = READ_ONCE(stream_spin_us);
	u64 ns = 0;

	spin_lock_bh(&stream->lane_lock);
	if (stream->lane)
		ns = us < 0 ? (u64)vmloop_lane_bell_ns(stream->lane) * SPIN_BELLS :
			      (u64)us * NSEC_PER_USEC;
	spin_unlock_bh(&stream->lane_lock);
	return min_t(u64, ns, SPIN_MOST);
}

/**
 * stream_spin() - look at a ring for as long as it seems to be worth it
 * @stream: the stream
 * @spin: what is known of such waits
 * @is_over: whether the wait is, by a look at the lane
 *
 * Return: whether it is.
 */
bool stream_spin(struct stream *stream, struct stream_spin *spin,
		 bool (*is_over)(const struct vmloop_lane *lane))
{
	u32 window = min(READ_ONCE(spin->window), most(stream));
	bool over = false;
	u64 until, now;

	if (!window || (spin->misses >= MISSES_MAX &&
			time_before(jiffies, READ_ONCE(spin->rest_until))))
		return false;
	until = ktime_get_ns() + window;
	do {
		cpu_relax();
		spin_lock_bh(&stream->lane_lock);
		over = !stream->lane || is_over(stream->lane);
		spin_unlock_bh(&stream->lane_lock);
		now = ktime_get_ns();
	} while (!over && now < until && !compat_others_wait() &&
		 !signal_pending(current));

	/* It is over, but somebody had our CPU meanwhile. */
	if (now >= until) {
		spin->misses = min_t(unsigned int, spin->misses + 1, MISSES_MAX);
		WRITE_ONCE(spin->rest_until, jiffies + REST_TIME);
	} else if (over) {
		spin->misses = 0;
	}
	return over;
}

/**
 * stream_spin_learn() - a wait is over
 * @stream: the stream
 * @spin: what is known of such waits
 * @began: when it began, of ktime_get_ns()
 */
void stream_spin_learn(struct stream *stream, struct stream_spin *spin, u64 began)
{
	u32 window = READ_ONCE(spin->window);
	u32 longest = most(stream);

	if (ktime_get_ns() - began <= longest)
		window = clamp_t(u32, window * 2, SPIN_LEAST, longest);
	else
		window = window / 2 >= SPIN_LEAST ? window / 2 : 0;
	WRITE_ONCE(spin->window, window);
}
