/* SPDX-License-Identifier: GPL-2.0 */
/*
 * hrtimer.h - hrtimer_setup(), which came with 6.13; hrtimer_init() is
 * gone since 6.15.
 */
#ifndef VMLOOP_COMPAT_LINUX_HRTIMER_H
#define VMLOOP_COMPAT_LINUX_HRTIMER_H

#include_next <linux/hrtimer.h>

#ifndef HAVE_HRTIMER_SETUP
static inline void
hrtimer_setup(struct hrtimer *timer,
	      enum hrtimer_restart (*function)(struct hrtimer *),
	      clockid_t clock_id, enum hrtimer_mode mode)
{
	hrtimer_init(timer, clock_id, mode);
	timer->function = function;
}
#endif

#endif /* VMLOOP_COMPAT_LINUX_HRTIMER_H */
