// SPDX-License-Identifier: GPL-2.0
/*
 * region.c - reads the header of a shared region and the lanes that the peer
 * describes, and believes neither before every value was checked.
 *
 * Owns nothing; works on what the caller passes. Context: any.
 */
#include <linux/export.h>
#include <linux/log2.h>
#include <linux/overflow.h>
#include <linux/string.h>

#include "core.h"

/* Where the data of regions of version 1 begins. */
#define LANE_DATA	(16 * VMLOOP_SHM_PAGE)

/**
 * vmloop_region_plan() - say where the parts of a channel's region are
 * @header: filled in
 * @lanes: of each side's table, an even number from 2 to VMLOOP_LANES_MAX; 0 for
 *	a region of version 1
 * @data_size: bytes of each side's data, a multiple of VMLOOP_SHM_PAGE
 *
 * For whoever makes the memory, which must be zero otherwise.
 */
void vmloop_region_plan(struct vmloop_shm_header *header, u32 lanes,
			u64 data_size)
{
	u32 side = VMLOOP_SHM_PAGE;
	u64 data = LANE_DATA;

	if (lanes) {
		side = ALIGN(VMLOOP_TABLE_ENTRIES +
			     lanes * sizeof(struct vmloop_shm_entry),
			     VMLOOP_SHM_PAGE);
		data = VMLOOP_SHM_PAGE + 2 * side;
	}
	*header = (struct vmloop_shm_header){
		.magic = VMLOOP_SHM_MAGIC,
		.major = lanes ? VMLOOP_TABLE_MAJOR : VMLOOP_SHM_MAJOR,
		.minor = lanes ? VMLOOP_TABLE_MINOR : VMLOOP_SHM_MINOR,
		.kind = VMLOOP_REGION_CHANNEL,
		.size = data + 2 * data_size,
		.side_offset = { VMLOOP_SHM_PAGE, VMLOOP_SHM_PAGE + side },
		.side_size = side,
		.data_offset = { data, data + data_size },
		.data_size = { data_size, data_size },
	};
}
EXPORT_SYMBOL_GPL(vmloop_region_plan);

/* Whether [@offset, @offset + @size) is whole pages within [one page, @end). */
static bool part_is_good(u64 offset, u64 size, u64 end)
{
	u64 last;

	return offset >= VMLOOP_SHM_PAGE && size >= VMLOOP_SHM_PAGE &&
	       IS_ALIGNED(offset, VMLOOP_SHM_PAGE) &&
	       IS_ALIGNED(size, VMLOOP_SHM_PAGE) &&
	       !check_add_overflow(offset, size, &last) && last <= end;
}

struct part {
	u64 offset;
	u64 size;
};

static bool parts_overlap(const struct part *a, const struct part *b)
{
	return a->offset < b->offset + b->size &&
	       b->offset < a->offset + a->size;
}

/*
 * Lanes that each side of the region has room for; 0 if it is of a version that
 * we do not know. Control regions have version 1 and keep it.
 */
static u32 lanes_of(const struct vmloop_shm_header *header)
{
	if (header->major == VMLOOP_SHM_MAJOR)
		return VMLOOP_SHM_LANES;
	if (header->major != VMLOOP_TABLE_MAJOR ||
	    header->kind != VMLOOP_REGION_CHANNEL ||
	    header->side_size < VMLOOP_TABLE_ENTRIES +
				2 * sizeof(struct vmloop_shm_entry))
		return 0;
	return min_t(u32, VMLOOP_LANES_MAX,
		     (header->side_size - VMLOOP_TABLE_ENTRIES) /
		     sizeof(struct vmloop_shm_entry)) & ~1U;
}

/**
 * vmloop_region_open() - check a region's header and find its parts
 * @region: filled in on success
 * @base: the region
 * @size: bytes that the transport mapped
 * @side: which side we are, 0 or 1
 * @kind: VMLOOP_REGION_* that it must be
 *
 * Return: 0; -ENODEV if this is no region of ours; -EPROTO if it is one that
 * cannot be used.
 */
int vmloop_region_open(struct vmloop_region *region, void *base, size_t size,
		       unsigned int side, u32 kind)
{
	struct vmloop_shm_header header;
	struct part part[4];
	unsigned int i, j;
	u32 lanes;

	if (size < VMLOOP_SHM_PAGE || side > 1)
		return -EPROTO;

	/* Private copy: the peer may write to the header at any time. */
	memcpy(&header, base, sizeof(header));
	barrier();

	if (header.magic != VMLOOP_SHM_MAGIC)
		return -ENODEV;
	if (header.kind != kind || header.size > size)
		return -EPROTO;
	lanes = lanes_of(&header);
	if (!lanes)
		return -EPROTO;

	for (i = 0; i < 2; i++) {
		part[i].offset = header.side_offset[i];
		part[i].size = header.side_size;
		part[2 + i].offset = header.data_offset[i];
		part[2 + i].size = header.data_size[i];
	}
	for (i = 0; i < ARRAY_SIZE(part); i++) {
		if (!part_is_good(part[i].offset, part[i].size, header.size))
			return -EPROTO;
		for (j = 0; j < i; j++)
			if (parts_overlap(&part[i], &part[j]))
				return -EPROTO;
	}

	BUILD_BUG_ON(sizeof(struct vmloop_shm_header) > VMLOOP_SHM_PAGE);
	BUILD_BUG_ON(sizeof(struct vmloop_shm_side) > VMLOOP_SHM_PAGE);

	BUILD_BUG_ON(sizeof(struct vmloop_shm_table) > VMLOOP_TABLE_ENTRIES);
	/* Whatever the version, a side begins with its state. */
	BUILD_BUG_ON(offsetof(struct vmloop_shm_table, features) !=
		     offsetof(struct vmloop_shm_side, features));

	*region = (struct vmloop_region){
		.base = base,
		.major = header.major,
		.lanes = lanes,
		.ours = base + part[side].offset,
		.theirs = base + part[!side].offset,
		.tx_data = base + part[2 + side].offset,
		.rx_data = base + part[2 + !side].offset,
		.tx_size = part[2 + side].size,
		.rx_size = part[2 + !side].size,
	};
	return 0;
}
EXPORT_SYMBOL_GPL(vmloop_region_open);

/**
 * vmloop_region_tx() - describe a lane of ours, with all of our data
 * @region: where
 * @lane: number of the lane
 * @kind: VMLOOP_LANE_*
 * @tx: set to its producer's end
 *
 * To be called before our side becomes READY.
 *
 * Return: 0, or -EPROTO if our data is too small for a ring.
 */
int vmloop_region_tx(struct vmloop_region *region, unsigned int lane, u32 kind,
		     struct vmloop_ring_tx *tx)
{
	struct vmloop_shm_lane *ours = &region->ours->lane[lane];
	u32 size = min_t(u64, region->tx_size, VMLOOP_RING_MAX);

	size = rounddown_pow_of_two(size);
	if (vmloop_ring_tx_init(tx, VMLOOP_RING_RECORDS, region->tx_data, size,
				0, ours, &region->theirs->lane[lane]))
		return -EPROTO;

	WRITE_ONCE(ours->ring_offset, 0);
	WRITE_ONCE(ours->ring_size, size);
	WRITE_ONCE(ours->kind, kind);
	return 0;
}
EXPORT_SYMBOL_GPL(vmloop_region_tx);

/**
 * vmloop_region_rx() - check the peer's lane and begin to read it
 * @region: where
 * @lane: number of the lane
 * @kind: VMLOOP_LANE_* that it must be
 * @rx: set to its consumer's end
 *
 * To be called after the peer's side was seen READY.
 *
 * Return: 0; -ENOENT if the peer has no such lane; -EPROTO if it describes
 * one that cannot be.
 */
int vmloop_region_rx(struct vmloop_region *region, unsigned int lane, u32 kind,
		     struct vmloop_ring_rx *rx)
{
	const struct vmloop_shm_lane *theirs = &region->theirs->lane[lane];
	u64 offset = READ_ONCE(theirs->ring_offset);
	u32 size = READ_ONCE(theirs->ring_size);

	if (READ_ONCE(theirs->kind) != kind)
		return -ENOENT;
	if (!IS_ALIGNED(offset, VMLOOP_SHM_PAGE) ||
	    offset > region->rx_size || size > region->rx_size - offset)
		return -EPROTO;
	/* The ring itself refuses sizes that are no power of two. */
	if (vmloop_ring_rx_init(rx, VMLOOP_RING_RECORDS,
				region->rx_data + offset, size, 0,
				&region->ours->lane[lane], theirs))
		return -EPROTO;
	return 0;
}
EXPORT_SYMBOL_GPL(vmloop_region_rx);
