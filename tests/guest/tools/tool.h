/* SPDX-License-Identifier: GPL-2.0 */
/*
 * tool.h - what the programs that tests run in guests share.
 */
#ifndef TOOL_H
#define TOOL_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

/* Says what went wrong and ends the program with status 1. */
static inline void __attribute__((noreturn, format(printf, 1, 2)))
fail(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	fputs("FAILED: ", stderr);
	vfprintf(stderr, format, list);
	fputc('\n', stderr);
	va_end(list);
	exit(1);
}

/* Seconds of a clock that never jumps. */
static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Scatters a number over all 64 bits (the finalizer of splitmix64). */
static inline uint64_t scatter(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

/* Connects to a numeric IPv4 or IPv6 address. */
static inline int connected_by(int type, int protocol, const char *host, const char *port)
{
	struct sockaddr_in6 v6 = {
		.sin6_family = AF_INET6,
		.sin6_port = htons((uint16_t)atoi(port)),
	};
	struct sockaddr_in v4 = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)atoi(port)),
	};
	struct sockaddr *address = (struct sockaddr *)&v4;
	socklen_t size = sizeof(v4);
	int fd;

	if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) {
		address = (struct sockaddr *)&v6;
		size = sizeof(v6);
	} else if (inet_pton(AF_INET, host, &v4.sin_addr) != 1) {
		fail("%s: not a numeric address", host);
	}
	fd = socket(address->sa_family, type, protocol);
	if (fd < 0 || connect(fd, address, size))
		fail("connect to %s: %s", host, strerror(errno));
	return fd;
}

static inline int connected(int type, const char *host, const char *port)
{
	return connected_by(type, 0, host, port);
}

#endif /* TOOL_H */
