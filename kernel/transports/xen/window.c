// SPDX-License-Identifier: GPL-2.0
/*
 * window.c - windows on Xen: the owner grants their pages to the peer, to be read; the
 * handle is the grant of the descriptor's first page, as of a region (grant.c, accept.c).
 *
 * Owns nothing: each window's offer or mapping is the core's to keep. Context: core mutex
 * held. A page is used again only when Xen says that the peer does not map it any more.
 */
#include <linux/sizes.h>
#include <linux/slab.h>

#include "xen.h"

/* Each page is a grant of ours, and a page table entry of the peer's: 4 hypercalls a MiB. */
#define WINDOW_MAX	SZ_16M

static int window_make(struct vmloop_link *link, u32 number, u64 size,
		       struct vmloop_window_memory *memory)
{
	struct vmloop_xen_offer *offer;

	if (size > WINDOW_MAX)
		return -EINVAL;
	if (vmloop_xen_is_revoking(link))
		return -EBUSY;
	offer = vmloop_xen_window_make(vmloop_xen_peer_of(link), size);
	if (IS_ERR(offer))
		return PTR_ERR(offer);
	*memory = (struct vmloop_window_memory){
		.base = offer->base,
		.pages = offer->pages,
		.handle = offer->gref[0],
		.priv = offer,
	};
	return 0;
}

static void window_free(struct vmloop_link *link, u32 number,
			struct vmloop_window_memory *memory)
{
	struct vmloop_xen_offer *offer = memory->priv;

	/* An honest peer has let go before it says so: only the end of a channel leaves some. */
	if (vmloop_xen_offer_revoke(offer))
		vmloop_xen_offer_end(offer);
	else
		vmloop_xen_revoke_later(link, offer);
}

static int window_map(struct vmloop_link *link, u32 number, u64 size,
		      struct vmloop_window_memory *memory)
{
	struct vmloop_xen_accepted *accepted;
	int err;

	if (size > WINDOW_MAX || memory->handle > U32_MAX)
		return -EINVAL;
	accepted = kzalloc(sizeof(*accepted), GFP_KERNEL);
	if (!accepted)
		return -ENOMEM;
	err = vmloop_xen_accept_window(accepted, vmloop_xen_peer_of(link), memory->handle,
				       size);
	if (err) {
		kfree(accepted);
		return err;
	}
	/* Pages of another domain that a PV guest maps are none of its own. */
	memory->base = accepted->region.base;
	memory->priv = accepted;
	return 0;
}

static void window_unmap(struct vmloop_link *link, u32 number,
			 struct vmloop_window_memory *memory)
{
	struct vmloop_xen_accepted *accepted = memory->priv;

	vmloop_xen_accept_end(accepted);
	kfree(accepted);
}

const struct vmloop_window_ops vmloop_xen_windows = {
	.make = window_make,
	.free = window_free,
	.map = window_map,
	.unmap = window_unmap,
};
