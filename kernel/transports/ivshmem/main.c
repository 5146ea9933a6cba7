// SPDX-License-Identifier: GPL-2.0
/*
 * main.c - transport over QEMU's ivshmem-doorbell devices: the PCI driver.
 *
 * Owns the devices. A device with doorbells is either our control device or a channel's;
 * its id, which the hypervisor gives, tells which. Devices that do not begin
 * with our magic are somebody else's. A device without doorbells is a window of a channel,
 * if the agent says so: window.c.
 *
 * Context: probe and remove run in process context under the device's lock.
 * Interrupts are asked for before, and freed before, the core sees the memory come
 * and go.
 */
#include <linux/interrupt.h>
#include <linux/pm.h>
#include <linux/workqueue.h>

#include "ivshmem.h"

#define IVSHMEM_REVISION	1

static unsigned int bells = VMLOOP_BELLS;
module_param(bells, uint, 0644);
MODULE_PARM_DESC(bells, "interrupts of a new channel, at most (1 to 9): one for all lanes, and one for each packet lane; never more than the host gives, or than one more than there are CPUs");

struct vmloop_transport ivshmem_transport = {
	.name = "ivshmem",
	.owner = THIS_MODULE,
	.ops = &ivshmem_transport_ops,
};

static irqreturn_t interrupt(int irq, void *data)
{
	struct ivshmem_bell *bell = data;

	bell->device->event(bell->device, bell->number);
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

static void bells_free(struct ivshmem_device *device)
{
	struct pci_dev *pdev = device->pdev;
	unsigned int i;
	int irq;

	for (i = 0; i < device->bells; i++) {
		irq = pci_irq_vector(pdev, i);
		if (i)
			irq_update_affinity_hint(irq, NULL);
		free_irq(irq, &device->bell[i]);
	}
	device->bells = 0;
	pci_free_irq_vectors(pdev);
}

/* Where the CPU is not there, the interrupt stays where the kernel has put it. */
static void bell_place(struct ivshmem_bell *bell)
{
	int irq = pci_irq_vector(bell->device->pdev, bell->number);

	if (bell->cpu < nr_cpu_ids)
		irq_set_affinity_and_hint(irq, cpumask_of(bell->cpu));
}

static int bell_request(struct ivshmem_device *device, unsigned int number,
			unsigned int turn)
{
	struct ivshmem_bell *bell = &device->bell[number];
	struct pci_dev *pdev = device->pdev;
	int irq = pci_irq_vector(pdev, number);
	const char *name = pci_name(pdev);
	int err;

	bell->device = device;
	bell->number = number;
	if (number)
		name = devm_kasprintf(&pdev->dev, GFP_KERNEL, "%s-lane%u", name,
				      number - 1);
	if (!name)
		return -ENOMEM;
	err = request_irq(irq, interrupt, 0, name, bell);
	if (err)
		return err;
	if (number) {
		bell->cpu = vmloop_bell_cpu(turn + number);
		bell_place(bell);
	}
	return 0;
}

/* As many as there are CPUs that can hear one, or as there are vectors left for; 1 at least. */
static int bells_request(struct ivshmem_device *device)
{
	unsigned int turn = vmloop_bell_turn();
	struct pci_dev *pdev = device->pdev;
	int err, count;

	count = pci_msix_vec_count(pdev);
	if (count < 0)
		return count;
	device->vectors = count;
	count = 1;
	if (!is_control(device))
		count = clamp(READ_ONCE(bells), 1U,
			      min_t(u32, 1 + num_online_cpus(), VMLOOP_BELLS));
	count = pci_alloc_irq_vectors(pdev, 1, count, PCI_IRQ_MSIX);
	if (count < 0)
		return count;
	while (device->bells < count) {
		err = bell_request(device, device->bells, turn);
		if (err)
			break;
		device->bells++;
	}
	if (device->bells)
		return 0;
	pci_free_irq_vectors(pdev);
	return err;
}

static bool has_doorbells(struct pci_dev *pdev)
{
	return pci_msix_vec_count(pdev) > 0;
}

static int probe_now(struct pci_dev *pdev)
{
	struct ivshmem_device *device;
	int err;

	if (pdev->revision != IVSHMEM_REVISION)
		return -ENODEV;
	if (!has_doorbells(pdev))
		return ivshmem_window_add(pdev);

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
	err = bells_request(device);
	if (err)
		goto err_bells;

	if (is_control(device)) {
		ivshmem_control_start(device);
		return 0;
	}
	err = ivshmem_channel_start(device);
	if (err)
		goto err_start;
	return 0;

err_start:
	bells_free(device);
err_bells:
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

	if (!device) {
		ivshmem_window_remove(pdev);
		return;
	}
	bells_free(device);
	if (is_control(device))
		ivshmem_control_remove(device);
	else
		ivshmem_channel_remove(device);
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
	unsigned int i;

	if (!device)
		return 0;	/* a window has nothing to hear */
	/* CPUs that went take no interrupts back when they return. */
	for (i = 1; i < device->bells; i++)
		bell_place(&device->bell[i]);
	/* What rang meanwhile is lost with the interrupts' state: look. */
	local_bh_disable();
	for (i = 0; i < device->bells; i++)
		device->event(device, i);
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
	ivshmem_window_end();
	pci_unregister_driver(&driver);
	ivshmem_window_free();
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
