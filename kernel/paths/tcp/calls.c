// SPDX-License-Identifier: GPL-2.0
/*
 * calls.c - the calls of a socket that was taken over: those that we answer ourselves,
 * or have to know of. All others are the kernel's.
 *
 * Each call that may sleep is counted by stream_users, so that the module is not
 * unloaded under it. What a lane cannot carry is TCP's: the stream goes back first.
 *
 * Contexts: process context, but for is_readable() and memory_is_free(), which poll()
 * and TCP call in any, and destroy(), which may be called in softirq.
 */
#include <asm/ioctls.h>
#include <linux/sched/signal.h>
#include <linux/skmsg.h>
#include <linux/sockios.h>
#include <linux/splice.h>
#include <linux/tcp.h>
#include <linux/uio.h>
#include <net/tcp.h>

#include "stream.h"
#include "compat.h"

/*
 * How long a call waits for a stream to be TCP's alone. A program with O_NONBLOCK has other
 * connections to serve, and a peer that never answers must not hold those up.
 */
#define GIVE_TIME	(5 * HZ)
#define GIVE_SOON	(HZ / 20)

static unsigned int family_of(const struct sock *sk)
{
	return sk->sk_family == AF_INET6;
}

static const struct proto *base_of(const struct sock *sk)
{
	return stream_base[family_of(sk)];
}

static const struct proto_ops *base_ops_of(const struct sock *sk)
{
	return stream_base_ops[family_of(sk)];
}

/**
 * stream_may_make_anew() - whether the caller is a system call, and can be made anew
 *
 * Threads of the kernel's, and what works for io_uring, cannot.
 */
bool stream_may_make_anew(void)
{
	return !(current->flags & (PF_KTHREAD | PF_IO_WORKER));
}

/** stream_ends_soon() - whether a call that cannot be made anew is to end: the module is to go */
bool stream_ends_soon(void)
{
	return stream_leaving() && !(current->flags & PF_KTHREAD);
}

/**
 * stream_make_anew() - have a system call made anew, since it is not ours any more
 *
 * As after a signal, but there is none.
 *
 * Return: what the call has to return.
 */
int stream_make_anew(void)
{
	set_tsk_thread_flag(current, TIF_SIGPENDING);
	return -ERESTARTNOINTR;
}

/**
 * stream_amid_call() - a call that waits finds that its socket is the kernel's by now
 * @stream: the stream that the socket had
 * @done: the call has done a part
 *
 * Return: 0 if the call is to go on by TCP, within the bounds of stream_ends_soon(); or what the
 * call has to return.
 */
int stream_amid_call(struct stream *stream, bool done)
{
	if (stream_is_anothers(stream))
		return -EPIPE;
	return done || !stream_may_make_anew() ? 0 : stream_make_anew();
}

/* Whether a program does not want to wait; the kernel's own sockets have no file. */
static bool is_nonblocking(const struct file *file)
{
	return file && (READ_ONCE(file->f_flags) & O_NONBLOCK);
}

static unsigned long give_time(const struct file *file)
{
	return is_nonblocking(file) ? GIVE_SOON : GIVE_TIME;
}

/*
 * Have a socket be TCP's alone, for good. Takes a round trip to the peer if it has a
 * lane, and no more than @time, in jiffies. Returns 0 or a negative errno: -EBUSY also where
 * another thread has it connect anew meanwhile, and it is another stream's.
 */
static int give_back(struct stream *stream, unsigned long time)
{
	unsigned long until = jiffies + time;
	struct sock *sk = stream->sk;
	int err;

	for (;;) {
		stream_leave(stream);
		lock_sock(sk);
		if (test_bit(STREAM_DEAD, &stream->flags) || stream_is_plain(stream)) {
			spin_lock_bh(&sk->sk_lock.slock);
			stream_release(stream);
			spin_unlock_bh(&sk->sk_lock.slock);
			err = stream_is_ours(sk) ? -EBUSY : 0;
			release_sock(sk);
			return err;
		}
		release_sock(sk);
		if (time_after(jiffies, until))
			return -EBUSY;
		if (schedule_timeout_interruptible(1) && signal_pending(current))
			return -ERESTARTSYS;
	}
}

/* Sending and receiving --------------------------------------------------- */

/* Whether a call that came to us reaches another function the next time. */
static bool may_make_anew(const struct sock *sk)
{
	return READ_ONCE(sk->sk_prot) == base_of(sk) && stream_may_make_anew();
}

/* Whether a program is told of each call of TCP's: that its memory is free, or when it was sent. */
static bool counts_calls(const struct sock *sk, const struct msghdr *msg)
{
	u32 times = READ_ONCE(sk->sk_tsflags);

	/* A message may ask for its own time. */
	return (msg->msg_flags & MSG_ZEROCOPY) ||
	       (times & SOF_TIMESTAMPING_TX_RECORD_MASK) || (times && msg->msg_controllen);
}

static int do_sendmsg(struct sock *sk, struct msghdr *msg, size_t size)
{
	int users = srcu_read_lock(&stream_users);
	struct stream *stream = stream_get(sk);
	int done;

	if (stream && counts_calls(sk, msg) && !(msg->msg_flags & MSG_DONTWAIT)) {
		/* We would make several of TCP's, and TCP waits in them. */
		done = give_back(stream, GIVE_TIME);
		if (!done)
			done = stream_may_make_anew() ? stream_make_anew() :
			       base_of(sk)->sendmsg(sk, msg, size);
		stream_put(stream);
	} else if (stream) {
		done = stream_send(stream, msg, size);
		stream_put(stream);
	} else if (stream_is_ours(sk)) {
		done = -ENOTCONN;	/* destroyed meanwhile */
	} else if ((msg->msg_flags & MSG_DONTWAIT) || !may_make_anew(sk)) {
		done = base_of(sk)->sendmsg(sk, msg, size);
	} else {
		done = stream_make_anew();
	}
	srcu_read_unlock(&stream_users, users);
	return done;
}

static int call_sendmsg(struct sock *sk, struct msghdr *msg, size_t size)
{
	/* Old kernels let programs set these: a page is only what call_sendpage() says is one. */
	msg->msg_flags &= ~(STREAM_IS_PAGE | STREAM_GOES_ON);
	return do_sendmsg(sk, msg, size);
}

static int do_recvmsg(struct sock *sk, struct msghdr *msg, size_t size, int flags)
{
	int users = srcu_read_lock(&stream_users);
	struct stream *stream = stream_get(sk);
	int done;

	if (stream && (flags & (MSG_ERRQUEUE | MSG_OOB))) {
		/* Neither sleeps, nor is what a lane carries. */
		done = compat_recvmsg(base_of(sk), sk, msg, size,
				      flags | MSG_DONTWAIT);
	} else if (stream) {
		done = stream_receive(stream, msg, size, flags);
	} else if (stream_is_ours(sk)) {
		done = -ENOTCONN;
	} else if ((flags & MSG_DONTWAIT) || !may_make_anew(sk)) {
		done = compat_recvmsg(base_of(sk), sk, msg, size, flags);
	} else {
		done = stream_make_anew();
	}
	if (stream)
		stream_put(stream);
	srcu_read_unlock(&stream_users, users);
	return done;
}

#ifdef HAVE_RECVMSG_ADDR_LEN
static int call_recvmsg(struct sock *sk, struct msghdr *msg, size_t size, int flags,
			int *addr_len)
#else
static int call_recvmsg(struct sock *sk, struct msghdr *msg, size_t size, int flags)
#endif
{
	return do_recvmsg(sk, msg, size, flags);
}

#ifdef HAVE_SOCK_NO_SENDPAGE
/* By a lane, which copies; or where it takes a wait. */
static noinline int sendpage_slowly(struct sock *sk, struct page *page, int offset, size_t size,
				    int flags)
{
	struct msghdr msg = { .msg_flags = flags | STREAM_IS_PAGE };
	struct bio_vec part = {
		.bv_page = page,
		.bv_offset = offset,
		.bv_len = size,
	};

	if (flags & MSG_SENDPAGE_NOTLAST)
		msg.msg_flags |= MSG_MORE;
	iov_iter_bvec(&msg.msg_iter, ITER_SOURCE, &part, 1, size);
	return do_sendmsg(sk, &msg, size);
}

/* Before MSG_SPLICE_PAGES: a file goes page by page, and what is done for each shows. */
static int call_sendpage(struct sock *sk, struct page *page, int offset, size_t size,
			 int flags)
{
	int users = srcu_read_lock(&stream_users);
	struct stream *stream = stream_get(sk);
	int done = -EAGAIN;

	if (stream) {
		done = stream_send_page(stream, page, offset, size, flags);
		stream_put(stream);
	}
	if (done == -EAGAIN)
		done = sendpage_slowly(sk, page, offset, size, flags);
	srcu_read_unlock(&stream_users, users);
	return done;
}
#endif

/* Readiness --------------------------------------------------------------- */

/* Bytes to be read that are not TCP's, by a look at positions that move. */
static u32 readable_bytes(struct stream *stream)
{
	lockdep_assert_held(&stream->lane_lock);
	return stream->lane ? stream_arrived(stream->lane, READ_ONCE(stream->lane->rx.size)) : 0;
}

/*
 * Whether there are as many as SO_RCVLOWAT says, or as come while the sender waits for a
 * quarter of its ring to be free.
 */
static bool has_enough(struct stream *stream)
{
	u32 wanted = max(READ_ONCE(stream->sk->sk_rcvlowat), 1);
	u32 size, tail, seen, arrived;

	lockdep_assert_held(&stream->lane_lock);
	if (!stream->lane || stream_is_disconnected(stream->sk))
		return false;
	/* No more will come. */
	if (stream_is_last(stream))
		wanted = 1;
	size = READ_ONCE(stream->lane->rx.size);
	do {
		tail = READ_ONCE(stream->lane->rx.tail);
		/* A reader comes no further than the head that it has seen: none is behind then. */
		smp_rmb();
		seen = vmloop_ring_seen(&stream->lane->rx);
		arrived = seen - tail;
		/* More than two rings is a lie, unless a reader has come further meanwhile. */
	} while (arrived > 2 * STREAM_RING_MOST && tail != READ_ONCE(stream->lane->rx.tail));
	if (arrived > 2 * STREAM_RING_MOST ||
	    min(arrived, size) < min(wanted, size - size / 4))
		return false;
	/* A peer that takes it back would have the program wait in recv(): receive.c sees that. */
	if (!stream->promises || (s32)(seen - stream->rx_promised) > 0) {
		stream->rx_promised = seen;
		WRITE_ONCE(stream->promises, true);
	}
	return true;
}

static bool is_readable(struct stream *stream)
{
	struct sock *sk = stream->sk;
	bool readable = false;

	spin_lock_bh(&stream->lane_lock);
	if (!stream->polled) {
		WRITE_ONCE(stream->polled, true);
		if (READ_ONCE(stream->heard))
			stream_look_out(stream, true);
	}
	/* What TCP has before it is TCP's to tell. */
	if (READ_ONCE(stream->heard) &&
	    (s32)(READ_ONCE(stream->seq) -
		  READ_ONCE(tcp_sk(sk)->copied_seq)) <= 0)
		readable = has_enough(stream);
	readable |= stream_is_at_end(stream);
	spin_unlock_bh(&stream->lane_lock);
	return readable;
}

static bool call_is_readable(struct sock *sk)
{
	struct stream *stream;
	bool readable;

	rcu_read_lock();
	stream = stream_look(sk);
	readable = stream && is_readable(stream);
	rcu_read_unlock();
	return readable;
}

/* Whether a program that polls can write; if not, it is told of a quarter of the ring. */
static bool has_room(struct stream *stream)
{
	struct vmloop_lane *lane;
	bool room;

	spin_lock_bh(&stream->lane_lock);
	lane = stream->lane;
	room = lane && (stream->wants_room ? stream_has_room(lane) :
					     stream_has_little_room(lane));
	if (lane && !room)
		room = stream_want_room(stream);
	spin_unlock_bh(&stream->lane_lock);
	return room;
}

/* TCP asks for each part of what it sends; of the work's bytes it takes all. */
static bool call_memory_is_free(const struct sock *sk, int wake)
{
	const struct proto *base = base_of(sk);
	bool is_free = true, by_tcp = true;
	struct stream *stream;

	rcu_read_lock();
	stream = stream_look(sk);
	if (stream && READ_ONCE(stream->tx) != STREAM_TX_TCP) {
		by_tcp = false;
		/* After shutdown() poll() says that a program can write; EPIPE follows. */
		is_free = READ_ONCE(stream->by_work) == current ||
			   test_bit(STREAM_SHUT, &stream->flags) ||
			   (READ_ONCE(stream->tx) == STREAM_TX_RING ?
			   has_room(stream) : stream_pending_has_room(stream));
	}
	rcu_read_unlock();
	if (by_tcp && base->stream_memory_free)
		is_free = base->stream_memory_free(sk, wake);
	return is_free;
}

/*
 * What TCP's poll() says too soon. All that TCP has to be read may be ours: the peer's word
 * of what came by the lane, which the work takes out; then the ring alone counts. And a FIN
 * is behind that word, and behind bytes that the peer sends after it: a program that is told
 * of the FIN first does not look for them.
 */
static __poll_t too_soon(struct stream *stream)
{
	struct sock *sk = stream->sk;
	__poll_t mask = 0;
	bool empty, ends;

	if (!READ_ONCE(stream->heard) || READ_ONCE(sk->sk_err))
		return 0;
	spin_lock_bh(&stream->lane_lock);
	if (READ_ONCE(stream->heard)) {
		ends = stream_is_at_end(stream);
		if (!ends && !stream_reads_no_more(stream))
			mask |= EPOLLRDHUP | EPOLLHUP;
		empty = !has_enough(stream) && !ends &&
			!(stream->lane ? stream_reads_no_more(stream) :
					 stream_is_shut_here(stream));
		if (empty && (s32)(READ_ONCE(stream->seq) -
				   READ_ONCE(tcp_sk(sk)->copied_seq)) <= 0)
			mask |= EPOLLIN | EPOLLRDNORM;
	}
	spin_unlock_bh(&stream->lane_lock);
	return mask;
}

/*
 * TCP's poll() asks is_readable(), too, but looks at its own queue first. It may sleep: it
 * takes memory for those who wait. They are woken when the work has taken out what is ours.
 */
static __poll_t call_poll(struct file *file, struct socket *sock,
			  struct poll_table_struct *wait)
{
	int users = srcu_read_lock(&stream_users);
	struct sock *sk = sock->sk;
	__poll_t mask = base_ops_of(sk)->poll(file, sock, wait);
	struct stream *stream = NULL;
	__poll_t hidden;

	if (mask & (EPOLLIN | EPOLLRDNORM | EPOLLRDHUP))
		stream = stream_get(sk);
	if (stream) {
		hidden = too_soon(stream);
		/* The peer's word may have been there then, and be taken out by now. */
		if (READ_ONCE(stream->lanes) && !READ_ONCE(stream->heard))
			mask = base_ops_of(sk)->poll(file, sock, NULL);
		else
			mask &= ~hidden;
		spin_lock_bh(&stream->lane_lock);
		if (stream_is_at_end(stream))
			mask |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
		spin_unlock_bh(&stream->lane_lock);
		/* The FIN that TCP is to send is the program's since its shutdown(). */
		if (test_bit(STREAM_FIN, &stream->flags) && stream_is_shut_here(stream))
			mask |= EPOLLHUP;
		stream_put(stream);
	}
	srcu_read_unlock(&stream_users, users);
	return mask;
}

/* What is asked of a socket ----------------------------------------------- */

/* Bytes that can be read, of which TCP says that it has so many. */
static int count_in(struct stream *stream, int by_tcp)
{
	int bytes = by_tcp;
	s32 before;

	spin_lock_bh(&stream->lane_lock);
	if (READ_ONCE(stream->heard) && !stream_is_disconnected(stream->sk)) {
		before = READ_ONCE(stream->seq) -
			 READ_ONCE(tcp_sk(stream->sk)->copied_seq);
		/* Behind that TCP has what is ours. A FIN counts as a byte. */
		bytes = min(bytes, max(before, 0)) + readable_bytes(stream);
	}
	spin_unlock_bh(&stream->lane_lock);
	return bytes;
}

/* Bytes that were sent, are not TCP's, and that the peer may not have. */
static u32 count_out(struct stream *stream)
{
	u32 bytes = 0;

	/* lane.c copies what is in the ring under it, and takes the lane away: one has it. */
	mutex_lock(&stream->tx_ring);
	spin_lock_bh(&stream->lane_lock);
	/* The hello is not the application's. */
	if (stream->lane)
		bytes = min_t(u64, stream_untaken(stream->lane), READ_ONCE(stream->sent));
	spin_unlock_bh(&stream->lane_lock);
	bytes += stream_pending_bytes(stream);
	mutex_unlock(&stream->tx_ring);
	return bytes;
}

/* So often at most SIOCINQ asks TCP anew. */
#define ASKS	3

/*
 * SIOCINQ. Bytes that become TCP's between our look and TCP's must not be missing: a program takes
 * a socket that can be read, and has none, for one at its end.
 */
static int ask_in(struct stream *stream, COMPAT_IOCTL_ARG arg)
{
	const struct vmloop_lane *lane;
	int err, bytes, asks = ASKS;
	bool heard;

	do {
		lane = READ_ONCE(stream->lane);
		heard = READ_ONCE(stream->heard);
		/* The work may not have made it TCP's yet. What it cannot, a reader cannot get. */
		if (!skb_queue_empty_lockless(&stream->kept))
			stream_merge_kept(stream);
		err = base_of(stream->sk)->ioctl(stream->sk, SIOCINQ, arg);
		if (!err)
			err = compat_ioctl_answer(arg, &bytes);
		if (err)
			return err;
		bytes = count_in(stream, bytes);
	} while (--asks && (lane != READ_ONCE(stream->lane) || heard != READ_ONCE(stream->heard)));
	return compat_ioctl_set_answer(arg, bytes);
}

/* SIOCOUTQ and SIOCOUTQNSD. */
static int ask_out(struct stream *stream, int cmd, COMPAT_IOCTL_ARG arg)
{
	/* Before TCP is asked: bytes that become its own count twice rather than not at all. */
	u32 out = count_out(stream);
	int bytes, err;

	err = base_of(stream->sk)->ioctl(stream->sk, cmd, arg);
	if (!err)
		err = compat_ioctl_answer(arg, &bytes);
	return err ?: compat_ioctl_set_answer(arg, bytes + (int)out);
}

static int call_ioctl(struct sock *sk, int cmd, COMPAT_IOCTL_ARG arg)
{
	int users = srcu_read_lock(&stream_users);
	struct stream *stream = NULL;
	int err;

	if (cmd == SIOCINQ || cmd == SIOCOUTQ || cmd == SIOCOUTQNSD)
		stream = stream_get(sk);
	if (!stream)
		err = base_of(sk)->ioctl(sk, cmd, arg);
	else
		err = cmd == SIOCINQ ? ask_in(stream, arg) : ask_out(stream, cmd, arg);
	if (stream)
		stream_put(stream);
	srcu_read_unlock(&stream_users, users);
	return err;
}

/* Whether an option makes another socket of it. */
static bool is_for_tcp_alone(int level, int name)
{
	if (level == SOL_IPV6)
		return name == IPV6_ADDRFORM;
	if (level != SOL_TCP)
		return false;
	switch (name) {
	case TCP_ULP:
	case TCP_REPAIR:
	case TCP_MD5SIG:
	case TCP_MD5SIG_EXT:
	case TCP_INQ:
#ifdef TCP_AO_ADD_KEY
	case TCP_AO_ADD_KEY:
#endif
		return true;
	default:
		return false;
	}
}

/* The kernel has a socket before a call that lanes do not carry. As give_back(). */
static int be_tcp_alone(struct sock *sk)
{
	struct stream *stream = stream_get(sk);
	int err;

	if (!stream)
		return 0;
	err = give_back(stream, give_time(sk->sk_socket ? sk->sk_socket->file : NULL));
	stream_put(stream);
	return err;
}

static int call_setsockopt(struct sock *sk, int level, int name, sockptr_t value,
			   unsigned int size)
{
	int users = srcu_read_lock(&stream_users);
	int err = is_for_tcp_alone(level, name) ? be_tcp_alone(sk) : 0;

	if (!err)
		err = base_of(sk)->setsockopt(sk, level, name, value, size);
	srcu_read_unlock(&stream_users, users);
	return err;
}

/* By TCP_ZEROCOPY_RECEIVE TCP gives bytes out past recvmsg(). */
static int call_getsockopt(struct sock *sk, int level, int name, char __user *value,
			   int __user *size)
{
	bool is_read = level == SOL_TCP && name == TCP_ZEROCOPY_RECEIVE;
	int users = srcu_read_lock(&stream_users);
	int err = is_read ? be_tcp_alone(sk) : 0;

	if (!err)
		err = base_of(sk)->getsockopt(sk, level, name, value, size);
	srcu_read_unlock(&stream_users, users);
	return err;
}

/*
 * SO_PEEK_OFF: a position in all that can be read, that TCP keeps. The socket is not locked
 * here where TCP has it (6.9).
 */
static int call_set_peek_off(struct sock *sk, int offset)
{
	int users = srcu_read_lock(&stream_users);
	int err = offset >= 0 ? be_tcp_alone(sk) : 0;

	if (!err)
		err = base_ops_of(sk)->set_peek_off(sk, offset);
	srcu_read_unlock(&stream_users, users);
	return err;
}

/*
 * What is there may be enough now: TCP wakes programs for its own bytes, and this for the
 * ring's. The socket is locked.
 */
static int call_set_rcvlowat(struct sock *sk, int bytes)
{
	int users = srcu_read_lock(&stream_users);
	struct stream *stream = stream_get(sk);
	int err = base_ops_of(sk)->set_rcvlowat(sk, bytes);

	if (stream) {
		if (!err && is_readable(stream))
			stream->data_ready(sk);
		stream_put(stream);
	}
	srcu_read_unlock(&stream_users, users);
	return err;
}

#ifdef CONFIG_BPF_SYSCALL
/* A sockmap takes the socket over. What it has saved of ours is the kernel's. */
static int call_psock_update(struct sock *sk, struct sk_psock *psock, bool restore)
{
	struct stream *stream = stream_get(sk);
	const struct proto *base = base_of(sk);

	if (stream) {
		/* Nothing can be waited for here: a later call finds it gone back. */
		stream_leave(stream);
		if (!stream_is_plain(stream) ||
		    test_bit(STREAM_WANTED, &stream->flags)) {
			stream_put(stream);
			return -EBUSY;
		}
		stream_release(stream);
		stream_put(stream);
	}
	psock->sk_proto = (struct proto *)base;
	psock->psock_update_sk_prot = base->psock_update_sk_prot;
	psock->saved_unhash = base->unhash;
	psock->saved_destroy = base->destroy;
	psock->saved_close = base->close;
	return base->psock_update_sk_prot(sk, psock, restore);
}
#endif

/* The end ------------------------------------------------------------------ */

/* Whether the application has not read all that TCP has brought. The socket is locked. */
static bool has_unread_of_tcp(const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	/* The FIN has a number, too. */
	return before(tp->copied_seq, tp->rcv_nxt - sock_flag(sk, SOCK_DONE));
}

/* Whether the application has not read all that has come, while there is a lane. */
static bool has_unread(struct stream *stream)
{
	const struct tcp_sock *tp = tcp_sk(stream->sk);
	bool unread = false;
	u32 at;

	mutex_lock(&stream->rx_ring);
	if (stream->heard) {
		at = READ_ONCE(tp->copied_seq);
		/* What TCP has behind @seq is ours. */
		unread = (at != stream->seq && at != READ_ONCE(tp->rcv_nxt)) ||
			 !skb_queue_empty(&stream->kept) ||
			 (!stream->closed && READ_ONCE(stream->held) &&
			  vmloop_ring_ready(&stream->held->rx));
	}
	mutex_unlock(&stream->rx_ring);
	return unread;
}

/* As TCP does for data that nobody has read. */
static void close_with_reset(struct sock *sk)
{
	lock_sock(sk);
	sock_set_flag(sk, SOCK_LINGER);
	sk->sk_lingertime = 0;
	release_sock(sk);
}

/*
 * The stream goes back to TCP first. The FIN follows what was sent, and the peer's FIN where that
 * is to be first. Until then a socket of ours has the sock, and is closed in the program's place.
 * Returns whether that can be.
 */
static bool close_later(struct stream *stream)
{
	struct sock *sk = stream->sk;
	struct socket *orphan;

	stream->orphan_peer = stream_budget_peer(stream);
	if (!stream_budget_take(STREAM_BUDGET_ORPHANS, stream->orphan_peer, 1))
		return false;
	orphan = sock_alloc();
	if (!orphan) {
		stream_budget_give(STREAM_BUDGET_ORPHANS, stream->orphan_peer, 1);
		return false;
	}
	orphan->type = SOCK_STREAM;
	orphan->ops = stream_base_ops[stream->family];
	__module_get(orphan->ops->owner);
	/* What is sent yet is sent for the socket's user, not for the closing one. */
	SOCK_INODE(orphan)->i_uid = READ_ONCE(sk->sk_uid);
	lock_sock(sk);
	/* Nobody waits for it. */
	sock_reset_flag(sk, SOCK_LINGER);
	sock_graft(sk, orphan);
	orphan->state = SS_CONNECTED;
	clear_bit(STREAM_CLOSED, &stream->flags);
	release_sock(sk);
	/* From now on its peer has less time to answer. */
	WRITE_ONCE(stream->since, jiffies);
	/* Pairs with the acquire in orphan_of(). */
	smp_store_release(&stream->orphan, orphan);
	stream_queue(stream, 0);
	return true;
}

static void call_close(struct sock *sk, long timeout)
{
	int users = srcu_read_lock(&stream_users);
	struct stream *stream = stream_get(sk);

	if (stream) {
		bool resets = sock_flag(sk, SOCK_LINGER) && !sk->sk_lingertime;
		bool by_lane;

		/* No hello from here on. */
		lock_sock(sk);
		set_bit(STREAM_STAYS, &stream->flags);
		set_bit(STREAM_CLOSED, &stream->flags);
		stream_listen_no_more(stream);
		if (!READ_ONCE(stream->heard) && has_unread_of_tcp(sk))
			set_bit(STREAM_UNREAD, &stream->flags);
		release_sock(sk);
		by_lane = READ_ONCE(stream->tx) != STREAM_TX_TCP;
		if (has_unread(stream)) {
			close_with_reset(sk);
		} else if (by_lane ? !resets && sk->sk_state != TCP_CLOSE :
				     !sock_flag(sk, SOCK_LINGER) && stream_follows_fin(stream)) {
			if (close_later(stream)) {
				stream_put(stream);
				srcu_read_unlock(&stream_users, users);
				return;
			}
			if (by_lane)
				close_with_reset(sk);
		}
		stream_put(stream);
	}
	base_of(sk)->close(sk, timeout);
	srcu_read_unlock(&stream_users, users);
}

static void call_destroy(struct sock *sk)
{
	struct stream *stream = stream_get(sk);

	base_of(sk)->destroy(sk);
	if (stream_is_ours(sk))
		WRITE_ONCE(sk->sk_prot, (struct proto *)base_of(sk));
	if (!stream)
		return;
	set_bit(STREAM_STAYS, &stream->flags);
	stream_end(stream);
	if (READ_ONCE(stream->held))
		stream_queue(stream, 0);
	stream_put(stream);
}

/* Calls of socket->ops ----------------------------------------------------- */

static int call_shutdown(struct socket *sock, int how)
{
	int users = srcu_read_lock(&stream_users);
	struct sock *sk = sock->sk;
	struct stream *stream;
	bool sends = how == SHUT_WR || how == SHUT_RDWR;
	bool by_lane = false;
	int err = 0;

again:
	stream = stream_get(sk);
	if (stream && (how == SHUT_RD || how == SHUT_RDWR))
		set_bit(STREAM_READ, &stream->flags);
	if (stream && sends) {
		/* No hello from here on; if it was said, the FIN follows what was sent. */
		lock_sock(sk);
		if (stream_is_anothers(stream)) {
			release_sock(sk);
			stream_put(stream);
			goto again;
		}
		set_bit(STREAM_SHUT, &stream->flags);
		by_lane = (READ_ONCE(stream->tx) != STREAM_TX_TCP || stream_follows_fin(stream)) &&
			  stream_may_send(sk);
		/* Where TCP carries the stream, it sends the FIN below, and the work must not. */
		if (by_lane)
			set_bit(STREAM_FIN, &stream->flags);
		release_sock(sk);
	}
	if (by_lane) {
		set_bit(STREAM_STAYS, &stream->flags);
		/* Another thread may wait in send(). */
		stream->state_change(sk);
		stream_queue(stream, 0);
		if (how == SHUT_RDWR)
			err = base_ops_of(sk)->shutdown(sock, SHUT_RD);
		/* It was connected, and both FINs may be through by now. */
		if (err == -ENOTCONN)
			err = 0;
	} else {
		err = base_ops_of(sk)->shutdown(sock, how);
		if (stream && sends && !test_bit(STREAM_FIN, &stream->flags))
			clear_bit(STREAM_SHUT, &stream->flags);
	}
	if (stream)
		stream_put(stream);
	srcu_read_unlock(&stream_users, users);
	return err;
}

/*
 * TCP sleeps in these, or hands out its own memory, and does not see a lane: the
 * socket is the kernel's first.
 */
static ssize_t call_splice_read(struct socket *sock, loff_t *position,
				struct pipe_inode_info *pipe, size_t size,
				unsigned int flags)
{
	int users = srcu_read_lock(&stream_users);
	struct stream *stream = stream_get(sock->sk);
	ssize_t err = 0;
	bool soon;

	if (stream) {
		soon = flags & SPLICE_F_NONBLOCK;
		err = give_back(stream, soon ? GIVE_SOON : give_time(sock->file));
		/* It can be tried again. */
		if (err == -EBUSY && (soon || is_nonblocking(sock->file)))
			err = -EAGAIN;
		stream_put(stream);
	}
	if (!err && stream && stream_may_make_anew())
		err = stream_make_anew();
	else if (!err)
		err = base_ops_of(sock->sk)->splice_read(sock, position, pipe,
							 size, flags);
	srcu_read_unlock(&stream_users, users);
	return err;
}

#ifdef CONFIG_MMU
static int call_socket_mmap(struct file *file, struct socket *sock,
			    struct vm_area_struct *area)
{
	int users = srcu_read_lock(&stream_users);
	struct sock *sk = sock->sk;
	struct stream *stream = stream_get(sk);
	int err = 0;

	if (stream) {
		/*
		 * The caller's memory is locked: nothing can be waited for, as above. TCP may hold
		 * the socket over a fault, which waits for that memory.
		 */
		stream_leave(stream);
		local_bh_disable();
		bh_lock_sock(sk);
		if (!sock_owned_by_user(sk) && stream_is_plain(stream))
			stream_release(stream);
		if (stream_is_ours(sk))
			err = -EBUSY;
		bh_unlock_sock(sk);
		local_bh_enable();
		stream_put(stream);
	}
	if (!err)
		err = base_ops_of(sk)->mmap(file, sock, area);
	srcu_read_unlock(&stream_users, users);
	return err;
}
#endif

/* What is ours of the tables, but for accept(), which listen.c has. */
static const struct proto our_calls = {
	.close = call_close,
	.destroy = call_destroy,
	.sendmsg = call_sendmsg,
	.recvmsg = call_recvmsg,
#ifdef HAVE_SOCK_NO_SENDPAGE
	.sendpage = call_sendpage,
#endif
	.setsockopt = call_setsockopt,
	.getsockopt = call_getsockopt,
	.ioctl = call_ioctl,
	.sock_is_readable = call_is_readable,
	.stream_memory_free = call_memory_is_free,
#ifdef CONFIG_BPF_SYSCALL
	.psock_update_sk_prot = call_psock_update,
#endif
};

static const struct proto_ops our_ops = {
	.poll = call_poll,
	.shutdown = call_shutdown,
	.splice_read = call_splice_read,
	.set_peek_off = call_set_peek_off,
	.set_rcvlowat = call_set_rcvlowat,
#ifdef CONFIG_MMU
	.mmap = call_socket_mmap,
#endif
};

/* Put the same calls of other tables into a family's copies. */
static void put_calls(unsigned int family, const struct proto *calls, const struct proto_ops *ops)
{
	struct proto *to = stream_protos[family];
	struct proto_ops *to_ops = stream_ops[family];

	WRITE_ONCE(to->close, calls->close);
	WRITE_ONCE(to->destroy, calls->destroy);
	WRITE_ONCE(to->sendmsg, calls->sendmsg);
	WRITE_ONCE(to->recvmsg, calls->recvmsg);
#ifdef HAVE_SOCK_NO_SENDPAGE
	WRITE_ONCE(to->sendpage, calls->sendpage);
#endif
	WRITE_ONCE(to->setsockopt, calls->setsockopt);
	WRITE_ONCE(to->getsockopt, calls->getsockopt);
	WRITE_ONCE(to->ioctl, calls->ioctl);
	WRITE_ONCE(to->sock_is_readable, calls->sock_is_readable);
	WRITE_ONCE(to->stream_memory_free, calls->stream_memory_free);
#ifdef CONFIG_BPF_SYSCALL
	WRITE_ONCE(to->psock_update_sk_prot, calls->psock_update_sk_prot);
#endif
	WRITE_ONCE(to_ops->poll, ops->poll);
	WRITE_ONCE(to_ops->shutdown, ops->shutdown);
	WRITE_ONCE(to_ops->splice_read, ops->splice_read);
	if (stream_base_ops[family]->set_peek_off)
		WRITE_ONCE(to_ops->set_peek_off, ops->set_peek_off);
	if (stream_base_ops[family]->set_rcvlowat)
		WRITE_ONCE(to_ops->set_rcvlowat, ops->set_rcvlowat);
#ifdef CONFIG_MMU
	WRITE_ONCE(to_ops->mmap, ops->mmap);
#endif
}

/**
 * stream_calls_init() - put our calls into the copies of a family's tables
 * @family: its index
 */
void stream_calls_init(unsigned int family)
{
	put_calls(family, &our_calls, &our_ops);
	stream_listen_calls(stream_ops[family]);
}

/**
 * stream_calls_exit() - put the kernel's calls into them, as others may keep them
 * @family: its index
 */
void stream_calls_exit(unsigned int family)
{
	put_calls(family, stream_base[family], stream_base_ops[family]);
	WRITE_ONCE(stream_ops[family]->accept, stream_base_ops[family]->accept);
}
