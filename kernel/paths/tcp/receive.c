// SPDX-License-Identifier: GPL-2.0
/*
 * receive.c - what an application receives: TCP's up to where the peer has stopped to
 * send by TCP, then the ring's, then TCP's again, to which merge.c has given what was
 * in the ring when it went.
 *
 * Context: process context.
 */
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uio.h>
#include <net/tcp.h>

#include "stream.h"
#include "compat.h"

/* Where the next byte comes from. */
enum source {
	FROM_TCP,		/* all that it has */
	FROM_TCP_BEFORE,	/* what the peer sent by it before the ring */
	FROM_RING,
	FROM_NOWHERE,		/* what follows is not known yet */
};

/*
 * The caller has rx_ring. @limit is what may be taken with FROM_TCP_BEFORE.
 * As long as we have not heard the peer's hello, and so have not answered it, TCP has
 * nothing that follows it. We hear it with rx_mutex only, and read TCP with that.
 */
static enum source source_of(struct stream *stream, u32 *limit)
{
	struct sock *sk = stream->sk;

	lockdep_assert_held(&stream->rx_ring);
	if (!stream->heard)
		return FROM_TCP;
	*limit = stream->seq - READ_ONCE(tcp_sk(sk)->copied_seq);
	if ((s32)*limit > 0)
		return FROM_TCP_BEFORE;
	/* What was kept is TCP's soon. */
	if (stream->closed || !skb_queue_empty(&stream->kept))
		return FROM_NOWHERE;
	return FROM_RING;
}

static size_t copy_out(const void *from, size_t size, struct msghdr *msg, int flags)
{
	size_t copied;

	if (flags & MSG_TRUNC)
		return size;
	pagefault_disable();
	copied = copy_to_iter(from, size, &msg->msg_iter);
	pagefault_enable();
	return copied;
}

/* Whether somebody polls, or may, who has not asked us whether the socket can be read. */
static bool is_polled(struct stream *stream, int flags, bool ask)
{
	struct sock *sk = stream->sk;
	bool waits;

	/* After a call that does not wait a program polls, for an edge as a rule. */
	if ((flags & MSG_DONTWAIT) || sock_flag(sk, SOCK_FASYNC))
		return true;
	if (ask)
		return false;	/* it is the caller who waits */
	rcu_read_lock();
	waits = skwq_has_sleeper(rcu_dereference(sk->sk_wq));
	rcu_read_unlock();
	return waits;
}

/*
 * Nothing is left: those who poll, and the caller if it is about to sleep (@ask), are
 * told of what comes next. As long as bytes are left nobody needs to be told of them
 * again, and what was asked for before is pending. The caller has rx_ring. Returns
 * whether something has come by now.
 */
static bool look_out(struct stream *stream, bool work, int flags, bool ask)
{
	const struct vmloop_ring_rx *rx = &stream->held->rx;
	unsigned int news;
	bool polled;

	polled = READ_ONCE(stream->polled) || is_polled(stream, flags, ask);
	if (!polled && (!ask || work))
		return false;
	spin_lock_bh(&stream->lane_lock);
	if (polled)
		WRITE_ONCE(stream->polled, true);
	if (ask && !work)
		WRITE_ONCE(stream->wants_bytes, true);
	/* What is read needs no telling; what is told of may be more. */
	if ((s32)(stream->rx_told - rx->tail) < 0)
		WRITE_ONCE(stream->rx_told, rx->tail);
	news = stream_look_out(stream, work);
	spin_unlock_bh(&stream->lane_lock);
	return news & STREAM_NEWS_BYTES;
}

/**
 * stream_took_back() - whether the peer says that it has come less far than when poll() looked
 * @stream: a stream with a lane; rx_ring held, after a look at its ring
 *
 * What poll() has told of, and has been read since, counts no more.
 */
bool stream_took_back(struct stream *stream)
{
	const struct vmloop_ring_rx *rx = &stream->held->rx;
	bool is_ahead;
	u32 promised;

	lockdep_assert_held(&stream->rx_ring);
	if (!READ_ONCE(stream->promises))
		return false;
	spin_lock_bh(&stream->lane_lock);
	promised = stream->rx_promised;
	is_ahead = (s32)(promised - rx->head) > 0;
	if (!is_ahead)
		WRITE_ONCE(stream->promises, false);
	spin_unlock_bh(&stream->lane_lock);
	/* It may have come between our look and the promise: an honest peer goes on only. */
	return is_ahead && (s32)(promised - vmloop_ring_seen(rx)) > 0;
}

/*
 * The caller has rx_ring. @faults: so many bytes more may be there, for which the program's memory
 * has to be faulted in.
 */
static int get(struct stream *stream, struct msghdr *msg, size_t size, int flags,
	       bool ask, size_t *faults)
{
	struct vmloop_lane *lane = stream->held;
	u32 part = stream_part(lane->rx.size);
	bool fault = false, came = false, peeks = flags & MSG_PEEK;
	size_t done = 0, copied;
	const void *from;
	u32 bytes;

	/* A peer that writes as fast as we read does not keep us here. */
	size = min_t(size_t, size, vmloop_ring_most(&lane->rx));
	while (done < size && !fault) {
		bytes = min_t(size_t, size - done, part);
		bytes = min(vmloop_ring_bytes(&lane->rx, peeks ? done : 0, bytes,
					      &from), bytes);
		if (!bytes)
			break;
		copied = copy_out(from, bytes, msg, flags);
		fault = copied < bytes;
		done += copied;
		if (peeks)
			continue;
		vmloop_ring_take(&lane->rx, copied);
		if (vmloop_ring_consume_publish(&lane->rx))
			vmloop_lane_ring(lane);
	}
	/* No more than there are bytes for: the rest of a large buffer may never be used. */
	if (fault)
		*faults = clamp_t(size_t, lane->rx.head - lane->rx.tail - (peeks ? done : 0),
				  1, size - done);
	if (!peeks && done) {
		WRITE_ONCE(stream->got, stream->got + done);
		stream_count(STREAM_RX_BYTES, done);
	}
	/* A ring that has moved, and has brought nothing yet: the peer has the old one back. */
	if (!done && lane->rx.move != VMLOOP_RING_STAYS)
		vmloop_ring_consume_publish(&lane->rx);
	if (stream_took_back(stream) && !lane->rx.broken)
		lane->rx.broken = VMLOOP_RING_HEAD;
	/* A program that was told of bytes is not to wait for them: the connection is reset. */
	if (lane->rx.broken) {
		stream_spoil(stream, STREAM_FAULT_LIE);
		stream_queue(stream, 0);
	}
	if (lane->rx.broken)
		vmloop_lane_broken(lane, lane->rx.broken);
	else if (lane->rx.head == lane->rx.tail)
		came = look_out(stream, done, flags, ask);
	if (done)
		return done;
	if (fault)
		return -EFAULT;
	/* Nothing is wanted, and there is something. */
	if (!size && !lane->rx.broken && vmloop_ring_ready(&lane->rx))
		return 0;
	return came ? 0 : -EAGAIN;
}

/**
 * stream_is_at_end() - whether the program has read the last byte of the peer's program
 * @stream: the stream; lane_lock held
 *
 * The peer has said that it was the last; TCP's FIN may not have come. Without rx_ring it is a
 * look: where bytes are on their way from the ring to TCP, they may be missed for a moment.
 */
bool stream_is_at_end(const struct stream *stream)
{
	const struct sock *sk = stream->sk;

	lockdep_assert_held(&stream->lane_lock);
	if (test_bit(STREAM_AT_END, &stream->flags))
		return true;
	/* Pairs with the release in stream_lane_close(). */
	if (!stream->lane && !smp_load_acquire(&stream->closed))
		return false;
	if (!stream_is_last(stream) || !skb_queue_empty_lockless(&stream->kept))
		return false;
	/* Pairs with the barrier in switch.c's keep_no_more(): what was kept may be lost. */
	smp_rmb();
	if (!test_bit(STREAM_LAST, &stream->flags))
		return false;
	if (READ_ONCE(stream->heard))
		return (s32)(READ_ONCE(stream->seq) - READ_ONCE(tcp_sk(sk)->copied_seq)) <= 0 &&
		       !(stream->lane && stream_arrived(stream->lane, 1));
	return !stream->lane && skb_queue_empty_lockless(&sk->sk_receive_queue);
}

/*
 * There is nothing: an error, which is told once; 0 at the end (@end); or -EAGAIN. With @last
 * it is the end from now on, though TCP's FIN comes later; and as behind a FIN no error is told.
 */
static int nothing(struct stream *stream, bool end, bool last)
{
	int err;

	if (last)
		set_bit(STREAM_AT_END, &stream->flags);
	if (test_bit(STREAM_AT_END, &stream->flags))
		return 0;
	err = sock_error(stream->sk);
	if (err)
		return err;
	return end ? 0 : -EAGAIN;
}

/* TCP's recvmsg(), which does not wait. */
static int receive_now(struct stream *stream, struct msghdr *msg, size_t size, int flags)
{
	return compat_recvmsg(stream_base[stream->family], stream->sk, msg, size,
			      (flags & ~MSG_WAITALL) | MSG_DONTWAIT);
}

static int by_tcp(struct stream *stream, struct msghdr *msg, size_t size, int flags)
{
	enum source source;
	bool ends = false;
	u32 limit = 0;
	int got;

	/* TCP's own lock keeps a call with MSG_DONTWAIT as long, and no signal ends that. */
	if (flags & MSG_DONTWAIT ? mutex_lock_killable(&stream->rx_mutex) :
				   mutex_lock_interruptible(&stream->rx_mutex))
		return -ERESTARTSYS;
	mutex_lock(&stream->rx_ring);
	/* Pairs with the release in stream_lane_open(). */
	if (smp_load_acquire(&stream->held) && stream_is_up(stream))
		stream_hear(stream);
	source = source_of(stream, &limit);
	/* TCP has all of what was kept; its FIN may not have come. */
	if (source == FROM_TCP)
		ends = READ_ONCE(stream->closed) && stream_is_last(stream);
	mutex_unlock(&stream->rx_ring);
	switch (source) {
	case FROM_TCP_BEFORE:
		size = min_t(size_t, size, limit);
		fallthrough;
	case FROM_TCP:
		if (stream_is_anothers(stream)) {
			got = -EPIPE;
			break;
		}
		got = receive_now(stream, msg, size, flags);
		break;
	default:
		got = -ERESTART;
	}
	mutex_unlock(&stream->rx_mutex);
	if (got == -EAGAIN)
		return nothing(stream, false, ends);
	if (got > 0 && !(flags & MSG_PEEK)) {
		stream_moved(stream, got, false);
		/* poll() is to tell of what is kept, of which TCP without memory takes a part. */
		if (source == FROM_TCP_BEFORE && got == limit &&
		    !skb_queue_empty_lockless(&stream->kept))
			stream_queue(stream, 0);
	}
	return got;
}

/*
 * Programs were told of what is kept: they need not wait for the work to make it TCP's. Where TCP
 * has no memory, a part of it is.
 */
static int from_kept(struct stream *stream)
{
	int err = stream_merge_kept(stream);
	u32 limit;

	if (err == -ENOMEM) {
		mutex_lock(&stream->rx_ring);
		if (source_of(stream, &limit) == FROM_TCP_BEFORE)
			err = 0;
		mutex_unlock(&stream->rx_ring);
	}
	return err ? nothing(stream, false, false) : -ERESTART;
}

/*
 * The ring has more than the program's memory could take with page faults off. Whether that is to
 * be tried again: bytes that were only looked at are looked at once more, from @start on.
 */
static bool fault_in(struct msghdr *msg, const struct iov_iter *start, int got, size_t size,
		     int flags)
{
	if (got != -EFAULT && !(flags & MSG_PEEK))
		return false;
	if (fault_in_iov_iter_writeable(&msg->msg_iter, size) == size)
		return false;
	if (flags & MSG_PEEK)
		msg->msg_iter = *start;
	return true;
}

/*
 * Once. Bytes, 0 at the end, -ERESTART: look again, or another negative errno. With
 * @ask, and where there is nothing, whoever sleeps is told of what comes.
 */
static int receive_once(struct stream *stream, struct msghdr *msg, size_t size,
			int flags, bool ask)
{
	struct iov_iter start = msg->msg_iter;
	int got = -ERESTART;
	size_t faults = 0;
	bool kept, last;
	u32 limit;

	if (stream_is_anothers(stream))
		return -EPIPE;
	/* TCP has thrown away what had come, and so do we. */
	if (stream_is_disconnected(stream->sk))
		return receive_now(stream, msg, size, flags);
	mutex_lock(&stream->rx_ring);
	last = stream_is_last(stream);
	switch (source_of(stream, &limit)) {
	case FROM_RING:
		got = get(stream, msg, size, flags, ask, &faults);
		if (!got && size)
			got = -ERESTART;
		if (got == -EAGAIN)
			got = nothing(stream, stream_reads_no_more(stream),
				      last && !stream->held->rx.broken);
		break;
	case FROM_NOWHERE:
		kept = !skb_queue_empty(&stream->kept);
		mutex_unlock(&stream->rx_ring);
		return kept ? from_kept(stream) :
			      nothing(stream, stream_is_shut_here(stream), last);
	default:
		mutex_unlock(&stream->rx_ring);
		return by_tcp(stream, msg, size, flags);
	}
	mutex_unlock(&stream->rx_ring);
	if (faults && fault_in(msg, &start, got, faults, flags))
		got = -ERESTART;
	return got;
}

/* Whether the byte that follows is TCP's urgent one: a call returns what is before it. */
static bool is_at_mark(const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	return READ_ONCE(tp->urg_data) &&
	       READ_ONCE(tp->urg_seq) == READ_ONCE(tp->copied_seq);
}

static bool has_come(const struct vmloop_lane *lane)
{
	const struct stream *stream = lane->priv;

	return vmloop_ring_moved(&lane->rx) || stream_is_last(stream);
}

/*
 * Whether a call that looks at bytes without taking them is to see more of them, as TCP has such a
 * one wait: for as long as TCP alone carries the stream, and more may come.
 */
static bool may_see_more(const struct stream *stream)
{
	const struct sock *sk = stream->sk;

	return !READ_ONCE(stream->held) && !READ_ONCE(sk->sk_err) &&
	       READ_ONCE(sk->sk_state) != TCP_CLOSE && READ_ONCE(sk->sk_peek_off) < 0 &&
	       !(READ_ONCE(sk->sk_shutdown) & RCV_SHUTDOWN) && !READ_ONCE(tcp_sk(sk)->urg_data) &&
	       !test_bit(STREAM_AT_END, &stream->flags) && !stream_is_last(stream);
}

/* How far a call has written what there is beside the bytes: SO_TIMESTAMP and the like. */
struct control {
	void *at;
	size_t left;
	unsigned int flags;
};

static struct control control_of(const struct msghdr *msg)
{
	return (struct control){
		.at = msg->msg_control,
		.left = msg->msg_controllen,
		.flags = msg->msg_flags,
	};
}

static void set_control(struct msghdr *msg, const struct control *control)
{
	msg->msg_control = control->at;
	msg->msg_controllen = control->left;
	msg->msg_flags = control->flags;
}

/**
 * stream_receive() - recvmsg() of a socket that was taken over
 * @stream: its stream
 * @msg: as of recvmsg()
 * @size: bytes that are wanted
 * @flags: MSG_*
 *
 * Return: bytes that came, 0 at the stream's end, or a negative errno.
 */
int stream_receive(struct stream *stream, struct msghdr *msg, size_t size, int flags)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	struct sock *sk = stream->sk;
	bool waits = false, ask = false, is_rest = false;
	int got, disconnects = compat_disconnects(sk);
	size_t done = 0, seen = 0, target;
	struct control given = control_of(msg), had;
	long left, most, rest;
	struct iov_iter to;
	u64 began = 0;

	target = sock_rcvlowat(sk, flags & MSG_WAITALL, size);
	left = sock_rcvtimeo(sk, flags & MSG_DONTWAIT);
	for (;;) {
		/* What TCP would say of it, it says at the next call. */
		if (done && READ_ONCE(sk->sk_err))
			break;
		if (is_rest && compat_disconnects(sk) != disconnects) {
			got = -EPIPE;
			break;
		}
		if (flags & MSG_PEEK)
			to = msg->msg_iter;
		/* Of several calls of TCP's the last one says what there is beside the bytes. */
		had = control_of(msg);
		set_control(msg, &given);
		got = is_rest ? receive_now(stream, msg, size - done, flags) :
				receive_once(stream, msg, size - done, flags, ask);
		if (got < 0 || (!got && done))
			set_control(msg, &had);
		if (got > 0 && (flags & MSG_PEEK) && got < target && left && may_see_more(stream)) {
			/* All of it anew when more has come. */
			msg->msg_iter = to;
			seen = got;
			got = -EAGAIN;
		}
		if (got > 0) {
			done += got;
			if (began)
				stream_spin_learn(stream, &stream->rx_spin, began);
			began = 0;
			if (waits)
				remove_wait_queue(sk_sleep(sk), &wait);
			waits = false;
			ask = false;
			if (done >= size || (flags & MSG_PEEK) || is_at_mark(sk))
				break;
			/* TCP alone knows whether it has more, and has none. */
			if (done >= target && !READ_ONCE(stream->held))
				break;
			continue;
		}
		if (got == -ERESTART) {
			/* A peer that says now this, now that, does not keep us. */
			if (left ? signal_pending(current) :
				   fatal_signal_pending(current)) {
				got = left ? sock_intr_errno(left) : -EINTR;
				break;
			}
			cond_resched();
			continue;
		}
		if (got != -EAGAIN || done >= target || !left)
			break;
		/* Look once more when we are sure to be told. */
		if (!ask) {
			if (READ_ONCE(stream->heard) && !READ_ONCE(stream->closed)) {
				began = ktime_get_ns();
				stream_spin(stream, &stream->rx_spin, has_come);
			}
			if (!waits)
				add_wait_queue(sk_sleep(sk), &wait);
			waits = true;
			ask = true;
			continue;
		}
		if (signal_pending(current)) {
			got = sock_intr_errno(left);
			break;
		}
		if (!is_rest &&
		    (!stream_is_ours(sk) || test_bit(STREAM_DEAD, &stream->flags))) {
			got = stream_amid_call(stream, done);
			if (got)
				break;
			is_rest = true;
			continue;
		}
		if (is_rest && stream_ends_soon())
			left = min(left, STREAM_REST_TIME);
		most = is_rest ? min(left, STREAM_REST_LOOK) : left;
		sk_set_bit(SOCKWQ_ASYNC_WAITDATA, sk);
		rest = wait_woken(&wait, TASK_INTERRUPTIBLE, most);
		left = left == MAX_SCHEDULE_TIMEOUT ? left : left - most + rest;
		sk_clear_bit(SOCKWQ_ASYNC_WAITDATA, sk);
		/* As sk_wait_event(). */
		if (compat_disconnects(sk) != disconnects) {
			got = -EPIPE;
			break;
		}
	}
	if (waits)
		remove_wait_queue(sk_sleep(sk), &wait);
	if (is_rest && got == -EAGAIN && stream_ends_soon())
		got = -ERESTARTSYS;
	/* It was looked at, and nothing came then; or the call is made anew. */
	if (!done && got <= 0 && got != -ERESTARTNOINTR)
		done = seen;
	if (done)
		stream_keep_error(stream, got);
	/* TCP does not know what the ring has: io_uring is to look again. */
	if (msg->msg_get_inq && READ_ONCE(stream->held))
		msg->msg_inq = -1;
	return done ?: got;
}
