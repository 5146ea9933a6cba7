// SPDX-License-Identifier: GPL-2.0
/*
 * frozen.c - plays a guest that stands still, in its host: the consumer's
 * position in its channel moves as we like, while its own modules do nothing.
 *
 *	frozen PID PEER SIDE read BYTES MS [SLOT]
 *						so many bytes each MS milliseconds,
 *						until SIGTERM; says how many in all;
 *						with SLOT of that packet lane, and
 *						all that comes by the others
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
#include <signal.h>
#include <unistd.h>

#include "outside.h"

/* The peer looks at our position now and then: a small step back it may not see. */
#define FAR		(1U << 30)

static volatile sig_atomic_t ending;

static void on_signal(int number)
{
	(void)number;
	ending = 1;
}

/* The packet lanes, by slot. */
struct lane {
	volatile struct vmloop_shm_lane *ours;
	const volatile struct vmloop_shm_lane *theirs;
};

static struct lane lanes[VMLOOP_PACKET_LANES];
static int lane_count;

static void find_lanes(uint8_t *base, unsigned int side)
{
	int number;

	while (lane_count < VMLOOP_PACKET_LANES &&
	       (number = region_slot(base, (uint32_t)lane_count)) >= 0) {
		lanes[lane_count].ours = region_lane(base, side, (uint32_t)number);
		lanes[lane_count].theirs = region_lane(base, side + 1, (uint32_t)number);
		lane_count++;
	}
	if (!lane_count)
		fail("no lane of packets is open");
}

/* Never beyond what is there: what the peer sees is slow, and no nonsense. */
static uint32_t read_some(struct lane *lane, uint32_t bytes)
{
	uint32_t tail = lane->ours->rx_tail;
	uint32_t step = __atomic_load_n(&lane->theirs->tx_head, __ATOMIC_ACQUIRE) - tail;

	if (step > bytes)
		step = bytes;
	__atomic_store_n(&lane->ours->rx_tail, tail + step, __ATOMIC_RELEASE);
	return step;
}

/*
 * So many bytes each time, of one lane or of each; all that comes by others at once. The
 * guest reads on where it had been: if the peer has written over that, it ends the channel.
 */
static void read_slowly(uint32_t bytes, double pause, int slot)
{
	double next = now();
	uint32_t sum = 0;
	int n;

	puts("ready");
	fflush(stdout);
	while (!ending) {
		for (n = 0; n < lane_count; n++)
			if (slot >= 0 && n != slot)
				read_some(&lanes[n], UINT32_MAX);
		if (now() < next) {
			usleep(slot < 0 ? (useconds_t)((next - now()) * 1e6) : 500);
			continue;
		}
		next = now() + pause;
		for (n = 0; n < lane_count; n++)
			if (slot < 0 || n == slot)
				sum += read_some(&lanes[n], bytes);
	}
	printf("%u\n", sum);
}

/* One position that cannot be, of the first lane that has something to read. */
static void lie(uint32_t distance)
{
	int n = 0;

	puts("ready");
	fflush(stdout);
	while (!ending && lanes[n].theirs->tx_head == lanes[n].ours->rx_tail) {
		n = (n + 1) % lane_count;
		if (!n)
			usleep(500);
	}
	lanes[n].ours->rx_tail += distance;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };
	const char *what = argc > 4 ? argv[4] : "";
	unsigned int side;
	uint8_t *base;

	if (argc < 5 || argc > 8)
		fail("usage: frozen PID PEER SIDE read BYTES MS [SLOT] | beyond | between | back");
	/* No SA_RESTART: what sleeps must end as well. */
	sigaction(SIGTERM, &action, NULL);
	base = region_of(argv[1], argv[2]);
	side = (unsigned int)atoi(argv[3]);
	find_lanes(base, side);

	if (!strcmp(what, "read") && argc >= 7)
		read_slowly((uint32_t)atoi(argv[5]), atof(argv[6]) / 1000,
			    argc == 8 ? atoi(argv[7]) : -1);
	else if (!strcmp(what, "beyond"))
		lie(FAR);
	else if (!strcmp(what, "between"))
		lie(VMLOOP_RECORD_ALIGN / 2);
	else if (!strcmp(what, "back"))
		lie(-FAR);
	else
		fail("no idea: %s", what);
	return 0;
}
