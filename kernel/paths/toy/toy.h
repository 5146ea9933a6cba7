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

/* Have a window: its size, in bytes; set to its number. Waits until the peer has it, too. */
#define VMLOOP_TOY_WINDOW	_IOWR('v', 4, __u64)

/* Put bytes into the file's window. */
#define VMLOOP_TOY_FILL		_IOW('v', 5, struct vmloop_toy_fill)

/* What write() sends from now on: VMLOOP_TOY_*, of a lane of records. */
#define VMLOOP_TOY_TYPE		_IOW('v', 6, __u32)

/*
 * Types of records. A reference is a struct vmloop_shm_reference, and what it refers to comes
 * back as data; or an errno, a negative number of 32 bits, if it cannot be followed.
 */
#define VMLOOP_TOY_DATA		1
#define VMLOOP_TOY_REFERENCE	2
#define VMLOOP_TOY_ERROR	3

/**
 * struct vmloop_toy_fill - bytes for a window
 * @from: address of the first, in the program
 * @offset: where they go, from the window's start
 * @size: how many
 */
struct vmloop_toy_fill {
	__u64 from;
	__u64 offset;
	__u64 size;
};

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
bool toy_echo_serves(void);
int toy_echo_open(struct vmloop_lane *lane);
void toy_echo_up(struct vmloop_lane *lane);
void toy_echo_down(struct vmloop_lane *lane);
void toy_echo_close(struct vmloop_lane *lane);
void toy_echo_ended(struct vmloop_lane *lane);
void toy_echo_event(struct vmloop_lane *lane);
void toy_echo_let_go(void);
int toy_echo_init(void);
void toy_echo_exit(void);

/* account.c: what both sides of ended lanes have read; core mutex held */
void toy_account_begin(struct vmloop_lane *lane);
u32 toy_account_end(struct vmloop_lane *lane);

/* window.c: windows of programs and of peers; core mutex held */
u32 toy_window_wanted(struct vmloop_peer *peer, u64 size, const u8 *said);
void toy_window_up(struct vmloop_window *window);
void toy_window_down(struct vmloop_window *window);
void toy_window_close(struct vmloop_window *window);
void toy_window_ended(struct vmloop_window *window, u32 reason);

/* window.c: what files do; process context, no lock of the core's held */
struct toy_window;
struct toy_window *toy_window_open(u64 peer, u64 size, u32 *number);
int toy_window_fill(struct toy_window *toy, const char __user *from, u64 offset, u64 size);
void toy_window_end(struct toy_window *toy);

#endif

#endif /* VMLOOP_TOY_H */
