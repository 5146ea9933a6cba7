// SPDX-License-Identifier: GPL-2.0
/*
 * lane.c - a stream's lane, as the core sees it: it comes up, goes down, ends, and is
 * rung for. What that means for the stream, switch.c says; here is only what cannot
 * wait, since the rings go away.
 *
 * Context: the core mutex held, but for the event, and the tasklet that it raises.
 * The mutexes that are taken here are never held over a call that may fault.
 */
#include "stream.h"

/*
 * So often in a row the tasklet looks again at once, since something came while it asked
 * for a doorbell; then a timer has it look: the peer says what comes.
 */
#define TURNS_MAX	32

static struct stream *of_watch(const struct vmloop_watch *watch)
{
	return container_of(watch, struct stream, watch);
}

static bool is_awake(const struct vmloop_watch *watch)
{
	return test_bit(TASKLET_STATE_SCHED, &of_watch(watch)->bell.state);
}

/* Whether anybody is to be told of bytes. */
static bool wants_bytes(const struct stream *stream)
{
	return READ_ONCE(stream->polled) || READ_ONCE(stream->wants_bytes);
}

static bool has_moved(const struct vmloop_watch *watch)
{
	const struct stream *stream = of_watch(watch);

	return (wants_bytes(stream) && vmloop_ring_seen(&watch->lane->rx) !=
					       READ_ONCE(stream->rx_told)) ||
	       (READ_ONCE(stream->wants_room) && stream_has_room(watch->lane));
}

static void wake(struct vmloop_watch *watch)
{
	tasklet_schedule(&of_watch(watch)->bell);
}

static const struct vmloop_watch_ops watch_ops = {
	.is_awake = is_awake,
	.has_moved = has_moved,
	.wake = wake,
};

/**
 * stream_lane_open() - a stream gets a lane; both know each other now
 * @lane: the lane, whose priv is the stream
 *
 * Return: 0; -EBUSY while the one before is not done with.
 */
int stream_lane_open(struct vmloop_lane *lane)
{
	struct stream *stream = lane->priv;

	/* It may have become the kernel's since it was looked at. */
	if (stream->held || stream->tx != STREAM_TX_TCP ||
	    test_bit(STREAM_DEAD, &stream->flags) || test_bit(STREAM_STAYS, &stream->flags))
		return -EBUSY;
	stream_hold(stream);
	vmloop_lane_get(lane);
	stream->down = false;
	spin_lock_bh(&stream->lane_lock);
	stream->sent_before += stream->sent;
	stream->got_before += stream->got;
	WRITE_ONCE(stream->sent, 0);
	WRITE_ONCE(stream->got, 0);
	spin_unlock_bh(&stream->lane_lock);
	stream->unsent_from = 0;
	stream->full = false;
	stream->swings = 0;
	stream->swings_most = STREAM_SWINGS;
	WRITE_ONCE(stream->closed, false);
	stream->kept_paid = 0;
	stream->kept_most = 0;
	stream->kept_since = 0;
	stream->room = STREAM_ROOM;
	stream->up = false;
	stream->ended = false;
	stream->why_ended = STREAM_WHY_PEER;
	stream->carried = false;
	stream->spoilt = STREAM_FAULT_NONE;
	stream->returned = 0;
	stream->told = false;
	stream->answered = false;
	stream->retry = 0;
	clear_bit(STREAM_GO_BACK, &stream->flags);
	clear_bit(STREAM_GROW, &stream->flags);
	clear_bit(STREAM_LAST, &stream->flags);
	clear_bit(STREAM_AT_END, &stream->flags);
	set_bit(STREAM_WANTED, &stream->flags);
	/* Pairs with the acquire of readers. */
	smp_store_release(&stream->held, lane);
	return 0;
}

void stream_lane_up(struct vmloop_lane *lane)
{
	struct stream *stream = lane->priv;

	spin_lock_bh(&stream->lane_lock);
	vmloop_watch_start(&stream->watch, &watch_ops, lane);
	stream->rx_told = lane->rx.tail;
	WRITE_ONCE(stream->promises, false);
	lane->rx.most = STREAM_RING_MOST;
	stream->wants_bytes = false;
	stream->wants_room = false;
	stream->turns = 0;
	WRITE_ONCE(stream->lanes, stream->lanes + 1);
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

/* Whoever waits for the socket may be at the end. */
static void tell_end(struct stream *stream)
{
	local_bh_disable();
	stream->state_change(stream->sk);
	local_bh_enable();
}

void stream_lane_down(struct vmloop_lane *lane)
{
	struct stream *stream = lane->priv;

	mutex_lock(&stream->tx_ring);
	/* What was left for the next call to show. */
	if (stream->tx == STREAM_TX_RING && vmloop_ring_publish(&lane->tx))
		vmloop_lane_ring(lane);
	stop_sending(stream);
	mutex_unlock(&stream->tx_ring);
	/* All lanes of a channel that goes are told of before the first is waited for. */
	spin_lock_bh(&stream->lane_lock);
	if (stream->lane)
		vmloop_watch_stop(&stream->watch);
	spin_unlock_bh(&stream->lane_lock);
	if (lane->their_reason == STREAM_REASON_LAST) {
		/* Pairs with the barrier in stream_is_last(): all is in the ring. */
		smp_mb__before_atomic();
		set_bit(STREAM_LAST, &stream->flags);
		tell_end(stream);
	}
	/* What comes is kept from now on, so that the end need not wait for readers. */
	stream_queue(stream, 0);
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

/* Whether a program, ours or the peer's, has ended the connection, or one direction of it. */
static bool has_ended(const struct stream *stream)
{
	return test_bit(STREAM_SHUT, &stream->flags) || test_bit(STREAM_LAST, &stream->flags) ||
	       test_bit(STREAM_DEAD, &stream->flags) || READ_ONCE(stream->orphan) ||
	       (READ_ONCE(stream->sk->sk_shutdown) & SEND_SHUTDOWN) ||
	       sock_flag(stream->sk, SOCK_DONE) ||
	       READ_ONCE(stream->sk->sk_state) == TCP_CLOSE;
}

void stream_lane_close(struct vmloop_lane *lane)
{
	struct stream *stream = lane->priv;
	bool ends = has_ended(stream);

	/* What is in the ring is counted at each moment: SIOCOUTQ. */
	mutex_lock(&stream->tx_ring);
	stop_sending(stream);
	if (stream->up)
		stream_unsent_copy(stream);
	/* No byte is on its way from the ring to what is kept. */
	mutex_lock(&stream->rx_ring);
	spin_lock_bh(&stream->lane_lock);
	if (stream->lane)
		vmloop_watch_stop(&stream->watch);
	/* Nothing is left that could not be kept: whoever polls need not wait for what follows. */
	if (stream_is_at_end(stream))
		set_bit(STREAM_AT_END, &stream->flags);
	stream->lane = NULL;
	spin_unlock_bh(&stream->lane_lock);
	mutex_unlock(&stream->rx_ring);
	mutex_unlock(&stream->tx_ring);
	if (stream->up)
		vmloop_watch_wait(&stream->watch);
	tasklet_kill(&stream->bell);
	if (lane->reason == VMLOOP_REASON_POLICY)
		WRITE_ONCE(stream->why_ended, STREAM_WHY_POLICY);

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
	if (stream->active && ends)
		stream_worth_learn(stream, stream->sent_before + stream->sent +
					   stream->got_before + stream->got);
	if (stream->up && stream->heard && (lane->rx.broken || stream_took_back(stream)))
		stream_spoil(stream, STREAM_FAULT_LIE);
	/* What could not be kept the peer sends again, by TCP. */
	if (!stream->up || !stream->heard || stream->spoilt || vmloop_ring_ready(&lane->rx))
		clear_bit(STREAM_LAST, &stream->flags);
	WRITE_ONCE(stream->since, jiffies);
	/* Pairs with the acquire in stream_is_at_end(): the flag is final. */
	smp_store_release(&stream->closed, true);
	mutex_unlock(&stream->rx_ring);
	/* Whoever heard the peer meanwhile has rung it; from now on nobody does. */
	tasklet_kill(&stream->bell);
	if (test_bit(STREAM_LAST, &stream->flags))
		tell_end(stream);

	/* If the peer has heard us, and we it, bytes may have gone, and both know. */
	if (stream->spoilt || stream->tx != STREAM_TX_BACK ||
	    was_heard(stream, lane)) {
		stream->carried = stream->tx == STREAM_TX_BACK && stream->heard;
		decide(stream);
	} else {
		/* What was kept becomes TCP's now. */
		stream_queue(stream, 0);
	}
}

void stream_lane_ended(struct vmloop_lane *lane, u32 reason)
{
	struct stream *stream = lane->priv;
	const struct vmloop_lane *held = READ_ONCE(stream->held);
	/* Before we ask what was read. */
	bool final = vmloop_lane_is_final(lane);

	/* The work may have let go of it by now, and the next one may be there. */
	if ((!held || held == lane) && !stream->up &&
	    READ_ONCE(stream->why_ended) != STREAM_WHY_POLICY) {
		WRITE_ONCE(stream->why_ended, stream_why_ended(reason));
		if (!held)
			WRITE_ONCE(stream->why, stream->why_ended);
	}
	if (held == lane && !stream->ended) {
		stream->carried = stream->heard && was_heard(stream, lane);
		/* If we have heard it, it may have heard us, and we not know. */
		if (stream->heard && !stream->carried && !final)
			stream_spoil(stream, STREAM_FAULT_HELLO);
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

/*
 * Have those who wait told of what comes next: by the watcher while that is worth it,
 * else by a doorbell. Both lead to the tasklet, and what was asked for is pending until
 * it has called this again. @tells: the caller is the tasklet, and tells. Returns what
 * has come that nobody was told of, enum stream_news.
 */
static unsigned int look_out(struct stream *stream, bool work, bool tells)
{
	struct vmloop_lane *lane = stream->lane;
	u32 seen = vmloop_ring_seen(&lane->rx);
	unsigned int news = 0;
	bool asked = true;

	lockdep_assert_held(&stream->lane_lock);
	/* Whether or not anybody wants it: a doorbell that is used up is told of. */
	if (seen != stream->rx_told)
		news |= STREAM_NEWS_BYTES;
	if (stream->wants_room && stream_has_room(lane))
		news |= STREAM_NEWS_ROOM;
	if (tells && (news & STREAM_NEWS_BYTES)) {
		WRITE_ONCE(stream->wants_bytes, false);
		WRITE_ONCE(stream->rx_told, seen);
	}
	if (tells && (news & STREAM_NEWS_ROOM))
		WRITE_ONCE(stream->wants_room, false);
	/* What the caller did says nothing about how long the peer takes. */
	if (news)
		vmloop_watch_woken(&stream->watch);
	if (vmloop_watch_idle(&stream->watch, work || news)) {
		stream->turns = 0;
		return news;
	}
	if (wants_bytes(stream))
		asked = vmloop_ring_wait_after(&lane->rx, seen);
	if (stream->wants_room)
		asked &= vmloop_ring_wait_space_beside(&lane->tx);
	/* Came while we asked: what the doorbell leads to, without one. */
	if (asked)
		stream->turns = 0;
	else if (++stream->turns < TURNS_MAX)
		tasklet_schedule(&stream->bell);
	else
		vmloop_watch_later(&stream->watch);
	return news;
}

/**
 * stream_look_out() - have those who wait told of what comes next
 * @stream: a stream whose peer has said hello; lane_lock held
 * @work: whether the caller has got on
 *
 * Return: what has come already, enum stream_news: they are being told of it.
 */
unsigned int stream_look_out(struct stream *stream, bool work)
{
	unsigned int news;

	/* It is being closed, and that is told of. */
	if (!stream->lane)
		return 0;
	news = look_out(stream, work, false);
	if (news)
		tasklet_schedule(&stream->bell);
	return news;
}

/**
 * stream_want_room() - somebody waits for a quarter of our ring
 * @stream: the stream; lane_lock held
 *
 * Return: whether it is free.
 */
bool stream_want_room(struct stream *stream)
{
	bool first = !stream->wants_room;

	WRITE_ONCE(stream->wants_room, true);
	return stream_look_out(stream, first) & STREAM_NEWS_ROOM;
}

/** stream_ring_bell() - tell those who wait for the rings; softirq */
void stream_ring_bell(struct tasklet_struct *bell)
{
	struct stream *stream = from_tasklet(stream, bell, bell);
	struct sock *sk = stream->sk;
	unsigned int news = 0;
	bool work = true;

	spin_lock(&stream->lane_lock);
	if (stream->lane && READ_ONCE(stream->heard)) {
		work = READ_ONCE(stream->tx) != STREAM_TX_RING;
		news = look_out(stream, false, true);
	}
	spin_unlock(&stream->lane_lock);
	if (work)
		stream_queue(stream, 0);
	rcu_read_lock();
	if (news & STREAM_NEWS_BYTES)
		stream->data_ready(sk);
	if (news & STREAM_NEWS_ROOM)
		stream->write_space(sk);
	rcu_read_unlock();
}
