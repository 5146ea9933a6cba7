/* SPDX-License-Identifier: GPL-2.0 */
/*
 * stream.h - the byte stream of TCP below the socket: docs/stream.md.
 *
 * A connection to a peer is made by the ordinary stack. Then its bytes go from
 * sendmsg() to recvmsg() through a lane of their own, and back by TCP when the lane
 * ends. All that this module knows of a socket is its struct stream.
 *
 * Lock order, the outermost first:
 *
 *   the core mutex
 *   tx_mutex, rx_mutex		a stream's; held over calls of TCP, which may fault
 *				memory in: never waited for under the core mutex
 *   the socket's lock
 *   tx_ring, then rx_ring	a stream's; held for a copy, with page faults off
 *   lane_lock			a stream's; bottom halves off
 */
#ifndef VMLOOP_STREAM_H
#define VMLOOP_STREAM_H

#include <linux/interrupt.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/rhashtable-types.h>
#include <linux/skbuff.h>
#include <linux/socket.h>
#include <linux/spinlock.h>
#include <linux/srcu.h>
#include <linux/tcp.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <net/inet_sock.h>
#include <net/sock.h>

#include "vmloop.h"

/* Two families: sockets of IPv4 and of IPv6 have tables of their own. */
#define STREAM_FAMILIES	2

/* A lane whose ring nobody used at so many looks in a row is given back. */
#define STREAM_IDLE_LOOK	HZ
#define STREAM_IDLE_LOOKS	4
/* Looks in a row at which TCP had no way for what it sends, after which a lane ends. */
#define STREAM_LOST_LOOKS	3

/*
 * Of a call of sendmsg(), where kernels have sendpage(): more of the same file follows at
 * once, as they say; and it is a page that TCP may keep, for which we have a flag of theirs
 * that means nothing here. STREAM_IS_FILE: the bytes are a file's or a pipe's, on any kernel.
 */
#ifdef MSG_SENDPAGE_NOTLAST
#define STREAM_GOES_ON	MSG_SENDPAGE_NOTLAST
#define STREAM_IS_PAGE	MSG_SENDPAGE_NOPOLICY
#define STREAM_IS_FILE	STREAM_IS_PAGE
#else
#define STREAM_GOES_ON	0
#define STREAM_IS_PAGE	0
#define STREAM_IS_FILE	MSG_SPLICE_PAGES
#endif

/* Of the table of connections to peers. */
#define STREAM_BUCKET_BITS	12

/* Ports that can be left out. */
#define STREAM_LEFT_OUT_MAX	32

/**
 * struct stream_tuple - a connection, as one end sees it
 * @local: our address; IPv4's as IPv6 maps it
 * @remote: the other end's
 * @local_port: ours, in network order
 * @remote_port: the other end's
 * @local_first: sequence number of the first byte that we send
 * @remote_first: of the first byte that the other end sends
 */
struct stream_tuple {
	struct in6_addr local;
	struct in6_addr remote;
	__be16 local_port;
	__be16 remote_port;
	u32 local_first;
	u32 remote_first;
};

/* What carries the bytes that we send. */
enum stream_tx {
	STREAM_TX_TCP,		/* TCP */
	STREAM_TX_SAID,		/* neither yet: the peer has not heard where */
	STREAM_TX_RING,		/* the lane's ring */
	STREAM_TX_BACK,		/* neither any more: what was lost is not known */
};

/* One of a stream's bits, in @flags. */
enum stream_flag {
	STREAM_OURS,		/* it is one of a peer's, and found by its tuple */
	STREAM_STAYS,		/* it is not to leave TCP any more */
	STREAM_WANTED,		/* a lane is to be opened, or is */
	STREAM_SHUT,		/* the application sends nothing more: no hello */
	STREAM_FIN,		/* its FIN is for the work to send, when the lane has ended */
	STREAM_READ,		/* the application reads nothing more: SHUT_RD */
	STREAM_GO_BACK,		/* it is to go back to TCP once; it may leave it again */
	STREAM_DEAD,		/* the socket is not this stream's any more */
	STREAM_UNREAD,		/* closed, and the program had not read all that TCP had brought */
	STREAM_OLD,		/* disconnected, and the socket connects anew, or listens */
	STREAM_CLOSED,		/* its program has closed it, and nothing stands in for that yet */
	STREAM_SPEAK,		/* TCP is to send an acknowledgment */
	STREAM_GROW,		/* a larger ring would help */
	STREAM_ACK,		/* TCP is to send the one that is owed at once */
	STREAM_ABORT,		/* TCP is to end the connection */
	STREAM_ABORTED,		/* and has done so */
	STREAM_LAST,		/* the peer's program sends nothing behind what the lane has */
	STREAM_AT_END,		/* and all of that has been read */
};

/*
 * Why a lane is refused, for the other side: there is no such connection; it is in use at
 * this moment, or its program has to read first; it has something that lanes do not carry,
 * or is at its end. And why one is closed: the program sends nothing more.
 */
#define STREAM_REASON_UNKNOWN	VMLOOP_REASON_PATH
#define STREAM_REASON_BUSY	(VMLOOP_REASON_PATH + 1)
#define STREAM_REASON_UNFIT	(VMLOOP_REASON_PATH + 2)
#define STREAM_REASON_LAST	(VMLOOP_REASON_PATH + 3)

/* Why a connection is reset; switch.c has a sentence for each, docs/stream.md what to do. */
enum stream_fault {
	STREAM_FAULT_NONE,
	STREAM_FAULT_LIE,	/* the peer's module sent what cannot be */
	STREAM_FAULT_NO_ANSWER,	/* the connection ended without the peer's answer */
	STREAM_FAULT_SILENT,	/* the peer's module did not answer in time */
	STREAM_FAULT_HELLO,	/* the lane ended amid the hello */
	STREAM_FAULT_UNSENT,	/* no memory for what the peer has not confirmed */
	STREAM_FAULT_KEPT,	/* what was kept took memory for nothing */
	STREAM_FAULT_UNREAD,	/* closed by its program before all was read, as TCP does it */
	STREAM_FAULT_TCP,	/* TCP cannot send any more */
	STREAM_FAULT_UNLOAD,	/* the module goes */
};

/* Why TCP carries a connection: docs/netlink/vmloop_tcp.yaml has the same numbers. */
enum stream_why {
	STREAM_WHY_YOUNG,	/* too little has gone by it */
	STREAM_WHY_ASKED,	/* a lane is being asked for */
	STREAM_WHY_STAYS,	/* for good: it ends, or a call is not for lanes */
	STREAM_WHY_CHANNEL,	/* no channel to the peer is up */
	STREAM_WHY_ROOM,	/* the channel has no lane or no memory free */
	STREAM_WHY_PEER,	/* the peer did not want it, or its modules are older */
	STREAM_WHY_BUSY,	/* in use, not accepted, amid a file, or UNREAD at the peer */
	STREAM_WHY_OPTION,	/* something is set that lanes do not carry */
	STREAM_WHY_UNREAD,	/* the program is to read what is there first */
	STREAM_WHY_POLICY,	/* the host's policy has no streams for the two */
	STREAM_WHY_RULE,	/* a rule of the guest's has it stay on TCP */
	STREAM_WHY_QUOTA,	/* its user, or its cgroup, has its share of the memory */
	STREAM_WHY_NONE,	/* nothing says so */
};

/* What has come: stream_look_out(). */
enum stream_news {
	STREAM_NEWS_BYTES = BIT(0),
	STREAM_NEWS_ROOM = BIT(1),
};

/* What goes by TCP when a lane has ended, where the lane began. */
struct stream_return {
	__le64 nonce;		/* of the lane */
	__le32 got;		/* bytes that came by it, modulo 2^32 */
	__le32 zero;
};

/* What goes by a lane first. */
struct stream_hello {
	__le32 magic;
	__le32 seq;		/* of the first byte that does not come by TCP */
};

#define STREAM_HELLO_MAGIC	0x6f6c6c65

/*
 * Bytes that TCP may owe a peer when an end says hello, and those that the peer takes it
 * to owe at most: a hello that names a byte further on is false.
 */
#define STREAM_OWED		(4U << 20)
#define STREAM_OWED_MAX		(8U << 20)

/* By how much a receive buffer grows at most for what a peer's answer is behind. */
#define STREAM_ROOM		(2 * (int)STREAM_OWED_MAX + (64 << 10))

/* What all connections share, and a peer's are to leave to others: budget.c. */
enum stream_budget {
	STREAM_BUDGET_UNSENT,	/* bytes that went into a ring, and may have to go by TCP */
	STREAM_BUDGET_PENDING,	/* bytes that programs send while nothing carries them */
	STREAM_BUDGET_KEPT,	/* bytes of memory of what came by a ring, and is no socket's yet */
	STREAM_BUDGET_ORPHANS,	/* sockets that were closed, and wait for their peer's word */
};

/* Of STREAM_BUDGET_KEPT, in bytes. */
#define STREAM_KEPT_MAX		(64L << 20)

/* What programs send while nothing carries a stream is kept in so many parts, of so many bytes. */
#define STREAM_PENDING_PARTS	4
#define STREAM_PENDING_PART	4096U
#define STREAM_PENDING_MOST	(STREAM_PENDING_PARTS * STREAM_PENDING_PART)

/* A larger ring is made after the ring was so often full, and empty a moment later. */
#define STREAM_SWINGS		1

/* A ring of the peer's is no larger than this, and ours neither. */
#define STREAM_RING_MOST	(4U << 20)

/* What a lane's opener says of it: vmloop_shm_entry.path. */
struct stream_say {
	struct in6_addr from;	/* the opener's address */
	struct in6_addr to;
	__be16 from_port;
	__be16 to_port;
	__le32 from_first;
	__le32 to_first;
	__le64 nonce;
	u8 zero[12];
} __packed;

/**
 * struct stream_spin - what is known of waiting for a ring: spin.c
 * @window: how long to look before sleeping, in ns
 * @misses: looks in vain in a row
 * @rest_until: after many of those none before then, in jiffies
 */
struct stream_spin {
	u32 window;
	unsigned int misses;
	unsigned long rest_until;
};

/**
 * struct stream - a socket that was taken over
 * @sk: the socket; held
 * @family: index of its tables
 * @active: it is the end that connected, and so opens the lane
 * @flags: enum stream_flag, atomic
 * @tuple: the connection; final with STREAM_OURS
 * @peer: identity that the peer had when it was last known; under @lane_lock, as the next three
 * @maybe: another one to which the connection leads now: stream_leads_to(); 0: none
 * @maybe_sent: where we had sent to when that was first seen
 * @maybe_room: how far the peer could send then without an acknowledgment
 * @moved: bytes that went by TCP, either way, and what calls cost, since it was last asked
 *	about
 * @turned: how often it turned from sending to receiving or back, in the same time
 * @was_sent: what moved last was sent
 * @waited: what stream_worth_shift() said when its lane was last asked for, or STREAM_BY_TURNS
 * @asked: when that was, in jiffies
 * @refs: one for the table, one for a lane, one for @work while it is queued
 * @data_ready: the kernel's own calls of the socket's: they wake those who wait, and look at
 *	nothing, so that they need no lock; what others put there later is called under it
 * @write_space: ditto
 * @state_change: ditto
 * @by_sock: in the table of all streams
 * @by_tuple: in the table of those that are ours
 * @rcu: frees it
 * @slow: calls of TCP's that wait for the socket's lock (lock.c)
 * @work: what takes time: opens the lane, says hello, brings the stream back
 * @bell: wakes those who wait, after a doorbell, or what stands in for one
 * @lane_lock: protects @lane for those who only look, what they have asked for, and the
 *	words in our part of the region that say so
 * @lane: the lane whose rings may be touched
 * @held: the same lane until its end; held; of the core mutex
 * @nonce: of the lane
 * @lanes: how many it has had; under @lane_lock
 * @sent_before: bytes that went by those before this one; under @lane_lock
 * @got_before: and that came by them
 * @why: why it has no lane, enum stream_why
 * @why_ended: why its lane ended, if that was before it was up, or by the policy
 * @pause: no lane is asked for, or accepted, before @not_before; for how long that was to
 *	be, in jiffies; 0: at once
 * @not_before: in jiffies
 * @seen: of @sent and @got, when it was last asked whether it is idle
 * @idle: how often in a row it was
 * @lost: looks in a row at which TCP had no way
 * @spoke: when TCP was last made to say that the connection lives, in jiffies; of the look
 *	at idle streams alone
 * @polled: somebody has asked whether it can be read, and may wait for an edge; under
 *	@lane_lock, as the next two
 * @wants_bytes: somebody sleeps until there are bytes
 * @wants_room: somebody waits until a quarter of our ring is free
 * @turns: how often in a row @bell was to run again at once; under @lane_lock
 * @watch: of the lane's ring; whoever has @lane_lock is its owner
 * @rx_promised: how far poll() has said that the ring can be read, until that has been read
 * @promises: it has; both under @lane_lock
 * @rx_told: how far readers have been told of the ring; under @lane_lock, the watcher reads
 *	it
 *
 * @tx_mutex: one sender by TCP at a time
 * @tx_ring: protects what is to be sent, from here on
 * @tx: what carries it
 * @down: nothing is produced any more
 * @said: with STREAM_TX_SAID: since when, in jiffies
 * @sent: bytes of the application's that went to the ring
 * @unsent: copy of those that the peer may not have read, when the ring went away
 * @unsent_from: how many went before those, modulo 2^32
 * @unsent_size: bytes of @unsent
 * @unsent_memory: bytes that it takes
 * @unsent_at: bytes of @unsent that went by TCP again, or need not
 * @unsent_peer: whom it counts for: budget.c
 * @pending: what programs have sent while nothing carried it, in parts
 * @pending_peer: whom they count for
 * @pending_size: bytes of @pending
 * @pending_at: bytes of @pending that something carries by now
 * @pending_refused: there was no memory for @pending, or a call waits for TCP
 * @more: the last bytes went to TCP with more to come
 * @more_at: when that was, in jiffies
 * @file: and they were a file's or a pipe's
 * @full: the ring was full, and has not been seen empty since
 * @full_at: when it was last, in jiffies
 * @swings: how often it was full and then empty, since it was made, or was last to grow
 * @swings_most: after so many it is to grow
 * @tx_spin: of those who wait for room
 * @by_work: the task that is inside of TCP for @work, with the socket locked: it may send
 *	though @tx says otherwise
 *
 * @rx_mutex: one reader of TCP at a time
 * @rx_ring: protects what was received, from here on
 * @rx_spin: of those who wait for bytes
 * @heard: the peer has said hello
 * @seq: with @heard: where TCP stops, and the ring begins
 * @closed: the ring is not read any more
 * @got: bytes of the application's that came by the ring
 * @kept: of those, the ones that the application had not read when the ring went, and
 *	that are not TCP's yet
 * @kept_paid: bytes of memory that those took which were kept in the life of the lane
 * @kept_most: about how many they may take
 * @kept_memory: what those in @kept take, in bytes
 * @kept_peer: whom that counts for
 * @kept_next: how far TCP was when it last came nearer to those, or they became fewer; of
 *	@work, as the next two
 * @kept_left: what they took then
 * @kept_since: when that was, in jiffies; 0: not looked at yet
 * @rcvbuf: the size of the receive buffer before it grew for those, and for the peer's
 *	answer
 * @rcvbuf_set: and the one that it was given; 0: it has not grown, or is as before
 * @room: by how much it may grow for the answer yet
 *
 * @up: both ends have the lane; set once for each
 * @ended: what became of the lane is known; what follows is final
 * @carried: bytes may have gone by it
 * @spoilt: why it cannot be known what has arrived, enum stream_fault, if the connection must be
 *	reset; the first reason stays: stream_spoil()
 * @told: @returning is final
 * @returning: what we say by TCP
 * @returned: bytes of @returning that went
 * @answered: the peer's has come, or need not
 * @arrival: in the socket's wait queue while the answer is waited for; with the socket locked
 * @listens: it is there
 * @since: when it was first asked for, or the application closed the socket, in jiffies
 * @retry: when it is asked for again, in jiffies from then
 * @is_kept_out: it did not get a lock that a program may hold for long, this time
 * @was_kept_out: the time before
 * @kept_out: runs of it since then
 * @kept_out_since: when it got the socket's lock last, or was not kept out, in jiffies
 * @again: so many times as much must go by TCP before a lane is tried again
 * @orphan: a socket of ours to close in the application's place
 * @orphan_peer: number of the peer that it counts for
 *
 * From @up on: of @work, but for @up, which is set before it runs, @ended and @orphan,
 * which it acquires, and @since, which close() sets before @orphan.
 */
struct stream {
	struct sock *sk;
	unsigned int family;
	bool active;
	unsigned long flags;
	struct stream_tuple tuple;
	u64 peer;
	u64 maybe;
	u32 maybe_sent;
	u32 maybe_room;
	atomic64_t moved;
	atomic64_t turned;
	bool was_sent;
	unsigned int waited;
	unsigned long asked;
	struct kref refs;
	void (*data_ready)(struct sock *sk);
	void (*write_space)(struct sock *sk);
	void (*state_change)(struct sock *sk);
	struct rhash_head by_sock;
	struct hlist_node by_tuple;
	struct rcu_head rcu;
	struct delayed_work work;
	struct delayed_work slow;
	struct tasklet_struct bell;
	spinlock_t lane_lock;	/* protects lane */
	struct vmloop_lane *lane;
	struct vmloop_lane *held;
	u64 nonce;
	u32 lanes;
	u64 sent_before;
	u64 got_before;
	u32 why;
	u32 why_ended;
	unsigned long pause;
	unsigned long not_before;
	u32 seen;
	unsigned int idle;
	unsigned int lost;
	unsigned long spoke;
	bool polled;
	bool wants_bytes;
	bool wants_room;
	unsigned int turns;
	struct vmloop_watch watch;
	u32 rx_told;
	u32 rx_promised;
	bool promises;

	struct mutex tx_mutex;
	struct mutex tx_ring;
	enum stream_tx tx;
	bool down;
	unsigned long said;
	u64 sent;
	u8 *unsent;
	u32 unsent_from;
	u32 unsent_size;
	u32 unsent_memory;
	u32 unsent_at;
	u8 unsent_peer;
	u8 *pending[STREAM_PENDING_PARTS];
	u8 pending_peer;
	u32 pending_size;
	u32 pending_at;
	bool pending_refused;
	bool more;
	unsigned long more_at;
	bool file;
	bool full;
	unsigned long full_at;
	unsigned int swings;
	unsigned int swings_most;
	struct stream_spin tx_spin;
	const struct task_struct *by_work;

	struct mutex rx_mutex;
	struct mutex rx_ring;
	struct stream_spin rx_spin;
	bool heard;
	u32 seq;
	bool closed;
	u64 got;
	struct sk_buff_head kept;
	u32 kept_paid;
	u32 kept_most;
	long kept_memory;
	u8 kept_peer;
	u32 kept_next;
	long kept_left;
	unsigned long kept_since;
	int rcvbuf;
	int rcvbuf_set;
	int room;

	bool up;
	bool ended;
	bool carried;
	u8 spoilt;
	bool told;
	struct stream_return returning;
	u32 returned;
	bool answered;
	struct wait_queue_entry arrival;
	bool listens;
	unsigned long since;
	unsigned long retry;
	bool is_kept_out;
	bool was_kept_out;
	unsigned long kept_out_since;
	unsigned int kept_out;
	unsigned int again;
	struct socket *orphan;
	u8 orphan_peer;
};

/* What has happened to streams: parameters of the module, for people and tests. */
enum stream_counter {
	STREAM_TAKEN,		/* sockets that were taken over */
	STREAM_PAIRED,		/* lanes that came up */
	STREAM_BACK,		/* of those, the ones that ended, and TCP went on */
	STREAM_RESET,		/* connections that were reset for it */
	STREAM_TX_BYTES,	/* bytes that went to rings */
	STREAM_RX_BYTES,	/* bytes that came by rings */
	STREAM_COUNTERS,
};

extern atomic64_t stream_counters[STREAM_COUNTERS];

static inline void stream_count(enum stream_counter counter, u64 n)
{
	atomic64_add(n, &stream_counters[counter]);
}

/* Its bytes can no more be told: it is to be reset. Any context; of several reasons one is kept. */
static inline void stream_spoil(struct stream *stream, enum stream_fault fault)
{
	if (!READ_ONCE(stream->spoilt))
		WRITE_ONCE(stream->spoilt, fault);
}

/* Whether a lane is up, and its rings are there. */
static inline bool stream_is_up(const struct stream *stream)
{
	/* Pairs with the release in stream_lane_up(). */
	return smp_load_acquire(&stream->up);
}

/*
 * Bytes in a lane's rings, by a look at positions that move, one of each pair the
 * peer's: hints. The lane's rings must not go meanwhile. Our ring before the last move counts, too.
 */
static inline u32 stream_untaken(const struct vmloop_lane *lane)
{
	return min(READ_ONCE(lane->tx.head) - READ_ONCE(lane->tx.theirs->rx_tail),
		   READ_ONCE(lane->tx.size) + READ_ONCE(lane->tx.old_size));
}

static inline u32 stream_arrived(const struct vmloop_lane *lane, u32 size)
{
	return min(vmloop_ring_seen(&lane->rx) - READ_ONCE(lane->rx.tail), size);
}

/*
 * So much of a ring goes to the peer at once, and comes back: it is to work on one part
 * while we do on the next.
 */
static inline u32 stream_part(u32 size)
{
	return max(size / 8, 4096U);
}

/* A quarter of our ring is free: so much a sender waits for. */
static inline bool stream_has_room(const struct vmloop_lane *lane)
{
	u32 size = READ_ONCE(lane->tx.size);

	return stream_untaken(lane) <= size - size / 4;
}

/*
 * Enough is free for some small writes: a program that polls between those, and is not
 * waiting yet, need not wait.
 */
static inline bool stream_has_little_room(const struct vmloop_lane *lane)
{
	u32 size = READ_ONCE(lane->tx.size);

	return stream_untaken(lane) <= size - max(size / 16, min(size / 4, 4096U));
}

/* The program has shut its reading end itself, whatever the peer has sent. */
static inline bool stream_is_shut_here(const struct stream *stream)
{
	return test_bit(STREAM_READ, &stream->flags);
}

/*
 * The connection was reset, or has run out of time. One whose FINs have both come is closed
 * as well; its flag is set before.
 */
static inline bool stream_is_reset(const struct sock *sk)
{
	/* Pairs with tcp_set_state()'s release. */
	return inet_sk_state_load(sk) == TCP_CLOSE && !sock_flag(sk, SOCK_DONE);
}

/* Whether the program has disconnected it: connect() to AF_UNSPEC. TCP answers all calls then. */
static inline bool stream_is_disconnected(const struct sock *sk)
{
	return inet_sk_state_load(sk) == TCP_CLOSE && !READ_ONCE(inet_sk(sk)->inet_dport);
}

/* Whether the connection is in a state in which TCP sends what a program has. */
static inline bool stream_may_send(const struct sock *sk)
{
	return (1 << READ_ONCE(sk->sk_state)) & (TCPF_ESTABLISHED | TCPF_CLOSE_WAIT);
}

/*
 * An empty ring is the end: the program has shut its reading end, or the connection was
 * reset. A FIN of the peer's is not: its lane has ended before, and what it sent by TCP after
 * that is read when ours has.
 */
static inline bool stream_reads_no_more(const struct stream *stream)
{
	return stream_is_shut_here(stream) || stream_is_reset(stream->sk);
}

/*
 * Whether nothing of the program's follows what the ring has when it is looked at next, or what
 * was kept of it.
 */
static inline bool stream_is_last(const struct stream *stream)
{
	bool last = test_bit(STREAM_LAST, &stream->flags);

	/* Pairs with the one in stream_lane_down(). */
	smp_rmb();
	return last;
}

/* So long a FIN of ours follows the peer's, in jiffies after its lane has ended. */
#define STREAM_FIN_TIME	(2 * HZ)

/*
 * Whether the peer's program has sent its last before ours, and its FIN, which is behind the
 * lane, is not there yet: ours follows it, so that TIME-WAIT is at the peer's end, as with TCP.
 * A stream that has been released may have the socket's next connection before it. With the
 * socket locked it is not released meanwhile.
 */
static inline bool stream_follows_fin(const struct stream *stream)
{
	return test_bit(STREAM_LAST, &stream->flags) &&
	       !test_bit(STREAM_DEAD, &stream->flags) &&
	       READ_ONCE(stream->sk->sk_state) == TCP_ESTABLISHED &&
	       time_before(jiffies, READ_ONCE(stream->since) + STREAM_FIN_TIME);
}

/*
 * Where a socket becomes the kernel's amid a call that cannot be made anew, since it has done a
 * part or is no program's thread, the call goes on by TCP. Once the module is to go it waits for so
 * long at most, in jiffies, which it sees so often. The module waits for a thread of the kernel's:
 * its socket would be lost by an error.
 */
#define STREAM_REST_TIME	(2L * HZ)
#define STREAM_REST_LOOK	((long)HZ / 4)

/* After so long a program that has said so sends no more, as sendfile() beyond a file's end. */
#define STREAM_MORE_TIME	HZ

/* Whether TCP may hold back what it was given last, since more is to come. */
static inline bool stream_has_more(const struct stream *stream)
{
	const struct tcp_sock *tp = tcp_sk(stream->sk);

	return READ_ONCE(stream->more) &&
	       (READ_ONCE(tp->write_seq) != READ_ONCE(tp->snd_una) ||
		time_before(jiffies, READ_ONCE(stream->more_at) + STREAM_MORE_TIME));
}

/* main.c */
extern struct workqueue_struct *stream_workqueue, *stream_slow_workqueue;
extern unsigned int stream_after_bytes;
extern unsigned int stream_after_most;
extern unsigned int stream_after_turns;
extern unsigned int stream_ring_size;
extern unsigned int stream_first_ring;
extern int stream_spin_us;
extern unsigned int stream_keep_alive;
extern unsigned long stream_unsent_max;
extern unsigned int stream_owner_share;
extern unsigned int stream_left_out[STREAM_LEFT_OUT_MAX];
extern unsigned int stream_left_out_count;

/* owner.c */
void stream_owners(const struct sock *sk, struct vmloop_owner *owners);

/* worth.c; process context */
#define STREAM_BY_TURNS	UINT_MAX	/* it did not wait for bytes */

unsigned int stream_worth_shift(const struct stream *stream);
void stream_worth_learn(const struct stream *stream, u64 carried);

/* ring.c */
void stream_plan_ring(struct vmloop_channel *channel, const struct sock *sk, bool follows,
		      struct vmloop_lane_ask *ask);
void stream_ring_is_full(struct stream *stream);
void stream_ring_is_empty(struct stream *stream);
void stream_grow(struct stream *stream);
int stream_lane_move(struct vmloop_lane *lane, void *data, u32 size, u64 offset);

/* rules.c */
struct genl_family;
struct genl_info;
struct netlink_callback;
struct nla_policy;

/* Commands of generic netlink, and the attributes that a rule has. */
enum stream_command {
	STREAM_CMD_UNSPEC,
	STREAM_CMD_GET,
	STREAM_CMD_RULE_GET,
	STREAM_CMD_RULE_ADD,
	STREAM_CMD_RULE_REMOVE,
};

#define STREAM_RULE_ATTRIBUTES	9

extern const struct nla_policy stream_rule_policy[STREAM_RULE_ATTRIBUTES + 1];
bool stream_rule_allows(const struct sock *sk);
int stream_rule_add(struct sk_buff *skb, struct genl_info *info);
int stream_rule_remove(struct sk_buff *skb, struct genl_info *info);
int stream_rule_list(struct sk_buff *skb, struct netlink_callback *cb);
int stream_rules_init(void);
void stream_rules_exit(void);

/* table.c; any context */
extern struct srcu_struct stream_users;
struct stream *stream_look(const struct sock *sk);
struct stream *stream_get(const struct sock *sk);
bool stream_all_freed(void);
void stream_hold(struct stream *stream);
void stream_put(struct stream *stream);
struct stream *stream_make(struct sock *sk, unsigned int family, bool active);
void stream_begin(struct stream *stream);
void stream_end(struct stream *stream);
struct stream *stream_find(const struct stream_tuple *tuple);
struct stream *stream_at(unsigned int bucket, unsigned int index);
void stream_each(void (*what)(struct stream *stream));
bool stream_none(void);
void stream_queue(struct stream *stream, unsigned long delay);
int stream_table_init(void);
void stream_table_exit(void);

/* take.c */
extern const struct proto *stream_base[STREAM_FAMILIES];
extern const struct proto_ops *stream_base_ops[STREAM_FAMILIES];
extern struct proto *stream_protos[STREAM_FAMILIES];
extern struct proto_ops *stream_ops[STREAM_FAMILIES];
bool stream_leaving(void);
bool stream_is_ours(const struct sock *sk);
bool stream_is_anothers(const struct stream *stream);
bool stream_is_in_use(const struct sock *sk);
int stream_family_of(const struct sock *sk);
void stream_take_accepted(struct sock *sk);
void stream_release(struct stream *stream);
int stream_take_init(void);
void stream_take_exit(void);

/* ulp.c; process context */
void stream_ulp_init(unsigned int family, struct socket *sock);
void stream_ulp_exit(void);
void stream_ulp_leave(void);

/* listen.c */
void stream_listen_begins(struct sock *sk);
void stream_listen_ends(struct sock *sk);
void stream_listen_calls(struct proto_ops *ops);
int stream_listen_init(void);
void stream_listen_free(void);
void stream_listen_leave(void);
void stream_listen_exit(void);

/* calls.c: what programs call; process context but for what TCP calls */
void stream_calls_init(unsigned int family);
void stream_calls_exit(unsigned int family);
bool stream_may_make_anew(void);
bool stream_ends_soon(void);
int stream_amid_call(struct stream *stream, bool done);
int stream_make_anew(void);

/* pair.c */
extern const struct vmloop_path stream_path;
bool stream_peer_of(const struct sock *sk, u64 *peer);
bool stream_peer_now(const struct sock *sk, u64 *peer);
bool stream_leads_to(struct stream *stream, u64 peer);
void stream_forget_maybe(struct stream *stream);
bool stream_is_elsewhere(const struct stream *stream);
int stream_way(const struct sock *sk);
bool stream_has_option(const struct sock *sk);
void stream_heed_directory(void);
void stream_ask_anew(struct stream *stream, enum stream_why why);
void stream_moved(struct stream *stream, int bytes, bool sent);
void stream_open_lane(struct stream *stream);
void stream_not_now(struct stream *stream, enum stream_why why);
void stream_for_nothing(struct stream *stream);
enum stream_why stream_why_ended(u32 reason);

/* lane.c: callbacks of the core; core mutex held but for the event */
int stream_lane_open(struct vmloop_lane *lane);
void stream_lane_up(struct vmloop_lane *lane);
void stream_lane_down(struct vmloop_lane *lane);
void stream_lane_close(struct vmloop_lane *lane);
void stream_lane_ended(struct vmloop_lane *lane, u32 reason);
void stream_lane_event(struct vmloop_lane *lane);
void stream_ring_bell(struct tasklet_struct *bell);
unsigned int stream_look_out(struct stream *stream, bool work);
bool stream_want_room(struct stream *stream);

/* switch.c; process context */
void stream_work(struct work_struct *work);
bool stream_hear(struct stream *stream);
void stream_keep(struct stream *stream);
int stream_merge_kept(struct stream *stream);
bool stream_reset(struct stream *stream, enum stream_fault fault);
void stream_purge(struct stream *stream);
void stream_lower_rcvbuf(struct stream *stream);
void stream_look_idle(struct stream *stream);
void stream_listen_no_more(struct stream *stream);
void stream_leave(struct stream *stream);
void stream_go_back(struct stream *stream);
void stream_go_back_if_carried(struct stream *stream);
bool stream_is_plain(struct stream *stream);

/* list.c; process context */
extern struct genl_family stream_family;
int stream_list_init(void);
void stream_list_exit(void);

/* lock.c; process context */
void stream_slow_work(struct work_struct *work);
void stream_ack_at_once(struct stream *stream);
bool stream_abort(struct stream *stream);
bool stream_try_lock_sock(struct sock *sk);
bool stream_lock_sock(struct stream *stream);
bool stream_lock_mutex(struct stream *stream, struct mutex *mutex);

/* merge.c; the socket locked */
struct sk_buff *stream_merge_make(unsigned int size);
int stream_merge(struct sock *sk, u32 seq, struct sk_buff_head *kept);
int stream_merge_cut(struct sock *sk, u32 seq, u32 size);

/* budget.c */
u8 stream_budget_peer(const struct stream *stream);
bool stream_budget_take(enum stream_budget what, u8 peer, u32 size);
void stream_budget_give(enum stream_budget what, u8 peer, u32 size);
u64 stream_budget_taken(enum stream_budget what, u8 peer);

/* pending.c; process context, but for has_room and bytes */
void stream_unsent_copy(struct stream *stream);
void stream_pending_refuse(struct stream *stream);
int stream_pending_add(struct stream *stream, struct msghdr *msg, size_t size);
bool stream_pending_to_ring(struct stream *stream);
int stream_pending_by_tcp(struct stream *stream);
bool stream_pending_is_sent(const struct stream *stream);
bool stream_pending_has_room(const struct stream *stream);
u32 stream_pending_bytes(const struct stream *stream);
void stream_pending_free(struct stream *stream);

/* spin.c; process context */
bool stream_spin(struct stream *stream, struct stream_spin *spin,
		 bool (*is_over)(const struct vmloop_lane *lane));
void stream_spin_learn(struct stream *stream, struct stream_spin *spin, u64 began);

/* send.c, receive.c; process context */
#ifdef HAVE_SOCK_NO_SENDPAGE
int stream_send_page(struct stream *stream, struct page *page, int offset, size_t size, int flags);
#endif
int stream_send(struct stream *stream, struct msghdr *msg, size_t size);
void stream_keep_error(struct stream *stream, int err);
int stream_send_by_tcp(struct stream *stream, const void *from, size_t size);
void stream_send_show(struct stream *stream);
int stream_receive(struct stream *stream, struct msghdr *msg, size_t size,
		   int flags);
bool stream_is_at_end(const struct stream *stream);
bool stream_took_back(struct stream *stream);

#endif /* VMLOOP_STREAM_H */
