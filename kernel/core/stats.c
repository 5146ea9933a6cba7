// SPDX-License-Identifier: GPL-2.0
/*
 * stats.c - counters of a peer, kept by each CPU for itself.
 *
 * Context: any with preemption off (the data path) or under the core mutex.
 */
#include "core.h"

static void count_at(struct vmloop_stats __percpu *stats,
		     enum vmloop_counter first, const u64 *n, unsigned int how_many)
{
	struct vmloop_stats *mine = get_cpu_ptr(stats);
	unsigned long flags;
	unsigned int i;

	flags = u64_stats_update_begin_irqsave(&mine->sync);
	for (i = 0; i < how_many; i++)
		u64_stats_add(&mine->value[first + i], n[i]);
	u64_stats_update_end_irqrestore(&mine->sync, flags);
	put_cpu_ptr(stats);
}

/**
 * vmloop_count() - add to one counter of a peer
 * @peer: whose
 * @counter: which
 * @n: how much
 */
void vmloop_count(struct vmloop_peer *peer, enum vmloop_counter counter, u64 n)
{
	count_at(peer->stats, counter, &n, 1);
}
EXPORT_SYMBOL_GPL(vmloop_count);

/**
 * vmloop_count_frame() - add one frame and its bytes
 * @peer: whose
 * @frames: VMLOOP_TX_FRAMES or VMLOOP_RX_FRAMES; the bytes follow it
 * @bytes: of the frame
 */
void vmloop_count_frame(struct vmloop_peer *peer, enum vmloop_counter frames,
			u64 bytes)
{
	const u64 n[] = { 1, bytes };

	BUILD_BUG_ON(VMLOOP_TX_FRAMES + 1 != VMLOOP_TX_BYTES);
	BUILD_BUG_ON(VMLOOP_RX_FRAMES + 1 != VMLOOP_RX_BYTES);
	count_at(peer->stats, frames, n, ARRAY_SIZE(n));
}
EXPORT_SYMBOL_GPL(vmloop_count_frame);

static u64 sum_of(const struct vmloop_peer *peer, enum vmloop_counter counter)
{
	const struct vmloop_stats *stats;
	unsigned int start;
	u64 sum = 0;
	u64 value;
	int cpu;

	for_each_possible_cpu(cpu) {
		stats = per_cpu_ptr(peer->stats, cpu);
		do {
			start = u64_stats_fetch_begin(&stats->sync);
			value = u64_stats_read(&stats->value[counter]);
		} while (u64_stats_fetch_retry(&stats->sync, start));
		sum += value;
	}
	return sum;
}

/**
 * vmloop_peer_counter() - a counter of a peer, summed over all CPUs
 * @peer: whose
 * @counter: which; VMLOOP_TX_STANDARD, which nobody counts, is the sum of all
 *	VMLOOP_STANDARD_*
 *
 * Return: the sum.
 */
u64 vmloop_peer_counter(const struct vmloop_peer *peer,
			enum vmloop_counter counter)
{
	u64 sum = 0;
	unsigned int i;

	if (counter != VMLOOP_TX_STANDARD)
		return sum_of(peer, counter);
	for (i = VMLOOP_STANDARD_NO_CHANNEL; i <= VMLOOP_STANDARD_LAST; i++)
		sum += sum_of(peer, i);
	return sum;
}
