// SPDX-License-Identifier: GPL-2.0
/*
 * news.c - what it costs to tell that a lane has news, and to find that lane,
 * by how many lanes there are.
 *
 * One thread plays both sides, one step after the other: what travelling between
 * two CPUs costs is the same for any number of lanes. A step tells of one lane,
 * takes all news, and loads the position of the lane that has some. The lanes
 * take turns in an order that jumps, so that with many of them their words and
 * entries are not in the nearest cache, as they would not be in use.
 *
 * Series take turns, slice by slice; the median of each is what counts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "news.h"

#define SLICES	101
#define STEPS	20000	/* in each */

static const u32 counts[] = { 2, 16, 64, 256, 1000, 4096 };

#define SERIES	(sizeof(counts) / sizeof(counts[0]))

static struct vmloop_shm_entry table[VMLOOP_LANES_MAX];
static struct vmloop_shm_news shared[2];
static struct vmloop_news_tx tx;
static struct vmloop_news_rx rx;
static double took[SERIES][SLICES];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Tells of a lane and finds it; how many were found. */
static u32 step(u32 lane)
{
	u32 found = 0;

	table[lane].lane.tx_head += 64;
	if (!vmloop_news_tell(&tx, lane))
		return 0;
	for (u64 groups = vmloop_news_groups(&rx); groups; groups &= groups - 1) {
		u32 group = (u32)__builtin_ctzll(groups);

		for (u64 lanes = vmloop_news_lanes(&rx, group); lanes; lanes &= lanes - 1) {
			u32 with = group * VMLOOP_NEWS_BITS + (u32)__builtin_ctzll(lanes);

			found += ring_load_once(&table[with].lane.tx_head) != 0;
		}
	}
	return found;
}

static double slice(u32 lanes)
{
	double begin = now();
	u32 found = 0;
	u32 n = 1;

	for (u32 i = 0; i < STEPS; i++) {
		n = n * 1664525 + 1013904223;
		found += step((n >> 8) % lanes);
	}
	if (found != STEPS) {
		fprintf(stderr, "bench: %u of %u found\n", found, STEPS);
		exit(1);
	}
	return (now() - begin) / STEPS;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a;
	double y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	struct vmloop_news_tx unused_tx;
	struct vmloop_news_rx unused_rx;
	FILE *json = NULL;

	if (argc == 3 && !strcmp(argv[1], "--json")) {
		json = fopen(argv[2], "w");
		if (!json) {
			perror(argv[2]);
			return 1;
		}
	}
	vmloop_news_init(&tx, &unused_rx, &shared[0], &shared[1]);
	vmloop_news_init(&unused_tx, &rx, &shared[1], &shared[0]);
	for (u32 i = 0; i < SLICES; i++) {
		for (size_t s = 0; s < SERIES; s++)
			took[s][i] = slice(counts[s]);
	}
	if (json)
		fprintf(json, "[");
	for (size_t s = 0; s < SERIES; s++) {
		qsort(took[s], SLICES, sizeof(took[s][0]), by_value);
		printf("%5u lanes: %6.1f ns (%.1f to %.1f)\n", counts[s], took[s][SLICES / 2],
		       took[s][SLICES / 4], took[s][SLICES * 3 / 4]);
		if (json)
			fprintf(json, "%s\n  {\"lanes\": %u, \"ns\": [%.1f, %.1f, %.1f]}",
				s ? "," : "", counts[s], took[s][SLICES / 4],
				took[s][SLICES / 2], took[s][SLICES * 3 / 4]);
	}
	if (json) {
		fprintf(json, "\n]\n");
		fclose(json);
	}
	return 0;
}
