// SPDX-License-Identifier: GPL-2.0
/*
 * list.c - says to programs which connections were taken over, what carries each of them,
 * and why TCP does where it does: generic netlink family "vmloop_tcp".
 * docs/netlink/vmloop_tcp.yaml is its specification; numbers follow it.
 *
 * Anybody may ask, and is told of the connections of the asker's network namespace, as by
 * `ss`; of peers, as by the core's family, in the first one only. A question that is not
 * read to its end keeps the module loaded.
 *
 * Context: process context.
 */
#include <linux/user_namespace.h>
#include <net/genetlink.h>
#include <net/ipv6.h>

#include "stream.h"

enum {
	STREAM_UNSPEC,
	STREAM_LOCAL,
	STREAM_LOCAL_PORT,
	STREAM_REMOTE,
	STREAM_REMOTE_PORT,
	STREAM_PEER,
	STREAM_STATE,
	STREAM_WHY,
	STREAM_INODE,
	STREAM_ACTIVE,
	STREAM_LANE,
	STREAM_RING_SIZE,
	STREAM_BYTES_SENT,
	STREAM_BYTES_RECEIVED,
	STREAM_TX_QUEUE,
	STREAM_RX_QUEUE,
	STREAM_LANES,
};

/* What carries a connection's bytes. */
enum {
	STATE_TCP,
	STATE_OPENING,
	STATE_GOING_OVER,
	STATE_LANE,
	STATE_GOING_BACK,
};

/* Padding of 64-bit attributes: no attribute, as the kernel aligns on x86. */
#define PAD	0

/**
 * struct snapshot - what is said of a stream
 * @state: what carries it
 * @why: why TCP does
 * @has_lane: it has one, and so the next four
 * @lane: the lane's number
 * @ring_size: bytes of our ring
 * @tx_queue: bytes in it that the peer has not taken
 * @rx_queue: bytes in the peer's that the program has not read
 * @lanes: how many it has had
 * @sent: bytes that went by all of them
 * @received: bytes that came
 */
struct snapshot {
	u32 state;
	u32 why;
	bool has_lane;
	u32 lane;
	u32 ring_size;
	u32 tx_queue;
	u32 rx_queue;
	u32 lanes;
	u64 sent;
	u64 received;
};

static u32 state_of(const struct stream *stream)
{
	if (!READ_ONCE(stream->held))
		return STATE_TCP;
	if (!stream_is_up(stream))
		return STATE_OPENING;
	if (READ_ONCE(stream->down))
		return STATE_GOING_BACK;
	return READ_ONCE(stream->tx) == STREAM_TX_RING ? STATE_LANE :
							  STATE_GOING_OVER;
}

static u32 why_of(const struct stream *stream)
{
	if (test_bit(STREAM_STAYS, &stream->flags))
		return STREAM_WHY_STAYS;
	if (test_bit(STREAM_WANTED, &stream->flags))
		return STREAM_WHY_ASKED;
	return READ_ONCE(stream->why);
}

static struct snapshot look_at(struct stream *stream)
{
	const struct vmloop_lane *lane;
	struct snapshot seen = {};

	spin_lock_bh(&stream->lane_lock);
	seen.state = state_of(stream);
	seen.why = why_of(stream);
	seen.lanes = stream->lanes;
	seen.sent = stream->sent_before + READ_ONCE(stream->sent);
	seen.received = stream->got_before + READ_ONCE(stream->got);
	lane = seen.state == STATE_TCP ? NULL : stream->lane;
	if (lane) {
		seen.has_lane = true;
		seen.lane = lane->number;
		seen.ring_size = READ_ONCE(lane->tx.size);
	}
	/* Before that there is a hello in the rings. */
	if (lane && seen.state == STATE_LANE) {
		seen.tx_queue = stream_untaken(lane);
		seen.rx_queue = stream_arrived(lane, READ_ONCE(lane->rx.size));
	}
	spin_unlock_bh(&stream->lane_lock);
	return seen;
}

static int fill_address(struct sk_buff *skb, int attribute,
			const struct in6_addr *address)
{
	if (ipv6_addr_v4mapped(address))
		return nla_put(skb, attribute, 4, &address->s6_addr32[3]);
	return nla_put(skb, attribute, sizeof(*address), address);
}

/* Without a lane: whoever is there now, if anybody. */
static bool peer_of(struct stream *stream, u64 *peer)
{
	if (!READ_ONCE(stream->held))
		return stream_peer_now(stream->sk, peer);
	*peer = READ_ONCE(stream->peer);
	return true;
}

static int fill_connection(struct sk_buff *skb, struct stream *stream)
{
	const struct stream_tuple *tuple = &stream->tuple;
	u64 peer, inode = 0;
	bool named;

	/* One that was closed has a socket of ours for a while. */
	if (!READ_ONCE(stream->orphan))
		inode = sock_i_ino(stream->sk);
	/* Guests are named outside of containers. */
	named = net_eq(sock_net(skb->sk), &init_net) && peer_of(stream, &peer);
	if (fill_address(skb, STREAM_LOCAL, &tuple->local) ||
	    nla_put_u16(skb, STREAM_LOCAL_PORT, ntohs(tuple->local_port)) ||
	    fill_address(skb, STREAM_REMOTE, &tuple->remote) ||
	    nla_put_u16(skb, STREAM_REMOTE_PORT, ntohs(tuple->remote_port)) ||
	    (named && nla_put_u64_64bit(skb, STREAM_PEER, peer, PAD)) ||
	    nla_put_u64_64bit(skb, STREAM_INODE, inode, PAD) ||
	    nla_put_u8(skb, STREAM_ACTIVE, stream->active))
		return -EMSGSIZE;
	return 0;
}

static int fill(struct sk_buff *skb, struct stream *stream)
{
	struct snapshot seen = look_at(stream);

	if (fill_connection(skb, stream) ||
	    nla_put_u32(skb, STREAM_STATE, seen.state) ||
	    nla_put_u64_64bit(skb, STREAM_BYTES_SENT, seen.sent, PAD) ||
	    nla_put_u64_64bit(skb, STREAM_BYTES_RECEIVED, seen.received, PAD) ||
	    nla_put_u32(skb, STREAM_LANES, seen.lanes))
		return -EMSGSIZE;
	if (seen.state == STATE_TCP && nla_put_u32(skb, STREAM_WHY, seen.why))
		return -EMSGSIZE;
	if (seen.has_lane &&
	    (nla_put_u32(skb, STREAM_LANE, seen.lane) ||
	     nla_put_u32(skb, STREAM_RING_SIZE, seen.ring_size) ||
	     nla_put_u32(skb, STREAM_TX_QUEUE, seen.tx_queue) ||
	     nla_put_u32(skb, STREAM_RX_QUEUE, seen.rx_queue)))
		return -EMSGSIZE;
	return 0;
}

/* Says one of them; true if there was room for it, or nothing is to be said. */
static bool say(struct sk_buff *skb, struct netlink_callback *cb,
		struct stream *stream)
{
	void *head;

	if (!net_eq(sock_net(stream->sk), sock_net(skb->sk)))
		return true;
	head = genlmsg_put(skb, NETLINK_CB(cb->skb).portid, cb->nlh->nlmsg_seq,
			   &stream_family, NLM_F_MULTI, STREAM_CMD_GET);
	if (!head)
		return false;
	if (fill(skb, stream)) {
		genlmsg_cancel(skb, head);
		return false;
	}
	genlmsg_end(skb, head);
	return true;
}

/* How far a program has been told: cb->args[0] is the bucket, args[1] the place in it. */
static int list_more(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct stream *stream;
	bool said;

	/* No connection there leads to a peer (pair.c). */
	if (sock_net(skb->sk)->user_ns != &init_user_ns)
		return -EPERM;
	while (cb->args[0] < 1 << STREAM_BUCKET_BITS) {
		stream = stream_at(cb->args[0], cb->args[1]);
		if (!stream) {
			cb->args[0]++;
			cb->args[1] = 0;
			cond_resched();
			continue;
		}
		said = say(skb, cb, stream);
		stream_put(stream);
		if (!said)
			break;
		cb->args[1]++;
	}
	return skb->len;
}

static const struct genl_ops ops[] = {
	{
		.cmd = STREAM_CMD_GET,
		.dumpit = list_more,
	},
	{
		.cmd = STREAM_CMD_RULE_GET,
		.dumpit = stream_rule_list,
	},
	{
		.cmd = STREAM_CMD_RULE_ADD,
		.flags = GENL_ADMIN_PERM,
		.doit = stream_rule_add,
		.policy = stream_rule_policy,
		.maxattr = STREAM_RULE_ATTRIBUTES,
	},
	{
		.cmd = STREAM_CMD_RULE_REMOVE,
		.flags = GENL_ADMIN_PERM,
		.doit = stream_rule_remove,
		.policy = stream_rule_policy,
		.maxattr = STREAM_RULE_ATTRIBUTES,
	},
};

struct genl_family stream_family __ro_after_init = {
	.name = "vmloop_tcp",
	.version = 1,
	.module = THIS_MODULE,
	.ops = ops,
	.n_ops = ARRAY_SIZE(ops),
	.netnsok = true,
	.parallel_ops = true,
};

int stream_list_init(void)
{
	return genl_register_family(&stream_family);
}

/* Nobody is being told, or will be, when this returns. */
void stream_list_exit(void)
{
	genl_unregister_family(&stream_family);
}
