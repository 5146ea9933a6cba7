/* SPDX-License-Identifier: GPL-2.0 */
/*
 * hex.h - mac_pton(), which is in a header of its own since 6.3.
 */
#ifndef VMLOOP_COMPAT_LINUX_HEX_H
#define VMLOOP_COMPAT_LINUX_HEX_H

#ifdef HAVE_LINUX_HEX_H
#include_next <linux/hex.h>
#else
#include <linux/kernel.h>
#endif

#endif /* VMLOOP_COMPAT_LINUX_HEX_H */
