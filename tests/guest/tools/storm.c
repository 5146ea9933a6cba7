// SPDX-License-Identifier: GPL-2.0
/*
 * storm.c - a Xen guest that writes into its own part of XenStore as fast as it can: all
 * that vmloop's modules say there, right and wrong, past them, by the kernel's own
 * /dev/xen/xenbus.
 *
 *	storm SECONDS DOMAIN OWN-MAC OTHER-DOMAIN OTHER-MAC
 *
 * DOMAIN is its own, OTHER-DOMAIN another guest's. Prints "asked N refused M": requests,
 * and how many of them XenStore did not take. Status 0 if it took any.
 *
 * Nodes that it has at once are fewer than a domain may have (1,000).
 */
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "tool.h"

/* Xen's io/xs_wire.h: what goes before the bytes of a request and of an answer. */
struct wire {
	uint32_t type, request, transaction, size;
};

#define XS_WRITE	11
#define XS_RM		13
#define XS_ERROR	16
#define XS_MOST		4096	/* bytes behind it */

static int store;
static uint64_t asked, refused;

static void get(void *to, size_t size)
{
	ssize_t got;

	for (; size; to = (char *)to + got, size -= (size_t)got) {
		got = read(store, to, size);
		if (got <= 0)
			fail("XenStore does not answer: %s", strerror(errno));
	}
}

/* One request, and its answer. */
static void ask(uint32_t type, const char *node, const char *value)
{
	static char message[sizeof(struct wire) + XS_MOST];
	static char answer[XS_MOST];
	struct wire wire = { .type = type };
	int path;

	path = snprintf(message + sizeof(wire), XS_MOST, "data/vmloop/%s", node) + 1;
	wire.size = (uint32_t)path + (uint32_t)strlen(value);
	if (wire.size > XS_MOST)
		fail("%s is too long", node);
	memcpy(message, &wire, sizeof(wire));
	memcpy(message + sizeof(wire) + path, value, strlen(value));
	if (write(store, message, sizeof(wire) + wire.size) < 0)
		fail("XenStore takes nothing: %s", strerror(errno));
	get(&wire, sizeof(wire));
	if (wire.size > XS_MOST)
		fail("an answer of %" PRIu32 " bytes", wire.size);
	get(answer, wire.size);
	asked++;
	refused += wire.type == XS_ERROR;
}

static void __attribute__((format(printf, 2, 3))) say(const char *node, const char *format, ...)
{
	char value[2048];
	va_list list;

	va_start(list, format);
	vsnprintf(value, sizeof(value), format, list);
	va_end(list);
	ask(XS_WRITE, node, value);
}

/* One of many nodes. */
static const char *numbered(const char *name, uint64_t number)
{
	static char node[64];

	snprintf(node, sizeof(node), "%s/%" PRIu64, name, number);
	return node;
}

int main(int argc, char **argv)
{
	static char nines[1901];
	double until;
	uint64_t step;

	if (argc != 6)
		fail("usage: storm SECONDS DOMAIN OWN-MAC OTHER-DOMAIN OTHER-MAC");
	const char *own = argv[3], *other_domain = argv[4], *other = argv[5];

	memset(nines, '9', sizeof(nines) - 1);
	store = open("/dev/xen/xenbus", O_RDWR | O_CLOEXEC);
	if (store < 0)
		fail("/dev/xen/xenbus: %s", strerror(errno));
	until = now() + atof(argv[1]);
	for (step = 0; now() < until; step++) {
		uint64_t round = step / 12, number = round % 400;

		switch (step % 12) {
		/* Modules that begin again and again, and such as never were. */
		case 0:
			say("hello", "1 1 %016" PRIx64 " 5 storm 6.1", 0x1000 + round / 1000);
			break;
		case 1:
			if (round % 1000 == 500)
				say("hello", "%s", nines);
			break;
		/* Addresses of others, and too many. */
		case 2:
			say("address", "2 %s 10.98.0.1/24 %s 10.98.1.%" PRIu64 "/24", own, own,
			    number % 250);
			break;
		case 3:
			say("address", "1 %s 10.98.0.77/24", other);
			break;
		case 4:
			say("address", "%s", nines);
			break;
		case 5:
			say(numbered("want", 1 + round % 12), "0000000000000001 1");
			break;
		case 6:
			say(numbered("want", 1000 + number), "0000000000000001 1");
			break;
		case 7:
			ask(XS_WRITE, numbered("want", strtoull(other_domain, NULL, 10)),
			    "\033[2J");
			break;
		case 8:
			say(numbered("channel", round % 50), "offer 1 %s", argv[2]);
			break;
		case 9:
			say("what/ever", "x");
			break;
		case 10:
			say("stats", "%" PRIu64, number);
			break;
		default:
			if (round % 500)
				say("stats/1/1", "-1");
			else
				ask(XS_RM, "want", "");
		}
	}
	printf("asked %" PRIu64 " refused %" PRIu64 "\n", asked, refused);
	return asked == refused;
}
