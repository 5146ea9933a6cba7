// SPDX-License-Identifier: GPL-2.0
/*
 * map.c - memory that a peer made: maps the pages that it granted, one behind the
 * other in kernel addresses, and unmaps them.
 *
 * Owns the mappings and what holds their place. Context: process context; whoever has a
 * mapping uses it alone.
 *
 * A guest whose physical addresses Xen translates (PVH, HVM) gives each page a
 * place among its own physical addresses, where it has no memory of its own;
 * what is mapped there is then mapped into kernel addresses as anything else.
 *
 * A PV guest owns its page tables, but Xen checks what it writes to them, and
 * refuses foreign pages. Xen itself writes such an entry when it is told where
 * it is (GNTMAP_contains_pte). So all that is needed is a range of kernel
 * addresses whose page tables exist and are empty. One place without memory,
 * mapped as often as there are pages, is just that: where a PV guest has no
 * memory, the kernel writes an empty entry. None was ever present, so there is
 * nothing to flush before Xen fills them in; Xen flushes when it takes them
 * away again.
 */
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include <asm/pgtable.h>
#include <asm/xen/hypercall.h>
#include <xen/balloon.h>
#include <xen/features.h>
#include <xen/page.h>
#include <xen/xen.h>

#include "xen.h"

/* Operations in one hypercall. Those to unmap are on the stack. */
#define MAP_BATCH	64
#define UNMAP_BATCH	32

static bool is_translated(void)
{
	return xen_feature(XENFEAT_auto_translated_physmap);
}

static u32 map_flags(const struct vmloop_xen_mapping *mapping)
{
	return GNTMAP_host_map | (is_translated() ? 0 : GNTMAP_contains_pte) |
	       (mapping->readonly ? GNTMAP_readonly : 0);
}

#ifdef CONFIG_XEN_PV
/* The page table entry of page @i, or NULL. */
static pte_t *entry_of(const struct vmloop_xen_mapping *mapping, unsigned int i)
{
	unsigned int level;
	pte_t *entry;

	entry = lookup_address((unsigned long)mapping->base + i * PAGE_SIZE,
			       &level);
	return entry && level == PG_LEVEL_4K ? entry : NULL;
}

/* Whether vmap() has left page table entries for Xen to fill in. */
static bool is_empty(const struct vmloop_xen_mapping *mapping)
{
	pte_t *entry = entry_of(mapping, 0);

	return entry && pte_none(*entry);
}

static phys_addr_t entry_address(const struct vmloop_xen_mapping *mapping,
				 unsigned int i)
{
	pte_t *entry = entry_of(mapping, i);

	return entry ? arbitrary_virt_to_machine(entry).maddr : 0;
}
#else
static bool is_empty(const struct vmloop_xen_mapping *mapping)
{
	return false;
}

static phys_addr_t entry_address(const struct vmloop_xen_mapping *mapping,
				 unsigned int i)
{
	return 0;
}
#endif

/* Where Xen is to map page @i: a place, or the page table entry. 0 if none. */
static phys_addr_t host_address(const struct vmloop_xen_mapping *mapping,
				unsigned int i)
{
	/* Turned into a physical address by gnttab_set_map_op(). */
	if (is_translated())
		return (unsigned long)pfn_to_kaddr(page_to_pfn(mapping->page[i]));
	return entry_address(mapping, i);
}

/* Returns 0 or -EFAULT; how each of them went is in its status. */
static int map_batch(struct vmloop_xen_mapping *mapping, domid_t peer,
		     const grant_ref_t *gref, unsigned int first,
		     unsigned int count, struct gnttab_map_grant_ref *op)
{
	phys_addr_t address;
	unsigned int i;
	int err = 0;

	for (i = 0; i < count; i++) {
		address = host_address(mapping, first + i);
		if (!address)
			return -EFAULT;
		gnttab_set_map_op(&op[i], address, map_flags(mapping),
				  gref[first + i], peer);
	}
	/*
	 * Not gnttab_batch_map(): for a page that the host has swapped out it
	 * would wait, half a minute each, and a peer offers thousands.
	 */
	if (HYPERVISOR_grant_table_op(GNTTABOP_map_grant_ref, op, count))
		return -EFAULT;
	for (i = 0; i < count; i++) {
		if (op[i].status == GNTST_okay) {
			mapping->handle[first + i] = op[i].handle;
			atomic_inc(&vmloop_xen_mapped);
		} else {
			err = -EFAULT;
		}
	}
	return err;
}

/* Returns how many pages Xen would not unmap; there ought to be none. */
static unsigned int unmap_all(struct vmloop_xen_mapping *mapping)
{
	struct gnttab_unmap_grant_ref op[UNMAP_BATCH];
	unsigned int index[ARRAY_SIZE(op)];
	unsigned int n = 0, stuck = 0;
	unsigned int i, j;

	for (i = 0; i < mapping->count; i++) {
		if (mapping->handle[i] != INVALID_GRANT_HANDLE) {
			gnttab_set_unmap_op(&op[n], host_address(mapping, i),
					    map_flags(mapping), mapping->handle[i]);
			op[n].status = GNTST_general_error;
			index[n++] = i;
		}
		if (n < ARRAY_SIZE(op) && i + 1 < mapping->count)
			continue;
		if (n && HYPERVISOR_grant_table_op(GNTTABOP_unmap_grant_ref,
						   op, n))
			stuck += n;
		else
			for (j = 0; j < n; j++) {
				if (op[j].status != GNTST_okay) {
					stuck++;
					continue;
				}
				mapping->handle[index[j]] = INVALID_GRANT_HANDLE;
				atomic_dec(&vmloop_xen_mapped);
			}
		n = 0;
		cond_resched();
	}
	return stuck;
}

/* A range of kernel addresses for @count pages, with nothing behind it. */
static int place(struct vmloop_xen_mapping *mapping, unsigned int count)
{
	struct page **at;
	unsigned int i;
	int err;

	mapping->count = count;
	mapping->places = is_translated() ? count : 1;
	mapping->handle = kvmalloc_array(count, sizeof(*mapping->handle),
					 GFP_KERNEL);
	/* One for each page in any case: vmap() wants to see so many. */
	mapping->page = kvcalloc(count, sizeof(*mapping->page), GFP_KERNEL);
	at = mapping->page;
	if (!mapping->handle || !at) {
		err = -ENOMEM;
		goto err_alloc;
	}
	for (i = 0; i < count; i++)
		mapping->handle[i] = INVALID_GRANT_HANDLE;

	err = xen_alloc_unpopulated_pages(mapping->places, at);
	if (err)
		goto err_alloc;
	for (i = mapping->places; i < count; i++)
		at[i] = at[0];
	mapping->base = vmap(at, count, VM_MAP, mapping->readonly ? PAGE_KERNEL_RO :
								    PAGE_KERNEL);
	if (!mapping->base) {
		err = -ENOMEM;
		goto err_vmap;
	}
	/* The same place behind all of them: one is enough to look at. */
	if (!is_translated() && !is_empty(mapping)) {
		pr_err_once("vmloop_xen: this kernel has memory where it should have none\n");
		err = -EOPNOTSUPP;
		goto err_empty;
	}
	return 0;

err_empty:
	vunmap(mapping->base);
err_vmap:
	xen_free_unpopulated_pages(mapping->places, at);
err_alloc:
	kvfree(mapping->page);
	kvfree(mapping->handle);
	*mapping = (struct vmloop_xen_mapping){ };
	return err;
}

/**
 * vmloop_xen_map() - map what a peer granted
 * @mapping: set on success; all zero before, but for @readonly
 * @peer: which domain granted it
 * @gref: its grants; any value, Xen checks them
 * @count: how many
 *
 * Return: 0 or a negative errno: -EFAULT for a grant that Xen does not accept.
 */
int vmloop_xen_map(struct vmloop_xen_mapping *mapping, domid_t peer,
		   const grant_ref_t *gref, unsigned int count)
{
	struct gnttab_map_grant_ref *op;
	unsigned int first;
	int err;

	op = kcalloc(MAP_BATCH, sizeof(*op), GFP_KERNEL);
	if (!op)
		return -ENOMEM;
	err = place(mapping, count);
	for (first = 0; !err && first < count; first += MAP_BATCH) {
		err = map_batch(mapping, peer, gref, first,
				min_t(unsigned int, count - first, MAP_BATCH),
				op);
		cond_resched();
	}
	kfree(op);
	if (err)
		vmloop_xen_unmap(mapping);
	return err;
}

/**
 * vmloop_xen_unmap() - unmap what was mapped
 * @mapping: nobody touches its memory any more; may be empty
 */
void vmloop_xen_unmap(struct vmloop_xen_mapping *mapping)
{
	unsigned int stuck;

	if (!mapping->base)
		return;
	stuck = unmap_all(mapping);
	if (stuck) {
		/* Its place must not be given to anything else. */
		pr_err("vmloop_xen: Xen would not unmap %u of %u pages: they are lost\n",
		       stuck, mapping->count);
	} else {
		vunmap(mapping->base);
		xen_free_unpopulated_pages(mapping->places, mapping->page);
	}
	kvfree(mapping->page);
	kvfree(mapping->handle);
	*mapping = (struct vmloop_xen_mapping){ };
}
