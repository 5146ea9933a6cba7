/* SPDX-License-Identifier: GPL-2.0 */
/*
 * shared.h - shared memory for tests of the ring: two lanes and one ring.
 *
 * Each party gets a mapping of its own in which what it must not write is read
 * only and guard pages surround everything: a stray write or read is a fault.
 *
 *	page 0		lane of the producer	producer writes
 *	page 1		lane of the consumer	consumer writes
 *	guard
 *	page 3 ...	the ring		producer writes
 *	guard
 */
#ifndef SHARED_H
#define SHARED_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring.h"

#define PAGE	4096U

struct view {
	struct vmloop_shm_lane *producer;
	struct vmloop_shm_lane *consumer;
	u8 *data;
	u8 *map;
	size_t length;
};

enum party { PRODUCER, CONSUMER, ADVERSARY };

__attribute__((noreturn, unused))
static void shared_die(const char *what)
{
	perror(what);
	exit(2);
}

/* Memory for a ring of @size bytes. */
__attribute__((unused))
static int shared_create(u32 size)
{
	int fd = memfd_create("ring", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, (off_t)(3 * PAGE + (size_t)size)) != 0)
		shared_die("memfd");
	return fd;
}

__attribute__((unused))
static void shared_map(struct view *view, int fd, u32 size, enum party party)
{
	int producer = party == CONSUMER ? PROT_READ : PROT_READ | PROT_WRITE;
	int consumer = party == PRODUCER ? PROT_READ : PROT_READ | PROT_WRITE;
	size_t length = (size_t)size + 5 * PAGE;
	const int flags = MAP_SHARED | MAP_FIXED;
	u8 *map;

	/* One guard page before all, then the file as above, and one after. */
	map = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED ||
	    mmap(map + PAGE, PAGE, producer, flags, fd, 0) == MAP_FAILED ||
	    mmap(map + 2 * PAGE, PAGE, consumer, flags, fd, PAGE) == MAP_FAILED ||
	    mmap(map + 4 * PAGE, size, producer, flags, fd, 3 * PAGE) == MAP_FAILED)
		shared_die("mmap");
	view->producer = (struct vmloop_shm_lane *)(map + PAGE);
	view->consumer = (struct vmloop_shm_lane *)(map + 2 * PAGE);
	view->data = map + 4 * PAGE;
	view->map = map;
	view->length = length;
}

__attribute__((unused))
static void shared_unmap(struct view *view)
{
	munmap(view->map, view->length);
}

#endif /* SHARED_H */
