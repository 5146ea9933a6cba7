// SPDX-License-Identifier: GPL-2.0
/*
 * turns.c - requests and responses over one TCP connection, one at a time.
 *
 *	turns serve PORT                     one connection
 *	turns ask HOST PORT [PER_SECOND]     until SIGTERM
 *
 * A request is a number, its response what scatter() makes of it, which the
 * asker checks. Each comes as soon as the one before is answered, or so many
 * a second at most. The asker says each tenth of a second
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

/* What the asker counts. Times are seconds of now(). */
struct count {
	double start;
	double said;
	double longest;
	uint64_t turns;
};

/* Says how it stands if a tenth has passed. */
static void say(struct count *count, bool answered)
{
	double t = now();

	if (t - count->said < TICK)
		return;
	printf("%.3f %llu %.4f\n", t - count->start,
	       (unsigned long long)count->turns + answered, count->longest);
	fflush(stdout);
	count->said = t;
	count->longest = 0;
}

/* Waits for the response to what was asked then. */
static void await(struct count *count, int fd, double asked)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	double t;
	int got;

	do {
		got = poll(&wait, 1, (int)(TICK * 1000));
		t = now();
		if (t - asked > count->longest)
			count->longest = t - asked;
		say(count, got > 0);
	} while (got <= 0);
}

/* Waits until then, or for SIGTERM, which ends the poll. */
static void rest(struct count *count, double until)
{
	double left;

	while (!ending && (left = until - now()) > 0) {
		if (left > TICK)
			left = TICK;
		poll(NULL, 0, (int)(left * 1000) + 1);
		say(count, false);
	}
}

static void ask(const char *host, const char *port, unsigned int rate)
{
	struct count count = { 0 };
	double asked;
	uint64_t word;
	int fd;

	fd = connected(SOCK_STREAM, host, port);
	at_once(fd);
	count.start = now();
	count.said = count.start;
	while (!ending) {
		asked = now();
		write_word(fd, count.turns);
		await(&count, fd, asked);
		if (!read_word(fd, &word))
			fail("closed after %llu turns", (unsigned long long)count.turns);
		if (word != scatter(count.turns))
			fail("response %llu is wrong", (unsigned long long)count.turns);
		count.turns++;
		if (rate)
			rest(&count, asked + 1.0 / rate);
	}
	printf("{\"turns\": %llu, \"seconds\": %.3f}\n", (unsigned long long)count.turns,
	       now() - count.start);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };

	if (argc == 3 && !strcmp(argv[1], "serve")) {
		serve((uint16_t)atoi(argv[2]));
	} else if ((argc == 4 || argc == 5) && !strcmp(argv[1], "ask")) {
		/* The turn under way is finished, unless nothing comes. */
		action.sa_flags = SA_RESTART;
		sigaction(SIGTERM, &action, NULL);
		sigaction(SIGINT, &action, NULL);
		ask(argv[2], argv[3], argc == 5 ? (unsigned int)atoi(argv[4]) : 0);
	} else {
		fail("usage: turns serve PORT | ask HOST PORT [PER_SECOND]");
	}
	return 0;
}
