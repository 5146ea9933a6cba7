// SPDX-License-Identifier: GPL-2.0
/*
 * turns.c - requests and responses over one TCP connection, one at a time.
 *
 *	turns serve PORT         one connection
 *	turns ask HOST PORT      until SIGTERM
 *
 * A request is a number, its response what scatter() makes of it, which the
 * asker checks. The asker says each tenth of a second
 *
 *	SECONDS TURNS LONGEST
 *
 * how many turns there were so far, and how long the longest of that tenth
 * took, the one under way included. Status 0 only if the connection ended as
 * the asker wanted, with every response right.
 */
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

#include "tool.h"

#define TICK	0.1

static volatile sig_atomic_t ending;

static void on_signal(int number)
{
	(void)number;
	ending = 1;
}

/* Returns false at the end of the stream. */
static bool read_word(int fd, uint64_t *word)
{
	size_t got = 0;
	ssize_t n;

	while (got < sizeof(*word)) {
		n = recv(fd, (char *)word + got, sizeof(*word) - got, 0);
		if (n == 0 && !got)
			return false;
		if (n <= 0)
			fail("the connection broke: %s", n ? strerror(errno) : "half a message");
		got += (size_t)n;
	}
	return true;
}

static void write_word(int fd, uint64_t word)
{
	if (send(fd, &word, sizeof(word), MSG_NOSIGNAL) != sizeof(word))
		fail("the connection broke: %s", strerror(errno));
}

static void at_once(int fd)
{
	int one = 1;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		fail("TCP_NODELAY: %s", strerror(errno));
}

static void serve(uint16_t port)
{
	struct sockaddr_in6 address = {
		.sin6_family = AF_INET6,
		.sin6_port = htons(port),
	};
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	uint64_t word;
	int one = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 1))
		fail("port %u: %s", port, strerror(errno));
	puts("ready");
	fflush(stdout);
	fd = accept(fd, NULL, NULL);
	if (fd < 0)
		fail("accept: %s", strerror(errno));
	at_once(fd);
	while (read_word(fd, &word))
		write_word(fd, scatter(word));
}

static void ask(const char *host, const char *port)
{
	double start, said, asked, t, longest = 0;
	struct pollfd wait = { .events = POLLIN };
	uint64_t turns = 0, word;
	int got;

	wait.fd = connected(SOCK_STREAM, host, port);
	at_once(wait.fd);
	start = now();
	said = start;
	while (!ending) {
		asked = now();
		write_word(wait.fd, turns);
		do {
			got = poll(&wait, 1, (int)(TICK * 1000));
			t = now();
			if (t - asked > longest)
				longest = t - asked;
			if (t - said >= TICK) {
				printf("%.3f %llu %.4f\n", t - start,
				       (unsigned long long)turns + (got > 0), longest);
				fflush(stdout);
				said = t;
				longest = 0;
			}
		} while (got <= 0);
		if (!read_word(wait.fd, &word))
			fail("closed after %llu turns", (unsigned long long)turns);
		if (word != scatter(turns))
			fail("response %llu is wrong", (unsigned long long)turns);
		turns++;
	}
	printf("{\"turns\": %llu, \"seconds\": %.3f}\n", (unsigned long long)turns, now() - start);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };

	if (argc == 3 && !strcmp(argv[1], "serve")) {
		serve((uint16_t)atoi(argv[2]));
	} else if (argc == 4 && !strcmp(argv[1], "ask")) {
		/* The turn under way is finished, unless nothing comes. */
		action.sa_flags = SA_RESTART;
		sigaction(SIGTERM, &action, NULL);
		sigaction(SIGINT, &action, NULL);
		ask(argv[2], argv[3]);
	} else {
		fail("usage: turns serve PORT | ask HOST PORT");
	}
	return 0;
}
