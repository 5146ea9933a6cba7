// SPDX-License-Identifier: GPL-2.0
/*
 * account.c - what both sides of ended lanes have read, for tests to hold against each other.
 *
 * Owns five counters. What peers have read of our lanes is by the account of each lane's
 * end; what we have read of theirs we know. So the first of a guest must be the second of its
 * peer. Of a lane whose peer did not say its last word the account is what was seen of it: the
 * peer may have read more since.
 *
 * Contexts: the core mutex is held; counters are read anywhere.
 */
#include <linux/sysfs.h>

#include "toy.h"

/* Bytes of rings, headers and padding included, modulo 2^32, as positions are. */
static atomic_t peers_read = ATOMIC_INIT(0);
static atomic_t we_read = ATOMIC_INIT(0);

/* Lanes. */
static atomic_t lanes = ATOMIC_INIT(0);
static atomic_t ended = ATOMIC_INIT(0);
static atomic_t not_final = ATOMIC_INIT(0);

static int counter_get(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%u\n", (u32)atomic_read(param->arg));
}

static const struct kernel_param_ops counter_ops = {
	.get = counter_get,
};

module_param_cb(peers_read, &counter_ops, &peers_read, 0444);
MODULE_PARM_DESC(peers_read, "bytes of lanes that have ended that peers have read, by the account, modulo 2^32");
module_param_cb(we_read, &counter_ops, &we_read, 0444);
MODULE_PARM_DESC(we_read, "bytes of lanes that have ended that we have read, modulo 2^32");
module_param_cb(lanes, &counter_ops, &lanes, 0444);
MODULE_PARM_DESC(lanes, "lanes that are up, or whose end has not been counted yet");
module_param_cb(ended, &counter_ops, &ended, 0444);
MODULE_PARM_DESC(ended, "lanes that have been up and have ended");
module_param_cb(not_final, &counter_ops, &not_final, 0444);
MODULE_PARM_DESC(not_final, "lanes that have ended before the peer had said its last word");

/**
 * toy_account_begin() - a lane is up: its positions are where they begin
 * @lane: the lane
 *
 * Context: before anything is produced or consumed.
 */
void toy_account_begin(struct vmloop_lane *lane)
{
	atomic_sub(lane->tx.head, &peers_read);
	atomic_sub(lane->rx.published, &we_read);
	atomic_inc(&lanes);
}

/**
 * toy_account_end() - a lane that was up has ended
 * @lane: the lane
 *
 * Return: bytes that the peer has not read.
 */
u32 toy_account_end(struct vmloop_lane *lane)
{
	bool final = vmloop_lane_is_final(lane);
	u32 unread = vmloop_ring_account(&lane->tx);

	atomic_add(lane->tx.head - unread, &peers_read);
	atomic_add(lane->rx.published, &we_read);
	atomic_inc(&ended);
	if (!final)
		atomic_inc(&not_final);
	/* Ordered behind the sums: a test that reads 0 here finds all lanes in them. */
	atomic_dec_return(&lanes);
	return unread;
}
