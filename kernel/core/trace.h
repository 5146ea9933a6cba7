/* SPDX-License-Identifier: GPL-2.0 */
/*
 * trace.h - tracepoints of the core: events/vmloop/.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM vmloop

#if !defined(VMLOOP_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define VMLOOP_TRACE_H

#include <linux/tracepoint.h>

#include "core.h"

/* A peer's channel changed its state. */
TRACE_EVENT(vmloop_peer_state,
	TP_PROTO(const struct vmloop_peer *peer),
	TP_ARGS(peer),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, epoch)
		__field(u32, tag)
		__field(u32, state)
		__field(u32, reason)
	),
	TP_fast_assign(
		__entry->id = peer->id;
		__entry->epoch = peer->epoch;
		__entry->tag = peer->tag;
		__entry->state = peer->state;
		__entry->reason = peer->reason;
	),
	TP_printk("peer=%016llx epoch=%llu tag=%u state=%s reason=%u",
		  __entry->id, __entry->epoch, __entry->tag,
		  vmloop_channel_state_name(__entry->state), __entry->reason)
);

/* A directory was taken over. */
TRACE_EVENT(vmloop_directory,
	TP_PROTO(u64 generation, u32 entries, bool whole, bool taken),
	TP_ARGS(generation, entries, whole, taken),
	TP_STRUCT__entry(
		__field(u64, generation)
		__field(u32, entries)
		__field(bool, whole)
		__field(bool, taken)
	),
	TP_fast_assign(
		__entry->generation = generation;
		__entry->entries = entries;
		__entry->whole = whole;
		__entry->taken = taken;
	),
	TP_printk("generation=%llu entries=%u whole=%d taken=%d",
		  __entry->generation, __entry->entries, __entry->whole,
		  __entry->taken)
);

/*
 * The peer stopped to consume, or began again. @unread is what it has left of the lane,
 * in bytes; @asleep is whether it waits for a doorbell. Where a lane stalls and its
 * reader is awake, the reader got no time; where it sleeps, a doorbell has not reached it
 * yet. Both as the peer has it in its memory: a hint, for people.
 */
TRACE_EVENT(vmloop_stall,
	TP_PROTO(const struct vmloop_lane *lane, bool stalled),
	TP_ARGS(lane, stalled),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u32, number)
		__field(u32, unread)
		__field(bool, stalled)
		__field(bool, asleep)
	),
	TP_fast_assign(
		u32 tail = READ_ONCE(lane->tx.theirs->rx_tail);

		__entry->id = lane->peer->id;
		__entry->number = lane->number;
		__entry->unread = READ_ONCE(lane->tx.published) - tail;
		__entry->stalled = stalled;
		__entry->asleep =
			(s32)(READ_ONCE(lane->tx.theirs->rx_wake) - tail) >= 0;
	),
	TP_printk("peer=%016llx lane=%u stalled=%d unread=%u asleep=%d",
		  __entry->id, __entry->number, __entry->stalled,
		  __entry->unread, __entry->asleep)
);

#endif /* VMLOOP_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
