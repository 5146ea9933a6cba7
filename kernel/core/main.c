// SPDX-License-Identifier: GPL-2.0
/*
 * main.c - starts the core in order, and ends it in the other.
 */
#include "core.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

DEFINE_MUTEX(vmloop_mutex);	/* protects all that changes state */
struct workqueue_struct *vmloop_workqueue;

static int __init vmloop_init(void)
{
	int err;

	vmloop_workqueue = alloc_workqueue("vmloop",
					   WQ_UNBOUND | WQ_HIGHPRI, 0);
	if (!vmloop_workqueue)
		return -ENOMEM;

	vmloop_path_init();
	err = vmloop_watchers_init();
	if (err)
		goto err_watchers;
	err = vmloop_address_init();
	if (err)
		goto err_address;
	err = vmloop_netlink_init();
	if (err)
		goto err_netlink;
	return 0;

err_netlink:
	vmloop_address_exit();
err_address:
	vmloop_watchers_exit();
err_watchers:
	vmloop_path_exit();
	destroy_workqueue(vmloop_workqueue);
	return err;
}

static void __exit vmloop_exit(void)
{
	/* Transports and paths use our symbols: all of them are gone. */
	vmloop_netlink_exit();
	vmloop_address_exit();
	vmloop_watchers_exit();
	vmloop_path_exit();
	destroy_workqueue(vmloop_workqueue);
	rcu_barrier();	/* peers that are still to be freed */
}

module_init(vmloop_init);
module_exit(vmloop_exit);

MODULE_DESCRIPTION("Shared-memory networking between virtual machines: core");
MODULE_AUTHOR("The vmloop developers");
MODULE_VERSION(VMLOOP_VERSION);
MODULE_LICENSE("GPL");
