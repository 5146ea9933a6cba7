// SPDX-License-Identifier: GPL-2.0
/*
 * window.c - windows of channels: devices without doorbells (ivshmem-plain), which the
 * agent plugs into both guests. docs/protocol.md, section 7.
 *
 * Only the agent can say what such a device is, as its owner can write anything into it:
 * VMLOOP_MSG_WINDOW_AT names its place. A device that the agent has not named is left alone,
 * and is probed again when the agent names it. We ask for a window of ours; one of the peer's
 * comes unasked, and is there before the peer speaks of it by its lane. The hypervisor maps the
 * peer's for reading only.
 *
 * A place is another device's when the agent has plugged that there. So the agent takes a
 * window back (VMLOOP_WINDOW_NOWHERE), and waits until we have said GONE, or for 12 s, before
 * it unplugs the device.
 *
 * Owns the list of windows, each from when we ask for it, or hear of it, until we have said
 * GONE or its device has gone. A device that is bound to us and in no window of the list is
 * one that the agent is about to unplug.
 *
 * Context: process context. Locks, the outermost first: the PCI core's for adding and
 * removing, a device's, the core mutex, @windows_mutex.
 */
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "ivshmem.h"

/*
 * Seconds for which we wait for the answer to a question, which has the peer find its device
 * first; for a device that was named; and for the owner to speak of its window.
 */
#define ANSWER_TIME	30
#define PATIENCE	10

/* Windows in the list, so that no agent fills our memory with them. */
#define MOST		1024

#define PLACE_UNKNOWN	U32_MAX

/**
 * struct ivshmem_window - a window
 * @list: in the list
 * @tag: of its channel
 * @number: its number there
 * @ours: we own it
 * @size: bytes
 * @place: bus << 8 | devfn, or PLACE_UNKNOWN
 * @is_due: the device at @place is to be probed, if it is there
 * @pdev: the device that is bound to us; no reference: it is forgotten before it goes
 * @base: what it has in it
 * @is_told: the core knows of it, or is being told
 * @is_gone: we are done with it, and the agent has not heard that: the ring was full
 * @until: when it is given up if nothing comes, in jiffies
 */
struct ivshmem_window {
	struct list_head list;
	u32 tag;
	u32 number;
	bool ours;
	u64 size;
	u32 place;
	bool is_due;
	struct pci_dev *pdev;
	void *base;
	bool is_told;
	bool is_gone;
	unsigned long until;
};

static LIST_HEAD(windows);
static unsigned int count;
static bool is_over;		/* nothing is probed or waited for any more */
static DEFINE_MUTEX(windows_mutex);	/* protects all above */

static void naming_work(struct work_struct *work);
static DECLARE_WORK(naming, naming_work);

static void waiting_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(waiting, waiting_work);

/* Returns 0, -ENOTCONN without an agent, or another negative errno: say it again. */
static int say(u32 tag, u32 number, bool ours, u32 state)
{
	const struct vmloop_msg_window message = {
		.tag = tag,
		.number = number,
		.ours = ours,
		.state = state,
	};

	return ivshmem_control_say(&message);
}

static struct ivshmem_window *find(u32 tag, u32 number, bool ours)
{
	struct ivshmem_window *window;

	lockdep_assert_held(&windows_mutex);
	list_for_each_entry(window, &windows, list)
		if (window->tag == tag && window->number == number &&
		    window->ours == ours && !window->is_gone)
			return window;
	return NULL;
}

static void wait_for(struct ivshmem_window *window, unsigned int seconds)
{
	window->until = jiffies + seconds * HZ;
	if (!is_over)
		queue_delayed_work(system_wq, &waiting, HZ);
}

static struct ivshmem_window *add(u32 tag, u32 number, bool ours, u64 size)
{
	struct ivshmem_window *window;

	lockdep_assert_held(&windows_mutex);
	if (count == MOST || is_over)
		return NULL;
	window = kzalloc(sizeof(*window), GFP_KERNEL);
	if (!window)
		return NULL;
	window->tag = tag;
	window->number = number;
	window->ours = ours;
	window->size = size;
	window->place = PLACE_UNKNOWN;
	list_add_tail(&window->list, &windows);
	count++;
	wait_for(window, ANSWER_TIME);
	return window;
}

static void forget(struct ivshmem_window *window)
{
	lockdep_assert_held(&windows_mutex);
	list_del(&window->list);
	count--;
	kfree(window);
}

/* We do not touch it any more, and the agent is to know. */
static void end(struct ivshmem_window *window)
{
	int err = say(window->tag, window->number, window->ours, VMLOOP_WINDOW_GONE);

	if (!err || err == -ENOTCONN || is_over) {
		forget(window);
		return;
	}
	window->is_gone = true;
	window->is_told = false;
	window->is_due = false;
	window->pdev = NULL;
	wait_for(window, 0);
}

/* What the core asks ----------------------------------------------------- */

static int window_make(struct vmloop_link *link, u32 number, u64 size,
		       struct vmloop_window_memory *memory)
{
	const struct vmloop_msg_window want = {
		.tag = link->tag,
		.number = number,
		.ours = true,
		.state = VMLOOP_WINDOW_WANTED,
		.size = size,
	};
	struct ivshmem_window *window;
	int err = -ENOMEM;

	mutex_lock(&windows_mutex);
	window = add(link->tag, number, true, size);
	if (window) {
		err = ivshmem_control_want(&want);
		if (err)
			forget(window);
	}
	mutex_unlock(&windows_mutex);
	return err ?: -EINPROGRESS;
}

/* Of one of ours, and of the peer's: we do not touch it any more. */
static void let_go(struct vmloop_link *link, u32 number, bool ours)
{
	struct ivshmem_window *window;

	mutex_lock(&windows_mutex);
	window = find(link->tag, number, ours);
	if (window)
		end(window);
	mutex_unlock(&windows_mutex);
}

static void window_free(struct vmloop_link *link, u32 number,
			struct vmloop_window_memory *memory)
{
	let_go(link, number, true);
}

static int window_map(struct vmloop_link *link, u32 number, u64 size,
		      struct vmloop_window_memory *memory)
{
	struct ivshmem_window *window;
	int err = -ENXIO;

	mutex_lock(&windows_mutex);
	window = find(link->tag, number, false);
	if (window && window->base && size == window->size) {
		memory->base = window->base;
		window->is_told = true;
		err = 0;
	}
	mutex_unlock(&windows_mutex);
	return err;
}

static void window_unmap(struct vmloop_link *link, u32 number,
			 struct vmloop_window_memory *memory)
{
	let_go(link, number, false);
}

const struct vmloop_window_ops ivshmem_windows = {
	.make = window_make,
	.free = window_free,
	.map = window_map,
	.unmap = window_unmap,
};

/* Devices come and go ---------------------------------------------------- */

static u32 place_of(const struct pci_dev *pdev)
{
	return pci_domain_nr(pdev->bus) ? PLACE_UNKNOWN :
					  PCI_DEVID(pdev->bus->number, pdev->devfn);
}

static int map(struct ivshmem_window *window, struct pci_dev *pdev)
{
	void *base;
	int err;

	if (!pci_resource_start(pdev, 2)) {
		pci_err(pdev, "BAR2 has no memory: give the root port pref64-reserve=64M\n");
		return -ENOSPC;
	}
	if (pci_resource_len(pdev, 2) < window->size) {
		pci_err(pdev, "BAR2 is smaller than the window that the agent says it is\n");
		return -EINVAL;
	}
	err = pcim_enable_device(pdev);
	if (err)
		return err;
	base = devm_memremap(&pdev->dev, pci_resource_start(pdev, 2), window->size,
			     MEMREMAP_WB);
	if (IS_ERR(base))
		return PTR_ERR(base);
	window->base = base;
	window->pdev = pdev;
	return 0;
}

static struct ivshmem_window *find_at(u32 place)
{
	struct ivshmem_window *window;

	lockdep_assert_held(&windows_mutex);
	if (place == PLACE_UNKNOWN)
		return NULL;
	list_for_each_entry(window, &windows, list)
		if (window->place == place && !window->is_gone)
			return window;
	return NULL;
}

/*
 * The device of a window that was named, of which @copy becomes a copy. As
 * ivshmem_window_add().
 */
static int take(struct pci_dev *pdev, struct ivshmem_window *copy,
		struct vmloop_window_memory *memory)
{
	struct ivshmem_window *window = find_at(place_of(pdev));
	int err;

	if (!window || window->pdev)
		return -ENODEV;
	err = map(window, pdev);
	*copy = *window;
	if (err) {
		end(window);
		return err;
	}
	*memory = (struct vmloop_window_memory){ .base = window->base };
	window->is_told = window->ours;
	if (window->ours)
		return 0;
	/* The owner opens its lane when it hears of this. */
	wait_for(window, ANSWER_TIME);
	err = say(window->tag, window->number, false, VMLOOP_WINDOW_HERE);
	if (err)
		end(window);
	return err;
}

/**
 * ivshmem_window_add() - a device without doorbells has come, or was named
 * @pdev: the device
 *
 * Context: probe.
 * Return: 0; -ENODEV if the agent has not said that it is a window's; or another negative
 * errno.
 */
int ivshmem_window_add(struct pci_dev *pdev)
{
	struct vmloop_window_memory memory;
	struct ivshmem_window window = {};
	int err;

	mutex_lock(&windows_mutex);
	err = take(pdev, &window, &memory);
	mutex_unlock(&windows_mutex);
	if (window.ours)
		vmloop_window_made(&ivshmem_transport, window.tag, window.number,
				   err ? NULL : &memory);
	return err;
}

static struct ivshmem_window *window_of(const struct pci_dev *pdev)
{
	struct ivshmem_window *window;

	lockdep_assert_held(&windows_mutex);
	list_for_each_entry(window, &windows, list)
		if (window->pdev == pdev)
			return window;
	return NULL;
}

/**
 * ivshmem_window_remove() - a window's device goes away
 * @pdev: the device
 *
 * If it is in use, or may be, the channel ends. The agent takes out what we have said GONE
 * of, but for a new one, which takes out all that an earlier one has left.
 *
 * Context: remove.
 */
void ivshmem_window_remove(struct pci_dev *pdev)
{
	struct ivshmem_window *window;
	bool is_told;
	u32 tag;

	mutex_lock(&windows_mutex);
	window = window_of(pdev);
	is_told = window && window->is_told;
	if (window) {
		/* Nothing begins to use it. */
		window->base = NULL;
		tag = window->tag;
		if (!is_told)
			forget(window);
	}
	mutex_unlock(&windows_mutex);
	if (!is_told)
		return;
	vmloop_channel_lose(&ivshmem_transport, tag);
	mutex_lock(&windows_mutex);
	window = window_of(pdev);
	if (window)
		forget(window);
	mutex_unlock(&windows_mutex);
}

/* What the agent says ---------------------------------------------------- */

/* Whether a window waits for the device at a place. */
static bool is_awaited(u32 place)
{
	const struct ivshmem_window *window;
	bool awaited;

	mutex_lock(&windows_mutex);
	window = find_at(place);
	awaited = window && !window->pdev;
	mutex_unlock(&windows_mutex);
	return awaited;
}

/* Probe a device, if it is one of ours that was named, and is wanted yet. */
static void attach(struct pci_dev *pdev, u32 place)
{
	if (pdev->vendor != IVSHMEM_VENDOR || pdev->device != IVSHMEM_DEVICE ||
	    !device_is_registered(&pdev->dev) || !is_awaited(place))
		return;
	/* The peer may have given it up meanwhile. */
	if (device_attach(&pdev->dev) != 1 && is_awaited(place))
		dev_err_ratelimited(&pdev->dev, "this device cannot be used as a window\n");
}

/* Probe what was named and had come before. */
static void naming_work(struct work_struct *work)
{
	struct ivshmem_window *window;
	struct pci_dev *pdev;
	u32 place;

	do {
		place = PLACE_UNKNOWN;
		mutex_lock(&windows_mutex);
		list_for_each_entry(window, &windows, list) {
			if (!window->is_due)
				continue;
			window->is_due = false;
			place = window->place;
			break;
		}
		mutex_unlock(&windows_mutex);
		if (place == PLACE_UNKNOWN)
			return;
		/* A device that is removed stays so: its removal takes this lock. */
		pci_lock_rescan_remove();
		pdev = pci_get_domain_bus_and_slot(0, PCI_BUS_NUM(place), place & 0xff);
		if (pdev)
			attach(pdev, place);
		pci_dev_put(pdev);
		pci_unlock_rescan_remove();
	} while (true);
}

/* Of those of the peer's; an honest one has no two of the same remainder. */
static bool is_taken(const struct vmloop_msg_window_at *message)
{
	struct ivshmem_window *window;

	list_for_each_entry(window, &windows, list)
		if (window->tag == message->tag && !window->ours && !window->is_gone &&
		    window->number % VMLOOP_WINDOWS_MAX ==
			    message->number % VMLOOP_WINDOWS_MAX)
			return true;
	return false;
}

/*
 * A device was named. Returns the window that waits for it, or NULL: it is unwanted, or
 * cannot be.
 */
static struct ivshmem_window *named(const struct vmloop_msg_window_at *message)
{
	struct ivshmem_window *window;

	window = find(message->tag, message->number, message->ours);
	if (message->place > U16_MAX || find_at(message->place))
		return NULL;
	if (message->ours)
		return window && window->place == PLACE_UNKNOWN ? window : NULL;
	if (window || is_taken(message) || !message->size ||
	    message->size > VMLOOP_WINDOW_SIZE_MAX)
		return NULL;
	return add(message->tag, message->number, false, message->size);
}

/* What the core is to be told when the mutex is free. */
enum telling { NOTHING, NOT_MADE, LOST };

/* The agent takes a window back, or cannot make it. */
static enum telling take_back(const struct vmloop_msg_window_at *message)
{
	struct ivshmem_window *window;

	window = find(message->tag, message->number, message->ours);
	if (!window) {
		say(message->tag, message->number, message->ours, VMLOOP_WINDOW_GONE);
		return NOTHING;
	}
	/* What uses it says GONE. */
	if (window->is_told)
		return LOST;
	end(window);
	return message->ours ? NOT_MADE : NOTHING;
}

/**
 * ivshmem_window_at() - the agent says which device is a window
 * @message: a private copy of what it said
 *
 * Context: process context, no lock held.
 */
void ivshmem_window_at(const struct vmloop_msg_window_at *message)
{
	enum telling telling = NOTHING;
	struct ivshmem_window *window;

	mutex_lock(&windows_mutex);
	if (message->place == VMLOOP_WINDOW_NOWHERE) {
		telling = take_back(message);
		goto out;
	}
	window = named(message);
	if (!window) {
		if (!find(message->tag, message->number, message->ours))
			say(message->tag, message->number, message->ours,
			    VMLOOP_WINDOW_GONE);
		goto out;
	}
	window->place = message->place;
	window->is_due = true;
	wait_for(window, PATIENCE);
	if (!is_over)
		queue_work(system_highpri_wq, &naming);
	ivshmem_look(PATIENCE);
out:
	mutex_unlock(&windows_mutex);
	if (telling == NOT_MADE)
		vmloop_window_made(&ivshmem_transport, message->tag, message->number,
				   NULL);
	else if (telling == LOST)
		vmloop_channel_lose(&ivshmem_transport, message->tag);
}

/* Give up a window whose time has come. Returns whether there may be another one. */
static bool give_up_one(void)
{
	struct ivshmem_window *window, late = {};

	mutex_lock(&windows_mutex);
	list_for_each_entry(window, &windows, list) {
		if (window->is_told || window->is_gone ||
		    time_before(jiffies, window->until))
			continue;
		late = *window;
		end(window);
		break;
	}
	mutex_unlock(&windows_mutex);
	if (late.ours)
		vmloop_window_made(&ivshmem_transport, late.tag, late.number, NULL);
	return late.size;
}

/* Say GONE of those of which it could not be said, as long as there is room. */
static void say_again(void)
{
	struct ivshmem_window *window, *next;

	lockdep_assert_held(&windows_mutex);
	list_for_each_entry_safe(window, next, &windows, list) {
		if (!window->is_gone)
			continue;
		if (say(window->tag, window->number, window->ours, VMLOOP_WINDOW_GONE))
			return;
		forget(window);
	}
}

static void waiting_work(struct work_struct *work)
{
	struct ivshmem_window *window;
	bool more = false;

	while (give_up_one())
		cond_resched();
	mutex_lock(&windows_mutex);
	say_again();
	list_for_each_entry(window, &windows, list)
		more |= !window->is_told;
	if (more && !is_over)
		queue_delayed_work(system_wq, &waiting, HZ);
	mutex_unlock(&windows_mutex);
}

/**
 * ivshmem_window_forget() - a channel is gone, and with it windows that nothing has used
 * @tag: of the channel, which may be another one's from now on
 *
 * Context: process context; the core has no link with the tag any more.
 */
void ivshmem_window_forget(u32 tag)
{
	struct ivshmem_window *window, *next;

	mutex_lock(&windows_mutex);
	list_for_each_entry_safe(window, next, &windows, list)
		if (window->tag == tag) {
			say(tag, window->number, window->ours, VMLOOP_WINDOW_GONE);
			forget(window);
		}
	mutex_unlock(&windows_mutex);
}

/* Takes a window without a device out of the list; false: there is none. */
static bool forget_one_without_device(struct ivshmem_window *lost)
{
	struct ivshmem_window *window;
	bool found = false;

	mutex_lock(&windows_mutex);
	list_for_each_entry(window, &windows, list) {
		if (window->pdev)
			continue;
		*lost = *window;
		found = true;
		forget(window);
		break;
	}
	mutex_unlock(&windows_mutex);
	return found;
}

/**
 * ivshmem_window_agent_gone() - the agent that named places, and was asked for windows, is gone
 *
 * The next agent may plug anything at those places.
 *
 * Context: process context, no lock held; nothing is sent or received any more.
 */
void ivshmem_window_agent_gone(void)
{
	struct ivshmem_window lost;

	while (forget_one_without_device(&lost))
		if (lost.ours && !lost.is_gone)
			vmloop_window_made(&ivshmem_transport, lost.tag,
					   lost.number, NULL);
}

/**
 * ivshmem_window_end() - probe nothing any more by ourselves, as the driver goes
 *
 * Context: process context, without the PCI core's lock for adding and removing.
 */
void ivshmem_window_end(void)
{
	mutex_lock(&windows_mutex);
	is_over = true;
	mutex_unlock(&windows_mutex);
	cancel_work_sync(&naming);
	cancel_delayed_work_sync(&waiting);
}

/**
 * ivshmem_window_free() - nothing of a window is left
 *
 * Context: process context, after the driver has gone.
 */
void ivshmem_window_free(void)
{
	struct ivshmem_window *window, *next;

	mutex_lock(&windows_mutex);
	list_for_each_entry_safe(window, next, &windows, list)
		forget(window);
	mutex_unlock(&windows_mutex);
}
