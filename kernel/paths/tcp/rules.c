// SPDX-License-Identifier: GPL-2.0
/*
 * rules.c - which connections may have lanes: rules of the guest's administrator, of which
 * the first that matches decides. Where none does, a connection may.
 *
 * A rule holds at once: for connections that begin, for those that have a lane, which go back to
 * TCP, and for those that are to get one. A connection that began under a rule against it is the
 * kernel's for good.
 *
 * Owns the list of rules, and their part of generic netlink (docs/netlink/vmloop_tcp.yaml; list.c
 * has the family). Contexts: stream_rule_allows() any, with no lock; all else process context.
 * rules_mutex is outside of the locks of stream.h.
 */
#include <linux/cgroup.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include <net/genetlink.h>
#include <net/ipv6.h>

#include "stream.h"

/* A connection is held against each of them. */
#define RULES_MAX	256

enum {
	RULE_UNSPEC,
	RULE_ID,
	RULE_LANES,
	RULE_PORT_FIRST,
	RULE_PORT_LAST,
	RULE_ADDRESS,
	RULE_PREFIX,
	RULE_CGROUP,
	RULE_NETNS,
	RULE_BEFORE,
};

const struct nla_policy stream_rule_policy[STREAM_RULE_ATTRIBUTES + 1] = {
	[RULE_ID] = { .type = NLA_U32 },
	[RULE_LANES] = NLA_POLICY_MAX(NLA_U8, 1),
	[RULE_PORT_FIRST] = NLA_POLICY_MIN(NLA_U16, 1),
	[RULE_PORT_LAST] = NLA_POLICY_MIN(NLA_U16, 1),
	[RULE_ADDRESS] = { .type = NLA_BINARY, .len = sizeof(struct in6_addr) },
	[RULE_PREFIX] = NLA_POLICY_MAX(NLA_U8, 128),
	[RULE_CGROUP] = { .type = NLA_U64 },
	[RULE_NETNS] = { .type = NLA_U32 },
	[RULE_BEFORE] = { .type = NLA_U32 },
};

/**
 * struct rule - what is said of the connections that it matches
 * @list: in their order
 * @rcu: frees it
 * @id: its number; no other has had it
 * @lanes: they may have lanes; else they stay on TCP
 * @port_first: of the port of either end; 0: any
 * @port_last: the last one that matches
 * @has_address: @address and @prefix are to match
 * @address: the other end's; IPv4's as IPv6 maps it
 * @prefix: bits of it that count, of the mapped one
 * @cgroup: number of a cgroup in which the socket was made, or below which; 0: any
 * @netns: number of the network namespace; 0: any
 */
struct rule {
	struct list_head list;
	struct rcu_head rcu;
	u32 id;
	bool lanes;
	u16 port_first;
	u16 port_last;
	bool has_address;
	struct in6_addr address;
	unsigned int prefix;
	u64 cgroup;
	u32 netns;
};

static LIST_HEAD(rules);
static DEFINE_MUTEX(rules_mutex);
static unsigned int rules_count;
static u32 last_id;

static bool has_port(const struct rule *rule, const struct sock *sk)
{
	u16 ours = ntohs(inet_sk(sk)->inet_sport);
	u16 theirs = ntohs(inet_sk(sk)->inet_dport);

	return !rule->port_first ||
	       (ours >= rule->port_first && ours <= rule->port_last) ||
	       (theirs >= rule->port_first && theirs <= rule->port_last);
}

static bool has_address(const struct rule *rule, const struct sock *sk)
{
	struct in6_addr mapped;

	if (!rule->has_address)
		return true;
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6)
		return ipv6_prefix_equal(&rule->address, &sk->sk_v6_daddr,
					 rule->prefix);
#endif
	ipv6_addr_set_v4mapped(sk->sk_daddr, &mapped);
	return ipv6_prefix_equal(&rule->address, &mapped, rule->prefix);
}

static bool is_in_cgroup(u64 wanted, const struct sock *sk)
{
#ifdef CONFIG_SOCK_CGROUP_DATA
	/* The socket holds it, and each holds the one above. */
	struct cgroup *one = sock_cgroup_ptr((struct sock_cgroup_data *)&sk->sk_cgrp_data);

	for (; one; one = cgroup_parent(one))
		if (cgroup_id(one) == wanted)
			return true;
#endif
	return false;
}

static bool matches(const struct rule *rule, const struct sock *sk)
{
	return has_port(rule, sk) && has_address(rule, sk) &&
	       (!rule->netns || rule->netns == sock_net(sk)->ns.inum) &&
	       (!rule->cgroup || is_in_cgroup(rule->cgroup, sk));
}

/**
 * stream_rule_allows() - whether a connection may have lanes
 * @sk: its socket, connected
 *
 * Context: any.
 */
bool stream_rule_allows(const struct sock *sk)
{
	const struct rule *rule;
	bool allows = true;

	rcu_read_lock();
	list_for_each_entry_rcu(rule, &rules, list) {
		if (matches(rule, sk)) {
			allows = rule->lanes;
			break;
		}
	}
	rcu_read_unlock();
	return allows;
}

static struct rule *find(u32 id)
{
	struct rule *rule;

	lockdep_assert_held(&rules_mutex);
	list_for_each_entry(rule, &rules, list)
		if (rule->id == id)
			return rule;
	return NULL;
}

/* The rule is the list's. @before: number of the one that follows it; 0: none does. */
static int add(struct rule *rule, u32 before)
{
	struct list_head *next = &rules;
	struct rule *other;

	lockdep_assert_held(&rules_mutex);
	if (before) {
		other = find(before);
		if (!other)
			return -ENOENT;
		next = &other->list;
	}
	if (rules_count == RULES_MAX)
		return -ENOSPC;
	rules_count++;
	rule->id = ++last_id;
	list_add_tail_rcu(&rule->list, next);
	return 0;
}

/* The rules are others now. */
static void heed(struct stream *stream)
{
	if (READ_ONCE(stream->held) && !stream_rule_allows(stream->sk))
		stream_go_back(stream);
	stream_ask_anew(stream, STREAM_WHY_RULE);
}

static int parse_address(struct rule *rule, struct genl_info *info)
{
	const struct nlattr *address = info->attrs[RULE_ADDRESS];
	const struct nlattr *prefix = info->attrs[RULE_PREFIX];
	unsigned int most = 128;

	if (!address)
		return prefix ? -EINVAL : 0;
	if (nla_len(address) == sizeof(__be32)) {
		ipv6_addr_set_v4mapped(nla_get_in_addr(address), &rule->address);
		most = 32;
	} else if (nla_len(address) == sizeof(rule->address)) {
		rule->address = nla_get_in6_addr(address);
	} else {
		return -EINVAL;
	}
	rule->prefix = prefix ? nla_get_u8(prefix) : most;
	if (rule->prefix > most)
		return -EINVAL;
	rule->prefix += 128 - most;
	rule->has_address = true;
	return 0;
}

static int parse(struct rule *rule, struct genl_info *info)
{
	struct nlattr **from = info->attrs;

	if (!from[RULE_LANES])
		return -EINVAL;
	rule->lanes = nla_get_u8(from[RULE_LANES]);
	if (from[RULE_PORT_FIRST])
		rule->port_first = nla_get_u16(from[RULE_PORT_FIRST]);
	rule->port_last = rule->port_first;
	if (from[RULE_PORT_LAST])
		rule->port_last = nla_get_u16(from[RULE_PORT_LAST]);
	if (rule->port_last < rule->port_first || (rule->port_last && !rule->port_first))
		return -EINVAL;
	if (from[RULE_CGROUP])
		rule->cgroup = nla_get_u64(from[RULE_CGROUP]);
	if (from[RULE_NETNS])
		rule->netns = nla_get_u32(from[RULE_NETNS]);
	return parse_address(rule, info);
}

/* Rules are for the whole guest: a container with a network of its own must not change them. */
static bool may_change(const struct genl_info *info)
{
	return net_eq(genl_info_net((struct genl_info *)info), &init_net);
}

/* The answer to RULE_ADD: the rule's number. */
static int answer(u32 id, struct genl_info *info)
{
	struct sk_buff *skb = genlmsg_new(nla_total_size(sizeof(id)), GFP_KERNEL);
	void *head;

	if (!skb)
		return -ENOMEM;
	head = genlmsg_put_reply(skb, info, &stream_family, 0, STREAM_CMD_RULE_ADD);
	if (!head || nla_put_u32(skb, RULE_ID, id)) {
		nlmsg_free(skb);
		return -EMSGSIZE;
	}
	genlmsg_end(skb, head);
	return genlmsg_reply(skb, info);
}

/* RULE_ADD: only root may, outside of containers. */
int stream_rule_add(struct sk_buff *skb, struct genl_info *info)
{
	const struct nlattr *before = info->attrs[RULE_BEFORE];
	struct rule *rule;
	u32 id = 0;
	int err;

	if (!may_change(info))
		return -EPERM;
	rule = kzalloc(sizeof(*rule), GFP_KERNEL);
	if (!rule)
		return -ENOMEM;
	err = parse(rule, info);
	if (!err) {
		mutex_lock(&rules_mutex);
		err = add(rule, before ? nla_get_u32(before) : 0);
		id = rule->id;
		mutex_unlock(&rules_mutex);
	}
	if (err) {
		kfree(rule);
		return err;
	}
	stream_each(heed);
	/* It is there, whether or not its number can be said. */
	return answer(id, info);
}

/* RULE_REMOVE: as RULE_ADD. */
int stream_rule_remove(struct sk_buff *skb, struct genl_info *info)
{
	struct rule *rule;

	if (!may_change(info))
		return -EPERM;
	if (!info->attrs[RULE_ID])
		return -EINVAL;
	mutex_lock(&rules_mutex);
	rule = find(nla_get_u32(info->attrs[RULE_ID]));
	if (rule) {
		list_del_rcu(&rule->list);
		rules_count--;
	}
	mutex_unlock(&rules_mutex);
	if (!rule)
		return -ENOENT;
	kfree_rcu(rule, rcu);
	stream_each(heed);
	return 0;
}

static int fill_address(struct sk_buff *skb, const struct rule *rule)
{
	unsigned int prefix = rule->prefix;

	if (!rule->has_address)
		return 0;
	if (ipv6_addr_v4mapped(&rule->address) && prefix >= 96)
		return nla_put(skb, RULE_ADDRESS, 4, &rule->address.s6_addr32[3]) ?:
		       nla_put_u8(skb, RULE_PREFIX, prefix - 96);
	return nla_put(skb, RULE_ADDRESS, 16, &rule->address) ?:
	       nla_put_u8(skb, RULE_PREFIX, prefix);
}

static int fill(struct sk_buff *skb, const struct rule *rule)
{
	if (nla_put_u32(skb, RULE_ID, rule->id) ||
	    nla_put_u8(skb, RULE_LANES, rule->lanes) ||
	    (rule->port_first &&
	     (nla_put_u16(skb, RULE_PORT_FIRST, rule->port_first) ||
	      nla_put_u16(skb, RULE_PORT_LAST, rule->port_last))) ||
	    fill_address(skb, rule) ||
	    (rule->cgroup && nla_put_u64_64bit(skb, RULE_CGROUP, rule->cgroup, 0)) ||
	    (rule->netns && nla_put_u32(skb, RULE_NETNS, rule->netns)))
		return -EMSGSIZE;
	return 0;
}

static int say(struct sk_buff *skb, struct netlink_callback *cb, const struct rule *rule)
{
	void *head = genlmsg_put(skb, NETLINK_CB(cb->skb).portid, cb->nlh->nlmsg_seq,
				 &stream_family, NLM_F_MULTI, STREAM_CMD_RULE_GET);

	if (!head)
		return -EMSGSIZE;
	if (fill(skb, rule)) {
		genlmsg_cancel(skb, head);
		return -EMSGSIZE;
	}
	genlmsg_end(skb, head);
	return 0;
}

/*
 * RULE_GET: all rules, in their order. cb->args[0] is how many were said. Where some come or
 * go meanwhile, one may be said twice, or left out.
 */
int stream_rule_list(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct rule *rule;
	long index = 0;

	/* Of other containers, nothing. */
	if (!net_eq(sock_net(skb->sk), &init_net))
		return -EPERM;
	mutex_lock(&rules_mutex);
	list_for_each_entry(rule, &rules, list) {
		if (index++ < cb->args[0])
			continue;
		if (say(skb, cb, rule))
			break;
		cb->args[0] = index;
	}
	mutex_unlock(&rules_mutex);
	return skb->len;
}

/**
 * stream_rules_init() - the rules to begin with: of the ports that are left out
 *
 * Return: 0, -ENOMEM, or -EINVAL if `left_out` has a number that is no port's.
 */
int stream_rules_init(void)
{
	struct rule *rule;
	unsigned int i;

	for (i = 0; i < stream_left_out_count; i++) {
		if (stream_left_out[i] > U16_MAX) {
			pr_err("vmloop_tcp: left_out: %u is no port\n", stream_left_out[i]);
			stream_rules_exit();
			return -EINVAL;
		}
		/* `left_out=0` leaves out nothing. */
		if (!stream_left_out[i])
			continue;
		rule = kzalloc(sizeof(*rule), GFP_KERNEL);
		if (!rule) {
			stream_rules_exit();
			return -ENOMEM;
		}
		rule->port_first = stream_left_out[i];
		rule->port_last = stream_left_out[i];
		mutex_lock(&rules_mutex);
		add(rule, 0);	/* there is room: STREAM_LEFT_OUT_MAX */
		mutex_unlock(&rules_mutex);
	}
	return 0;
}

/** stream_rules_exit() - nobody looks at a rule any more */
void stream_rules_exit(void)
{
	struct rule *rule, *next;

	list_for_each_entry_safe(rule, next, &rules, list)
		kfree(rule);
}
