/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * owner.h - for whom rings are, and how much of the memory for them each may have.
 *
 * An owner is what a path counts rings by: a user, a cgroup. It may have a share of what
 * is free or its own already. So something is always left for one more owner, however many
 * came before. With a share of 75 percent one owner alone has that at most, each of two
 * 3/7, each of three 3/10. A ring of packets has no owner, and its memory is in no share.
 *
 * Nothing is counted but the rings that there are: sum them up, and ask. So no count is
 * to be kept, and none can be wrong.
 *
 * Pure, as ring.h: it works on numbers.
 */
#ifndef VMLOOP_OWNER_H
#define VMLOOP_OWNER_H

#include "ring_os.h"
#include "vmloop_shm.h"

/* What an owner is. Those of all paths are the same ones. */
enum vmloop_owner_kind {
	VMLOOP_OWNER_NONE,
	VMLOOP_OWNER_USER,		/* a user's number outside of all containers */
	VMLOOP_OWNER_CGROUP,		/* a cgroup's number */
};

/**
 * struct vmloop_owner - what a ring is counted by
 * @kind: enum vmloop_owner_kind
 * @id: which one of that kind
 */
struct vmloop_owner {
	u32 kind;
	u64 id;
};

/* Owners that a ring has, at most. */
#define VMLOOP_OWNERS		2

/* A share is never less than this: less is no ring that is worth it. */
#define VMLOOP_OWNER_LEAST	(64U << 10)

/**
 * struct vmloop_owner_sum - what some owners have
 * @owners: VMLOOP_OWNERS of them
 * @bytes: what each has
 */
struct vmloop_owner_sum {
	const struct vmloop_owner *owners;
	u32 bytes[VMLOOP_OWNERS];
};

void vmloop_owner_add(struct vmloop_owner_sum *sum, const struct vmloop_owner *owners, u32 size);
u32 vmloop_owner_left(const struct vmloop_owner_sum *sum, u32 unused, u32 share);

#endif /* VMLOOP_OWNER_H */
