/* SPDX-License-Identifier: GPL-2.0 */
/*
 * outside.h - a channel's memory as its host sees it, for programs that play a guest whose
 * CPUs stand still: what the QEMUs of both guests have open.
 */
#ifndef OUTSIDE_H
#define OUTSIDE_H

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "region.h"

#define MEMORY		"/memfd:vmloop-channel"
#define MEMORIES_MAX	64

struct memory {
	ino_t inode;
	char path[64];
};

/* The channels' memories that a QEMU has open. */
static inline int memories_of(const char *pid, struct memory *memory)
{
	char folder[64], target[256];
	struct dirent *entry;
	struct stat status;
	int count = 0;
	ssize_t size;
	DIR *dir;

	snprintf(folder, sizeof(folder), "/proc/%.20s/fd", pid);
	dir = opendir(folder);
	if (!dir)
		fail("%s: %s", folder, strerror(errno));
	while ((entry = readdir(dir))) {
		size = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);
		if (size < 0)
			continue;
		target[size] = 0;
		if (strncmp(target, MEMORY, strlen(MEMORY)) ||
		    fstatat(dirfd(dir), entry->d_name, &status, 0))
			continue;
		if (count == MEMORIES_MAX)
			fail("%s: more than %d channels", folder, MEMORIES_MAX);
		memory[count].inode = status.st_ino;
		snprintf(memory[count].path, sizeof(memory[count].path), "%.30s/%.20s", folder,
			 entry->d_name);
		count++;
	}
	closedir(dir);
	return count;
}

static inline uint8_t *map_memory(const char *path)
{
	struct stat status;
	uint8_t *base;
	int fd;

	fd = open(path, O_RDWR);
	if (fd < 0 || fstat(fd, &status))
		fail("%s: %s", path, strerror(errno));
	base = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		fail("%s: %s", path, strerror(errno));
	close(fd);
	return base;
}

/* The region of the pair's channel: an earlier one may not be unplugged yet. */
static inline uint8_t *region_of(const char *pid, const char *peer)
{
	struct memory mine[MEMORIES_MAX], theirs[MEMORIES_MAX];
	int n, m, mine_count, theirs_count;
	uint8_t *base;

	mine_count = memories_of(pid, mine);
	theirs_count = memories_of(peer, theirs);
	for (n = 0; n < mine_count; n++) {
		for (m = 0; m < theirs_count && theirs[m].inode != mine[n].inode; m++)
			;
		if (m == theirs_count)
			continue;
		base = map_memory(mine[n].path);
		if (region_side(base, 0)->state == VMLOOP_SIDE_READY &&
		    region_side(base, 1)->state == VMLOOP_SIDE_READY)
			return base;
	}
	fail("no channel that is up: %d and %d memories", mine_count, theirs_count);
}

#endif /* OUTSIDE_H */
