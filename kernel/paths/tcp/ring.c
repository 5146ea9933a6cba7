// SPDX-License-Identifier: GPL-2.0
/*
 * ring.c - how large a connection's ring is: small at first, and larger when a larger one
 * would have helped.
 *
 * It would have if the ring was full, and empty a moment later: the peer took all that there
 * was, and waited while we could have given more. A peer that is slower than we are takes no
 * more out of a larger ring.
 *
 * Context: process context.
 */
#include "stream.h"

/*
 * A new ring takes no more than one part in RING_PART of the memory that is free, and one in
 * OWNER_PART of what its owner may yet have, so that the more lanes there are the smaller new
 * ones become, down to a size that still takes a large write. By a share of 75 percent, the
 * default, both parts of an empty channel are the same.
 */
#define RING_PART	4
#define OWNER_PART	3
#define RING_LEAST	VMLOOP_OWNER_LEAST

/* A peer that takes longer to empty a full ring is slow; in jiffies. */
#define FULL_TIME	((unsigned long)HZ / 10)

/* A ring becomes so many times as large. */
#define TIMES		4

/*
 * Where there is no memory for it, it is tried again after twice as many swings, so many at
 * most: each try looks at all lanes of the channel.
 */
#define SWINGS_MOST	4096U

/* As @most, or what there is room for. Core mutex held. */
static void plan(struct vmloop_channel *channel, u32 most, struct vmloop_lane_ask *ask)
{
	u32 largest, part = vmloop_channel_free(channel, &largest) / RING_PART;

	part = min(part, vmloop_channel_left(channel, ask) / OWNER_PART);
	while (most > RING_LEAST && most > min(part, largest))
		most /= 2;
	ask->ring_size = most;
}

/**
 * stream_plan_ring() - what our ring is to be at first, and whom it is for
 * @channel: where
 * @sk: the connection
 * @follows: whether the peer follows a ring that moves
 * @ask: its @ring_size, @owners and @share are filled in
 *
 * Context: core mutex held.
 */
void stream_plan_ring(struct vmloop_channel *channel, const struct sock *sk, bool follows,
		      struct vmloop_lane_ask *ask)
{
	stream_owners(sk, ask->owners);
	ask->share = READ_ONCE(stream_owner_share);
	plan(channel, follows ? min(stream_ring_size, stream_first_ring) : stream_ring_size, ask);
}

/**
 * stream_ring_is_full() - our ring has no room for all that there is
 * @stream: the stream; tx_ring held
 */
void stream_ring_is_full(struct stream *stream)
{
	lockdep_assert_held(&stream->tx_ring);
	stream->full = true;
	stream->full_at = jiffies;
}

/**
 * stream_ring_is_empty() - the peer has read all that it was shown
 * @stream: the stream; tx_ring held
 *
 * If the ring was full a moment ago, the work may have it grow.
 */
void stream_ring_is_empty(struct stream *stream)
{
	lockdep_assert_held(&stream->tx_ring);
	if (!stream->full)
		return;
	stream->full = false;
	if (time_after(jiffies, stream->full_at + FULL_TIME))
		return;
	if (++stream->swings < stream->swings_most || stream->held->tx.size >= stream_ring_size ||
	    !(vmloop_lane_features(stream->held) & VMLOOP_F_MOVES))
		return;
	stream->swings = 0;
	set_bit(STREAM_GROW, &stream->flags);
	stream_queue(stream, 0);
}

struct growing {
	struct vmloop_lane *lane;
	bool done;
};

static void grow_in(struct vmloop_channel *channel, void *data)
{
	struct growing *growing = data;
	struct vmloop_lane *lane = growing->lane;
	struct vmloop_lane_ask ask = { .share = READ_ONCE(stream_owner_share) };
	u32 size = lane->tx.size;

	memcpy(ask.owners, lane->owners, sizeof(ask.owners));
	plan(channel, min(size * TIMES, stream_ring_size), &ask);
	growing->done = ask.ring_size > size &&
			!vmloop_lane_move(channel, lane, ask.ring_size, ask.share);
}

/**
 * stream_grow() - a larger ring, if there is memory for it
 * @stream: a stream whose lane is up
 *
 * Context: the stream's work.
 */
void stream_grow(struct stream *stream)
{
	struct growing growing = { .lane = stream->held };
	u64 peer;

	spin_lock_bh(&stream->lane_lock);
	peer = stream->peer;
	spin_unlock_bh(&stream->lane_lock);
	/* If the channel has gone, so has the lane. */
	vmloop_channel_do(peer, grow_in, &growing);
	mutex_lock(&stream->tx_ring);
	stream->swings_most = growing.done ? STREAM_SWINGS :
					     min(2 * stream->swings_most, SWINGS_MOST);
	mutex_unlock(&stream->tx_ring);
}

/** stream_lane_move() - the lane's ring is another one now: struct vmloop_path's lane_move */
int stream_lane_move(struct vmloop_lane *lane, void *data, u32 size, u64 offset)
{
	struct stream *stream = lane->priv;
	int err = -ENOTCONN;

	mutex_lock(&stream->tx_ring);
	if (stream->tx == STREAM_TX_RING)
		err = vmloop_ring_move(&lane->tx, data, size, offset);
	mutex_unlock(&stream->tx_ring);
	/* There is room now. */
	if (!err)
		tasklet_schedule(&stream->bell);
	return err;
}
