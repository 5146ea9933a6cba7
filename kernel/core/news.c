// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * news.c - which lanes have something to look at; see news.h for the rules.
 */
#include "news.h"

/**
 * vmloop_news_init() - begin, in memory that is zeroed
 * @tx: what to tell by
 * @rx: what to take by
 * @ours: our own words in the shared region
 * @theirs: the other side's
 */
void vmloop_news_init(struct vmloop_news_tx *tx, struct vmloop_news_rx *rx,
		      struct vmloop_shm_news *ours,
		      const struct vmloop_shm_news *theirs)
{
	*tx = (struct vmloop_news_tx){ .ours = ours, .theirs = theirs };
	*rx = (struct vmloop_news_rx){ .ours = ours, .theirs = theirs };
}

/*
 * Makes a bit of @told differ from the other side's copy of it. False if it
 * does already: what it tells will still be looked at.
 */
static bool differ(u64 *told, __u64 *ours, const __u64 *taken, u64 bit)
{
	if ((*told ^ ring_load_once(taken)) & bit)
		return false;
	*told ^= bit;
	ring_store_once(ours, *told);
	return true;
}

/**
 * vmloop_news_tell() - there is something new about a lane
 * @tx: what this side tells
 * @lane: its number, below VMLOOP_LANES_MAX
 *
 * To be called after the new position, or life, was stored.
 *
 * Return: whether the other side wants a doorbell. If not, it has been rung for
 * this group and has not looked yet.
 */
bool vmloop_news_tell(struct vmloop_news_tx *tx, u32 lane)
{
	u32 group = lane / VMLOOP_NEWS_BITS;

	ring_mb();						/* (E) */
	if (!differ(&tx->lanes[group], &tx->ours->lanes[group],
		    &tx->theirs->lanes_taken[group], 1ULL << lane % VMLOOP_NEWS_BITS))
		return false;
	ring_mb();						/* (F) */
	return differ(&tx->groups, &tx->ours->groups, &tx->theirs->groups_taken,
		      1ULL << group);
}

/* The bits that have changed since they were last taken; takes them. */
static u64 take(u64 *taken, __u64 *ours, const __u64 *told)
{
	u64 word = ring_load_once(told);
	u64 news = word ^ *taken;

	if (news) {
		*taken = word;
		ring_store_once(ours, word);
	}
	return news;
}

/**
 * vmloop_news_groups() - the groups that have lanes to look at
 * @rx: what this side takes
 *
 * To be called when the doorbell has rung. The caller must then take the lanes of
 * each of the groups.
 *
 * Return: a bit for each group.
 */
u64 vmloop_news_groups(struct vmloop_news_rx *rx)
{
	u64 news = take(&rx->groups, &rx->ours->groups_taken, &rx->theirs->groups);

	ring_mb();						/* (F) */
	return news;
}

/**
 * vmloop_news_lanes() - the lanes of a group to look at
 * @rx: what this side takes
 * @group: its number, below VMLOOP_NEWS_BITS
 *
 * The caller must then look at each of the lanes, in both directions, and at its
 * life; it ignores bits of lanes that there are not.
 *
 * Return: a bit for each lane of the group, from lane VMLOOP_NEWS_BITS * @group on.
 */
u64 vmloop_news_lanes(struct vmloop_news_rx *rx, u32 group)
{
	u64 news = take(&rx->lanes[group], &rx->ours->lanes_taken[group],
			&rx->theirs->lanes[group]);

	ring_mb();						/* (E) */
	return news;
}
