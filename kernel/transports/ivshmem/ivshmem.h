/* SPDX-License-Identifier: GPL-2.0 */
/*
 * ivshmem.h - what the files of the ivshmem transport share.
 * docs/protocol.md, section 7.
 */
#ifndef VMLOOP_IVSHMEM_H
#define VMLOOP_IVSHMEM_H

#include <linux/io.h>
#include <linux/pci.h>

#include "vmloop.h"

#define IVSHMEM_VENDOR		PCI_VENDOR_ID_REDHAT_QUMRANET
#define IVSHMEM_DEVICE		0x1110

/* Registers in BAR0: QEMU, docs/specs/ivshmem-spec. */
#define IVSHMEM_IV_POSITION	8
#define IVSHMEM_DOORBELL	12

#define IVSHMEM_ID_AGENT	0
#define IVSHMEM_ID_GUEST	1	/* our id on a control device */
#define IVSHMEM_ID_CHANNEL	2	/* the first id of channel devices */

struct ivshmem_device;

/**
 * struct ivshmem_bell - one doorbell of ours that has an interrupt
 * @device: whose
 * @number: which one
 * @cpu: but of the first: which CPU is to hear it
 */
struct ivshmem_bell {
	struct ivshmem_device *device;
	unsigned int number;
	unsigned int cpu;
};

/**
 * struct ivshmem_device - one ivshmem-doorbell device of ours
 * @pdev: the PCI device
 * @registers: BAR0
 * @base: BAR2, the region
 * @size: bytes of @base
 * @id: IVPosition: our id, given by the agent through the hypervisor
 * @vectors: doorbells that each of the two devices has
 * @bells: how many of ours have an interrupt; the first of them, and 1 at least
 * @bell: those
 * @event: what a doorbell does; hard interrupt
 * @priv: the control's or the channel's own
 */
struct ivshmem_device {
	struct pci_dev *pdev;
	void __iomem *registers;
	void *base;
	size_t size;
	u32 id;
	unsigned int vectors;
	unsigned int bells;
	struct ivshmem_bell bell[VMLOOP_BELLS];
	void (*event)(struct ivshmem_device *device, unsigned int bell);
	void *priv;
};

/* Ring a doorbell of the other party's, below device->vectors. Context: any. */
static inline void ivshmem_ring(struct ivshmem_device *device, u32 bell)
{
	writel((device->id ^ 1) << 16 | bell,
	       device->registers + IVSHMEM_DOORBELL);
}

/* main.c */
extern struct vmloop_transport ivshmem_transport;

/* control.c; process context, like probe and remove */
extern const struct vmloop_transport_ops ivshmem_transport_ops;
int ivshmem_control_add(struct ivshmem_device *device);
void ivshmem_control_cancel(struct ivshmem_device *device);
void ivshmem_control_start(struct ivshmem_device *device);
void ivshmem_control_remove(struct ivshmem_device *device);
void ivshmem_control_end(void);
int ivshmem_control_want(const struct vmloop_msg_window *window);
int ivshmem_control_say(const struct vmloop_msg_window *window);

/* channel.c; process context, like probe and remove */
int ivshmem_channel_add(struct ivshmem_device *device);
int ivshmem_channel_start(struct ivshmem_device *device);
void ivshmem_channel_remove(struct ivshmem_device *device);

/* window.c; process context */
extern const struct vmloop_window_ops ivshmem_windows;
int ivshmem_window_add(struct pci_dev *pdev);
void ivshmem_window_remove(struct pci_dev *pdev);
void ivshmem_window_at(const struct vmloop_msg_window_at *message);
void ivshmem_window_forget(u32 tag);
void ivshmem_window_agent_gone(void);
void ivshmem_window_end(void);
void ivshmem_window_free(void);

/* spare.c; process context */
void ivshmem_spare_keep(struct pci_dev *pdev);
void ivshmem_spare_try(void);
void ivshmem_spare_end(void);

/* look.c */
void ivshmem_look(unsigned int seconds);
void ivshmem_look_only(unsigned int seconds);
void ivshmem_look_end(void);

#endif /* VMLOOP_IVSHMEM_H */
