// SPDX-License-Identifier: GPL-2.0
/*
 * crowd.c - many connections at once, few of them busy; and connections that come and go.
 *
 *	crowd serve PORT                              for ever: sends back what comes
 *	crowd run HOST PORT CONNECTIONS BUSY SECONDS
 *	crowd connect HOST PORT SECONDS
 *
 * `run` opens all connections, and each exchanges WARM messages: it says "warm". Then the
 * last BUSY ones go on for SECONDS, while the others are idle. At last each exchanges one
 * message more. Every byte that comes back is checked. It reports in a line of JSON how
 * many exchanges the busy ones made, least, middle and most, and how long one took at
 * most, in seconds.
 *
 * `connect` opens a connection, exchanges a byte and closes it, again and again, and
 * reports how many of those it has done a second.
 *
 * One task each, that waits for levels (epoll).
 */
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tool.h"

#define MESSAGE		4096U
#define WARM		40U	/* several times what a connection gets a lane for */
#define SILENCE		60	/* seconds without any event: somebody was forgotten */

struct connection {
	int fd;
	unsigned int index;
	uint64_t wanted;	/* exchanges */
	uint64_t done;
	double began;		/* of this one */
	double longest;
	uint32_t out, in;	/* bytes of this one that have gone, and come */
	uint32_t events;	/* that are waited for */
	bool ended;		/* nothing more comes */
	unsigned char bytes[MESSAGE];
};

static int epoll;

/* What to wait for: room, if there was none, and what comes, until its end. */
static void watch(struct connection *one, bool room, int how)
{
	uint32_t events = (room ? EPOLLOUT : 0) | (one->ended ? 0 : EPOLLIN);
	struct epoll_event event = { .events = events, .data.ptr = one };

	if (events != one->events && epoll_ctl(epoll, how, one->fd, &event))
		fail("epoll: %s", strerror(errno));
	one->events = events;
}

static struct connection *connection(int fd, unsigned int index)
{
	struct connection *one = calloc(1, sizeof(*one));
	int yes = 1;

	if (!one || fcntl(fd, F_SETFL, O_NONBLOCK) ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)))
		fail("a connection: %s", strerror(errno));
	one->fd = fd;
	one->index = index;
	watch(one, false, EPOLL_CTL_ADD);
	return one;
}

static void descriptors(rlim_t most)
{
	struct rlimit limit = { .rlim_cur = most, .rlim_max = most };

	if (setrlimit(RLIMIT_NOFILE, &limit))
		fail("%ju descriptors: %s", (uintmax_t)most, strerror(errno));
}

/* Sends what there is room for, up to @to; false if the connection has ended. */
static bool put(struct connection *one, uint32_t to)
{
	ssize_t done;

	while (one->out < to) {
		done = send(one->fd, one->bytes + one->out, to - one->out, MSG_NOSIGNAL);
		if (done < 0 && errno == EAGAIN)
			break;
		if (done < 0)
			return false;
		one->out += (uint32_t)done;
	}
	watch(one, one->out < to, EPOLL_CTL_MOD);
	return true;
}

/*
 * The server's end: @in bytes have come, of which @out have gone back. What has come goes
 * back before the end, if it can.
 */
static void answer(struct connection *one)
{
	ssize_t came;

	if (one->in == one->out)
		one->in = one->out = 0;
	if (one->in < MESSAGE && !one->ended) {
		came = recv(one->fd, one->bytes + one->in, MESSAGE - one->in, 0);
		one->ended = !came || (came < 0 && errno != EAGAIN);
		one->in += came > 0 ? (uint32_t)came : 0;
	}
	if (!put(one, one->in) || (one->ended && one->out == one->in)) {
		close(one->fd);
		free(one);
	}
}

static int serve(int port)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1, fd, count, i;
	struct epoll_event events[64], first = { .events = EPOLLIN };

	descriptors(8192);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(listener, (void *)&here, sizeof(here)) || listen(listener, 4096))
		fail("port %d: %s", port, strerror(errno));
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &first))
		fail("epoll: %s", strerror(errno));
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		count = epoll_wait(epoll, events, 64, -1);
		for (i = 0; i < count; i++) {
			if (events[i].data.ptr) {
				answer(events[i].data.ptr);
				continue;
			}
			fd = accept(listener, NULL, NULL);
			if (fd < 0)
				fail("accept: %s", strerror(errno));
			connection(fd, 0);
		}
	}
}

static unsigned char pattern(const struct connection *one, uint32_t at)
{
	return (unsigned char)(one->index * 61 + one->done * 131 + at * 7 + (at >> 8));
}

static void send_all(struct connection *one)
{
	if (!put(one, MESSAGE))
		fail("send: %s", strerror(errno));
}

/* Begins the next exchange, if one is wanted. */
static void begin(struct connection *one)
{
	uint32_t i;

	if (one->done >= one->wanted)
		return;
	for (i = 0; i < MESSAGE; i++)
		one->bytes[i] = pattern(one, i);
	one->began = now();
	one->in = one->out = 0;
	send_all(one);
}

static void go_on(struct connection *one)
{
	static unsigned char came[MESSAGE];
	uint32_t i;
	ssize_t size;

	if (one->out < MESSAGE)
		send_all(one);
	size = recv(one->fd, came, one->done < one->wanted ? MESSAGE - one->in : 1, 0);
	if (size < 0 && errno == EAGAIN)
		return;
	if (size <= 0)
		fail("connection %u ended after %" PRIu64 " exchanges: %s", one->index, one->done,
		     size ? strerror(errno) : "in order");
	if (one->done >= one->wanted)
		fail("connection %u got more than it had sent", one->index);
	for (i = 0; i < (uint32_t)size; i++)
		if (came[i] != pattern(one, one->in + i))
			fail("connection %u: exchange %" PRIu64 " is wrong at %u", one->index,
			     one->done, one->in + i);
	one->in += (uint32_t)size;
	if (one->in < MESSAGE)
		return;
	one->done++;
	if (now() - one->began > one->longest)
		one->longest = now() - one->began;
	begin(one);
}

/* All of them, until each has done what is wanted; by @until none begins another. */
static void all_go(struct connection **all, unsigned int count, double until)
{
	struct epoll_event events[64];
	unsigned int left, i;
	bool over;
	int got;

	for (i = 0; i < count; i++)
		begin(all[i]);
	do {
		got = epoll_wait(epoll, events, 64, SILENCE * 1000);
		if (!got)
			fail("nothing came for %d s", SILENCE);
		for (i = 0; (int)i < got; i++)
			go_on(events[i].data.ptr);
		over = now() >= until;
		for (left = i = 0; i < count; i++) {
			if (over && all[i]->wanted > all[i]->done)
				all[i]->wanted = all[i]->done + 1;
			left += all[i]->wanted > all[i]->done;
		}
	} while (left);
}

static int by_done(const void *a, const void *b)
{
	const struct connection *const *one = a, *const *other = b;

	return ((*one)->done > (*other)->done) - ((*one)->done < (*other)->done);
}

static int run(const char *host, const char *port, unsigned int count, unsigned int busy,
	       double seconds)
{
	struct connection **all = calloc(count, sizeof(*all)), **last;
	double longest = 0;
	unsigned int i;

	descriptors(count + 64);
	if (!all || !busy || busy > count)
		fail("no such number of connections");
	for (i = 0; i < count; i++) {
		all[i] = connection(connected(SOCK_STREAM, host, port), i);
		all[i]->wanted = WARM;
	}
	all_go(all, count, now() + 1e9);
	printf("warm\n");
	fflush(stdout);
	last = all + count - busy;
	for (i = 0; i < busy; i++) {
		last[i]->wanted = UINT64_MAX;
		last[i]->longest = 0;
	}
	all_go(last, busy, now() + seconds);
	qsort(last, busy, sizeof(*last), by_done);
	for (i = 0; i < busy; i++)
		if (last[i]->longest > longest)
			longest = last[i]->longest;
	printf("{\"connections\": %u, \"busy\": %u, \"seconds\": %.1f, \"least\": %" PRIu64
	       ", \"middle\": %" PRIu64 ", \"most\": %" PRIu64 ", \"longest_s\": %.3f}\n",
	       count, busy, seconds, last[0]->done - WARM, last[busy / 2]->done - WARM,
	       last[busy - 1]->done - WARM, longest);
	for (i = 0; i < count; i++)
		all[i]->wanted = all[i]->done + 1;
	all_go(all, count, now() + 1e9);
	return 0;
}

static int come_and_go(const char *host, const char *port, double seconds)
{
	double began = now();
	uint64_t done = 0;
	char byte = 'x';
	int fd;

	while (now() < began + seconds) {
		fd = connected(SOCK_STREAM, host, port);
		if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1 || recv(fd, &byte, 1, 0) != 1 ||
		    byte != 'x')
			fail("a byte: %s", strerror(errno));
		close(fd);
		done++;
	}
	printf("{\"connections_per_s\": %.1f}\n", (double)done / (now() - began));
	return 0;
}

int main(int argc, char **argv)
{
	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		fail("epoll: %s", strerror(errno));
	if (argc == 3 && !strcmp(argv[1], "serve"))
		return serve(atoi(argv[2]));
	if (argc == 7 && !strcmp(argv[1], "run"))
		return run(argv[2], argv[3], (unsigned int)atoi(argv[4]),
			   (unsigned int)atoi(argv[5]), atof(argv[6]));
	if (argc == 5 && !strcmp(argv[1], "connect"))
		return come_and_go(argv[2], argv[3], atof(argv[4]));
	fail("usage: crowd serve PORT | run HOST PORT CONNECTIONS BUSY SECONDS |\n"
	     "       crowd connect HOST PORT SECONDS");
}
