// SPDX-License-Identifier: GPL-2.0
/*
 * suspend.c - a guest that is saved, migrated or checkpointed, or goes to
 * sleep by itself: before it stops, nothing of a peer is mapped any more and
 * no peer maps anything of ours; when it goes on, we begin anew.
 *
 * Owns a platform device, which stands for no hardware: the kernel's power
 * management calls its driver, also for what Xen's toolstack wants:
 *
 *	freeze	before a save, a migration or a checkpoint
 *	thaw	after a checkpoint, or if the rest failed: still the same domain
 *	restore	in another domain, on this host or another
 *
 * We go on early: our device is the last of all, and each before asks dom0 many
 * things first. XenStore is not there yet then, but whoever asks waits for that.
 * Channels are opened when all devices are back: until then hvc_xen, for one,
 * lets go of an event channel by the number that it had before, and that must
 * not be ours by now.
 *
 * Context: Xen's come from the kernel's xenwatch thread, while processes are
 * frozen. No watch is called until it returns, so nothing here waits for one.
 * Neither our queue nor the core's is frozen; XenStore and the network work
 * before, and peers answer through the region, without any agent. Going on
 * happens on our queue: nobody waits for it.
 */
#include <linux/ktime.h>
#include <linux/platform_device.h>
#include <linux/pm.h>

#include "xen.h"

/* What XenStore would not take is told again. */
#define BEGIN_AGAIN	HZ

/* Written by the power management, one call at a time, and by the queue. */
static bool running;		/* between vmloop_xen_start() and _stop() */
static bool moved;		/* whom we knew is somebody else now */

static void begin_work_fn(struct work_struct *work)
{
	struct delayed_work *again = to_delayed_work(work);

	/* Queued again while it ran. */
	if (running)
		return;
	if (moved)
		vmloop_xen_store_forget();
	moved = false;
	running = !vmloop_xen_start();
	if (!running)
		queue_delayed_work(vmloop_xen_queue, again, BEGIN_AGAIN);
}

static DECLARE_DELAYED_WORK(begin_work, begin_work_fn);

/*
 * Never fails: peers that do not let go in time keep their pages from us, but
 * not us from being saved.
 */
static int leave(struct device *dev)
{
	ktime_t begun = ktime_get();

	vmloop_xen_store_calm(false);
	cancel_delayed_work_sync(&begin_work);
	if (running)
		vmloop_xen_stop(true);
	running = false;
	atomic_set(&vmloop_xen_pause, ktime_us_delta(ktime_get(), begun));
	return 0;
}

static int stay(struct device *dev)
{
	if (!running)
		queue_delayed_work(vmloop_xen_queue, &begin_work, 0);
	return 0;
}

static int arrive(struct device *dev)
{
	moved = true;
	return stay(dev);
}

/* All devices are back, or have never gone. */
static void done(struct device *dev)
{
	vmloop_xen_store_calm(true);
}

static const struct dev_pm_ops pm_ops = {
	.suspend = leave,
	.resume_early = stay,
	.freeze = leave,
	.thaw_early = stay,
	.poweroff = leave,
	.restore_early = arrive,
	/* Called alone where another device would not be suspended. */
	.resume = stay,
	.thaw = stay,
	.complete = done,
};

static struct platform_driver driver = {
	.driver = {
		.name = "vmloop_xen",
		.pm = pm_sleep_ptr(&pm_ops),
	},
};

static struct platform_device *device;

/* Nothing to set up: only a device that has a driver is called. */
static int __init probe(struct platform_device *pdev)
{
	return 0;
}

/**
 * vmloop_xen_suspend_init() - begin to talk to dom0, and do so after each
 * suspension
 *
 * Context: process context, nothing is queued.
 * Return: 0 or a negative errno.
 */
int __init vmloop_xen_suspend_init(void)
{
	int err;

	err = vmloop_xen_start();
	if (err)
		return err;
	running = true;
	/* Cannot be unbound through sysfs, as it is done this way. */
	device = platform_create_bundle(&driver, probe, NULL, 0, NULL, 0);
	if (!IS_ERR(device))
		return 0;
	err = PTR_ERR(device);
	pr_err("vmloop_xen: no device to be suspended by: error %d\n", -err);
	vmloop_xen_stop(false);
	return err;
}

/**
 * vmloop_xen_suspend_exit() - end all channels, and be called no more
 *
 * Context: process context; takes the core mutex.
 */
void vmloop_xen_suspend_exit(void)
{
	platform_device_unregister(device);
	platform_driver_unregister(&driver);
	cancel_delayed_work_sync(&begin_work);
	if (running)
		vmloop_xen_stop(false);
}
