// SPDX-License-Identifier: GPL-2.0
/*
 * ask.c - write a word to a file at a steady pace.
 *
 *	ask FILE WORD MILLISECONDS        until SIGTERM
 *
 * After a write that takes longer than that the next one follows at once; writes that were
 * missed are not made up for. A shell cannot keep 2 ms: on a slow kernel each sleep that it
 * begins takes longer.
 */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "tool.h"

static volatile sig_atomic_t ending;

static void on_signal(int number)
{
	(void)number;
	ending = 1;
}

int main(int argc, char **argv)
{
	struct sigaction end = { .sa_handler = on_signal };
	double next, pace, left;
	struct timespec rest;
	ssize_t written;
	size_t size;
	int fd;

	pace = argc == 4 ? atof(argv[3]) / 1000 : 0;
	if (!(pace > 0 && pace <= 3600))
		fail("usage: ask FILE WORD MILLISECONDS");
	size = strlen(argv[2]);
	fd = open(argv[1], O_WRONLY);
	if (fd < 0)
		fail("%s: %s", argv[1], strerror(errno));
	if (sigaction(SIGTERM, &end, NULL))
		fail("SIGTERM: %s", strerror(errno));
	next = now();
	while (!ending) {
		written = pwrite(fd, argv[2], size, 0);
		if (written != (ssize_t)size)
			fail("%s: %s", argv[1], written < 0 ? strerror(errno) : "a part was written");
		next += pace;
		left = next - now();
		if (left <= 0) {
			next -= left;
			continue;
		}
		rest.tv_sec = (time_t)left;
		rest.tv_nsec = (long)((left - (double)rest.tv_sec) * 1e9);
		nanosleep(&rest, NULL);
	}
	return 0;
}
