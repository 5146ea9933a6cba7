/* SPDX-License-Identifier: GPL-2.0 */
/*
 * timer.h - timer_delete_sync(), which came with 6.2 and into later 6.1;
 * del_timer_sync() is gone since 6.15.
 */
#ifndef VMLOOP_COMPAT_LINUX_TIMER_H
#define VMLOOP_COMPAT_LINUX_TIMER_H

#include_next <linux/timer.h>

#ifndef HAVE_TIMER_DELETE_SYNC
static inline int timer_delete_sync(struct timer_list *timer)
{
	return del_timer_sync(timer);
}
#endif

#endif /* VMLOOP_COMPAT_LINUX_TIMER_H */
