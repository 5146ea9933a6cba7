// SPDX-License-Identifier: GPL-2.0
/*
 * held.c - a datagram stays its sender's until the peer has read it.
 *
 * A driver gives a frame back to its socket when the hardware has sent it, and
 * so keeps a sender from being faster than the wire: who has used up its send
 * buffer waits. A copy in a ring is made at once. Given back as soon, nothing
 * would hold a sender of datagrams, and the receiver's socket, which takes a
 * few of them, would drop most of what comes in one go. (TCP holds itself, by
 * what its receiver has room for, and is the faster for getting its memory back.)
 *
 * So the frame is kept, without what it refers to but its socket, until the
 * peer's tail is past it: looked at with each frame that is sent and each time
 * NAPI runs. Only where a socket has used half of its send buffer a doorbell is
 * asked for: exchanges of single datagrams cost none.
 *
 * Nothing is kept for long, since a socket that waits for one peer cannot send
 * to others: a lane that goes down or stalls gives all back; so does one that
 * holds HELD_BYTES, or a frame for HELD_TIME, and holds none for REST_TIME then:
 * that peer does not read fast enough to hold its senders to. Where nobody
 * sends, the core's look at the peer's tail has NAPI come here.
 *
 * Context: bottom halves off. The lane's tx_lock protects the queue; frames are
 * freed outside of it, as that wakes their senders.
 */
#include <linux/netfilter.h>
#include <net/sock.h>

#include "net.h"

/*
 * As many of a datagram's kind are not held: something to do for the peer until
 * a sender that was woken has sent more.
 */
#define SLACK	2

/* Memory that frames may take, by their truesize. */
#define HELD_BYTES	(2U << 20)

#define HELD_TIME	msecs_to_jiffies(200)
#define REST_TIME	HZ

struct held_cb {
	unsigned long since;	/* jiffies */
	u32 position;	/* of the peer's tail when it can go */
};

static struct held_cb *held_cb(struct sk_buff *skb)
{
	return (struct held_cb *)skb->cb;
}

static void give_back(struct sk_buff_head *frames)
{
	struct sk_buff *skb;

	while ((skb = __skb_dequeue(frames)))
		consume_skb(skb);
}

/* Moves all to @done. */
static void give_up(struct net_lane *net, struct sk_buff_head *done)
{
	lockdep_assert_held(&net->lane->tx_lock);
	skb_queue_splice_tail_init(&net->held, done);
	net->held_bytes = 0;
	net->held_pressing = false;
	net->held_asked = false;
}

/* Moves what the peer has read, or will not read in time, to @done. */
static void collect(struct net_lane *net, struct sk_buff_head *done)
{
	struct sk_buff *skb;

	lockdep_assert_held(&net->lane->tx_lock);
	while ((skb = skb_peek(&net->held)) &&
	       vmloop_ring_has_read(&net->lane->tx, held_cb(skb)->position)) {
		__skb_unlink(skb, &net->held);
		net->held_bytes -= skb->truesize;
		__skb_queue_tail(done, skb);
	}
	/* Frames go in order: the first one has been here for longest. */
	if (skb && (net->held_bytes > HELD_BYTES ||
		    time_after(jiffies, held_cb(skb)->since + HELD_TIME))) {
		give_up(net, done);
		WRITE_ONCE(net->held_rest, jiffies + REST_TIME);
	}
}

static bool is_held(const struct net_lane *net, const struct sk_buff *skb)
{
	const struct sock *sk = skb->sk;

	if (time_before(jiffies, READ_ONCE(net->held_rest)))
		return false;
	return sk && sk_fullsock(sk) &&
	       (sk->sk_type == SOCK_DGRAM || sk->sk_type == SOCK_RAW);
}

/* Whether the sender is about to have to wait. */
static bool is_pressing(const struct sk_buff *skb)
{
	const struct sock *sk = skb->sk;

	return refcount_read(&sk->sk_wmem_alloc) >
	       READ_ONCE(sk->sk_sndbuf) / 2;
}

/*
 * Collects, and has the peer ring when it has read all that is held now, if
 * somebody is pressing. From then on until nothing is held, there is either
 * such a doorbell to come, or that of frames that wait for room, after which
 * NAPI comes here again.
 */
static void settle(struct net_lane *net, struct sk_buff_head *done)
{
	struct vmloop_ring_tx *tx = &net->lane->tx;
	struct sk_buff *last;

	collect(net, done);
	last = skb_peek_tail(&net->held);
	if (!last) {
		net->held_pressing = false;
		net->held_asked = false;
		return;
	}
	if (!net->held_pressing || !skb_queue_empty(&net->waiting))
		return;
	/* Whoever looked first may have used up what the doorbell was for. */
	if (net->held_asked && !vmloop_ring_has_read(tx, net->held_wake))
		return;
	net->held_wake = held_cb(last)->position;
	net->held_asked = vmloop_ring_wait_read(tx, net->held_wake);
	if (!net->held_asked) {
		collect(net, done);
		/* It took the place of the doorbell that receivers.c waits for. */
		if (net->telling)
			napi_schedule(&net->napi);
	}
}

/*
 * Where the peer's tail is to be for a frame to go. Frames go in order, so that
 * whoever waits for the last one waits for all: a large one after a small one,
 * which would have more slack, goes with that.
 */
static u32 go_position(struct net_lane *net, const struct sk_buff *skb,
		       u32 end)
{
	struct sk_buff *last = skb_peek_tail(&net->held);
	u32 position = end - SLACK * skb->len;

	if (last && (s32)(position - held_cb(last)->position) < 0)
		return held_cb(last)->position;
	return position;
}

/**
 * net_hold() - a frame is in the ring: give it back now or when it is read
 * @net: the lane
 * @skb: the frame; consumed
 * @position: where its record ends
 */
void net_hold(struct net_lane *net, struct sk_buff *skb, u32 position)
{
	struct vmloop_lane *lane = net->lane;
	struct sk_buff_head done;

	if (!is_held(net, skb)) {
		consume_skb(skb);
		return;
	}
	skb_dst_drop(skb);
	nf_reset_ct(skb);
	skb_ext_reset(skb);
	skb->dev = NULL;

	__skb_queue_head_init(&done);
	spin_lock(&lane->tx_lock);
	held_cb(skb)->position = go_position(net, skb, position);
	held_cb(skb)->since = jiffies;
	net->held_pressing |= is_pressing(skb);
	if (net->down) {
		__skb_queue_tail(&done, skb);
	} else {
		__skb_queue_tail(&net->held, skb);
		net->held_bytes += skb->truesize;
	}
	settle(net, &done);
	spin_unlock(&lane->tx_lock);
	give_back(&done);
}

/**
 * net_held_look() - the peer may have read: give back what it has
 * @net: the lane
 *
 * Context: NAPI of the lane.
 */
void net_held_look(struct net_lane *net)
{
	struct vmloop_lane *lane = net->lane;
	struct sk_buff_head done;

	/* Unlocked look: who holds one later looks itself. */
	if (skb_queue_empty_lockless(&net->held))
		return;

	__skb_queue_head_init(&done);
	spin_lock(&lane->tx_lock);
	settle(net, &done);
	spin_unlock(&lane->tx_lock);
	give_back(&done);
}

/**
 * net_held_release() - give all back, read or not
 * @net: the lane, down or stalled
 */
void net_held_release(struct net_lane *net)
{
	struct sk_buff_head done;

	__skb_queue_head_init(&done);
	spin_lock_bh(&net->lane->tx_lock);
	give_up(net, &done);
	spin_unlock_bh(&net->lane->tx_lock);
	give_back(&done);
}
