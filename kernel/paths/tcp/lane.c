// SPDX-License-Identifier: GPL-2.0
/*
 * lane.c - a stream's lane, as the core sees it: it comes up, goes down, ends, and is
 * rung for. What that means for the stream, switch.c says; here is only what cannot
 * wait, since the rings go away.
 *
 * Context: the core mutex held, but for the event, and the tasklet that it raises.
 * The mutexes that are taken here are never held over a call that may fault.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "stream.h"

/**
 * stream_lane_open() - a stream gets a lane; both know each other now
 * @lane: the lane, whose priv is the stream
 *
 * Return: 0; -EBUSY while the one before is not done with.
 */
int stream_lane_open(struct vmloop_lane *lane)
{
	struct stream *stream = lane->priv;

	if (stream->held || stream->tx != STREAM_TX_TCP || stream->heard)
		return -EBUSY;
	stream_hold(stream);
	vmloop_lane_get(lane);
	stream->down = false;
	stream->sent = 0;
	stream->unsent_from = 0;
	stream->unsent_size = 0;
	stream->unsent_at = 0;
	stream->closed = false;
	stream->got = 0;
	stream->up = false;
	stream->ended = false;
	stream->carried = false;
	stream->spoilt = false;
	stream->returned = 0;
	stream->told = false;
	stream->answered = false;
	stream->retry = 0;
	clear_bit(STREAM_GO_BACK, &stream->flags);
	set_bit(STREAM_WANTED, &stream->flags);
	/* Pairs with the acquire of readers. */
	smp_store_release(&stream->held, lane);
	return 0;
}

void stream_lane_up(struct vmloop_lane *lane)
{
	struct stream *stream = lane->priv;

	spin_lock_bh(&stream->lane_lock);
	stream->lane = lane;
	spin_unlock_bh(&stream->lane_lock);
	/* Pairs with the acquire of the work: the rings are there. */
	smp_store_release(&stream->up, true);
	stream_count(STREAM_PAIRED, 1);
	stream_queue(stream, 0);
}

/* Nothing more goes to the ring. */
static void stop_sending(struct stream *stream)
{
	lockdep_assert_held(&stream->tx_ring);
	stream->down = true;
	if (stream->tx == STREAM_TX_SAID || stream->tx == STREAM_TX_RING)
		WRITE_ONCE(stream->tx, STREAM_TX_BACK);
}

void stream_lane_down(struct vmloop_lane *lane)
{
	struct stream *stream = lane->priv;

	mutex_lock(&stream->tx_ring);
	stop_sending(stream);
	mutex_unlock(&stream->tx_ring);
	/* What comes is kept from now on, so that the end need not wait for readers. */
	stream_queue(stream, 0);
}

/* Copies what the peer may not have read: it will say, by TCP, what it has. */
static void copy_unsent(struct stream *stream)
{
	struct vmloop_ring_tx *tx = &stream->held->tx;
	u32 account = vmloop_ring_account(tx);
	const void *from;
	u32 size, bytes;

	lockdep_assert_held(&stream->tx_ring);
	/* The hello, or a part of it, may be among it. */
	size = min_t(u64, account, stream->sent);
	stream->unsent_from = stream->sent - size;
	stream->unsent = size ? kvmalloc(size, GFP_KERNEL) : NULL;
	if (size && !stream->unsent) {
		stream->spoilt = true;
		return;
	}
	while (stream->unsent_size < size) {
		bytes = vmloop_ring_unread(tx,
					   account - size + stream->unsent_size,
					   &from);
		bytes = min(bytes, size - stream->unsent_size);
		if (!bytes)
			break;
		memcpy(stream->unsent + stream->unsent_size, from, bytes);
		stream->unsent_size += bytes;
	}
}

/* Whether the peer has read our hello, as far as it has published. */
static bool was_heard(struct stream *stream, struct vmloop_lane *lane)
{
	return vmloop_ring_account(&lane->tx) <= stream->sent;
}

/* What became of the lane is known, or never will be. */
static void decide(struct stream *stream)
{
	/* Pairs with the acquire of the work. */
	smp_store_release(&stream->ended, true);
	stream_queue(stream, 0);
}

void stream_lane_close(struct vmloop_lane *lane)
{
	struct stream *stream = lane->priv;

	spin_lock_bh(&stream->lane_lock);
	stream->lane = NULL;
	spin_unlock_bh(&stream->lane_lock);
	tasklet_kill(&stream->bell);

	mutex_lock(&stream->tx_ring);
	stop_sending(stream);
	if (stream->up)
		copy_unsent(stream);
	mutex_unlock(&stream->tx_ring);

	/* Not while somebody reads TCP, as far as it goes. */
	if (stream->up && mutex_trylock(&stream->rx_mutex)) {
		mutex_lock(&stream->rx_ring);
		stream_hear(stream);
		mutex_unlock(&stream->rx_ring);
		mutex_unlock(&stream->rx_mutex);
	}
	mutex_lock(&stream->rx_ring);
	if (stream->up)
		stream_keep(stream);
	stream->closed = true;
	mutex_unlock(&stream->rx_ring);

	/* If the peer has heard us, and we it, bytes may have gone, and both know. */
	if (stream->tx != STREAM_TX_BACK || was_heard(stream, lane)) {
		stream->carried = stream->tx == STREAM_TX_BACK && stream->heard;
		decide(stream);
	}
}

void stream_lane_ended(struct vmloop_lane *lane, u32 reason)
{
	struct stream *stream = lane->priv;

	if (READ_ONCE(stream->held) == lane && !stream->ended) {
		stream->carried = stream->heard && was_heard(stream, lane);
		/* If we have heard it, it may have heard us, and we not know. */
		stream->spoilt |= stream->heard && !stream->carried &&
				  !vmloop_lane_is_final(lane);
		decide(stream);
	}
	stream_put(stream);
}

/* Any context, under a lock of the core's. */
void stream_lane_event(struct vmloop_lane *lane)
{
	struct stream *stream = lane->priv;

	tasklet_schedule(&stream->bell);
}

/** stream_ring_bell() - wake those who wait for the ring; softirq */
void stream_ring_bell(struct tasklet_struct *bell)
{
	struct stream *stream = from_tasklet(stream, bell, bell);
	struct sock *sk = stream->sk;
	bool readable = false, writable = false, work = true;

	spin_lock(&stream->lane_lock);
	if (stream->lane && READ_ONCE(stream->tx) == STREAM_TX_RING &&
	    READ_ONCE(stream->heard)) {
		work = false;
		readable = vmloop_ring_moved(&stream->lane->rx);
		/* Who polls is told of each arrival, though nothing was read: an edge. */
		if (readable && READ_ONCE(stream->polled) &&
		    !vmloop_ring_wait_next(&stream->lane->rx))
			tasklet_schedule(&stream->bell);
		writable = stream_has_room(stream->lane);
	}
	spin_unlock(&stream->lane_lock);
	if (work)
		stream_queue(stream, 0);
	rcu_read_lock();
	if (readable)
		sk->sk_data_ready(sk);
	if (writable)
		sk->sk_write_space(sk);
	rcu_read_unlock();
}
