/* SPDX-License-Identifier: GPL-2.0 */
/*
 * gso.h - skb_gso_validate_network_len() and its like, which are in a
 * header of their own since 6.5.
 */
#ifndef VMLOOP_COMPAT_NET_GSO_H
#define VMLOOP_COMPAT_NET_GSO_H

#ifdef HAVE_NET_GSO_H
#include_next <net/gso.h>
#else
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#endif

#endif /* VMLOOP_COMPAT_NET_GSO_H */
