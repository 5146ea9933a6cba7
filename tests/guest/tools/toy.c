// SPDX-License-Identifier: GPL-2.0
/*
 * toy.c - uses lanes of the toy path (kernel/paths/toy/), whose other end is an echo.
 *
 *	toy churn PEER KIND RING COUNT THREADS	COUNT times: open a lane, have some
 *						echoed, compare, close it
 *	toy flow PEER KIND RING LANES SECONDS	has as much echoed as it can, in
 *						each lane at the same time; now and
 *						then a lane goes on in another ring;
 *						says how much, and how much by
 *						the lane that carried least
 *	toy open PEER KIND RING LANES		opens lanes, one after the other, says
 *						"ready", and keeps them until it is ended
 *	toy refer PEER KIND WINDOW THREADS SECONDS	puts bytes into windows of so many
 *						bytes and has references to them echoed,
 *						and wrong ones now and then; windows come
 *						and go
 *	toy keep PEER KIND WINDOW [TRIES]	has a window, says "ready", goes on as
 *						above until it has ended, and says that;
 *						if it is refused, tries again each tenth
 *						of a second
 *	toy hold PEER KIND RING LANES		fills lanes without reading, and the
 *						larger rings that they go on in, says
 *						"ready", waits until they have ended,
 *						and says how many bytes were sent,
 *						counted as unread, and came back
 *	toy stuck PEER KIND RING		reads into memory, and writes from
 *						memory, whose pages nobody brings
 *						(userfaultfd), says "ready" when both
 *						wait for that, brings them at SIGUSR1,
 *						and says what came of both
 *
 * KIND is records or bytes, PEER an identity in decimal. Prints one line of JSON; what
 * does not come back as it was sent ends the program with an error.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tool.h"
#include "vmloop_lanes.h"
#include "../../../kernel/paths/toy/toy.h"

#define THREADS_MAX	1024
#define REFERRING_RING	16384

static struct vmloop_toy_open what;
static double until;
static unsigned long rounds;
static unsigned long churned, echoed, moved, least = ULONG_MAX;
static pthread_mutex_t least_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t window_size;
static unsigned long referred, refused, windows;

/* Waits so many seconds, if need be, until the peer has let go of lanes that were closed. */
static int open_lane_within(double seconds)
{
	int fd = open("/dev/vmloop_toy", O_RDWR | O_CLOEXEC);
	double end = now() + seconds;

	if (fd < 0)
		fail("/dev/vmloop_toy: %s", strerror(errno));
	while (ioctl(fd, VMLOOP_TOY_OPEN, &what)) {
		if (errno != ENOSPC || now() >= end)
			fail("no lane: %s", strerror(errno));
		usleep(1000);
	}
	return fd;
}

static int open_lane(void)
{
	return open_lane_within(0);
}

/*
 * To a ring of another size: there may be no memory, the peer still read the one before, or not
 * follow at all (a relay).
 */
static void move_lane(int fd, uint32_t size)
{
	if (!ioctl(fd, VMLOOP_TOY_MOVE, &size))
		__atomic_fetch_add(&moved, 1, __ATOMIC_RELAXED);
	else if (errno != EBUSY && errno != ENOSPC && errno != EOPNOTSUPP)
		fail("the ring does not move: %s", strerror(errno));
}

/* A chunk's bytes say which chunk of which thread it is. */
static void fill(uint8_t *at, size_t size, uint64_t salt)
{
	uint64_t word = 0;
	size_t n;

	for (n = 0; n < size; n++) {
		if (n % 8 == 0)
			word = scatter(salt + n);
		at[n] = (uint8_t)(word >> n % 8 * 8);
	}
}

static void put_all(int fd, const uint8_t *from, size_t size)
{
	ssize_t now;

	for (; size; size -= (size_t)now, from += now) {
		now = write(fd, from, size);
		if (now <= 0)
			fail("write: %s", strerror(errno));
	}
}

static void get_all(int fd, uint8_t *to, size_t size)
{
	ssize_t now;

	for (; size; size -= (size_t)now, to += now) {
		now = read(fd, to, size);
		if (now <= 0)
			fail("read: %s", now ? strerror(errno) : "the lane has ended");
	}
}

/* Has some bytes echoed: what a ring can take, so that nobody waits for us. */
static size_t echo(int fd, uint8_t *sent, uint8_t *came, uint64_t salt)
{
	size_t most = what.ring_size / 4 - sizeof(struct vmloop_shm_record);
	size_t size = scatter(salt) % most + 1;

	fill(sent, size, salt);
	put_all(fd, sent, size);
	get_all(fd, came, size);
	if (memcmp(sent, came, size))
		fail("%zu bytes did not come back as they were sent", size);
	return size;
}

static void *churn(void *argument)
{
	uint64_t salt = scatter((uintptr_t)argument + 1);
	uint8_t *sent = malloc(what.ring_size), *came = malloc(what.ring_size);
	size_t bytes;
	int fd;

	while (__atomic_fetch_add(&churned, 1, __ATOMIC_RELAXED) < rounds) {
		fd = open_lane_within(20);
		bytes = echo(fd, sent, came, salt++);
		close(fd);
		__atomic_fetch_add(&echoed, bytes, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void *flow(void *argument)
{
	uint64_t salt = scatter((uintptr_t)argument + 1);
	uint8_t *sent = malloc(what.ring_size), *came = malloc(what.ring_size);
	int fd = open_lane();
	unsigned long bytes = 0;

	while (now() < until) {
		if (scatter(salt) % 8 == 0)
			move_lane(fd, what.ring_size << scatter(salt + 1) % 2);
		bytes += echo(fd, sent, came, salt++);
	}
	close(fd);
	__atomic_fetch_add(&echoed, bytes, __ATOMIC_RELAXED);
	pthread_mutex_lock(&least_mutex);
	if (bytes < least)
		least = bytes;
	pthread_mutex_unlock(&least_mutex);
	return NULL;
}

static void run(void *(*what_to_do)(void *), unsigned long threads)
{
	static pthread_t thread[THREADS_MAX];
	pthread_attr_t attributes;
	unsigned long n;

	if (threads > THREADS_MAX)
		fail("%d threads at most", THREADS_MAX);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 64 << 10);
	for (n = 0; n < threads; n++)
		if (pthread_create(&thread[n], &attributes, what_to_do, (void *)n))
			fail("no thread: %s", strerror(errno));
	for (n = 0; n < threads; n++)
		pthread_join(thread[n], NULL);
}

/* A window of the file's. Its number, or -1 with errno. */
static int64_t open_window(int fd)
{
	uint64_t size_and_number = window_size;

	return ioctl(fd, VMLOOP_TOY_WINDOW, &size_and_number) ? -1 : (int64_t)size_and_number;
}

/* A reference that says what is not there. */
static struct vmloop_shm_reference wrong_reference(uint64_t salt, uint32_t number)
{
	struct vmloop_shm_reference wrong = { .window = number, .size = 1 };

	switch (salt % 4) {
	case 0:
		wrong.window = (uint32_t)scatter(salt) | VMLOOP_WINDOWS_MAX;
		break;
	case 1:
		wrong.offset = window_size;
		break;
	case 2:
		wrong.offset = UINT64_MAX - scatter(salt) % 2;
		wrong.size = 2;
		break;
	default:
		wrong.offset = window_size - 1000;
		wrong.size = 1001 + scatter(salt) % 1000;
		break;
	}
	return wrong;
}

/* Has bytes of the window echoed; false: the window or the lane has ended. */
static bool refer(int fd, uint32_t number, uint8_t *sent, uint8_t *came, uint64_t salt)
{
	size_t most = what.ring_size / 4 - sizeof(struct vmloop_shm_record);
	struct vmloop_shm_reference reference = { .window = number };
	bool wrong = salt % 8 == 7;
	struct vmloop_toy_fill put = { .from = (uintptr_t)sent };
	int32_t error = -EINVAL;
	size_t size = sizeof(error);
	ssize_t got;

	if (wrong) {
		reference = wrong_reference(salt / 8, number);
		memcpy(sent, &error, sizeof(error));
	} else {
		size = scatter(salt) % (most < window_size ? most : window_size) + 1;
		reference.size = (uint32_t)size;
		reference.offset = scatter(salt + 1) % (window_size - size + 1);
		fill(sent, size, salt);
		put.size = size;
		put.offset = reference.offset;
		if (ioctl(fd, VMLOOP_TOY_FILL, &put)) {
			if (errno == EPIPE)
				return false;
			fail("the window cannot be written: %s", strerror(errno));
		}
	}
	if (write(fd, &reference, sizeof(reference)) != sizeof(reference)) {
		if (errno == EPIPE)
			return false;
		fail("write: %s", strerror(errno));
	}
	got = read(fd, came, what.ring_size);
	if (!got)
		return false;
	/* While it ends the echo does not find it any more. */
	if (!wrong && got == sizeof(error) && !memcmp(came, &error, sizeof(error)))
		return false;
	if (got != (ssize_t)size || memcmp(sent, came, size))
		fail("a reference to %zu bytes at %" PRIu64 " had another answer, of %zd",
		     size, (uint64_t)reference.offset, got);
	__atomic_fetch_add(wrong ? &refused : &referred, 1, __ATOMIC_RELAXED);
	return true;
}

static int open_referring(int64_t *number, unsigned long tries)
{
	uint32_t type = VMLOOP_TOY_REFERENCE;
	int fd = open_lane();

	*number = open_window(fd);
	/* The peer maps so many a second; that it takes any is known a moment after it can. */
	for (; *number < 0 && tries; tries--) {
		if (errno != ECONNREFUSED)
			break;
		usleep(100000);
		*number = open_window(fd);
	}
	if (*number < 0)
		fail("no window: %s", strerror(errno));
	if (ioctl(fd, VMLOOP_TOY_TYPE, &type))
		fail("no references: %s", strerror(errno));
	return fd;
}

static void *references(void *argument)
{
	uint64_t salt = scatter((uintptr_t)argument + 1);
	uint8_t *sent = malloc(what.ring_size), *came = malloc(what.ring_size);
	int64_t number;
	int fd;

	do {
		fd = open_referring(&number, 100);
		do {
			if (!refer(fd, (uint32_t)number, sent, came, salt++))
				fail("the window has ended");
		} while (salt % 64 && now() < until);
		close(fd);
		__atomic_fetch_add(&windows, 1, __ATOMIC_RELAXED);
	} while (now() < until);
	return NULL;
}

/* Goes on until the window is gone, whoever ends it. */
static void keep(unsigned long tries)
{
	uint8_t *sent = malloc(what.ring_size), *came = malloc(what.ring_size);
	uint64_t salt = 1;
	int64_t number;
	int fd = open_referring(&number, tries);

	puts("ready");
	fflush(stdout);
	while (refer(fd, (uint32_t)number, sent, came, salt))
		salt++;
	close(fd);
}

/* Fills a lane: neither end has room any more when this returns, or it has ended. */
static uint64_t fill_lane(int fd, uint64_t salt)
{
	uint8_t chunk[1000];
	uint64_t sent = 0;
	ssize_t now;
	int tries;

	fcntl(fd, F_SETFL, O_NONBLOCK);
	/* The echo makes room for a while: until its own ring is full. */
	for (tries = 0; tries < 50; tries++) {
		for (;;) {
			fill(chunk, sizeof(chunk), salt + sent);
			now = write(fd, chunk, sizeof(chunk));
			if (now <= 0)
				break;
			sent += (uint64_t)now;
			/* The rest of a chunk is said anew, as its own. */
			tries = 0;
		}
		if (errno != EAGAIN)
			break;
		usleep(1000);
	}
	return sent;
}

/* All that came back, to the end. */
static uint64_t drain_lane(int fd)
{
	uint8_t buffer[65536];
	uint64_t came = 0;
	ssize_t now;

	fcntl(fd, F_SETFL, 0);
	while ((now = read(fd, buffer, sizeof(buffer))) > 0)
		came += (uint64_t)now;
	if (now < 0)
		fail("read: %s", strerror(errno));
	return came;
}

static void hold(unsigned long lanes)
{
	struct vmloop_toy_state state;
	static int fd[THREADS_MAX];
	uint64_t sent = 0, unread = 0, came = 0;
	unsigned long n;

	if (lanes > THREADS_MAX)
		fail("%d lanes at most", THREADS_MAX);
	for (n = 0; n < lanes; n++)
		fd[n] = open_lane();
	for (n = 0; n < lanes; n++)
		fill_lane(fd[n], n);
	/* Full, and with more behind a move: what is unread may be in either ring. */
	for (n = 0; n < lanes; n += 2) {
		move_lane(fd[n], 2 * what.ring_size);
		fill_lane(fd[n], n + lanes);
	}
	puts("ready");
	fflush(stdout);
	for (n = 0; n < lanes; n++) {
		do {
			if (ioctl(fd[n], VMLOOP_TOY_STATE, &state))
				fail("state: %s", strerror(errno));
			if (!state.ended)
				usleep(2000);
		} while (!state.ended);
		sent += state.sent;
		unread += state.unread;
		came += drain_lane(fd[n]);
	}
	printf("{\"lanes\": %lu, \"sent\": %" PRIu64 ", \"unread\": %" PRIu64, lanes, sent, unread);
	printf(", \"came\": %" PRIu64 ", \"moved\": %lu}\n", came, moved);
}

/* One task that waits for a page of its own, amid a system call. */
struct stuck {
	uint8_t *page;
	ssize_t result;
	int error;
};

static void *stuck_reader(void *argument)
{
	struct stuck *stuck = argument;
	int fd = open_lane();

	put_all(fd, (const uint8_t *)"word", 4);
	stuck->result = read(fd, stuck->page, 4);
	stuck->error = errno;
	return NULL;
}

static void *stuck_writer(void *argument)
{
	struct stuck *stuck = argument;
	int fd = open_lane();

	stuck->result = write(fd, stuck->page, 4);
	stuck->error = errno;
	return NULL;
}

/* Whether somebody has begun to wait for a page of @pages. */
static bool is_waited_for(int faults)
{
	struct pollfd look = { .fd = faults, .events = POLLIN };
	struct uffd_msg message;

	if (poll(&look, 1, 20000) != 1 ||
	    read(faults, &message, sizeof(message)) != sizeof(message))
		return false;
	return message.event == UFFD_EVENT_PAGEFAULT;
}

static void be_stuck(void)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register missing = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_zeropage bring = { .range.len = 2 * page };
	struct stuck reading, writing;
	pthread_t reader, writer;
	uint8_t *pages;
	sigset_t go;
	int faults, sig;

	sigemptyset(&go);
	sigaddset(&go, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &go, NULL);
	pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	missing.range.start = (uintptr_t)pages;
	missing.range.len = 2 * page;
	if (pages == MAP_FAILED || faults < 0 || ioctl(faults, UFFDIO_API, &api) ||
	    ioctl(faults, UFFDIO_REGISTER, &missing))
		fail("userfaultfd: %s", strerror(errno));
	reading.page = pages;
	writing.page = pages + page;
	if (pthread_create(&reader, NULL, stuck_reader, &reading) ||
	    pthread_create(&writer, NULL, stuck_writer, &writing))
		fail("no thread: %s", strerror(errno));
	if (!is_waited_for(faults) || !is_waited_for(faults))
		fail("nobody waits for a page");
	puts("ready");
	fflush(stdout);
	sigwait(&go, &sig);
	bring.range.start = (uintptr_t)pages;
	if (ioctl(faults, UFFDIO_ZEROPAGE, &bring))
		fail("no pages: %s", strerror(errno));
	pthread_join(reader, NULL);
	pthread_join(writer, NULL);
	printf("{\"read\": %zd, \"written\": %zd", reading.result, writing.result);
	printf(", \"error\": \"%s\"}\n", writing.result < 0 ? strerror(writing.error) : "");
}

static void keep_open(unsigned long lanes)
{
	for (; lanes; lanes--)
		open_lane();
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	double began = now();
	unsigned long lanes;

	if (argc < 5)
		fail("usage: toy churn PEER KIND RING COUNT THREADS | flow PEER KIND RING LANES SECONDS | hold PEER KIND RING LANES | stuck PEER KIND RING | open PEER KIND RING LANES | refer PEER KIND WINDOW THREADS SECONDS | keep PEER KIND WINDOW [TRIES]");
	what.peer = strtoull(argv[2], NULL, 10);
	what.kind = strcmp(argv[3], "bytes") ? VMLOOP_LANE_TOY_RECORDS : VMLOOP_LANE_TOY_BYTES;
	what.ring_size = (uint32_t)strtoul(argv[4], NULL, 10);
	lanes = argc > 5 ? strtoul(argv[5], NULL, 10) : 0;
	if (!strcmp(argv[1], "refer") || !strcmp(argv[1], "keep")) {
		window_size = strtoull(argv[4], NULL, 10);
		what.ring_size = REFERRING_RING;
	}
	if (!strcmp(argv[1], "refer") && argc == 7) {
		until = now() + strtod(argv[6], NULL);
		run(references, strtoul(argv[5], NULL, 10));
		printf("{\"windows\": %lu, \"referred\": %lu, \"refused\": %lu}\n",
		       windows, referred, refused);
		return 0;
	}
	if (!strcmp(argv[1], "keep") && argc <= 6) {
		keep(lanes);
		printf("{\"referred\": %lu, \"refused\": %lu}\n", referred, refused);
		return 0;
	}
	if (!strcmp(argv[1], "stuck") && argc == 5) {
		be_stuck();
		return 0;
	}
	if (!strcmp(argv[1], "open") && argc == 6)
		keep_open(lanes);
	if (!strcmp(argv[1], "churn") && argc == 7) {
		rounds = lanes;
		run(churn, strtoul(argv[6], NULL, 10));
	} else if (!strcmp(argv[1], "flow") && argc == 7) {
		until = now() + strtod(argv[6], NULL);
		run(flow, lanes);
	} else if (!strcmp(argv[1], "hold") && argc == 6) {
		hold(lanes);
	} else {
		fail("no such command: %s", argv[1]);
	}
	if (!strcmp(argv[1], "flow"))
		printf("{\"lanes\": %lu, \"bytes\": %lu, \"least\": %lu, \"moved\": %lu}\n",
		       lanes, echoed, least, moved);
	else if (strcmp(argv[1], "hold"))
		printf("{\"lanes\": %lu, \"bytes\": %lu, \"seconds\": %.3f}\n",
		       lanes, echoed, now() - began);
	return 0;
}
