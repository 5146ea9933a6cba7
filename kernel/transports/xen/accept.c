// SPDX-License-Identifier: GPL-2.0
/*
 * accept.c - side 1's half of a channel's making: reads the descriptor of the
 * region that a peer granted, believes nothing in it, and maps the region.
 *
 * Owns what it maps. Context: works of our queue.
 *
 * Each page of the chain is copied once and then checked. How many there may
 * be follows from the number of pages in the first, which our own limit
 * bounds; that the grants are the peer's own is Xen's to check.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "xen.h"

static bool is_good(const struct vmloop_xen_descriptor *descriptor)
{
	struct vmloop_shm_header tables, lane, least;
	u64 most;

	/* With tables there is more data, and less before it. */
	vmloop_xen_plan(&tables, vmloop_xen_ring_max(), true);
	vmloop_xen_plan(&lane, vmloop_xen_ring_max(), false);
	most = max(tables.size, lane.size);
	vmloop_xen_plan(&least, VMLOOP_XEN_RING_MIN, true);
	return descriptor->magic == VMLOOP_XEN_MAGIC &&
	       descriptor->major == VMLOOP_SHM_MAJOR &&
	       descriptor->pages >= least.size / VMLOOP_XEN_PAGE &&
	       descriptor->pages <= most / VMLOOP_XEN_PAGE &&
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
static int follow(struct vmloop_xen_descriptor *descriptor, domid_t peer)
{
	struct vmloop_xen_mapping mapping = { };
	u32 pages = descriptor->pages;
	grant_ref_t more = descriptor->more;
	int err;

	err = vmloop_xen_map(&mapping, peer, &more, 1);
	if (err)
		return err;
	copy(descriptor, &mapping);
	vmloop_xen_unmap(&mapping);
	return is_good(descriptor) && descriptor->pages == pages ? 0 : -EPROTO;
}

/* All grants of the region; the caller's to kvfree(), or an error pointer. */
static grant_ref_t *collect(struct vmloop_xen_descriptor *descriptor,
			    domid_t peer)
{
	u32 pages = descriptor->pages;
	grant_ref_t *gref;
	u32 done, count;
	int err;

	gref = kvmalloc_array(pages, sizeof(*gref), GFP_KERNEL);
	if (!gref)
		return ERR_PTR(-ENOMEM);
	for (done = 0; done < pages; done += count) {
		err = done ? follow(descriptor, peer) : 0;
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
	struct vmloop_xen_descriptor *descriptor;
	grant_ref_t *gref;
	u32 pages;
	int err;

	*accepted = (struct vmloop_xen_accepted){ };
	descriptor = kmalloc(sizeof(*descriptor), GFP_KERNEL);
	if (!descriptor)
		return -ENOMEM;
	err = vmloop_xen_map(&accepted->head, peer, &first, 1);
	if (err)
		goto out;
	copy(descriptor, &accepted->head);
	err = -EPROTO;
	if (!is_good(descriptor))
		goto out;

	pages = descriptor->pages;
	gref = collect(descriptor, peer);
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
 * vmloop_xen_accept_end() - unmap a region, and tell the peer so
 * @accepted: nobody here touches its region any more; may be half made
 */
void vmloop_xen_accept_end(struct vmloop_xen_accepted *accepted)
{
	struct vmloop_xen_descriptor *head = accepted->head.base;

	vmloop_xen_unmap(&accepted->region);
	if (!head)
		return;
	/* Pairs with the acquire in vmloop_xen_offer_revoke(). */
	virt_store_release(&head->unmapped, 1);
	vmloop_xen_unmap(&accepted->head);
}
