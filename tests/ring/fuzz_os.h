/* SPDX-License-Identifier: GPL-2.0 */
/*
 * fuzz_os.h - stands in for ring_os.h when ring.c is fuzzed (it is included
 * first, and takes the guard's name), so that the adversary gets its turn
 * around every single access to shared memory: what the ring reads twice is
 * found, as is a loop that never ends.
 */
#ifndef VMLOOP_RING_OS_H
#define VMLOOP_RING_OS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

void adversary_turn(void);

#define ring_load_once(p) ({						\
	__typeof__(*(p) + 0) __value;	/* a sum has no const */			\
									\
	adversary_turn();						\
	__value = __atomic_load_n((p), __ATOMIC_RELAXED);		\
	adversary_turn();						\
	__value;							\
})

#define ring_store_once(p, v) do {					\
	adversary_turn();						\
	__atomic_store_n((p), (v), __ATOMIC_RELAXED);			\
	adversary_turn();						\
} while (0)

#define ring_load_acquire(p)		ring_load_once(p)
#define ring_store_release(p, v)	ring_store_once((p), (v))
#define ring_mb()			adversary_turn()

#define unlikely(x)			__builtin_expect(!!(x), 0)

static inline bool is_power_of_2(unsigned long n)
{
	return n != 0 && (n & (n - 1)) == 0;
}

#endif /* VMLOOP_RING_OS_H */
