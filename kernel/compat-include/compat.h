/* SPDX-License-Identifier: GPL-2.0 */
/*
 * compat.h - what differs between the kernels that we build for, under one
 * name each. The build (kernel/Kbuild) looks for a symbol, not for a version;
 * dropping a kernel means deleting its half here.
 */
#ifndef VMLOOP_COMPAT_H
#define VMLOOP_COMPAT_H

#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/slab.h>

#ifdef HAVE_PAGE_POOL_HELPERS
#include <net/page_pool/helpers.h>
#else
#include <net/page_pool.h>
#endif

/* skb_gso_validate_network_len() moved there. */
#ifdef HAVE_GSO_H
#include <net/gso.h>
#endif

/* Debian's page allocator has 32 KiB at hand; a 64 KiB frame takes three. */
#define NET_PAGES_ORDER	3

static inline struct page_pool *compat_page_pool(unsigned int order)
{
	struct page_pool_params params = {
		.order = order,
		.pool_size = 256,
		.nid = NUMA_NO_NODE,
	};

	return page_pool_create(&params);
}

/* A device that only carries a NAPI instance. */
#ifdef HAVE_ALLOC_NETDEV_DUMMY
static inline struct net_device *compat_dummy_netdev(void)
{
	return alloc_netdev_dummy(0);
}

static inline void compat_dummy_netdev_free(struct net_device *dev)
{
	free_netdev(dev);
}
#else
static inline struct net_device *compat_dummy_netdev(void)
{
	struct net_device *dev = kzalloc(sizeof(*dev), GFP_KERNEL);

	if (dev)
		init_dummy_netdev(dev);
	return dev;
}

static inline void compat_dummy_netdev_free(struct net_device *dev)
{
	kfree(dev);
}
#endif

/* Whether classifiers are attached to what leaves the device. */
static inline bool compat_tc_egress_active(const struct net_device *dev)
{
#ifdef CONFIG_NET_EGRESS
#ifdef HAVE_TCX
	return rcu_access_pointer(dev->tcx_egress);
#else
	return rcu_access_pointer(dev->miniq_egress);
#endif
#else
	return false;
#endif
}

static inline bool compat_nit_active(struct net_device *dev)
{
	return dev_nit_active(dev);
}

/* UDP segmentation in virtio's metadata came after 6.1. */
#ifdef HAVE_VIRTIO_GSO_UDP_L4
#define COMPAT_GSO_UDP_L4	SKB_GSO_UDP_L4
#else
#define COMPAT_GSO_UDP_L4	0
#endif

#endif /* VMLOOP_COMPAT_H */
