// SPDX-License-Identifier: GPL-2.0
/*
 * forge.c - a peer that lies about a TCP connection and its lane (docs/protocol.md,
 * sections 9 and 10).
 *
 *	forge connect HOST PORT CASE
 *	forge list
 *	forge PID PEER SIDE CASE FROM FROM-PORT TO TO-PORT FROM-FIRST TO-FIRST
 *
 * `connect`, in a guest without the stream path, has a connection that only its kernel
 * carries, to who sends back what comes. It sends BY_TCP, and prints the numbers of the
 * connection, as the third form wants them. At SIGTERM it sends what the CASE wants to have
 * said of the bytes that came by the lane (section 10), if anything, and AT_THE_END, and
 * closes its way. It prints what has come, what the other end says of the lane as
 * "returned N", and how the other way ended.
 *
 * The third form, in the host, plays that guest's modules while its CPUs stand still: opens
 * a lane for the connection, in the way of a CASE. `list` names those, and what each must
 * lead to. PID and PEER are the QEMUs of that guest and of its peer, SIDE the side of the
 * channel that the guest is. A doorbell is any event of which both QEMUs have the
 * descriptor.
 */
#include <arpa/inet.h>
#include <inttypes.h>
#include <linux/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/syscall.h>

#include "outside.h"

#define BY_TCP		"by TCP\n"
#define BY_LANE		"by the lane\n"
#define AT_THE_END	"this is the end of it\n"

#define RING		4096U
#define MAGIC		0x6f6c6c65U
#define BELLS_MAX	256
#define PATIENCE	10	/* seconds */

struct say {
	uint8_t from[16];
	uint8_t to[16];
	uint16_t from_port;	/* in network order */
	uint16_t to_port;
	uint32_t from_first;
	uint32_t to_first;
	uint64_t nonce;
	uint8_t zero[12];
} __attribute__((packed));

struct returning {
	uint64_t nonce;
	uint32_t got;
	uint32_t zero;
};

static uint64_t nonce_of(uint32_t first)
{
	return scatter(first);
}

static volatile sig_atomic_t ending;

static void on_signal(int number)
{
	(void)number;
	ending = 1;
}

/* In the guest ------------------------------------------------------------- */

static uint32_t sequence(int fd, int queue)
{
	uint32_t number;
	socklen_t size = sizeof(number);

	if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue, sizeof(queue)) ||
	    getsockopt(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, &number, &size))
		fail("a sequence number: %s", strerror(errno));
	return number;
}

/* What is said of the lane's bytes: of BY_LANE, which came back, none was read. */
static size_t say_return(const char *name, uint64_t nonce, struct returning *said)
{
	*said = (struct returning){ .nonce = nonce };
	if (!strcmp(name, "return_of_another_lane"))
		said->nonce ^= 1;
	else if (!strcmp(name, "return_of_one_too_much"))
		said->got = (uint32_t)strlen(BY_LANE) + 1;
	else if (!strcmp(name, "return_of_less_than_nothing"))
		said->got = UINT32_MAX;
	else if (strcmp(name, "right"))
		return 0;
	return sizeof(*said);
}

/* What has come; the other end's word of the lane is no text. */
static void print_all(const char *bytes, size_t size, uint64_t nonce)
{
	const char *at = memmem(bytes, size, &nonce, sizeof(nonce));
	struct returning said;

	if (!at || at + sizeof(said) > bytes + size) {
		fwrite(bytes, 1, size, stdout);
		return;
	}
	memcpy(&said, at, sizeof(said));
	fwrite(bytes, 1, (size_t)(at - bytes), stdout);
	printf("returned %" PRIu32 "\n", said.got);
	at += sizeof(said);
	fwrite(at, 1, (size_t)(bytes + size - at), stdout);
}

static int connect_and_wait(const char *host, const char *port, const char *name)
{
	struct sigaction action = { .sa_handler = on_signal };
	int fd, repair = 1, off = TCP_REPAIR_OFF_NO_WP;
	struct sockaddr_in here;
	socklen_t length = sizeof(here);
	struct returning said;
	uint32_t first, other;
	char text[INET_ADDRSTRLEN], bytes[4096];
	size_t size = 0;
	ssize_t came;

	/* No SA_RESTART: what sleeps must end as well. */
	sigaction(SIGTERM, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	fd = connected(SOCK_STREAM, host, port);
	if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &repair, sizeof(repair)))
		fail("TCP_REPAIR: %s", strerror(errno));
	first = sequence(fd, TCP_SEND_QUEUE);
	other = sequence(fd, TCP_RECV_QUEUE);
	if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off)) ||
	    getsockname(fd, (void *)&here, &length))
		fail("TCP_REPAIR: %s", strerror(errno));
	/* What comes back says that the other end has accepted the connection. */
	if (send(fd, BY_TCP, strlen(BY_TCP), 0) < 0 ||
	    recv(fd, bytes, strlen(BY_TCP), MSG_PEEK | MSG_WAITALL) < 0)
		fail("the first bytes: %s", strerror(errno));
	printf("%s %u %s %s %" PRIu32 " %" PRIu32 "\n",
	       inet_ntop(AF_INET, &here.sin_addr, text, sizeof(text)), ntohs(here.sin_port),
	       host, port, first, other);
	fflush(stdout);
	while (!ending)
		pause();
	if (send(fd, &said, say_return(name, nonce_of(first), &said), 0) < 0 ||
	    send(fd, AT_THE_END, strlen(AT_THE_END), 0) < 0) {
		puts(strerror(errno));
		return 0;
	}
	/* Where the other end has reset it by now, recv() says so. */
	if (shutdown(fd, SHUT_WR) && errno != ENOTCONN)
		fail("shutdown: %s", strerror(errno));
	while ((came = recv(fd, bytes + size, sizeof(bytes) - size, 0)) > 0)
		size += (size_t)came;
	print_all(bytes, size, nonce_of(first));
	puts(came ? strerror(errno) : "in order");
	return 0;
}

/* In the host: doorbells ---------------------------------------------------- */

struct event {
	int fd;			/* its number in the QEMU */
	unsigned int id;
};

static int events_of(const char *pid, struct event *events)
{
	char path[300], target[64], line[128];
	struct dirent *entry;
	int count = 0;
	ssize_t size;
	FILE *info;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
	dir = opendir(path);
	if (!dir)
		fail("%s: %s", path, strerror(errno));
	while ((entry = readdir(dir)) && count < BELLS_MAX) {
		size = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);
		if (size < 0)
			continue;
		target[size] = 0;
		snprintf(path, sizeof(path), "/proc/%.20s/fdinfo/%.20s", pid, entry->d_name);
		info = strcmp(target, "anon_inode:[eventfd]") ? NULL : fopen(path, "r");
		if (!info)
			continue;
		while (fgets(line, sizeof(line), info))
			if (sscanf(line, "eventfd-id: %u", &events[count].id) == 1) {
				events[count++].fd = atoi(entry->d_name);
				break;
			}
		fclose(info);
	}
	closedir(dir);
	return count;
}

static int bells[BELLS_MAX];
static int bell_count;

static void find_bells(const char *pid, const char *peer)
{
	struct event mine[BELLS_MAX], theirs[BELLS_MAX];
	int n, m, mine_count = events_of(pid, mine), theirs_count = events_of(peer, theirs);
	int process = (int)syscall(SYS_pidfd_open, atoi(pid), 0);

	if (process < 0)
		fail("process %s: %s", pid, strerror(errno));
	for (n = 0; n < mine_count; n++) {
		for (m = 0; m < theirs_count && theirs[m].id != mine[n].id; m++)
			;
		if (m == theirs_count)
			continue;
		bells[bell_count] = (int)syscall(SYS_pidfd_getfd, process, mine[n].fd, 0);
		if (bells[bell_count] < 0)
			fail("an event of process %s: %s", pid, strerror(errno));
		bell_count++;
	}
	if (!bell_count)
		fail("no doorbell among %d and %d events", mine_count, theirs_count);
	close(process);
}

static void ring(void)
{
	const uint64_t one = 1;
	int n;

	for (n = 0; n < bell_count; n++)
		if (write(bells[n], &one, sizeof(one)) < 0)
			fail("a doorbell: %s", strerror(errno));
}

/* In the host: the lane ------------------------------------------------------ */

static struct {
	uint8_t *base;
	unsigned int side;
	volatile struct vmloop_shm_news *news;
	volatile struct vmloop_shm_news *their_news;
	struct say say;
} us;

/* A lane of ours, while it is open. */
struct lane {
	uint32_t number;
	volatile struct vmloop_shm_entry *ours;
	volatile struct vmloop_shm_entry *theirs;
	uint8_t *ring;
	uint32_t head;
};

static void tell(uint32_t number)
{
	uint32_t word = number / VMLOOP_NEWS_BITS;
	double until = now() + PATIENCE;

	us.news->lanes[word] ^= 1ULL << number % VMLOOP_NEWS_BITS;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	us.news->groups ^= 1ULL << word;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	ring();
	/* Told again before that, it was never told. A victim that has ended it looks no more. */
	while (us.their_news->lanes_taken[word] != us.news->lanes[word] &&
	       region_side(us.base, !us.side)->state == VMLOOP_SIDE_READY) {
		if (now() > until)
			fail("the victim takes no news");
		usleep(1000);
	}
}

static void say_life(struct lane *lane, uint32_t step)
{
	uint32_t generation = lane->ours->life - life_step(lane->ours->life);

	if (step == VMLOOP_LIFE_FREE)
		generation += 1U << VMLOOP_LIFE_BITS;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	lane->ours->life = generation + step;
	tell(lane->number);
}

/* Numbers that both sides have. */
static uint32_t lane_count(void)
{
	uint32_t ours = region_table(us.base, us.side)->lanes;
	uint32_t theirs = region_table(us.base, !us.side)->lanes;

	return ours < theirs ? ours : theirs;
}

static struct lane free_lane(uint32_t from)
{
	const struct vmloop_shm_header *header = (void *)us.base;
	struct lane lane = { .number = from + (from + us.side) % 2 };
	uint32_t lanes = lane_count();

	for (; lane.number < lanes; lane.number += 2) {
		lane.ours = region_entry(us.base, us.side, lane.number);
		lane.theirs = region_entry(us.base, !us.side, lane.number);
		if (life_step(lane.ours->life) == VMLOOP_LIFE_FREE &&
		    lane.theirs->life == lane.ours->life) {
			lane.ours->lane.ring_offset = header->data_size[us.side] - RING;
			lane.ring = us.base + header->data_offset[us.side] +
				    lane.ours->lane.ring_offset;
			return lane;
		}
	}
	fail("no lane of ours is free");
}

static uint32_t rounded(uint32_t position)
{
	return (position + VMLOOP_RECORD_ALIGN - 1) & ~(VMLOOP_RECORD_ALIGN - 1U);
}

/* Opens it; returns the step that the victim took. */
static uint32_t open_lane(struct lane *lane)
{
	volatile struct vmloop_shm_entry *ours = lane->ours;
	double until = now() + PATIENCE;

	ours->lane.kind = VMLOOP_LANE_STREAM;
	ours->lane.ring_size = RING;
	ours->lane.tx_head = lane->head = rounded(ours->lane.tx_head);
	ours->lane.rx_tail = rounded(lane->theirs->lane.tx_head);
	ours->features = 0;
	memcpy((void *)ours->path, &us.say, sizeof(us.say));
	say_life(lane, VMLOOP_LIFE_OPEN);
	while (life_step(lane->theirs->life) == VMLOOP_LIFE_FREE) {
		if (now() > until)
			fail("the victim does not answer");
		usleep(1000);
	}
	return life_step(lane->theirs->life);
}

/* 0 if the victim opened it, else the reason why not. */
static uint32_t refusal(struct lane *lane)
{
	uint32_t step = open_lane(lane);

	if (step == VMLOOP_LIFE_REFUSED)
		return lane->theirs->reason;
	if (step != VMLOOP_LIFE_OPEN)
		fail("the victim says %" PRIu32 " of a lane that we opened", step);
	return 0;
}

/* The victim's life, counted from our generation's start. */
static uint32_t their_step(const struct lane *lane)
{
	return lane->theirs->life - (lane->ours->life - life_step(lane->ours->life));
}

static void wait_for_step(const struct lane *lane, uint32_t step)
{
	double until = now() + PATIENCE;

	while (their_step(lane) < step) {
		if (now() > until)
			fail("the victim does not end the lane: it says %" PRIu32,
			     lane->theirs->life);
		usleep(1000);
	}
}

/* Lets go of a lane that was refused. */
static void let_go(struct lane *lane)
{
	double until = now() + PATIENCE;

	say_life(lane, VMLOOP_LIFE_FREE);
	while (lane->theirs->life != lane->ours->life)
		if (now() > until)
			fail("the victim does not let go of a lane that it refused");
}

/* A lane for the connection. One that has just had a lane for nothing waits a while. */
static struct lane accepted(void)
{
	double until = now() + 3 * PATIENCE;
	struct lane lane;
	uint32_t reason;

	for (;;) {
		lane = free_lane(0);
		reason = refusal(&lane);
		if (!reason)
			return lane;
		if (reason != VMLOOP_REASON_PATH + 1 || now() > until)
			fail("the victim refused the right lane: %" PRIu32, reason);
		let_go(&lane);
		usleep(200000);
	}
}

static void put(struct lane *lane, const void *bytes, uint32_t size)
{
	uint32_t n;

	for (n = 0; n < size; n++)
		lane->ring[(lane->head + n) % RING] = ((const uint8_t *)bytes)[n];
	lane->head += size;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	lane->ours->lane.tx_head = lane->head;
	tell(lane->number);
}

static void say_hello(struct lane *lane, uint32_t magic, uint32_t ahead)
{
	uint32_t hello[2] = {
		magic,
		us.say.from_first + (uint32_t)strlen(BY_TCP) + ahead,
	};

	put(lane, hello, sizeof(hello));
}

/* Waits for the victim's hello, and reads it. */
static void hear(struct lane *lane)
{
	double until = now() + PATIENCE;

	while (lane->theirs->lane.tx_head == lane->ours->lane.rx_tail) {
		if (now() > until)
			fail("the victim says no hello");
		usleep(1000);
	}
	lane->ours->lane.rx_tail = lane->theirs->lane.tx_head;
	tell(lane->number);
}

/* Whether both hellos were read, before the victim gave up: it waits for 200 ms. */
static bool go_over(struct lane *lane, uint32_t ahead)
{
	double until = now() + PATIENCE;

	say_hello(lane, MAGIC, ahead);
	while (lane->theirs->lane.tx_head == lane->ours->lane.rx_tail ||
	       lane->theirs->lane.rx_tail != lane->head) {
		if (their_step(lane) != VMLOOP_LIFE_OPEN)
			return false;
		if (now() > until)
			fail("the victim says no hello, or does not read ours");
		usleep(1000);
	}
	lane->ours->lane.rx_tail = lane->theirs->lane.tx_head;
	tell(lane->number);
	/* It may have given up before it saw that; after that it does not look at the time. */
	usleep(300000);
	return their_step(lane) == VMLOOP_LIFE_OPEN;
}

static struct lane gone_over(uint32_t ahead)
{
	double until = now() + 3 * PATIENCE;
	struct lane lane = accepted();

	while (!go_over(&lane, ahead)) {
		if (now() > until)
			fail("the machine is too slow for hellos");
		wait_for_step(&lane, VMLOOP_LIFE_CLOSED);
		say_life(&lane, VMLOOP_LIFE_CLOSED);
		let_go(&lane);
		lane = accepted();
	}
	return lane;
}

/* Cases --------------------------------------------------------------------- */

static uint32_t open_as_said(void)
{
	struct lane lane = free_lane(0);

	return refusal(&lane);
}

static uint32_t wrong_first(void)
{
	us.say.from_first++;
	return open_as_said();
}

static uint32_t wrong_first_of_the_other(void)
{
	us.say.to_first--;
	return open_as_said();
}

static uint32_t wrong_port(void)
{
	us.say.from_port ^= htons(1);
	return open_as_said();
}

static uint32_t wrong_address(void)
{
	us.say.from[15] ^= 1;
	return open_as_said();
}

static uint32_t reversed(void)
{
	struct say say = us.say;

	memcpy(us.say.from, say.to, sizeof(say.to));
	memcpy(us.say.to, say.from, sizeof(say.from));
	us.say.from_port = say.to_port;
	us.say.to_port = say.from_port;
	us.say.from_first = say.to_first;
	us.say.to_first = say.from_first;
	return open_as_said();
}

static uint32_t nobodys(void)
{
	memset(&us.say, 0, sizeof(us.say));
	return open_as_said();
}

static uint32_t all_ones(void)
{
	memset(&us.say, 0xff, sizeof(us.say));
	return open_as_said();
}

static uint32_t a_second_lane(void)
{
	struct lane lane = accepted();

	lane = free_lane(lane.number + 2);
	return refusal(&lane);
}

/* As many as go in a while, one after the other, are refused, and the right one is not. */
static uint32_t many_wrong_ones(void)
{
	struct say right = us.say;
	double until = now() + 3;
	struct lane lane;
	uint32_t n;

	for (n = 1; now() < until; n++) {
		us.say.from_first = right.from_first + n;
		lane = free_lane(0);
		if (refusal(&lane) != VMLOOP_REASON_PATH)
			fail("number %" PRIu32 " was not refused so", n);
		let_go(&lane);
	}
	if (n < 20)
		fail("only %" PRIu32 " in 3 s", n);
	us.say = right;
	lane = accepted();
	say_life(&lane, VMLOOP_LIFE_CLOSED);
	wait_for_step(&lane, VMLOOP_LIFE_CLOSED);
	return 0;
}

/* The right lane, opened and closed again and again: each end of one costs the victim. */
static uint32_t opened_and_closed(void)
{
	double until = now() + 4;
	uint32_t accepted_ones = 0, reason;
	struct lane lane;

	while (now() < until) {
		lane = free_lane(0);
		reason = refusal(&lane);
		if (reason && reason != VMLOOP_REASON_PATH + 1)
			fail("it was refused: %" PRIu32, reason);
		accepted_ones += !reason;
		if (!reason) {
			say_life(&lane, VMLOOP_LIFE_CLOSED);
			wait_for_step(&lane, VMLOOP_LIFE_CLOSED);
		}
		let_go(&lane);
	}
	if (!accepted_ones || accepted_ones > 12)
		fail("%" PRIu32 " lanes were accepted in 4 s", accepted_ones);
	return 0;
}

/* Tells of all lanes that have changed, and waits until the victim has taken that. */
static void tell_of_all(const uint64_t *changed, uint32_t words)
{
	double until = now() + PATIENCE;
	uint64_t groups = 0;
	uint32_t word;

	for (word = 0; word < words; word++) {
		us.news->lanes[word] ^= changed[word];
		groups |= (uint64_t)!!changed[word] << word;
	}
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	us.news->groups ^= groups;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	ring();
	for (word = 0; word < words; word++)
		while (us.their_news->lanes_taken[word] != us.news->lanes[word])
			if (now() > until)
				fail("the victim takes no news of so many lanes");
}

/*
 * Lanes of a kind that there is not, all numbers at once, again and again. The victim looks 8,192
 * times at once and 4,096 times a second: once at a lane that is opened, and once at one that is
 * let go of. Then it accepts a right one.
 */
static uint32_t refused_without_end(void)
{
	const uint32_t lanes = lane_count();
	const uint32_t words = (lanes + VMLOOP_NEWS_BITS - 1) / VMLOOP_NEWS_BITS;
	const double seconds = 6, begin = now();
	uint32_t number, refused = 0;
	struct lane one;
	bool all_free;

	do {
		uint64_t changed[VMLOOP_NEWS_BITS] = { 0 };

		all_free = true;
		for (number = us.side; number < lanes; number += 2) {
			volatile struct vmloop_shm_entry *ours =
				region_entry(us.base, us.side, number);
			uint32_t theirs = region_entry(us.base, !us.side, number)->life;
			uint32_t step = life_step(ours->life);

			if (ours->lane.kind != 0xffff && step != VMLOOP_LIFE_FREE)
				continue;	/* one of the guest's own */
			if (step == VMLOOP_LIFE_FREE && theirs == ours->life &&
			    now() < begin + seconds) {
				ours->lane.kind = 0xffff;
				ours->life += VMLOOP_LIFE_OPEN;
			} else if (step == VMLOOP_LIFE_OPEN &&
				   life_step(theirs) == VMLOOP_LIFE_REFUSED) {
				ours->life += (1U << VMLOOP_LIFE_BITS) - VMLOOP_LIFE_OPEN;
				refused++;
			} else {
				all_free &= step == VMLOOP_LIFE_FREE && theirs == ours->life;
				continue;
			}
			all_free = false;
			changed[number / VMLOOP_NEWS_BITS] |= 1ULL << number % VMLOOP_NEWS_BITS;
		}
		tell_of_all(changed, words);
		if (now() > begin + seconds + 3 * PATIENCE)
			fail("the victim does not let go of lanes that it refused");
	} while (!all_free);
	if (refused > (8192 + 4096 * (uint32_t)(now() - begin + 2)) / 2)
		fail("%" PRIu32 " lanes were looked at in %g s", refused, now() - begin);
	one = accepted();
	say_life(&one, VMLOOP_LIFE_CLOSED);
	wait_for_step(&one, VMLOOP_LIFE_CLOSED);
	return 0;
}

static uint32_t right(void)
{
	const struct vmloop_shm_header *header = (void *)us.base;
	const uint32_t size = (uint32_t)strlen(BY_LANE);
	struct lane lane = gone_over(0);
	double until = now() + PATIENCE;
	uint32_t n, at, their_size;
	const uint8_t *theirs;

	put(&lane, BY_LANE, size);
	at = lane.ours->lane.rx_tail;
	while (lane.theirs->lane.tx_head - at < size) {
		if (now() > until)
			fail("nothing comes back by the lane");
		usleep(1000);
	}
	theirs = us.base + header->data_offset[!us.side] + lane.theirs->lane.ring_offset;
	their_size = lane.theirs->lane.ring_size;
	for (n = 0; n < size; n++)
		if (theirs[(at + n) % their_size] != BY_LANE[n])
			fail("what comes back by the lane is wrong at %" PRIu32, n);
	return 0;
}

static uint32_t hello_of_another_kind(void)
{
	struct lane lane = accepted();

	say_hello(&lane, MAGIC ^ 1, 0);
	return 0;
}

static uint32_t hello_behind(void)
{
	struct lane lane = accepted();

	say_hello(&lane, MAGIC, (uint32_t)-1);
	return 0;
}

static uint32_t hello_far_behind(void)
{
	struct lane lane = accepted();

	say_hello(&lane, MAGIC, 1U << 31);
	return 0;
}

static uint32_t hello_ahead(void)
{
	struct lane lane = accepted();

	say_hello(&lane, MAGIC, (8U << 20) + 1);
	return 0;
}

/* It names bytes that never come by TCP: what came by the lane has no place. */
static uint32_t hello_of_what_is_not(void)
{
	struct lane lane = gone_over(4U << 20);

	put(&lane, BY_LANE, (uint32_t)strlen(BY_LANE));
	return 0;
}

static uint32_t no_hello(void)
{
	struct lane lane = accepted();

	hear(&lane);
	wait_for_step(&lane, VMLOOP_LIFE_CLOSED);
	return 0;
}

static uint32_t half_a_hello(void)
{
	struct lane lane = accepted();
	const uint32_t magic = MAGIC;

	put(&lane, &magic, sizeof(magic));
	hear(&lane);
	wait_for_step(&lane, VMLOOP_LIFE_CLOSED);
	return 0;
}

static uint32_t closed_at_once(void)
{
	struct lane lane = accepted();

	say_life(&lane, VMLOOP_LIFE_CLOSED);
	wait_for_step(&lane, VMLOOP_LIFE_CLOSED);
	return 0;
}

static uint32_t head_past_the_ring(void)
{
	struct lane lane = gone_over(0);

	lane.head += RING;
	put(&lane, "x", 1);
	return 0;
}

static uint32_t head_back(void)
{
	struct lane lane = gone_over(0);

	lane.head -= 5;
	put(&lane, "", 0);
	return 0;
}

static uint32_t tail_past_the_head(void)
{
	struct lane lane = accepted();

	hear(&lane);
	lane.ours->lane.rx_tail += 1;
	tell(lane.number);
	say_hello(&lane, MAGIC, 0);
	return 0;
}

static uint32_t closed_twice(void)
{
	struct lane lane = accepted();

	say_life(&lane, VMLOOP_LIFE_CLOSED);
	say_life(&lane, VMLOOP_LIFE_REFUSED);
	return 0;
}

/*
 * What must come of it. "refused N": the lane is refused with that reason, and the
 * connection goes on; "tcp": the lane ends, and it goes on; "carried": bytes come by the
 * lane, and it goes on; "lied": the same, and it is reset for what is said of them; "reset":
 * it is reset; "broken": the channel is; "any": the victim survives.
 */
static const struct {
	const char *name;
	uint32_t (*act)(void);
	const char *outcome;
} cases[] = {
	{ "right", right, "carried" },
	{ "return_of_another_lane", right, "lied" },
	{ "return_of_one_too_much", right, "lied" },
	{ "return_of_less_than_nothing", right, "lied" },
	{ "nothing_returned", right, "lied" },
	{ "wrong_first", wrong_first, "refused 256" },
	{ "wrong_first_of_the_other", wrong_first_of_the_other, "refused 256" },
	{ "wrong_port", wrong_port, "refused 256" },
	{ "wrong_address", wrong_address, "refused 256" },
	{ "reversed", reversed, "refused 256" },
	{ "of_another_guest", open_as_said, "refused 256" },
	{ "nobodys", nobodys, "refused 256" },
	{ "all_ones", all_ones, "refused 256" },
	{ "a_second_lane", a_second_lane, "refused 257" },
	{ "many_wrong_ones", many_wrong_ones, "tcp" },
	{ "opened_and_closed", opened_and_closed, "tcp" },
	{ "refused_without_end", refused_without_end, "tcp" },
	{ "no_hello", no_hello, "tcp" },
	{ "half_a_hello", half_a_hello, "tcp" },
	{ "closed_at_once", closed_at_once, "tcp" },
	{ "hello_of_another_kind", hello_of_another_kind, "reset" },
	{ "hello_behind", hello_behind, "reset" },
	{ "hello_far_behind", hello_far_behind, "reset" },
	{ "hello_ahead", hello_ahead, "reset" },
	{ "hello_of_what_is_not", hello_of_what_is_not, "any" },
	{ "head_past_the_ring", head_past_the_ring, "broken" },
	{ "head_back", head_back, "broken" },
	{ "tail_past_the_head", tail_past_the_head, "broken" },
	{ "closed_twice", closed_twice, "broken" },
};

#define CASES	((int)(sizeof(cases) / sizeof(cases[0])))

static void map_address(const char *text, uint8_t *to)
{
	memset(to, 0, 10);
	memset(to + 10, 0xff, 2);
	if (inet_pton(AF_INET, text, to + 12) != 1)
		fail("no address: %s", text);
}

static void play(char **words)
{
	const char *outcome;
	char said[32];
	uint32_t reason;
	int n;

	us.base = region_of(words[0], words[1]);
	us.side = (unsigned int)atoi(words[2]);
	if (!region_table(us.base, us.side))
		fail("a channel without a table of lanes");
	us.news = &region_table(us.base, us.side)->news;
	us.their_news = &region_table(us.base, !us.side)->news;
	find_bells(words[0], words[1]);
	map_address(words[4], us.say.from);
	map_address(words[6], us.say.to);
	us.say.from_port = htons((uint16_t)atoi(words[5]));
	us.say.to_port = htons((uint16_t)atoi(words[7]));
	us.say.from_first = (uint32_t)strtoul(words[8], NULL, 10);
	us.say.to_first = (uint32_t)strtoul(words[9], NULL, 10);
	us.say.nonce = nonce_of(us.say.from_first);
	for (n = 0; n < CASES && strcmp(cases[n].name, words[3]); n++)
		;
	if (n == CASES)
		fail("no case %s", words[3]);
	outcome = cases[n].outcome;
	reason = cases[n].act();
	snprintf(said, sizeof(said), "refused %" PRIu32, reason);
	if ((reason || !strncmp(outcome, "refused", 7)) && strcmp(said, outcome))
		fail("the victim's answer was %" PRIu32 ", not: %s", reason, outcome);
}

int main(int argc, char **argv)
{
	int n;

	if (argc == 5 && !strcmp(argv[1], "connect"))
		return connect_and_wait(argv[2], argv[3], argv[4]);
	if (argc == 2 && !strcmp(argv[1], "list")) {
		for (n = 0; n < CASES; n++)
			printf("%s: %s\n", cases[n].name, cases[n].outcome);
		return 0;
	}
	if (argc != 11)
		fail("usage: forge connect HOST PORT CASE | forge list |\n"
		     "       forge PID PEER SIDE CASE FROM FROM-PORT TO TO-PORT FROM-FIRST TO-FIRST");
	play(argv + 1);
	return 0;
}
