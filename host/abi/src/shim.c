// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * shim.c - what a test compares the Rust mirror of ring.h with.
 */
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
