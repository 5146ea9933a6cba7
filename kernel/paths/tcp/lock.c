// SPDX-License-Identifier: GPL-2.0
/*
 * lock.c - locks that a program may hold for as long as it likes.
 *
 * TCP copies from and to a program's memory under the socket's lock, and we call it under
 * tx_mutex or rx_mutex. Where the program has that memory from a file system of its own, a
 * page may never come. The works of all streams share a workqueue, which runs so many at a
 * time: none of them waits long for such a lock, and not again while it is not to be had. Calls of
 * TCP's that take the lock themselves have a workqueue of their own.
 *
 * Owns nothing. Context: process context.
 */
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/lockdep.h>
#include <linux/mutex.h>
#include <net/tcp.h>

#include "stream.h"

/* A call that does not wait for memory holds a lock for some microseconds. */
#define PATIENCE	msecs_to_jiffies(20)
#define LOOK_US		50
#define LATER		msecs_to_jiffies(100)

/**
 * stream_try_lock_sock() - lock_sock(), if nobody owns the socket
 * @sk: the socket
 *
 * Return: whether it is locked, until release_sock().
 */
bool stream_try_lock_sock(struct sock *sk)
{
	bool is_free;

	spin_lock_bh(&sk->sk_lock.slock);
	is_free = !sock_owned_by_user_nocheck(sk);
	if (is_free)
		sk->sk_lock.owned = 1;
	spin_unlock_bh(&sk->sk_lock.slock);
	if (is_free)
		mutex_acquire(&sk->sk_lock.dep_map, 0, 1, _RET_IP_);
	return is_free;
}

/* Whether the work may try once more. */
static bool may_wait(struct stream *stream, unsigned long start)
{
	if (stream->was_kept_out || stream->is_kept_out ||
	    time_after(jiffies, start + PATIENCE)) {
		stream->is_kept_out = true;
		return false;
	}
	usleep_range(LOOK_US, 2 * LOOK_US);
	return true;
}

/**
 * stream_lock_sock() - lock_sock() for the stream's work, unless somebody holds the lock for long
 * @stream: the stream
 *
 * Return: whether the socket is locked, until release_sock(); if not, the work runs again later.
 */
bool stream_lock_sock(struct stream *stream)
{
	unsigned long start = jiffies;

	while (!stream_try_lock_sock(stream->sk))
		if (!may_wait(stream, start))
			return false;
	stream->kept_out_since = jiffies;
	stream->kept_out = 0;
	return true;
}

/**
 * stream_lock_mutex() - mutex_lock() for the stream's work, unless somebody holds it for long
 * @stream: the stream
 * @mutex: its tx_mutex or rx_mutex
 *
 * Return: whether it is locked, until mutex_unlock(); if not, the work runs again later.
 */
bool stream_lock_mutex(struct stream *stream, struct mutex *mutex)
{
	unsigned long start = jiffies;

	while (!mutex_trylock(mutex))
		if (!may_wait(stream, start))
			return false;
	return true;
}

/**
 * stream_slow_work() - calls of TCP's that take the socket's lock themselves
 * @work: a stream's
 *
 * Not while somebody has it, so that they wait only where another call begins just then. If a
 * program disconnects and connects anew in that moment, its new connection may be reset.
 */
void stream_slow_work(struct work_struct *work)
{
	struct stream *stream = container_of(to_delayed_work(work), struct stream, slow);
	struct sock *sk = stream->sk;
	bool is_gone;

	if (!stream_try_lock_sock(sk)) {
		if (!queue_delayed_work(stream_slow_workqueue, &stream->slow, LATER))
			stream_put(stream);
		return;
	}
	is_gone = test_bit(STREAM_DEAD, &stream->flags) || sk->sk_state == TCP_CLOSE;
	release_sock(sk);
	/* This one at once; TCP delays the next ones as before. */
	if (test_and_clear_bit(STREAM_ACK, &stream->flags) && !is_gone)
		tcp_sock_set_quickack(sk, inet_csk_in_pingpong_mode(sk) ? 2 : 1);
	if (test_bit(STREAM_ABORT, &stream->flags) &&
	    !test_bit(STREAM_ABORTED, &stream->flags)) {
		if (!is_gone && stream_base[stream->family]->diag_destroy)
			stream_base[stream->family]->diag_destroy(sk, ECONNRESET);
		set_bit(STREAM_ABORTED, &stream->flags);
		stream_queue(stream, 0);
	}
	stream_put(stream);
}

static void queue_slow(struct stream *stream)
{
	stream_hold(stream);
	if (!queue_delayed_work(stream_slow_workqueue, &stream->slow, 0))
		stream_put(stream);	/* the reference of the one that was queued */
}

/** stream_ack_at_once() - have TCP send the acknowledgment that it owes, and not delay it */
void stream_ack_at_once(struct stream *stream)
{
	set_bit(STREAM_ACK, &stream->flags);
	queue_slow(stream);
}

/**
 * stream_abort() - have TCP end a connection, as by a reset
 * @stream: its stream, whose work runs again then
 *
 * Return: whether it is the first to ask for that.
 */
bool stream_abort(struct stream *stream)
{
	if (test_and_set_bit(STREAM_ABORT, &stream->flags))
		return false;
	queue_slow(stream);
	return true;
}
