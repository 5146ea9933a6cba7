/* SPDX-License-Identifier: GPL-2.0 */
/*
 * skbuff.h - what kernels have learned to say of packets since 6.1.
 */
#ifndef VMLOOP_COMPAT_LINUX_SKBUFF_H
#define VMLOOP_COMPAT_LINUX_SKBUFF_H

#include_next <linux/skbuff.h>

/* Fragments that the CPU cannot read (device memory) came with 6.12. */
#ifndef HAVE_SKB_FRAGS_READABLE
static inline bool skb_frags_readable(const struct sk_buff *skb)
{
	return true;
}
#endif

/* Segmentation with accurate ECN came with 6.14: before, no frame has it. */
#ifndef HAVE_SKB_GSO_TCP_ACCECN
enum { SKB_GSO_TCP_ACCECN = 0 };
#endif

/* Whether the device is to encrypt its bytes; TLS alone asked for that before 6.10. */
#ifndef HAVE_SKB_IS_DECRYPTED
static inline bool skb_is_decrypted(const struct sk_buff *skb)
{
#ifdef CONFIG_TLS_DEVICE
	return skb->decrypted;
#else
	return false;
#endif
}
#endif

#endif /* VMLOOP_COMPAT_LINUX_SKBUFF_H */
