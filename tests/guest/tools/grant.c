// SPDX-License-Identifier: GPL-2.0
/*
 * grant.c - a Xen guest that maps what another one granted, past vmloop's
 * modules, by the kernel's own /dev/xen/gntdev.
 *
 *	grant list DOMAIN REF   the grants of the region whose descriptor that is,
 *				the descriptor's own first, one a line
 *	grant try DOMAIN        for each grant on standard input: REF yes|no,
 *				whether Xen lets this guest map it
 *
 * Status 0 if that could be found out, whatever the answers are.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

/* The header uses these and does not have them. */
typedef uint32_t grant_ref_t;
typedef uint16_t domid_t;
#include <xen/gntdev.h>

#include "tool.h"

#define PAGE		4096
#define CHAIN_MOST	64
#define GREFS		1014

/* docs/protocol.md, section 8: a page of the descriptor. */
struct descriptor {
	uint64_t magic;
	uint16_t major, minor;
	uint32_t pages;
	uint64_t size;
	uint32_t more, count, unmapped, zero;
	uint32_t gref[GREFS];
};

_Static_assert(sizeof(struct descriptor) == PAGE, "a page of the descriptor");

static int device;

static uint64_t announce(uint32_t domain, uint32_t ref)
{
	struct ioctl_gntdev_map_grant_ref map = {
		.count = 1,
		.refs = { { .domid = domain, .ref = ref } },
	};

	if (ioctl(device, IOCTL_GNTDEV_MAP_GRANT_REF, &map))
		fail("announce grant %u of domain %u: %s", ref, domain, strerror(errno));
	return map.index;
}

static void withdraw(uint64_t index)
{
	struct ioctl_gntdev_unmap_grant_ref unmap = { .index = index, .count = 1 };

	if (ioctl(device, IOCTL_GNTDEV_UNMAP_GRANT_REF, &unmap))
		fail("withdraw: %s", strerror(errno));
}

/*
 * Maps a page, copies it to @copy unless that is NULL, and unmaps it. Returns
 * 1, or 0 if Xen refuses.
 */
static int visit(uint32_t domain, uint32_t ref, void *copy)
{
	uint64_t index = announce(domain, ref);
	void *page;
	int error;

	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, device, (off_t)index);
	error = errno;
	if (page != MAP_FAILED) {
		if (copy)
			memcpy(copy, page, PAGE);
		munmap(page, PAGE);
	}
	withdraw(index);
	/* Anything else is no answer of Xen's. */
	if (page == MAP_FAILED && error != EINVAL)
		fail("map grant %u of domain %u: %s", ref, domain, strerror(error));
	return page != MAP_FAILED;
}

static void list(uint32_t domain, uint32_t ref)
{
	static struct descriptor page[CHAIN_MOST];
	uint32_t chain = 0;
	uint32_t i, j;

	while (ref) {
		if (chain == CHAIN_MOST)
			fail("the descriptor has no end");
		if (!visit(domain, ref, &page[chain]))
			fail("grant %u of domain %u cannot be mapped", ref, domain);
		if (memcmp(&page[chain].magic, "vmloopxn", 8) || page[chain].count > GREFS)
			fail("grant %u of domain %u is no page of a descriptor", ref, domain);
		printf("%u\n", ref);
		ref = page[chain++].more;
	}
	for (i = 0; i < chain; i++)
		for (j = 0; j < page[i].count; j++)
			printf("%u\n", page[i].gref[j]);
}

static void try(uint32_t domain)
{
	uint32_t ref;

	while (scanf("%" SCNu32, &ref) == 1)
		printf("%u %s\n", ref, visit(domain, ref, NULL) ? "yes" : "no");
	if (!feof(stdin))
		fail("standard input is to be numbers");
}

int main(int argc, char **argv)
{
	device = open("/dev/xen/gntdev", O_RDWR | O_CLOEXEC);
	if (device < 0)
		fail("/dev/xen/gntdev: %s: 'modprobe xen_gntdev' makes it", strerror(errno));
	if (argc == 4 && !strcmp(argv[1], "list"))
		list((uint32_t)atoi(argv[2]), (uint32_t)strtoul(argv[3], NULL, 10));
	else if (argc == 3 && !strcmp(argv[1], "try"))
		try((uint32_t)atoi(argv[2]));
	else
		fail("usage: grant list DOMAIN REF | try DOMAIN");
	return 0;
}
