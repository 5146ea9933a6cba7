/* SPDX-License-Identifier: GPL-2.0 */
/*
 * rcupdate.h - cond_synchronize_rcu_expedited(), which came with 6.0.
 */
#ifndef VMLOOP_COMPAT_LINUX_RCUPDATE_H
#define VMLOOP_COMPAT_LINUX_RCUPDATE_H

#include_next <linux/rcupdate.h>

#ifndef HAVE_COND_SYNCHRONIZE_RCU_EXPEDITED
static inline void cond_synchronize_rcu_expedited(unsigned long since)
{
	cond_synchronize_rcu(since);
}
#endif

#endif /* VMLOOP_COMPAT_LINUX_RCUPDATE_H */
