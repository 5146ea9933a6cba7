// SPDX-License-Identifier: GPL-2.0
/*
 * owner.c - whom a connection's ring is for: the user and the cgroup that the core counts
 * it by.
 *
 * The user is the one who made the socket, or accepted it, by his number outside of all
 * containers. The cgroup is the one in which the socket, or the one that listened, was
 * made; of those above it none, since all users may be below one. What is in no cgroup
 * but the first is in none: without systemd that is everybody.
 *
 * Context: any.
 */
#include <linux/cgroup.h>
#include <linux/uidgid.h>
#include <linux/user_namespace.h>

#include "stream.h"

static u64 cgroup_of(const struct sock *sk)
{
#ifdef CONFIG_SOCK_CGROUP_DATA
	/* The socket holds it. */
	struct cgroup *cgroup = sock_cgroup_ptr((struct sock_cgroup_data *)&sk->sk_cgrp_data);

	if (cgroup && cgroup_parent(cgroup))
		return cgroup_id(cgroup);
#endif
	return 0;
}

/**
 * stream_owners() - whom a connection's ring is for
 * @sk: its socket
 * @owners: filled in, VMLOOP_OWNERS
 */
void stream_owners(const struct sock *sk, struct vmloop_owner *owners)
{
	u64 cgroup = cgroup_of(sk);

	owners[0] = (struct vmloop_owner){
		.kind = VMLOOP_OWNER_USER,
		.id = from_kuid(&init_user_ns, READ_ONCE(sk->sk_uid)),
	};
	owners[1] = (struct vmloop_owner){
		.kind = cgroup ? VMLOOP_OWNER_CGROUP : VMLOOP_OWNER_NONE,
		.id = cgroup,
	};
}
