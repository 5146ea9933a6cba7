// SPDX-License-Identifier: GPL-2.0
/*
 * shaping.c - what an interface's root qdisc would do to a frame that goes
 * past it through a channel. One that only queues is not missed, as the channel
 * has a queue of its own. One that shapes, delays, loses or paces is what the
 * administrator wants of this interface, so its frames keep to the standard
 * network, unless the parameter "bypass_qdisc" says otherwise.
 *
 * The list below has those that only queue; all others count as shaping, those
 * with classes too, as what is in their classes may shape.
 *
 * Nobody tells of a qdisc that comes or goes, so the data path looks again in
 * each new jiffy that it sees.
 */
#include <linux/netdevice.h>
#include <linux/pkt_sched.h>
#include <net/netlink.h>
#include <net/sch_generic.h>
#include <net/sock.h>

#include "net.h"

/* Room for what sch_fq says of itself. */
#define DUMP_SIZE	1024

static bool bypass_qdisc;
module_param(bypass_qdisc, bool, 0644);
MODULE_PARM_DESC(bypass_qdisc, "use channels although the interface's root qdisc shapes or paces  [N]");

/* From the least that it does to the most: of several, the last one counts. */
enum {
	QUEUES,
	PACES_SOCKETS,	/* those that ask for it */
	SHAPES,
};

static bool only_queues(const struct Qdisc *qdisc)
{
	static const char * const known[] = {
		"noop", "noqueue", "pfifo", "bfifo", "pfifo_fast",
		"pfifo_head_drop", "fq_codel", "codel", "sfq", "fq_pie", "pie",
		"red", "choke", "sfb", "hhf",
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(known); i++)
		if (!strcmp(qdisc->ops->id, known[i]))
			return true;
	return false;
}

/*
 * sch_fq is the default qdisc in many places, and paces sockets that set a
 * rate. It can also have a rate for every flow: only its dump tells.
 */
static int fq(struct Qdisc *qdisc)
{
	struct nlattr *tb[TCA_FQ_MAX + 1];
	int found = SHAPES;
	struct sk_buff *skb;

	skb = alloc_skb(DUMP_SIZE, GFP_ATOMIC);
	if (!skb)
		return SHAPES;
	if (qdisc->ops->dump(qdisc, skb) < 0 || skb->len < NLA_HDRLEN ||
	    nla_parse_nested_deprecated(tb, TCA_FQ_MAX,
					(struct nlattr *)skb->data, NULL, NULL))
		goto out;
	if (!tb[TCA_FQ_FLOW_MAX_RATE] || !tb[TCA_FQ_RATE_ENABLE])
		goto out;
	if (!nla_get_u32(tb[TCA_FQ_RATE_ENABLE]))
		found = QUEUES;
	else if (nla_get_u32(tb[TCA_FQ_FLOW_MAX_RATE]) == ~0U)
		found = PACES_SOCKETS;
out:
	kfree_skb(skb);
	return found;
}

static int one(struct Qdisc *qdisc)
{
	if (only_queues(qdisc))
		return QUEUES;
	return strcmp(qdisc->ops->id, "fq") ? SHAPES : fq(qdisc);
}

static int look(struct net_device *dev)
{
	struct Qdisc *qdisc = rcu_dereference(dev->qdisc);
	int found = QUEUES;
	unsigned int i;

	if (!qdisc)
		return QUEUES;
	if (strcmp(qdisc->ops->id, "mq"))
		return one(qdisc);
	for (i = 0; i < dev->real_num_tx_queues; i++) {
		qdisc = rcu_dereference(netdev_get_tx_queue(dev, i)->qdisc_sleeping);
		if (qdisc)
			found = max(found, one(qdisc));
	}
	return found;
}

/* Whether the socket has set a rate or times, and leaves them to sch_fq to hold. */
static bool is_paced(const struct sk_buff *skb)
{
	const struct sock *sk = skb->sk;

	return sk && sk_fullsock(sk) &&
	       (sock_flag(sk, SOCK_TXTIME) ||
		(READ_ONCE(sk->sk_pacing_status) == SK_PACING_FQ &&
		 READ_ONCE(sk->sk_max_pacing_rate) != ~0UL));
}

/**
 * net_shapes() - whether an interface's qdisc would be missed
 * @nic: the interface
 * @skb: a frame about to leave by it, or NULL: any frame
 *
 * Context: rcu_read_lock() held, bottom halves off.
 * Return: true if the frame should pass the qdisc.
 */
bool net_shapes(struct net_nic *nic, const struct sk_buff *skb)
{
	unsigned long now = jiffies;
	int shaping;

	if (unlikely(READ_ONCE(nic->shaping_looked) != now)) {
		WRITE_ONCE(nic->shaping, look(nic->dev));
		WRITE_ONCE(nic->shaping_looked, now);
	}
	shaping = READ_ONCE(nic->shaping);
	if (likely(shaping == QUEUES) || READ_ONCE(bypass_qdisc))
		return false;
	return shaping == SHAPES || (skb && is_paced(skb));
}
