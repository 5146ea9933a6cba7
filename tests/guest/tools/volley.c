// SPDX-License-Identifier: GPL-2.0
/*
 * volley.c - datagrams to several hosts in turn, by one socket that all of them
 * share: whoever holds up the socket holds up what is for the others.
 *
 *	volley PORT BYTES RATE COUNT BUFFER HOST...
 *
 * COUNT datagrams of BYTES to each host, RATE a second; COUNT 0: until SIGTERM;
 * RATE 0: as fast as it goes. BUFFER is the socket's send buffer. Each begins
 * with its number, as those of beat do. What cannot be sent for want of a route
 * does not count. At the end it says, as JSON, how many were sent to each
 * host, and how long the longest call took, in seconds.
 */
#include <signal.h>
#include <unistd.h>

#include "tool.h"

#define HOSTS_MAX	8

static volatile sig_atomic_t ending;

static void on_signal(int number)
{
	(void)number;
	ending = 1;
}

static char datagram[65536];

/* Returns how long it took. */
static double send_one(int fd, const struct sockaddr_in *to, size_t bytes, uint64_t *sent)
{
	const struct sockaddr *address = (const void *)to;
	double begin = now();

	memcpy(datagram, sent, sizeof(*sent));
	if (sendto(fd, datagram, bytes, 0, address, sizeof(*to)) == (ssize_t)bytes)
		(*sent)++;
	else if (errno != EINTR && errno != ENETUNREACH && errno != EHOSTUNREACH)
		fail("send: %s", strerror(errno));
	return now() - begin;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };
	double rate, start, early, took, longest = 0;
	struct sockaddr_in hosts[HOSTS_MAX] = {};
	unsigned long long count, round;
	uint64_t sent[HOSTS_MAX] = {};
	int fd, buffer, n, host_count;
	size_t bytes;

	host_count = argc - 6;
	if (host_count < 1 || host_count > HOSTS_MAX)
		fail("usage: volley PORT BYTES RATE COUNT BUFFER HOST...");
	bytes = (size_t)atoi(argv[2]);
	rate = atof(argv[3]);
	count = strtoull(argv[4], NULL, 10);
	buffer = atoi(argv[5]) / 2;	/* the kernel doubles it */
	if (bytes < sizeof(sent[0]) || bytes > sizeof(datagram))
		fail("%zu bytes are too few or too many", bytes);
	for (n = 0; n < host_count; n++) {
		hosts[n].sin_family = AF_INET;
		hosts[n].sin_port = htons((uint16_t)atoi(argv[1]));
		if (inet_pton(AF_INET, argv[6 + n], &hosts[n].sin_addr) != 1)
			fail("%s: not a numeric address", argv[6 + n]);
	}
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof(buffer)))
		fail("socket: %s", strerror(errno));
	/* No SA_RESTART: what waits must end as well. */
	sigaction(SIGTERM, &action, NULL);

	puts("ready");
	fflush(stdout);
	start = now();
	for (round = 0; !ending && (!count || round < count); round++) {
		for (n = 0; n < host_count && !ending; n++) {
			took = send_one(fd, &hosts[n], bytes, &sent[n]);
			if (took > longest)
				longest = took;
		}
		early = rate > 0 ? (double)(round + 1) / rate - (now() - start) : 0;
		if (early > 0)
			usleep((useconds_t)(early * 1e6));
	}
	printf("{\"sent\": [");
	for (n = 0; n < host_count; n++)
		printf("%s%llu", n ? ", " : "", (unsigned long long)sent[n]);
	printf("], \"longest\": %.3f}\n", longest);
	return 0;
}
