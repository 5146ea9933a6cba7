// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * owner.c - how much of the memory for rings an owner may have; see owner.h for the rules.
 */
#include "owner.h"

static bool is_one_of(const struct vmloop_owner *one, const struct vmloop_owner *owners)
{
	u32 i;

	if (one->kind == VMLOOP_OWNER_NONE)
		return false;
	for (i = 0; i < VMLOOP_OWNERS; i++)
		if (owners[i].kind == one->kind && owners[i].id == one->id)
			return true;
	return false;
}

/**
 * vmloop_owner_add() - a ring takes memory
 * @sum: added to, for those of its owners that the ring has as well
 * @owners: of the ring, VMLOOP_OWNERS
 * @size: its bytes
 */
void vmloop_owner_add(struct vmloop_owner_sum *sum, const struct vmloop_owner *owners, u32 size)
{
	u32 i;

	for (i = 0; i < VMLOOP_OWNERS; i++)
		if (is_one_of(&sum->owners[i], owners))
			sum->bytes[i] += size;
}

/* How much more an owner may have that has so many bytes. */
static u32 left_of(u32 bytes, u32 unused, u32 share)
{
	/* In pages: so many bytes times 100 are too many for a word. */
	u32 pages = (bytes + unused) / VMLOOP_SHM_PAGE;
	u32 limit = pages * share / 100 * VMLOOP_SHM_PAGE;

	if (limit < VMLOOP_OWNER_LEAST)
		limit = VMLOOP_OWNER_LEAST;
	return limit > bytes ? limit - bytes : 0;
}

/**
 * vmloop_owner_left() - how large one more ring may be
 * @sum: of all rings
 * @unused: bytes that no ring has
 * @share: percent that an owner may have of that and of its own, 100 at most
 *
 * Return: bytes, for the owner who has least left; all ones if there is no owner. Whether
 * there is such a ring is another question.
 */
u32 vmloop_owner_left(const struct vmloop_owner_sum *sum, u32 unused, u32 share)
{
	u32 least = ~0U, left, i;

	for (i = 0; i < VMLOOP_OWNERS; i++) {
		if (sum->owners[i].kind == VMLOOP_OWNER_NONE)
			continue;
		left = left_of(sum->bytes[i], unused, share);
		if (left < least)
			least = left;
	}
	return least;
}
