// SPDX-License-Identifier: GPL-2.0
/*
 * channel.c - a channel's device becomes a link of the core.
 *
 * Owns the links, one a device. Context: probe and remove.
 */
#include <linux/slab.h>

#include "ivshmem.h"

/**
 * struct ivshmem_channel - a channel's device
 * @device: the device
 * @link: what the core knows of it
 */
struct ivshmem_channel {
	struct ivshmem_device *device;
	struct vmloop_link link;
};

static void ring(struct vmloop_link *link, u32 bell)
{
	struct ivshmem_channel *channel =
		container_of(link, struct ivshmem_channel, link);

	ivshmem_ring(channel->device, bell);
}

static void event(struct ivshmem_device *device, unsigned int bell)
{
	struct ivshmem_channel *channel = device->priv;

	vmloop_link_event(&channel->link, bell);
}

/**
 * ivshmem_channel_add() - prepare a channel's device
 * @device: mapped, without interrupt so far
 *
 * Return: 0 or a negative errno; device->priv is the caller's to free.
 */
int ivshmem_channel_add(struct ivshmem_device *device)
{
	struct ivshmem_channel *channel;

	channel = kzalloc(sizeof(*channel), GFP_KERNEL);
	if (!channel)
		return -ENOMEM;
	channel->device = device;
	channel->link.transport = &ivshmem_transport;
	channel->link.tag = device->id / 2;
	channel->link.side = device->id % 2;
	channel->link.base = device->base;
	channel->link.size = device->size;
	channel->link.ring = ring;
	channel->link.windows = &ivshmem_windows;
	device->priv = channel;
	device->event = event;
	return 0;
}

/**
 * ivshmem_channel_start() - give the channel's memory to the core
 * @device: prepared, with interrupts
 *
 * Return: 0 or a negative errno.
 */
int ivshmem_channel_start(struct ivshmem_device *device)
{
	struct ivshmem_channel *channel = device->priv;

	channel->link.bells = device->bells;
	/* The agent gives both devices of a channel the same number. */
	channel->link.peer_bells = device->vectors;
	return vmloop_link_add(&channel->link);
}

/**
 * ivshmem_channel_remove() - take the channel's memory back
 * @device: started before, its interrupts freed
 */
void ivshmem_channel_remove(struct ivshmem_device *device)
{
	struct ivshmem_channel *channel = device->priv;

	vmloop_link_remove(&channel->link);
	ivshmem_window_forget(channel->link.tag);
}
