/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * descriptor.h - how side 0 of a channel on Xen tells side 1 which pages the
 * region is made of, and the owner of a window the reader. docs/protocol.md, section 8, is
 * the normative text.
 *
 * The descriptor is a chain of pages, each granted like the region's own, or the window's.
 * Its maker can write to it at any time, and the peer can to that of a region: what is read
 * from it is hostile.
 *
 * Plain C with no dependency but fixed-width integers, like vmloop_shm.h.
 */
#ifndef VMLOOP_XEN_DESCRIPTOR_H
#define VMLOOP_XEN_DESCRIPTOR_H

#include <linux/types.h>

#define VMLOOP_XEN_MAGIC	0x6e78706f6f6c6d76ULL	/* "vmloopxn" */
#define VMLOOP_XEN_PAGE		4096	/* unit of grants */
#define VMLOOP_XEN_GREFS	1014	/* grants in one page of the chain */

/**
 * struct vmloop_xen_descriptor - one page of the chain
 * @magic: VMLOOP_XEN_MAGIC
 * @major: VMLOOP_SHM_MAJOR of side 0
 * @minor: VMLOOP_SHM_MINOR of side 0
 * @pages: pages of the whole region
 * @size: bytes of the whole region, @pages times VMLOOP_XEN_PAGE
 * @more: grant of the chain's next page; 0 in the last
 * @count: entries of @gref in use in this page
 * @unmapped: first page only: side 1 stores 1 once it has unmapped all but
 *	this page
 * @reserved: zero
 * @gref: grants of the region's pages, in order
 *
 * All pages of a chain say the same @pages and @size. All but @unmapped is
 * written by side 0, before the grant of the first page is offered.
 */
struct vmloop_xen_descriptor {
	__u64 magic;
	__u16 major;
	__u16 minor;
	__u32 pages;
	__u64 size;
	__u32 more;
	__u32 count;
	__u32 unmapped;
	__u32 reserved;
	__u32 gref[VMLOOP_XEN_GREFS];
};

#endif /* VMLOOP_XEN_DESCRIPTOR_H */
