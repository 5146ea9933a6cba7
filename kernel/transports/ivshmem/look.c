// SPDX-License-Identifier: GPL-2.0
/*
 * look.c - finds a device of ours that was plugged, before the kernel hears of
 * it.
 *
 * The firmware's hotplug event is handled by a worker of ordinary priority. In
 * a guest whose CPUs are full it takes seconds to get its turn, and that is
 * when a channel is wanted most. So who has reason to wait for a device looks
 * at the places where one can be plugged, some times a second and for a while.
 * The event, when it comes, finds the device there.
 *
 * Each look at an empty place is two exits to QEMU, under its one big lock, and
 * a guest that is on its way to another host looks all the time. So most looks
 * are at the first empty places only: there QEMU plugs what it is not told to
 * plug elsewhere.
 *
 * Owns the record of places that were seen empty. Only what came to such a place
 * is touched: another device that the kernel does not know was taken from it by
 * somebody, or is about to be taken out.
 *
 * Context: ivshmem_look() from anywhere; the rest in one work, under the PCI
 * core's lock for adding and removing, inside which devices are probed.
 * @look_lock nests inside everything.
 */
#include <linux/workqueue.h>

#include "ivshmem.h"

#define LOOK_INTERVAL	(HZ / 10)

/*
 * How many empty places of a bus are looked at in most looks: for two devices,
 * as one may come with the other. And how often a look is at all of them.
 */
#define FIRST_EMPTY	2
#define ALL_EVERY	8

/* In PCI domain 0, function 0 of each slot of each bus. QEMU has no other. */
#define SLOTS		32
#define PLACES		(256 * SLOTS)

static void look_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(looking, look_work);

static DEFINE_SPINLOCK(look_lock);
static bool is_looking;			/* under @look_lock */
static unsigned long look_until;	/* jiffies; under @look_lock */

/* Used by the work alone, and before it begins. */
static DECLARE_BITMAP(seen_empty, PLACES);
static unsigned int looks;	/* since it began */

/* Whether the kernel knows a device there. It costs no exit to ask. */
static bool is_known(struct pci_bus *bus, unsigned int slot)
{
	struct pci_dev *known = pci_get_slot(bus, PCI_DEVFN(slot, 0));

	pci_dev_put(known);
	return known;
}

/* Looks at a place without a known device; returns whether one was added. */
static bool look_at(struct pci_bus *bus, unsigned int slot, unsigned int place)
{
	const u32 ours = IVSHMEM_DEVICE << 16 | IVSHMEM_VENDOR;
	unsigned int devfn = PCI_DEVFN(slot, 0);
	bool was_empty;
	u32 id;

	was_empty = __test_and_clear_bit(place, seen_empty);
	if (pci_bus_read_config_dword(bus, devfn, PCI_VENDOR_ID, &id) ||
	    PCI_POSSIBLE_ERROR(id)) {
		__set_bit(place, seen_empty);
		return false;
	}
	return was_empty && id == ours && pci_scan_slot(bus, devfn) > 0;
}

/* A port of PCI Express has one slot. */
static unsigned int slots(const struct pci_bus *bus)
{
	if (!bus->self || !pci_is_pcie(bus->self))
		return SLOTS;
	switch (pci_pcie_type(bus->self)) {
	case PCI_EXP_TYPE_ROOT_PORT:
	case PCI_EXP_TYPE_DOWNSTREAM:
		return 1;
	default:
		return SLOTS;
	}
}

/* As deep as bridges are behind each other. */
static void look_on(struct pci_bus *bus, unsigned int most)
{
	unsigned int slot, place, empty = 0, added = 0;
	struct pci_bus *child;

	for (slot = 0; slot < slots(bus); slot++) {
		place = bus->number * SLOTS + slot;
		/* What was here, and is taken out again, is somebody's. */
		if (is_known(bus, slot)) {
			__clear_bit(place, seen_empty);
		} else if (empty < most) {
			added += look_at(bus, slot, place);
			empty += test_bit(place, seen_empty);
		}
	}
	if (added) {
		pci_bus_assign_resources(bus);
		pci_bus_add_devices(bus);
	}
	list_for_each_entry(child, &bus->children, node)
		look_on(child, most);
}

static void look_work(struct work_struct *work)
{
	unsigned int most = looks++ % ALL_EVERY ? FIRST_EMPTY : SLOTS;
	struct pci_bus *bus = NULL;
	bool again;

	pci_lock_rescan_remove();
	while ((bus = pci_find_next_bus(bus)))
		if (!pci_domain_nr(bus))
			look_on(bus, most);
	pci_unlock_rescan_remove();

	spin_lock_bh(&look_lock);
	again = time_before(jiffies, look_until);
	is_looking = again;
	spin_unlock_bh(&look_lock);
	if (again)
		queue_delayed_work(system_highpri_wq, &looking, LOOK_INTERVAL);
}

static void look_for(unsigned int seconds, bool or_longer)
{
	unsigned long until = jiffies + seconds * HZ;
	bool begin;

	spin_lock_bh(&look_lock);
	begin = !is_looking;
	if (begin) {
		is_looking = true;
		bitmap_zero(seen_empty, PLACES);
		looks = 0;
	}
	if (begin || !or_longer || time_before(look_until, until))
		look_until = until;
	spin_unlock_bh(&look_lock);
	if (begin)
		queue_delayed_work(system_highpri_wq, &looking, 0);
}

/**
 * ivshmem_look() - look for devices that are plugged from now on
 * @seconds: for so long at least
 *
 * Context: any but hard interrupts.
 */
void ivshmem_look(unsigned int seconds)
{
	look_for(seconds, true);
}

/**
 * ivshmem_look_only() - look for devices that are plugged from now on, and no longer than this
 * @seconds: for so long; what was to be looked for before is there
 *
 * Context: any but hard interrupts.
 */
void ivshmem_look_only(unsigned int seconds)
{
	look_for(seconds, false);
}

/**
 * ivshmem_look_end() - do not look any more
 *
 * Context: process context, without the PCI core's lock for adding and removing;
 * nobody calls ivshmem_look() any more.
 */
void ivshmem_look_end(void)
{
	cancel_delayed_work_sync(&looking);
}
