// SPDX-License-Identifier: GPL-2.0
/*
 * stress.c - two parties, one ring, millions of records, every byte checked.
 *
 * By default the parties are processes that share a memfd, each with a mapping
 * in which it cannot write what is not its own; with --threads they share one
 * mapping, which is what ThreadSanitizer understands.
 *
 * Who has nothing to do waits for a doorbell and does nothing else: a doorbell
 * that should have been rung and was not is a hang, which the deadline turns
 * into a failure. --bell eventfd sleeps in the kernel, as guests do. --bell
 * flag spins on a word, which brings the two as close together as it gets:
 * that is where a missing barrier shows. --large makes all records so large
 * that each one may have to wait until exactly it fits.
 *
 * What record number n is (size, type, content) follows from the seed and n,
 * so that both parties know it without talking about it. With --bytes there are
 * no records: the same number of pieces is written, of those sizes, and read in
 * other pieces. With --moves the producer goes on in another ring now and then, twice as
 * large, and back.
 */
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>

#include "shared.h"

#define NOISE		(8U << 20)
#define CACHE_LINE	128
#define __aligned(n)	__attribute__((aligned(n)))

/* What one party counts. */
struct counts {
	u64 records;
	u64 bytes;
	u64 waits;	/* times that it waited for a doorbell */
	u64 bells;	/* times that it rang */
	u64 in_vain;	/* doorbells after which there was nothing to do */
	u64 moves;	/* of its ring */
} __aligned(CACHE_LINE);

struct bell {
	u32 rung __aligned(CACHE_LINE);
	u32 heard __aligned(CACHE_LINE);
	int fd;
};

/* Shared by the two, apart from the ring. */
struct control {
	int failed;
	struct counts producer;
	struct counts consumer;
	struct bell records;	/* for the consumer */
	struct bell room;	/* for the producer */
};

static struct {
	u64 records;
	u64 seed;
	u32 ring;
	u32 start;
	double deadline;
	bool threads;
	bool flag;
	bool large;
	bool bytes;
	bool moves;
} options = {
	.records = 1000000,
	.seed = 1,
	.ring = 65536,
	.start = 0U - 65536 - 48,
	.deadline = 20,
};

static struct control *control;
static u8 *noise;
static int memory;

/* A ring from this size on does not become full by itself. */
#define LARGE_RING (1U << 16)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A random number that depends on nothing but the seed and @n. */
static u64 random_of(u64 n)
{
	u64 z = options.seed * 0xd1342543de82ef95 + n * 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

struct expected {
	u32 size;
	u16 type;
	u16 info;
	const u8 *content;
};

/* Mostly small, some up to 4 KiB, a few up to the largest that there can be. */
static struct expected record_number(u64 n)
{
	u32 max = vmloop_ring_max_record(options.ring);
	u64 r = random_of(n);
	u32 limit;

	switch (r & 255) {
	case 0:
		limit = max;
		break;
	case 1 ... 31:
		limit = 4096;
		break;
	default:
		limit = 256;
	}
	if ((r & 255) == 0 && options.ring > 1U << 20 && (r >> 8 & 15) != 0)
		limit = 65536;
	if (limit > max)
		limit = max;
	return (struct expected){
		.size = options.large ? max - (u32)(r >> 16) % (max / 8) :
					(u32)((r >> 16) % (limit + 1)),
		.type = (u16)(n % 65535 + 1),
		.info = (u16)(r >> 8),
		.content = noise + (r >> 32) % (NOISE - max),
	};
}

__attribute__((format(printf, 1, 2)))
static bool fail(const char *format, ...)
{
	va_list arguments;

	__atomic_store_n(&control->failed, 1, __ATOMIC_RELAXED);
	flockfile(stdout);
	printf("# ");
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	fflush(stdout);
	funlockfile(stdout);
	return false;
}

static bool failed(void)
{
	return __atomic_load_n(&control->failed, __ATOMIC_RELAXED) != 0;
}

static void ring_bell(struct bell *bell)
{
	const u64 one = 1;

	if (options.flag)
		__atomic_fetch_add(&bell->rung, 1, __ATOMIC_RELAXED);
	else if (write(bell->fd, &one, sizeof(one)) != sizeof(one))
		fail("cannot ring");
}

/* Until the doorbell has rung; false if it does not, or the other failed. */
/* Now and then for all to be read, which makes room as well. */
static bool must_wait(struct vmloop_ring_tx *tx, u64 n, u32 bytes)
{
	return n & 1 ? vmloop_ring_wait_room(tx, bytes) : vmloop_ring_wait_read(tx, tx->head);
}

static bool wait_bell(struct bell *bell, const char *what)
{
	double since = now();
	u64 count;

	for (u32 spins = 1;; spins++) {
		if (options.flag) {
			u32 rung = __atomic_load_n(&bell->rung, __ATOMIC_RELAXED);

			if (rung != bell->heard) {
				bell->heard = rung;
				return true;
			}
			__builtin_ia32_pause();
			if (spins % 1024)
				continue;
			sched_yield();
		} else {
			struct pollfd poll_fd = { .fd = bell->fd, .events = POLLIN };

			if (poll(&poll_fd, 1, 100) == 1)
				return read(bell->fd, &count, sizeof(count)) == sizeof(count);
		}
		if (failed())
			return false;
		if (now() - since > options.deadline)
			return fail("nobody rang for %s in %g s", what, options.deadline);
	}
}

/* Every now and then dawdles, so that the other one has to wait. */
static void dawdle(u64 r)
{
	u64 turns = 0;

	if ((r & 63) == 0)
		turns = r >> 8 & 4095;
	else if ((r & 7) == 0)
		turns = r >> 8 & 63;
	while (turns--)
		__builtin_ia32_pause();
}

/* The producer's data: two rings, one twice as large as the other, that do not touch. */
static u32 area(void)
{
	return options.moves ? 4 * options.ring : options.ring;
}

/* Now and then to the other ring, if the consumer has let go of that. */
static void move(struct view *view, struct vmloop_ring_tx *tx, u64 r)
{
	bool larger = tx->size == options.ring;
	u32 offset = larger ? 2 * options.ring : 0;

	if (!options.moves || (r & 7))
		return;
	if (!vmloop_ring_move(tx, view->data + offset, options.ring << larger, offset))
		control->producer.moves++;
}

/* The other party looks at it meanwhile. */
static void count(u64 *counter)
{
	__atomic_store_n(counter, *counter + 1, __ATOMIC_RELAXED);
}

/* The consumer gives everything back; the producer needs no doorbell for that. */
static bool wait_drained(struct vmloop_ring_tx *tx)
{
	for (double since = now(); !vmloop_ring_drained(tx);) {
		if (failed())
			return false;
		if (now() - since > options.deadline)
			return fail("the ring is not drained");
		sched_yield();
	}
	return !tx->broken || fail("the producer finds the ring broken");
}

static bool produce_records(struct view *view)
{
	struct counts *counts = &control->producer;
	struct vmloop_ring_tx tx;
	u32 batch = 1;

	if (vmloop_ring_tx_init(&tx, VMLOOP_RING_RECORDS, view->data, options.ring, options.start,
				view->producer, view->consumer))
		return fail("the producer cannot begin");

	for (u64 n = 0; n < options.records; n++) {
		struct expected e = record_number(n);
		void *payload;
		int result;

		for (;;) {
			result = vmloop_ring_reserve(&tx, e.size, e.type, e.info, &payload);
			if (result != -EAGAIN)
				break;
			if (vmloop_ring_publish(&tx)) {
				counts->bells++;
				ring_bell(&control->records);
			}
			if (!must_wait(&tx, n, e.size))
				continue;
			count(&counts->waits);
			if (!wait_bell(&control->room, "room"))
				return false;
			if (must_wait(&tx, n, e.size))
				counts->in_vain++;
		}
		if (result)
			return fail("reserve says %d at record %lu", result, n);
		memcpy(payload, e.content, e.size);
		vmloop_ring_commit(&tx);
		count(&counts->records);
		counts->bytes += e.size;

		if (--batch == 0 || n + 1 == options.records) {
			u64 r = random_of(~n);

			if (vmloop_ring_publish(&tx)) {
				counts->bells++;
				ring_bell(&control->records);
			}
			batch = r & 3 ? 1 : 1 + (r >> 2 & 31);
			move(view, &tx, r >> 20);
			dawdle(r >> 8);
		}
	}

	return wait_drained(&tx);
}

/* What the stream is at byte number @n, and how many follow without a gap. */
static const u8 *stream_at(u64 n, u32 *length)
{
	u32 offset = (u32)(n % NOISE);

	if (*length > NOISE - offset)
		*length = NOISE - offset;
	return noise + offset;
}

static bool produce_bytes(struct view *view)
{
	struct counts *counts = &control->producer;
	struct vmloop_ring_tx tx;
	u32 batch = 1;

	if (vmloop_ring_tx_init(&tx, VMLOOP_RING_BYTES, view->data, options.ring, options.start,
				view->producer, view->consumer))
		return fail("the producer cannot begin");

	for (u64 n = 0; n < options.records; n++) {
		u32 left = record_number(n).size;

		while (left) {
			void *at;
			u32 length = vmloop_ring_space(&tx, left, &at);

			if (length) {
				const u8 *from;

				if (length > left)
					length = left;
				from = stream_at(counts->bytes, &length);
				memcpy(at, from, length);
				vmloop_ring_add(&tx, length);
				counts->bytes += length;
				left -= length;
				continue;
			}
			if (vmloop_ring_publish(&tx)) {
				counts->bells++;
				ring_bell(&control->records);
			}
			if (!vmloop_ring_wait_space(&tx, left % (options.ring / 2)))
				continue;
			count(&counts->waits);
			if (!wait_bell(&control->room, "room"))
				return false;
			if (vmloop_ring_wait_space(&tx, 0))
				counts->in_vain++;
		}
		count(&counts->records);

		if (--batch == 0 || n + 1 == options.records) {
			u64 r = random_of(~n);

			if (vmloop_ring_publish(&tx)) {
				counts->bells++;
				ring_bell(&control->records);
			}
			batch = r & 3 ? 1 : 1 + (r >> 2 & 31);
			move(view, &tx, r >> 20);
			dawdle(r >> 8);
		}
	}
	return wait_drained(&tx);
}

static bool check(u64 n, const struct vmloop_shm_record *record, const void *payload)
{
	struct expected e = record_number(n);

	if (record->size != e.size || record->type != e.type || record->info != e.info)
		return fail("record %lu is size %u type %u info %u, not %u %u %u", n, record->size,
			    record->type, record->info, e.size, e.type, e.info);
	if (memcmp(payload, e.content, e.size) != 0)
		return fail("the %u bytes of record %lu are wrong", e.size, n);
	return true;
}

/*
 * Lets a large ring become full. On a quiet machine the consumer keeps up, and
 * a producer that never waits has not shown that it is woken.
 */
static void let_it_fill(const struct view *view, const struct vmloop_ring_rx *rx)
{
	const u64 *waits = &control->producer.waits;
	const u64 *records = &control->producer.records;
	u64 before = __atomic_load_n(waits, __ATOMIC_RELAXED);
	double end = now() + 5;
	u32 last = rx->tail;

	while (__atomic_load_n(waits, __ATOMIC_RELAXED) == before &&
	       __atomic_load_n(records, __ATOMIC_RELAXED) < options.records && now() < end) {
		u32 head = __atomic_load_n(&view->producer->tx_head, __ATOMIC_RELAXED);

		/* It waits already, for more room than there is. */
		if (head == last && head - rx->tail >= rx->size / 4 * 3)
			return;
		last = head;
		usleep(1000);
	}
}

static bool consume_records(struct view *view)
{
	u64 pause = options.ring >= LARGE_RING ? options.records / 20 : 0;
	u64 next_pause = pause;
	struct counts *counts = &control->consumer;
	struct vmloop_shm_record record;
	struct vmloop_ring_rx rx;
	const void *payload;
	u32 batch = 1;
	u64 n = 0;

	if (vmloop_ring_rx_init(&rx, VMLOOP_RING_RECORDS, view->data, options.ring, options.start,
				view->consumer, view->producer))
		return fail("the consumer cannot begin");
	if (options.moves)
		vmloop_ring_follow(&rx, view->data, area());

	while (n < options.records) {
		int result = vmloop_ring_peek(&rx, &record, &payload);

		if (result < 0)
			return fail("peek says %d at record %lu", result, n);
		if (result == 0) {
			if (vmloop_ring_consume_publish(&rx)) {
				counts->bells++;
				ring_bell(&control->room);
			}
			if (!vmloop_ring_sleep(&rx))
				continue;
			counts->waits++;
			if (!wait_bell(&control->records, "records"))
				return false;
			if (!vmloop_ring_ready(&rx))
				counts->in_vain++;
			continue;
		}
		if (!check(n, &record, payload))
			return false;
		vmloop_ring_release(&rx);
		n++;
		counts->records++;
		counts->bytes += record.size;
		if (--batch == 0) {
			u64 r = random_of(~n ^ 0x5555);

			if (vmloop_ring_consume_publish(&rx)) {
				counts->bells++;
				ring_bell(&control->room);
			}
			batch = 1 + (r & 15);
			dawdle(r >> 8);
			if (pause && n >= next_pause) {
				next_pause += pause;
				let_it_fill(view, &rx);
			}
		}
	}
	vmloop_ring_consume_publish(&rx);
	if (vmloop_ring_ready(&rx) || rx.broken)
		return fail("there is more than was produced");
	return true;
}

static bool consume_bytes(struct view *view)
{
	u64 pause = options.ring >= LARGE_RING ? options.records / 20 : 0;
	struct counts *counts = &control->consumer;
	struct vmloop_ring_rx rx;
	u64 next_pause = pause;
	u32 batch = 1;
	u64 total = 0;
	u64 n = 0;

	for (u64 i = 0; i < options.records; i++)
		total += record_number(i).size;
	if (vmloop_ring_rx_init(&rx, VMLOOP_RING_BYTES, view->data, options.ring, options.start,
				view->consumer, view->producer))
		return fail("the consumer cannot begin");
	if (options.moves)
		vmloop_ring_follow(&rx, view->data, area());

	while (counts->bytes < total) {
		u64 r = random_of(~n++ ^ 0x3333);
		u32 want = 1 + (u32)(r >> 8) % (r & 7 ? 512 : options.ring);
		const void *at;
		const u8 *expected;
		u32 length;

		/*
		 * No more than what comes; and with what the producer waits for, no
		 * more than the ring.
		 */
		if (want > options.ring / 2)
			want = options.ring / 2;
		if (want > total - counts->bytes)
			want = (u32)(total - counts->bytes);
		length = vmloop_ring_bytes(&rx, 0, want, &at);
		if (rx.broken)
			return fail("the ring is broken at byte %lu", counts->bytes);
		if (!length) {
			if (vmloop_ring_consume_publish(&rx)) {
				counts->bells++;
				ring_bell(&control->room);
			}
			if (!vmloop_ring_wait_bytes(&rx, want))
				continue;
			counts->waits++;
			if (!wait_bell(&control->records, "bytes"))
				return false;
			if (vmloop_ring_wait_bytes(&rx, want))
				counts->in_vain++;
			continue;
		}
		if (length > want)
			length = want;
		expected = stream_at(counts->bytes, &length);
		if (memcmp(at, expected, length) != 0)
			return fail("the %u bytes from %lu on are wrong", length, counts->bytes);
		vmloop_ring_take(&rx, length);
		counts->bytes += length;
		if (--batch == 0) {
			if (vmloop_ring_consume_publish(&rx)) {
				counts->bells++;
				ring_bell(&control->room);
			}
			batch = 1 + (r >> 4 & 15);
			dawdle(r >> 24);
			if (pause && n >= next_pause) {
				next_pause += pause;
				let_it_fill(view, &rx);
			}
		}
	}
	counts->records = __atomic_load_n(&control->producer.records, __ATOMIC_RELAXED);
	vmloop_ring_consume_publish(&rx);
	if (vmloop_ring_ready(&rx) || rx.broken)
		return fail("there is more than was produced");
	return true;
}

static bool produce(struct view *view)
{
	return options.bytes ? produce_bytes(view) : produce_records(view);
}

static bool consume(struct view *view)
{
	return options.bytes ? consume_bytes(view) : consume_records(view);
}

static struct view common;

static void *consumer_thread(void *unused)
{
	(void)unused;
	return consume(&common) ? "ok" : NULL;
}

static bool run_threads(void)
{
	pthread_t thread;
	void *result;
	bool good;

	shared_map(&common, memory, area(), ADVERSARY);
	if (pthread_create(&thread, NULL, consumer_thread, NULL))
		shared_die("pthread_create");
	good = produce(&common);
	pthread_join(thread, &result);
	return good && result;
}

static bool run_processes(void)
{
	struct view view;
	int status;
	bool good;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child < 0)
		shared_die("fork");
	if (child == 0) {
		shared_map(&view, memory, area(), CONSUMER);
		_exit(consume(&view) ? 0 : 1);
	}
	shared_map(&view, memory, area(), PRODUCER);
	good = produce(&view);
	if (waitpid(child, &status, 0) != child)
		shared_die("waitpid");
	if (WIFSIGNALED(status))
		return fail("the consumer was killed by signal %d", WTERMSIG(status));
	return good && status == 0;
}

static void usage(void)
{
	fprintf(stderr,
		"usage: stress [--records N] [--ring BYTES] [--start POSITION] [--seed N]\n"
		"              [--threads] [--bell eventfd|flag] [--large] [--bytes] [--moves]\n"
		"              [--deadline SECONDS]\n");
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct option known[] = {
		{ "records", required_argument, NULL, 'n' },
		{ "ring", required_argument, NULL, 'r' },
		{ "start", required_argument, NULL, 'p' },
		{ "seed", required_argument, NULL, 's' },
		{ "threads", no_argument, NULL, 't' },
		{ "bell", required_argument, NULL, 'b' },
		{ "deadline", required_argument, NULL, 'd' },
		{ "large", no_argument, NULL, 'l' },
		{ "bytes", no_argument, NULL, 'y' },
		{ "moves", no_argument, NULL, 'm' },
		{ }
	};
	const struct counts *c;
	const struct counts *p;
	double began;
	int option;
	bool good;

	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (option) {
		case 'n':
			options.records = strtoull(optarg, NULL, 0);
			break;
		case 'r':
			options.ring = (u32)strtoul(optarg, NULL, 0);
			options.start = 0U - options.ring - 48;
			break;
		case 'p':
			options.start = (u32)strtoul(optarg, NULL, 0);
			break;
		case 's':
			options.seed = strtoull(optarg, NULL, 0);
			break;
		case 't':
			options.threads = true;
			break;
		case 'b':
			options.flag = !strcmp(optarg, "flag");
			if (!options.flag && strcmp(optarg, "eventfd"))
				usage();
			break;
		case 'l':
			options.large = true;
			break;
		case 'y':
			options.bytes = true;
			break;
		case 'm':
			options.moves = true;
			break;
		case 'd':
			options.deadline = atof(optarg);
			break;
		default:
			usage();
		}
	}

	signal(SIGPIPE, SIG_IGN);
	control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	noise = malloc(NOISE);
	if (control == MAP_FAILED || !noise)
		shared_die("memory");
	for (u32 i = 0; i < NOISE; i += 8) {
		u64 r = random_of(0xabcdef00000000 + i);

		memcpy(noise + i, &r, 8);
	}
	control->records.fd = eventfd(0, EFD_CLOEXEC);
	control->room.fd = eventfd(0, EFD_CLOEXEC);
	if (control->records.fd < 0 || control->room.fd < 0)
		shared_die("eventfd");
	memory = shared_create(area());

	/* What the other finds before it begins is what it would find in the end. */
	{
		struct view view;

		shared_map(&view, memory, area(), ADVERSARY);
		view.producer->tx_head = options.start;
		view.producer->tx_wake = options.start - 1;
		view.consumer->rx_tail = options.start;
		view.consumer->rx_wake = options.start;
		shared_unmap(&view);
	}

	began = now();
	good = options.threads ? run_threads() : run_processes();
	c = &control->consumer;
	p = &control->producer;
	printf("# %lu of %lu %s, %.1f MB, %.1f s; ring %u, %s, bell %s\n", c->records,
	       options.records, options.bytes ? "pieces" : "records", (double)c->bytes / 1e6,
	       now() - began, options.ring, options.threads ? "threads" : "processes",
	       options.flag ? "flag" : "eventfd");
	printf("# consumer waited %lu times (%lu in vain), producer %lu times (%lu in vain)\n",
	       c->waits, c->in_vain, p->waits, p->in_vain);

	if (options.moves)
		printf("# the ring moved %lu times\n", p->moves);
	if (good && options.moves && p->moves < 100)
		good = fail("too few moves to prove anything");
	/* Who never waited has not shown that it is woken. */
	if (good && (c->waits < 10 || p->waits < 10))
		good = fail("too few waits to prove anything");
	if (good && (c->bells < p->waits || p->bells < c->waits))
		good = fail("somebody woke without a doorbell");
	printf("%s 1 - stress ring %u of %s%s %s %s\n", good ? "ok" : "not ok", options.ring,
	       options.bytes ? "bytes" : "records", options.moves ? ", moves," : "",
	       options.threads ? "threads" : "processes", options.flag ? "flag" : "eventfd");
	return good ? 0 : 1;
}
