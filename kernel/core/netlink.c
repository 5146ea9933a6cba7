// SPDX-License-Identifier: GPL-2.0
/*
 * netlink.c - control and status for user space: generic netlink family
 * "vmloop". docs/netlink/vmloop.yaml is its specification; numbers follow it.
 *
 * Context: process context; commands take the core mutex.
 */
#include <net/genetlink.h>

#include "core.h"

enum {
	CMD_UNSPEC,
	CMD_STATUS_GET,
	CMD_STATUS_SET,
	CMD_PEER_GET,
	CMD_PEER_RESET,
	CMD_PEER_NTF,
};

enum {
	STATUS_UNSPEC,
	STATUS_VERSION,
	STATUS_MAJOR,
	STATUS_MINOR,
	STATUS_ID,
	STATUS_EPOCH,
	STATUS_NAME,
	STATUS_AGENT,
	STATUS_ENABLED,
	STATUS_PEERS,
	STATUS_CHANNELS_UP,
	STATUS_TRANSPORT,
	STATUS_ROUTED_IP,
	STATUS_MAX = STATUS_ROUTED_IP,
};

enum {
	PEER_UNSPEC,
	PEER_ID,
	PEER_EPOCH,
	PEER_NAME,
	PEER_TAG,
	PEER_STATE,
	PEER_REASON,
	PEER_TRANSPORT,
	PEER_RING_SIZE,
	PEER_INTERFACE,
	PEER_STATS,
	PEER_BREAK,
	PEER_BREAKS,
	PEER_RETRY_MS,
	PEER_LANES,
	PEER_MAX = PEER_LANES,
};

enum {
	INTERFACE_UNSPEC,
	INTERFACE_LOCAL_MAC,
	INTERFACE_MAC,
	INTERFACE_FLAGS,
	INTERFACE_MTU,
	INTERFACE_IP,
	INTERFACE_GATEWAY,
};

/* Padding of 64-bit attributes: no attribute, as the kernel aligns on x86. */
#define PAD	0

static struct genl_family family;
static bool enabled = true;	/* written under the core mutex */

bool vmloop_enabled(void)
{
	return READ_ONCE(enabled);
}

static int ips_fill(struct sk_buff *skb, int attribute,
		    const struct vmloop_interface *interface)
{
	unsigned int i;

	for (i = 0; i < interface->ip_count; i++)
		if (nla_put(skb, attribute,
			    interface->ip[i].family == VMLOOP_ADDR_IPV4 ? 4 : 16,
			    interface->ip[i].ip))
			return -EMSGSIZE;
	return 0;
}

static int status_fill(struct sk_buff *skb)
{
	const struct vmloop_transport *transport;
	u64 id = 0, epoch = 0, agent = 0;
	const struct vmloop_interface *interface;
	const struct vmloop_peer *peer;
	u32 peers = 0, up = 0;
	const char *name = "";

	list_for_each_entry(transport, &vmloop_transports, list) {
		/* More than one agent at a time: the last one is shown. */
		if (transport->id) {
			id = transport->id;
			epoch = transport->epoch;
			name = transport->guest;
		}
		if (transport->agent)
			agent = transport->agent;
		if (nla_put_string(skb, STATUS_TRANSPORT, transport->name))
			return -EMSGSIZE;
	}
	list_for_each_entry(transport, &vmloop_transports, list)
		list_for_each_entry(interface, &transport->ours, list)
			if (ips_fill(skb, STATUS_ROUTED_IP, interface))
				return -EMSGSIZE;
	list_for_each_entry(peer, &vmloop_peers, list) {
		peers++;
		up += peer->state == VMLOOP_CHANNEL_UP;
	}
	if (nla_put_string(skb, STATUS_VERSION, VMLOOP_VERSION) ||
	    nla_put_u16(skb, STATUS_MAJOR, VMLOOP_SHM_MAJOR) ||
	    nla_put_u16(skb, STATUS_MINOR, VMLOOP_SHM_MINOR) ||
	    nla_put_u64_64bit(skb, STATUS_ID, id, PAD) ||
	    nla_put_u64_64bit(skb, STATUS_EPOCH, epoch, PAD) ||
	    nla_put_string(skb, STATUS_NAME, name) ||
	    nla_put_u64_64bit(skb, STATUS_AGENT, agent, PAD) ||
	    nla_put_u8(skb, STATUS_ENABLED, enabled) ||
	    nla_put_u32(skb, STATUS_PEERS, peers) ||
	    nla_put_u32(skb, STATUS_CHANNELS_UP, up))
		return -EMSGSIZE;
	return 0;
}

static int status_get(struct sk_buff *request, struct genl_info *info)
{
	struct sk_buff *skb;
	void *head;
	int err;

	skb = genlmsg_new(NLMSG_GOODSIZE, GFP_KERNEL);
	if (!skb)
		return -ENOMEM;
	head = genlmsg_put_reply(skb, info, &family, 0, CMD_STATUS_GET);
	if (!head) {
		nlmsg_free(skb);
		return -EMSGSIZE;
	}
	mutex_lock(&vmloop_mutex);
	err = status_fill(skb);
	mutex_unlock(&vmloop_mutex);
	if (err) {
		nlmsg_free(skb);
		return err;
	}
	genlmsg_end(skb, head);
	return genlmsg_reply(skb, info);
}

static int status_set(struct sk_buff *request, struct genl_info *info)
{
	struct vmloop_peer *peer;
	bool on;

	if (!info->attrs[STATUS_ENABLED]) {
		NL_SET_ERR_MSG(info->extack, "attribute 'enabled' is missing");
		return -EINVAL;
	}
	on = nla_get_u8(info->attrs[STATUS_ENABLED]);

	mutex_lock(&vmloop_mutex);
	if (on != enabled) {
		WRITE_ONCE(enabled, on);
		if (on)
			list_for_each_entry(peer, &vmloop_peers, list)
				vmloop_peer_request_now(peer);
		else
			vmloop_channels_end(NULL);
		vmloop_channels_adopt(NULL);
	}
	mutex_unlock(&vmloop_mutex);
	return 0;
}

static int peer_fill_interfaces(struct sk_buff *skb,
				const struct vmloop_peer *peer)
{
	const struct vmloop_interface *interface;
	struct nlattr *nest;

	list_for_each_entry(interface, &peer->interfaces, list) {
		nest = nla_nest_start(skb, PEER_INTERFACE);
		if (!nest ||
		    nla_put(skb, INTERFACE_LOCAL_MAC, ETH_ALEN,
			    interface->local_mac) ||
		    nla_put(skb, INTERFACE_MAC, ETH_ALEN, interface->mac) ||
		    nla_put_u32(skb, INTERFACE_FLAGS, interface->flags) ||
		    nla_put_u32(skb, INTERFACE_MTU, interface->mtu) ||
		    ips_fill(skb, INTERFACE_IP, interface))
			return -EMSGSIZE;
		if ((interface->flags & VMLOOP_PEER_ROUTED) &&
		    nla_put(skb, INTERFACE_GATEWAY, ETH_ALEN,
			    interface->gateway))
			return -EMSGSIZE;
		nla_nest_end(skb, nest);
	}
	return 0;
}

static int peer_fill_stats(struct sk_buff *skb, const struct vmloop_peer *peer)
{
	struct nlattr *nest = nla_nest_start(skb, PEER_STATS);
	unsigned int i;

	if (!nest)
		return -EMSGSIZE;
	for (i = 0; i < VMLOOP_COUNTERS; i++)
		if (nla_put_u64_64bit(skb, i + 1, vmloop_peer_counter(peer, i),
				      PAD))
			return -EMSGSIZE;
	nla_nest_end(skb, nest);
	return 0;
}

/* In how many milliseconds a peer that was refused or broke is asked again. */
static u32 peer_retry_ms(const struct vmloop_peer *peer)
{
	unsigned long at = READ_ONCE(peer->request.timer.expires);

	if ((peer->state != VMLOOP_CHANNEL_REFUSED &&
	     peer->state != VMLOOP_CHANNEL_BROKEN) ||
	    !delayed_work_pending(&peer->request))
		return 0;
	return time_after(at, jiffies) ? jiffies_to_msecs(at - jiffies) : 1;
}

static int peer_fill(struct sk_buff *skb, const struct vmloop_peer *peer)
{
	u32 ring, lanes = vmloop_channel_lanes(peer->channel, &ring);

	if (nla_put_u64_64bit(skb, PEER_ID, peer->id, PAD) ||
	    nla_put_u64_64bit(skb, PEER_EPOCH, peer->epoch, PAD) ||
	    nla_put_string(skb, PEER_NAME, peer->name) ||
	    nla_put_u32(skb, PEER_TAG, peer->tag) ||
	    nla_put_u32(skb, PEER_STATE, peer->state) ||
	    nla_put_u32(skb, PEER_REASON, peer->reason) ||
	    nla_put_string(skb, PEER_TRANSPORT, peer->transport->name) ||
	    nla_put_u32(skb, PEER_RING_SIZE, ring) ||
	    nla_put_u32(skb, PEER_BREAK, peer->break_reason) ||
	    nla_put_u32(skb, PEER_BREAKS, peer->breaks) ||
	    nla_put_u32(skb, PEER_RETRY_MS, peer_retry_ms(peer)) ||
	    nla_put_u32(skb, PEER_LANES, lanes))
		return -EMSGSIZE;
	return 0;
}

static int peer_get(struct sk_buff *skb, struct netlink_callback *cb)
{
	const struct vmloop_peer *peer;
	long position = 0;
	void *head;

	mutex_lock(&vmloop_mutex);
	list_for_each_entry(peer, &vmloop_peers, list) {
		if (position++ < cb->args[0])
			continue;
		head = genlmsg_put(skb, NETLINK_CB(cb->skb).portid,
				   cb->nlh->nlmsg_seq, &family, NLM_F_MULTI,
				   CMD_PEER_GET);
		if (!head)
			break;
		if (peer_fill(skb, peer) || peer_fill_interfaces(skb, peer) ||
		    peer_fill_stats(skb, peer)) {
			genlmsg_cancel(skb, head);
			break;
		}
		genlmsg_end(skb, head);
		cb->args[0] = position;
	}
	mutex_unlock(&vmloop_mutex);
	return skb->len;
}

static int peer_reset(struct sk_buff *request, struct genl_info *info)
{
	struct vmloop_peer *peer;
	int err = -ENOENT;
	u64 id;

	if (!info->attrs[PEER_ID]) {
		NL_SET_ERR_MSG(info->extack, "attribute 'id' is missing");
		return -EINVAL;
	}
	id = nla_get_u64(info->attrs[PEER_ID]);

	mutex_lock(&vmloop_mutex);
	list_for_each_entry(peer, &vmloop_peers, list) {
		if (peer->id != id)
			continue;
		vmloop_peer_request_now(peer);
		err = 0;
	}
	mutex_unlock(&vmloop_mutex);
	if (err)
		NL_SET_ERR_MSG(info->extack, "no such peer");
	return err;
}

static const struct nla_policy status_policy[STATUS_MAX + 1] = {
	[STATUS_ENABLED] = NLA_POLICY_MAX(NLA_U8, 1),
};

static const struct nla_policy peer_policy[PEER_MAX + 1] = {
	[PEER_ID] = { .type = NLA_U64 },
};

static const struct genl_ops ops[] = {
	{
		.cmd = CMD_STATUS_GET,
		.doit = status_get,
	},
	{
		.cmd = CMD_STATUS_SET,
		.doit = status_set,
		.policy = status_policy,
		.maxattr = STATUS_MAX,
		.flags = GENL_ADMIN_PERM,
	},
	{
		.cmd = CMD_PEER_GET,
		.dumpit = peer_get,
	},
	{
		.cmd = CMD_PEER_RESET,
		.doit = peer_reset,
		.policy = peer_policy,
		.maxattr = PEER_MAX,
		.flags = GENL_ADMIN_PERM,
	},
};

static const struct genl_multicast_group groups[] = {
	{ .name = "events" },
};

static struct genl_family family __ro_after_init = {
	.name = "vmloop",
	.version = 1,
	.module = THIS_MODULE,
	.ops = ops,
	.n_ops = ARRAY_SIZE(ops),
	.resv_start_op = CMD_PEER_NTF + 1,
	.mcgrps = groups,
	.n_mcgrps = ARRAY_SIZE(groups),
	.parallel_ops = true,
};

/**
 * vmloop_netlink_peer_changed() - tell who listens that a peer's state changed
 * @peer: the peer
 *
 * Context: core mutex held.
 */
void vmloop_netlink_peer_changed(struct vmloop_peer *peer)
{
	struct sk_buff *skb;
	void *head;

	lockdep_assert_held(&vmloop_mutex);
	if (!genl_has_listeners(&family, &init_net, 0))
		return;
	skb = genlmsg_new(NLMSG_GOODSIZE, GFP_KERNEL);
	if (!skb)
		return;
	head = genlmsg_put(skb, 0, 0, &family, 0, CMD_PEER_NTF);
	if (!head || peer_fill(skb, peer)) {
		nlmsg_free(skb);
		return;
	}
	genlmsg_end(skb, head);
	genlmsg_multicast(&family, skb, 0, 0, GFP_KERNEL);
}

int vmloop_netlink_init(void)
{
	return genl_register_family(&family);
}

void vmloop_netlink_exit(void)
{
	genl_unregister_family(&family);
}
