/* SPDX-License-Identifier: GPL-2.0 */
/*
 * xen.h - what the files of the Xen transport share.
 * docs/protocol.md, section 8.
 *
 * Nearly all of it runs on one ordered workqueue, so that what only works of
 * that queue touch needs no lock: "queue" in what follows. The core calls the
 * transport's operations under its mutex; they take a spin lock of ours, note
 * what is wanted, and queue a work. Only windows are granted, mapped and unmapped
 * right there. XenStore is talked to from the queue, and when the module comes and
 * goes, or the guest is suspended.
 *
 * Lock order: the core mutex, then channels_lock, says_lock or the quarantine's mutex, which
 * are leaves and never held at the same time.
 */
#ifndef VMLOOP_XEN_H
#define VMLOOP_XEN_H

#include <linux/workqueue.h>

#include <xen/grant_table.h>
#include <xen/interface/event_channel.h>
#include <xen/interface/xen.h>

#include "descriptor.h"
#include "vmloop.h"

/* Smallest ring that is worth a channel, and where its data begins. */
#define VMLOOP_XEN_RING_MIN	(64 * 1024)

/* main.c */
extern struct vmloop_transport vmloop_xen_transport;
extern struct workqueue_struct *vmloop_xen_queue;
extern atomic_t vmloop_xen_granted;
extern atomic_t vmloop_xen_quarantined;
extern atomic_t vmloop_xen_mapped;
extern atomic_t vmloop_xen_channels;
extern atomic_t vmloop_xen_ignored;
extern atomic_t vmloop_xen_pause;
u32 vmloop_xen_ring_max(void);
int vmloop_xen_start(void);
void vmloop_xen_stop(bool hasty);

/* suspend.c; while the module comes and goes */
int vmloop_xen_suspend_init(void);
void vmloop_xen_suspend_exit(void);

/* text.c: the words of a node's value; any context */
bool vmloop_xen_word(const char **at, char *word, size_t size);
bool vmloop_xen_name(const char **at, char *name, size_t size);
bool vmloop_xen_number(const char **at, u64 max, u64 *number);
bool vmloop_xen_random(const char **at, u64 *number);
bool vmloop_xen_mac(const char **at, u8 *mac);
bool vmloop_xen_ip(const char *word, struct vmloop_msg_address *address);

/**
 * struct vmloop_xen_offer - a region or a window that we made, and granted to one peer
 * @list: in the quarantine, or among its channel's windows that are to be revoked
 * @peer: to which domain
 * @area: descriptor pages, then the region; NULL in the quarantine
 * @base: the region
 * @size: bytes of the region
 * @total: pages of @area
 * @page: those pages
 * @pages: those of the region alone
 * @deadline: of a window's that is to be revoked: how long it is tried, in jiffies
 * @gref: their grants, INVALID_GRANT_REF for those that are revoked
 */
struct vmloop_xen_offer {
	struct list_head list;
	domid_t peer;
	void *area;
	void *base;
	size_t size;
	unsigned int total;
	struct page **page;
	struct page **pages;
	grant_ref_t *gref;
	unsigned long deadline;
};

/* grant.c; queue, windows of the core mutex as well; the last runs while the queue is empty */
void vmloop_xen_plan(struct vmloop_shm_header *header, u32 ring_size,
		     bool lanes);
struct vmloop_xen_offer *vmloop_xen_offer_make(domid_t peer, u32 ring_size,
					       bool lanes);
struct vmloop_xen_offer *vmloop_xen_window_make(domid_t peer, u32 size);
bool vmloop_xen_offer_revoke(struct vmloop_xen_offer *offer);
void vmloop_xen_offer_end(struct vmloop_xen_offer *offer);
void vmloop_xen_grant_exit(void);

/**
 * struct vmloop_xen_mapping - pages of a peer, mapped one behind the other
 * @base: where; NULL for none
 * @count: pages mapped
 * @page: places in our physical address space that they take, @places of them
 * @places: one for each page; on PV a single one, which only keeps the place
 *	in the page tables
 * @handle: what Xen calls each mapping
 * @readonly: nothing can be written there; set by the caller, before
 */
struct vmloop_xen_mapping {
	void *base;
	unsigned int count;
	struct page **page;
	unsigned int places;
	grant_handle_t *handle;
	bool readonly;
};

/* map.c; process context */
int vmloop_xen_map(struct vmloop_xen_mapping *mapping, domid_t peer,
		   const grant_ref_t *gref, unsigned int count);
void vmloop_xen_unmap(struct vmloop_xen_mapping *mapping);

/**
 * struct vmloop_xen_accepted - a region or a window that a peer made, mapped
 * @head: first page of its descriptor
 * @region: the region
 */
struct vmloop_xen_accepted {
	struct vmloop_xen_mapping head;
	struct vmloop_xen_mapping region;
};

/* accept.c; process context */
int vmloop_xen_accept(struct vmloop_xen_accepted *accepted, domid_t peer,
		      grant_ref_t gref);
int vmloop_xen_accept_window(struct vmloop_xen_accepted *accepted, domid_t peer,
			     grant_ref_t gref, u32 size);
void vmloop_xen_accept_end(struct vmloop_xen_accepted *accepted);

/* What dom0 wants done with a channel. */
enum vmloop_xen_wish {
	VMLOOP_XEN_MAKE,
	VMLOOP_XEN_WAIT,
	VMLOOP_XEN_MAP,
	VMLOOP_XEN_CLOSE,
};

/**
 * struct vmloop_xen_told - one channel, as dom0 says
 * @tag: its number
 * @side: which side we are
 * @peer: the other side
 * @wish: what to do
 * @gref: first page of the peer's descriptor, with VMLOOP_XEN_MAP
 * @port: the peer's event channels, with VMLOOP_XEN_MAP
 * @ports: how many, 1 at least
 * @lanes: the peer knows regions of version 2, with VMLOOP_XEN_MAKE
 * @bells: event channels of the channel at most, with VMLOOP_XEN_MAKE
 */
struct vmloop_xen_told {
	u32 tag;
	unsigned int side;
	domid_t peer;
	enum vmloop_xen_wish wish;
	grant_ref_t gref;
	evtchn_port_t port[VMLOOP_BELLS];
	unsigned int ports;
	bool lanes;
	unsigned int bells;
};

/* channel.c; queue */
void vmloop_xen_channels_tell(const struct vmloop_xen_told *told,
			      unsigned int count, const u32 *ring_size);
/* window.c; core mutex held */
extern const struct vmloop_window_ops vmloop_xen_windows;

/* channel.c; core mutex held */
domid_t vmloop_xen_peer_of(const struct vmloop_link *link);
bool vmloop_xen_is_revoking(const struct vmloop_link *link);
void vmloop_xen_revoke_later(struct vmloop_link *link, struct vmloop_xen_offer *offer);
void vmloop_xen_report(struct vmloop_transport *transport, u32 tag, u32 state);
/* channel.c; process context, nothing else is queued */
void vmloop_xen_channels_begin(void);
void vmloop_xen_channels_end(bool hasty);

/* store.c; process context */
int vmloop_xen_store_start(void);
void vmloop_xen_store_forget(void);
void vmloop_xen_store_calm(bool calm);
void vmloop_xen_store_deaf(void);
void vmloop_xen_store_stop(void);

/* say.c; queue */
int vmloop_xen_say_channel(u32 tag, const char *word);
void vmloop_xen_forget_channel(u32 tag);
void vmloop_xen_say_stats(u32 cookie);
void vmloop_xen_wants_settle(bool (*settled)(u64 peer, const void *what),
			     const void *what);
/* say.c; core mutex held */
int vmloop_xen_request(struct vmloop_transport *transport, u64 peer, u64 epoch,
		       unsigned int attempt);
void vmloop_xen_advertise(struct vmloop_transport *transport,
			  const struct vmloop_msg_address *address, u32 count);
/* say.c; process context */
int vmloop_xen_say_begin(u64 incarnation);
void vmloop_xen_unsay(void);
void vmloop_xen_say_end(void);

#endif /* VMLOOP_XEN_H */
