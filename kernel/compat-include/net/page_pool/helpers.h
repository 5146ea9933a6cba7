/* SPDX-License-Identifier: GPL-2.0 */
/*
 * helpers.h - of net/page_pool.h, which was split into two headers
 * by 6.6.
 */
#ifndef VMLOOP_COMPAT_NET_PAGE_POOL_HELPERS_H
#define VMLOOP_COMPAT_NET_PAGE_POOL_HELPERS_H

#ifdef HAVE_NET_PAGE_POOL_HELPERS_H
#include_next <net/page_pool/helpers.h>
#else
#include <net/page_pool.h>
#endif

#endif /* VMLOOP_COMPAT_NET_PAGE_POOL_HELPERS_H */
