// SPDX-License-Identifier: GPL-2.0
/*
 * file.c - lanes that programs open: /dev/vmloop_toy.
 *
 * Owns struct file_lane, one for each open file; it lives as long as the file or the
 * lane. Tasks produce under @tx_mutex and consume under @rx_mutex. Neither is held
 * while a task sleeps for the peer, or for memory of its own: user memory is
 * touched with page faults off, and faulted in when the mutex has been let go. So
 * the core, which takes both to revoke a lane, waits for a copy at most, whatever
 * becomes of the task.
 *
 * Lock order: the core mutex, @tx_mutex or @rx_mutex, @wait's.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "toy.h"

/**
 * struct file_lane - an open file and its lane
 * @lane: the lane, held; NULL before VMLOOP_TOY_OPEN
 * @peer: identity of its peer
 * @records: it carries records
 * @type: of the records that it sends
 * @window: the program's window, for references; NULL for none
 * @open_mutex: one VMLOOP_TOY_OPEN or VMLOOP_TOY_WINDOW at a time
 * @tx_mutex: the producer; @down
 * @rx_mutex: the consumer; @closed and @rest
 * @wait: tasks that wait for what @events counts
 * @events: doorbells, and changes of what follows
 * @up: both sides are ready; set once
 * @down: nothing is produced any more
 * @closed: the ring is not read any more; what it had is in @rest
 * @ended: the account is final
 * @reason: of the end
 * @sent: bytes of payload that were published
 * @unread: of the account
 * @rest: what had come when the lane was closed: bytes, or records with a header
 * @rest_size: bytes of it
 * @rest_at: where the next one is
 * @refs: one for the file, one for the lane until its end
 */
struct file_lane {
	struct vmloop_lane *lane;
	u64 peer;
	bool records;
	u16 type;
	struct toy_window *window;
	struct mutex open_mutex;
	struct mutex tx_mutex;
	struct mutex rx_mutex;
	wait_queue_head_t wait;
	atomic_t events;
	bool up;
	bool down;
	bool closed;
	bool ended;
	u32 reason;
	u64 sent;
	u32 unread;
	u8 *rest;
	u32 rest_size;
	u32 rest_at;
	struct kref refs;
};

static void file_free(struct kref *refs)
{
	struct file_lane *file = container_of(refs, struct file_lane, refs);

	if (file->lane)
		vmloop_lane_put(file->lane);
	kvfree(file->rest);
	kfree(file);
}

static void happened(struct file_lane *file)
{
	atomic_inc(&file->events);
	wake_up_interruptible_all(&file->wait);
}

/* Wait for anything that has happened since @seen. */
static int wait_since(struct file_lane *file, int seen)
{
	return wait_event_interruptible(file->wait,
					atomic_read(&file->events) != seen);
}

/* The lane --------------------------------------------------------------- */

int toy_file_open(struct vmloop_lane *lane)
{
	struct file_lane *file = lane->priv;

	kref_get(&file->refs);
	vmloop_lane_get(lane);
	file->lane = lane;
	file->records = lane->path == &toy_records;
	return 0;
}

void toy_file_up(struct vmloop_lane *lane)
{
	struct file_lane *file = lane->priv;

	/* Pairs with the acquire of whoever uses the rings: they are there. */
	smp_store_release(&file->up, true);
	happened(file);
}

void toy_file_down(struct vmloop_lane *lane)
{
	struct file_lane *file = lane->priv;

	/* A producer that is in the lane has the mutex, and not for long. */
	mutex_lock(&file->tx_mutex);
	file->down = true;
	mutex_unlock(&file->tx_mutex);
	happened(file);
}

/* Keeps what has come in memory of our own, with a header before each record. */
static void keep(struct file_lane *file)
{
	struct vmloop_lane *lane = file->lane;
	struct vmloop_shm_record record;
	const void *from;
	u32 bytes, size;

	/* No more than the peer has produced, whatever the ring could hold. */
	vmloop_ring_ready(&lane->rx);
	size = lane->rx.head - lane->rx.tail;
	file->rest = size ? kvmalloc(size, GFP_KERNEL) : NULL;
	if (!file->rest)
		return;		/* left unread, and counted as such */
	if (!file->records) {
		while ((bytes = vmloop_ring_bytes(&lane->rx, 0, size, &from)) &&
		       bytes <= size - file->rest_size) {
			memcpy(file->rest + file->rest_size, from, bytes);
			file->rest_size += bytes;
			vmloop_ring_take(&lane->rx, bytes);
		}
	} else {
		while (vmloop_ring_peek(&lane->rx, &record, &from) > 0 &&
		       sizeof(record) + record.size <= size - file->rest_size) {
			memcpy(file->rest + file->rest_size, &record,
			       sizeof(record));
			file->rest_size += sizeof(record);
			memcpy(file->rest + file->rest_size, from, record.size);
			file->rest_size += record.size;
			vmloop_ring_release(&lane->rx);
		}
	}
	vmloop_ring_consume_publish(&lane->rx);
}

void toy_file_close(struct vmloop_lane *lane)
{
	struct file_lane *file = lane->priv;

	/* One that was refused was never up. */
	mutex_lock(&file->tx_mutex);
	file->down = true;
	mutex_unlock(&file->tx_mutex);
	mutex_lock(&file->rx_mutex);
	if (file->up)
		keep(file);
	file->closed = true;
	mutex_unlock(&file->rx_mutex);
	happened(file);
}

void toy_file_ended(struct vmloop_lane *lane, u32 reason)
{
	struct file_lane *file = lane->priv;

	file->unread = file->up ? toy_account_end(lane) : 0;
	file->reason = reason;
	/* Pairs with the acquire in get_state(). */
	smp_store_release(&file->ended, true);
	happened(file);
	kref_put(&file->refs, file_free);
}

void toy_file_event(struct vmloop_lane *lane)
{
	happened(lane->priv);
}

int toy_file_move(struct vmloop_lane *lane, void *data, u32 size, u64 offset)
{
	struct file_lane *file = lane->priv;
	int err = -ENOTCONN;

	mutex_lock(&file->tx_mutex);
	if (!file->down)
		err = vmloop_ring_move(&lane->tx, data, size, offset);
	mutex_unlock(&file->tx_mutex);
	happened(file);
	return err;
}

/* The file --------------------------------------------------------------- */

static int device_open(struct inode *inode, struct file *device)
{
	struct file_lane *file = kzalloc(sizeof(*file), GFP_KERNEL);

	if (!file)
		return -ENOMEM;
	mutex_init(&file->open_mutex);
	mutex_init(&file->tx_mutex);
	mutex_init(&file->rx_mutex);
	init_waitqueue_head(&file->wait);
	kref_init(&file->refs);
	file->type = VMLOOP_TOY_DATA;
	device->private_data = file;
	return 0;
}

static int device_release(struct inode *inode, struct file *device)
{
	struct file_lane *file = device->private_data;

	if (file->lane)
		vmloop_lane_shut(file->lane, VMLOOP_REASON_NONE);
	if (file->window)
		toy_window_end(file->window);
	kref_put(&file->refs, file_free);
	return 0;
}

struct opening {
	const struct vmloop_path *path;
	struct vmloop_lane_ask ask;
	struct vmloop_lane *lane;
};

static void open_in(struct vmloop_channel *channel, void *data)
{
	struct opening *opening = data;

	opening->lane = vmloop_channel_lane(channel, opening->path,
					    &opening->ask);
}

static int open_lane(struct file_lane *file, const struct vmloop_toy_open *what)
{
	struct opening opening = {
		.path = what->kind == VMLOOP_LANE_TOY_BYTES ? &toy_bytes :
							      &toy_records,
		.ask.ring_size = what->ring_size ?: VMLOOP_SHM_PAGE,
		.ask.priv = file,
	};
	int err, seen;

	if (what->kind != VMLOOP_LANE_TOY_BYTES &&
	    what->kind != VMLOOP_LANE_TOY_RECORDS)
		return -EINVAL;
	/* Of one that a signal has kept us from waiting for, go on to wait. */
	if (file->lane)
		goto wait;
	file->peer = what->peer;
	memcpy(opening.ask.say, &opening.ask.ring_size, sizeof(u32));
	err = vmloop_channel_do(what->peer, open_in, &opening);
	if (err)
		return err;
	if (IS_ERR(opening.lane))
		return PTR_ERR(opening.lane);
wait:
	for (;;) {
		seen = atomic_read(&file->events);
		/* Pairs with the release in toy_file_up(). */
		if (smp_load_acquire(&file->up))
			return 0;
		/* Pairs with the release in toy_file_ended(). */
		if (smp_load_acquire(&file->ended))
			return -ECONNREFUSED;
		err = wait_since(file, seen);
		if (err)
			return err;
	}
}

struct moving {
	struct file_lane *file;
	u32 size;
	int err;
};

static void move_in(struct vmloop_channel *channel, void *data)
{
	struct moving *moving = data;

	moving->err = vmloop_lane_move(channel, moving->file->lane, moving->size, 100);
}

static int move_lane(struct file_lane *file, u32 size)
{
	struct moving moving = { .file = file, .size = size };

	/* Pairs with the release in toy_file_up(). */
	if (!smp_load_acquire(&file->up))
		return -ENOTCONN;
	return vmloop_channel_do(file->peer, move_in, &moving) ?: moving.err;
}

static int have_window(struct file_lane *file, u64 __user *size_and_number)
{
	struct toy_window *window;
	u32 number;
	u64 size;

	if (get_user(size, size_and_number))
		return -EFAULT;
	/* Pairs with the release in toy_file_up(). */
	if (!smp_load_acquire(&file->up))
		return -ENOTCONN;
	if (file->window)
		return -EEXIST;
	window = toy_window_open(file->peer, size, &number);
	if (IS_ERR(window))
		return PTR_ERR(window);
	/* Pairs with the acquire in fill_window(). */
	smp_store_release(&file->window, window);
	return put_user((u64)number, size_and_number);
}

static int fill_window(struct file_lane *file, const struct vmloop_toy_fill *fill)
{
	/* Pairs with the release in have_window(). */
	struct toy_window *window = smp_load_acquire(&file->window);

	if (!window)
		return -ENOENT;
	return toy_window_fill(window, u64_to_user_ptr(fill->from), fill->offset,
			       fill->size);
}

static int get_state(struct file_lane *file, struct vmloop_toy_state *state)
{
	if (!file->lane)
		return -ENOTCONN;
	*state = (struct vmloop_toy_state){
		.number = file->lane->number,
		/* Pairs with the release in toy_file_ended(). */
		.ended = smp_load_acquire(&file->ended),
	};
	state->sent = READ_ONCE(file->sent);
	if (state->ended) {
		state->reason = file->reason;
		state->unread = file->unread;
	}
	return 0;
}

static long device_ioctl(struct file *device, unsigned int command,
			 unsigned long argument)
{
	struct file_lane *file = device->private_data;
	struct vmloop_toy_state state;
	struct vmloop_toy_fill fill;
	struct vmloop_toy_open what;
	u32 value;
	int err;

	switch (command) {
	case VMLOOP_TOY_OPEN:
		if (copy_from_user(&what, (void __user *)argument, sizeof(what)))
			return -EFAULT;
		mutex_lock(&file->open_mutex);
		err = open_lane(file, &what);
		mutex_unlock(&file->open_mutex);
		return err;
	case VMLOOP_TOY_MOVE:
		if (get_user(value, (u32 __user *)argument))
			return -EFAULT;
		return move_lane(file, value);
	case VMLOOP_TOY_WINDOW:
		mutex_lock(&file->open_mutex);
		err = have_window(file, (u64 __user *)argument);
		mutex_unlock(&file->open_mutex);
		return err;
	case VMLOOP_TOY_FILL:
		if (copy_from_user(&fill, (void __user *)argument, sizeof(fill)))
			return -EFAULT;
		return fill_window(file, &fill);
	case VMLOOP_TOY_TYPE:
		if (get_user(value, (u32 __user *)argument))
			return -EFAULT;
		if (value != VMLOOP_TOY_DATA && value != VMLOOP_TOY_REFERENCE)
			return -EINVAL;
		WRITE_ONCE(file->type, value);
		return 0;
	case VMLOOP_TOY_STATE:
		err = get_state(file, &state);
		if (!err && copy_to_user((void __user *)argument, &state,
					 sizeof(state)))
			err = -EFAULT;
		return err;
	default:
		return -ENOTTY;
	}
}

/* The caller has @tx_mutex. Bytes written; 0: wait; -EFAULT: fault memory in. */
static ssize_t put(struct file_lane *file, const char __user *from, size_t size)
{
	struct vmloop_lane *lane = file->lane;
	bool records = file->records;
	unsigned long left;
	void *to;
	u32 room;
	int err;

	if (records) {
		if (size > vmloop_ring_max_record(lane->tx.size))
			return -EMSGSIZE;
		err = vmloop_ring_reserve(&lane->tx, size, READ_ONCE(file->type), 0, &to);
		if (err)
			return err == -EPROTO ? err : 0;
		room = size;
	} else {
		room = vmloop_ring_space(&lane->tx, min_t(size_t, size, U32_MAX), &to);
		room = min_t(size_t, room, size);
		if (!room)
			return lane->tx.broken ? -EPROTO : 0;
	}
	pagefault_disable();
	left = __copy_from_user_inatomic(to, from, room);
	pagefault_enable();
	/* A record is whole or is not there at all: it was not committed. */
	if (left == room || (records && left))
		return -EFAULT;
	if (records)
		vmloop_ring_commit(&lane->tx);
	else
		vmloop_ring_add(&lane->tx, room - left);
	return room - left;
}

static bool may_wait_to_write(struct file_lane *file, size_t size)
{
	return file->records ? vmloop_ring_wait_room(&file->lane->tx, size) :
			       vmloop_ring_wait_space(&file->lane->tx, 1);
}

/*
 * Whether memory of which @left bytes could not be had is of no use: a record wants
 * all of it.
 */
static bool is_out_of_reach(const struct file_lane *file, size_t left, size_t size)
{
	return left && (file->records || left == size || fatal_signal_pending(current));
}

static ssize_t device_write(struct file *device, const char __user *from,
			    size_t size, loff_t *position)
{
	struct file_lane *file = device->private_data;
	struct vmloop_lane *lane;
	size_t done = 0, left;
	ssize_t put_now;
	bool wait;
	int seen, err;

	/* Pairs with the release in toy_file_up(). */
	if (!smp_load_acquire(&file->up))
		return -ENOTCONN;
	lane = file->lane;
	if (!access_ok(from, size))
		return -EFAULT;
	while (done < size) {
		seen = atomic_read(&file->events);
		wait = false;
		mutex_lock(&file->tx_mutex);
		if (file->down) {
			mutex_unlock(&file->tx_mutex);
			return done ?: -EPIPE;
		}
		put_now = put(file, from + done, size - done);
		if (put_now > 0) {
			WRITE_ONCE(file->sent, file->sent + put_now);
			if (vmloop_ring_publish(&lane->tx))
				vmloop_lane_ring(lane);
			vmloop_lane_produced(lane);
			done += put_now;
		} else if (!put_now) {
			wait = may_wait_to_write(file, size);
		}
		if (lane->tx.broken)
			vmloop_lane_broken(lane, lane->tx.broken);
		mutex_unlock(&file->tx_mutex);

		if (put_now == -EFAULT) {
			left = fault_in_readable(from + done, size - done);
			if (is_out_of_reach(file, left, size - done))
				return done ?: -EFAULT;
		} else if (put_now < 0) {
			return done ?: put_now;
		} else if (wait) {
			if (device->f_flags & O_NONBLOCK)
				return done ?: -EAGAIN;
			err = wait_since(file, seen);
			if (err)
				return done ?: err;
		}
		cond_resched();
	}
	return done;
}

/* The caller has @rx_mutex. Bytes read; 0: wait; -EFAULT: fault memory in. */
static ssize_t get(struct file_lane *file, char __user *to, size_t size)
{
	struct vmloop_lane *lane = file->lane;
	bool records = file->records;
	struct vmloop_shm_record record;
	unsigned long left;
	const void *from;
	u32 bytes;
	int some;

	if (records) {
		some = vmloop_ring_peek(&lane->rx, &record, &from);
		if (some <= 0)
			return some;
		if (record.size > size)
			return -EMSGSIZE;
		bytes = record.size;
	} else {
		bytes = vmloop_ring_bytes(&lane->rx, 0,
					  min_t(size_t, size, U32_MAX), &from);
		bytes = min_t(size_t, bytes, size);
		if (!bytes)
			return lane->rx.broken ? -EPROTO : 0;
	}
	pagefault_disable();
	left = __copy_to_user_inatomic(to, from, bytes);
	pagefault_enable();
	if (left == bytes || (records && left))
		return -EFAULT;
	if (records)
		vmloop_ring_release(&lane->rx);
	else
		vmloop_ring_take(&lane->rx, bytes - left);
	return bytes - left;
}

/* The same of what was kept when the lane was closed. */
static ssize_t get_rest(struct file_lane *file, char __user *to, size_t size)
{
	struct vmloop_shm_record record;
	u32 bytes = file->rest_size - file->rest_at;
	u32 at = file->rest_at;

	if (bytes && file->records) {
		memcpy(&record, file->rest + at, sizeof(record));
		at += sizeof(record);
		bytes = record.size;
		if (bytes > size)
			return -EMSGSIZE;
	}
	bytes = min_t(size_t, bytes, size);
	/* Nobody else waits for this mutex any more but readers of this file. */
	if (copy_to_user(to, file->rest + at, bytes))
		return -EINVAL;
	file->rest_at = at + bytes;
	return bytes;
}

static ssize_t device_read(struct file *device, char __user *to, size_t size,
			   loff_t *position)
{
	struct file_lane *file = device->private_data;
	struct vmloop_lane *lane;
	ssize_t got;
	size_t left;
	bool wait;
	int seen, err;

	/* Pairs with the release in toy_file_up(). */
	if (!smp_load_acquire(&file->up))
		return -ENOTCONN;
	lane = file->lane;
	if (!access_ok(to, size))
		return -EFAULT;
	for (;;) {
		seen = atomic_read(&file->events);
		wait = false;
		mutex_lock(&file->rx_mutex);
		if (file->closed) {
			got = get_rest(file, to, size);
			mutex_unlock(&file->rx_mutex);
			return got;
		}
		got = get(file, to, size);
		if (vmloop_ring_consume_publish(&lane->rx))
			vmloop_lane_ring(lane);
		if (!got)
			wait = vmloop_ring_sleep(&lane->rx);
		if (lane->rx.broken)
			vmloop_lane_broken(lane, lane->rx.broken);
		mutex_unlock(&file->rx_mutex);

		if (got == -EFAULT) {
			left = fault_in_writeable(to, size);
			if (is_out_of_reach(file, left, size))
				return -EFAULT;
		} else if (got) {
			return got;
		} else if (wait) {
			if (device->f_flags & O_NONBLOCK)
				return -EAGAIN;
			err = wait_since(file, seen);
			if (err)
				return err;
		}
		cond_resched();
	}
}

static const struct file_operations device_operations = {
	.owner = THIS_MODULE,
	.open = device_open,
	.release = device_release,
	.unlocked_ioctl = device_ioctl,
	.read = device_read,
	.write = device_write,
	.llseek = noop_llseek,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "vmloop_toy",
	.fops = &device_operations,
	.mode = 0600,
};

int toy_file_init(void)
{
	return misc_register(&device);
}

void toy_file_exit(void)
{
	misc_deregister(&device);
}
