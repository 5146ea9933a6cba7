// SPDX-License-Identifier: GPL-2.0
/*
 * table.c - which sockets were taken over, and which connections of peers there are.
 *
 * Owns the two tables, and the memory of a struct stream. The socket stays as long
 * as the stream, though it may have been destroyed.
 *
 * Context: any, but where it says otherwise. table_lock is inside of all others.
 */
#include <linux/hash.h>
#include <linux/hashtable.h>
#include <linux/jhash.h>
#include <linux/random.h>
#include <linux/rhashtable.h>
#include <linux/slab.h>

#include "stream.h"

/* Connections to peers: found when a peer opens a lane for one. */
static DEFINE_HASHTABLE(tuples, STREAM_BUCKET_BITS);
static DEFINE_SPINLOCK(table_lock);
static u32 seed;

/* Looked for at each call of each socket: nobody chooses where a socket is. */
static u32 sock_hash(const void *key, u32 size, u32 unused)
{
	return hash_64((unsigned long)*(const struct sock *const *)key, 32);
}

static int is_another(struct rhashtable_compare_arg *arg, const void *one)
{
	const struct stream *stream = one;

	return stream->sk != *(const struct sock *const *)arg->key;
}

static const struct rhashtable_params by_sock = {
	.key_len = sizeof(struct sock *),
	.key_offset = offsetof(struct stream, sk),
	.head_offset = offsetof(struct stream, by_sock),
	.hashfn = sock_hash,
	.obj_cmpfn = is_another,
	.automatic_shrinking = true,
};

static struct rhashtable socks;

/* Whoever is in one of our calls, and may sleep there. */
DEFINE_SRCU(stream_users);

static u32 tuple_hash(const struct stream_tuple *tuple)
{
	return jhash(tuple, sizeof(*tuple), seed);
}

/**
 * stream_look() - the stream of a socket, for a look at it
 * @sk: the socket
 *
 * Context: any; rcu_read_lock() held, as long as it is looked at.
 * Return: the stream, which may be at its end; NULL if the socket was not taken over.
 */
struct stream *stream_look(const struct sock *sk)
{
	return rhashtable_lookup(&socks, &sk, by_sock);
}

/**
 * stream_get() - the stream of a socket
 * @sk: the socket
 *
 * Return: the stream, held, or NULL if the socket was not taken over.
 */
struct stream *stream_get(const struct sock *sk)
{
	struct stream *stream;

	rcu_read_lock();
	stream = stream_look(sk);
	if (stream && !kref_get_unless_zero(&stream->refs))
		stream = NULL;
	rcu_read_unlock();
	return stream;
}

/* Streams that have memory: each work that is to run has a reference to its own. */
static atomic_t alive;

/** stream_all_freed() - whether no stream is left, nor a work of one */
bool stream_all_freed(void)
{
	return !atomic_read(&alive);
}

static void stream_free(struct kref *refs)
{
	struct stream *stream = container_of(refs, struct stream, refs);

	WARN_ON_ONCE(stream->listens);
	stream_purge(stream);
	stream_pending_free(stream);
	sock_put(stream->sk);
	kfree_rcu(stream, rcu);
	atomic_dec(&alive);
}

void stream_hold(struct stream *stream)
{
	kref_get(&stream->refs);
}

void stream_put(struct stream *stream)
{
	kref_put(&stream->refs, stream_free);
}

/**
 * stream_queue() - have the stream's work run
 * @stream: the stream
 * @delay: in jiffies; sooner if it is to run sooner already
 */
void stream_queue(struct stream *stream, unsigned long delay)
{
	stream_hold(stream);
	if (delay ? !queue_delayed_work(stream_workqueue, &stream->work, delay) :
		    mod_delayed_work(stream_workqueue, &stream->work, 0))
		stream_put(stream);	/* the reference of the one that was queued */
}

/**
 * stream_make() - have a stream for a socket
 * @sk: the socket, locked, of which nothing in the kernel but TCP has a use
 * @family: index of its tables
 * @active: it connects
 *
 * Return: the stream, of which the table has a reference; NULL without memory, or
 * if there is one.
 */
struct stream *stream_make(struct sock *sk, unsigned int family, bool active)
{
	struct stream *stream = kzalloc(sizeof(*stream), GFP_ATOMIC | __GFP_ACCOUNT);

	if (!stream)
		return NULL;
	stream->sk = sk;
	stream->data_ready = sk->sk_data_ready;
	stream->write_space = sk->sk_write_space;
	stream->state_change = sk->sk_state_change;
	stream->family = family;
	stream->active = active;
	stream->spoke = jiffies;
	stream->again = 1;
	kref_init(&stream->refs);
	INIT_DELAYED_WORK(&stream->work, stream_work);
	INIT_DELAYED_WORK(&stream->slow, stream_slow_work);
	tasklet_setup(&stream->bell, stream_ring_bell);
	spin_lock_init(&stream->lane_lock);
	mutex_init(&stream->tx_mutex);
	mutex_init(&stream->tx_ring);
	mutex_init(&stream->rx_mutex);
	mutex_init(&stream->rx_ring);
	__skb_queue_head_init(&stream->kept);
	INIT_HLIST_NODE(&stream->by_tuple);
	if (rhashtable_lookup_insert_fast(&socks, &stream->by_sock, by_sock)) {
		kfree(stream);
		return NULL;
	}
	atomic_inc(&alive);
	sock_hold(sk);
	return stream;
}

/**
 * stream_begin() - a stream is one of a peer's: its peer may open a lane for it
 * @stream: the stream, with tuple and peer
 */
void stream_begin(struct stream *stream)
{
	spin_lock_bh(&table_lock);
	hash_add(tuples, &stream->by_tuple, tuple_hash(&stream->tuple));
	set_bit(STREAM_OURS, &stream->flags);
	spin_unlock_bh(&table_lock);
}

/**
 * stream_end() - a socket is taken over no more, or has been destroyed
 * @stream: its stream; the table's reference is let go of
 */
void stream_end(struct stream *stream)
{
	if (test_and_set_bit(STREAM_DEAD, &stream->flags))
		return;
	spin_lock_bh(&table_lock);
	hash_del(&stream->by_tuple);
	spin_unlock_bh(&table_lock);
	rhashtable_remove_fast(&socks, &stream->by_sock, by_sock);
	stream_put(stream);
}

/**
 * stream_find() - a connection to a peer
 * @tuple: the connection, as our end sees it
 *
 * Return: the stream, held, or NULL.
 */
struct stream *stream_find(const struct stream_tuple *tuple)
{
	struct stream *stream, *found = NULL;

	spin_lock_bh(&table_lock);
	hash_for_each_possible(tuples, stream, by_tuple, tuple_hash(tuple)) {
		if (!memcmp(&stream->tuple, tuple, sizeof(*tuple)) &&
		    kref_get_unless_zero(&stream->refs)) {
			found = stream;
			break;
		}
	}
	spin_unlock_bh(&table_lock);
	return found;
}

/**
 * stream_at() - the connections to peers, one after the other
 * @bucket: of the table, less than 1 << STREAM_BUCKET_BITS
 * @index: in the bucket
 *
 * Where one comes or goes meanwhile, another of its bucket may have another index.
 *
 * Return: the stream, held; NULL behind the bucket's last one.
 */
struct stream *stream_at(unsigned int bucket, unsigned int index)
{
	struct stream *stream, *found = NULL;

	spin_lock_bh(&table_lock);
	hlist_for_each_entry(stream, &tuples[bucket], by_tuple) {
		if (index--)
			continue;
		/* It is in the table, and so has the table's reference. */
		stream_hold(stream);
		found = stream;
		break;
	}
	spin_unlock_bh(&table_lock);
	return found;
}

/* Goes on with a walk. A kernel that lacks a fix of July 2026 has a stale entry in it. */
static void go_on(struct rhashtable_iter *iter) __acquires(RCU)
{
	if (rhashtable_walk_start_check(iter))
		iter->p = NULL;
}

/**
 * stream_each() - do something with each stream that there is
 * @what: called with a reference held; may sleep
 *
 * One that is made meanwhile may be left out. Context: process context.
 */
void stream_each(void (*what)(struct stream *stream))
{
	struct rhashtable_iter iter;
	struct stream *stream;

	rhashtable_walk_enter(&socks, &iter);
	go_on(&iter);
	while ((stream = rhashtable_walk_next(&iter))) {
		/* Resized meanwhile: some come twice. */
		if (IS_ERR(stream))
			continue;
		if (!kref_get_unless_zero(&stream->refs))
			continue;
		rhashtable_walk_stop(&iter);
		what(stream);
		stream_put(stream);
		/* There may be as many as programs have descriptors. */
		cond_resched();
		go_on(&iter);
	}
	rhashtable_walk_stop(&iter);
	rhashtable_walk_exit(&iter);
}

/** stream_none() - whether no socket is taken over */
bool stream_none(void)
{
	return !atomic_read(&socks.nelems);
}

int stream_table_init(void)
{
	seed = get_random_u32();
	return rhashtable_init(&socks, &by_sock);
}

/* No stream is left, and nobody looks for one. */
void stream_table_exit(void)
{
	rcu_barrier();
	rhashtable_destroy(&socks);
}
