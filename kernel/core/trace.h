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

/* The peer stopped to consume, or began again. */
TRACE_EVENT(vmloop_stall,
	TP_PROTO(const struct vmloop_peer *peer, bool stalled),
	TP_ARGS(peer, stalled),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(bool, stalled)
	),
	TP_fast_assign(
		__entry->id = peer->id;
		__entry->stalled = stalled;
	),
	TP_printk("peer=%016llx stalled=%d", __entry->id, __entry->stalled)
);

#endif /* VMLOOP_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
