// SPDX-License-Identifier: GPL-2.0
/*
 * shm.c - this guest's ivshmem devices, seen and written past the modules: the
 * hostile peer.
 *
 *	shm list                            the devices, as JSON
 *	shm lanes TAG                       its lanes that are not free at both sides: numbers,
 *	                                    and the step of either side, as JSON
 *	shm mark TAG OFFSET HEX             write 16 bytes into a channel's region
 *	shm find HEX                        where the 16 bytes stand, in any device
 *	shm scribble DEVICE                 whether a device's memory can be written; nothing
 *	                                    else may use its first four bytes meanwhile
 *	shm list-attacks                    names, and what each one must lead to
 *	shm attack TAG NAME FROM TO [AS]    attack the peer behind a channel
 *	shm frame TAG HEX [FLAGS START OFFSET]
 *	                                    send it a frame, from its Ethernet header on
 *
 * FROM is our hardware address in that channel, TO the peer's, AS that of
 * somebody else. An attack writes what the modules never would into the part
 * of the region that is ours, and rings the doorbell. The modules of this
 * guest must be silent meanwhile. FLAGS, START and OFFSET are what the frame's
 * metadata say of its checksum.
 *
 * Needs root, and iomem=relaxed on the kernel's command line, as the modules
 * have the devices.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "region.h"

#define DEVICES		"/sys/bus/pci/devices"
#define DEVICES_MAX	64
#define IV_POSITION	8
#define DOORBELL	12
#define MARK_SIZE	16

struct device {
	char name[32];
	volatile uint32_t *registers;
	uint8_t *base;
	size_t size;
	uint32_t id;
};

static struct device devices[DEVICES_MAX];
static int device_count;

/* Finding devices --------------------------------------------------------- */

static uint32_t read_number(const char *device, const char *file)
{
	char path[512], text[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), DEVICES "/%s/%s", device, file);
	f = fopen(path, "r");
	if (!f)
		return 0;
	if (!fgets(text, sizeof(text), f))
		text[0] = 0;
	fclose(f);
	return (uint32_t)strtoul(text, NULL, 0);
}

/*
 * A BAR through /dev/mem, registers uncached and the region as ordinary memory:
 * the modules have mapped them so, and the kernel does not let sysfs map them in
 * another way. NULL while the device is being plugged or unplugged.
 */
static void *map(const char *device, int bar, size_t *size)
{
	unsigned long long start = 0, end = 0, skip;
	int flags = bar ? O_RDWR : O_RDWR | O_SYNC;
	char path[512], line[128] = "";
	char *at;
	FILE *f;
	int fd;

	snprintf(path, sizeof(path), DEVICES "/%s/resource", device);
	f = fopen(path, "r");
	if (!f)
		return NULL;
	for (; bar >= 0; bar--)
		if (!fgets(line, sizeof(line), f))
			fail("%s: too short", path);
	fclose(f);
	if (sscanf(line, "%llx %llx", &start, &end) != 2)
		fail("%s: %s", path, line);
	if (!start)
		return NULL;

	skip = start % 4096;	/* BARs of small devices share pages */
	fd = open("/dev/mem", flags);
	if (fd < 0)
		fail("/dev/mem: cannot be opened");
	*size = (size_t)(end - start + 1);
	at = mmap(NULL, *size + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		  (off_t)(start - skip));
	if (at == MAP_FAILED)
		fail("/dev/mem at %llx: cannot be mapped: boot with iomem=relaxed", start);
	close(fd);
	return at + skip;
}

static void find_devices(void)
{
	DIR *dir = opendir(DEVICES);
	struct dirent *entry;
	struct device *device;
	size_t size;

	if (!dir)
		fail("no " DEVICES);
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] == '.' ||
		    read_number(entry->d_name, "vendor") != 0x1af4 ||
		    read_number(entry->d_name, "device") != 0x1110)
			continue;
		if (device_count == DEVICES_MAX)
			fail("more than %d devices", DEVICES_MAX);
		device = &devices[device_count];
		snprintf(device->name, sizeof(device->name), "%.31s", entry->d_name);
		device->registers = map(device->name, 0, &size);
		device->base = map(device->name, 2, &device->size);
		if (!device->registers || !device->base)
			continue;
		device_count++;
		device->id = device->registers[IV_POSITION / 4];
	}
	closedir(dir);
}

static struct device *find_tag(uint32_t tag)
{
	int n;

	for (n = 0; n < device_count; n++)
		if (devices[n].id / 2 == tag && devices[n].id >= 2)
			return &devices[n];
	fail("no device has tag %u", tag);
}

static void list(void)
{
	const struct vmloop_shm_header *header;
	const char *comma = "";
	int n;

	putchar('[');
	for (n = 0; n < device_count; n++) {
		header = (void *)devices[n].base;
		printf("%s{\"device\": \"%s\", \"id\": %u, \"tag\": %u, \"size\": %zu", comma,
		       devices[n].name, devices[n].id, devices[n].id / 2, devices[n].size);
		printf(", \"kind\": %u", header->magic == VMLOOP_SHM_MAGIC ? header->kind : 0);
		printf(", \"major\": %u", header->magic == VMLOOP_SHM_MAGIC ? header->major : 0);
		if (header->magic == VMLOOP_SHM_MAGIC)
			printf(", \"state\": [%u, %u]", region_side(devices[n].base, 0)->state,
			       region_side(devices[n].base, 1)->state);
		putchar('}');
		comma = ",\n ";
	}
	puts("]");
}

static const char *step_name(uint32_t step)
{
	static const char *const names[] = {
		[VMLOOP_LIFE_FREE] = "free", [VMLOOP_LIFE_OPEN] = "open",
		[VMLOOP_LIFE_CLOSING] = "closing", [VMLOOP_LIFE_CLOSED] = "closed",
		[VMLOOP_LIFE_REFUSED] = "refused",
	};

	return step < sizeof(names) / sizeof(names[0]) ? names[step] : "wrong";
}

static void list_lanes(uint8_t *base)
{
	volatile struct vmloop_shm_table *table = region_table(base, 0);
	volatile struct vmloop_shm_entry *entry;
	const char *comma = "";
	uint32_t number, step[2];
	unsigned int side;

	if (!table)
		fail("a channel of version 1 has no table of lanes");
	putchar('[');
	for (number = 0; number < table->lanes; number++) {
		for (side = 0; side < 2; side++)
			step[side] = life_step(region_entry(base, side, number)->life);
		if (step[0] == VMLOOP_LIFE_FREE && step[1] == VMLOOP_LIFE_FREE)
			continue;
		entry = region_entry(base, number % 2, number);
		printf("%s{\"number\": %u, \"kind\": %u", comma, number, entry->lane.kind);
		printf(", \"steps\": [\"%s\", \"%s\"]}", step_name(step[0]), step_name(step[1]));
		comma = ",\n ";
	}
	puts("]");
}

static void scribble(const char *name)
{
	volatile uint32_t *word = NULL;
	uint32_t before;
	int n;

	for (n = 0; n < device_count; n++)
		if (!strcmp(devices[n].name, name))
			word = (void *)devices[n].base;
	if (!word)
		fail("no device %s", name);
	before = *word;
	*word = ~before;
	puts(*word == before ? "same" : "changed");
	*word = before;
}

static void read_mark(const char *text, uint8_t *mark)
{
	unsigned int byte;
	int n;

	if (strlen(text) != 2 * MARK_SIZE)
		fail("a mark is %d bytes in hexadecimal", MARK_SIZE);
	for (n = 0; n < MARK_SIZE; n++) {
		if (sscanf(text + 2 * n, "%2x", &byte) != 1)
			fail("not hexadecimal: %s", text);
		mark[n] = (uint8_t)byte;
	}
}

/* Marks are written at multiples of their size. */
static void find(const uint8_t *mark)
{
	size_t at;
	int n;

	for (n = 0; n < device_count; n++)
		for (at = 0; at + MARK_SIZE <= devices[n].size; at += MARK_SIZE)
			if (!memcmp(devices[n].base + at, mark, MARK_SIZE))
				printf("%u %zu\n", devices[n].id / 2, at);
}

/* Writing what the modules would not -------------------------------------- */

static struct {
	struct device *device;
	volatile struct vmloop_shm_side *ours;
	/* Found before the header is written over. */
	const volatile struct vmloop_shm_side *their_side;
	volatile struct vmloop_shm_lane *lane;
	volatile struct vmloop_shm_lane *theirs;
	/* Of version 2, else NULL. */
	volatile struct vmloop_shm_entry *entry;
	volatile struct vmloop_shm_news *news;
	volatile struct vmloop_shm_news *their_news;
	uint32_t number;
	uint32_t lanes;
	uint8_t *ring;
	uint32_t ring_size;
	uint32_t head;
	uint8_t from[6];
	uint8_t to[6];
	uint8_t as[6];
} us;

static void ring_nothing(void)
{
	us.device->registers[DOORBELL / 4] = (us.device->id ^ 1) << 16;
}

/*
 * Says that there is news of the lane, until it was taken: told twice before that, it was
 * never told. 3 seconds at most, for a peer whose CPU is away; one that has ended the channel
 * is told in vain.
 */
static void tell(void)
{
	double until = now() + 3;

	us.news->lanes[us.number / VMLOOP_NEWS_BITS] ^= 1ULL << us.number % VMLOOP_NEWS_BITS;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	us.news->groups ^= 1ULL << us.number / VMLOOP_NEWS_BITS;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	ring_nothing();
	while (us.their_news->lanes_taken[us.number / VMLOOP_NEWS_BITS] !=
	       us.news->lanes[us.number / VMLOOP_NEWS_BITS])
		if (us.their_side->state != VMLOOP_SIDE_READY || now() > until)
			break;
}

/* Our modules know what they have told: it is as they know it again afterwards. */
static void ring_doorbell(void)
{
	if (!us.news) {
		ring_nothing();
		return;
	}
	tell();
	tell();
}

static void publish(uint32_t head)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	us.lane->tx_head = head;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	ring_doorbell();
}

/* A record's header may say anything; @size bytes of payload are there. */
static uint32_t write_record(uint32_t says, uint16_t type, const void *payload, uint32_t size)
{
	struct vmloop_shm_record record = { .size = says, .type = type };
	uint32_t at = us.head & (us.ring_size - 1);

	if (at + sizeof(record) + size + VMLOOP_RECORD_ALIGN > us.ring_size)
		fail("too near to the ring's end: use a new channel");
	memcpy(us.ring + at, &record, sizeof(record));
	memcpy(us.ring + at + sizeof(record), payload, size);
	return (sizeof(record) + size + VMLOOP_RECORD_ALIGN - 1) & ~(VMLOOP_RECORD_ALIGN - 1U);
}

static void send_record(uint16_t type, const void *payload, uint32_t size)
{
	us.head += write_record(size, type, payload, size);
	publish(us.head);
}

/* A frame of the protocol for experiments, or a TCP segment. */
struct frame {
	struct vmloop_shm_frame meta;
	uint8_t to[6];
	uint8_t from[6];
	uint8_t protocol[2];
	uint8_t data[2000];
};

#define FRAME_BYTES(data_bytes) \
	(sizeof(struct vmloop_shm_frame) + 14 + (data_bytes))

static struct frame good_frame(void)
{
	struct frame frame = { .protocol = { 0x88, 0xb5 } };

	memcpy(frame.to, us.to, 6);
	memcpy(frame.from, us.from, 6);
	memcpy(frame.data, "vmloop test", 11);
	return frame;
}

/* IPv4 and TCP headers that are right in themselves, 1,400 bytes of payload. */
#define SEGMENT	(20 + 20 + 1400)

static struct frame segment(void)
{
	struct frame frame = good_frame();
	uint8_t *ip = frame.data, *tcp = frame.data + 20;

	frame.protocol[0] = 0x08;
	frame.protocol[1] = 0x00;
	memset(frame.data, 0, sizeof(frame.data));
	ip[0] = 0x45;
	ip[2] = SEGMENT >> 8;
	ip[3] = SEGMENT & 0xff;
	ip[8] = 64;
	ip[9] = 6;
	memcpy(ip + 12, "\x0a\x4d\x00\xfd\x0a\x4d\x00\xfe", 8);
	tcp[12] = 0x50;
	frame.meta = (struct vmloop_shm_frame){
		.flags = VMLOOP_FRAME_NEEDS_CSUM,
		.gso = VMLOOP_GSO_TCPV4,
		.hdr_len = 54,
		.gso_size = 700,
		.csum_start = 34,
		.csum_offset = 16,
	};
	return frame;
}

static void send_frame(const struct frame *frame, uint32_t data_bytes)
{
	send_record(VMLOOP_RECORD_FRAME, frame, FRAME_BYTES(data_bytes));
}

/* Attacks ----------------------------------------------------------------- */

static void good(void)
{
	struct frame frame = good_frame();

	send_frame(&frame, 46);
}

static void forged_source(void)
{
	struct frame frame = good_frame();

	memcpy(frame.from, us.as, 6);
	send_frame(&frame, 46);
}

static void own_source(void)
{
	struct frame frame = good_frame();

	memcpy(frame.from, us.to, 6);	/* the victim's own address */
	send_frame(&frame, 46);
}

static void other_destination(void)
{
	struct frame frame = good_frame();

	memcpy(frame.to, us.as, 6);
	send_frame(&frame, 46);
}

static void broadcast(void)
{
	struct frame frame = good_frame();

	memset(frame.to, 0xff, 6);
	send_frame(&frame, 46);
}

static void no_frame(void)
{
	struct frame frame = good_frame();

	send_record(VMLOOP_RECORD_FRAME, &frame, sizeof(frame.meta) + 13);
}

static void empty_record(void)
{
	send_record(VMLOOP_RECORD_FRAME, "", 0);
}

static void too_large_a_frame(void)
{
	uint8_t *large = calloc(1, 200000);
	struct frame frame = good_frame();

	if (!large)
		fail("no memory");
	memcpy(large, &frame, FRAME_BYTES(46));
	send_record(VMLOOP_RECORD_FRAME, large, 200000);
	free(large);
}

static void unknown_record(void)
{
	struct frame frame = good_frame();

	send_record(0x7777, &frame, FRAME_BYTES(46));
}

/* Lists of receivers: what @count says, what is there, and with how much room. */
static void receivers(uint32_t count, uint32_t size)
{
	struct vmloop_shm_receivers list = { .count = count };

	memcpy(list.mac[0], us.from, 6);
	send_record(VMLOOP_RECORD_RECEIVERS, &list, size);
}

static void receivers_cut_short(void)
{
	receivers(1, 4);
}

static void receivers_of_wrong_size(void)
{
	receivers(2, 8 + 6);
}

static void receivers_without_end(void)
{
	receivers(0xffffffff, sizeof(struct vmloop_shm_receivers));
}

static void receivers_by_overflow(void)
{
	receivers(0x2aaaaaab, 8 + 2);	/* 6 times that is 2 modulo 2^32 */
}

static void gso_unknown(void)
{
	struct frame frame = segment();

	frame.meta.gso = 99;
	send_frame(&frame, SEGMENT);
}

static void gso_without_checksum(void)
{
	struct frame frame = segment();

	frame.meta.flags = 0;
	send_frame(&frame, SEGMENT);
}

static void gso_of_nothing(void)
{
	struct frame frame = segment();

	frame.meta.gso_size = 0;
	send_frame(&frame, SEGMENT);
}

static void gso_ecn_alone(void)
{
	struct frame frame = segment();

	frame.meta.gso = VMLOOP_GSO_ECN;
	send_frame(&frame, SEGMENT);
}

static void checksum_past_the_end(void)
{
	struct frame frame = segment();

	frame.meta.gso = VMLOOP_GSO_NONE;
	frame.meta.csum_start = 60000;
	send_frame(&frame, SEGMENT);
}

static void checksum_field_past_the_end(void)
{
	struct frame frame = segment();

	frame.meta.gso = VMLOOP_GSO_NONE;
	frame.meta.csum_offset = 65535;
	send_frame(&frame, SEGMENT);
}

static void gso_in_the_headers(void)
{
	struct frame frame = segment();

	frame.meta.csum_start = 2;
	send_frame(&frame, SEGMENT);
}

static void gso_headers_past_the_end(void)
{
	struct frame frame = segment();

	/* The TCP header would begin with the frame's last byte. */
	frame.meta.csum_start = 14 + SEGMENT - 1;
	frame.meta.csum_offset = 0;
	send_frame(&frame, SEGMENT);
}

static void vlan_of_nothing(void)
{
	struct frame frame = good_frame();

	frame.meta.flags = VMLOOP_FRAME_VLAN;
	frame.meta.vlan_proto = 0x1234;
	frame.meta.vlan_tci = 100;
	send_frame(&frame, 46);
}

static void unaligned_head(void)
{
	struct frame frame = good_frame();

	write_record(FRAME_BYTES(46), VMLOOP_RECORD_FRAME, &frame, FRAME_BYTES(46));
	publish(us.head + 7);
}

static void head_past_the_ring(void)
{
	publish(us.head + us.ring_size + VMLOOP_RECORD_ALIGN);
}

static void head_far_away(void)
{
	publish(us.head + 0x80000000U);
}

static void head_backwards(void)
{
	publish(us.head - VMLOOP_RECORD_ALIGN);
}

static void record_past_the_head(void)
{
	struct frame frame = good_frame();
	uint32_t span = write_record(5000, VMLOOP_RECORD_FRAME, &frame, FRAME_BYTES(46));

	publish(us.head + span);
}

static void record_past_the_ring(void)
{
	struct frame frame = good_frame();
	uint32_t span = write_record(us.ring_size, VMLOOP_RECORD_FRAME, &frame, FRAME_BYTES(46));

	publish(us.head + span);
}

static void record_of_all_ones(void)
{
	struct frame frame = good_frame();
	uint32_t span = write_record(0xffffffff, VMLOOP_RECORD_FRAME, &frame, FRAME_BYTES(46));

	publish(us.head + span);
}

static void misplaced_padding(void)
{
	send_record(VMLOOP_RECORD_PAD, "", 0);
}

static void tail_past_the_head(void)
{
	unsigned int side = us.device->id & 1;
	uint32_t slot;
	int number;

	/* Seen when the victim sends, by whatever lane, and looks how much we have read. */
	for (slot = 0; (number = region_slot(us.device->base, slot)) >= 0; slot++)
		region_lane(us.device->base, side, (uint32_t)number)->rx_tail += 0x10000000;
	ring_doorbell();
}

static void state_unknown(void)
{
	us.ours->state = 77;
	ring_doorbell();
}

static void state_absent(void)
{
	us.ours->state = VMLOOP_SIDE_ABSENT;
	ring_doorbell();
}

/*
 * Rules are read once, so none of this may have an effect. They are right again
 * afterwards, for the next attack to find its way.
 */
static void other_rules(void)
{
	/* Behind the state: a table begins as a side does, and its news come later. */
	const size_t rules = 64 - sizeof(us.ours->state);
	uint8_t *ours = (uint8_t *)us.ours + sizeof(us.ours->state);
	uint8_t header[sizeof(struct vmloop_shm_header)];
	struct vmloop_shm_entry entry = {};
	uint8_t side[64];
	struct vmloop_shm_lane lane;
	double until = now() + 5;

	memcpy(header, us.device->base, sizeof(header));
	memcpy(side, ours, rules);
	memcpy(&lane, (void *)us.lane, sizeof(lane));
	memset(us.device->base, 0xa5, sizeof(struct vmloop_shm_header));
	memset(ours, 0xa5, rules);
	us.lane->kind = 0x5a5a;
	us.lane->ring_size = 0xffffffff;
	us.lane->ring_offset = ~0ULL;
	if (us.entry) {
		memcpy(&entry, (void *)us.entry, sizeof(entry));
		us.entry->reason = 0xa5a5a5a5;
		us.entry->bell = 0xa5a5a5a5;
		us.entry->features = ~0ULL;
		memset((void *)us.entry->path, 0xa5, sizeof(us.entry->path));
	}
	good();
	while (us.theirs->rx_tail != us.head)
		if (now() > until)
			fail("the victim does not read");
	memcpy(us.device->base, header, sizeof(header));
	memcpy(ours, side, rules);
	us.lane->kind = lane.kind;
	us.lane->ring_size = lane.ring_size;
	us.lane->ring_offset = lane.ring_offset;
	if (us.entry) {
		us.entry->reason = entry.reason;
		us.entry->bell = entry.bell;
		us.entry->features = entry.features;
		memcpy((void *)us.entry->path, entry.path, sizeof(entry.path));
	}
}

/* Steps that no honest side can take. */
static void say_life(uint32_t life)
{
	us.entry->life = life;
	ring_doorbell();
}

static void life_backwards(void)
{
	say_life(us.entry->life - (1U << VMLOOP_LIFE_BITS));
}

static void life_far_away(void)
{
	say_life(us.entry->life ^ 0x80000000U);
}

static void life_without_meaning(void)
{
	say_life(us.entry->life | ((1U << VMLOOP_LIFE_BITS) - 1));
}

static void life_refused_too_late(void)
{
	say_life(us.entry->life - life_step(us.entry->life) + VMLOOP_LIFE_REFUSED);
}

static void news_of_all(void)
{
	uint32_t word;

	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	for (word = 0; word < VMLOOP_NEWS_BITS; word++)
		us.news->lanes[word] = ~us.news->lanes[word];
	us.news->groups = ~us.news->groups;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	ring_nothing();
}

/* One lane of packets alone is closed, the last one; the channel stays. */
static void last_packet_lane_closes(void)
{
	volatile struct vmloop_shm_entry *entry;
	uint32_t slot;
	int number;

	for (slot = 1; (number = region_slot(us.device->base, slot)) >= 0; slot++)
		us.number = (uint32_t)number;
	entry = region_entry(us.device->base, us.device->id & 1, us.number);
	entry->life = entry->life - life_step(entry->life) + VMLOOP_LIFE_CLOSED;
	ring_doorbell();
}

/* Every lane that we may open: what nobody serves, or with a ring that cannot be. */
static void open_all(uint32_t kind)
{
	volatile struct vmloop_shm_entry *entry;
	uint32_t lane;

	for (lane = us.device->id & 1; lane < us.lanes; lane += 2) {
		entry = region_entry(us.device->base, us.device->id & 1, lane);
		if (lane == us.number)
			continue;
		entry->lane.kind = kind;
		entry->lane.ring_size = 0xffffffff;
		entry->lane.ring_offset = ~0ULL;
		entry->life = entry->life - life_step(entry->life) + VMLOOP_LIFE_OPEN;
	}
	news_of_all();
}

static void lanes_of_no_kind(void)
{
	open_all(0x5a5a);
}

static void lanes_of_packets(void)
{
	open_all(VMLOOP_LANE_PACKET);
}

/*
 * Every lane that we may open, as one of packets with a ring that could be: slots that
 * there are not, and again and again those that there are.
 */
static void lanes_of_wild_slots(void)
{
	const struct vmloop_shm_header *header = (void *)us.device->base;
	volatile struct vmloop_packet_lane *says;
	volatile struct vmloop_shm_entry *entry;
	uint32_t lane, size = 1U << 19;

	while (size > header->data_size[us.device->id & 1])
		size /= 2;
	for (lane = us.device->id & 1; lane < us.lanes; lane += 2) {
		entry = region_entry(us.device->base, us.device->id & 1, lane);
		if (life_step(entry->life) != VMLOOP_LIFE_FREE)
			continue;
		entry->lane.kind = VMLOOP_LANE_PACKET;
		entry->lane.ring_size = size;
		entry->lane.ring_offset = 0;
		entry->features = ~0ULL;
		says = (volatile struct vmloop_packet_lane *)entry->path;
		says->lanes = lane % 3 ? 0xffffffff : 0;
		says->slot = lane % 4 < 2 ? lane / 4 : 0xffffffff - lane;
		entry->life = entry->life + VMLOOP_LIFE_OPEN;
	}
	news_of_all();
}

/* News of lanes that there are not, and of those that have none, all the time. */
static void news_of_everything(void)
{
	uint64_t lanes[VMLOOP_NEWS_BITS], groups = us.news->groups;
	double until = now() + 1;
	uint32_t word;

	memcpy(lanes, (void *)us.news->lanes, sizeof(lanes));
	while (now() < until) {
		for (word = 0; word < VMLOOP_NEWS_BITS; word++)
			us.news->lanes[word] = ~us.news->lanes[word];
		us.news->groups = ~us.news->groups;
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		ring_nothing();
	}
	memcpy((void *)us.news->lanes, lanes, sizeof(lanes));
	us.news->groups = groups;
	ring_nothing();
}

/* Says of the victim's news that they were taken, or not, at random. */
static void news_taken_wildly(void)
{
	double until = now() + 1;
	uint32_t n;

	for (n = 0; now() < until; n++) {
		us.news->lanes_taken[n % VMLOOP_NEWS_BITS] = scatter(n);
		us.news->groups_taken = scatter(n * 3ULL);
	}
	memcpy((void *)us.news->lanes_taken, (void *)us.their_news->lanes,
	       sizeof(us.news->lanes_taken));
	us.news->groups_taken = us.their_news->groups;
}

static void wild_wakes(void)
{
	us.lane->rx_wake = 0x12345678;
	us.lane->tx_wake = 0x87654321;
	good();
}

static void many_doorbells(void)
{
	int n;

	for (n = 0; n < 20000; n++)
		ring_nothing();
}

/* A ring's worth of frames that are all forged. */
static void many_forged(void)
{
	struct frame frame = good_frame();
	int n;

	memcpy(frame.from, us.as, 6);
	for (n = 0; n < 1000; n++)
		us.head += write_record(FRAME_BYTES(46), VMLOOP_RECORD_FRAME, &frame,
					FRAME_BYTES(46));
	publish(us.head);
}

/* What the ring contains changes all the time while the victim reads it. */
static void changing_records(void)
{
	uint32_t bytes = us.ring_size / 2;
	uint32_t at = us.head & (us.ring_size - 1);
	volatile uint64_t *word = (void *)(us.ring + at);
	struct frame frame = good_frame();
	double until = now() + 0.3;
	uint32_t n;

	for (n = 0; n < 1000; n++)
		us.head += write_record(FRAME_BYTES(46), VMLOOP_RECORD_FRAME, &frame,
					FRAME_BYTES(46));
	publish(us.head);
	for (n = 0; now() < until; n++)
		word[scatter(n) % (bytes / 8)] = scatter(n * 7ULL);
	ring_doorbell();
}

/*
 * What must come of an attack: "counter NAME N": exactly that counter of the
 * victim's moves, by N; "broken": the victim ends the channel; "ended": it ends
 * the channel without holding us for broken; "any": no more than that the
 * victim survives.
 */
static const struct attack {
	const char *name;
	void (*act)(void);
	const char *outcome;
	bool table;	/* needs version 2 */
} attacks[] = {
	{ "good", good, "counter rx_frames 1" },
	{ "forged_source", forged_source, "counter drop_source 1" },
	{ "own_source", own_source, "counter drop_source 1" },
	{ "many_forged", many_forged, "counter drop_source 1000" },
	{ "other_destination", other_destination, "counter drop_destination 1" },
	{ "broadcast", broadcast, "counter drop_destination 1" },
	{ "no_frame", no_frame, "counter drop_malformed 1" },
	{ "empty_record", empty_record, "counter drop_malformed 1" },
	{ "too_large_a_frame", too_large_a_frame, "counter drop_malformed 1" },
	{ "unknown_record", unknown_record, "counter drop_malformed 1" },
	{ "receivers_cut_short", receivers_cut_short, "counter drop_malformed 1" },
	{ "receivers_of_wrong_size", receivers_of_wrong_size, "counter drop_malformed 1" },
	{ "receivers_without_end", receivers_without_end, "counter drop_malformed 1" },
	{ "receivers_by_overflow", receivers_by_overflow, "counter drop_malformed 1" },
	{ "gso_unknown", gso_unknown, "counter drop_malformed 1" },
	{ "gso_without_checksum", gso_without_checksum, "counter drop_malformed 1" },
	{ "gso_of_nothing", gso_of_nothing, "counter drop_malformed 1" },
	{ "gso_ecn_alone", gso_ecn_alone, "counter drop_malformed 1" },
	{ "gso_in_the_headers", gso_in_the_headers, "counter drop_malformed 1" },
	{ "gso_headers_past_the_end", gso_headers_past_the_end, "counter drop_malformed 1" },
	{ "checksum_past_the_end", checksum_past_the_end, "counter drop_malformed 1" },
	{ "checksum_field_past_the_end", checksum_field_past_the_end,
	  "counter drop_malformed 1" },
	{ "vlan_of_nothing", vlan_of_nothing, "counter drop_malformed 1" },
	{ "other_rules", other_rules, "counter rx_frames 1" },
	{ "wild_wakes", wild_wakes, "counter rx_frames 1" },
	{ "many_doorbells", many_doorbells, "counter rx_frames 0" },
	{ "unaligned_head", unaligned_head, "broken" },
	{ "head_past_the_ring", head_past_the_ring, "broken" },
	{ "head_far_away", head_far_away, "broken" },
	{ "head_backwards", head_backwards, "broken" },
	{ "record_past_the_head", record_past_the_head, "broken" },
	{ "record_past_the_ring", record_past_the_ring, "broken" },
	{ "record_of_all_ones", record_of_all_ones, "broken" },
	{ "misplaced_padding", misplaced_padding, "broken" },
	{ "tail_past_the_head", tail_past_the_head, "any" },
	{ "state_unknown", state_unknown, "ended" },
	{ "state_absent", state_absent, "ended" },
	{ "changing_records", changing_records, "any" },
	/* Our own modules see the victim answer, and hold it for broken. */
	{ "lanes_of_no_kind", lanes_of_no_kind, "any", true },
	{ "lanes_of_packets", lanes_of_packets, "any", true },
	{ "lanes_of_wild_slots", lanes_of_wild_slots, "any", true },
	{ "last_packet_lane_closes", last_packet_lane_closes, "any", true },
	{ "news_of_everything", news_of_everything, "counter rx_frames 0", true },
	{ "news_taken_wildly", news_taken_wildly, "counter rx_frames 0", true },
	{ "life_backwards", life_backwards, "broken", true },
	{ "life_far_away", life_far_away, "broken", true },
	{ "life_without_meaning", life_without_meaning, "broken", true },
	{ "life_refused_too_late", life_refused_too_late, "broken", true },
};

#define ATTACKS	((int)(sizeof(attacks) / sizeof(attacks[0])))

static void read_mac(const char *text, uint8_t *mac)
{
	if (sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &mac[0], &mac[1], &mac[2], &mac[3],
		   &mac[4], &mac[5]) != 6)
		fail("not a hardware address: %s", text);
}

static void begin(void)
{
	const struct vmloop_shm_header *header = (void *)us.device->base;
	volatile struct vmloop_shm_table *table;
	unsigned int side = us.device->id & 1;

	us.ours = region_side(us.device->base, side);
	us.their_side = region_side(us.device->base, !side);
	us.number = region_packets(us.device->base);
	us.lane = region_lane(us.device->base, side, us.number);
	us.theirs = region_lane(us.device->base, !side, us.number);
	table = region_table(us.device->base, side);
	if (table) {
		us.entry = region_entry(us.device->base, side, us.number);
		us.lanes = table->lanes;
		us.news = &table->news;
		us.their_news = &region_table(us.device->base, !side)->news;
	}
	us.ring = us.device->base + header->data_offset[side] + us.lane->ring_offset;
	us.ring_size = us.lane->ring_size;
	us.head = us.lane->tx_head;
	if (us.ours->state != VMLOOP_SIDE_READY)
		fail("the channel is not up");
}

static void send_hex(const char *text, const struct vmloop_shm_frame *meta)
{
	struct frame frame = { .meta = *meta };
	uint8_t *at = frame.to;
	unsigned int byte;
	size_t n, bytes = strlen(text) / 2;

	if (bytes < 14 || bytes > 14 + sizeof(frame.data))
		fail("not a frame: %zu bytes", bytes);
	for (n = 0; n < bytes; n++) {
		if (sscanf(text + 2 * n, "%2x", &byte) != 1)
			fail("not hexadecimal: %s", text);
		at[n] = (uint8_t)byte;
	}
	send_frame(&frame, (uint32_t)bytes - 14);
}

static void attack(const char *name)
{
	int n;

	for (n = 0; n < ATTACKS; n++) {
		if (!strcmp(attacks[n].name, name)) {
			if (attacks[n].table && !us.news)
				fail("%s needs a channel of version 2", name);
			attacks[n].act();
			return;
		}
	}
	fail("no attack %s", name);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	struct vmloop_shm_frame meta = {};
	uint8_t mark[MARK_SIZE];
	struct device *device;
	unsigned long offset;
	int n;

	if (!strcmp(what, "list-attacks")) {
		for (n = 0; n < ATTACKS; n++)
			printf("%s: %s\n", attacks[n].name, attacks[n].outcome);
		return 0;
	}
	find_devices();
	if (!strcmp(what, "list")) {
		list();
	} else if (!strcmp(what, "lanes") && argc == 3) {
		list_lanes(find_tag((uint32_t)atoi(argv[2]))->base);
	} else if (!strcmp(what, "scribble") && argc == 3) {
		scribble(argv[2]);
	} else if (!strcmp(what, "mark") && argc == 5) {
		device = find_tag((uint32_t)atoi(argv[2]));
		offset = strtoul(argv[3], NULL, 0);
		read_mark(argv[4], mark);
		if (offset % MARK_SIZE || offset + MARK_SIZE > device->size)
			fail("no place for a mark: %lu", offset);
		memcpy(device->base + offset, mark, MARK_SIZE);
	} else if (!strcmp(what, "find") && argc == 3) {
		read_mark(argv[2], mark);
		find(mark);
	} else if (!strcmp(what, "attack") && (argc == 6 || argc == 7)) {
		us.device = find_tag((uint32_t)atoi(argv[2]));
		read_mac(argv[4], us.from);
		read_mac(argv[5], us.to);
		read_mac(argv[argc - 1], us.as);
		begin();
		attack(argv[3]);
	} else if (!strcmp(what, "frame") && (argc == 4 || argc == 7)) {
		us.device = find_tag((uint32_t)atoi(argv[2]));
		if (argc == 7) {
			meta.flags = (uint8_t)atoi(argv[4]);
			meta.csum_start = (uint16_t)atoi(argv[5]);
			meta.csum_offset = (uint16_t)atoi(argv[6]);
		}
		begin();
		send_hex(argv[3], &meta);
	} else {
		fail("usage: shm list | lanes TAG | mark TAG OFFSET HEX | find HEX | scribble DEVICE | list-attacks | attack TAG NAME FROM TO [AS] | frame TAG HEX [FLAGS START OFFSET]");
	}
	return 0;
}
