/* SPDX-License-Identifier: GPL-2.0 */
/*
 * compat.h - what differs between the kernels that we build for and has no name
 * in the newest, under one name each. What the newest has, and others lack, is
 * in the header of the kernel's name beside this file, under the kernel's name.
 *
 * The build (kernel/Kbuild) looks for a symbol, not for a version. Dropping a
 * kernel means deleting its half here.
 */
#ifndef VMLOOP_COMPAT_H
#define VMLOOP_COMPAT_H

#include <linux/ipv6.h>
#include <linux/netdevice.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/virtio_net.h>
#include <net/page_pool/helpers.h>

#ifdef HAVE_NET_IPV6_STUBS_H
#include <net/ipv6_stubs.h>
#else
#include <net/ndisc.h>
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

/* alloc_netdev_dummy() makes a device that only carries a NAPI instance. */
#ifdef HAVE_ALLOC_NETDEV_DUMMY
static inline void compat_free_netdev_dummy(struct net_device *dev)
{
	free_netdev(dev);
}
#else
static inline struct net_device *alloc_netdev_dummy(int sizeof_priv)
{
	struct net_device *dev = kzalloc(sizeof(*dev), GFP_KERNEL);

	if (dev)
		init_dummy_netdev(dev);
	return dev;
}

static inline void compat_free_netdev_dummy(struct net_device *dev)
{
	kfree(dev);
}
#endif

/* Whether classifiers are attached to what leaves the device. */
static inline bool compat_tc_egress_active(const struct net_device *dev)
{
#ifdef CONFIG_NET_EGRESS
#ifdef HAVE_TCX_EGRESS
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

/*
 * UDP segmentation in virtio's metadata came with 6.2. Later 6.1 checks for it in
 * virtio_net_hdr_to_skb(), and refuses it all the same.
 */
#ifdef VIRTIO_NET_HDR_GSO_UDP_L4
#define COMPAT_GSO_UDP_L4	SKB_GSO_UDP_L4
#else
#define COMPAT_GSO_UDP_L4	0
#endif

/*
 * IPv6's neighbours; NULL until the IPv6 module is there (before 7.1 or so it may
 * be one), or if it is turned off.
 */
static inline struct neigh_table *compat_nd_table(void)
{
#if !IS_ENABLED(CONFIG_IPV6)
	return NULL;
#elif defined(HAVE_NET_IPV6_STUBS_H)
	return READ_ONCE(ipv6_stub)->nd_tbl;
#else
	return ipv6_mod_enabled() ? &nd_tbl : NULL;
#endif
}

/*
 * Whether another task wants this CPU. With lazy preemption (6.13, RT before) one
 * of the ordinary class says so by a flag of its own, which need_resched() does
 * not know before the next tick.
 */
static inline bool compat_others_wait(void)
{
#ifdef TIF_NEED_RESCHED_LAZY
	if (test_thread_flag(TIF_NEED_RESCHED_LAZY))
		return true;
#endif
	return need_resched();
}

#endif /* VMLOOP_COMPAT_H */
