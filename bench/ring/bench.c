// SPDX-License-Identifier: GPL-2.0
/*
 * bench.c - how fast the ring is between two cores, and how fast it could be.
 *
 * One thread on each of two CPUs. The producer copies a private buffer into
 * shared memory, the consumer copies it out into another private buffer. Both
 * spin: what doorbells and sleeping cost belongs to the transport.
 *
 * memcpy  is the bound. Shared memory of the ring's size is cut into slots of
 *	one record each; the two hand slots over by a counter each, in a cache
 *	line each, with a release store and nothing else: no record headers, no
 *	wrapping, no full barriers, no checks. There is no cheaper way for two
 *	cores to pass the same bytes through the same memory by two copies.
 * ring	   does the same work through ring.[ch] as the modules use it.
 *
 * All series take turns, slice by slice, so that what disturbs the machine
 * disturbs them alike. A slice in which one of the two threads did not have
 * its CPU to itself is thrown away, by that and not by its result, and done
 * again. Only medians and ratios of one run mean anything.
 */
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ring.h"

#define __aligned(n)	__attribute__((aligned(n)))
#define MAX_SLICES	1000
#define UNDISTURBED	0.97	/* share of its CPU that each thread must have had */
#define TRIES		2000	/* for one undisturbed slice */

/* One series: what is done over and over. */
struct series {
	const char *name;
	bool ring;
	u32 size;	/* bytes of a record */
	u32 batch;	/* records to a publication */
	double *rates;	/* bytes a second, one a slice */
};

static struct series all[] = {
	{ "memcpy 65536", .size = 65536, .batch = 1 },
	{ "ring 65536", .ring = true, .size = 65536, .batch = 1 },
	{ "ring 64 /64", .ring = true, .size = 64, .batch = 64 },
	{ "ring 64 /16", .ring = true, .size = 64, .batch = 16 },
	{ "ring 64 /1", .ring = true, .size = 64, .batch = 1 },
	{ "ring 1500 /16", .ring = true, .size = 1500, .batch = 16 },
};

#define SERIES	(sizeof(all) / sizeof(all[0]))

static u32 ring_size = 4U << 20;
static u8 *data;
static struct vmloop_shm_lane *lanes;
static pthread_barrier_t barrier;
static const struct series *current;
static double slice_seconds = 0.005;
static bool stop;

/* What the memcpy series hands slots over with. */
static struct {
	u32 head __aligned(128);
	u32 tail __aligned(128);
} counters __aligned(128);

/* What the consumer leaves at the end of a slice. */
static struct {
	u64 records;
	double cpu;	/* seconds of CPU that it got */
} consumed __aligned(128);

static double now(clockid_t which)
{
	struct timespec t;

	clock_gettime(which, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0) {
		perror("bench: sched_setaffinity");
		exit(1);
	}
}

static inline void relax(void)
{
	__builtin_ia32_pause();
}

static bool stopped(void)
{
	return __atomic_load_n(&stop, __ATOMIC_RELAXED);
}

static void memcpy_produce(const u8 *buffer, u32 size)
{
	u32 slots = ring_size / size;
	u32 head = 0;
	u32 tail = 0;

	while (!stopped()) {
		while (head - tail == slots) {
			tail = __atomic_load_n(&counters.tail, __ATOMIC_ACQUIRE);
			if (head - tail < slots)
				break;
			if (stopped())
				return;
			relax();
		}
		memcpy(data + (size_t)(head % slots) * size, buffer, size);
		head++;
		__atomic_store_n(&counters.head, head, __ATOMIC_RELEASE);
	}
}

static u64 memcpy_consume(u8 *buffer, u32 size)
{
	u32 slots = ring_size / size;
	u32 head = 0;
	u32 tail = 0;

	while (!stopped()) {
		while (head == tail) {
			head = __atomic_load_n(&counters.head, __ATOMIC_ACQUIRE);
			if (head != tail)
				break;
			if (stopped())
				return tail;
			relax();
		}
		memcpy(buffer, data + (size_t)(tail % slots) * size, size);
		tail++;
		__atomic_store_n(&counters.tail, tail, __ATOMIC_RELEASE);
	}
	return tail;
}

static void die(const char *what)
{
	fprintf(stderr, "bench: %s\n", what);
	exit(1);
}

static void ring_produce(struct vmloop_ring_tx *tx, const u8 *buffer, u32 size, u32 batch)
{
	u32 pending = 0;
	void *payload;
	int error;

	while (!stopped()) {
		error = vmloop_ring_reserve(tx, size, VMLOOP_RECORD_FRAME, 0, &payload);
		if (error == -EAGAIN) {
			vmloop_ring_publish(tx);
			pending = 0;
			relax();
			continue;
		}
		if (error)
			die("the ring refuses to produce");
		memcpy(payload, buffer, size);
		vmloop_ring_commit(tx);
		if (++pending == batch) {
			vmloop_ring_publish(tx);
			pending = 0;
		}
	}
}

static u64 ring_consume(struct vmloop_ring_rx *rx, u8 *buffer, u32 batch)
{
	struct vmloop_shm_record record;
	const void *payload;
	u32 pending = 0;
	u64 count = 0;
	int found;

	while (!stopped()) {
		found = vmloop_ring_peek(rx, &record, &payload);
		if (found < 0)
			die("the ring is broken");
		if (!found) {
			vmloop_ring_consume_publish(rx);
			pending = 0;
			relax();
			continue;
		}
		memcpy(buffer, payload, record.size);
		vmloop_ring_release(rx);
		count++;
		if (++pending == batch) {
			vmloop_ring_consume_publish(rx);
			pending = 0;
		}
	}
	return count;
}

static void *consumer(void *unused)
{
	u8 *buffer = aligned_alloc(4096, 128 << 10);
	struct vmloop_ring_rx rx;
	double begin;

	(void)unused;
	if (!buffer)
		die("no memory");
	memset(buffer, 1, 128 << 10);
	pin(1);
	for (;;) {
		pthread_barrier_wait(&barrier);
		if (!current)
			break;
		if (vmloop_ring_rx_init(&rx, VMLOOP_RING_RECORDS, data, ring_size, 0, &lanes[1],
					&lanes[0]))
			die("bad ring size");
		pthread_barrier_wait(&barrier);
		begin = now(CLOCK_THREAD_CPUTIME_ID);
		if (current->ring)
			consumed.records = ring_consume(&rx, buffer, current->batch);
		else
			consumed.records = memcpy_consume(buffer, current->size);
		consumed.cpu = now(CLOCK_THREAD_CPUTIME_ID) - begin;
		pthread_barrier_wait(&barrier);
	}
	free(buffer);
	return NULL;
}

/*
 * One slice of one series: bytes a second, as the consumer counted them, or
 * zero if somebody else used the CPUs.
 */
static double run_slice(const struct series *series, const u8 *buffer)
{
	struct vmloop_ring_tx tx;
	double begin_cpu;
	double begin;
	double took;
	double cpu;

	current = series;
	counters.head = 0;
	counters.tail = 0;
	if (vmloop_ring_tx_init(&tx, VMLOOP_RING_RECORDS, data, ring_size, 0, &lanes[0], &lanes[1]))
		die("bad ring size");
	pthread_barrier_wait(&barrier);
	if (!series)
		return 0;
	pthread_barrier_wait(&barrier);
	begin_cpu = now(CLOCK_THREAD_CPUTIME_ID);
	begin = now(CLOCK_MONOTONIC);
	if (series->ring)
		ring_produce(&tx, buffer, series->size, series->batch);
	else
		memcpy_produce(buffer, series->size);
	took = now(CLOCK_MONOTONIC) - begin;
	cpu = now(CLOCK_THREAD_CPUTIME_ID) - begin_cpu;
	pthread_barrier_wait(&barrier);
	if (cpu < took * UNDISTURBED || consumed.cpu < took * UNDISTURBED)
		return 0;
	return (double)consumed.records * series->size / took;
}

/* Ends each slice, so that neither side looks at a clock while it is timed. */
static void *timekeeper(void *unused)
{
	struct timespec slice = {
		.tv_sec = (time_t)slice_seconds,
		.tv_nsec = (long)((slice_seconds - (double)(time_t)slice_seconds) * 1e9),
	};

	(void)unused;
	nanosleep(&slice, NULL);
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	return NULL;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a;
	double y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(const double *values, int count)
{
	double sorted[MAX_SLICES];

	memcpy(sorted, values, sizeof(*values) * (size_t)count);
	qsort(sorted, (size_t)count, sizeof(*sorted), compare);
	return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

static void write_json(const char *path, int slices)
{
	FILE *out = fopen(path, "w");

	if (!out) {
		perror(path);
		exit(1);
	}
	fprintf(out, "{\n  \"ring_size\": %u,\n  \"slice_seconds\": %g,\n  \"series\": [\n",
		ring_size, slice_seconds);
	for (size_t i = 0; i < SERIES; i++) {
		fprintf(out, "    {\"name\": \"%s\", \"record\": %u, \"batch\": %u, ",
			all[i].name, all[i].size, all[i].batch);
		fprintf(out, "\"unit\": \"bytes/s\", \"values\": [");
		for (int n = 0; n < slices; n++)
			fprintf(out, "%s%.0f", n ? ", " : "", all[i].rates[n]);
		fprintf(out, "]}%s\n", i + 1 < SERIES ? "," : "");
	}
	fprintf(out, "  ]\n}\n");
	if (fclose(out) != 0) {
		perror(path);
		exit(1);
	}
}

static void usage(void)
{
	fprintf(stderr,
		"usage: bench [--rounds N] [--slice SECONDS] [--ring BYTES] [--json FILE]\n");
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "rounds", required_argument, NULL, 'r' },
		{ "slice", required_argument, NULL, 's' },
		{ "ring", required_argument, NULL, 'b' },
		{ "json", required_argument, NULL, 'j' },
		{ }
	};
	const char *json = NULL;
	pthread_t thread;
	pthread_t clock;
	int rounds = 41;
	int lost = 0;
	double bound;
	u8 *buffer;
	int option;
	u8 *shared;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'r':
			rounds = atoi(optarg);
			break;
		case 's':
			slice_seconds = atof(optarg);
			break;
		case 'b':
			ring_size = (u32)strtoul(optarg, NULL, 0);
			break;
		case 'j':
			json = optarg;
			break;
		default:
			usage();
		}
	}
	if (rounds < 1 || rounds > MAX_SLICES || slice_seconds <= 0 || ring_size < (1U << 19))
		usage();
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		die("two CPUs are needed");

	shared = mmap(NULL, ring_size + 8192, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	buffer = aligned_alloc(4096, 128 << 10);
	if (shared == MAP_FAILED || !buffer)
		die("no memory");
	memset(buffer, 7, 128 << 10);
	lanes = (struct vmloop_shm_lane *)shared;
	data = shared + 8192;
	for (size_t i = 0; i < SERIES; i++) {
		all[i].rates = calloc((size_t)rounds, sizeof(double));
		if (!all[i].rates)
			die("no memory");
	}

	pthread_barrier_init(&barrier, NULL, 2);
	if (pthread_create(&thread, NULL, consumer, NULL))
		die("no thread");
	pin(0);
	/* One round more than asked for: the first warms up and is dropped. */
	for (int n = -1; n < rounds; n++) {
		for (size_t i = 0; i < SERIES; i++) {
			double rate = 0;

			for (int try = 0; rate == 0 && try < TRIES; try++) {
				__atomic_store_n(&stop, false, __ATOMIC_RELAXED);
				if (pthread_create(&clock, NULL, timekeeper, NULL))
					die("no thread");
				rate = run_slice(&all[i], buffer);
				pthread_join(clock, NULL);
				lost += rate == 0;
			}
			if (rate == 0)
				die("the machine is too busy: no slice was undisturbed");
			if (n >= 0)
				all[i].rates[n] = rate;
		}
	}
	run_slice(NULL, buffer);
	pthread_join(thread, NULL);

	bound = median(all[0].rates, rounds);
	printf("%-16s %12s %14s %8s\n", "series", "GB/s", "records/s", "memcpy");
	for (size_t i = 0; i < SERIES; i++) {
		double rate = median(all[i].rates, rounds);

		printf("%-16s %12.2f %14.0f ", all[i].name, rate / 1e9, rate / all[i].size);
		if (all[i].size == all[0].size)
			printf("%7.0f%%\n", 100 * rate / bound);
		else
			printf("%8s\n", "");
	}
	printf("%d slices of %g s a series, %d more were disturbed and done again\n",
	       rounds, slice_seconds, lost);
	if (json)
		write_json(json, rounds);
	return 0;
}
