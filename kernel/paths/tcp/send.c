// SPDX-License-Identifier: GPL-2.0
/*
 * send.c - what an application sends: by TCP, into the lane's ring, or where neither
 * carries the stream, to what is pending.
 *
 * Nobody of ours sleeps inside of TCP: it is called with MSG_DONTWAIT, and we wait
 * here, where a lane that comes up or ends is seen.
 *
 * Context: process context.
 */
#include <linux/sched/signal.h>
#include <linux/uio.h>
#include <net/tcp.h>

#include "stream.h"
#include "compat.h"

/* These go by TCP alone, and with them all that follows. */
#define BY_TCP	(MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN)

/* In jiffies: when to try TCP again that has room, and no memory. */
#define MEMORY_TIME	((long)HZ / 20)

/* So many of a call's bytes have their memory faulted in before the ring is locked. */
#define READY_BYTES	(256U << 10)

/* Show the peer what is in the ring. The caller has tx_ring. */
static void show(struct stream *stream)
{
	struct vmloop_lane *lane = stream->held;

	if (lane->tx.head != lane->tx.published &&
	    READ_ONCE(lane->tx.theirs->rx_tail) == lane->tx.published)
		stream_ring_is_empty(stream);
	if (vmloop_ring_publish(&lane->tx))
		vmloop_lane_ring(lane);
}

/**
 * stream_send_show() - show the peer what was left for the next call to show
 * @stream: a stream whose lane is up
 *
 * Context: the stream's work.
 */
void stream_send_show(struct stream *stream)
{
	mutex_lock(&stream->tx_ring);
	if (stream->tx == STREAM_TX_RING)
		show(stream);
	mutex_unlock(&stream->tx_ring);
}

/*
 * The caller has tx_ring. Where not all has room, and with @ask, the peer is to ring
 * when there is more. Bytes written; -EAGAIN: no room; -EFAULT: fault memory in.
 *
 * A doorbell for each page of a file would cost more than the page. One that is not the
 * last is shown with those behind it; the work shows it if none comes.
 */
static int put(struct stream *stream, struct msghdr *msg, size_t size, bool ask)
{
	bool goes_on = msg->msg_flags & STREAM_GOES_ON;
	struct vmloop_lane *lane = stream->held;
	u32 part = stream_part(lane->tx.size);
	size_t done = 0, copied;
	bool fault = false, has_room;
	void *to;
	u32 room;

	lockdep_assert_held(&stream->tx_ring);
	if (!size)
		return 0;
	/* A peer that reads as fast as we write does not keep us here. */
	size = min_t(size_t, size, lane->tx.size);
	while (done < size && !fault) {
		room = min_t(size_t, size - done, part);
		room = min(vmloop_ring_space(&lane->tx, room, &to), room);
		if (!room)
			break;
		pagefault_disable();
		copied = copy_from_iter(to, room, &msg->msg_iter);
		pagefault_enable();
		fault = copied < room;
		vmloop_ring_add(&lane->tx, copied);
		done += copied;
		if (!goes_on || lane->tx.head - lane->tx.published >= part)
			show(stream);
	}
	if (done < size) {
		show(stream);
		if (!fault)
			stream_ring_is_full(stream);
	} else if (lane->tx.head != lane->tx.published &&
		   lane->tx.head - lane->tx.published <= done) {
		stream_queue(stream, 1);	/* once for each part */
	}
	WRITE_ONCE(stream->sent, stream->sent + done);
	if (lane->tx.broken)
		vmloop_lane_broken(lane, lane->tx.broken);
	if (done) {
		stream_count(STREAM_TX_BYTES, done);
		return done;
	}
	if (fault)
		return -EFAULT;
	if (!ask || lane->tx.broken)
		return -EAGAIN;
	spin_lock_bh(&stream->lane_lock);
	has_room = stream_want_room(stream);
	spin_unlock_bh(&stream->lane_lock);
	return has_room ? 0 : -EAGAIN;
}

static int by_ring(struct stream *stream, struct msghdr *msg, size_t size, bool ask)
{
	int done = 0;

	mutex_lock(&stream->tx_ring);
	if (stream->tx == STREAM_TX_RING) {
		if (READ_ONCE(stream->sk->sk_err))
			done = sock_error(stream->sk);
		else if ((READ_ONCE(stream->sk->sk_shutdown) & SEND_SHUTDOWN) ||
			 !stream_may_send(stream->sk))
			done = -EPIPE;
		else
			done = put(stream, msg, size, ask);
	}
	mutex_unlock(&stream->tx_ring);
	if (done == -EFAULT &&
	    fault_in_iov_iter_readable(&msg->msg_iter, 1) == 0)
		done = 0;
	return done;
}

/* What a program says of the bytes that TCP gets now. */
static void note_more(struct stream *stream, bool more, bool file)
{
	lockdep_assert_held(&stream->tx_mutex);
	WRITE_ONCE(stream->more, more);
	WRITE_ONCE(stream->more_at, jiffies);
	WRITE_ONCE(stream->file, file);
}

#ifdef HAVE_SOCK_NO_SENDPAGE
/* TCP takes the page as it is. Later kernels say MSG_SPLICE_PAGES to sendmsg(). */
static int send_page(struct stream *stream, struct msghdr *msg, size_t size)
{
	int flags = (msg->msg_flags & ~STREAM_IS_PAGE) | MSG_DONTWAIT | MSG_NOSIGNAL;
	const struct bio_vec *part = msg->msg_iter.bvec;
	int offset = part->bv_offset + msg->msg_iter.iov_offset;
	int done;

	done = stream_base[stream->family]->sendpage(stream->sk, part->bv_page,
						     offset, size, flags);
	if (done > 0)
		iov_iter_advance(&msg->msg_iter, done);
	return done;
}

/**
 * stream_send_page() - what sendpage() is as a rule: TCP carries the stream, and has room
 * @stream: its stream
 * @page: what to send of
 * @offset: where in it
 * @size: bytes
 * @flags: as of sendpage(), by the kernel's own callers
 *
 * A file goes page by page: all that stream_send() gets ready for a wait shows in its rate.
 *
 * Return: bytes that were taken; -EAGAIN if stream_send() is to try; or another negative errno, of
 * which TCP has told the program.
 */
int stream_send_page(struct stream *stream, struct page *page, int offset, size_t size, int flags)
{
	int done = -EAGAIN;

	if (READ_ONCE(stream->tx) != STREAM_TX_TCP || test_bit(STREAM_SHUT, &stream->flags) ||
	    !mutex_trylock(&stream->tx_mutex))
		return -EAGAIN;
	if (READ_ONCE(stream->tx) == STREAM_TX_TCP && !test_bit(STREAM_SHUT, &stream->flags) &&
	    !stream_is_anothers(stream)) {
		note_more(stream, flags & (MSG_MORE | MSG_SENDPAGE_NOTLAST), true);
		done = stream_base[stream->family]->sendpage(stream->sk, page, offset, size,
							     flags | MSG_DONTWAIT);
	}
	mutex_unlock(&stream->tx_mutex);
	if (done > 0)
		stream_moved(stream, done, true);
	return done;
}
#else
static int send_page(struct stream *stream, struct msghdr *msg, size_t size)
{
	return -EOPNOTSUPP;	/* not reached: nothing says STREAM_IS_PAGE */
}
#endif

/* As sk_stream_error(): an error of the connection's goes before. */
static int error_of_end(struct stream *stream)
{
	return stream_is_anothers(stream) ? -EPIPE : sock_error(stream->sk) ?: -EPIPE;
}

/* TCP's sendmsg(), which does not wait, and says nothing by a signal. */
static int send_now(struct stream *stream, struct msghdr *msg, size_t size)
{
	unsigned int flags = msg->msg_flags;
	int done;

	msg->msg_flags |= MSG_DONTWAIT | MSG_NOSIGNAL;
	done = stream_base[stream->family]->sendmsg(stream->sk, msg, size);
	msg->msg_flags = flags;
	return done;
}

static int by_tcp(struct stream *stream, struct msghdr *msg, size_t size)
{
	unsigned int flags = msg->msg_flags;
	int done = 0;

	/* TCP's own lock keeps a call with MSG_DONTWAIT as long, and no signal ends that. */
	if (flags & MSG_DONTWAIT ? mutex_lock_killable(&stream->tx_mutex) :
				   mutex_lock_interruptible(&stream->tx_mutex))
		return -ERESTARTSYS;
	/* The peer's program may have been told that nothing follows. */
	if (test_bit(STREAM_SHUT, &stream->flags) || stream_is_anothers(stream)) {
		done = error_of_end(stream);
	} else if (READ_ONCE(stream->tx) == STREAM_TX_TCP) {
		note_more(stream, flags & MSG_MORE, flags & STREAM_IS_FILE);
		done = flags & STREAM_IS_PAGE ? send_page(stream, msg, size) :
						send_now(stream, msg, size);
	}
	mutex_unlock(&stream->tx_mutex);
	if (done > 0)
		stream_moved(stream, done, true);
	return done;
}

/* Once; 0 if it is to be tried again at once, as something else carries it. @ask: as for put() */
static int send_once(struct stream *stream, struct msghdr *msg, size_t size,
		     bool ask)
{
	/* The FIN is on its way, or the connection is another one by now. */
	if (test_bit(STREAM_SHUT, &stream->flags) || stream_is_anothers(stream))
		return error_of_end(stream);
	if (READ_ONCE(stream->tx) == STREAM_TX_TCP) {
		/* A reader that skips an urgent byte reads on behind it, where a lane may begin. */
		if (msg->msg_flags & MSG_OOB)
			stream_leave(stream);
		return by_tcp(stream, msg, size);
	}
	if (size && (msg->msg_flags & BY_TCP)) {
		stream_leave(stream);
		stream_pending_refuse(stream);
		return -EAGAIN;
	}
	if (READ_ONCE(stream->tx) == STREAM_TX_RING)
		return by_ring(stream, msg, size, ask);
	/* Nothing waits for nothing. */
	return size ? stream_pending_add(stream, msg, size) : 0;
}

static void wants_space(struct sock *sk)
{
	struct socket *sock = READ_ONCE(sk->sk_socket);

	if (sock)
		set_bit(SOCK_NOSPACE, &sock->flags);
	sk_set_bit(SOCKWQ_ASYNC_NOSPACE, sk);
}

/*
 * TCP has no room, and will say when it has. If it has room and takes nothing, memory is short
 * or the connection is not there yet. The caller has said that it wants space.
 */
static bool is_full(struct stream *stream)
{
	struct sock *sk = stream->sk;

	/* Pairs with the one in tcp_check_space(), as tcp_poll()'s does. */
	smp_mb();
	return READ_ONCE(stream->tx) == STREAM_TX_TCP && !READ_ONCE(sk->sk_err) &&
	       !(READ_ONCE(sk->sk_shutdown) & SEND_SHUTDOWN) &&
	       !sk_stream_is_writeable(sk);
}

/*
 * Sleep until there may be room, for @most at most. Returns what is left of the time. @had_room:
 * TCP had room the last time as well, and took nothing.
 */
static long wait_for_space(struct stream *stream, struct wait_queue_entry *wait, long left,
			   long most, bool *had_room)
{
	bool has_room, no_memory;
	long rest;

	wants_space(stream->sk);
	has_room = READ_ONCE(stream->tx) == STREAM_TX_TCP && !is_full(stream);
	no_memory = has_room && *had_room;
	*had_room = has_room;
	/* Room that came since the last try is tried at once. */
	if (has_room && !no_memory)
		return left;
	/*
	 * TCP tells at once of the room that there is, and of memory it does not tell: it looks
	 * again after a while, too (sk_stream_wait_memory()).
	 */
	if (no_memory) {
		most = min(most, MEMORY_TIME);
		wait->flags &= ~WQ_FLAG_WOKEN;
	}
	rest = wait_woken(wait, TASK_INTERRUPTIBLE, most);
	return left == MAX_SCHEDULE_TIMEOUT ? left : left - most + rest;
}

/* What TCP would say of control messages, of which lanes carry none. */
static int check_control(struct sock *sk, struct msghdr *msg)
{
	struct sockcm_cookie cookie;

	if (!msg->msg_controllen)
		return 0;
	sockcm_init(&cookie, sk);
	return sock_cmsg_send(sk, msg, &cookie) ? -EINVAL : 0;
}

/**
 * stream_send() - sendmsg() of a socket that was taken over
 * @stream: its stream
 * @msg: as of sendmsg()
 * @size: bytes of it
 *
 * Return: bytes that were taken, or a negative errno.
 */
int stream_send(struct stream *stream, struct msghdr *msg, size_t size)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	struct sock *sk = stream->sk;
	bool waits = false, ask = false, had_room = false, is_rest = false;
	int err, disconnects = compat_disconnects(sk);
	size_t done = 0;
	u64 began = 0;
	long left;

	if (READ_ONCE(stream->tx) != STREAM_TX_TCP) {
		err = check_control(sk, msg);
		if (err)
			return err;
	}
	left = sock_sndtimeo(sk, msg->msg_flags & MSG_DONTWAIT);
	/* Once at least: nothing can be sent, too. */
	for (;;) {
		/* What TCP would say of it, it says at the next call. */
		if (done && (READ_ONCE(sk->sk_err) ||
			     (READ_ONCE(sk->sk_shutdown) & SEND_SHUTDOWN)))
			break;
		if (is_rest && compat_disconnects(sk) != disconnects) {
			err = -EPIPE;
			break;
		}
		/* TCP with room takes a call's bytes without another thread's among them. */
		if (!done && !ask && READ_ONCE(stream->tx) == STREAM_TX_RING)
			fault_in_iov_iter_readable(&msg->msg_iter,
						   min_t(size_t, size, READY_BYTES));
		err = is_rest ? send_now(stream, msg, size - done) :
				send_once(stream, msg, size - done, ask);
		if (err >= 0) {
			done += err;
			had_room = false;
			if (err && began) {
				stream_spin_learn(stream, &stream->tx_spin, began);
				began = 0;
				ask = false;
			}
			if (done >= size)
				break;
			/* A peer that says now this, now that, does not keep us. */
			if (!err && (left ? signal_pending(current) :
					    fatal_signal_pending(current))) {
				err = sock_intr_errno(left);
				break;
			}
			cond_resched();
			continue;
		}
		if (err != -EAGAIN)
			break;
		/* Try once more when we are sure to be told: an edge comes once. */
		if (!ask) {
			if (left && READ_ONCE(stream->tx) == STREAM_TX_RING) {
				began = ktime_get_ns();
				stream_spin(stream, &stream->tx_spin, stream_has_room);
			}
			if (left && !waits) {
				add_wait_queue(sk_sleep(sk), &wait);
				waits = true;
			}
			wants_space(sk);
			ask = true;
			if (!is_full(stream))
				continue;
		}
		if (!left)
			break;
		if (signal_pending(current)) {
			err = sock_intr_errno(left);
			break;
		}
		if (!is_rest &&
		    (!stream_is_ours(sk) || test_bit(STREAM_DEAD, &stream->flags))) {
			err = stream_amid_call(stream, done);
			if (err)
				break;
			is_rest = true;
			continue;
		}
		if (is_rest && stream_ends_soon())
			left = min(left, STREAM_REST_TIME);
		left = wait_for_space(stream, &wait, left,
				      is_rest ? min(left, STREAM_REST_LOOK) : left, &had_room);
		/* As sk_wait_event(), and sk_stream_error(). */
		if (compat_disconnects(sk) != disconnects) {
			lock_sock(sk);	/* TCP says there what its error is */
			err = done ? -EPIPE : sock_error(sk) ?: -EPIPE;
			release_sock(sk);
			break;
		}
	}
	if (waits)
		remove_wait_queue(sk_sleep(sk), &wait);
	if (is_rest && err == -EAGAIN && stream_ends_soon())
		err = -ERESTARTSYS;
	if (done) {
		stream_keep_error(stream, err);
		return done;
	}
	if (err == -EPIPE && !(msg->msg_flags & MSG_NOSIGNAL))
		send_sig(SIGPIPE, current, 0);
	return err;
}

/* TCP tells an error once. The socket is locked. */
static void keep_error(struct stream *stream, int err)
{
	struct sock *sk = stream->sk;

	if (stream_is_anothers(stream))
		return;
	cmpxchg(&sk->sk_err, 0, -err);
	sk_error_report(sk);
}

/* Whether an error is of the connection, and not of the call. */
static bool is_of_connection(int err)
{
	switch (-err) {
	case ECONNABORTED:
	case ECONNREFUSED:
	case ECONNRESET:
	case EHOSTDOWN:
	case EHOSTUNREACH:
	case ENETUNREACH:
	case ENONET:
	case ENOPROTOOPT:
	case EPROTO:
	case ETIMEDOUT:
		return true;
	}
	return false;
}

/**
 * stream_keep_error() - an error of TCP's was told to us: the application is to see it
 * @stream: the stream; if its socket has another connection by now, that one hears nothing
 * @err: what a call of TCP's returned; nothing is done if it is not of the connection
 *
 * Context: process context, the socket not locked.
 */
void stream_keep_error(struct stream *stream, int err)
{
	if (!is_of_connection(err))
		return;
	lock_sock(stream->sk);
	keep_error(stream, err);
	release_sock(stream->sk);
}

/*
 * As TCP's sendmsg(), and it does not wait. The bytes have been taken from a program, so TCP takes
 * them though its buffer has no room: the way back does not depend on what the peer's program
 * reads. The flag keeps TCP from lowering the buffer's size where memory is short, and from
 * taking bytes beyond its own bounds for that. And TCP is not told of an error that a program is
 * to hear, and that may not be the connection's end. The caller has the socket locked.
 */
static int send_anyway(struct stream *stream, struct msghdr *msg, size_t size)
{
	struct sock *sk = stream->sk;
	int had = sk->sk_sndbuf, err = sock_error(sk), sent;
	bool is_set = sk->sk_userlocks & SOCK_SNDBUF_LOCK;
	/* Twice as much is what TCP takes bytes to cost in memory. */
	s64 room = (s64)sk->sk_wmem_queued + 2 * (s64)size + (64 << 10);

	WRITE_ONCE(sk->sk_sndbuf, (int)clamp_t(s64, room, had, INT_MAX));
	sk->sk_userlocks |= SOCK_SNDBUF_LOCK;
	WRITE_ONCE(stream->by_work, current);
	sent = stream_base_ops[stream->family]->sendmsg_locked(sk, msg, size);
	WRITE_ONCE(stream->by_work, NULL);
	if (!is_set)
		sk->sk_userlocks &= ~SOCK_SNDBUF_LOCK;
	WRITE_ONCE(sk->sk_sndbuf, had);
	if (err && !cmpxchg(&sk->sk_err, 0, -err))
		sk_error_report(sk);
	return sent;
}

/**
 * stream_send_by_tcp() - send bytes of ours by TCP, whatever carries the stream
 * @stream: the stream
 * @from: the bytes
 * @size: how many
 *
 * Context: the stream's work; nobody else sends by TCP now.
 * Return: how many went, or a negative errno; -EAGAIN where there is no memory, or a program keeps
 * the socket locked.
 */
int stream_send_by_tcp(struct stream *stream, const void *from, size_t size)
{
	struct msghdr msg = { .msg_flags = MSG_DONTWAIT | MSG_NOSIGNAL };
	struct kvec part = { .iov_base = (void *)from, .iov_len = size };
	struct sock *sk = stream->sk;
	int sent = -ENOTCONN;

	iov_iter_kvec(&msg.msg_iter, ITER_SOURCE, &part, 1, size);
	if (!stream_lock_sock(stream))
		return -EAGAIN;
	/* One that was disconnected may be another connection's by now. */
	if (sk->sk_socket && !test_bit(STREAM_DEAD, &stream->flags) &&
	    stream_may_send(sk))
		sent = send_anyway(stream, &msg, size);
	if (is_of_connection(sent))
		keep_error(stream, sent);
	release_sock(sk);
	return sent;
}
