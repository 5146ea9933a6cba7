// SPDX-License-Identifier: GPL-2.0
/*
 * grant.c - memory that we make: side 0's region, either side's windows. Grants every page
 * to exactly one peer, and takes that back.
 *
 * Owns the offers and the quarantine. Context: works of our queue, and for windows
 * whatever holds the core mutex; the quarantine has a mutex of its own.
 *
 * Xen says whether a page is still mapped, and only then is it given back: a
 * page whose grant cannot be revoked stays allocated, in the quarantine, and
 * is tried again every second. So a peer that holds on to pages can keep those
 * pages from us, and nothing more; it gets no other region meanwhile.
 */
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include <xen/page.h>

#include "xen.h"

#define QUARANTINE_POLL	HZ

/* Entries that a page of the grant table has at least (version 2). */
#define GRANTS_A_FRAME	256

static unsigned int max_grants;
module_param(max_grants, uint, 0644);
MODULE_PARM_DESC(max_grants, "pages granted to peers at most; 0: half of what Xen allows");

static LIST_HEAD(quarantine);
static DEFINE_MUTEX(quarantine_mutex);	/* protects quarantine; a leaf */

/* Making ----------------------------------------------------------------- */

/*
 * Grants are also what disks and network devices live on: a guest that spent
 * all of them on channels could not even bring up another interface.
 */
static bool take_budget(unsigned int pages)
{
	unsigned int most = READ_ONCE(max_grants) ?:
			    gnttab_max_grant_frames() * GRANTS_A_FRAME;
	unsigned int used = atomic_add_return(pages, &vmloop_xen_granted);

	if (used <= most)
		return true;
	atomic_sub(pages, &vmloop_xen_granted);
	return false;
}

static bool is_in_quarantine(domid_t peer)
{
	const struct vmloop_xen_offer *offer;
	bool found = false;

	mutex_lock(&quarantine_mutex);
	list_for_each_entry(offer, &quarantine, list)
		found |= offer->peer == peer;
	mutex_unlock(&quarantine_mutex);
	return found;
}

static void offer_free(struct vmloop_xen_offer *offer)
{
	vfree(offer->area);
	kvfree(offer->page);
	kvfree(offer->gref);
	kfree(offer);
}

/**
 * vmloop_xen_plan() - the layout of a region that is made or accepted
 * @header: filled in
 * @ring_size: bytes of each ring of packets
 * @lanes: of version 2, with a quarter of that for all other lanes
 *
 * Context: any.
 */
void vmloop_xen_plan(struct vmloop_shm_header *header, u32 ring_size, bool lanes)
{
	if (lanes)
		vmloop_region_plan(header, VMLOOP_REGION_LANES(ring_size),
				   ring_size + ring_size / 4);
	else
		vmloop_region_plan(header, 0, ring_size);
}

static void fill_descriptor(struct vmloop_xen_offer *offer, unsigned int chain)
{
	unsigned int pages = offer->total - chain;
	struct vmloop_xen_descriptor *descriptor;
	unsigned int i, first;

	for (i = 0; i < chain; i++) {
		descriptor = offer->area + i * PAGE_SIZE;
		first = i * VMLOOP_XEN_GREFS;
		descriptor->magic = VMLOOP_XEN_MAGIC;
		descriptor->major = VMLOOP_SHM_MAJOR;
		descriptor->minor = VMLOOP_SHM_MINOR;
		descriptor->pages = pages;
		descriptor->size = offer->size;
		descriptor->more = i + 1 < chain ? offer->gref[i + 1] : 0;
		descriptor->count = min_t(unsigned int, pages - first,
					  VMLOOP_XEN_GREFS);
		memcpy(descriptor->gref, offer->gref + chain + first,
		       descriptor->count * sizeof(*descriptor->gref));
	}
}

static struct vmloop_xen_offer *offer_alloc(unsigned int total)
{
	struct vmloop_xen_offer *offer;
	unsigned int i;

	offer = kzalloc(sizeof(*offer), GFP_KERNEL);
	if (!offer)
		return NULL;
	offer->total = total;
	offer->page = kvcalloc(total, sizeof(*offer->page), GFP_KERNEL);
	offer->gref = kvcalloc(total, sizeof(*offer->gref), GFP_KERNEL);
	/*
	 * One behind the other for us; to Xen every page is one for itself.
	 * A guest that is short of memory gets a smaller ring, not a fight.
	 */
	offer->area = __vmalloc(total * PAGE_SIZE, GFP_KERNEL | __GFP_ZERO |
						   __GFP_NORETRY | __GFP_NOWARN);
	if (!offer->page || !offer->gref || !offer->area) {
		offer_free(offer);
		return NULL;
	}
	for (i = 0; i < total; i++)
		offer->page[i] = vmalloc_to_page(offer->area + i * PAGE_SIZE);
	return offer;
}

/* So many pages, behind those of their descriptor. */
static struct vmloop_xen_offer *grant(domid_t peer, unsigned int pages, bool readonly)
{
	unsigned int chain = DIV_ROUND_UP(pages, VMLOOP_XEN_GREFS);
	unsigned int total = chain + pages;
	struct vmloop_xen_offer *offer;
	grant_ref_t head;
	unsigned int i;

	BUILD_BUG_ON(sizeof(struct vmloop_xen_descriptor) != VMLOOP_XEN_PAGE);
	BUILD_BUG_ON(offsetof(struct vmloop_xen_descriptor, unmapped) != 32);
	BUILD_BUG_ON(offsetof(struct vmloop_xen_descriptor, gref) != 40);
	BUILD_BUG_ON(PAGE_SIZE != VMLOOP_XEN_PAGE);

	if (!take_budget(total))
		return ERR_PTR(-ENOSPC);
	offer = offer_alloc(total);
	if (!offer) {
		atomic_sub(total, &vmloop_xen_granted);
		return ERR_PTR(-ENOMEM);
	}
	offer->peer = peer;
	offer->base = offer->area + chain * PAGE_SIZE;
	offer->size = (size_t)pages * VMLOOP_XEN_PAGE;
	offer->pages = offer->page + chain;

	if (gnttab_alloc_grant_references(total, &head)) {
		atomic_sub(total, &vmloop_xen_granted);
		offer_free(offer);
		return ERR_PTR(-ENOSPC);
	}
	for (i = 0; i < total; i++) {
		offer->gref[i] = gnttab_claim_grant_reference(&head);
		gnttab_grant_foreign_access_ref(offer->gref[i], peer,
						xen_page_to_gfn(offer->page[i]),
						readonly);
	}
	fill_descriptor(offer, chain);
	return offer;
}

static struct vmloop_xen_offer *try_to_make(domid_t peer, u32 ring_size,
					    bool lanes)
{
	struct vmloop_shm_header header;
	struct vmloop_xen_offer *offer;

	vmloop_xen_plan(&header, ring_size, lanes);
	offer = grant(peer, header.size / VMLOOP_XEN_PAGE, false);
	/* Nobody has heard of it so far; whoever maps it by a guess finds no region. */
	if (!IS_ERR(offer))
		memcpy(offer->base, &header, sizeof(header));
	return offer;
}

/**
 * vmloop_xen_window_make() - make a window and grant it to a peer, to be read
 * @peer: to which domain
 * @size: bytes, whole pages
 *
 * Return: the offer, or an error pointer: -EBUSY while the peer holds on to
 * pages of an earlier one, -ENOMEM, -ENOSPC.
 */
struct vmloop_xen_offer *vmloop_xen_window_make(domid_t peer, u32 size)
{
	if (is_in_quarantine(peer))
		return ERR_PTR(-EBUSY);
	return grant(peer, size / VMLOOP_XEN_PAGE, true);
}

/**
 * vmloop_xen_offer_make() - make a region and grant it to a peer
 * @peer: to which domain
 * @ring_size: bytes of each ring that the host wants; halved until there are
 *	memory and grants enough
 * @lanes: of version 2; else of version 1
 *
 * Return: the offer, or an error pointer: -EBUSY while the peer holds on to
 * pages of an earlier one, -ENOMEM, -ENOSPC.
 */
struct vmloop_xen_offer *vmloop_xen_offer_make(domid_t peer, u32 ring_size,
					       bool lanes)
{
	struct vmloop_xen_offer *offer;

	if (is_in_quarantine(peer))
		return ERR_PTR(-EBUSY);
	ring_size = clamp_t(u32, ring_size, VMLOOP_XEN_RING_MIN,
			    vmloop_xen_ring_max());
	ring_size = rounddown_pow_of_two(ring_size);
	do {
		offer = try_to_make(peer, ring_size, lanes);
		ring_size /= 2;
	} while (IS_ERR(offer) && ring_size >= VMLOOP_XEN_RING_MIN);
	return offer;
}

/* Revoking --------------------------------------------------------------- */

/*
 * Revokes what can be; stops at the first page that is still mapped unless
 * @all of them are to be tried. Returns how many are known to be left.
 */
static unsigned int revoke(struct vmloop_xen_offer *offer, bool all)
{
	unsigned int left = 0;
	unsigned int i;

	for (i = 0; i < offer->total; i++) {
		if (offer->gref[i] == INVALID_GRANT_REF)
			continue;
		/* Says nothing to the log where it fails, unlike its sisters. */
		if (!gnttab_try_end_foreign_access(offer->gref[i])) {
			left++;
			if (!all)
				break;
			continue;
		}
		offer->gref[i] = INVALID_GRANT_REF;
		atomic_dec(&vmloop_xen_granted);
		if (!offer->area) {
			put_page(offer->page[i]);
			atomic_dec(&vmloop_xen_quarantined);
		}
	}
	return left;
}

/**
 * vmloop_xen_offer_revoke() - try to take back what was granted
 * @offer: nobody here touches its region any more
 *
 * Return: true if nothing is granted any more; vmloop_xen_offer_end() is then
 * the only thing left to do with it.
 */
bool vmloop_xen_offer_revoke(struct vmloop_xen_offer *offer)
{
	struct vmloop_xen_descriptor *head = offer->area;
	bool unmapped;

	/*
	 * The first page of the descriptor is the first that we try and the
	 * last that a peer unmaps, so while it is mapped the rest is, too.
	 * Pairs with the release in vmloop_xen_accept_end(): what the peer
	 * wrote last is in the region. Only a hint: Xen knows.
	 */
	unmapped = virt_load_acquire(&head->unmapped);
	return !revoke(offer, unmapped);
}

static void quarantine_work_fn(struct work_struct *work)
{
	struct delayed_work *again = to_delayed_work(work);
	struct vmloop_xen_offer *offer, *next;
	bool more;

	mutex_lock(&quarantine_mutex);
	list_for_each_entry_safe(offer, next, &quarantine, list) {
		if (revoke(offer, true))
			continue;
		pr_info_ratelimited("vmloop_xen: domain %u has let go of its last page\n",
				    offer->peer);
		list_del(&offer->list);
		offer_free(offer);
	}
	more = !list_empty(&quarantine);
	mutex_unlock(&quarantine_mutex);
	if (more)
		queue_delayed_work(vmloop_xen_queue, again, QUARANTINE_POLL);
}

static DECLARE_DELAYED_WORK(quarantine_work, quarantine_work_fn);

/**
 * vmloop_xen_offer_end() - let go of an offer, whatever the peer does
 * @offer: nobody here touches its region any more; gone after return
 *
 * What cannot be revoked goes into the quarantine; all else is freed.
 */
void vmloop_xen_offer_end(struct vmloop_xen_offer *offer)
{
	unsigned int left = revoke(offer, true);
	unsigned int i;

	if (!left) {
		offer_free(offer);
		return;
	}
	/* The pages outlive the area by a reference of their own. */
	for (i = 0; i < offer->total; i++)
		if (offer->gref[i] != INVALID_GRANT_REF)
			get_page(offer->page[i]);
	vfree(offer->area);
	offer->area = NULL;
	offer->base = NULL;
	atomic_add(left, &vmloop_xen_quarantined);
	pr_warn_ratelimited("vmloop_xen: domain %u still maps %u pages of a channel or a window that is closed: they stay aside until it lets go\n",
			    offer->peer, left);
	mutex_lock(&quarantine_mutex);
	list_add_tail(&offer->list, &quarantine);
	mutex_unlock(&quarantine_mutex);
	queue_delayed_work(vmloop_xen_queue, &quarantine_work, QUARANTINE_POLL);
}

/**
 * vmloop_xen_grant_exit() - leave the quarantine to the kernel
 *
 * The kernel goes on to try, by a timer of its own, and frees each page when
 * its grant is revoked: nothing of this module is needed for that.
 */
void vmloop_xen_grant_exit(void)
{
	struct vmloop_xen_offer *offer, *next;
	unsigned int left, i;

	cancel_delayed_work_sync(&quarantine_work);
	list_for_each_entry_safe(offer, next, &quarantine, list) {
		left = revoke(offer, true);
		if (left)
			pr_warn("vmloop_xen: domain %u still maps %u pages: left to the kernel\n",
				offer->peer, left);
		for (i = 0; i < offer->total; i++)
			if (offer->gref[i] != INVALID_GRANT_REF)
				gnttab_end_foreign_access(offer->gref[i],
							  offer->page[i]);
		list_del(&offer->list);
		offer_free(offer);
	}
}
