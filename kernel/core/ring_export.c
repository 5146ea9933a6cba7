// SPDX-License-Identifier: GPL-2.0
/*
 * ring_export.c - makes the ring known to the other modules; ring.c itself
 * does not know that it is in a kernel.
 */
#include <linux/export.h>

#include "ring.h"

EXPORT_SYMBOL_GPL(vmloop_ring_max_record);
EXPORT_SYMBOL_GPL(vmloop_ring_reserve);
EXPORT_SYMBOL_GPL(vmloop_ring_commit);
EXPORT_SYMBOL_GPL(vmloop_ring_publish);
EXPORT_SYMBOL_GPL(vmloop_ring_wait_room);
EXPORT_SYMBOL_GPL(vmloop_ring_has_read);
EXPORT_SYMBOL_GPL(vmloop_ring_wait_read);
EXPORT_SYMBOL_GPL(vmloop_ring_peek);
EXPORT_SYMBOL_GPL(vmloop_ring_release);
EXPORT_SYMBOL_GPL(vmloop_ring_consume_publish);
EXPORT_SYMBOL_GPL(vmloop_ring_sleep);
EXPORT_SYMBOL_GPL(vmloop_ring_seen);
EXPORT_SYMBOL_GPL(vmloop_ring_wait_after);
EXPORT_SYMBOL_GPL(vmloop_ring_ready);
EXPORT_SYMBOL_GPL(vmloop_ring_watch);
EXPORT_SYMBOL_GPL(vmloop_ring_moved);
EXPORT_SYMBOL_GPL(vmloop_ring_space);
EXPORT_SYMBOL_GPL(vmloop_ring_add);
EXPORT_SYMBOL_GPL(vmloop_ring_wait_space);
EXPORT_SYMBOL_GPL(vmloop_ring_wait_space_beside);
EXPORT_SYMBOL_GPL(vmloop_ring_bytes);
EXPORT_SYMBOL_GPL(vmloop_ring_take);
EXPORT_SYMBOL_GPL(vmloop_ring_wait_bytes);
EXPORT_SYMBOL_GPL(vmloop_ring_account);
EXPORT_SYMBOL_GPL(vmloop_ring_unread);
EXPORT_SYMBOL_GPL(vmloop_ring_move);
