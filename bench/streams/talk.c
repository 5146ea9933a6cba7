// SPDX-License-Identifier: GPL-2.0
/*
 * talk.c - the two ends of connections that are measured: streams, round trips, and
 * blocks, by TCP or by a socket of the file system.
 *
 * usage: talk serve ADDRESS
 *        talk stream ADDRESS SIZE SECONDS CONNECTIONS
 *        talk trips ADDRESS SIZE SECONDS
 *        talk blocks ADDRESS SIZE SECONDS CONNECTIONS
 *
 * ADDRESS is IP:PORT, of IPv4, or unix:PATH. SIZE is in bytes.
 *
 * serve says "ready", and serves until it is killed. The others print a line of JSON,
 * and fail if anything else came back than was to come:
 *
 * stream  each connection writes SIZE bytes at a time for so many seconds; then the
 *         server says how many have come: {"bytes", "seconds"}
 * trips   SIZE bytes go, and come back, one after the other: {"trips", "seconds"}
 * blocks  a block of SIZE bytes in equal parts by so many new connections, until the
 *         server has all of it; then the next: {"bytes", "blocks", "seconds"}
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX	64
#define SIZE_MAX_BYTES	(256U << 20)
#define BUFFER		(256U << 10)

/* What a connection begins with. */
struct order {
	uint32_t echoes;	/* send back what comes; else count it */
	uint32_t size;		/* of what is sent back at a time */
};

struct address {
	struct sockaddr_storage at;
	socklen_t length;
};

static struct address address;
static uint32_t size, connections;
static volatile bool stop;
static pthread_barrier_t barrier;

static void die(const char *what)
{
	fprintf(stderr, "talk: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void *memory(size_t bytes)
{
	void *found = malloc(bytes ? bytes : 1);

	if (!found)
		die("no memory");
	return memset(found, 0x5a, bytes);
}

static void parse(const char *text)
{
	struct sockaddr_un *file = (struct sockaddr_un *)&address.at;
	struct sockaddr_in *net = (struct sockaddr_in *)&address.at;
	const char *colon = strrchr(text, ':');
	char ip[INET_ADDRSTRLEN];

	if (!strncmp(text, "unix:", 5) && strlen(text + 5) < sizeof(file->sun_path)) {
		file->sun_family = AF_UNIX;
		strcpy(file->sun_path, text + 5);
		address.length = sizeof(*file);
		return;
	}
	errno = EINVAL;
	if (!colon || (size_t)(colon - text) >= sizeof(ip))
		die(text);
	memcpy(ip, text, colon - text);
	ip[colon - text] = '\0';
	net->sin_family = AF_INET;
	net->sin_port = htons(atoi(colon + 1));
	if (inet_pton(AF_INET, ip, &net->sin_addr) != 1)
		die(text);
	address.length = sizeof(*net);
}

static void set_no_delay(int socket)
{
	int on = 1;

	if (address.at.ss_family == AF_INET &&
	    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		die("TCP_NODELAY");
}

static void put(int socket, const void *from, size_t bytes)
{
	const char *at = from;

	while (bytes) {
		ssize_t done = write(socket, at, bytes);

		if (done < 0)
			die("write");
		at += done;
		bytes -= done;
	}
}

/* Returns whether all of it came; false at the end of the stream. */
static bool get(int socket, void *to, size_t bytes)
{
	char *at = to;

	while (bytes) {
		ssize_t done = read(socket, at, bytes);

		if (done < 0)
			die("read");
		if (!done)
			return false;
		at += done;
		bytes -= done;
	}
	return true;
}

/* The server -------------------------------------------------------------- */

static void *serve_one(void *data)
{
	int socket = (int)(intptr_t)data;
	struct order order;
	uint64_t bytes = 0;
	void *buffer;

	if (!get(socket, &order, sizeof(order)) || order.size > SIZE_MAX_BYTES)
		die("a connection without an order");
	if (order.echoes) {
		buffer = memory(order.size);
		while (get(socket, buffer, order.size))
			put(socket, buffer, order.size);
	} else {
		ssize_t done;

		buffer = memory(BUFFER);
		while ((done = read(socket, buffer, BUFFER)) > 0)
			bytes += done;
		if (done < 0)
			die("read");
		put(socket, &bytes, sizeof(bytes));
	}
	free(buffer);
	close(socket);
	return NULL;
}

static void serve(void)
{
	int on = 1, listener = socket(address.at.ss_family, SOCK_STREAM, 0);

	if (address.at.ss_family == AF_UNIX)
		unlink(((struct sockaddr_un *)&address.at)->sun_path);
	if (listener < 0 ||
	    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(listener, (struct sockaddr *)&address.at, address.length) ||
	    listen(listener, CONNECTIONS_MAX))
		die("listen");
	puts("ready");
	fflush(stdout);
	for (;;) {
		int one = accept(listener, NULL, NULL);
		pthread_t thread;

		if (one < 0)
			die("accept");
		set_no_delay(one);
		errno = pthread_create(&thread, NULL, serve_one,
				       (void *)(intptr_t)one);
		if (errno)
			die("a thread");
		pthread_detach(thread);
	}
}

/* The clients ------------------------------------------------------------- */

static int connected(bool echoes)
{
	struct order order = { .echoes = echoes, .size = size };
	int one = socket(address.at.ss_family, SOCK_STREAM, 0);

	if (one < 0 ||
	    connect(one, (struct sockaddr *)&address.at, address.length))
		die("connect");
	set_no_delay(one);
	put(one, &order, sizeof(order));
	return one;
}

/* All that was sent has come. */
static void finish(int socket, uint64_t sent)
{
	uint64_t came;

	if (shutdown(socket, SHUT_WR))
		die("shutdown");
	if (!get(socket, &came, sizeof(came)))
		die("the server ended");
	errno = EPROTO;
	if (came != sent)
		die("not all has come");
	close(socket);
}

static void wait_all(void)
{
	int err = pthread_barrier_wait(&barrier);

	if (err && err != PTHREAD_BARRIER_SERIAL_THREAD)
		die("a barrier");
}

static void *stream_one(void *sent)
{
	char *block = memory(size);
	uint64_t bytes = 0;
	int one = connected(false);

	wait_all();
	while (!stop) {
		put(one, block, size);
		bytes += size;
	}
	finish(one, bytes);
	free(block);
	*(uint64_t *)sent = bytes;
	return NULL;
}

static void *blocks_one(void *number)
{
	uint32_t part = size / connections;
	char *block;

	/* The first has what is left over. */
	if (!number)
		part += size % connections;
	block = memory(part);
	for (;;) {
		int one;

		wait_all();
		if (stop)
			break;
		one = connected(false);
		put(one, block, part);
		finish(one, part);
		wait_all();
	}
	free(block);
	return NULL;
}

static void begin(pthread_t *thread, void *(*run)(void *), void *data)
{
	errno = pthread_create(thread, NULL, run, data);
	if (errno)
		die("a thread");
}

static void stream(double seconds)
{
	uint64_t sent[CONNECTIONS_MAX], bytes = 0;
	pthread_t threads[CONNECTIONS_MAX];
	double began;
	uint32_t i;

	for (i = 0; i < connections; i++)
		begin(&threads[i], stream_one, &sent[i]);
	wait_all();
	began = now();
	usleep(seconds * 1e6);
	stop = true;
	for (i = 0; i < connections; i++) {
		pthread_join(threads[i], NULL);
		bytes += sent[i];
	}
	printf("{\"bytes\": %ju, \"seconds\": %.6f}\n", (uintmax_t)bytes,
	       now() - began);
}

static void blocks(double seconds)
{
	pthread_t threads[CONNECTIONS_MAX];
	uint64_t count = 0;
	double began;
	uint32_t i;

	for (i = 0; i < connections; i++)
		begin(&threads[i], blocks_one, (void *)(intptr_t)i);
	began = now();
	while (!count || now() - began < seconds) {
		wait_all();
		wait_all();
		count++;
	}
	seconds = now() - began;
	stop = true;
	wait_all();
	for (i = 0; i < connections; i++)
		pthread_join(threads[i], NULL);
	printf("{\"bytes\": %ju, \"blocks\": %ju, \"seconds\": %.6f}\n",
	       (uintmax_t)(count * size), (uintmax_t)count, seconds);
}

static void *stop_after(void *seconds)
{
	usleep(*(double *)seconds * 1e6);
	stop = true;
	return NULL;
}

static void trips(double seconds)
{
	char *block = memory(size);
	pthread_t alarm;
	uint64_t count = 0;
	int one = connected(true);
	double began;

	/* Before the other thread's clock, which ends it. */
	began = now();
	begin(&alarm, stop_after, &seconds);
	do {
		put(one, block, size);
		if (!get(one, block, size))
			die("the server ended");
		count++;
	} while (!stop);
	printf("{\"trips\": %ju, \"seconds\": %.6f}\n", (uintmax_t)count,
	       now() - began);
	free(block);
}

static void usage(void)
{
	fputs("usage: talk serve ADDRESS\n"
	      "       talk stream|blocks ADDRESS SIZE SECONDS CONNECTIONS\n"
	      "       talk trips ADDRESS SIZE SECONDS\n"
	      "ADDRESS is IP:PORT or unix:PATH\n", stderr);
	exit(2);
}

int main(int argc, char **argv)
{
	double seconds;

	if (argc < 3)
		usage();
	parse(argv[2]);
	if (!strcmp(argv[1], "serve") && argc == 3)
		serve();
	if (argc < 5)
		usage();
	size = atoi(argv[3]);
	seconds = atof(argv[4]);
	connections = argc > 5 ? atoi(argv[5]) : 1;
	if (!size || size > SIZE_MAX_BYTES || seconds <= 0 || !connections ||
	    connections > CONNECTIONS_MAX)
		usage();
	errno = pthread_barrier_init(&barrier, NULL, connections + 1);
	if (errno)
		die("a barrier");
	if (!strcmp(argv[1], "stream"))
		stream(seconds);
	else if (!strcmp(argv[1], "blocks"))
		blocks(seconds);
	else if (!strcmp(argv[1], "trips"))
		trips(seconds);
	else
		usage();
	return 0;
}
