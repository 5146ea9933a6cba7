/* SPDX-License-Identifier: GPL-2.0 */
/*
 * region.h - where things are in a channel's memory of either version, for programs
 * that look at it past the modules.
 */
#ifndef REGION_H
#define REGION_H

#include "tool.h"
#include "vmloop_lanes.h"

static inline uint32_t life_step(uint32_t life)
{
	return life & ((1U << VMLOOP_LIFE_BITS) - 1);
}

/* Up to its features a side of either version is the same. */
static inline volatile struct vmloop_shm_side *region_side(uint8_t *base, unsigned int side)
{
	const struct vmloop_shm_header *header = (void *)base;

	return (void *)(base + header->side_offset[side & 1]);
}

/* What only version 2 has; NULL otherwise. */
static inline volatile struct vmloop_shm_table *region_table(uint8_t *base, unsigned int side)
{
	const struct vmloop_shm_header *header = (void *)base;

	return header->major == VMLOOP_TABLE_MAJOR ? (void *)region_side(base, side) : NULL;
}

static inline volatile struct vmloop_shm_entry *region_entry(uint8_t *base, unsigned int side,
							     uint32_t number)
{
	return (volatile struct vmloop_shm_entry *)((uint8_t *)region_side(base, side) +
						    VMLOOP_TABLE_ENTRIES) + number;
}

/* Number of the packet lane that has a slot; -1 if there is none. */
static inline int region_slot(uint8_t *base, uint32_t slot)
{
	volatile struct vmloop_shm_table *table = region_table(base, 0);
	volatile struct vmloop_shm_entry *entry;
	uint32_t number;

	if (!table)
		return slot ? -1 : 0;
	for (number = 0; number < table->lanes; number++) {
		entry = region_entry(base, 0, number);
		if (life_step(entry->life) == VMLOOP_LIFE_OPEN &&
		    entry->lane.kind == VMLOOP_LANE_PACKET &&
		    ((volatile struct vmloop_packet_lane *)entry->path)->slot == slot)
			return (int)number;
	}
	return -1;
}

/* Number of the first lane of packets. */
static inline uint32_t region_packets(uint8_t *base)
{
	int number = region_slot(base, 0);

	if (number < 0)
		fail("no lane of packets is open");
	return (uint32_t)number;
}

static inline volatile struct vmloop_shm_lane *region_lane(uint8_t *base, unsigned int side,
							   uint32_t number)
{
	if (region_table(base, side))
		return &region_entry(base, side, number)->lane;
	return &region_side(base, side)->lane[number];
}

#endif /* REGION_H */
