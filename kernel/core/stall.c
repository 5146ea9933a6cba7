// SPDX-License-Identifier: GPL-2.0
/*
 * stall.c - notices that the peer does not consume what a lane has for it, and
 * that it does again.
 *
 * Owns each lane's stall timer and what belongs to it. Context: softirq, and what
 * the data path calls. Of one lane only: another may be served while this is not.
 */
#include "core.h"
#include "trace.h"

/* How often a stalled lane looks whether the peer is back. */
#define STALL_POLL	msecs_to_jiffies(20)

/* What is published by now is to be consumed in time. */
static void mark(struct vmloop_lane *lane)
{
	WRITE_ONCE(lane->stall_mark, READ_ONCE(lane->tx.published));
	WRITE_ONCE(lane->stall_until, jiffies + VMLOOP_STALL_READ_TIME);
}

/**
 * vmloop_lane_produced() - something was published: watch that it is read
 * @lane: a lane that was up when the caller found it
 *
 * Context: any but hard interrupt, while the path's lane_down waits for the
 * caller, or for RCU's readers.
 */
void vmloop_lane_produced(struct vmloop_lane *lane)
{
	/* Not once it is being closed: nobody would end the timer. */
	if (timer_pending(&lane->stall) ||
	    READ_ONCE(lane->phase) != VMLOOP_LANE_UP)
		return;
	WRITE_ONCE(lane->stall_tail, READ_ONCE(lane->tx.theirs->rx_tail));
	mark(lane);
	mod_timer(&lane->stall, jiffies + VMLOOP_STALL_TIME);
}
EXPORT_SYMBOL_GPL(vmloop_lane_produced);

/**
 * vmloop_lane_stalled() - whether the peer has stopped to consume
 * @lane: a lane of the channel
 *
 * Return: true while another way must be taken.
 */
bool vmloop_lane_stalled(const struct vmloop_lane *lane)
{
	return READ_ONCE(lane->stalled);
}
EXPORT_SYMBOL_GPL(vmloop_lane_stalled);

static void stall_timer(struct timer_list *timer)
{
	struct vmloop_lane *lane = container_of(timer, struct vmloop_lane, stall);
	bool was = lane->stalled;
	bool pending, moved, read;
	u32 tail;

	/* Only compared, never used as a position. */
	tail = READ_ONCE(lane->tx.theirs->rx_tail);
	pending = tail != READ_ONCE(lane->tx.published);
	moved = tail != READ_ONCE(lane->stall_tail);
	WRITE_ONCE(lane->stall_tail, tail);
	read = (s32)(tail - READ_ONCE(lane->stall_mark)) >= 0;

	/*
	 * A tail that creeps holds up frames as one that stands: what was there
	 * when the time began must have been consumed when it ends. A peer that
	 * was stalled is back when it has consumed that.
	 */
	if (!pending || read)
		WRITE_ONCE(lane->stalled, false);
	else if (!moved || time_after_eq(jiffies, READ_ONCE(lane->stall_until)))
		WRITE_ONCE(lane->stalled, true);
	if (read)
		mark(lane);
	if (lane->stalled != was) {
		trace_vmloop_stall(lane, !was);
		if (!was)
			vmloop_count(lane->peer, VMLOOP_STALLS, 1);
		vmloop_link_look(lane->channel->link);
	}
	/*
	 * What waits for room must go another way; what is kept until the peer
	 * has read it can go.
	 */
	lane->path->lane_event(lane);
	/* Rung whatever it has yet to look at: the doorbell may have been lost. */
	if (lane->stalled && !was)
		vmloop_lane_ring_anyway(lane);
	if (pending)
		mod_timer(timer, jiffies + (lane->stalled ? STALL_POLL :
							    VMLOOP_STALL_TIME));
}

/**
 * vmloop_stall_init() - a lane begins
 * @lane: the lane
 */
void vmloop_stall_init(struct vmloop_lane *lane)
{
	timer_setup(&lane->stall, stall_timer, 0);
}

/**
 * vmloop_stall_stop() - a lane produces nothing more
 * @lane: no producer is in it
 *
 * Context: process context.
 */
void vmloop_stall_stop(struct vmloop_lane *lane)
{
	timer_delete_sync(&lane->stall);
}
