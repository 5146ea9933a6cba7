// SPDX-License-Identifier: GPL-2.0
/*
 * spare.c - the control device that came while another one was in use.
 *
 * Owns a reference to it: of several that were refused the last one, as the newest
 * agent plugged that. When the one in use goes, the driver core would leave the
 * other one alone for ever, since nothing happens to it. So it is probed again.
 *
 * Context: ivshmem_spare_keep() in probe and ivshmem_spare_try() in remove, under
 * a device's lock; the rest in one work, under the PCI core's lock for adding and
 * removing, inside which devices are probed. @spare_lock nests inside everything.
 */
#include <linux/workqueue.h>

#include "ivshmem.h"

static void spare_work(struct work_struct *work);
static DECLARE_WORK(trying, spare_work);

static DEFINE_SPINLOCK(spare_lock);
static struct pci_dev *spare;	/* with a reference; under @spare_lock */
static bool is_over;		/* under @spare_lock */

static void spare_work(struct work_struct *work)
{
	struct pci_dev *pdev;

	spin_lock_bh(&spare_lock);
	pdev = spare;
	spare = NULL;
	spin_unlock_bh(&spare_lock);
	if (!pdev)
		return;
	/* A device that is removed stays so: its removal takes this lock. */
	pci_lock_rescan_remove();
	if (device_is_registered(&pdev->dev) && device_attach(&pdev->dev) != 1)
		pci_err(pdev, "this control device cannot be used either\n");
	pci_unlock_rescan_remove();
	pci_dev_put(pdev);
}

/**
 * ivshmem_spare_keep() - remember a control device that was refused
 * @pdev: the device
 */
void ivshmem_spare_keep(struct pci_dev *pdev)
{
	struct pci_dev *old = NULL;

	spin_lock_bh(&spare_lock);
	if (!is_over) {
		old = spare;
		spare = pci_dev_get(pdev);
	}
	spin_unlock_bh(&spare_lock);
	pci_dev_put(old);
}

/**
 * ivshmem_spare_try() - no control device is in use: probe the one that was refused
 */
void ivshmem_spare_try(void)
{
	spin_lock_bh(&spare_lock);
	if (!is_over && spare)
		queue_work(system_highpri_wq, &trying);
	spin_unlock_bh(&spare_lock);
}

/**
 * ivshmem_spare_end() - probe nothing any more, as the driver goes
 *
 * Context: process context, without the PCI core's lock for adding and removing.
 */
void ivshmem_spare_end(void)
{
	struct pci_dev *old;

	spin_lock_bh(&spare_lock);
	is_over = true;
	old = spare;
	spare = NULL;
	spin_unlock_bh(&spare_lock);
	cancel_work_sync(&trying);
	pci_dev_put(old);
}
