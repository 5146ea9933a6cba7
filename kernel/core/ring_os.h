/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * ring_os.h - the few words that ring.[ch] needs from where it is compiled.
 *
 * The virt_ barriers, not the smp_ ones: the other side runs on another CPU
 * even when this guest has only one.
 */
#ifndef VMLOOP_RING_OS_H
#define VMLOOP_RING_OS_H

#ifdef __KERNEL__

#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/log2.h>
#include <linux/types.h>
#include <asm/barrier.h>

#define ring_load_once(p)		READ_ONCE(*(p))
#define ring_store_once(p, v)		WRITE_ONCE(*(p), (v))
/* Each use in ring.c names its pair; ring.h has the list. */
#define ring_load_acquire(p)		virt_load_acquire(p)
#define ring_store_release(p, v)	virt_store_release((p), (v))
#define ring_mb()			virt_mb()

#else

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define ring_load_once(p)		__atomic_load_n((p), __ATOMIC_RELAXED)
#define ring_store_once(p, v)		__atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define ring_load_acquire(p)		__atomic_load_n((p), __ATOMIC_ACQUIRE)
#define ring_store_release(p, v)	__atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define ring_mb()			__atomic_thread_fence(__ATOMIC_SEQ_CST)

#define unlikely(x)			__builtin_expect(!!(x), 0)

static inline bool is_power_of_2(unsigned long n)
{
	return n != 0 && (n & (n - 1)) == 0;
}

#endif

/* Words of shared memory are read as they lie there. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "vmloop's shared memory is little-endian"
#endif

#endif /* VMLOOP_RING_OS_H */
