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

#include <linux/align.h>
#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/log2.h>
#include <linux/types.h>
#include <asm/barrier.h>

#define ring_load_once(p)		READ_ONCE(*(p))
#define ring_store_once(p, v)		WRITE_ONCE(*(p), (v))
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

#define ALIGN(x, a)			(((x) + ((a) - 1)) & ~((typeof(x))(a) - 1))
#define is_power_of_2(x)		((x) != 0 && ((x) & ((x) - 1)) == 0)
#define unlikely(x)			__builtin_expect(!!(x), 0)

#endif

#endif /* VMLOOP_RING_OS_H */
