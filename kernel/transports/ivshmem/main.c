// SPDX-License-Identifier: GPL-2.0
/*
 * main.c - transport over QEMU's ivshmem-doorbell devices: the PCI driver.
 *
 * Owns the devices. Every device is either our control device or a channel's;
 * its id, which the hypervisor gives, tells which. Devices that do not begin
 * with our magic are somebody else's.
 *
 * Context: probe and remove run in process context under the device's lock.
 * The interrupt is asked for before, and freed before, the core sees the
 * memory come and go.
 */
#include <linux/interrupt.h>
#include <linux/pm.h>
#include <linux/workqueue.h>

#include "ivshmem.h"

#define IVSHMEM_REVISION	1

struct vmloop_transport ivshmem_transport = {
	.name = "ivshmem",
	.owner = THIS_MODULE,
	.ops = &ivshmem_transport_ops,
};

static irqreturn_t interrupt(int irq, void *data)
{
	struct ivshmem_device *device = data;

	device->event(device);
	return IRQ_HANDLED;
}

static bool is_control(const struct ivshmem_device *device)
{
	return device->id < IVSHMEM_ID_CHANNEL;
}

/* Map both BARs, and see whether the device is one of ours. */
static int map(struct ivshmem_device *device)
{
	struct pci_dev *pdev = device->pdev;
	struct vmloop_shm_header *header;
	int err;

	/* A root port without a large enough window leaves BAR2 unset. */
	if (!pci_resource_start(pdev, 2) ||
	    pci_resource_len(pdev, 2) < VMLOOP_SHM_PAGE) {
		pci_err(pdev, "BAR2 has no memory: give the root port pref64-reserve=64M\n");
		return -ENOSPC;
	}
	err = pcim_enable_device(pdev);
	if (err)
		return err;
	err = pcim_iomap_regions(pdev, BIT(0), "vmloop");
	if (err)
		return err;
	device->registers = pcim_iomap_table(pdev)[0];
	device->id = readl(device->registers + IVSHMEM_IV_POSITION);

	device->size = pci_resource_len(pdev, 2);
	device->base = devm_memremap(&pdev->dev, pci_resource_start(pdev, 2),
				     device->size, MEMREMAP_WB);
	if (IS_ERR(device->base))
		return PTR_ERR(device->base);

	header = device->base;
	if (READ_ONCE(header->magic) != VMLOOP_SHM_MAGIC)
		return -ENODEV;
	return 0;
}

static int probe_now(struct pci_dev *pdev)
{
	struct ivshmem_device *device;
	int err;

	if (pdev->revision != IVSHMEM_REVISION)
		return -ENODEV;

	device = devm_kzalloc(&pdev->dev, sizeof(*device), GFP_KERNEL);
	if (!device)
		return -ENOMEM;
	device->pdev = pdev;
	pci_set_drvdata(pdev, device);

	err = map(device);
	if (err)
		return err;
	err = is_control(device) ? ivshmem_control_add(device) :
				   ivshmem_channel_add(device);
	if (err)
		return err;

	pci_set_master(pdev);	/* without it no MSI-X */
	err = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSIX);
	if (err < 0)
		goto err_vectors;
	err = request_irq(pci_irq_vector(pdev, 0), interrupt, 0,
			  pci_name(pdev), device);
	if (err)
		goto err_irq;

	if (is_control(device)) {
		ivshmem_control_start(device);
		return 0;
	}
	err = ivshmem_channel_start(device);
	if (err)
		goto err_start;
	return 0;

err_start:
	free_irq(pci_irq_vector(pdev, 0), device);
err_irq:
	pci_free_irq_vectors(pdev);
err_vectors:
	if (is_control(device))
		ivshmem_control_cancel(device);
	kfree(device->priv);
	return err;
}

/**
 * struct probing - a device that is being probed
 * @work: on the stack of who waits for it
 * @pdev: the device
 * @err: what came of it
 */
struct probing {
	struct work_struct work;
	struct pci_dev *pdev;
	int err;
};

static void probe_work(struct work_struct *work)
{
	struct probing *probing = container_of(work, struct probing, work);

	probing->err = probe_now(probing->pdev);
}

/*
 * A device is plugged when a guest has just arrived and traffic waits for it.
 * Who finds it there has the priority of everybody, and much of the work is
 * ACPI's: on a CPU that is full it is done several times as soon this way.
 */
static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct probing probing = { .pdev = pdev };

	INIT_WORK_ONSTACK(&probing.work, probe_work);
	queue_work(system_highpri_wq, &probing.work);
	flush_work(&probing.work);
	destroy_work_on_stack(&probing.work);
	return probing.err;
}

static void remove(struct pci_dev *pdev)
{
	struct ivshmem_device *device = pci_get_drvdata(pdev);

	free_irq(pci_irq_vector(pdev, 0), device);
	if (is_control(device))
		ivshmem_control_remove(device);
	else
		ivshmem_channel_remove(device);
	pci_free_irq_vectors(pdev);
	kfree(device->priv);
}

static int suspend(struct device *dev)
{
	/* The peer holds us for stalled, and sends another way. */
	return 0;
}

static int resume(struct device *dev)
{
	struct ivshmem_device *device = dev_get_drvdata(dev);

	/* What rang meanwhile is lost with the interrupts' state: look. */
	local_bh_disable();
	device->event(device);
	local_bh_enable();
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(pm_ops, suspend, resume);

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(IVSHMEM_VENDOR, IVSHMEM_DEVICE) },
	{ }
};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver driver = {
	.name = "vmloop_ivshmem",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
	/* A module that is loaded must not wait for an idle boot. */
	.driver.probe_type = PROBE_FORCE_SYNCHRONOUS,
	.driver.pm = pm_sleep_ptr(&pm_ops),
};

static int __init ivshmem_init(void)
{
	int err;

	err = vmloop_transport_register(&ivshmem_transport);
	if (err)
		return err;
	err = pci_register_driver(&driver);
	if (err)
		vmloop_transport_unregister(&ivshmem_transport);
	return err;
}

static void __exit ivshmem_exit(void)
{
	ivshmem_spare_end();
	pci_unregister_driver(&driver);
	vmloop_transport_unregister(&ivshmem_transport);
	ivshmem_control_end();
	ivshmem_look_end();
}

module_init(ivshmem_init);
module_exit(ivshmem_exit);

MODULE_DESCRIPTION("Shared-memory networking between virtual machines: ivshmem transport");
MODULE_AUTHOR("The vmloop developers");
MODULE_VERSION(VMLOOP_VERSION);
MODULE_SOFTDEP("post: vmloop_net");
MODULE_LICENSE("GPL");
