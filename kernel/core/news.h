/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * news.h - which of many lanes have something to look at: data, room, or another
 * life. Whoever hears a doorbell finds them in a time that does not depend on
 * how many lanes there are. bell.c has where doorbells come from.
 *
 * Pure, as ring.h. Each lane has a bit, and each word of such bits, a group, has
 * one. A bit is written by the side that tells, and copied by the side that
 * takes: while the two differ there is news. So every word has one writer, nothing
 * is ever cleared, and who tells twice before anybody looks tells once.
 *
 * Hints, all of it. A wild bit of the other side's costs us a look at a lane, and
 * at most one at each lane for a doorbell; a wild copy costs the other side a
 * doorbell too many or too few. What we have told and taken is kept here, outside
 * the shared memory, and never read back.
 *
 * Context: any. The caller serialises vmloop_news_tell() of one side, whatever
 * the lane, and the two that take.
 *
 * Barriers, each named with its pair:
 *   (E) vmloop_news_tell() has a full one between what it tells of (a position, a
 *       life) and loading lanes_taken; vmloop_news_lanes() has one between
 *       storing lanes_taken and the caller's look at the lanes: either the bit is
 *       seen to be taken, and told again, or the look sees what was told of.
 *   (F) the same for groups: vmloop_news_tell() between storing lanes and loading
 *       groups_taken; vmloop_news_groups() between storing groups_taken and
 *       the load of lanes in vmloop_news_lanes().
 */
#ifndef VMLOOP_NEWS_H
#define VMLOOP_NEWS_H

#include "ring_os.h"
#include "vmloop_lanes.h"

/**
 * struct vmloop_news_tx - what this side tells
 * @groups: as last told
 * @lanes: as last told
 * @ours: what we write: groups and lanes of it
 * @theirs: what the other side has taken. Written by the peer: untrusted
 */
struct vmloop_news_tx {
	u64 groups;
	u64 lanes[VMLOOP_NEWS_BITS];
	struct vmloop_shm_news *ours;
	const struct vmloop_shm_news *theirs;
};

/**
 * struct vmloop_news_rx - what this side takes
 * @groups: as last taken
 * @lanes: as last taken
 * @ours: what we write: groups_taken and lanes_taken of it
 * @theirs: what the other side tells. Written by the peer: untrusted
 */
struct vmloop_news_rx {
	u64 groups;
	u64 lanes[VMLOOP_NEWS_BITS];
	struct vmloop_shm_news *ours;
	const struct vmloop_shm_news *theirs;
};

void vmloop_news_init(struct vmloop_news_tx *tx, struct vmloop_news_rx *rx,
		      struct vmloop_shm_news *ours,
		      const struct vmloop_shm_news *theirs);

bool vmloop_news_tell(struct vmloop_news_tx *tx, u32 lane);

u64 vmloop_news_groups(struct vmloop_news_rx *rx);
u64 vmloop_news_lanes(struct vmloop_news_rx *rx, u32 group);

#endif /* VMLOOP_NEWS_H */
