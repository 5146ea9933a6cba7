// SPDX-License-Identifier: GPL-2.0
/*
 * main.c - the toy path: which lane is whose. A lane that we opened belongs to a
 * file (file.c), one that the peer opened is an echo (echo.c); a file may have a window
 * (window.c).
 *
 * Owns the module. Callbacks run under the core mutex, but for the event.
 */
#include "toy.h"

static int lane_open(struct vmloop_lane *lane)
{
	return lane->opened ? toy_file_open(lane) : toy_echo_open(lane);
}

static void lane_up(struct vmloop_lane *lane)
{
	toy_account_begin(lane);
	if (lane->opened)
		toy_file_up(lane);
	else
		toy_echo_up(lane);
}

static void lane_down(struct vmloop_lane *lane)
{
	if (lane->opened)
		toy_file_down(lane);
	else
		toy_echo_down(lane);
}

static void lane_close(struct vmloop_lane *lane)
{
	if (lane->opened)
		toy_file_close(lane);
	else
		toy_echo_close(lane);
}

static void lane_ended(struct vmloop_lane *lane, u32 reason)
{
	if (lane->opened)
		toy_file_ended(lane, reason);
	else
		toy_echo_ended(lane);
}

static void lane_event(struct vmloop_lane *lane)
{
	if (lane->opened)
		toy_file_event(lane);
	else
		toy_echo_event(lane);
}

/* The ring for the answers is as large as the opener says that its own is. */
static u32 lane_wanted(struct vmloop_lane *lane, struct vmloop_lane_ask *ask)
{
	u32 size;

	if (!toy_echo_serves())
		return VMLOOP_REASON_PATH;
	memcpy(&size, lane->said, sizeof(size));
	/* Untrusted: the core refuses what it has no memory for. */
	ask->ring_size = size ?: VMLOOP_SHM_PAGE;
	return VMLOOP_REASON_NONE;
}

const struct vmloop_path toy_records = {
	.name = "toy records",
	.owner = THIS_MODULE,
	.kind = VMLOOP_LANE_TOY_RECORDS,
	.grain = VMLOOP_RING_RECORDS,
	.lane_wanted = lane_wanted,
	.lane_open = lane_open,
	.lane_up = lane_up,
	.lane_down = lane_down,
	.lane_close = lane_close,
	.lane_ended = lane_ended,
	.lane_event = lane_event,
	.lane_move = toy_file_move,
	.window_wanted = toy_window_wanted,
	.window_up = toy_window_up,
	.window_down = toy_window_down,
	.window_close = toy_window_close,
	.window_ended = toy_window_ended,
};

const struct vmloop_path toy_bytes = {
	.name = "toy bytes",
	.owner = THIS_MODULE,
	.kind = VMLOOP_LANE_TOY_BYTES,
	.grain = VMLOOP_RING_BYTES,
	.lane_wanted = lane_wanted,
	.lane_open = lane_open,
	.lane_up = lane_up,
	.lane_down = lane_down,
	.lane_close = lane_close,
	.lane_ended = lane_ended,
	.lane_event = lane_event,
	.lane_move = toy_file_move,
};

static int __init toy_init(void)
{
	int err;

	err = toy_echo_init();
	if (err)
		return err;
	err = vmloop_path_register(&toy_records);
	if (err)
		goto err_records;
	err = vmloop_path_register(&toy_bytes);
	if (err)
		goto err_bytes;
	err = toy_file_init();
	if (err)
		goto err_file;
	return 0;

err_file:
	vmloop_path_unregister(&toy_bytes);
err_bytes:
	vmloop_path_unregister(&toy_records);
err_records:
	toy_echo_exit();
	return err;
}

static void __exit toy_exit(void)
{
	/* No file is open: each holds the module. */
	toy_file_exit();
	vmloop_path_unregister(&toy_bytes);
	vmloop_path_unregister(&toy_records);
	toy_echo_exit();
}

module_init(toy_init);
module_exit(toy_exit);

MODULE_DESCRIPTION("Shared-memory networking between virtual machines: path of the tests");
MODULE_AUTHOR("The vmloop developers");
MODULE_VERSION(VMLOOP_VERSION);
MODULE_LICENSE("GPL");
