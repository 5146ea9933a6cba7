// SPDX-License-Identifier: GPL-2.0
/*
 * merge.c - what came by a lane, and nobody has read, becomes TCP's own.
 *
 * When a lane ends, its unread bytes are put into the socket's receive queue, where
 * the peer stopped to send by TCP, and the peer's struct stream_return is taken out.
 * Then TCP has all of the stream in order: its recvmsg(), poll() and close() need to
 * know nothing of lanes, and the module can go while a program has not read yet.
 *
 * TCP's numbers cannot change from that place on, since the peer uses them. So what
 * is before it, the socket's position (copied_seq) too, moves down by as many bytes as
 * are put in, and up by as many as are taken out.
 *
 * Owns nothing. Context: process context, the socket locked: TCP looks at its queue
 * under that lock only.
 */
#include <linux/mm.h>
#include <linux/skbuff.h>
#include <net/tcp.h>

#include "stream.h"

/* An skb of ours has no more bytes; its pages are single ones. */
#define PIECE	(32U << 10)

/* An skb for @size bytes, which are to be written; NULL without memory. */
static struct sk_buff *make(unsigned int size)
{
	struct sk_buff *skb;
	int err;

	BUILD_BUG_ON(PIECE / PAGE_SIZE + 1 > MAX_SKB_FRAGS);
	skb = alloc_skb_with_frags(0, size, 0, &err, GFP_KERNEL);
	if (!skb)
		return NULL;
	skb->len = size;
	skb->data_len = size;
	skb->ip_summed = CHECKSUM_UNNECESSARY;
	memset(TCP_SKB_CB(skb), 0, sizeof(*TCP_SKB_CB(skb)));
	TCP_SKB_CB(skb)->tcp_flags = TCPHDR_ACK;
	return skb;
}

/*
 * The socket pays for so many bytes though TCP has reached its limit of memory (tcp_mem):
 * sk_forced_mem_schedule() is TCP's own, but what a stream has beyond its send buffer is charged
 * whatever the limit is. A program that asks meanwhile hears that it cannot write, and is told
 * when that is over. The caller has bottom halves off.
 */
static bool pay_anyway(struct sock *sk, int size)
{
	bool is_set = sk->sk_userlocks & SOCK_SNDBUF_LOCK, pays;
	int had = sk->sk_sndbuf;

	WRITE_ONCE(sk->sk_sndbuf, 0);
	sk->sk_userlocks |= SOCK_SNDBUF_LOCK;
	pays = sk_wmem_schedule(sk, size);
	if (!is_set)
		sk->sk_userlocks &= ~SOCK_SNDBUF_LOCK;
	WRITE_ONCE(sk->sk_sndbuf, had);
	sk->sk_write_space(sk);
	return pays;
}

/*
 * The socket pays for an skb, as for each in its queue; @must: whatever TCP's limit is. With bottom
 * halves off, as where TCP receives: a cgroup at its limit is charged, and nobody waits until it
 * has given memory back.
 */
static bool charge(struct sock *sk, struct sk_buff *skb, bool must)
{
	bool pays;

	local_bh_disable();
	pays = sk_rmem_schedule(sk, skb, skb->truesize) ||
	       (must && pay_anyway(sk, skb->truesize));
	local_bh_enable();
	if (pays)
		skb_set_owner_r(skb, sk);
	return pays;
}

static void put_before(struct sock *sk, struct sk_buff *next, struct sk_buff *skb)
{
	if (next)
		__skb_queue_before(&sk->sk_receive_queue, next, skb);
	else
		__skb_queue_tail(&sk->sk_receive_queue, skb);
}

static struct sk_buff *next_of(struct sock *sk, const struct sk_buff *skb)
{
	const struct sk_buff_head *queue = &sk->sk_receive_queue;

	return skb_queue_is_last(queue, skb) ? NULL : skb_queue_next(queue, skb);
}

static void drop(struct sock *sk, struct sk_buff *skb)
{
	__skb_unlink(skb, &sk->sk_receive_queue);
	kfree_skb(skb);
}

/* The skb in which a byte is, or the first behind it; NULL if there is none. */
static struct sk_buff *find(struct sock *sk, u32 seq)
{
	struct sk_buff *skb;

	skb_queue_walk(&sk->sk_receive_queue, skb)
		if (after(TCP_SKB_CB(skb)->end_seq, seq))
			return skb;
	return NULL;
}

/*
 * An skb is to end at @seq, which is in it. One whose bytes up to there have been read, or
 * are in the one before it as well (TCP queues what was sent again whole), goes: none may be
 * behind the position. Returns 0 or -ENOMEM.
 */
static int end_at(struct sock *sk, struct sk_buff *skb, u32 seq)
{
	u32 start = tcp_sk(sk)->copied_seq;

	if (!skb_queue_is_first(&sk->sk_receive_queue, skb))
		start = TCP_SKB_CB(skb_queue_prev(&sk->sk_receive_queue, skb))->end_seq;
	if (!before(start, seq)) {
		drop(sk, skb);
		return 0;
	}
	if (pskb_trim(skb, seq - TCP_SKB_CB(skb)->seq))
		return -ENOMEM;
	TCP_SKB_CB(skb)->end_seq = seq;
	TCP_SKB_CB(skb)->tcp_flags &= ~TCPHDR_FIN;
	return 0;
}

/*
 * A copy of a part of an skb, charged; NULL without memory. It takes the place of what is there
 * already, so TCP's limit does not keep it away.
 */
static struct sk_buff *copy(struct sock *sk, const struct sk_buff *from,
			    unsigned int offset, unsigned int size)
{
	struct sk_buff *skb = make(size);
	const skb_frag_t *frag;
	unsigned int at = 0;
	int i;

	if (!skb)
		return NULL;
	memcpy(skb->cb, from->cb, sizeof(skb->cb));
	skb->tstamp = from->tstamp;
	for (i = 0; i < skb_shinfo(skb)->nr_frags; i++) {
		frag = &skb_shinfo(skb)->frags[i];
		if (skb_copy_bits(from, offset + at, skb_frag_address(frag),
				  skb_frag_size(frag)))
			goto err;
		at += skb_frag_size(frag);
	}
	if (charge(sk, skb, true))
		return skb;
err:
	kfree_skb(skb);
	return NULL;
}

/*
 * Have what TCP has from @seq on begin with an skb of its own, @next; NULL if it has
 * nothing there. Where an skb goes on behind @seq, that part is copied. Returns 0 or
 * -ENOMEM, with the queue as it was.
 */
static int split(struct sock *sk, u32 seq, struct sk_buff **next)
{
	struct sk_buff *skb = find(sk, seq), *piece;
	struct sk_buff_head pieces;
	unsigned int offset, size;
	int err = -ENOMEM;

	*next = skb;
	if (!skb || !before(TCP_SKB_CB(skb)->seq, seq))
		return 0;
	__skb_queue_head_init(&pieces);
	offset = seq - TCP_SKB_CB(skb)->seq;
	/* Where the FIN alone is behind it, that is an skb of no bytes. */
	do {
		size = min(skb->len - offset, PIECE);
		piece = copy(sk, skb, offset, size);
		if (!piece)
			goto err;
		TCP_SKB_CB(piece)->seq += offset;
		offset += size;
		if (offset < skb->len) {
			TCP_SKB_CB(piece)->end_seq = TCP_SKB_CB(piece)->seq + size;
			TCP_SKB_CB(piece)->tcp_flags &= ~TCPHDR_FIN;
		}
		__skb_queue_tail(&pieces, piece);
	} while (offset < skb->len);
	*next = next_of(sk, skb);
	err = end_at(sk, skb, seq);
	if (err)
		goto err;
	piece = skb_peek(&pieces);
	while ((skb = __skb_dequeue(&pieces)))
		put_before(sk, *next, skb);
	*next = piece;
	return 0;
err:
	__skb_queue_purge(&pieces);
	return err;
}

/* All that is before @next moves, and the position of the socket. */
static void shift(struct sock *sk, const struct sk_buff *next, u32 seq, u32 by)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct sk_buff *skb;

	skb_queue_walk(&sk->sk_receive_queue, skb) {
		if (skb == next)
			break;
		TCP_SKB_CB(skb)->seq += by;
		TCP_SKB_CB(skb)->end_seq += by;
	}
	if (tp->urg_data && before(tp->urg_seq, seq))
		WRITE_ONCE(tp->urg_seq, tp->urg_seq + by);
	WRITE_ONCE(tp->copied_seq, tp->copied_seq + by);
	/* What is measured from it, to see how fast a program reads. */
	tp->rcvq_space.seq += by;
}

/**
 * stream_merge_make() - an skb for bytes that are to be TCP's
 * @size: how many there are at least one, and as many as it is for at most are taken
 *
 * Return: the skb, of whose bytes none is written; NULL without memory.
 */
struct sk_buff *stream_merge_make(unsigned int size)
{
	return make(min(size, PIECE));
}

/**
 * stream_merge() - put bytes where TCP's stream has a gap that it does not know of
 * @sk: the socket, locked
 * @seq: the place: bytes of TCP's from there on follow them
 * @kept: the bytes; those that were put in are taken from it
 *
 * The receive buffer grows by as much, so that TCP takes what comes as if they were
 * not there; the caller sets it back.
 *
 * Return: 0; -EAGAIN as long as TCP has not what is before them; -ENOMEM, with a part of
 * them put in, one skb at least if the application has read all that is before them; -EPROTO if
 * it has read what is behind that place.
 */
int stream_merge(struct sock *sk, u32 seq, struct sk_buff_head *kept)
{
	struct sk_buff_head ours;
	struct sk_buff *skb, *next;
	u32 bytes = 0, at;
	s64 paid = 0;
	int err;

	sock_owned_by_me(sk);
	if (skb_queue_empty(kept))
		return 0;
	if (before(tcp_sk(sk)->rcv_nxt, seq))
		return -EAGAIN;
	if (before(seq, tcp_sk(sk)->copied_seq))
		return -EPROTO;
	err = split(sk, seq, &next);
	if (err)
		return err;
	__skb_queue_head_init(&ours);
	while ((skb = skb_peek(kept))) {
		/* Of a program that has read all, TCP takes one skb whatever its limit is. */
		if (!charge(sk, skb, !bytes && seq == tcp_sk(sk)->copied_seq)) {
			err = -ENOMEM;
			break;
		}
		__skb_unlink(skb, kept);
		bytes += skb->len;
		paid += skb->truesize;
		__skb_queue_tail(&ours, skb);
	}
	shift(sk, next, seq, -bytes);
	at = seq - bytes;
	while ((skb = __skb_dequeue(&ours))) {
		TCP_SKB_CB(skb)->seq = at;
		at += skb->len;
		TCP_SKB_CB(skb)->end_seq = at;
		put_before(sk, next, skb);
	}
	paid += sk->sk_rcvbuf;
	WRITE_ONCE(sk->sk_rcvbuf, min_t(s64, paid, INT_MAX));
	return err;
}

/**
 * stream_merge_cut() - take bytes out that are not the application's
 * @sk: the socket, locked
 * @seq: the first of them; the application has not read further
 * @size: how many; TCP has them all
 *
 * Return: 0; -ENOMEM, with nothing changed; -EPROTO if it has read further.
 */
int stream_merge_cut(struct sock *sk, u32 seq, u32 size)
{
	struct sk_buff *skb, *next, *after;
	int err;

	sock_owned_by_me(sk);
	if (!size)
		return 0;
	if (before(seq, tcp_sk(sk)->copied_seq))
		return -EPROTO;
	err = split(sk, seq + size, &next);
	if (err)
		return err;
	skb = find(sk, seq);
	if (skb && skb != next && before(TCP_SKB_CB(skb)->seq, seq)) {
		after = next_of(sk, skb);
		err = end_at(sk, skb, seq);
		if (err)
			return err;
		skb = after;
	}
	while (skb && skb != next) {
		after = next_of(sk, skb);
		drop(sk, skb);
		skb = after;
	}
	shift(sk, next, seq + size, size);
	return 0;
}
