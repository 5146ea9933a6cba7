// SPDX-License-Identifier: GPL-2.0
/*
 * control.c - talks to the host agent over the control device.
 * docs/protocol.md, section 6.
 *
 * Owns the control device: the first that comes, until it goes. Another one is
 * refused meanwhile, as one agent at a time says who is here; spare.c has it bound
 * when the first one is gone. Messages are sent from anywhere under @control_lock,
 * which nests inside the core mutex; they are received in a work, which takes the
 * core mutex.
 */
#include <linux/cpumask.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/utsname.h>

#include "ivshmem.h"

/* Agents from this version on know VMLOOP_MSG_WINDOW. */
#define MINOR_OF_WINDOWS	4

/* Messages handled before others get a turn. */
#define BUDGET	256

/*
 * Seconds for which a device is looked for: a channel's that was asked for, or
 * that may come with the control device; and a control device, which is gone
 * while we are on our way to another host. Large guests take minutes for that.
 */
#define LOOK_FOR_CHANNEL	5
#define LOOK_FOR_CONTROL	300

/**
 * struct ivshmem_control - a control device at work
 * @device: the device
 * @region: its memory
 * @tx: what we produce; under @control_lock
 * @rx: what the agent produces; used by @work
 * @incarnation: what the agent must echo
 * @started: all of the above is set; a doorbell that rings before does nothing
 * @open: the agent has echoed; written under @control_lock, by @work and when that has ended
 * @work: receives
 */
struct ivshmem_control {
	struct ivshmem_device *device;
	struct vmloop_region region;
	struct vmloop_ring_tx tx;
	struct vmloop_ring_rx rx;
	u64 incarnation;
	bool started;
	bool open;
	struct work_struct work;
};

static DEFINE_SPINLOCK(control_lock);
static struct ivshmem_control *current_control;	/* under @control_lock */

/* Sending ---------------------------------------------------------------- */

/* Returns 0, or a negative errno for a message that is lost. */
static int send(u16 type, const void *message, u32 size)
{
	struct ivshmem_control *control;
	bool wanted = false;
	void *payload;
	int err;

	spin_lock_bh(&control_lock);
	control = current_control;
	if (!control || !control->open) {
		err = -ENOTCONN;
		goto out;
	}
	err = vmloop_ring_reserve(&control->tx, size, type, 0, &payload);
	if (err)
		goto out;
	memcpy(payload, message, size);
	vmloop_ring_commit(&control->tx);
	wanted = vmloop_ring_publish(&control->tx);
	if (wanted)
		ivshmem_ring(control->device, 0);
out:
	spin_unlock_bh(&control_lock);
	return err;
}

static int request(struct vmloop_transport *transport, u64 peer, u64 epoch,
		   unsigned int attempt)
{
	const struct vmloop_msg_want want = {
		.peer = peer,
		.epoch = epoch,
		.attempt = attempt,
	};
	int err;

	err = send(VMLOOP_MSG_WANT, &want, sizeof(want));
	if (!err)
		ivshmem_look(LOOK_FOR_CHANNEL);
	return err;
}

static void report(struct vmloop_transport *transport, u32 tag, u32 state)
{
	const struct vmloop_msg_state message = {
		.tag = tag,
		.state = state,
	};

	/* If it is lost: a new agent's WELCOME has everything said again. */
	send(VMLOOP_MSG_STATE, &message, sizeof(message));
}

static void advertise(struct vmloop_transport *transport,
		      const struct vmloop_msg_address *address, u32 count)
{
	struct vmloop_msg_advertise *message;
	size_t size = offsetof(struct vmloop_msg_advertise, address) +
		      count * sizeof(*address);

	message = kzalloc(sizeof(*message), GFP_KERNEL);
	if (!message)
		return;
	message->count = count;
	memcpy(message->address, address, count * sizeof(*address));
	send(VMLOOP_MSG_ADVERTISE, message, size);
	kfree(message);
}

/* Returns 0, or a negative errno for one that is lost. */
static int send_hello(void)
{
	struct vmloop_msg_hello hello = {
		.major = VMLOOP_SHM_MAJOR,
		.minor = VMLOOP_SHM_MINOR,
		.cpus = num_online_cpus(),
		.features = vmloop_features() | VMLOOP_F_CHANGES |
			    (vmloop_paths_have_windows() ? VMLOOP_F_WINDOWS : 0),
		.version = VMLOOP_VERSION,
	};

	strscpy_pad(hello.kernel, init_utsname()->release,
		    sizeof(hello.kernel));
	return send(VMLOOP_MSG_HELLO, &hello, sizeof(hello));
}

static void again_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(again, again_work);

static void ask_again(struct vmloop_transport *transport)
{
	queue_delayed_work(system_wq, &again, HZ);
}

/* Without a control device the next one begins with a whole directory. */
static void again_work(struct work_struct *work)
{
	int err = send_hello();

	if (err && err != -ENOTCONN)
		ask_again(&ivshmem_transport);
}

const struct vmloop_transport_ops ivshmem_transport_ops = {
	.request = request,
	.report = report,
	.advertise = advertise,
	.again = ask_again,
};

/**
 * ivshmem_control_end() - ask the agent nothing any more
 *
 * Context: process context; the transport is unregistered.
 */
void ivshmem_control_end(void)
{
	cancel_delayed_work_sync(&again);
}

/* The agent makes them. Set by the one work that receives, cleared when that has ended. */
static bool has_windows;

/**
 * ivshmem_control_want() - ask the agent for a window of ours
 * @window: what it is to be
 *
 * Context: any but hard interrupts.
 * Return: 0; -EOPNOTSUPP if the agent is an older one; or another negative errno if the
 * question could not be put.
 */
int ivshmem_control_want(const struct vmloop_msg_window *window)
{
	int err;

	if (!READ_ONCE(has_windows))
		return -EOPNOTSUPP;
	err = send(VMLOOP_MSG_WINDOW, window, sizeof(*window));
	if (!err)
		ivshmem_look(LOOK_FOR_CHANNEL);
	return err;
}

/**
 * ivshmem_control_say() - tell the agent how we stand to a window
 * @window: what to say
 *
 * Context: any but hard interrupts.
 * Return: 0; -ENOTCONN without an agent; or another negative errno if it is lost.
 */
int ivshmem_control_say(const struct vmloop_msg_window *window)
{
	return send(VMLOOP_MSG_WINDOW, window, sizeof(*window));
}

static u32 stats_cookie;	/* used by the one work that receives */

static void send_stats(struct vmloop_transport *transport,
		       const struct vmloop_msg_stats *stats)
{
	struct vmloop_msg_stats message = *stats;

	message.cookie = stats_cookie;
	send(VMLOOP_MSG_STATS, &message, sizeof(message));
}

/* Receiving -------------------------------------------------------------- */

/* Room for any message that the agent sends. */
union message {
	struct vmloop_msg_welcome welcome;
	struct vmloop_msg_dir dir;
	struct vmloop_msg_peer peer;
	struct vmloop_msg_refused refused;
	struct vmloop_msg_close close;
	struct vmloop_msg_stats_get stats_get;
	struct vmloop_msg_dir_change change;
	struct vmloop_msg_dir_gone gone;
	struct vmloop_msg_window_at window;
};

static void welcome(const struct vmloop_msg_welcome *message)
{
	bool knows = message->major == VMLOOP_SHM_MAJOR &&
		     message->minor >= MINOR_OF_WINDOWS;

	WRITE_ONCE(has_windows, knows);
	vmloop_agent_here(&ivshmem_transport, message);
}

static void handle(u16 type, u32 size, const union message *message)
{
	struct vmloop_transport *transport = &ivshmem_transport;
	const struct vmloop_msg_stats end = {};

	switch (type) {
	case VMLOOP_MSG_WELCOME:
		if (size >= sizeof(message->welcome))
			welcome(&message->welcome);
		break;
	case VMLOOP_MSG_DIR_BEGIN:
		if (size >= sizeof(message->dir))
			vmloop_directory_begin(transport,
					       message->dir.generation);
		break;
	case VMLOOP_MSG_DIR_PEER:
		/* Version 1.0 ends there; @message is zero behind. */
		if (size >= offsetof(struct vmloop_msg_peer, gateway))
			vmloop_directory_peer(transport, &message->peer);
		break;
	case VMLOOP_MSG_DIR_CHANGE:
		if (size >= sizeof(message->change))
			vmloop_directory_change(transport,
						message->change.generation,
						message->change.before);
		break;
	case VMLOOP_MSG_DIR_GONE:
		if (size >= sizeof(message->gone))
			vmloop_directory_gone(transport, &message->gone);
		break;
	case VMLOOP_MSG_DIR_END:
		if (size >= sizeof(message->dir))
			vmloop_directory_end(transport,
					     message->dir.generation);
		break;
	case VMLOOP_MSG_REFUSED:
		if (size >= sizeof(message->refused))
			vmloop_peer_refused(transport, message->refused.peer,
					    message->refused.reason,
					    message->refused.retry_ms);
		break;
	case VMLOOP_MSG_CLOSE:
		if (size >= sizeof(message->close))
			vmloop_channel_close(transport, message->close.tag);
		break;
	case VMLOOP_MSG_STATS_GET:
		if (size < sizeof(message->stats_get))
			break;
		stats_cookie = message->stats_get.cookie;
		vmloop_stats_report(transport, send_stats);
		send_stats(transport, &end);
		break;
	case VMLOOP_MSG_WINDOW_AT:
		if (size >= sizeof(message->window))
			ivshmem_window_at(&message->window);
		break;
	default:
		/* A newer agent may say what we do not know. */
		break;
	}
}

/* Returns whether there may be more to read. */
static bool receive(struct ivshmem_control *control)
{
	struct vmloop_shm_record record;
	unsigned int budget = BUDGET;
	union message message;
	const void *payload;
	int got;

	while (budget--) {
		got = vmloop_ring_peek(&control->rx, &record, &payload);
		if (got < 0) {
			pci_err(control->device->pdev,
				"the agent broke the control ring: waiting for another control device\n");
			return false;
		}
		if (!got)
			break;
		memset(&message, 0, sizeof(message));
		memcpy(&message, payload,
		       min_t(u32, record.size, sizeof(message)));
		vmloop_ring_release(&control->rx);
		if (vmloop_ring_consume_publish(&control->rx))
			ivshmem_ring(control->device, 0);
		handle(record.type, record.size, &message);
	}
	return !vmloop_ring_sleep(&control->rx) && !control->rx.broken;
}

/* Returns whether the agent has followed us into this incarnation. */
static bool open(struct ivshmem_control *control)
{
	const struct vmloop_shm_side *theirs = control->region.theirs;

	if (control->open)
		return true;
	/* Pairs with the agent's release once its positions are zero. */
	if (virt_load_acquire(&theirs->incarnation) != control->incarnation)
		return false;
	if (READ_ONCE(theirs->state) != VMLOOP_SIDE_READY ||
	    READ_ONCE(theirs->major) != VMLOOP_SHM_MAJOR ||
	    vmloop_region_rx(&control->region, 0, VMLOOP_LANE_CONTROL,
			     &control->rx)) {
		pci_err(control->device->pdev,
			"the agent speaks another protocol: update vmloop on the host or here\n");
		return false;
	}
	spin_lock_bh(&control_lock);
	control->open = true;
	spin_unlock_bh(&control_lock);
	send_hello();
	return true;
}

static void control_work(struct work_struct *work)
{
	struct ivshmem_control *control =
		container_of(work, struct ivshmem_control, work);

	if (open(control) && receive(control))
		queue_work(system_highpri_wq, &control->work);
}

static void event(struct ivshmem_device *device, unsigned int bell)
{
	struct ivshmem_control *control = device->priv;

	/* Pairs with the release in ivshmem_control_start(). */
	if (smp_load_acquire(&control->started))
		queue_work(system_highpri_wq, &control->work);
}

/* Coming and going ------------------------------------------------------- */

/* Makes it the one in use, if none is. Returns 0 or -EBUSY. */
static int claim(struct ivshmem_control *control)
{
	struct pci_dev *pdev = control->device->pdev;
	char used[32] = "";
	bool is_free;

	spin_lock_bh(&control_lock);
	if (current_control)
		strscpy(used, pci_name(current_control->device->pdev),
			sizeof(used));
	else
		current_control = control;
	spin_unlock_bh(&control_lock);
	if (!used[0])
		return 0;

	pci_err(pdev,
		"a second control device is not used: unplug %s if its agent is gone, else this one\n",
		used);
	ivshmem_spare_keep(pdev);
	/* The other one may have gone before this one was kept. */
	spin_lock_bh(&control_lock);
	is_free = !current_control;
	spin_unlock_bh(&control_lock);
	if (is_free)
		ivshmem_spare_try();
	return -EBUSY;
}

/* Sends nothing over it any more; another one may come. */
static void let_go(struct ivshmem_control *control)
{
	bool was_current;

	spin_lock_bh(&control_lock);
	was_current = current_control == control;
	if (was_current)
		current_control = NULL;
	spin_unlock_bh(&control_lock);
	if (was_current)
		ivshmem_spare_try();
}

/**
 * ivshmem_control_add() - prepare a control device
 * @device: mapped, without interrupt so far
 *
 * Return: 0, and then ivshmem_control_start() or ivshmem_control_cancel() must
 * follow; -EBUSY if there is another one; or another negative errno.
 * device->priv is the caller's to free.
 */
int ivshmem_control_add(struct ivshmem_device *device)
{
	struct ivshmem_control *control;
	int err;

	control = kzalloc(sizeof(*control), GFP_KERNEL);
	if (!control)
		return -ENOMEM;
	err = vmloop_region_open(&control->region, device->base, device->size,
				 IVSHMEM_ID_GUEST, VMLOOP_REGION_CONTROL);
	if (err) {
		kfree(control);
		return err;
	}
	control->device = device;
	err = claim(control);
	if (err) {
		kfree(control);
		return err;
	}
	INIT_WORK(&control->work, control_work);
	device->priv = control;
	device->event = event;
	return 0;
}

/**
 * ivshmem_control_cancel() - do not use a control device after all
 * @device: prepared, without interrupt
 */
void ivshmem_control_cancel(struct ivshmem_device *device)
{
	let_go(device->priv);
}

/**
 * ivshmem_control_start() - begin to talk to the agent
 * @device: prepared, with interrupt
 */
void ivshmem_control_start(struct ivshmem_device *device)
{
	struct ivshmem_control *control = device->priv;
	struct vmloop_shm_side *ours = control->region.ours;

	do {
		control->incarnation = get_random_u64();
	} while (!control->incarnation ||
		 control->incarnation ==
			 READ_ONCE(control->region.theirs->incarnation));

	if (vmloop_region_tx(&control->region, 0, VMLOOP_LANE_CONTROL,
			     &control->tx)) {
		/* Too small for a ring: no agent of ours made it. */
		let_go(control);
		return;
	}
	WRITE_ONCE(ours->lane[0].rx_tail, 0);
	WRITE_ONCE(ours->lane[0].rx_wake, 0);
	WRITE_ONCE(ours->major, VMLOOP_SHM_MAJOR);
	WRITE_ONCE(ours->minor, VMLOOP_SHM_MINOR);
	WRITE_ONCE(ours->features, vmloop_features());
	WRITE_ONCE(ours->max_record, sizeof(union message));
	WRITE_ONCE(ours->lanes, 1);
	/* Pairs with the agent's acquire: our positions are zero. */
	virt_store_release(&ours->incarnation, control->incarnation);
	/* Pairs with the agent's acquire: all else is set. */
	virt_store_release(&ours->state, VMLOOP_SIDE_READY);

	/* Before the agent is heard: it may name devices, for which we look longer. */
	ivshmem_look_only(LOOK_FOR_CHANNEL);
	/* Pairs with the acquire in event(). */
	smp_store_release(&control->started, true);
	ivshmem_ring(device, 0);
	queue_work(system_highpri_wq, &control->work);
}

/**
 * ivshmem_control_remove() - a control device goes away
 * @device: started before, its interrupt freed
 *
 * Channels stay as they are. Another control device may come from then on.
 */
void ivshmem_control_remove(struct ivshmem_device *device)
{
	struct ivshmem_control *control = device->priv;
	bool was_current;

	/* What this one has said is carried out before another one says anything. */
	cancel_work_sync(&control->work);
	spin_lock_bh(&control_lock);
	was_current = current_control == control;
	/* Nothing more is asked of this agent. */
	control->open = false;
	spin_unlock_bh(&control_lock);
	if (was_current) {
		/* The next one may be older. */
		WRITE_ONCE(has_windows, false);
		vmloop_agent_gone(&ivshmem_transport);
		ivshmem_window_agent_gone();
	}
	let_go(control);

	/* Nothing is written to the region after this. */
	virt_store_release(&control->region.ours->state, VMLOOP_SIDE_CLOSED);
	ivshmem_ring(device, 0);
	if (was_current)
		ivshmem_look(LOOK_FOR_CONTROL);
}
