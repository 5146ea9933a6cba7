// SPDX-License-Identifier: GPL-2.0
/*
 * accept.c - side 1's half of a channel's making, and the reader's of a window's: reads
 * the descriptor of what a peer granted, believes nothing in it, and maps that.
 *
 * Owns what it maps. Context: process context.
 *
 * Each page of the chain is copied once and then checked. How many there may
 * be follows from the number of pages in the first, which our own limit
 * bounds; that the grants are the peer's own is Xen's to check.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "xen.h"

/* What is accepted. */
struct bounds {
	u32 least;	/* pages */
	u32 most;
	bool readonly;
};

static bool is_good(const struct vmloop_xen_descriptor *descriptor,
		    const struct bounds *bounds)
{
	return descriptor->magic == VMLOOP_XEN_MAGIC &&
	       descriptor->major == VMLOOP_SHM_MAJOR &&
	       descriptor->pages >= bounds->least &&
	       descriptor->pages <= bounds->most &&
	       descriptor->size == (u64)descriptor->pages * VMLOOP_XEN_PAGE;
}

static void copy(struct vmloop_xen_descriptor *descriptor,
		 const struct vmloop_xen_mapping *mapping)
{
	memcpy(descriptor, mapping->base, sizeof(*descriptor));
	/* From here on only the copy counts: the peer can still write. */
	barrier();
}

/* Fetch the page of the chain that @descriptor names as the next one. */
static int follow(struct vmloop_xen_descriptor *descriptor, domid_t peer,
		  const struct bounds *bounds)
{
	struct vmloop_xen_mapping mapping = { .readonly = bounds->readonly };
	u32 pages = descriptor->pages;
	grant_ref_t more = descriptor->more;
	int err;

	err = vmloop_xen_map(&mapping, peer, &more, 1);
	if (err)
		return err;
	copy(descriptor, &mapping);
	vmloop_xen_unmap(&mapping);
	return is_good(descriptor, bounds) && descriptor->pages == pages ? 0 : -EPROTO;
}

/* All grants of it; the caller's to kvfree(), or an error pointer. */
static grant_ref_t *collect(struct vmloop_xen_descriptor *descriptor, domid_t peer,
			    const struct bounds *bounds)
{
	u32 pages = descriptor->pages;
	grant_ref_t *gref;
	u32 done, count;
	int err;

	gref = kvmalloc_array(pages, sizeof(*gref), GFP_KERNEL);
	if (!gref)
		return ERR_PTR(-ENOMEM);
	for (done = 0; done < pages; done += count) {
		err = done ? follow(descriptor, peer, bounds) : 0;
		if (err)
			goto err;
		count = min_t(u32, pages - done, VMLOOP_XEN_GREFS);
		err = -EPROTO;
		if (descriptor->count != count)
			goto err;
		memcpy(gref + done, descriptor->gref, count * sizeof(*gref));
	}
	return gref;

err:
	kvfree(gref);
	return ERR_PTR(err);
}

static int accept(struct vmloop_xen_accepted *accepted, domid_t peer, grant_ref_t first,
		  const struct bounds *bounds)
{
	struct vmloop_xen_descriptor *descriptor;
	grant_ref_t *gref;
	u32 pages;
	int err;

	*accepted = (struct vmloop_xen_accepted){
		.head.readonly = bounds->readonly,
		.region.readonly = bounds->readonly,
	};
	descriptor = kmalloc(sizeof(*descriptor), GFP_KERNEL);
	if (!descriptor)
		return -ENOMEM;
	err = vmloop_xen_map(&accepted->head, peer, &first, 1);
	if (err)
		goto out;
	copy(descriptor, &accepted->head);
	err = -EPROTO;
	if (!is_good(descriptor, bounds))
		goto out;

	pages = descriptor->pages;
	gref = collect(descriptor, peer, bounds);
	err = PTR_ERR_OR_ZERO(gref);
	if (err)
		goto out;
	err = vmloop_xen_map(&accepted->region, peer, gref, pages);
	kvfree(gref);
out:
	kfree(descriptor);
	if (err)
		vmloop_xen_accept_end(accepted);
	return err;
}

/**
 * vmloop_xen_accept() - map the region that a peer offers
 * @accepted: set on success
 * @peer: which domain offers it
 * @first: grant of the first page of its descriptor; any value
 *
 * Return: 0; -EPROTO for a descriptor that cannot be; -EFAULT for a grant
 * that Xen does not accept; -ENOMEM.
 */
int vmloop_xen_accept(struct vmloop_xen_accepted *accepted, domid_t peer,
		      grant_ref_t first)
{
	struct vmloop_shm_header tables, lane, least;
	struct bounds bounds = {};

	/* With tables there is more data, and less before it. */
	vmloop_xen_plan(&tables, vmloop_xen_ring_max(), true);
	vmloop_xen_plan(&lane, vmloop_xen_ring_max(), false);
	vmloop_xen_plan(&least, VMLOOP_XEN_RING_MIN, true);
	bounds.least = least.size / VMLOOP_XEN_PAGE;
	bounds.most = max(tables.size, lane.size) / VMLOOP_XEN_PAGE;
	return accept(accepted, peer, first, &bounds);
}

/**
 * vmloop_xen_accept_window() - map the window that a peer offers, to be read
 * @accepted: set on success
 * @peer: which domain offers it
 * @first: grant of the first page of its descriptor; any value
 * @size: bytes that it is to have, whole pages
 *
 * Return: as vmloop_xen_accept().
 */
int vmloop_xen_accept_window(struct vmloop_xen_accepted *accepted, domid_t peer,
			     grant_ref_t first, u32 size)
{
	const struct bounds bounds = {
		.least = size / VMLOOP_XEN_PAGE,
		.most = size / VMLOOP_XEN_PAGE,
		.readonly = true,
	};

	return accept(accepted, peer, first, &bounds);
}

/**
 * vmloop_xen_accept_end() - unmap a region or a window, and tell the peer so
 * @accepted: nobody here touches it any more; may be half made
 */
void vmloop_xen_accept_end(struct vmloop_xen_accepted *accepted)
{
	struct vmloop_xen_descriptor *head = accepted->head.base;

	vmloop_xen_unmap(&accepted->region);
	if (!head)
		return;
	if (!accepted->head.readonly) {
		/* Pairs with the acquire in vmloop_xen_offer_revoke(). */
		virt_store_release(&head->unmapped, 1);
	}
	vmloop_xen_unmap(&accepted->head);
}
