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
#include <net/sock.h>

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

/* recvmsg() of a protocol, for one that has no use for an address. */
#ifdef HAVE_RECVMSG_ADDR_LEN
static inline int compat_recvmsg(const struct proto *base, struct sock *sk,
				 struct msghdr *msg, size_t size, int flags)
{
	int unused;

	return base->recvmsg(sk, msg, size, flags, &unused);
}
#else
static inline int compat_recvmsg(const struct proto *base, struct sock *sk,
				 struct msghdr *msg, size_t size, int flags)
{
	return base->recvmsg(sk, msg, size, flags);
}
#endif

/* How often a socket has been disconnected; kernels before 6.1.60 do not count. */
static inline int compat_disconnects(const struct sock *sk)
{
#ifdef HAVE_SK_DISCONNECTS
	return READ_ONCE(sk->sk_disconnects);
#else
	return 0;
#endif
}

/* ioctl() of a protocol: an answer in the caller's memory, or in ours. */
#ifdef HAVE_SK_IOCTL
#define COMPAT_IOCTL_ARG	int *
static inline int compat_ioctl_answer(int *arg, int *answer)
{
	*answer = *arg;
	return 0;
}

static inline int compat_ioctl_set_answer(int *arg, int answer)
{
	*arg = answer;
	return 0;
}
#else
#define COMPAT_IOCTL_ARG	unsigned long
static inline int compat_ioctl_answer(unsigned long arg, int *answer)
{
	return get_user(*answer, (int __user *)arg);
}

static inline int compat_ioctl_set_answer(unsigned long arg, int answer)
{
	return put_user(answer, (int __user *)arg);
}
#endif

/* accept() of socket->ops, without waiting: its last arguments are one now. */
#ifdef HAVE_PROTO_ACCEPT_ARG
static inline int compat_accept(const struct proto_ops *base, struct socket *sock,
				struct socket *newsock,
				struct proto_accept_arg *arg)
{
	int flags = arg->flags;
	int err;

	arg->flags |= O_NONBLOCK;
	err = base->accept(sock, newsock, arg);
	arg->flags = flags;
	return err;
}
#else
struct proto_accept_arg {
	int flags;
	bool kern;
};

static inline int compat_accept(const struct proto_ops *base, struct socket *sock,
				struct socket *newsock,
				struct proto_accept_arg *arg)
{
	return base->accept(sock, newsock, arg->flags | O_NONBLOCK, arg->kern);
}
#endif

static inline bool compat_dst_is_encrypted(const struct dst_entry *dst)
{
#ifdef CONFIG_XFRM
	/* Or kept until there are keys. */
	return dst->xfrm || (dst->flags & DST_XFRM_QUEUE);
#else
	return false;
#endif
}

#endif /* VMLOOP_COMPAT_H */
