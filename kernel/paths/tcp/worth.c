// SPDX-License-Identifier: GPL-2.0
/*
 * worth.c - how many bytes of a connection go by TCP before it gets a lane: more than
 * stream_after_bytes where the connections before it ended soon after they had got one.
 *
 * To open a lane and to end it takes milliseconds, in turns of both guests. A connection that
 * ends before so many bytes as stream_after_bytes have gone by its lane would have been faster
 * without it. Then the next connections of the same user to the same address and port wait for
 * twice as many bytes, and so on, for eight times as many at most, and never for more than
 * stream_after_most. They wait for stream_after_bytes again when one has ended whose lane carried
 * that many, or when none has ended soon for KNOWN_TIME. A connection that has had a lane does
 * not wait for more. Nothing is learned of a connection that got its lane for its turns, since
 * that lane pays from its first exchanges on, and of one that lasted for longer than SOON_TIME.
 *
 * What is known is a guess, which costs time if it is wrong, and no byte. Services of one place
 * in the table forget each other. Readers take no lock, and may see one service's key with
 * another's number.
 *
 * Context: process context. Lock order: service_lock is the last; the socket's lock, mutexes of
 * the stream and of the core may be held.
 */
#include <linux/hash.h>
#include <linux/jhash.h>
#include <linux/uidgid.h>
#include <linux/user_namespace.h>
#include <net/netns/hash.h>

#include "stream.h"

#define SERVICE_BITS	6
#define SHIFT_MOST	3U
#define KNOWN_TIME	(10 * HZ)
#define SOON_TIME	(2 * HZ)

struct service {
	u32 key;		/* 0: none */
	unsigned int shift;	/* bytes by TCP first: after_bytes << shift */
	unsigned long since;	/* in jiffies */
};

static struct service services[1 << SERVICE_BITS];
static DEFINE_SPINLOCK(service_lock);	/* protects writes to services */

static u32 key_of(const struct stream *stream)
{
	const struct sock *sk = stream->sk;
	struct {
		struct in6_addr address;
		u32 port;
		u32 user;
	} service = {
		.address = stream->tuple.remote,
		.port = (__force u32)stream->tuple.remote_port,
		.user = from_kuid(&init_user_ns, READ_ONCE(sk->sk_uid)),
	};

	return jhash2((const u32 *)&service, sizeof(service) / sizeof(u32),
		      net_hash_mix(sock_net(sk))) ?: 1;
}

static struct service *service_of(u32 key)
{
	return &services[hash_32(key, SERVICE_BITS)];
}

static unsigned int shift_of(const struct service *service, u32 key)
{
	unsigned long since = READ_ONCE(service->since);

	if (READ_ONCE(service->key) != key || !time_in_range(jiffies, since, since + KNOWN_TIME))
		return 0;
	return READ_ONCE(service->shift);
}

/**
 * stream_worth_shift() - how many times stream_after_bytes go by TCP before there is a lane
 * @stream: a stream of ours that opens lanes
 *
 * Return: the logarithm of it to the base of 2, 0 to SHIFT_MOST.
 */
unsigned int stream_worth_shift(const struct stream *stream)
{
	u32 key;

	if (READ_ONCE(stream->lanes))
		return 0;
	key = key_of(stream);
	return shift_of(service_of(key), key);
}

/**
 * stream_worth_learn() - a program has ended a connection that had a lane, or was getting one
 * @stream: a stream of ours that opens lanes
 * @carried: bytes that went by its lanes, both ways
 */
void stream_worth_learn(const struct stream *stream, u64 carried)
{
	unsigned int waited = READ_ONCE(stream->waited), shift;
	bool for_nothing = carried < READ_ONCE(stream_after_bytes);
	u32 key = key_of(stream);
	struct service *service = service_of(key);

	if (waited == STREAM_BY_TURNS ||
	    (for_nothing && time_after(jiffies, READ_ONCE(stream->asked) + SOON_TIME)))
		return;
	spin_lock(&service_lock);
	if (for_nothing) {
		/* Those that ran beside it, and waited as long, say the same once more. */
		shift = max(shift_of(service, key), min(waited + 1, SHIFT_MOST));
		WRITE_ONCE(service->key, key);
		WRITE_ONCE(service->shift, shift);
		WRITE_ONCE(service->since, jiffies);
	} else if (service->key == key) {
		WRITE_ONCE(service->key, 0);
	}
	spin_unlock(&service_lock);
}
