// SPDX-License-Identifier: GPL-2.0
/*
 * pending.c - bytes of a program's that neither TCP nor a ring carries yet.
 *
 * Unsent bytes went into a ring, and the peer may not have read them when it went: they are
 * copied, since the peer has to say first, by TCP, what it has. Pending bytes were sent while
 * the stream went over to a lane or back to TCP: a little is taken from programs then, since
 * TCP with nothing unsent takes something from a call that does not wait, too. Pending bytes
 * are behind unsent ones.
 *
 * Locks: tx_ring protects both. When a lane has ended, the stream's work alone moves @unsent_at
 * and @pending_at, and reads what is behind them without it.
 *
 * Context: process context, but for stream_pending_has_room() and stream_pending_bytes().
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uio.h>
#include <net/tcp.h>

#include "stream.h"

static u8 *unsent_alloc(u8 peer, u32 size)
{
	u8 *memory = NULL;

	if (!stream_budget_take(STREAM_BUDGET_UNSENT, peer, size))
		return NULL;
	memory = kvmalloc(size, GFP_KERNEL);
	if (!memory)
		stream_budget_give(STREAM_BUDGET_UNSENT, peer, size);
	return memory;
}

/* The program waits for room where there is no memory: nothing is tried hard. */
static u8 *pending_alloc(u8 peer)
{
	u8 *memory = NULL;

	if (!stream_budget_take(STREAM_BUDGET_PENDING, peer, STREAM_PENDING_PART))
		return NULL;
	memory = kmalloc(STREAM_PENDING_PART, GFP_KERNEL_ACCOUNT | __GFP_NORETRY | __GFP_NOWARN);
	if (!memory)
		stream_budget_give(STREAM_BUDGET_PENDING, peer, STREAM_PENDING_PART);
	return memory;
}

static void pending_free(u8 peer, u8 *memory)
{
	if (!memory)
		return;
	kfree(memory);
	stream_budget_give(STREAM_BUDGET_PENDING, peer, STREAM_PENDING_PART);
}

/**
 * stream_unsent_copy() - copy what the peer may not have read of our ring
 * @stream: a stream whose lane is being closed; tx_ring held
 *
 * The stream is spoilt if that cannot be had.
 */
void stream_unsent_copy(struct stream *stream)
{
	struct vmloop_ring_tx *tx = &stream->held->tx;
	u32 account = vmloop_ring_account(tx);
	const void *from;
	u32 size, bytes;

	lockdep_assert_held(&stream->tx_ring);
	/* The peer has let go of what it has not read. */
	if (tx->broken == VMLOOP_RING_MOVE) {
		stream_spoil(stream, STREAM_FAULT_LIE);
		return;
	}
	/* The hello, or a part of it, may be among it. */
	size = min_t(u64, account, stream->sent);
	stream->unsent_from = stream->sent - size;
	if (!size)
		return;
	stream->unsent_peer = stream_budget_peer(stream);
	stream->unsent = unsent_alloc(stream->unsent_peer, size);
	if (!stream->unsent) {
		stream_spoil(stream, STREAM_FAULT_UNSENT);
		return;
	}
	stream->unsent_memory = size;
	while (stream->unsent_size < size) {
		bytes = vmloop_ring_unread(tx, account - size + stream->unsent_size, &from);
		bytes = min(bytes, size - stream->unsent_size);
		if (!bytes)
			break;
		memcpy(stream->unsent + stream->unsent_size, from, bytes);
		WRITE_ONCE(stream->unsent_size, stream->unsent_size + bytes);
	}
}

/*
 * How many bytes were copied; -EAGAIN: there is no room; -EFAULT: fault memory in. All that has
 * room goes at once: another thread's bytes are before it, or behind it.
 */
static int add(struct stream *stream, struct msghdr *msg, size_t size)
{
	u32 most = STREAM_PENDING_MOST, at, room;
	size_t done = 0, copied;
	bool fault = false;
	u8 *part;

	lockdep_assert_held(&stream->tx_ring);
	/* It is to fit into the ring, which will be empty. */
	if (stream->tx == STREAM_TX_SAID)
		most = min(most, stream->held->tx.size);
	while (!fault && done < size && stream->pending_size < most) {
		at = stream->pending_size % STREAM_PENDING_PART;
		part = stream->pending[stream->pending_size / STREAM_PENDING_PART];
		if (!part)
			break;
		room = min3(size - done, (size_t)(most - stream->pending_size),
			    (size_t)(STREAM_PENDING_PART - at));
		pagefault_disable();
		copied = copy_from_iter(part + at, room, &msg->msg_iter);
		pagefault_enable();
		fault = copied < room;
		done += copied;
		/* Pairs with the acquire in stream_pending_by_tcp(): the bytes are there. */
		smp_store_release(&stream->pending_size, stream->pending_size + copied);
	}
	if (done)
		return done;
	return fault ? -EFAULT : -EAGAIN;
}

static bool is_carried_by_nothing(const struct stream *stream)
{
	lockdep_assert_held(&stream->tx_ring);
	return stream->tx == STREAM_TX_SAID || stream->tx == STREAM_TX_BACK;
}

/**
 * stream_pending_refuse() - a call has to wait until TCP carries the stream
 * @stream: the stream
 *
 * poll() says from now on that nothing can be written, until something carries it.
 */
void stream_pending_refuse(struct stream *stream)
{
	mutex_lock(&stream->tx_ring);
	if (is_carried_by_nothing(stream))
		WRITE_ONCE(stream->pending_refused, true);
	mutex_unlock(&stream->tx_ring);
}

/*
 * Memory for the parts that so many bytes take, of those that are not there. Returns the index of
 * the first for which there is none, or STREAM_PENDING_PARTS.
 */
static unsigned int alloc_parts(struct stream *stream, u8 peer, u32 size, u8 **memory)
{
	u32 from = READ_ONCE(stream->pending_size), i;
	u32 to = min(from + size, STREAM_PENDING_MOST);

	for (i = from / STREAM_PENDING_PART; i * STREAM_PENDING_PART < to; i++) {
		if (READ_ONCE(stream->pending[i]))
			continue;
		memory[i] = pending_alloc(peer);
		if (!memory[i])
			return i;
	}
	return STREAM_PENDING_PARTS;
}

/* What is used of that leaves @memory. All parts count for the peer of the first. */
static void put_parts(struct stream *stream, u8 peer, u8 **memory)
{
	unsigned int i;

	lockdep_assert_held(&stream->tx_ring);
	if (memory[0] && !stream->pending[0])
		WRITE_ONCE(stream->pending_peer, peer);
	else if (!stream->pending[0] || stream->pending_peer != peer)
		return;
	for (i = 0; i < STREAM_PENDING_PARTS; i++) {
		if (!memory[i] || stream->pending[i])
			continue;
		WRITE_ONCE(stream->pending[i], memory[i]);
		memory[i] = NULL;
	}
}

/* The first part that is not there, of those that so many bytes take; or STREAM_PENDING_PARTS. */
static unsigned int missing_part(const struct stream *stream, u32 size)
{
	u32 to = min(stream->pending_size + size, STREAM_PENDING_MOST), i;

	lockdep_assert_held(&stream->tx_ring);
	for (i = stream->pending_size / STREAM_PENDING_PART; i * STREAM_PENDING_PART < to; i++)
		if (!stream->pending[i])
			return i;
	return STREAM_PENDING_PARTS;
}

/*
 * The call's bytes become pending. Parts that are not there come from @memory; alloc_parts() had
 * none for the part @failed. Return: as stream_pending_add().
 */
static int add_or_refuse(struct stream *stream, struct msghdr *msg, size_t size, u8 peer,
			 u8 **memory, unsigned int failed)
{
	unsigned int at = stream->pending_size / STREAM_PENDING_PART, missing;
	struct sock *sk = stream->sk;

	put_parts(stream, peer, memory);
	missing = missing_part(stream, size);
	if (missing < STREAM_PENDING_PARTS && missing == failed && missing == at)
		WRITE_ONCE(stream->pending_refused, true);
	if (READ_ONCE(sk->sk_err))
		return sock_error(sk);
	if ((READ_ONCE(sk->sk_shutdown) & SEND_SHUTDOWN) ||
	    test_bit(STREAM_SHUT, &stream->flags) || !stream_may_send(sk))
		return -EPIPE;
	if (at == STREAM_PENDING_PARTS || stream->pending_refused)
		return -EAGAIN;
	/* Others have added some meanwhile, or it was carried: other parts are needed. */
	if (missing != failed && missing != STREAM_PENDING_PARTS)
		return 0;
	return add(stream, msg, size);
}

/**
 * stream_pending_add() - take from a program what nothing carries yet
 * @stream: the stream
 * @msg: as of sendmsg()
 * @size: bytes of it, at least one
 *
 * Return: bytes that were taken; 0 if something carries the stream by now, or the call is to be
 * made again; -EAGAIN if there is no room or no memory; or another negative errno.
 */
int stream_pending_add(struct stream *stream, struct msghdr *msg, size_t size)
{
	u8 peer = READ_ONCE(stream->pending[0]) ? READ_ONCE(stream->pending_peer) :
						  stream_budget_peer(stream);
	unsigned int failed = STREAM_PENDING_PARTS, i;
	u8 *memory[STREAM_PENDING_PARTS] = {};
	int done = 0;

	size = min_t(size_t, size, STREAM_PENDING_MOST);
	/* Memory in a cgroup at its limit takes a while, and the core waits for the mutex. */
	if (!READ_ONCE(stream->pending_refused))
		failed = alloc_parts(stream, peer, size, memory);
	fault_in_iov_iter_readable(&msg->msg_iter, size);
	mutex_lock(&stream->tx_ring);
	if (is_carried_by_nothing(stream))
		done = add_or_refuse(stream, msg, size, peer, memory, failed);
	mutex_unlock(&stream->tx_ring);
	for (i = 0; i < STREAM_PENDING_PARTS; i++)
		pending_free(peer, memory[i]);
	if (done == -EFAULT && fault_in_iov_iter_readable(&msg->msg_iter, 1) == 0)
		done = 0;
	return done;
}

/* Bytes that lie together of those that are pending up to @size: how many, and where. */
static u32 from_part(struct stream *stream, u32 size, const u8 **from)
{
	u32 offset = stream->pending_at % STREAM_PENDING_PART;

	*from = stream->pending[stream->pending_at / STREAM_PENDING_PART] + offset;
	return min(size - stream->pending_at, STREAM_PENDING_PART - offset);
}

/**
 * stream_pending_to_ring() - the ring is to carry the stream: first what is pending
 * @stream: a stream whose lane is up; tx_ring held
 *
 * Return: whether all of it has gone there.
 */
bool stream_pending_to_ring(struct stream *stream)
{
	struct vmloop_lane *lane = stream->held;
	u32 left, room;
	const u8 *from;
	void *to;

	lockdep_assert_held(&stream->tx_ring);
	while (stream->pending_at < stream->pending_size) {
		left = from_part(stream, stream->pending_size, &from);
		room = min(vmloop_ring_space(&lane->tx, left, &to), left);
		if (!room)
			break;
		memcpy(to, from, room);
		vmloop_ring_add(&lane->tx, room);
		WRITE_ONCE(stream->pending_at, stream->pending_at + room);
		WRITE_ONCE(stream->sent, stream->sent + room);
		stream_count(STREAM_TX_BYTES, room);
	}
	if (vmloop_ring_publish(&lane->tx))
		vmloop_lane_ring(lane);
	return stream_pending_is_sent(stream);
}

/**
 * stream_pending_by_tcp() - send by TCP what the peer has not got by the ring, and what is pending
 * @stream: a stream that goes back; the peer's answer is known, or need not be
 *
 * Context: the stream's work.
 * Return: 0; -EAGAIN; or why the connection cannot go on.
 */
int stream_pending_by_tcp(struct stream *stream)
{
	const u8 *from;
	u32 left, size;
	int sent;

	while (stream->unsent_at < stream->unsent_size) {
		sent = stream_send_by_tcp(stream, stream->unsent + stream->unsent_at,
					  stream->unsent_size - stream->unsent_at);
		if (sent < 0)
			return sent;
		WRITE_ONCE(stream->unsent_at, stream->unsent_at + sent);
	}
	/* Pairs with the release in add(). */
	size = smp_load_acquire(&stream->pending_size);
	while (stream->pending_at < size) {
		left = from_part(stream, size, &from);
		sent = stream_send_by_tcp(stream, from, left);
		if (sent < 0)
			return sent;
		WRITE_ONCE(stream->pending_at, stream->pending_at + sent);
	}
	return 0;
}

/** stream_pending_is_sent() - whether all that was pending has been sent; tx_ring held */
bool stream_pending_is_sent(const struct stream *stream)
{
	lockdep_assert_held(&stream->tx_ring);
	return stream->pending_at == stream->pending_size;
}

/**
 * stream_pending_has_room() - whether a program that polls can write, though nothing carries the
 * stream
 * @stream: the stream
 *
 * Context: any.
 */
bool stream_pending_has_room(const struct stream *stream)
{
	return !READ_ONCE(stream->pending_size) && !READ_ONCE(stream->pending_refused);
}

/**
 * stream_pending_bytes() - how many bytes are unsent or pending
 * @stream: the stream
 *
 * Context: any; by a look at counts that move.
 */
u32 stream_pending_bytes(const struct stream *stream)
{
	s32 unsent = READ_ONCE(stream->unsent_size) - READ_ONCE(stream->unsent_at);
	s32 pending = READ_ONCE(stream->pending_size) - READ_ONCE(stream->pending_at);

	return max(unsent, 0) + max(pending, 0);
}

/**
 * stream_pending_free() - forget what is unsent and what is pending
 * @stream: the stream; something carries it again, or it has ended
 *
 * Context: tx_ring held, or nobody else has the stream.
 */
void stream_pending_free(struct stream *stream)
{
	unsigned int i;

	if (stream->unsent) {
		kvfree(stream->unsent);
		stream_budget_give(STREAM_BUDGET_UNSENT, stream->unsent_peer,
				   stream->unsent_memory);
	}
	stream->unsent = NULL;
	stream->unsent_memory = 0;
	WRITE_ONCE(stream->unsent_size, 0);
	WRITE_ONCE(stream->unsent_at, 0);
	for (i = 0; i < STREAM_PENDING_PARTS; i++) {
		pending_free(stream->pending_peer, stream->pending[i]);
		WRITE_ONCE(stream->pending[i], NULL);
	}
	WRITE_ONCE(stream->pending_size, 0);
	WRITE_ONCE(stream->pending_at, 0);
	WRITE_ONCE(stream->pending_refused, false);
}
