// SPDX-License-Identifier: GPL-2.0
/*
 * beat.c - numbered datagrams at a steady pace, and which of them were missing.
 *
 *	beat receive PORT            until SIGTERM
 *	beat send HOST PORT RATE     RATE datagrams a second, until SIGTERM
 *
 * The receiver says each tenth of a second
 *
 *	SECONDS RECEIVED MISSING TWICE
 *
 * where MISSING are the numbers below the highest that have not come (yet: what
 * was overtaken counts until it is there), and TWICE those that came again. So
 * whoever knows when something was done knows what it cost.
 */
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "tool.h"

#define TICK	0.1
#define NUMBERS	(1U << 26)	/* a bit each: eighteen hours at 1,000 a second */

static volatile sig_atomic_t ending;

static void on_signal(int number)
{
	(void)number;
	ending = 1;
}

static unsigned char seen[NUMBERS / 8];

static void receive(uint16_t port)
{
	struct sockaddr_in6 address = {
		.sin6_family = AF_INET6,
		.sin6_port = htons(port),
	};
	struct pollfd wait = { .events = POLLIN };
	unsigned long received = 0, twice = 0, next = 0;
	double start, said, t;
	uint64_t number;

	wait.fd = socket(AF_INET6, SOCK_DGRAM, 0);
	if (wait.fd < 0 || bind(wait.fd, (struct sockaddr *)&address, sizeof(address)))
		fail("port %u: %s", port, strerror(errno));
	puts("ready");
	fflush(stdout);
	start = now();
	said = start;
	while (!ending) {
		int readable = poll(&wait, 1, (int)(TICK * 1000));

		t = now();
		if (t - said >= TICK) {
			printf("%.3f %lu %lu %lu\n", t - start, received, next - received, twice);
			fflush(stdout);
			said = t;
		}
		if (readable <= 0 || recv(wait.fd, &number, sizeof(number), 0) != sizeof(number))
			continue;
		if (number >= NUMBERS)
			fail("number %llu", (unsigned long long)number);
		if (seen[number / 8] & 1 << number % 8) {
			twice++;
			continue;
		}
		seen[number / 8] |= 1 << number % 8;
		received++;
		if (number >= next)
			next = number + 1;
	}
	printf("%.3f %lu %lu %lu\n", now() - start, received, next - received, twice);
}

static void send_all(const char *host, const char *port, double rate)
{
	int fd = connected(SOCK_DGRAM, host, port);
	double start = now(), early;
	uint64_t number;

	for (number = 0; !ending && number < NUMBERS; number++) {
		/* What cannot be sent (no route, no buffer) is missing, too. */
		if (send(fd, &number, sizeof(number), 0) < 0 && errno == EINTR)
			break;
		early = (double)(number + 1) / rate - (now() - start);
		if (early > 0)
			usleep((useconds_t)(early * 1e6));
		else if (early < -TICK)
			start -= early;	/* it stood still: do not make up for it */
	}
	printf("%llu\n", (unsigned long long)number);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };

	/* No SA_RESTART: what waits must end as well. */
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	if (argc == 3 && !strcmp(argv[1], "receive"))
		receive((uint16_t)atoi(argv[2]));
	else if (argc == 5 && !strcmp(argv[1], "send") && atof(argv[4]) > 0)
		send_all(argv[2], argv[3], atof(argv[4]));
	else
		fail("usage: beat receive PORT | send HOST PORT PER_SECOND");
	return 0;
}
