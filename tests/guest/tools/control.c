// SPDX-License-Identifier: GPL-2.0
/*
 * control.c - what the modules in this guest say over netlink, as JSON; made
 * from docs/netlink/vmloop.yaml and independent of the vmloop command.
 *
 *	control status | peers | on | off | reset ID
 *	control until NAME STATES    returns once the peer is in one of the
 *				     states; "gone": not in the directory
 */
#include <errno.h>
#include <inttypes.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tool.h"

enum { STATUS_GET = 1, STATUS_SET, PEER_GET, PEER_RESET };

enum { STATUS_ENABLED = 8, PEER_ID = 1, PEER_NAME = 3, PEER_STATE = 5 };

enum kind { U8, U16, U32, U64, TEXT, BYTES, STATE, STATS, INTERFACE };

struct field {
	const char *name;
	enum kind kind;
	int repeats;
};

static const struct field status_fields[] = {
	{}, { "version", TEXT }, { "major", U16 }, { "minor", U16 }, { "id", U64 },
	{ "epoch", U64 }, { "name", TEXT }, { "agent", U64 }, { "enabled", U8 },
	{ "peers", U32 }, { "channels_up", U32 }, { "transport", TEXT, 1 },
	{ "routed_ip", BYTES, 1 },
};

static const struct field peer_fields[] = {
	{}, { "id", U64 }, { "epoch", U64 }, { "name", TEXT }, { "tag", U32 },
	{ "state", STATE }, { "reason", U32 }, { "transport", TEXT }, { "ring_size", U32 },
	{ "interface", INTERFACE, 1 }, { "stats", STATS }, { "break", U32 },
	{ "breaks", U32 }, { "retry_ms", U32 }, { "lanes", U32 },
};

static const struct field interface_fields[] = {
	{}, { "local_mac", BYTES }, { "mac", BYTES }, { "flags", U32 }, { "mtu", U32 },
	{ "ip", BYTES, 1 }, { "gateway", BYTES },
};

static const struct field stats_fields[] = {
	{}, { "tx_frames", U64 }, { "tx_bytes", U64 }, { "rx_frames", U64 }, { "rx_bytes", U64 },
	{ "tx_doorbells", U64 }, { "rx_doorbells", U64 }, { "tx_full", U64 },
	{ "tx_queued", U64 }, { "tx_standard", U64 }, { "stalls", U64 }, { "drop_source", U64 },
	{ "drop_destination", U64 }, { "drop_vlan", U64 }, { "drop_malformed", U64 },
	{ "drop_memory", U64 }, { "drop_interface", U64 },
	{ "standard_no_channel", U64 },
	{ "standard_closing", U64 },
	{ "standard_stalled", U64 },
	{ "standard_full", U64 },
	{ "standard_flushed", U64 },
	{ "standard_shaped", U64 },
	{ "standard_classified", U64 },
	{ "standard_hook", U64 },
	{ "standard_receiver", U64 },
	{ "standard_source", U64 },
	{ "standard_interface", U64 },
	{ "standard_vlan", U64 },
	{ "standard_feature", U64 },
	{ "standard_segmentation", U64 },
	{ "standard_checksum", U64 },
	{ "standard_encrypted", U64 },
	{ "standard_unreadable", U64 },
	{ "standard_too_large", U64 },
};

static const char * const states[] = {
	"none", "requested", "opening", "up", "stalled", "closing", "refused", "failed", "broken",
};

#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))

static int sock;
static uint16_t family;
static char message[64 << 10];

static void *attribute(struct nlmsghdr *head, uint16_t type, const void *data, uint16_t size)
{
	struct nlattr *attr = (void *)((char *)head + NLMSG_ALIGN(head->nlmsg_len));

	attr->nla_type = type;
	attr->nla_len = (uint16_t)(NLA_HDRLEN + size);
	memcpy((char *)attr + NLA_HDRLEN, data, size);
	head->nlmsg_len = NLMSG_ALIGN(head->nlmsg_len) + NLA_ALIGN(attr->nla_len);
	return attr;
}

static struct nlmsghdr *request(uint16_t type, uint8_t command, uint16_t flags)
{
	struct nlmsghdr *head = (void *)message;
	struct genlmsghdr *genl = NLMSG_DATA(head);

	memset(message, 0, 256);
	head->nlmsg_type = type;
	head->nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags);
	head->nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN);
	genl->cmd = command;
	genl->version = 1;
	return head;
}

static const struct nlattr *first(const struct nlmsghdr *head)
{
	return (const void *)((const char *)NLMSG_DATA(head) + GENL_HDRLEN);
}

static const struct nlattr *after(const struct nlattr *attr)
{
	return (const void *)((const char *)attr + NLA_ALIGN(attr->nla_len));
}

static const void *payload(const struct nlattr *attr)
{
	return (const char *)attr + NLA_HDRLEN;
}

static void print_object(const struct nlattr *attr, const char *end, const struct field *fields,
			 size_t count);

static void print_value(const struct nlattr *attr, enum kind kind)
{
	size_t size = attr->nla_len - NLA_HDRLEN;
	const unsigned char *data = payload(attr);
	uint64_t number = 0;
	size_t i;

	if (kind <= U64 || kind == STATE)
		memcpy(&number, data, size < 8 ? size : 8);

	switch (kind) {
	case STATE:
		printf("\"%s\"", number < COUNT(states) ? states[number] : "unknown");
		break;
	case TEXT:
		printf("\"%.*s\"", (int)size, (const char *)data);
		break;
	case BYTES:
		putchar('"');
		for (i = 0; i < size; i++)
			printf("%s%02x", i && size == 6 ? ":" : "", data[i]);
		putchar('"');
		break;
	case STATS:
		print_object((const void *)data, (const char *)data + size, stats_fields,
			     COUNT(stats_fields));
		break;
	case INTERFACE:
		print_object((const void *)data, (const char *)data + size,
			     interface_fields, COUNT(interface_fields));
		break;
	default:
		printf("%" PRIu64, number);
	}
}

static void print_object(const struct nlattr *attr, const char *end, const struct field *fields,
			 size_t count)
{
	const char *comma = "";
	size_t type;

	putchar('{');
	for (; (const char *)attr < end; attr = after(attr)) {
		type = attr->nla_type & NLA_TYPE_MASK;
		if (type >= count || !fields[type].name)
			continue;
		/* Repeated attributes follow each other. */
		if (fields[type].repeats) {
			printf("%s\"%s\": [", comma, fields[type].name);
			print_value(attr, fields[type].kind);
			while ((const char *)after(attr) < end &&
			       (after(attr)->nla_type & NLA_TYPE_MASK) == type) {
				attr = after(attr);
				fputs(", ", stdout);
				print_value(attr, fields[type].kind);
			}
			putchar(']');
		} else {
			printf("%s\"%s\": ", comma, fields[type].name);
			print_value(attr, fields[type].kind);
		}
		comma = ", ";
	}
	putchar('}');
}

/* Sends the request; hands each answer to @each until there are no more. */
static void talk(struct nlmsghdr *head, void (*each)(const struct nlmsghdr *head))
{
	struct nlmsghdr *got;
	ssize_t size;
	int several = head->nlmsg_flags & NLM_F_DUMP;

	if (send(sock, head, head->nlmsg_len, 0) < 0)
		fail("netlink: %s", strerror(errno));
	for (;;) {
		size = recv(sock, message, sizeof(message), 0);
		if (size < 0)
			fail("netlink: %s", strerror(errno));
		for (got = (void *)message; NLMSG_OK(got, size); got = NLMSG_NEXT(got, size)) {
			if (got->nlmsg_type == NLMSG_DONE)
				return;
			if (got->nlmsg_type == NLMSG_ERROR) {
				struct nlmsgerr *error = NLMSG_DATA(got);

				if (error->error)
					fail("the kernel says: %s", strerror(-error->error));
				return;
			}
			each(got);
			if (!several)
				return;
		}
	}
}

static const char *end_of(const struct nlmsghdr *head)
{
	return (const char *)head + head->nlmsg_len;
}

static void find_family(const struct nlmsghdr *head)
{
	const struct nlattr *attr;

	for (attr = first(head); (const char *)attr < end_of(head); attr = after(attr))
		if ((attr->nla_type & NLA_TYPE_MASK) == CTRL_ATTR_FAMILY_ID)
			memcpy(&family, payload(attr), sizeof(family));
}

static void print_status(const struct nlmsghdr *head)
{
	print_object(first(head), end_of(head), status_fields, COUNT(status_fields));
}

static void print_peer(const struct nlmsghdr *head)
{
	static const char *comma = "";

	fputs(comma, stdout);
	print_object(first(head), end_of(head), peer_fields, COUNT(peer_fields));
	comma = ",\n ";
}

/* Of the peer that `until` waits for. */
static const char *awaited;
static const char *awaited_state;

static void look_at_peer(const struct nlmsghdr *head)
{
	const struct nlattr *attr;
	uint32_t state = COUNT(states);
	int is_it = 0;

	for (attr = first(head); (const char *)attr < end_of(head); attr = after(attr)) {
		if ((attr->nla_type & NLA_TYPE_MASK) == PEER_NAME)
			is_it = !strcmp(payload(attr), awaited);
		if ((attr->nla_type & NLA_TYPE_MASK) == PEER_STATE)
			memcpy(&state, payload(attr), sizeof(state));
	}
	if (is_it && state < COUNT(states))
		awaited_state = states[state];
}

static void wait_until(const char *name, const char *wanted)
{
	awaited = name;
	puts("ready");
	fflush(stdout);
	for (;;) {
		awaited_state = "gone";
		talk(request(family, PEER_GET, NLM_F_DUMP), look_at_peer);
		if (strstr(wanted, awaited_state))
			return;
		usleep(5000);
	}
}

static void nothing(const struct nlmsghdr *head)
{
	(void)head;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	struct nlmsghdr *head;
	uint64_t id;
	uint8_t on;

	sock = socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC);
	if (sock < 0)
		fail("netlink: %s", strerror(errno));
	head = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 0);
	attribute(head, CTRL_ATTR_FAMILY_NAME, "vmloop", sizeof("vmloop"));
	talk(head, find_family);

	if (!strcmp(what, "status")) {
		talk(request(family, STATUS_GET, 0), print_status);
		putchar('\n');
	} else if (!strcmp(what, "peers")) {
		putchar('[');
		talk(request(family, PEER_GET, NLM_F_DUMP), print_peer);
		puts("]");
	} else if (!strcmp(what, "on") || !strcmp(what, "off")) {
		on = !strcmp(what, "on");
		head = request(family, STATUS_SET, NLM_F_ACK);
		attribute(head, STATUS_ENABLED, &on, sizeof(on));
		talk(head, nothing);
	} else if (!strcmp(what, "reset") && argc == 3) {
		id = strtoull(argv[2], NULL, 10);
		head = request(family, PEER_RESET, NLM_F_ACK);
		attribute(head, PEER_ID, &id, sizeof(id));
		talk(head, nothing);
	} else if (!strcmp(what, "until") && argc == 4) {
		wait_until(argv[2], argv[3]);
	} else {
		fail("usage: control status | peers | on | off | reset ID | until NAME STATES");
	}
	return 0;
}
