// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * shim.c - what a test compares the Rust mirrors of ring.h, life.h, area.h and news.h with.
 */
#include "area.h"
#include "life.h"
#include "news.h"
#include "ring.h"

size_t vmloop_shim_tx_size(void)
{
	return sizeof(struct vmloop_ring_tx);
}

size_t vmloop_shim_rx_size(void)
{
	return sizeof(struct vmloop_ring_rx);
}

size_t vmloop_shim_tx_head(void)
{
	return offsetof(struct vmloop_ring_tx, head);
}

size_t vmloop_shim_rx_tail(void)
{
	return offsetof(struct vmloop_ring_rx, tail);
}

size_t vmloop_shim_tx_broken(void)
{
	return offsetof(struct vmloop_ring_tx, broken);
}

size_t vmloop_shim_rx_broken(void)
{
	return offsetof(struct vmloop_ring_rx, broken);
}

u32 vmloop_shim_records(void)
{
	return VMLOOP_RING_RECORDS;
}

size_t vmloop_shim_life_size(void)
{
	return sizeof(struct vmloop_life);
}

size_t vmloop_shim_life_theirs(void)
{
	return offsetof(struct vmloop_life, theirs);
}

size_t vmloop_shim_area_size(void)
{
	return sizeof(struct vmloop_area);
}

size_t vmloop_shim_area_aside_most(void)
{
	return offsetof(struct vmloop_area, aside_most);
}

size_t vmloop_shim_news_size(void)
{
	return sizeof(struct vmloop_news_tx) + sizeof(struct vmloop_news_rx);
}

size_t vmloop_shim_news_theirs(void)
{
	return offsetof(struct vmloop_news_rx, theirs);
}
