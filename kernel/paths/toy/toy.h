/* SPDX-License-Identifier: GPL-2.0 */
/*
 * toy.h - the path of the tests: each lane that is opened to it is an echo.
 *
 * A program opens /dev/vmloop_toy, names a peer, and has a lane of its own, whose
 * bytes or records come back as they were sent. It shows how a path is written
 * whose lanes tasks use, hundreds of them for each peer: docs/paths.md. Nobody but
 * tests loads it.
 */
#ifndef VMLOOP_TOY_H
#define VMLOOP_TOY_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Open a lane; waits until the peer has accepted or refused it. */
#define VMLOOP_TOY_OPEN		_IOW('v', 1, struct vmloop_toy_open)

/* How the lane stands; works after its end. */
#define VMLOOP_TOY_STATE	_IOR('v', 2, struct vmloop_toy_state)

/*
 * Go on in another ring, of so many bytes, a power of two. EBUSY while the peer reads the one
 * before the last move, ENOSPC without memory.
 */
#define VMLOOP_TOY_MOVE		_IOW('v', 3, __u32)

/**
 * struct vmloop_toy_open - which lane
 * @peer: identity of the peer, as in `control peers`
 * @kind: VMLOOP_LANE_TOY_RECORDS or VMLOOP_LANE_TOY_BYTES
 * @ring_size: bytes of our ring, a power of two from 4096 up
 */
struct vmloop_toy_open {
	__u64 peer;
	__u32 kind;
	__u32 ring_size;
};

/**
 * struct vmloop_toy_state - how a lane stands
 * @ended: the path was told its end
 * @reason: VMLOOP_REASON_*, of the end
 * @sent: bytes, or of records their payloads, that were published
 * @unread: bytes of the ring, headers of records included, that the peer has not
 *	published as read; final once @ended
 * @number: of the lane
 */
struct vmloop_toy_state {
	__u32 ended;
	__u32 reason;
	__u64 sent;
	__u32 unread;
	__u32 number;
};

#ifdef __KERNEL__

#include "vmloop.h"

extern const struct vmloop_path toy_records;
extern const struct vmloop_path toy_bytes;

/* file.c: lanes that programs have opened; core mutex held but for the event */
int toy_file_open(struct vmloop_lane *lane);
void toy_file_up(struct vmloop_lane *lane);
void toy_file_down(struct vmloop_lane *lane);
void toy_file_close(struct vmloop_lane *lane);
void toy_file_ended(struct vmloop_lane *lane, u32 reason);
void toy_file_event(struct vmloop_lane *lane);
int toy_file_move(struct vmloop_lane *lane, void *data, u32 size, u64 offset);
int toy_file_init(void);
void toy_file_exit(void);

/* echo.c: lanes that peers have opened; the same */
int toy_echo_open(struct vmloop_lane *lane);
void toy_echo_up(struct vmloop_lane *lane);
void toy_echo_down(struct vmloop_lane *lane);
void toy_echo_close(struct vmloop_lane *lane);
void toy_echo_event(struct vmloop_lane *lane);
int toy_echo_init(void);
void toy_echo_exit(void);

#endif

#endif /* VMLOOP_TOY_H */
