// SPDX-License-Identifier: GPL-2.0
/*
 * stream.c - one long TCP stream of known bytes, and how long it ever stood
 * still.
 *
 *	stream receive PORT             one connection, then the report
 *	stream send HOST PORT [RATE]    until SIGTERM, at RATE MB/s at most
 *
 * Both say each tenth of a second how they stand, and at the end report in one
 * line of JSON. The receiver checks every byte and measures the gaps between
 * arrivals, the one that goes on included. Status 0 only if the stream ended
 * as its sender wanted, with nothing wrong in it.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tool.h"

#define CHUNK		(256U << 10)
#define TICK		0.1
#define GAPS		8
#define SHOWN		16	/* words that are wrong and shown */
#define STEP		0x9e3779b97f4a7c15ULL
#define FIRST		0x7f4a7c15ULL

static volatile sig_atomic_t ending;

static void on_signal(int number)
{
	(void)number;
	ending = 1;
}

/* Word number n of the stream. */
static uint64_t word(uint64_t n)
{
	return n * STEP + FIRST;
}

/* Which word of the stream this is: an odd step has an inverse. */
static uint64_t number_of(uint64_t found)
{
	uint64_t inverse = STEP;
	int i;

	/* Newton's iteration: 3 bits are right at first, then twice as many. */
	for (i = 0; i < 5; i++)
		inverse *= 2 - STEP * inverse;
	return (found - FIRST) * inverse;
}

static uint64_t buffer[CHUNK / sizeof(uint64_t)];

/* The receiver ------------------------------------------------------------ */

/* The longest gaps, longest first: when they began, and their length. */
static struct {
	double at;
	double length;
} gaps[GAPS];

static void note_gap(double at, double length)
{
	int n;

	if (length <= gaps[GAPS - 1].length)
		return;
	for (n = GAPS - 1; n > 0 && gaps[n - 1].length < length; n--)
		gaps[n] = gaps[n - 1];
	gaps[n].at = at;
	gaps[n].length = length;
}

/*
 * Says what is there instead of the stream, in whole words: another part of it
 * tells of frames that were mixed up, anything else of memory that was.
 */
static void __attribute__((noreturn))
wrong(const unsigned char *data, size_t size, uint64_t position)
{
	size_t skip = (8 - position % 8) % 8;
	uint64_t began = position;
	size_t words, n, bad = 0;
	uint64_t found, at;

	fprintf(stderr, "FAILED: the stream is wrong at byte %llu, %zu before the end of what came\n",
		(unsigned long long)position, size);
	if (skip > size)
		exit(1);
	data += skip;
	position += skip;
	words = (size - skip) / 8;
	for (n = 0; n < words; n++) {
		memcpy(&found, data + 8 * n, 8);
		if (found == word(position / 8 + n))
			continue;
		if (bad++ >= SHOWN)
			continue;
		at = number_of(found) * 8;
		fprintf(stderr, "+%llu: %016llx", (unsigned long long)(position - began + 8 * n),
			(unsigned long long)found);
		if (at < position + (1ULL << 32))
			fprintf(stderr, ", which is byte %llu", (unsigned long long)at);
		fputc('\n', stderr);
	}
	fprintf(stderr, "%zu of %zu words are wrong\n", bad, words);
	exit(1);
}

/* Checks bytes that begin anywhere within a word. */
static void check(const unsigned char *data, size_t size, uint64_t position)
{
	uint64_t expect;
	size_t skip, n;

	while (size) {
		expect = word(position / 8);
		skip = position % 8;
		n = 8 - skip < size ? 8 - skip : size;
		if (memcmp(data, (unsigned char *)&expect + skip, n))
			wrong(data, size, position);
		data += n;
		size -= n;
		position += n;
	}
}

static int accept_one(uint16_t port)
{
	struct sockaddr_in6 address = {
		.sin6_family = AF_INET6,
		.sin6_port = htons(port),
	};
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	int one = 1;
	int got;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 1))
		fail("port %u: %s", port, strerror(errno));
	puts("ready");
	fflush(stdout);
	got = accept(fd, NULL, NULL);
	if (got < 0)
		fail("accept: %s", strerror(errno));
	close(fd);
	return got;
}

static void receive(uint16_t port)
{
	double start, last, said, t;
	uint64_t bytes = 0;
	struct pollfd wait = { .events = POLLIN };
	ssize_t n;
	int i;

	wait.fd = accept_one(port);
	start = now();
	last = start;
	said = start;
	for (;;) {
		int readable = poll(&wait, 1, (int)(TICK * 1000));

		t = now();
		if (t - said >= TICK) {
			printf("%.3f %llu %.3f\n", t - start, (unsigned long long)bytes,
			       t - last > gaps[0].length ? t - last : gaps[0].length);
			fflush(stdout);
			said = t;
		}
		if (readable <= 0)
			continue;
		n = recv(wait.fd, buffer, sizeof(buffer), 0);
		if (n < 0)
			fail("after %llu bytes: %s", (unsigned long long)bytes, strerror(errno));
		t = now();
		note_gap(last - start, t - last);
		last = t;
		if (n == 0)
			break;
		check((unsigned char *)buffer, (size_t)n, bytes);
		bytes += (uint64_t)n;
	}
	printf("{\"bytes\": %llu, \"seconds\": %.3f, \"gaps\": [", (unsigned long long)bytes,
	       last - start);
	for (i = 0; i < GAPS; i++)
		printf("%s[%.3f, %.4f]", i ? ", " : "", gaps[i].at, gaps[i].length);
	puts("]}");
}

/* The sender -------------------------------------------------------------- */

static void send_stream(const char *host, const char *port, double rate)
{
	struct sigaction action = { .sa_handler = on_signal };
	size_t chunk = rate > 0 ? 16U << 10 : sizeof(buffer);
	double start, said, t;
	uint64_t bytes = 0;
	int fd;

	/* No SA_RESTART: a send that waits must end as well. */
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	fd = connected(SOCK_STREAM, host, port);
	start = now();
	said = start;
	while (!ending) {
		size_t i, done = 0;

		for (i = 0; i < chunk / 8; i++)
			buffer[i] = word(bytes / 8 + i);
		while (done < chunk) {
			ssize_t n = send(fd, (char *)buffer + done, chunk - done, MSG_NOSIGNAL);

			if (n < 0 && errno == EINTR) {
				if (ending)
					break;
				continue;
			}
			if (n < 0)
				fail("after %llu bytes: %s", (unsigned long long)(bytes + done),
				     strerror(errno));
			done += (size_t)n;
		}
		bytes += done;
		t = now();
		if (t - said >= TICK) {
			printf("%.3f %llu\n", t - start, (unsigned long long)bytes);
			fflush(stdout);
			said = t;
		}
		/* Who is early sleeps; who is late because of a stall catches up. */
		if (rate > 0 && (double)bytes / rate > t - start)
			usleep((useconds_t)(((double)bytes / rate - (t - start)) * 1e6));
	}
	shutdown(fd, SHUT_WR);
	/* The receiver hangs up once it has read all. */
	if (recv(fd, buffer, sizeof(buffer), 0) != 0)
		fail("the receiver did not hang up in order: %s", strerror(errno));
	printf("{\"bytes\": %llu, \"seconds\": %.3f}\n", (unsigned long long)bytes, now() - start);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "receive"))
		receive((uint16_t)atoi(argv[2]));
	else if ((argc == 4 || argc == 5) && !strcmp(argv[1], "send"))
		send_stream(argv[2], argv[3], argc == 5 ? atof(argv[4]) * 1e6 : 0);
	else
		fail("usage: stream receive PORT | send HOST PORT [MB/s]");
	return 0;
}
