// SPDX-License-Identifier: GPL-2.0
/*
 * main.c - the stream path: connections of TCP to peers by lanes of their own.
 *
 * Owns the module, its parameters and counters. Who loads it wants it: packet tools
 * see a connection's beginning and end, and not what it carries (docs/stream.md).
 */
#include <linux/mm.h>
#include <linux/module.h>

#include "stream.h"

/* Part of the memory, and bytes at least, that may be kept for peers that do not answer. */
#define UNSENT_PART	64
#define UNSENT_LEAST	(16UL << 20)

struct workqueue_struct *stream_workqueue, *stream_slow_workqueue;

unsigned int stream_after_bytes = 5 << 19;
module_param_named(after_bytes, stream_after_bytes, uint, 0644);
MODULE_PARM_DESC(after_bytes, "bytes that go by TCP before a connection gets a lane, and 2,048 for each call");

unsigned int stream_after_most = 20 << 20;
module_param_named(after_most, stream_after_most, uint, 0644);
MODULE_PARM_DESC(after_most, "bytes that go by TCP first at most, where connections before it ended soon after they had got a lane (0: always after_bytes)");

unsigned int stream_after_turns = 64;
module_param_named(after_turns, stream_after_turns, uint, 0644);
MODULE_PARM_DESC(after_turns, "turns from sending to receiving, or back, by TCP before it gets one");

unsigned int stream_ring_size = 256 << 10;
module_param_named(ring_size, stream_ring_size, uint, 0444);
MODULE_PARM_DESC(ring_size, "bytes of a connection's ring at most, a power of two from 4096 to 4194304");

unsigned int stream_first_ring = 64 << 10;
module_param_named(first_ring, stream_first_ring, uint, 0444);
MODULE_PARM_DESC(first_ring, "bytes of a connection's ring at first, a power of two from 4096 up");

int stream_spin_us = -1;
module_param_named(spin_us, stream_spin_us, int, 0644);
MODULE_PARM_DESC(spin_us, "microseconds that a task looks at a ring before it sleeps, at most, up to 1000 (0: never, -1: by what a doorbell costs)");

static int set_keep_alive(const char *value, const struct kernel_param *parameter)
{
	return param_set_uint_minmax(value, parameter, 0, 86400);
}

static const struct kernel_param_ops keep_alive_ops = {
	.set = set_keep_alive,
	.get = param_get_uint,
};

unsigned int stream_keep_alive = 60;
module_param_cb(keep_alive, &keep_alive_ops, &stream_keep_alive, 0644);
MODULE_PARM_DESC(keep_alive, "seconds after which TCP acknowledges once more while a lane carries a connection, so that firewalls see that it lives, up to 86400 (0: never)");

unsigned long stream_unsent_max;
module_param_named(unsent_max, stream_unsent_max, ulong, 0644);
MODULE_PARM_DESC(unsent_max, "bytes that all connections together keep of what their peers have not answered for since a lane ended; what is beyond is reset (default: a 64th of the memory, 16 MiB at least; one peer has three quarters of what the others leave); what programs send while nothing carries a connection may take half as much beside");

static int set_owner_share(const char *value, const struct kernel_param *parameter)
{
	return param_set_uint_minmax(value, parameter, 1, 100);
}

static const struct kernel_param_ops owner_share_ops = {
	.set = set_owner_share,
	.get = param_get_uint,
};

/* Most guests have one user who needs it, and others for whom a lane or two must be left. */
unsigned int stream_owner_share = 75;
module_param_cb(owner_share, &owner_share_ops, &stream_owner_share, 0644);
MODULE_PARM_DESC(owner_share, "percent of a channel's memory for lanes, of what others leave of it, that one user's connections may have, and one cgroup's, from 1 to 100 (100: all)");

/* An administrator by ssh must not lose the guest to an experiment. */
unsigned int stream_left_out[STREAM_LEFT_OUT_MAX] = { 22 };
unsigned int stream_left_out_count = 1;
module_param_array_named(left_out, stream_left_out, uint, &stream_left_out_count,
			 0444);
MODULE_PARM_DESC(left_out, "ports, of either end, whose connections stay on TCP: the rules to begin with (65535 at most; 0: none)");

atomic64_t stream_counters[STREAM_COUNTERS];

static int get_counter(char *to, const struct kernel_param *parameter)
{
	atomic64_t *counter = parameter->arg;

	return scnprintf(to, PAGE_SIZE, "%lld\n", atomic64_read(counter));
}

static const struct kernel_param_ops counter_ops = { .get = get_counter };

module_param_cb(taken, &counter_ops, &stream_counters[STREAM_TAKEN], 0444);
MODULE_PARM_DESC(taken, "sockets that were taken over");

module_param_cb(paired, &counter_ops, &stream_counters[STREAM_PAIRED], 0444);
MODULE_PARM_DESC(paired, "lanes that came up for a connection, one after the other counted each");

module_param_cb(back, &counter_ops, &stream_counters[STREAM_BACK], 0444);
MODULE_PARM_DESC(back, "of those, the ones that ended while TCP went on");

module_param_cb(reset, &counter_ops, &stream_counters[STREAM_RESET], 0444);
MODULE_PARM_DESC(reset, "connections that the module reset; the kernel's log says why");

module_param_cb(tx_bytes, &counter_ops, &stream_counters[STREAM_TX_BYTES], 0444);
MODULE_PARM_DESC(tx_bytes, "bytes that were sent by lanes");

module_param_cb(rx_bytes, &counter_ops, &stream_counters[STREAM_RX_BYTES], 0444);
MODULE_PARM_DESC(rx_bytes, "bytes that were received by lanes");

/* Whether there are tables: parameters are set before that, and after. */
static DEFINE_MUTEX(ready_mutex);
static bool ready;

static void set_ready(bool is_ready)
{
	mutex_lock(&ready_mutex);
	ready = is_ready;
	mutex_unlock(&ready_mutex);
}

static int set_back(const char *value, const struct kernel_param *parameter)
{
	bool carried = sysfs_streq(value, "carried");

	mutex_lock(&ready_mutex);
	if (ready)
		stream_each(carried ? stream_go_back_if_carried : stream_go_back);
	mutex_unlock(&ready_mutex);
	return 0;
}

static const struct kernel_param_ops back_ops = { .set = set_back };

module_param_cb(go_back, &back_ops, NULL, 0200);
MODULE_PARM_DESC(go_back, "write anything: all connections go back to TCP, and leave it again when it is worth it; write carried: only those whose lane carries both ways already, as this end sees it");

static void look_idle(struct work_struct *work);

static DECLARE_DELAYED_WORK(idle, look_idle);

static void look_idle(struct work_struct *work)
{
	stream_heed_directory();
	stream_each(stream_look_idle);
	queue_delayed_work(stream_workqueue, &idle, STREAM_IDLE_LOOK);
}

static bool __init may_be_ring(unsigned int size)
{
	return is_power_of_2(size) && size >= VMLOOP_RING_MIN && size <= STREAM_RING_MOST;
}

static int __init stream_init(void)
{
	int err;

	if (!may_be_ring(stream_ring_size) || !may_be_ring(stream_first_ring)) {
		pr_err("vmloop_tcp: ring_size and first_ring must be powers of two, from 4096 to 4194304\n");
		return -EINVAL;
	}
	if (!stream_unsent_max)
		stream_unsent_max = max((totalram_pages() << PAGE_SHIFT) /
						UNSENT_PART, UNSENT_LEAST);
	stream_workqueue = alloc_workqueue("vmloop_tcp", WQ_UNBOUND, 0);
	if (!stream_workqueue)
		return -ENOMEM;
	err = -ENOMEM;
	stream_slow_workqueue = alloc_workqueue("vmloop_tcp_slow", WQ_UNBOUND, 0);
	if (!stream_slow_workqueue)
		goto err_slow;
	err = stream_rules_init();
	if (err)
		goto err_rules;
	err = stream_table_init();
	if (err)
		goto err_table;
	err = vmloop_path_register(&stream_path);
	if (err)
		goto err_path;
	err = stream_take_init();
	if (err)
		goto err_take;
	/* The last that can fail: from here on somebody may be told. */
	err = stream_list_init();
	if (err)
		goto err_list;
	queue_delayed_work(stream_workqueue, &idle, STREAM_IDLE_LOOK);
	set_ready(true);
	return 0;

err_list:
	stream_take_exit();
	goto err_path;
err_take:
	vmloop_path_unregister(&stream_path);
err_path:
	stream_table_exit();
err_table:
	stream_rules_exit();
err_rules:
	destroy_workqueue(stream_slow_workqueue);
err_slow:
	destroy_workqueue(stream_workqueue);
	return err;
}

static void __exit stream_exit(void)
{
	set_ready(false);
	stream_list_exit();
	cancel_delayed_work_sync(&idle);
	stream_take_exit();
	stream_table_exit();
	stream_rules_exit();
	destroy_workqueue(stream_slow_workqueue);
	destroy_workqueue(stream_workqueue);
}

module_init(stream_init);
module_exit(stream_exit);

MODULE_DESCRIPTION("Shared-memory networking between virtual machines: TCP's byte stream");
MODULE_AUTHOR("The vmloop developers");
MODULE_VERSION(VMLOOP_VERSION);
MODULE_LICENSE("GPL");
