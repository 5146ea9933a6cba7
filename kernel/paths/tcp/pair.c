// SPDX-License-Identifier: GPL-2.0
/*
 * pair.c - which lane belongs to which connection: when one is worth it, the end that
 * connected opens it, and says which connection it is for; the other end finds that.
 *
 * Both ends name the connection by addresses and ports, and by the numbers of its
 * first bytes: where something between them has changed any of that (address
 * translation, a proxy), nothing matches, and the connection stays on TCP. Whose the
 * remote address is, the directory says, by the hardware address that the stack
 * sends to; what a peer says of its IP addresses is not believed.
 *
 * Context: process context, but stream_peer_of() and stream_moved(), which say so.
 */
#include <linux/bpf-cgroup.h>
#include <linux/netdevice.h>
#include <linux/random.h>
#include <linux/user_namespace.h>
#include <net/dst.h>
#include <net/inet_connection_sock.h>
#include <net/neighbour.h>
#include <net/tcp.h>

#include "stream.h"
#include "compat.h"

/* What a call by TCP costs beside what its bytes cost: as so many more. */
#define CALL_BYTES	2048

/*
 * After a refusal so many times as much must go by TCP before the next try, at most so many
 * times in all; less for what passes: there is room when others are idle, and a socket that
 * was in use, or whose program was behind, is not the next time, however much its guest
 * has to do.
 */
#define AGAIN		4
#define AGAIN_MAX	4096
#define AGAIN_SOON_MAX	4

/*
 * In jiffies, so long from one try to the next, at first and at most: without a channel;
 * and where the peer has opened a lane by which nothing came. And so long at least from one
 * look at a directory that has changed to the next.
 */
#define WITHOUT_CHANNEL		((unsigned long)HZ)
#define WITHOUT_CHANNEL_MAX	(64UL * HZ)
/* The same where its user, or its cgroup, has its share of the memory. */
#define ABOVE_SHARE		((unsigned long)HZ / 4)
#define ABOVE_SHARE_MAX		(4UL * HZ)
#define HEED_TIME		(4UL * HZ)
#define FOR_NOTHING		((unsigned long)HZ / 20)
#define FOR_NOTHING_MAX		((unsigned long)HZ)

/* Whether TCP will look for another route before it sends again. Only TCP may let go of it. */
static bool is_stale(const struct sock *sk, struct dst_entry *dst)
{
	u32 cookie = 0;

#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6)
		cookie = READ_ONCE(inet6_sk(sk)->dst_cookie);
#endif
	return dst->obsolete && !dst->ops->check(dst, cookie);
}

/* Whom a way leads to: 1, and @peer is set; 0: none; -EAGAIN: that is not known now. */
static int peer_behind(const struct sock *sk, const struct dst_entry *dst,
		       u64 *peer)
{
	struct vmloop_interface *interface;
	u8 mac[MAX_ADDR_LEN] __aligned(2);
	struct neighbour *neighbour;
	const void *address;
	bool valid;

	/* What policy encrypts is not to go in the clear. */
	if (compat_dst_is_encrypted(dst))
		return 0;
	/* What any user can make says nothing of whose address that is. */
	if (dst->dev->addr_len != ETH_ALEN || (dst->dev->flags & IFF_LOOPBACK) ||
	    dev_net(dst->dev)->user_ns != &init_user_ns)
		return 0;
	/* On top of another one (VLAN, bond), whose address it may have. */
	if (!list_empty(&dst->dev->adj_list.lower))
		return 0;
	address = &sk->sk_daddr;
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6 && !ipv6_addr_v4mapped(&sk->sk_v6_daddr))
		address = &sk->sk_v6_daddr;
#endif
	neighbour = dst_neigh_lookup(dst, address);
	if (!neighbour)
		return -EAGAIN;
	valid = READ_ONCE(neighbour->nud_state) & NUD_VALID;
	neigh_ha_snapshot(mac, neighbour, dst->dev);
	neigh_release(neighbour);
	if (!valid)
		return -EAGAIN;

	interface = vmloop_interface_find(dst->dev->dev_addr, mac);
	/* Behind the host's routing nobody is a neighbour. */
	if (!interface || (interface->flags & VMLOOP_PEER_ROUTED))
		return 0;
	*peer = vmloop_peer_id(interface->peer);
	return 1;
}

/**
 * stream_peer_of() - the peer that a new connection leads to
 * @sk: a socket that is connected
 * @peer: set to its identity
 *
 * Context: any but hard interrupt.
 * Return: false if it leads to none.
 */
bool stream_peer_of(const struct sock *sk, u64 *peer)
{
	const struct dst_entry *dst;
	bool found;

	rcu_read_lock();
	dst = rcu_dereference(sk->sk_dst_cache);
	found = dst && peer_behind(sk, dst, peer) > 0;
	rcu_read_unlock();
	return found;
}

/* As peer_behind(), of the way that TCP would take now. */
static int peer_now(const struct sock *sk, u64 *peer)
{
	struct dst_entry *dst;
	int found = -EAGAIN;

	rcu_read_lock();
	dst = rcu_dereference(sk->sk_dst_cache);
	if (dst && !is_stale(sk, dst))
		found = peer_behind(sk, dst, peer);
	rcu_read_unlock();
	return found;
}

/**
 * stream_peer_now() - the peer that a connection leads to by now
 * @sk: its socket
 * @peer: set to its identity
 *
 * A peer that moves has another identity where it arrives (Xen's are domain ids), and what was
 * its identity may be another guest's by then: each lane is for the guest that is there.
 *
 * Context: any but hard interrupt.
 * Return: false if it leads to none, or that is not known before TCP sends again.
 */
bool stream_peer_now(const struct sock *sk, u64 *peer)
{
	return peer_now(sk, peer) > 0;
}

/**
 * stream_leads_to() - whether a connection is one of that peer's
 * @stream: the stream
 * @peer: whom its next hop leads to now
 *
 * Who answers for an address for a moment must not have the connection: of another peer than
 * the one before, TCP shows that it has our packets, by an acknowledgment of what was sent after
 * it was first seen there, or by more bytes than it could send without one of ours.
 *
 * Context: any.
 */
bool stream_leads_to(struct stream *stream, u64 peer)
{
	const struct tcp_sock *tp = tcp_sk(stream->sk);
	bool known;

	spin_lock_bh(&stream->lane_lock);
	known = stream->peer == peer;
	if (!known && stream->maybe == peer)
		known = after(READ_ONCE(tp->snd_una), stream->maybe_sent) ||
			after(READ_ONCE(tp->rcv_nxt), stream->maybe_room);
	if (known) {
		WRITE_ONCE(stream->peer, peer);
		WRITE_ONCE(stream->maybe, 0);
	} else if (stream->maybe != peer) {
		WRITE_ONCE(stream->maybe, peer);
		stream->maybe_sent = READ_ONCE(tp->write_seq);
		stream->maybe_room = READ_ONCE(tp->rcv_wup) + READ_ONCE(tp->rcv_wnd);
	}
	spin_unlock_bh(&stream->lane_lock);
	return known;
}

/**
 * stream_forget_maybe() - the peer that was to show that it has the packets is not there any more
 * @stream: the stream; looked at each STREAM_IDLE_LOOK
 *
 * Acknowledgments of the right one, which has the address again, must not speak for it.
 */
void stream_forget_maybe(struct stream *stream)
{
	u64 peer;
	int found;

	if (!READ_ONCE(stream->maybe))
		return;
	found = peer_now(stream->sk, &peer);
	if (found < 0)
		return;	/* not known before TCP sends again */
	spin_lock_bh(&stream->lane_lock);
	if (!found || stream->maybe != peer)
		WRITE_ONCE(stream->maybe, 0);
	spin_unlock_bh(&stream->lane_lock);
}

/**
 * stream_is_elsewhere() - whether a connection leads to another guest than its lane, or to none
 * @stream: the stream
 */
bool stream_is_elsewhere(const struct stream *stream)
{
	u64 peer;
	int found = peer_now(stream->sk, &peer);

	return !found || (found > 0 && peer != READ_ONCE(stream->peer));
}

/**
 * stream_way() - what became of the way of a connection while a lane carried it
 * @sk: its socket
 *
 * Routes and policies change, and TCP sees that when it sends.
 *
 * Context: any but hard interrupt.
 * Return: -EACCES if policy encrypts it by now; -ESTALE if that is known when TCP has
 * sent something, or if there is no way (a policy that blocks, or has no keys yet); or 0.
 */
int stream_way(const struct sock *sk)
{
	struct dst_entry *dst;
	int err = 0;

	rcu_read_lock();
	dst = rcu_dereference(sk->sk_dst_cache);
	if (dst && compat_dst_is_encrypted(dst))
		err = -EACCES;
	else if (!dst || is_stale(sk, dst))
		err = -ESTALE;
	rcu_read_unlock();
	return err;
}

/* Whether a program of the socket's cgroup filters or counts each of its packets. */
static bool has_cgroup_program(const struct sock *sk)
{
#ifdef CONFIG_CGROUP_BPF
	struct sock *one = (struct sock *)sk;	/* which is not changed */

	return (cgroup_bpf_enabled(CGROUP_INET_INGRESS) &&
		cgroup_bpf_sock_enabled(one, CGROUP_INET_INGRESS)) ||
	       (cgroup_bpf_enabled(CGROUP_INET_EGRESS) &&
		cgroup_bpf_sock_enabled(one, CGROUP_INET_EGRESS));
#else
	return false;
#endif
}

/**
 * stream_has_option() - whether something is asked of TCP for a connection that lanes do not carry
 * @sk: its socket; where it is not locked, the answer is a hint
 *
 * By a program, or by programs of its cgroup.
 */
bool stream_has_option(const struct sock *sk)
{
	return sk->sk_peek_off >= 0 || stream_is_in_use(sk) ||
	       sock_flag(sk, SOCK_RCVTSTAMP) || sk->sk_tsflags ||
	       tcp_sk(sk)->recvmsg_inq || sk->sk_max_pacing_rate != ~0UL ||
	       has_cgroup_program(sk);
}

/* Whether no lane is to be had, whatever has gone by TCP meanwhile. */
static bool is_paused(const struct stream *stream)
{
	return READ_ONCE(stream->pause) &&
	       time_before(jiffies, READ_ONCE(stream->not_before));
}

/**
 * stream_moved() - bytes went by TCP: a lane may be worth it now
 * @stream: the stream
 * @bytes: how many
 * @sent: they were sent, not received
 *
 * Context: process context, with any of the stream's mutexes.
 */
void stream_moved(struct stream *stream, int bytes, bool sent)
{
	unsigned int again = READ_ONCE(stream->again), waited = STREAM_BY_TURNS;
	u64 enough = (u64)READ_ONCE(stream_after_bytes) * again;
	u64 moved, turns;

	/* The end that accepts is asked. */
	if (!stream->active || !test_bit(STREAM_OURS, &stream->flags) ||
	    test_bit(STREAM_STAYS, &stream->flags) ||
	    test_bit(STREAM_WANTED, &stream->flags))
		return;
	if (is_paused(stream))
		return;
	/* A hint: two at once may count one turn too many, or none. */
	turns = READ_ONCE(stream->was_sent) == sent ?
			atomic64_read(&stream->turned) :
			atomic64_inc_return(&stream->turned);
	WRITE_ONCE(stream->was_sent, sent);
	moved = atomic64_add_return(bytes + CALL_BYTES, &stream->moved);
	if (turns < (u64)READ_ONCE(stream_after_turns) * again) {
		if (moved < enough)
			return;
		waited = stream_worth_shift(stream);
		if (moved < min(enough << waited, (u64)READ_ONCE(stream_after_most)))
			return;
	}
	if (test_and_set_bit(STREAM_WANTED, &stream->flags))
		return;
	/* A work that runs already may open the lane before these are there: a guess is wrong. */
	WRITE_ONCE(stream->waited, waited);
	WRITE_ONCE(stream->asked, jiffies);
	stream_queue(stream, 0);
}

static void say(const struct stream *stream, struct stream_say *say)
{
	const struct stream_tuple *tuple = &stream->tuple;

	BUILD_BUG_ON(sizeof(*say) != VMLOOP_LANE_BYTES);
	*say = (struct stream_say){
		.from = tuple->local,
		.to = tuple->remote,
		.from_port = tuple->local_port,
		.to_port = tuple->remote_port,
		.from_first = cpu_to_le32(tuple->local_first),
		.to_first = cpu_to_le32(tuple->remote_first),
		.nonce = cpu_to_le64(stream->nonce),
	};
}

struct opening {
	struct stream *stream;
	struct vmloop_lane *lane;
};

static void open_in(struct vmloop_channel *channel, void *data)
{
	struct opening *opening = data;
	struct vmloop_lane_ask ask = { .priv = opening->stream };
	struct stream_say said;

	stream_plan_ring(channel, opening->stream->sk, vmloop_channel_follows(channel), &ask);
	say(opening->stream, &said);
	memcpy(ask.say, &said, sizeof(said));
	opening->lane = vmloop_channel_lane(channel, &stream_path, &ask);
}

/* No lane for a while, four times as long each further time. */
static void make_pause(struct stream *stream, unsigned long first,
		       unsigned long most)
{
	unsigned long pause = clamp(stream->pause * AGAIN, first, most);

	WRITE_ONCE(stream->not_before, jiffies + pause);
	WRITE_ONCE(stream->pause, pause);
}

/**
 * stream_for_nothing() - a lane that the peer had opened has ended, and nothing came by it
 * @stream: the stream
 *
 * A peer does not open one after the other: the end of each costs a grace period.
 */
void stream_for_nothing(struct stream *stream)
{
	make_pause(stream, FOR_NOTHING, FOR_NOTHING_MAX);
	clear_bit(STREAM_WANTED, &stream->flags);
}

/**
 * stream_ask_anew() - what a stream waits for may be there: it need not wait longer
 * @stream: the stream
 * @why: what it waits for
 */
void stream_ask_anew(struct stream *stream, enum stream_why why)
{
	if (READ_ONCE(stream->why) == why)
		WRITE_ONCE(stream->pause, 0);
}

/* The directory says something new; looked at once a while, since it may change often. */
static bool news;
static unsigned long heeded;

static void directory_changed(void)
{
	WRITE_ONCE(news, true);
}

/* The peer may have come back, under another identity, or another policy be in force. */
static void heed_directory(struct stream *stream)
{
	u64 peer;

	stream_ask_anew(stream, STREAM_WHY_CHANNEL);
	stream_ask_anew(stream, STREAM_WHY_POLICY);
	if (!READ_ONCE(stream->held) && stream_peer_now(stream->sk, &peer))
		stream_leads_to(stream, peer);
}

/**
 * stream_heed_directory() - streams that have no lane have another look at who is there
 *
 * Context: the look at idle streams, each STREAM_IDLE_LOOK.
 */
void stream_heed_directory(void)
{
	if (!READ_ONCE(news) || time_before(jiffies, heeded + HEED_TIME))
		return;
	heeded = jiffies;
	WRITE_ONCE(news, false);
	stream_each(heed_directory);
}

/**
 * stream_not_now() - a lane is not to be had: asked for again later
 * @stream: the stream
 * @why: why not. STREAM_WHY_YOUNG: it has had one, and is worth the next as the first.
 *	STREAM_WHY_CHANNEL, STREAM_WHY_POLICY, STREAM_WHY_RULE: time decides, 1 s at first
 *	and 64 s at last, since a channel may come, and another policy or rule, which is
 *	noticed. Others: when more has gone by TCP than the last time.
 */
void stream_not_now(struct stream *stream, enum stream_why why)
{
	bool passes = why == STREAM_WHY_ROOM || why == STREAM_WHY_QUOTA ||
		      why == STREAM_WHY_BUSY || why == STREAM_WHY_UNREAD;
	unsigned int most = passes ? AGAIN_SOON_MAX : AGAIN_MAX;

	if (why == STREAM_WHY_CHANNEL || why == STREAM_WHY_POLICY ||
	    why == STREAM_WHY_RULE) {
		make_pause(stream, WITHOUT_CHANNEL, WITHOUT_CHANNEL_MAX);
	} else {
		/* Whose share is used up goes on asking for as long as it is busy. */
		if (why == STREAM_WHY_QUOTA)
			make_pause(stream, ABOVE_SHARE, ABOVE_SHARE_MAX);
		if (why == STREAM_WHY_YOUNG)
			WRITE_ONCE(stream->pause, 0);
		atomic64_set(&stream->moved, 0);
		atomic64_set(&stream->turned, 0);
		WRITE_ONCE(stream->again, why == STREAM_WHY_YOUNG ? 1 :
					  min(stream->again * AGAIN, most));
	}
	WRITE_ONCE(stream->why, why);
	clear_bit(STREAM_WANTED, &stream->flags);
}

/*
 * Why a connection cannot have a lane now; STREAM_WHY_NONE if it can. Before accept() it
 * has no socket; with other ops somebody reads beside us; and what else a program asked
 * TCP for, a lane does not carry. What a lane leaves unread is put into the receive queue: a
 * peer must not fill that by one lane after the other. The caller has the socket's spinlock.
 */
static enum stream_why why_not(const struct stream *stream)
{
	const struct sock *sk = stream->sk;
	const struct socket *sock = sk->sk_socket;

	if (test_bit(STREAM_STAYS, &stream->flags) ||
	    test_bit(STREAM_SHUT, &stream->flags) ||
	    test_bit(STREAM_LAST, &stream->flags) ||
	    test_bit(STREAM_AT_END, &stream->flags) ||
	    test_bit(STREAM_DEAD, &stream->flags) ||
	    sk->sk_state != TCP_ESTABLISHED || sk->sk_shutdown)
		return STREAM_WHY_STAYS;
	if (sock_owned_by_user(sk) || !sock ||
	    sock->ops != stream_ops[stream->family] || READ_ONCE(stream->held))
		return STREAM_WHY_BUSY;
	if (!stream->active && is_paused(stream))
		return STREAM_WHY_BUSY;
	/* TCP carries it as long as the call goes on: a lane would stand there for nothing. */
	if (READ_ONCE(stream->file) && stream_has_more(stream))
		return STREAM_WHY_BUSY;
	if (stream_has_option(sk))
		return STREAM_WHY_OPTION;
	if (!stream_rule_allows(sk))
		return STREAM_WHY_RULE;
	if (READ_ONCE(stream->rcvbuf_set) ||
	    atomic_read(&sk->sk_rmem_alloc) > READ_ONCE(sk->sk_rcvbuf))
		return STREAM_WHY_UNREAD;
	return STREAM_WHY_NONE;
}

static enum stream_why may_not_leave(struct stream *stream)
{
	struct sock *sk = stream->sk;
	enum stream_why why;

	/* By a peer's wish under the core mutex: TCP may hold the lock over a fault. */
	local_bh_disable();
	bh_lock_sock(sk);
	if (!sock_owned_by_user(sk) && !READ_ONCE(stream->held))
		stream_lower_rcvbuf(stream);
	why = why_not(stream);
	bh_unlock_sock(sk);
	local_bh_enable();
	return why;
}

/* What it means that no lane could be opened. */
static enum stream_why why_failed(int err)
{
	switch (err) {
	case 0:
		return STREAM_WHY_NONE;
	case -ENOTCONN:
		return STREAM_WHY_CHANNEL;
	case -EACCES:
		return STREAM_WHY_POLICY;
	case -ENOSPC:
	case -ENOMEM:
		return STREAM_WHY_ROOM;
	case -EDQUOT:
		return STREAM_WHY_QUOTA;
	case -EOPNOTSUPP:
		return STREAM_WHY_PEER;	/* its modules, or the agent, are older */
	default:
		return STREAM_WHY_BUSY;
	}
}

/**
 * stream_why_ended() - what it means that a lane of ours ended before it was up
 * @reason: as of lane_ended()
 */
enum stream_why stream_why_ended(u32 reason)
{
	switch (reason) {
	case VMLOOP_REASON_NONE:
		return STREAM_WHY_CHANNEL;
	case VMLOOP_REASON_POLICY:
		return STREAM_WHY_POLICY;
	case VMLOOP_REASON_ROOM:
		return STREAM_WHY_ROOM;
	case STREAM_REASON_BUSY:
		return STREAM_WHY_BUSY;
	default:
		return STREAM_WHY_PEER;
	}
}

/**
 * stream_open_lane() - open the lane that a connection is worth
 * @stream: a stream with STREAM_WANTED, and no lane
 *
 * Context: the stream's work.
 */
void stream_open_lane(struct stream *stream)
{
	struct opening opening = { .stream = stream };
	enum stream_why why = may_not_leave(stream);
	u64 peer;
	int err;

	if (why == STREAM_WHY_NONE && !stream_peer_now(stream->sk, &peer))
		why = STREAM_WHY_CHANNEL;
	else if (why == STREAM_WHY_NONE && !stream_leads_to(stream, peer))
		why = STREAM_WHY_BUSY;
	if (why == STREAM_WHY_NONE) {
		stream->nonce = get_random_u64();
		err = vmloop_channel_do(peer, open_in, &opening);
		if (err == -ENOTCONN)
			vmloop_channel_want(peer);
		else if (!err && IS_ERR(opening.lane))
			err = PTR_ERR(opening.lane);
		why = why_failed(err);
	}
	if (why != STREAM_WHY_NONE)
		stream_not_now(stream, why);
}

/*
 * The connection that a peer's lane is for, held. Else NULL, and @why is a reason: there is none,
 * or it leads to somebody else; or whom it leads to is still to be seen.
 */
static struct stream *stream_of(const struct vmloop_lane *lane, u64 *nonce, u32 *why)
{
	struct stream_tuple tuple = {};
	struct stream_say said;
	struct stream *stream;
	u64 peer;

	memcpy(&said, lane->said, sizeof(said));
	tuple.local = said.to;
	tuple.remote = said.from;
	tuple.local_port = said.to_port;
	tuple.remote_port = said.from_port;
	tuple.local_first = le32_to_cpu(said.to_first);
	tuple.remote_first = le32_to_cpu(said.from_first);
	*nonce = le64_to_cpu(said.nonce);
	*why = STREAM_REASON_UNKNOWN;
	stream = stream_find(&tuple);
	if (!stream)
		return NULL;
	if (!stream_peer_now(stream->sk, &peer))
		*why = STREAM_REASON_BUSY;
	else if (peer != vmloop_peer_id(lane->peer))
		*why = STREAM_REASON_UNKNOWN;
	else if (!stream_leads_to(stream, peer))
		*why = STREAM_REASON_BUSY;
	else
		return stream;
	stream_put(stream);
	return NULL;
}

/* Why a connection of ours is not to have the lane that the peer has opened for it. */
static u32 may_not_have(struct stream *stream, const struct vmloop_lane *lane,
			struct vmloop_lane_ask *ask)
{
	enum stream_why why;
	u32 refused;

	/* Not as of a connection's lane. */
	if (stream->active || lane->rx.size > STREAM_RING_MOST)
		return STREAM_REASON_UNFIT;
	why = may_not_leave(stream);
	refused = why == STREAM_WHY_BUSY || why == STREAM_WHY_UNREAD ?
			  STREAM_REASON_BUSY : STREAM_REASON_UNFIT;
	if (why == STREAM_WHY_NONE) {
		stream_plan_ring(lane->channel, stream->sk,
				 vmloop_lane_features(lane) & VMLOOP_F_MOVES, ask);
		why = why_failed(vmloop_channel_try(lane->channel, ask));
		/* Whose share it is, is no matter of the peer's. */
		refused = VMLOOP_REASON_ROOM;
	}
	if (why == STREAM_WHY_NONE)
		return VMLOOP_REASON_NONE;
	/* The peer knows of no share, and asks again: it is refused without a look at it then. */
	if (why == STREAM_WHY_QUOTA)
		make_pause(stream, ABOVE_SHARE, ABOVE_SHARE_MAX);
	WRITE_ONCE(stream->why, why);
	return refused;
}

static u32 lane_wanted(struct vmloop_lane *lane, struct vmloop_lane_ask *ask)
{
	struct stream *stream;
	u32 refused;
	u64 nonce;

	stream = stream_of(lane, &nonce, &refused);
	if (!stream)
		return refused;
	refused = may_not_have(stream, lane, ask);
	stream_put(stream);
	return refused;
}

static int lane_open(struct vmloop_lane *lane)
{
	struct stream *stream = lane->priv;
	u32 refused;
	u64 nonce;
	int err;

	if (lane->opened)
		return stream_lane_open(lane);
	stream = stream_of(lane, &nonce, &refused);
	if (!stream)
		return -ENOENT;
	lane->priv = stream;
	stream->nonce = nonce;
	err = stream_lane_open(lane);
	stream_put(stream);
	return err;
}

const struct vmloop_path stream_path = {
	.name = "stream",
	.owner = THIS_MODULE,
	.kind = VMLOOP_LANE_STREAM,
	.grain = VMLOOP_RING_BYTES,
	.directory_changed = directory_changed,
	.lane_wanted = lane_wanted,
	.lane_open = lane_open,
	.lane_up = stream_lane_up,
	.lane_down = stream_lane_down,
	.lane_close = stream_lane_close,
	.lane_ended = stream_lane_ended,
	.lane_move = stream_lane_move,
	.lane_event = stream_lane_event,
};
