// SPDX-License-Identifier: GPL-2.0
/*
 * frozen.c - plays a guest that stands still, in its host: the consumer's
 * position in its channel moves as we like, while its own modules do nothing.
 *
 *	frozen PID PEER SIDE read BYTES MS	so many bytes each MS milliseconds,
 *						until SIGTERM; says how many in all
 *	frozen PID PEER SIDE beyond		further than the peer has produced
 *	frozen PID PEER SIDE between		no multiple of a record's alignment
 *	frozen PID PEER SIDE back		where it was before
 *
 * The last three wait until there is something to read, and write once.
 *
 * PID and PEER are the QEMUs of the guest and of its peer, SIDE the side of the
 * channel that the guest is. The memory is the one that both have open. Nothing
 * that is "read" is looked at, and no doorbell is rung.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "region.h"

#define MEMORY		"/memfd:vmloop-channel"
#define MEMORIES_MAX	64

/* The peer looks at our position now and then: a small step back it may not see. */
#define FAR		(1U << 30)

static volatile sig_atomic_t ending;

static void on_signal(int number)
{
	(void)number;
	ending = 1;
}

struct memory {
	ino_t inode;
	char path[64];
};

/* The channels' memories that a QEMU has open. */
static int memories_of(const char *pid, struct memory *memory)
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

static uint8_t *map(const char *path)
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
static uint8_t *region_of(const char *pid, const char *peer)
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
		base = map(mine[n].path);
		if (region_side(base, 0)->state == VMLOOP_SIDE_READY &&
		    region_side(base, 1)->state == VMLOOP_SIDE_READY)
			return base;
	}
	fail("no channel that is up: %d and %d memories", mine_count, theirs_count);
}

/* Never beyond what is there: what the peer sees is slow, and no nonsense. */
static void read_slowly(volatile struct vmloop_shm_lane *ours,
			const volatile struct vmloop_shm_lane *theirs, uint32_t bytes, double pause)
{
	uint32_t step, begin = ours->rx_tail;

	puts("ready");
	fflush(stdout);
	while (!ending) {
		step = __atomic_load_n(&theirs->tx_head, __ATOMIC_ACQUIRE) - ours->rx_tail;
		if (step > bytes)
			step = bytes;
		__atomic_store_n(&ours->rx_tail, ours->rx_tail + step, __ATOMIC_RELEASE);
		usleep((useconds_t)(pause * 1e6));
	}
	printf("%u\n", ours->rx_tail - begin);
}

/* One position that cannot be, while there is something to read. */
static void lie(volatile struct vmloop_shm_lane *ours,
		const volatile struct vmloop_shm_lane *theirs, uint32_t distance)
{
	puts("ready");
	fflush(stdout);
	while (!ending && theirs->tx_head == ours->rx_tail)
		usleep(500);
	ours->rx_tail += distance;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };
	const char *what = argc > 4 ? argv[4] : "";
	volatile struct vmloop_shm_lane *ours;
	const volatile struct vmloop_shm_lane *theirs;
	unsigned int side;
	uint8_t *base;

	if (argc != 5 && argc != 7)
		fail("usage: frozen PID PEER SIDE read BYTES MS | beyond | between | back");
	/* No SA_RESTART: what sleeps must end as well. */
	sigaction(SIGTERM, &action, NULL);
	base = region_of(argv[1], argv[2]);
	side = (unsigned int)atoi(argv[3]);
	ours = region_lane(base, side, region_packets(base));
	theirs = region_lane(base, side + 1, region_packets(base));

	if (!strcmp(what, "read") && argc == 7)
		read_slowly(ours, theirs, (uint32_t)atoi(argv[5]), atof(argv[6]) / 1000);
	else if (!strcmp(what, "beyond"))
		lie(ours, theirs, FAR);
	else if (!strcmp(what, "between"))
		lie(ours, theirs, VMLOOP_RECORD_ALIGN / 2);
	else if (!strcmp(what, "back"))
		lie(ours, theirs, -FAR);
	else
		fail("no idea: %s", what);
	return 0;
}
