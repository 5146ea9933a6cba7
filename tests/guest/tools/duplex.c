// SPDX-License-Identifier: GPL-2.0
/*
 * duplex.c - connections that carry known bytes both ways at once.
 *
 *	duplex serve PORT [PAUSE]                  for ever
 *	duplex run HOST PORT CONNECTIONS SECONDS [PAUSE]
 *	                                           or until SIGTERM; then the report
 *
 * PAUSE: milliseconds that a sender rests after each record; 0 if there is none.
 *
 * Each end of a connection sends records of random lengths, with a number and bytes
 * that follow from where they are; the last one says that it is. Each checks all of
 * what comes, and that nothing but the end follows the last record. Connections of
 * even number are served by two tasks that block, the others by one that waits for
 * edges (epoll). The report is one line of JSON; status 0 only if all was right.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tool.h"

#define LARGEST		(96U << 10)
#define CONNECTIONS	512
#define TURNS		32

struct record {
	uint32_t size;		/* of what follows */
	uint32_t last;
	uint64_t number;
};

/* One direction, as its sender or its receiver knows it. */
struct way {
	uint64_t number;	/* of the record */
	uint32_t at;		/* bytes of it, header included, that are done */
	struct record record;
	bool over;
	uint64_t bytes;
	unsigned int seed;
	unsigned char *buffer;
};

struct end {
	int fd;
	double until;		/* when it sends its last record; 0: after the peer's */
	struct way out;
	struct way in;
	atomic_bool heard_last;
};

static atomic_ullong sent, received;
static unsigned int pause_ms;

static volatile sig_atomic_t ending;

static void on_signal(int number)
{
	(void)number;
	ending = 1;
}

static unsigned char pattern(uint64_t number, uint32_t at)
{
	return (unsigned char)(number * 131 + at * 7 + (at >> 8));
}

static void next_record(struct end *end)
{
	struct way *out = &end->out;
	uint32_t i;

	out->record.number = out->number++;
	out->record.last = end->until ? ending || now() >= end->until : end->heard_last;
	out->record.size = rand_r(&out->seed) % (rand_r(&out->seed) % 4 ? 2000 : LARGEST);
	memcpy(out->buffer, &out->record, sizeof(out->record));
	for (i = 0; i < out->record.size; i++)
		out->buffer[sizeof(out->record) + i] = pattern(out->number - 1, i);
	out->at = 0;
}

/*
 * Send what goes at once, so many times at most: the other way must have its turn.
 * Returns 1 at the end, 0 if it must wait, -1 if more may go.
 */
static int send_some(struct end *end, int flags)
{
	struct way *out = &end->out;
	int turns = TURNS;
	ssize_t done;
	uint32_t size;

	while (turns--) {
		size = sizeof(out->record) + out->record.size;
		if (out->at == size) {
			if (out->record.last) {
				out->over = true;
				if (shutdown(end->fd, SHUT_WR))
					fail("shutdown: %s", strerror(errno));
				return 1;
			}
			if (pause_ms)
				usleep(1000 * pause_ms);
			next_record(end);
			continue;
		}
		done = send(end->fd, out->buffer + out->at, size - out->at,
			    flags | MSG_NOSIGNAL);
		if (done < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (done < 0)
			fail("send: %s", strerror(errno));
		out->at += done;
		sent += done;
	}
	return -1;
}

/* A record's header has come. */
static void check_header(struct end *end)
{
	const struct record *record = &end->in.record;

	if (record->number == end->in.number && record->size <= LARGEST && record->last <= 1)
		return;
	fail("at byte %llu a record begins with number %llx, size %x, last %x",
	     (unsigned long long)end->in.bytes, (unsigned long long)record->number,
	     record->size, record->last);
}

static void check_byte(const struct way *in, uint32_t at, unsigned char byte)
{
	if (byte != pattern(in->number, at))
		fail("record %llu is wrong at %u of %u", (unsigned long long)in->number, at,
		     in->record.size);
}

static void check(struct end *end, const unsigned char *bytes, size_t size)
{
	const uint32_t header = sizeof(struct record);
	struct way *in = &end->in;

	for (; size; size--, bytes++) {
		if (in->over)
			fail("%zu bytes behind the last record", size);
		if (in->at < header)
			((unsigned char *)&in->record)[in->at] = *bytes;
		else
			check_byte(in, in->at - header, *bytes);
		in->at++;
		if (in->at == header)
			check_header(end);
		if (in->at < header || in->at < header + in->record.size)
			continue;
		in->over = in->record.last;
		end->heard_last = end->heard_last || in->record.last;
		in->number++;
		in->at = 0;
	}
}

/* Receive what is there. As send_some(). */
static int receive_some(struct end *end, int flags)
{
	static _Thread_local unsigned char buffer[64 << 10];
	int turns = TURNS;
	size_t size;
	ssize_t came;

	while (turns--) {
		size = 1 + rand_r(&end->in.seed) % sizeof(buffer);
		came = recv(end->fd, buffer, size, flags);
		if (came < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (came < 0)
			fail("recv: %s", strerror(errno));
		if (!came) {
			if (!end->in.over)
				fail("the end came before the last record");
			return 1;
		}
		check(end, buffer, came);
		end->in.bytes += came;
		received += came;
	}
	return -1;
}

static void *sender(void *arg)
{
	while (send_some(arg, 0) != 1)
		;
	return NULL;
}

static void blocking(struct end *end)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, sender, end))
		fail("pthread_create");
	while (receive_some(end, 0) != 1)
		;
	pthread_join(thread, NULL);
}

static void by_edges(struct end *end)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP };
	int epoll = epoll_create1(0);
	int out = 0, in = 0;

	if (fcntl(end->fd, F_SETFL, O_NONBLOCK) || epoll < 0 ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, end->fd, &event))
		fail("epoll: %s", strerror(errno));
	while (out != 1 || in != 1) {
		if (in != 1)
			in = receive_some(end, MSG_DONTWAIT);
		if (out != 1)
			out = send_some(end, MSG_DONTWAIT);
		/* No edge tells of what was left. */
		if (out < 0 || in < 0 || (out == 1 && in == 1))
			continue;
		if (epoll_wait(epoll, &event, 1, 120000) == 0)
			fail("no event for 120 s: out %d in %d", out, in);
	}
	close(epoll);
}

struct task {
	int fd;
	int index;
	double until;
};

static void *run_end(void *arg)
{
	struct task *task = arg;
	struct end end = { .fd = task->fd, .until = task->until };

	end.out.seed = task->index * 77 + 1;
	end.in.seed = task->index * 99 + 2;
	end.out.buffer = malloc(sizeof(struct record) + LARGEST);
	next_record(&end);
	if (task->index % 2)
		by_edges(&end);
	else
		blocking(&end);
	close(end.fd);
	free(end.out.buffer);
	free(task);
	return NULL;
}

static pthread_t begin(int fd, int index, double until)
{
	struct task *task = malloc(sizeof(*task));
	pthread_t thread;

	*task = (struct task){ .fd = fd, .index = index, .until = until };
	if (pthread_create(&thread, NULL, run_end, task))
		fail("pthread_create");
	return thread;
}

static int serve(int port)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(port) };
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	int one = 1, fd, i;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (void *)&here, sizeof(here)) || listen(listener, 1024))
		fail("port %d: %s", port, strerror(errno));
	printf("ready\n");
	fflush(stdout);
	for (i = 0;; i++) {
		fd = accept(listener, NULL, NULL);
		if (fd < 0)
			fail("accept: %s", strerror(errno));
		pthread_detach(begin(fd, i, 0));
	}
}

static int run(const char *host, int port, int connections, double seconds)
{
	struct sockaddr_in there = { .sin_family = AF_INET, .sin_port = htons(port) };
	pthread_t threads[CONNECTIONS];
	double until = now() + seconds;
	int fd, i;

	signal(SIGTERM, on_signal);
	if (connections > CONNECTIONS || inet_pton(AF_INET, host, &there.sin_addr) != 1)
		fail("not so many connections, or no address: %s", host);
	for (i = 0; i < connections; i++) {
		fd = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(fd, (void *)&there, sizeof(there)))
			fail("connect: %s", strerror(errno));
		threads[i] = begin(fd, i, until);
	}
	for (i = 0; i < connections; i++)
		pthread_join(threads[i], NULL);
	printf("{\"sent\": %llu, \"received\": %llu}\n", (unsigned long long)sent,
	       (unsigned long long)received);
	return 0;
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	if ((argc == 3 || argc == 4) && !strcmp(argv[1], "serve")) {
		pause_ms = argc == 4 ? atoi(argv[3]) : 0;
		return serve(atoi(argv[2]));
	}
	if ((argc == 6 || argc == 7) && !strcmp(argv[1], "run")) {
		pause_ms = argc == 7 ? atoi(argv[6]) : 0;
		return run(argv[2], atoi(argv[3]), atoi(argv[4]), atof(argv[5]));
	}
	fail("usage: duplex serve PORT [PAUSE] | run HOST PORT CONNECTIONS SECONDS [PAUSE]");
}
