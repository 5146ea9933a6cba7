// SPDX-License-Identifier: GPL-2.0
/*
 * main.c - transport over Xen's grants and event channels, for guests that
 * are PV, PVH or HVM: starts the rest in order, and ends it in the other.
 *
 * Owns the queue and the counters. There is no device to bind to: where the
 * module is loaded, it talks to the agent in dom0 through XenStore, and waits
 * for it if there is none.
 *
 * vmloop_xen_start() and vmloop_xen_stop() are each other's opposite and may
 * follow each other any number of times: between them nothing of a peer is
 * mapped, which is what a guest needs before it is saved or migrated.
 *
 * Context: process context, one at a time.
 */
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/notifier.h>
#include <linux/sizes.h>

#include <xen/xen.h>
#include <xen/xenbus.h>

#include "xen.h"

/* Larger ones would need more grants than can be asked for at once. */
#define RING_MOST	SZ_64M

static unsigned int max_ring = SZ_16M;
module_param(max_ring, uint, 0644);
MODULE_PARM_DESC(max_ring, "largest ring in bytes that is made or accepted");

/* Counters --------------------------------------------------------------- */

atomic_t vmloop_xen_granted = ATOMIC_INIT(0);
atomic_t vmloop_xen_quarantined = ATOMIC_INIT(0);
atomic_t vmloop_xen_mapped = ATOMIC_INIT(0);
atomic_t vmloop_xen_channels = ATOMIC_INIT(0);
atomic_t vmloop_xen_ignored = ATOMIC_INIT(0);
atomic_t vmloop_xen_pause = ATOMIC_INIT(0);

static int counter_set(const char *value, const struct kernel_param *param)
{
	return -EPERM;
}

static int counter_get(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%d\n", atomic_read(param->arg));
}

static const struct kernel_param_ops counter = {
	.set = counter_set,
	.get = counter_get,
};

module_param_cb(granted, &counter, &vmloop_xen_granted, 0444);
MODULE_PARM_DESC(granted, "read-only: pages granted to peers, with those in quarantine");
module_param_cb(quarantined, &counter, &vmloop_xen_quarantined, 0444);
MODULE_PARM_DESC(quarantined, "read-only: pages that peers still map though their channel or window is closed");
module_param_cb(mapped, &counter, &vmloop_xen_mapped, 0444);
MODULE_PARM_DESC(mapped, "read-only: pages of peers that are mapped");
module_param_cb(channels, &counter, &vmloop_xen_channels, 0444);
MODULE_PARM_DESC(channels, "read-only: channels that dom0 has told us about");
module_param_cb(ignored, &counter, &vmloop_xen_ignored, 0444);
MODULE_PARM_DESC(ignored, "read-only: values in XenStore that made no sense");
module_param_cb(pause, &counter, &vmloop_xen_pause, 0444);
MODULE_PARM_DESC(pause, "read-only: microseconds that the last suspension waited for channels to end");

/**
 * vmloop_xen_ring_max() - the largest ring that is made or accepted
 *
 * Context: any.
 * Return: bytes, a power of two.
 */
u32 vmloop_xen_ring_max(void)
{
	u32 most = clamp_t(u32, READ_ONCE(max_ring), VMLOOP_XEN_RING_MIN,
			   RING_MOST);

	return rounddown_pow_of_two(most);
}

/* Starting and stopping -------------------------------------------------- */

struct workqueue_struct *vmloop_xen_queue;

static const struct vmloop_transport_ops ops = {
	.request = vmloop_xen_request,
	.report = vmloop_xen_report,
	.advertise = vmloop_xen_advertise,
};

struct vmloop_transport vmloop_xen_transport = {
	.name = "xen",
	.owner = THIS_MODULE,
	.ops = &ops,
};

/**
 * vmloop_xen_start() - begin to talk to dom0
 *
 * What was stopped can be started again.
 *
 * Context: process context, nothing else is queued.
 * Return: 0 or a negative errno.
 */
int vmloop_xen_start(void)
{
	int err;

	vmloop_xen_channels_begin();
	err = vmloop_xen_store_start();
	if (err)
		pr_err_ratelimited("vmloop_xen: cannot write data/vmloop in XenStore: error %d\n",
				   -err);
	return err;
}

/**
 * vmloop_xen_stop() - close all channels, return all that they took, and fall
 * silent
 * @hasty: the guest stands still meanwhile: wait less for peers that hang
 *
 * Context: process context, not the queue; waits for no watch, and for no
 * answer of the agent's; takes the core mutex.
 */
void vmloop_xen_stop(bool hasty)
{
	vmloop_xen_store_deaf();
	vmloop_xen_say_end();
	vmloop_xen_channels_end(hasty);
	vmloop_xen_store_stop();
}

static bool store_is_ready;

static int store_ready(struct notifier_block *block, unsigned long event,
		       void *data)
{
	store_is_ready = true;
	return NOTIFY_DONE;
}

static struct notifier_block store_notifier = {
	.notifier_call = store_ready,
};

/* Whether XenStore can be talked to: without it, every call would wait. */
static bool has_store(void)
{
	/* Calls back at once if it is; else it would, one day. */
	register_xenstore_notifier(&store_notifier);
	if (!store_is_ready)
		unregister_xenstore_notifier(&store_notifier);
	return store_is_ready;
}

static int __init vmloop_xen_init(void)
{
	int err;

	if (!xen_domain() || xen_initial_domain() || !has_store()) {
		pr_info("vmloop_xen: this is no guest of Xen with a XenStore\n");
		return -ENODEV;
	}
	/* A peer that is to be saved stands still until we have let go. */
	vmloop_xen_queue = alloc_ordered_workqueue("vmloop_xen", WQ_HIGHPRI);
	if (!vmloop_xen_queue)
		return -ENOMEM;
	err = vmloop_transport_register(&vmloop_xen_transport);
	if (err)
		goto err_register;
	err = vmloop_xen_suspend_init();
	if (err)
		goto err_start;
	return 0;

err_start:
	vmloop_transport_unregister(&vmloop_xen_transport);
err_register:
	destroy_workqueue(vmloop_xen_queue);
	return err;
}

static void __exit vmloop_xen_exit(void)
{
	vmloop_xen_suspend_exit();
	vmloop_transport_unregister(&vmloop_xen_transport);
	vmloop_xen_grant_exit();
	destroy_workqueue(vmloop_xen_queue);
}

module_init(vmloop_xen_init);
module_exit(vmloop_xen_exit);

MODULE_DESCRIPTION("Shared-memory networking between virtual machines: Xen transport");
MODULE_AUTHOR("The vmloop developers");
MODULE_VERSION(VMLOOP_VERSION);
MODULE_SOFTDEP("post: vmloop_net");
MODULE_LICENSE("GPL");
