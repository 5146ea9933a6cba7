// SPDX-License-Identifier: GPL-2.0
/*
 * pattern.c - messages of known content over TCP and UDP, every byte checked.
 *
 *	pattern serve PORT                  both protocols, IPv4 and IPv6
 *	pattern tcp HOST PORT SIZE...       one connection
 *	pattern udp HOST PORT SIZE...       one datagram at a time
 *	pattern sctp HOST PORT SIZE...      as tcp; modprobe sctp before the server
 *	pattern short HOST PORT COUNT       so many connections, one message each
 *
 * The client sends a message of SIZE bytes, the server checks it and answers
 * with as many other bytes, which the client checks. What a message contains
 * follows from its size, its direction and a salt, so that neither an echo nor
 * data of another message can pass. The salt of a datagram is the client's
 * port, as one byte has no room for more. Status 0 only if all was right.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tool.h"

#define SIZES_MAX	4096
#define MESSAGE_MAX	(16U << 20)
#define ANSWER_MS	5000

enum direction { TO_SERVER, TO_CLIENT };

/* Goes before the messages of a TCP connection. */
struct plan {
	uint64_t salt;
	uint32_t count;
	uint32_t size[SIZES_MAX];
};

static unsigned char *buffer;
static unsigned char *expected;

static void fill(unsigned char *to, size_t size, uint64_t salt, enum direction way)
{
	uint64_t seed = scatter(salt * 2 + way) ^ scatter(size);
	uint64_t word;
	size_t at;

	for (at = 0; at < size; at += sizeof(word)) {
		word = scatter(seed + at);
		memcpy(to + at, &word, size - at < sizeof(word) ? size - at : sizeof(word));
	}
}

/* Returns the number of the first wrong byte, or -1. */
static long check(const unsigned char *data, size_t size, uint64_t salt, enum direction way)
{
	size_t at;

	fill(expected, size, salt, way);
	if (!memcmp(data, expected, size))
		return -1;
	for (at = 0; data[at] == expected[at]; at++)
		;
	return (long)at;
}

static void send_all(int fd, const void *data, size_t size)
{
	const char *at = data;

	while (size) {
		ssize_t n = send(fd, at, size, MSG_NOSIGNAL);

		if (n < 0)
			fail("send: %s", strerror(errno));
		at += n;
		size -= (size_t)n;
	}
}

static void receive_all(int fd, void *data, size_t size)
{
	char *at = data;

	while (size) {
		ssize_t n = recv(fd, at, size, 0);

		if (n <= 0)
			fail("%zu bytes before the end of a message: %s", size,
			     n ? strerror(errno) : "the connection ended");
		at += n;
		size -= (size_t)n;
	}
}

static void nodelay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* The server -------------------------------------------------------------- */

static void serve_connection(int fd)
{
	struct plan plan;
	uint32_t n;
	long wrong;

	nodelay(fd);
	receive_all(fd, &plan, offsetof(struct plan, size));
	if (plan.count > SIZES_MAX)
		fail("a plan of %u messages", plan.count);
	receive_all(fd, plan.size, plan.count * sizeof(plan.size[0]));
	for (n = 0; n < plan.count; n++) {
		uint32_t size = plan.size[n];

		if (size > MESSAGE_MAX)
			fail("a message of %u bytes", size);
		receive_all(fd, buffer, size);
		wrong = check(buffer, size, plan.salt + n, TO_SERVER);
		if (wrong >= 0)
			fail("TCP: byte %ld of a message of %u is wrong", wrong, size);
		fill(buffer, size, plan.salt + n, TO_CLIENT);
		send_all(fd, buffer, size);
	}
}

static void serve_datagram(int fd)
{
	struct sockaddr_in6 from;
	socklen_t length = sizeof(from);
	uint64_t salt;
	ssize_t size;
	long wrong;

	size = recvfrom(fd, buffer, MESSAGE_MAX, 0, (struct sockaddr *)&from, &length);
	if (size < 0)
		return;
	salt = ntohs(from.sin6_port);
	wrong = check(buffer, (size_t)size, salt, TO_SERVER);
	if (wrong >= 0) {
		/* Not answered: that is how the client learns of it. */
		fprintf(stderr, "FAILED: UDP: byte %ld of %zd is wrong\n", wrong, size);
		return;
	}
	fill(buffer, (size_t)size, salt, TO_CLIENT);
	sendto(fd, buffer, (size_t)size, 0, (struct sockaddr *)&from, length);
}

/* Returns a negative number for a protocol that the kernel does not have. */
static int bound(int type, int protocol, uint16_t port)
{
	struct sockaddr_in6 address = {
		.sin6_family = AF_INET6,
		.sin6_port = htons(port),
	};
	int fd = socket(AF_INET6, type, protocol);
	int one = 1;

	if (fd < 0 && protocol)
		return fd;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)))
		fail("port %u: %s", port, strerror(errno));
	return fd;
}

static void serve(uint16_t port)
{
	int udp = bound(SOCK_DGRAM, 0, port);
	struct pollfd wait[] = {
		{ .fd = udp, .events = POLLIN },
		{ .fd = bound(SOCK_STREAM, 0, port), .events = POLLIN },
		/* Ignored by poll() if it is not there. */
		{ .fd = bound(SOCK_STREAM, IPPROTO_SCTP, port), .events = POLLIN },
	};
	int room = 4 << 20;
	int n;

	setsockopt(udp, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	for (n = 1; n < 3; n++)
		if (wait[n].fd >= 0 && listen(wait[n].fd, 1024))
			fail("listen: %s", strerror(errno));
	signal(SIGCHLD, SIG_IGN);
	puts("ready");
	fflush(stdout);
	for (;;) {
		if (poll(wait, 3, -1) < 0)
			continue;
		if (wait[0].revents)
			serve_datagram(udp);
		for (n = 1; n < 3; n++) {
			int fd = wait[n].revents ? accept(wait[n].fd, NULL, NULL) : -1;

			if (fd < 0)
				continue;
			if (fork() == 0) {
				close(udp);
				close(wait[1].fd);
				close(wait[2].fd);
				serve_connection(fd);
				_exit(0);
			}
			close(fd);
		}
	}
}

/* The client -------------------------------------------------------------- */

/* Sends the planned messages and checks the answers. */
static void converse(int fd, const struct plan *plan)
{
	uint32_t n;
	long wrong;

	nodelay(fd);
	send_all(fd, plan, offsetof(struct plan, size) + plan->count * sizeof(plan->size[0]));
	for (n = 0; n < plan->count; n++) {
		fill(buffer, plan->size[n], plan->salt + n, TO_SERVER);
		send_all(fd, buffer, plan->size[n]);
		receive_all(fd, buffer, plan->size[n]);
		wrong = check(buffer, plan->size[n], plan->salt + n, TO_CLIENT);
		if (wrong >= 0)
			fail("TCP: byte %ld of the answer of %u is wrong", wrong, plan->size[n]);
	}
}

static void ask(int fd, uint64_t salt, uint32_t size)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	ssize_t got;
	long wrong;

	fill(buffer, size, salt, TO_SERVER);
	if (send(fd, buffer, size, 0) != (ssize_t)size)
		fail("UDP: send %u: %s", size, strerror(errno));
	if (poll(&wait, 1, ANSWER_MS) != 1)
		fail("UDP: no answer to %u bytes", size);
	got = recv(fd, buffer, MESSAGE_MAX, 0);
	if (got != (ssize_t)size)
		fail("UDP: %zd bytes came back for %u: %s", got, size, got < 0 ? strerror(errno) : "");
	wrong = check(buffer, size, salt, TO_CLIENT);
	if (wrong >= 0)
		fail("UDP: byte %ld of the answer of %u is wrong", wrong, size);
}

static uint64_t local_port(int fd)
{
	struct sockaddr_storage address;
	socklen_t length = sizeof(address);

	if (getsockname(fd, (struct sockaddr *)&address, &length))
		fail("getsockname: %s", strerror(errno));
	/* The port is at the same place for both families. */
	return ntohs(((struct sockaddr_in *)&address)->sin_port);
}

static void read_sizes(struct plan *plan, char **words)
{
	for (; *words; words++) {
		if (plan->count == SIZES_MAX)
			fail("more than %d sizes", SIZES_MAX);
		plan->size[plan->count++] = (uint32_t)strtoul(*words, NULL, 10);
	}
}

int main(int argc, char **argv)
{
	struct plan plan = { .salt = scatter((uint64_t)getpid() ^ (uint64_t)time(NULL)) };
	uint32_t n;
	int fd;

	buffer = malloc(MESSAGE_MAX);
	expected = malloc(MESSAGE_MAX);
	if (!buffer || !expected)
		fail("no memory");

	if (argc == 3 && !strcmp(argv[1], "serve")) {
		serve((uint16_t)atoi(argv[2]));
	} else if (argc > 4 && !strcmp(argv[1], "tcp")) {
		read_sizes(&plan, argv + 4);
		fd = connected(SOCK_STREAM, argv[2], argv[3]);
		converse(fd, &plan);
	} else if (argc > 4 && !strcmp(argv[1], "sctp")) {
		read_sizes(&plan, argv + 4);
		fd = connected_by(SOCK_STREAM, IPPROTO_SCTP, argv[2], argv[3]);
		converse(fd, &plan);
	} else if (argc > 4 && !strcmp(argv[1], "udp")) {
		read_sizes(&plan, argv + 4);
		fd = connected(SOCK_DGRAM, argv[2], argv[3]);
		for (n = 0; n < plan.count; n++)
			ask(fd, local_port(fd), plan.size[n]);
	} else if (argc == 5 && !strcmp(argv[1], "short")) {
		plan.count = 1;
		for (n = 0; n < (uint32_t)atoi(argv[4]); n++) {
			plan.size[0] = 1 + n % 300;
			plan.salt++;
			fd = connected(SOCK_STREAM, argv[2], argv[3]);
			converse(fd, &plan);
			close(fd);
		}
	} else {
		fail("usage: pattern serve PORT | tcp|sctp HOST PORT SIZE... | udp HOST PORT SIZE... | short HOST PORT COUNT");
	}
	puts("ok");
	return 0;
}
