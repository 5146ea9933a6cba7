// SPDX-License-Identifier: GPL-2.0
/*
 * switch.c - a stream goes from TCP to a ring and back (docs/stream.md).
 *
 * Each direction is a series of segments, carried by TCP or by a lane's ring. The
 * sender goes over by a hello, the first bytes in its ring: the sequence number at
 * which it has stopped to send by TCP. The receiver reads TCP up to there, and then
 * the ring. Nothing but the hello is sent before both ends have heard each other; what
 * programs send then is pending (pending.c).
 *
 * The way back begins with the lane's end, whoever wanted it. What the receiver has
 * not read by then becomes TCP's (merge.c). Both ends say by TCP, where they
 * had stopped, how many bytes came by the ring; the sender sends by TCP what did
 * not, from a copy, and goes on. TCP is reliable, so this is exact whatever became of
 * the shared memory. Only where a lane ended between hello and the first byte, and
 * the peer did not close its end, nobody can know: the connection is reset.
 *
 * Owns all of a stream's segments, but for what lane.c does. Context: the stream's
 * work, process context.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <net/inet_connection_sock.h>
#include <net/tcp.h>

#include "stream.h"

/* How often the work looks whether TCP has room, or the peer's answer. */
#define RETRY		msecs_to_jiffies(2)
#define RETRY_MAX	msecs_to_jiffies(100)
#define RETRY_LATE	HZ

/* At each RETRY for so long; later and later after that. */
#define RETRY_OFTEN	(HZ / 4)

/*
 * So long the peer may take to say what it has got: a machine stands still while it is
 * saved, or somebody looks into it. TCP's own bounds end the connection before, where its
 * packets are not acknowledged (tcp_retries2, TCP_USER_TIMEOUT). No program waits for a
 * socket that has been closed: it has as long as TCP gives it (tcp_orphan_retries).
 */
#define ANSWER_TIME	(20 * 60 * HZ)
#define ORPHAN_TIME	(100 * HZ)

/* A connection that has ended, by a reset too, waits so long for the peer's word of a lane. */
#define GONE_TIME	(2 * HZ)

/* What comes by a lane at its end takes the memory of so many rings at most. */
#define KEPT_RINGS	4U

/*
 * Bytes of a lane are kept while TCP has not what is before them, which on a slow way takes
 * minutes. Where this much is kept for one peer, a connection whose TCP has not come nearer by
 * KEPT_STEP for so long has to make room. Where there is no memory, what was kept of a connection
 * that cannot go on is lost after that time.
 */
#define KEPT_MUCH	(STREAM_KEPT_MAX / 4)
#define KEPT_STEP	(256U << 10)
#define KEPT_TIME	(60 * HZ)
#define KEPT_TRIES	30

/* A peer that does not answer a hello keeps the application from sending much. */
#define SAID_TIME	(HZ / 5)

static void call_back(struct sock *sk, void (*data_ready)(struct sock *sk),
		      void (*write_space)(struct sock *sk),
		      void (*state_change)(struct sock *sk))
{
	local_bh_disable();
	data_ready(sk);
	write_space(sk);
	/* poll() may tell of a FIN now. */
	if (READ_ONCE(sk->sk_shutdown) & RCV_SHUTDOWN)
		state_change(sk);
	local_bh_enable();
}

/* Programs that wait for the socket are to look at it. */
static void wake(struct stream *stream)
{
	call_back(stream->sk, stream->data_ready, stream->write_space, stream->state_change);
}

/*
 * TCP has more to read, or may be written to again. Not only programs are told: kTLS, KCM or a
 * sockmap may have the socket by now, and looks into its queues. The caller has the socket locked.
 */
static void tell(struct stream *stream)
{
	struct sock *sk = stream->sk;

	sock_owned_by_me(sk);
	call_back(sk, sk->sk_data_ready, sk->sk_write_space, sk->sk_state_change);
}

/* Whether we can stop to send by TCP, with nothing there that waits for more. */
static bool may_stop(const struct stream *stream)
{
	const struct sock *sk = stream->sk;

	return !(tcp_sk(sk)->nonagle & TCP_NAGLE_CORK) && !stream_has_more(stream) &&
	       !(sk->sk_shutdown & SEND_SHUTDOWN) &&
	       sk->sk_state == TCP_ESTABLISHED && !stream_is_in_use(sk) &&
	       !test_bit(STREAM_SHUT, &stream->flags) &&
	       !test_bit(STREAM_STAYS, &stream->flags) &&
	       !test_bit(STREAM_DEAD, &stream->flags);
}

/* Whether TCP has so much to send yet that a lane is not worth the wait for it. */
static bool owes_much(const struct sock *sk)
{
	return tcp_sk(sk)->write_seq - tcp_sk(sk)->snd_una > STREAM_OWED;
}

/*
 * Stop to send by TCP, and tell the peer where; or later, if TCP owes too much, or a program keeps
 * a lock. False: never.
 */
static bool say_hello(struct stream *stream)
{
	struct vmloop_lane *lane = stream->held;
	struct stream_hello hello;
	bool may;
	void *to;

	if (!stream_lock_mutex(stream, &stream->tx_mutex))
		return true;
	/* A FIN comes before this, or is seen. */
	if (!stream_lock_sock(stream)) {
		mutex_unlock(&stream->tx_mutex);
		return true;
	}
	mutex_lock(&stream->tx_ring);
	may = may_stop(stream);
	if (may && !owes_much(stream->sk) && !stream->down &&
	    stream->tx == STREAM_TX_TCP &&
	    vmloop_ring_space(&lane->tx, sizeof(hello), &to) >= sizeof(hello)) {
		hello.magic = cpu_to_le32(STREAM_HELLO_MAGIC);
		hello.seq = cpu_to_le32(READ_ONCE(tcp_sk(stream->sk)->write_seq));
		memcpy(to, &hello, sizeof(hello));
		vmloop_ring_add(&lane->tx, sizeof(hello));
		WRITE_ONCE(stream->tx, STREAM_TX_SAID);
		/* What TCP was to hold back has gone: no more of it after the lane. */
		WRITE_ONCE(stream->more, false);
		stream->said = jiffies;
		if (vmloop_ring_publish(&lane->tx))
			vmloop_lane_ring(lane);
	}
	mutex_unlock(&stream->tx_ring);
	release_sock(stream->sk);
	mutex_unlock(&stream->tx_mutex);
	return may;
}

/* Whether a peer may stop to send by TCP there. */
static bool is_honest(const struct sock *sk, const struct stream_hello *hello)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u32 seq = le32_to_cpu(hello->seq);

	return hello->magic == cpu_to_le32(STREAM_HELLO_MAGIC) &&
	       !before(seq, READ_ONCE(tp->copied_seq)) &&
	       !after(seq, READ_ONCE(tp->rcv_nxt) + STREAM_OWED_MAX);
}

/**
 * stream_hear() - see whether the peer has said hello
 * @stream: a stream whose lane is up; rx_mutex and rx_ring held
 *
 * Return: whether it has.
 */
bool stream_hear(struct stream *stream)
{
	struct vmloop_lane *lane = stream->held;
	struct stream_hello hello;
	const void *from;

	lockdep_assert_held(&stream->rx_mutex);
	lockdep_assert_held(&stream->rx_ring);
	if (stream->heard || stream->closed || stream->spoilt)
		return stream->heard;
	if (vmloop_ring_bytes(&lane->rx, 0, sizeof(hello), &from) <
	    sizeof(hello)) {
		if (!lane->rx.broken)
			vmloop_ring_wait_bytes(&lane->rx, sizeof(hello));
		return false;
	}
	memcpy(&hello, from, sizeof(hello));
	barrier();
	vmloop_ring_take(&lane->rx, sizeof(hello));
	if (!is_honest(stream->sk, &hello)) {
		/* The work ends the lane. Nothing of it is anybody's. */
		stream_spoil(stream, STREAM_FAULT_LIE);
		stream_queue(stream, 0);
		return false;
	}
	if (vmloop_ring_consume_publish(&lane->rx))
		vmloop_lane_ring(lane);
	/* Whoever polls, and has not read yet, is to be woken. */
	spin_lock_bh(&stream->lane_lock);
	WRITE_ONCE(stream->seq, le32_to_cpu(hello.seq));
	WRITE_ONCE(stream->heard, true);
	WRITE_ONCE(stream->rx_told, lane->rx.tail);
	if (!vmloop_ring_sleep(&lane->rx))
		tasklet_schedule(&stream->bell);
	spin_unlock_bh(&stream->lane_lock);
	return true;
}

/* An skb of what the ring has next; NULL if that cannot be had, or the peer has its share. */
static struct sk_buff *take(struct stream *stream, u32 size)
{
	struct sk_buff *skb = stream_merge_make(size);
	struct vmloop_lane *lane = stream->held;
	u32 at, bytes;
	const void *from;

	if (!skb)
		return NULL;
	if (!stream->kept_memory)
		stream->kept_peer = stream_budget_peer(stream);
	if (!stream_budget_take(STREAM_BUDGET_KEPT, stream->kept_peer, skb->truesize)) {
		kfree_skb(skb);
		return NULL;
	}
	for (at = 0; at < skb->len; at += bytes) {
		bytes = vmloop_ring_bytes(&lane->rx, at, skb->len - at, &from);
		bytes = min(bytes, skb->len - at);
		if (!bytes || skb_store_bits(skb, at, from, bytes)) {
			stream_budget_give(STREAM_BUDGET_KEPT, stream->kept_peer, skb->truesize);
			kfree_skb(skb);
			return NULL;
		}
	}
	vmloop_ring_take(&lane->rx, skb->len);
	return skb;
}

/**
 * stream_keep() - have what came by the ring in memory of our own
 * @stream: a stream whose lane is up; rx_ring held
 *
 * It is TCP's by the next merge(). Without memory it stays unread, and the peer sends it
 * again by TCP.
 */
void stream_keep(struct stream *stream)
{
	struct vmloop_lane *lane = stream->held;
	struct sk_buff *skb;
	u32 size, at, most;
	const void *from;

	lockdep_assert_held(&stream->rx_ring);
	if (!stream->heard || stream->closed || stream->spoilt)
		return;
	/* All that has come by now, though some of it was seen before. */
	vmloop_ring_bytes(&lane->rx, 0, lane->rx.size, &from);
	if (!vmloop_ring_ready(&lane->rx))
		return;
	size = lane->rx.head - lane->rx.tail;
	/*
	 * A peer that goes on and on is not kept for; nor one whose ring is larger than ours would
	 * be, or that has each byte take a page. What stays unread comes by TCP, into its bounds.
	 */
	most = min(vmloop_ring_most(&lane->rx), max(READ_ONCE(stream_ring_size), 4096U));
	stream->kept_most = max(stream->kept_most, KEPT_RINGS * most);
	for (at = 0; at < size && stream->kept_paid < stream->kept_most; at += skb->len) {
		skb = take(stream, size - at);
		if (!skb)
			break;
		__skb_queue_tail(&stream->kept, skb);
		stream->kept_paid += skb->truesize;
		WRITE_ONCE(stream->kept_memory, stream->kept_memory + skb->truesize);
	}
	WRITE_ONCE(stream->got, stream->got + at);
	stream_count(STREAM_RX_BYTES, at);
	if (vmloop_ring_consume_publish(&lane->rx))
		vmloop_lane_ring(lane);
	vmloop_ring_sleep(&lane->rx);
}

/* What is kept yet is what is accounted for. The caller has rx_ring, or the last reference. */
static void account_kept(struct stream *stream)
{
	const struct sk_buff *skb;
	long memory = 0;

	skb_queue_walk(&stream->kept, skb)
		memory += skb->truesize;
	stream_budget_give(STREAM_BUDGET_KEPT, stream->kept_peer, stream->kept_memory - memory);
	WRITE_ONCE(stream->kept_memory, memory);
}

/**
 * stream_purge() - free what was kept of a lane, and became nobody's
 * @stream: the stream; rx_ring held, or nobody else has it
 */
void stream_purge(struct stream *stream)
{
	__skb_queue_purge(&stream->kept);
	account_kept(stream);
}

/*
 * Whether the socket's queue is the connection's: not of one that has been destroyed,
 * or disconnected. The caller has the socket locked.
 */
static bool has_queue(const struct stream *stream)
{
	const struct sock *sk = stream->sk;

	return !test_bit(STREAM_DEAD, &stream->flags) &&
	       (sk->sk_state != TCP_CLOSE || inet_sk(sk)->inet_dport);
}

/* The socket of ours to close in the application's place, or NULL. */
static struct socket *orphan_of(const struct stream *stream)
{
	/* Pairs with the release in calls.c's close_later(): @since is its time, too. */
	return smp_load_acquire(&stream->orphan);
}

/*
 * The peer's answer is to reach us, though the application does not read what is before
 * it: the receive buffer has room for what is to come by TCP up to there. Our own answer
 * tells the peer. It grows by no more than @room in the life of a lane. The caller has the
 * socket locked, and rx_ring.
 */
static void make_room(struct stream *stream)
{
	struct sock *sk = stream->sk;
	s64 left = (s32)(stream->seq + sizeof(struct stream_return) -
			 tcp_sk(sk)->rcv_nxt);
	s64 more;

	if (!stream->heard || left <= 0)
		return;
	/* Twice as much is what TCP takes bytes to cost in memory. */
	more = atomic_read(&sk->sk_rmem_alloc) + 2 * left + (64 << 10) -
	       sk->sk_rcvbuf;
	more = min3(more, (s64)stream->room, (s64)INT_MAX - sk->sk_rcvbuf);
	if (more <= 0)
		return;
	stream->room -= more;
	WRITE_ONCE(sk->sk_rcvbuf, sk->sk_rcvbuf + (int)more);
}

/*
 * What was kept becomes TCP's, and those who wait for it are told. The caller has the socket
 * locked. Returns 0; -EAGAIN as long as TCP has not what is before it; -ENOMEM; -ENOTCONN;
 * -EPROTO if it has no place any more.
 */
static int merge(struct stream *stream)
{
	struct sock *sk = stream->sk;
	int was = sk->sk_rcvbuf, err;
	bool moved;
	long had;

	if (!has_queue(stream))
		return -ENOTCONN;
	mutex_lock(&stream->rx_ring);
	had = stream->kept_memory;
	err = stream_merge(sk, stream->seq, &stream->kept);
	account_kept(stream);
	moved = stream->kept_memory != had;
	/* Nobody reads what comes to a socket that has been closed. */
	if (stream->closed && !orphan_of(stream))
		make_room(stream);
	mutex_unlock(&stream->rx_ring);
	if (sk->sk_rcvbuf != was) {
		if (!stream->rcvbuf_set || stream->rcvbuf_set != was)
			stream->rcvbuf = was;
		WRITE_ONCE(stream->rcvbuf_set, sk->sk_rcvbuf);
	}
	if (moved)
		tell(stream);
	return err;
}

/* stream_merge_kept() for the work: -EAGAIN as well if a program keeps the socket locked. */
static int merge_by_work(struct stream *stream)
{
	int err;

	if (!stream_lock_sock(stream))
		return -EAGAIN;
	err = merge(stream);
	release_sock(stream->sk);
	return err;
}

/**
 * stream_merge_kept() - have what was kept of a lane be TCP's now
 * @stream: the stream
 *
 * By a program's call, which may wait for another one's.
 *
 * Return: 0; -EAGAIN as long as TCP has not what is before it; or another negative errno,
 * on which the work acts.
 */
int stream_merge_kept(struct stream *stream)
{
	int err;

	lock_sock(stream->sk);
	err = merge(stream);
	release_sock(stream->sk);
	return err;
}

/**
 * stream_lower_rcvbuf() - have the receive buffer as large again as it was
 * @stream: the stream; its socket is locked, or its spinlock is held and no task owns it
 *
 * Unless others have set it, and as soon as what is in it has been read. Until then it has
 * room for all that TCP has told the peer it may send, since TCP never takes that back.
 */
void stream_lower_rcvbuf(struct stream *stream)
{
	struct sock *sk = stream->sk;
	const struct tcp_sock *tp = tcp_sk(sk);
	s64 size = atomic_read(&sk->sk_rmem_alloc);
	s32 offered = tp->rcv_wup + tp->rcv_wnd - tp->rcv_nxt;

	if (!stream->rcvbuf_set)
		return;
	if (sk->sk_rcvbuf != stream->rcvbuf_set) {
		WRITE_ONCE(stream->rcvbuf_set, 0);
		return;
	}
	if (size <= stream->rcvbuf / 2)
		size = 0;
	else
		size += 2 * (s64)max(offered, 0);
	size = max_t(s64, size, stream->rcvbuf);
	if (size < sk->sk_rcvbuf)
		WRITE_ONCE(sk->sk_rcvbuf, size);
	WRITE_ONCE(stream->rcvbuf_set,
		   size > stream->rcvbuf ? sk->sk_rcvbuf : 0);
}

/* The lane is up: go over when the peer has heard us, and we it. */
static void go_over(struct stream *stream)
{
	struct vmloop_lane *lane = stream->held;
	bool changed = false, late;
	int err = 0;

	if (stream->tx == STREAM_TX_TCP && !READ_ONCE(stream->down) &&
	    (lane->rx.size > STREAM_RING_MOST || stream_is_elsewhere(stream) ||
	     stream_way(stream->sk) == -EACCES ||
	     !stream_rule_allows(stream->sk) || !say_hello(stream))) {
		vmloop_lane_shut(lane, VMLOOP_REASON_NONE);
		return;
	}
	if (!READ_ONCE(stream->heard) && stream_lock_mutex(stream, &stream->rx_mutex)) {
		mutex_lock(&stream->rx_ring);
		stream_hear(stream);
		mutex_unlock(&stream->rx_ring);
		mutex_unlock(&stream->rx_mutex);
	}
	if (READ_ONCE(stream->down)) {
		mutex_lock(&stream->rx_ring);
		stream_keep(stream);
		if (!stream->closed && !vmloop_ring_ready(&lane->rx))
			vmloop_lane_read(lane);
		else if (!stream->closed)
			stream_queue(stream, RETRY_MAX / 4);
		/* A program that polls had nothing to read, and has not seen it. */
		if (!stream->closed && lane->rx.broken)
			vmloop_lane_broken(lane, lane->rx.broken);
		mutex_unlock(&stream->rx_ring);
		err = merge_by_work(stream);
		if (err == -EPROTO)
			stream_spoil(stream, STREAM_FAULT_LIE);
		changed = true;
	}

	mutex_lock(&stream->tx_ring);
	if (stream->tx == STREAM_TX_SAID && !stream->down && stream->heard &&
	    !vmloop_ring_wait_read(&lane->tx, lane->tx.head) &&
	    !lane->tx.broken && stream_pending_to_ring(stream)) {
		stream_pending_free(stream);
		WRITE_ONCE(stream->tx, STREAM_TX_RING);
		changed = true;
	}
	if (lane->tx.broken && !stream->down)
		vmloop_lane_broken(lane, lane->tx.broken);
	late = stream->tx == STREAM_TX_SAID &&
	       time_after(jiffies, stream->said + SAID_TIME);
	mutex_unlock(&stream->tx_ring);
	if (changed)
		wake(stream);
	else if (late)
		vmloop_lane_shut(lane, VMLOOP_REASON_NONE);
	else if (stream->tx == STREAM_TX_SAID)
		stream_queue(stream, SAID_TIME / 4);
	else if (stream->tx == STREAM_TX_TCP && !READ_ONCE(stream->down))
		stream_queue(stream, RETRY_MAX);	/* TCP owes too much yet */
	if (err == -EAGAIN || err == -ENOMEM)
		stream_queue(stream, RETRY_MAX);
}

/*
 * Bytes of TCP's from a sequence number on, not taken. False if not all are there. The
 * caller has the socket locked.
 */
static bool peek(struct sock *sk, u32 seq, void *to, unsigned int size)
{
	unsigned int done = 0, part;
	struct sk_buff *skb;
	u32 offset;

	sock_owned_by_me(sk);
	if (before(tcp_sk(sk)->rcv_nxt, seq + size))
		return false;
	skb_queue_walk(&sk->sk_receive_queue, skb) {
		offset = seq + done - TCP_SKB_CB(skb)->seq;
		if (offset >= skb->len)
			continue;
		part = min(size - done, skb->len - offset);
		if (skb_copy_bits(skb, offset, to + done, part))
			break;
		done += part;
		if (done == size)
			break;
	}
	return done == size;
}

/* Tell the peer by TCP what came by the ring. 0, -EAGAIN, or another negative errno. */
static int say_got(struct stream *stream)
{
	int sent;

	if (!stream->told) {
		stream->told = true;
		mutex_lock(&stream->rx_ring);
		stream->returning = (struct stream_return){
			.nonce = cpu_to_le64(stream->nonce),
			.got = cpu_to_le32((u32)stream->got),
		};
		mutex_unlock(&stream->rx_ring);
	}
	while (stream->returned < sizeof(stream->returning)) {
		sent = stream_send_by_tcp(stream,
					  (u8 *)&stream->returning + stream->returned,
					  sizeof(stream->returning) - stream->returned);
		if (sent < 0)
			return sent;
		stream->returned += sent;
	}
	return 0;
}

/*
 * See what the peer has got of what we sent, and take that out of TCP's queue, in which
 * the application may read on from now on. The caller has the socket locked. Returns 0;
 * -EAGAIN; -EPROTO if it cannot be; -ENODATA if nothing more comes; -ENOTCONN.
 */
static int hear_answer(struct stream *stream)
{
	struct stream_return answer;
	struct sock *sk = stream->sk;
	int err;
	u32 got;

	err = merge(stream);
	if (!err && !peek(sk, stream->seq, &answer, sizeof(answer)))
		err = -EAGAIN;
	/* Behind a FIN nothing comes. */
	if (err == -EAGAIN && sock_flag(sk, SOCK_DONE))
		return -ENODATA;
	if (err)
		return err == -ENOMEM ? -EAGAIN : err;
	got = le32_to_cpu(answer.got) - stream->unsent_from;
	if (le64_to_cpu(answer.nonce) != stream->nonce || got > stream->unsent_size)
		return -EPROTO;
	mutex_lock(&stream->rx_ring);
	err = stream_merge_cut(sk, stream->seq, sizeof(answer));
	if (!err)
		WRITE_ONCE(stream->heard, false);
	mutex_unlock(&stream->rx_ring);
	if (err)
		return err == -ENOMEM ? -EAGAIN : err;
	stream_lower_rcvbuf(stream);
	/* What TCP sends again did not go by the lane. */
	WRITE_ONCE(stream->sent, stream->sent - (stream->unsent_size - got));
	WRITE_ONCE(stream->unsent_at, got);
	stream->answered = true;
	return 0;
}

static int something_comes(struct wait_queue_entry *entry, unsigned int mode, int sync,
			   void *key)
{
	stream_queue(container_of(entry, struct stream, arrival), 0);
	return 0;
}

/*
 * Have the work run when TCP says anything to those who wait for the socket: a program may wait
 * behind the peer's answer, and a FIN of ours for the peer's. The clock has it run as well; TCP
 * says nothing of few bytes where the program has set SO_RCVLOWAT. The caller has the socket
 * locked.
 */
static void listen_for_tcp(struct stream *stream)
{
	struct sock *sk = stream->sk;

	if (stream->listens || !sk->sk_socket || test_bit(STREAM_CLOSED, &stream->flags))
		return;
	init_waitqueue_func_entry(&stream->arrival, something_comes);
	add_wait_queue(sk_sleep(sk), &stream->arrival);
	stream->listens = true;
}

/**
 * stream_listen_no_more() - nothing of the stream's is in the socket's wait queue
 * @stream: the stream; the caller has the socket locked
 *
 * Before the socket gets another wait queue, or none.
 */
void stream_listen_no_more(struct stream *stream)
{
	sock_owned_by_me(stream->sk);
	if (!stream->listens)
		return;
	remove_wait_queue(sk_sleep(stream->sk), &stream->arrival);
	stream->listens = false;
}

static int ask(struct stream *stream)
{
	int err;

	if (stream->answered)
		return 0;
	if (!stream_lock_sock(stream))
		return -EAGAIN;
	err = hear_answer(stream);
	if (err == -EAGAIN)
		listen_for_tcp(stream);
	else if (!err)
		tell(stream);
	release_sock(stream->sk);
	return err;
}

/* An error that is told is not the end of the connection yet. */
static bool is_gone(const struct stream *stream)
{
	return test_bit(STREAM_DEAD, &stream->flags) ||
	       READ_ONCE(stream->sk->sk_state) == TCP_CLOSE;
}

/*
 * The connection cannot go on. What came before its end can be read, and nothing behind
 * it that is ours. Returns 0; -ENOMEM or -EAGAIN: try again.
 */
static int forget(struct stream *stream)
{
	struct sock *sk = stream->sk;
	int err = 0;
	u32 seq;

	if (!stream_lock_sock(stream))
		return -EAGAIN;
	/* Without a lane's bytes all is TCP's; one that has ended in order has said all. */
	if (!stream->heard || !has_queue(stream) ||
	    (!stream->spoilt && (!stream->carried || !hear_answer(stream))))
		goto out;
	seq = stream->seq;
	if (before(seq, tcp_sk(sk)->copied_seq))
		seq = tcp_sk(sk)->copied_seq;	/* a lie */
	else
		err = merge(stream);
	/*
	 * What is between is lost, and so are those. Without memory they are lost as well,
	 * where the connection has ended or a minute has gone: rmmod waits for this.
	 */
	if (err == -EAGAIN || err == -EPROTO || is_gone(stream) ||
	    time_after(jiffies, stream->since + KEPT_TIME))
		err = 0;
	if (!err && before(seq, tcp_sk(sk)->rcv_nxt)) {
		/* A FIN behind it is not the end of what is there. */
		sock_reset_flag(sk, SOCK_DONE);
		mutex_lock(&stream->rx_ring);
		err = stream_merge_cut(sk, seq, tcp_sk(sk)->rcv_nxt - seq);
		if (!err)
			WRITE_ONCE(stream->seq, tcp_sk(sk)->rcv_nxt);
		mutex_unlock(&stream->rx_ring);
	}
out:
	release_sock(sk);
	return err;
}

/* What the log says of a connection that was reset. */
static const char *text_of(enum stream_fault fault)
{
	switch (fault) {
	case STREAM_FAULT_LIE:
		return "the peer's module sent what cannot be";
	case STREAM_FAULT_NO_ANSWER:
		return "the peer ended the connection without saying what had arrived";
	case STREAM_FAULT_SILENT:
		return "the peer's module did not answer in time";
	case STREAM_FAULT_HELLO:
		return "the lane ended at its beginning: nobody knows what had arrived";
	case STREAM_FAULT_UNSENT:
		return "no memory for what the peer has not confirmed (unsent_max)";
	case STREAM_FAULT_KEPT:
		return "what had come waited too long, in memory that others need";
	case STREAM_FAULT_TCP:
		return "TCP cannot send any more";
	case STREAM_FAULT_UNLOAD:
		return "vmloop_tcp is being removed";
	case STREAM_FAULT_UNREAD:
	case STREAM_FAULT_NONE:
		break;
	}
	/* TCP says nothing either of a program that closes what it has not read. */
	return NULL;
}

/* Not all of many: a peer may cause them. The counter has all. */
static void log_reset(const struct stream *stream, enum stream_fault fault)
{
	const struct sock *sk = stream->sk;
	const struct inet_sock *inet = inet_sk(sk);
	const char *text = text_of(fault);

	if (!text)
		return;
#if IS_ENABLED(CONFIG_IPV6)
	/* As `vmloop streams` has it: IPv4 by a socket of IPv6 is IPv4. */
	if (sk->sk_family == AF_INET6 && !ipv6_addr_v4mapped(&sk->sk_v6_daddr)) {
		pr_warn_ratelimited("vmloop_tcp: [%pI6c]:%u to [%pI6c]:%u was reset: %s\n",
				    &sk->sk_v6_rcv_saddr, ntohs(inet->inet_sport),
				    &sk->sk_v6_daddr, ntohs(inet->inet_dport), text);
		return;
	}
#endif
	pr_warn_ratelimited("vmloop_tcp: %pI4:%u to %pI4:%u was reset: %s\n",
			    &inet->inet_rcv_saddr, ntohs(inet->inet_sport),
			    &inet->inet_daddr, ntohs(inet->inet_dport), text);
}

/**
 * stream_reset() - end a connection as TCP does when it cannot go on
 * @stream: its stream; one that has ended is left as it is
 * @fault: why, for the log
 *
 * Return: whether it has ended; else its work runs again when it has.
 */
bool stream_reset(struct stream *stream, enum stream_fault fault)
{
	if (is_gone(stream) || test_bit(STREAM_ABORTED, &stream->flags))
		return true;
	if (stream_abort(stream)) {
		/* What is counted is in the log. */
		log_reset(stream, fault);
		stream_count(STREAM_RESET, 1);
	}
	return false;
}

/*
 * What is to be known is known, and what was to be sent by TCP was: TCP goes on. Returns false,
 * with nothing changed, if a program has sent more meanwhile, or keeps the socket locked. With @err
 * the connection has ended, and what is pending is forgotten.
 */
static bool go_on(struct stream *stream, int err)
{
	struct vmloop_lane *lane = stream->held;
	enum stream_why why = READ_ONCE(stream->why_ended);
	bool carried = stream->carried, was_used = false, is_sent;

	if (!stream_lock_sock(stream))
		return false;
	mutex_lock(&stream->tx_ring);
	is_sent = err || stream_pending_is_sent(stream);
	if (is_sent) {
		stream_pending_free(stream);
		WRITE_ONCE(stream->tx, STREAM_TX_TCP);
		was_used = carried && (stream->sent || stream->got);
	}
	mutex_unlock(&stream->tx_ring);
	if (!is_sent) {
		release_sock(stream->sk);
		return false;
	}

	if (stream->up && why != STREAM_WHY_POLICY)
		why = STREAM_WHY_YOUNG;
	mutex_lock(&stream->rx_ring);
	/* Of a peer that has sent what it must not, or of a connection that has ended. */
	stream_purge(stream);
	WRITE_ONCE(stream->heard, false);
	mutex_unlock(&stream->rx_ring);
	stream_lower_rcvbuf(stream);
	stream_listen_no_more(stream);
	tell(stream);
	release_sock(stream->sk);
	if (carried)
		stream_count(STREAM_BACK, 1);
	/* From here on the peer may open the next one. Under rx_ring a reader looks at this one. */
	mutex_lock(&stream->rx_ring);
	WRITE_ONCE(stream->held, NULL);
	mutex_unlock(&stream->rx_ring);
	vmloop_lane_put(lane);
	if (!stream->active && !was_used)
		stream_for_nothing(stream);
	else
		stream_not_now(stream, why);
	wake(stream);
	return true;
}

/* Nothing came by the lane: what the peer sends by TCP can be read now. Returns 0 or -EAGAIN. */
static int hear_nothing(struct stream *stream)
{
	if (!stream_lock_sock(stream))
		return -EAGAIN;
	mutex_lock(&stream->rx_ring);
	stream_purge(stream);
	WRITE_ONCE(stream->heard, false);
	mutex_unlock(&stream->rx_ring);
	stream_lower_rcvbuf(stream);
	tell(stream);
	release_sock(stream->sk);
	stream->answered = true;
	return 0;
}

/* Both ways are told of. 0; -EAGAIN; or why the connection cannot go on. */
static int settle(struct stream *stream)
{
	int err;

	if (READ_ONCE(stream->spoilt))
		return -EPROTO;
	if (!stream->carried) {
		err = stream->answered ? 0 : hear_nothing(stream);
		return err ?: stream_pending_by_tcp(stream);
	}
	/* What has come can be read, whatever the peer does now, and its answer can come. */
	if (!stream->answered) {
		err = merge_by_work(stream);
		if (err == -EPROTO)
			return err;
	}
	err = say_got(stream);
	if (!err)
		err = ask(stream);
	if (!err)
		err = stream_pending_by_tcp(stream);
	return err;
}

/*
 * When to look again for the peer's answer, which a program may wait behind: at once, as it
 * were, at first; each second after a while.
 */
static unsigned long retry_after(const struct stream *stream)
{
	unsigned long waited = jiffies - READ_ONCE(stream->since);
	unsigned long most = clamp(waited / 8, RETRY_MAX,
				   (unsigned long)RETRY_LATE);

	if (waited < RETRY_OFTEN)
		return RETRY;
	return clamp(stream->retry * 2, RETRY, most);
}

/*
 * Whether what is kept of the stream takes memory that others need, for nothing: TCP does not come
 * nearer to it, and the program, which TCP without memory may wait for, does not read it.
 */
static bool is_stuck(struct stream *stream)
{
	u32 next = READ_ONCE(tcp_sk(stream->sk)->rcv_nxt);
	long left = READ_ONCE(stream->kept_memory);

	if (skb_queue_empty_lockless(&stream->kept))
		return false;
	if (!stream->kept_since || next - stream->kept_next >= KEPT_STEP ||
	    left < stream->kept_left) {
		stream->kept_next = next;
		stream->kept_left = left;
		stream->kept_since = jiffies ?: 1;
	}
	return time_after(jiffies, stream->kept_since + KEPT_TIME) &&
	       stream_budget_taken(STREAM_BUDGET_KEPT, stream->kept_peer) > KEPT_MUCH;
}

/* Whether TCP has all that is before what is kept: memory, and so the program, is waited for. */
static bool waits_for_program(const struct stream *stream)
{
	return !skb_queue_empty_lockless(&stream->kept) &&
	       !before(READ_ONCE(tcp_sk(stream->sk)->rcv_nxt), READ_ONCE(stream->seq));
}

/* Whether the peer has had its time. One that has answered takes the rest as TCP's window says. */
static bool is_late(struct stream *stream)
{
	unsigned long time = ANSWER_TIME;

	if (orphan_of(stream))
		time = ORPHAN_TIME;
	else if (stream->answered)
		return false;
	else if (waits_for_program(stream))
		return is_stuck(stream);
	return is_stuck(stream) ||
	       time_after(jiffies, READ_ONCE(stream->since) + time);
}

/*
 * Whether TCP has brought bytes to a program that has closed the socket, and owes more: TCP would
 * reset such a connection.
 */
static bool is_unwanted(const struct stream *stream)
{
	const struct tcp_sock *tp = tcp_sk(stream->sk);
	u32 next = READ_ONCE(tp->rcv_nxt);

	return orphan_of(stream) && READ_ONCE(stream->heard) &&
	       before(READ_ONCE(tp->copied_seq), next) && before(next, READ_ONCE(stream->seq));
}

/*
 * Bytes are not kept for ever for a connection that a program keeps locked: others need the memory.
 * It is reset when the lock is free, and until then it is not at its end.
 */
static void keep_no_more(struct stream *stream)
{
	/* Not of a machine that stood still for so long: the work tried again and again. */
	if (stream->kept_out < KEPT_TRIES ||
	    !time_after(jiffies, stream->kept_out_since + KEPT_TIME) ||
	    !(stream->unsent_memory || READ_ONCE(stream->kept_memory) || stream->pending[0]))
		return;
	mutex_lock(&stream->tx_ring);
	stream_pending_free(stream);
	mutex_unlock(&stream->tx_ring);
	mutex_lock(&stream->rx_ring);
	clear_bit(STREAM_LAST, &stream->flags);
	/* Pairs with the barrier in stream_is_at_end(): nothing is kept, and no end is seen. */
	smp_mb__after_atomic();
	stream_purge(stream);
	stream_spoil(stream, STREAM_FAULT_KEPT);
	mutex_unlock(&stream->rx_ring);
}

/* Why a connection cannot go on, of which settle() said @err. */
static enum stream_fault fault_of(struct stream *stream, int err)
{
	enum stream_fault fault = READ_ONCE(stream->spoilt);

	if (is_unwanted(stream))
		return STREAM_FAULT_UNREAD;
	if (fault)
		return fault;
	switch (err) {
	case -EPROTO:
		return STREAM_FAULT_LIE;
	case -ENODATA:
		return STREAM_FAULT_NO_ANSWER;
	case -EAGAIN:
		return is_stuck(stream) ? STREAM_FAULT_KEPT : STREAM_FAULT_SILENT;
	default:
		return STREAM_FAULT_TCP;
	}
}

/* What became of the lane is known. */
static void come_back(struct stream *stream)
{
	int err = 0;

	if (is_gone(stream))
		err = -ENOTCONN;
	else if (is_unwanted(stream) || test_bit(STREAM_ABORT, &stream->flags))
		err = -ECONNRESET;
	else
		err = settle(stream);

	if (!stream->retry)
		WRITE_ONCE(stream->since, jiffies);
	if (err)
		keep_no_more(stream);
	if (err == -EAGAIN) {
		stream->retry = retry_after(stream);
		if (!is_late(stream)) {
			stream_queue(stream, stream->retry);
			return;
		}
	}
	if (err) {
		if (forget(stream) || !stream_reset(stream, fault_of(stream, err))) {
			stream->retry = RETRY_MAX;
			stream_queue(stream, RETRY_MAX);
			return;
		}
	}
	if (!go_on(stream, err))
		stream_queue(stream, stream->is_kept_out ? RETRY_MAX : 0);
}

/* Whether our FIN is to wait for the peer's, for which the work runs again. */
static bool waits_for_fin(struct stream *stream)
{
	bool waits;

	if (!stream_follows_fin(stream))
		return false;
	if (!stream_lock_sock(stream))
		return true;
	/* TCP tells of a FIN under the lock. */
	waits = stream_follows_fin(stream);
	if (waits) {
		listen_for_tcp(stream);
		stream_queue(stream, STREAM_FIN_TIME);
	}
	release_sock(stream->sk);
	return waits;
}

/* TCP carries what we send: what the application wanted meanwhile can be done. */
static void catch_up(struct stream *stream)
{
	const struct proto *base = stream_base[stream->family];
	struct socket *orphan = orphan_of(stream);
	struct sock *sk = stream->sk;

	if ((orphan || test_bit(STREAM_FIN, &stream->flags)) && waits_for_fin(stream))
		return;
	if (orphan) {
		stream->orphan = NULL;
		/*
		 * For what came after close() TCP resets the connection, behind the FIN that it
		 * had sent by then; for what came before it sends no FIN.
		 */
		lock_sock(sk);
		if (!test_bit(STREAM_UNREAD, &stream->flags) &&
		    !skb_queue_empty(&sk->sk_receive_queue) && stream_may_send(sk))
			base->shutdown(sk, SEND_SHUTDOWN);
		release_sock(sk);
		/* close() sends the FIN of a program that has shut the connection, too. */
		clear_bit(STREAM_FIN, &stream->flags);
		clear_bit(STREAM_SHUT, &stream->flags);
		/* As release() does. The cgroup's programs for that ran at the first close(). */
		sk->sk_prot->close(sk, 0);
		orphan->sk = NULL;
		sock_release(orphan);
		stream_budget_give(STREAM_BUDGET_ORPHANS, stream->orphan_peer, 1);
		return;
	}
	if (!test_bit(STREAM_FIN, &stream->flags) ||
	    test_bit(STREAM_DEAD, &stream->flags))
		return;
	if (!stream_lock_sock(stream))
		return;
	stream_listen_no_more(stream);
	/* Disconnected while we waited for the lock, it may be another connection's by now. */
	if (!test_bit(STREAM_DEAD, &stream->flags) && stream_may_send(sk)) {
		sk->sk_shutdown |= SEND_SHUTDOWN;
		base->shutdown(sk, SEND_SHUTDOWN);
		sk->sk_state_change(sk);
	}
	clear_bit(STREAM_FIN, &stream->flags);
	clear_bit(STREAM_SHUT, &stream->flags);
	release_sock(sk);
}

/*
 * Whether the peer has not said for too long what became of a lane that is closed here. A
 * connection that has ended waits for GONE_TIME only.
 */
static bool is_silent(struct stream *stream)
{
	bool closed;

	/* stream_lane_close() sets @since and @closed under it: a set @closed has its @since. */
	mutex_lock(&stream->rx_ring);
	closed = stream->closed;
	mutex_unlock(&stream->rx_ring);
	return closed &&
	       (is_late(stream) ||
		(is_gone(stream) &&
		 time_after(jiffies, READ_ONCE(stream->since) + GONE_TIME)));
}

/* What a spoilt lane has carried need not be known. */
static void end_spoilt(struct stream *stream)
{
	if (!READ_ONCE(stream->closed)) {
		vmloop_lane_shut(stream->held, VMLOOP_REASON_NONE);
	} else if (!READ_ONCE(stream->ended)) {
		/* Pairs with the acquire of the work. */
		smp_store_release(&stream->ended, true);
		stream_queue(stream, 0);
	}
}

/*
 * Have TCP acknowledge once more what it has acknowledged already: conntrack and firewalls
 * on the way see that the connection lives, TCP sees which way it goes, and programs see
 * nothing.
 */
static void speak(struct stream *stream)
{
	struct sock *sk = stream->sk;
	bool owes = false;

	if (!stream_lock_sock(stream)) {
		set_bit(STREAM_SPEAK, &stream->flags);
		return;
	}
	if (!test_bit(STREAM_DEAD, &stream->flags)) {
		inet_csk_schedule_ack(sk);
		owes = true;
	}
	release_sock(sk);
	if (owes)
		stream_ack_at_once(stream);
}

/*
 * Of a program that sends nothing more all is in the ring: the peer's need not wait until TCP has
 * brought our FIN, which is behind the lane's end.
 */
static u32 why_shut(const struct stream *stream)
{
	if (READ_ONCE(stream->tx) == STREAM_TX_RING &&
	    (test_bit(STREAM_FIN, &stream->flags) || orphan_of(stream)))
		return STREAM_REASON_LAST;
	return VMLOOP_REASON_NONE;
}

/* Whether it is not to have a lane any more. */
static bool stays(const struct stream *stream)
{
	return test_bit(STREAM_STAYS, &stream->flags) || test_bit(STREAM_DEAD, &stream->flags);
}

/** stream_work() - what a stream has to do that takes time */
void stream_work(struct work_struct *work)
{
	struct stream *stream = container_of(to_delayed_work(work), struct stream,
					     work);

	stream->is_kept_out = false;
	if (test_and_clear_bit(STREAM_SPEAK, &stream->flags))
		speak(stream);
	/* Pairs with the release in stream_lane_open(): what is said of this lane is seen. */
	if (!smp_load_acquire(&stream->held)) {
		if (test_bit(STREAM_WANTED, &stream->flags))
			stream_open_lane(stream);
		/* Pairs with test_and_set_bit() in stream_leave(), which may have seen no lane. */
		smp_mb();
		if (READ_ONCE(stream->held) && stays(stream))
			stream_queue(stream, 0);
	} else {
		/* Pairs with the release in lane.c's decide(). */
		if (smp_load_acquire(&stream->ended)) {
			come_back(stream);
		} else if (stream_is_up(stream)) {
			if ((test_and_clear_bit(STREAM_GO_BACK, &stream->flags) ||
			     stays(stream)) &&
			    !READ_ONCE(stream->down))
				vmloop_lane_shut(stream->held, why_shut(stream));
			go_over(stream);
			stream_send_show(stream);
			if (test_and_clear_bit(STREAM_GROW, &stream->flags))
				stream_grow(stream);
			if (is_silent(stream))
				stream_spoil(stream, STREAM_FAULT_SILENT);
			if (READ_ONCE(stream->spoilt))
				end_spoilt(stream);
			else if (READ_ONCE(stream->closed) &&
				 test_bit(STREAM_DEAD, &stream->flags))
				stream_queue(stream, GONE_TIME); /* nobody else looks at it */
		} else if (stays(stream)) {
			/* The peer may never answer. */
			vmloop_lane_shut(stream->held, VMLOOP_REASON_NONE);
		}
	}
	if (!READ_ONCE(stream->held))
		catch_up(stream);
	if (!stream->was_kept_out || !stream->is_kept_out) {
		stream->kept_out_since = jiffies;
		stream->kept_out = 0;
	}
	stream->kept_out++;
	stream->was_kept_out = stream->is_kept_out;
	if (stream->is_kept_out)
		stream_queue(stream, RETRY_MAX);
	stream_put(stream);
}

/** stream_is_plain() - whether TCP carries all, and nothing is outstanding */
bool stream_is_plain(struct stream *stream)
{
	return !READ_ONCE(stream->held) && !READ_ONCE(stream->orphan) &&
	       !test_bit(STREAM_SHUT, &stream->flags) &&
	       !test_bit(STREAM_FIN, &stream->flags);
}

/**
 * stream_leave() - a stream is to go back to TCP, and to stay there
 * @stream: the stream
 *
 * Context: any; it takes a while.
 */
void stream_leave(struct stream *stream)
{
	if (!test_and_set_bit(STREAM_STAYS, &stream->flags) &&
	    READ_ONCE(stream->held))
		stream_queue(stream, 0);
}

/**
 * stream_go_back() - a stream is to go back to TCP, and may leave it again
 * @stream: the stream
 *
 * Context: any; it takes a while.
 */
void stream_go_back(struct stream *stream)
{
	/*
	 * If the bit is set, its setter queues the work, or stream_lane_up() does. Before @held is
	 * another lane, stream_lane_open() clears it.
	 */
	if (!READ_ONCE(stream->held) || test_and_set_bit(STREAM_GO_BACK, &stream->flags))
		return;
	stream_queue(stream, 0);
}

/**
 * stream_go_back_if_carried() - stream_go_back() for a stream whose lane carries both ways here
 * @stream: the stream; one that is on its way to a lane, or back, is left alone
 *
 * Context: any; it takes a while.
 */
void stream_go_back_if_carried(struct stream *stream)
{
	if (READ_ONCE(stream->tx) == STREAM_TX_RING && READ_ONCE(stream->heard))
		stream_go_back(stream);
}

/*
 * A connection may have its lane no longer if it leads elsewhere by now (a guest that answered
 * for the peer's address for a while has none for longer), or policy encrypts it, or a program
 * has asked the kernel, which does not tell us, for what lanes do not carry, or a rule came while
 * the lane was on its way. Of a way that has changed TCP learns when it sends; where it has none
 * then, a policy may forbid it.
 */
static void look_at_lane(struct stream *stream)
{
	const struct sock *sk = stream->sk;
	int err = stream_way(sk);

	stream->lost = err == -ESTALE ? stream->lost + 1 : 0;
	if (err == -EACCES || stream->lost == STREAM_LOST_LOOKS ||
	    stream_is_elsewhere(stream) || stream_has_option(sk) || !stream_rule_allows(sk)) {
		stream->lost = 0;
		stream_go_back(stream);
	} else if (err == -ESTALE) {
		set_bit(STREAM_SPEAK, &stream->flags);
		stream_queue(stream, 0);
	}
}

/**
 * stream_look_idle() - take the lane from a connection that has no use for it
 * @stream: the stream; looked at each STREAM_IDLE_LOOK
 */
void stream_look_idle(struct stream *stream)
{
	u32 seen = READ_ONCE(stream->sent) + READ_ONCE(stream->got);
	unsigned int keep_alive = READ_ONCE(stream_keep_alive);

	if (!READ_ONCE(stream->held)) {
		stream->spoke = jiffies;
	} else if (keep_alive &&
		   time_after(jiffies, stream->spoke + keep_alive * HZ)) {
		stream->spoke = jiffies;
		set_bit(STREAM_SPEAK, &stream->flags);
		stream_queue(stream, 0);
	}

	if (READ_ONCE(stream->held) && stream_is_up(stream))
		look_at_lane(stream);

	/* A connection that has ended needs no lane; a peer's last word has its time. */
	if (READ_ONCE(stream->held) && !READ_ONCE(stream->ended) &&
	    stream_is_up(stream)) {
		if (is_gone(stream))
			set_bit(STREAM_STAYS, &stream->flags);
		if (is_gone(stream) || READ_ONCE(stream->closed))
			stream_queue(stream, 0);
	}

	/* A signal is wanted by now, and nobody has read since. */
	if (sock_flag(stream->sk, SOCK_FASYNC) && !READ_ONCE(stream->polled)) {
		spin_lock_bh(&stream->lane_lock);
		WRITE_ONCE(stream->polled, true);
		if (READ_ONCE(stream->heard))
			stream_look_out(stream, false);
		spin_unlock_bh(&stream->lane_lock);
	}

	if (READ_ONCE(stream->rcvbuf_set)) {
		local_bh_disable();
		bh_lock_sock(stream->sk);
		if (!sock_owned_by_user(stream->sk) && !READ_ONCE(stream->held))
			stream_lower_rcvbuf(stream);
		bh_unlock_sock(stream->sk);
		local_bh_enable();
	}
	if (!READ_ONCE(stream->held))
		stream_forget_maybe(stream);
	if (!READ_ONCE(stream->held) || seen != stream->seen) {
		stream->seen = seen;
		stream->idle = 0;
		return;
	}
	if (++stream->idle == STREAM_IDLE_LOOKS)
		stream_go_back(stream);
}
