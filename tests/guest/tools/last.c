// SPDX-License-Identifier: GPL-2.0
/*
 * last.c - what is read of a connection whose other end has died.
 *
 *	last read PORT              one connection, of which nothing is read before SIGTERM
 *	last send HOST PORT FIRST   FIRST bytes, one each TICK, and after SIGTERM as many as the
 *	                            socket takes
 *
 * The bytes are words of 8 that count up. The sender says `first`, and then `all N`: how many the
 * socket has taken when it has taken none for SILENT. The reader says how many came, whether they
 * were right, and how the stream ended: the name of an error, or `end`. Until SIGTERM it sends a
 * byte each TICK, which the sender reads: a connection that does nothing has no lane for long.
 */
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

#include "tool.h"

/* In milliseconds. */
#define SILENT		3000
#define TICK		200
/* For how long the reader's TCP waits for an acknowledgment, or an answer to a keepalive. */
#define PATIENCE	5000
#define ALIVE_FIRST	1	/* in seconds, as all of keepalive's */

#define PART		65536

/* Returns whether the signal has come; waits for it so many milliseconds. */
static bool wait_for_signal(int milliseconds)
{
	struct timespec time = {
		.tv_sec = milliseconds / 1000,
		.tv_nsec = milliseconds % 1000 * 1000000L,
	};
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	return sigtimedwait(&set, NULL, &time) == SIGTERM;
}

static void block_signal(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	if (sigprocmask(SIG_BLOCK, &set, NULL))
		fail("sigprocmask: %s", strerror(errno));
}

static uint8_t byte_at(uint64_t at)
{
	return (uint8_t)((at / 8) >> (at % 8 * 8));
}

static void say(const char *word, uint64_t count)
{
	printf("%s %llu\n", word, (unsigned long long)count);
	fflush(stdout);
}

/* Returns how many were taken; fewer than @most if there is no room for SILENT. */
static uint64_t send_some(int fd, uint64_t from, uint64_t most)
{
	static uint8_t part[PART];
	struct pollfd poll_for = { .fd = fd, .events = POLLOUT };
	uint64_t done = 0;
	ssize_t n;

	while (done < most) {
		size_t size = most - done < PART ? (size_t)(most - done) : PART;

		for (size_t i = 0; i < size; i++)
			part[i] = byte_at(from + done + i);
		n = send(fd, part, size, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n > 0) {
			done += (uint64_t)n;
			continue;
		}
		if (errno != EAGAIN)
			fail("send: %s", strerror(errno));
		if (poll(&poll_for, 1, SILENT) == 0)
			break;
	}
	return done;
}

static void do_send(const char *host, const char *port, uint64_t first)
{
	int fd = connected(SOCK_STREAM, host, port);
	uint64_t sent = send_some(fd, 0, first);
	char ticks[64];

	say("first", sent);
	/* A lane that was refused once is asked for again when more has gone. */
	while (!wait_for_signal(TICK))
		sent += send_some(fd, sent, 1);
	sent += send_some(fd, sent, UINT64_MAX - sent);
	say("all", sent);
	while (recv(fd, ticks, sizeof(ticks), 0) > 0)
		continue;
}

static void keep_alive(int fd)
{
	const struct { int level, name, value; } options[] = {
		{ SOL_SOCKET, SO_KEEPALIVE, 1 },
		{ IPPROTO_TCP, TCP_KEEPIDLE, ALIVE_FIRST },
		{ IPPROTO_TCP, TCP_KEEPINTVL, ALIVE_FIRST },
		{ IPPROTO_TCP, TCP_USER_TIMEOUT, PATIENCE },
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (setsockopt(fd, options[i].level, options[i].name, &options[i].value,
			       sizeof(int)))
			fail("setsockopt: %s", strerror(errno));
}

static void do_read(const char *port)
{
	struct sockaddr_in any = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)atoi(port)),
	};
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), fd, error = 0;
	static uint8_t part[PART];
	uint64_t got = 0;
	bool right = true;
	ssize_t n;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (listener < 0 || bind(listener, (struct sockaddr *)&any, sizeof(any)) ||
	    listen(listener, 1))
		fail("listen: %s", strerror(errno));
	say("ready", 0);
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		fail("accept: %s", strerror(errno));
	keep_alive(fd);
	while (!wait_for_signal(TICK))
		/* TCP tells of an error once. */
		if (!error && send(fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN)
			error = errno;
	while ((n = recv(fd, part, PART, 0)) > 0) {
		for (ssize_t i = 0; i < n; i++)
			right &= part[i] == byte_at(got + (uint64_t)i);
		got += (uint64_t)n;
	}
	if (n < 0)
		error = errno;
	printf("{\"bytes\": %llu, \"right\": %s, \"end\": \"%s\"}\n", (unsigned long long)got,
	       right ? "true" : "false", error ? strerrorname_np(error) : "end");
}

int main(int argc, char **argv)
{
	block_signal();
	if (argc == 3 && !strcmp(argv[1], "read"))
		do_read(argv[2]);
	else if (argc == 5 && !strcmp(argv[1], "send"))
		do_send(argv[2], argv[3], strtoull(argv[4], NULL, 10));
	else
		fail("last read PORT | last send HOST PORT FIRST");
	return 0;
}
