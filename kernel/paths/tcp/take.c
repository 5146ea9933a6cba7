// SPDX-License-Identifier: GPL-2.0
/*
 * take.c - sockets are taken over, and given back.
 *
 * A socket calls through two tables: sk->sk_prot, TCP's, and socket->ops, those of
 * INET's streams. One that is taken over has a copy of each, in which some calls are
 * ours. They are learned from a socket that we make, so that what is "the kernel's
 * own" is known without its name.
 *
 * - A socket that connects gets both at SYN_SENT, in connect(), which has it locked.
 * - A listener gets the ops only (listen.c).
 * - A child gets the sk_prot when it is ESTABLISHED, before anybody can have it, and the
 *   ops from accept(). A child of MPTCP's that is TCP's gets both there.
 *
 * Only sockets whose tables are the kernel's own, and in which nobody else has put
 * anything: no ULP (kTLS, MPTCP), no sk_user_data (sockmap, drivers), no socket of
 * the kernel's. What comes later has the socket given back (calls.c).
 *
 * Owns the tables of TCP's. Contexts: the tracepoint has the socket locked, by a task or
 * in softirq.
 */
#include <linux/kmemleak.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/tracepoint.h>
#include <linux/wait.h>
#include <net/inet_connection_sock.h>
#include <net/tcp.h>

#include "stream.h"

/*
 * How long sockets may take to go back to TCP when the module is unloaded: until lanes
 * end without their peers, and until connections are reset.
 */
#define LEAVE_LANES	(3 * HZ)
#define LEAVE_TIME	(60 * HZ)

const struct proto *stream_base[STREAM_FAMILIES];
const struct proto_ops *stream_base_ops[STREAM_FAMILIES];
struct proto *stream_protos[STREAM_FAMILIES];
struct proto_ops *stream_ops[STREAM_FAMILIES];

static struct tracepoint *state_point;
static bool leaving;

bool stream_leaving(void)
{
	return READ_ONCE(leaving);
}

/** stream_is_ours() - whether a socket still calls us */
bool stream_is_ours(const struct sock *sk)
{
	const struct proto *now = READ_ONCE(sk->sk_prot);

	return now == stream_protos[0] || now == stream_protos[1];
}

/**
 * stream_is_anothers() - whether a stream's socket has another connection by now, or listens
 * @stream: a stream, which a call or a work has had since before
 *
 * A call ends as TCP ends those that sleep while their socket is disconnected: by -EPIPE.
 *
 * Return: whether it has; where the socket is not locked, it may have in the next moment.
 */
bool stream_is_anothers(const struct stream *stream)
{
	/* Pairs with release_old(): a caller that has seen TCP's tables sees the flag, too. */
	smp_rmb();
	return test_bit(STREAM_OLD, &stream->flags) ||
	       (test_bit(STREAM_DEAD, &stream->flags) && stream_is_ours(stream->sk));
}

/* The family whose table that is, or -1. */
static int family_now(const struct sock *sk)
{
	int i;

	for (i = 0; i < STREAM_FAMILIES; i++)
		if (stream_base[i] && sk->sk_prot == stream_base[i])
			return i;
	return -1;
}

/**
 * stream_family_of() - the family whose table a socket has, and was made by
 * @sk: the socket, locked
 *
 * Return: index of its tables; -1 if they are not the kernel's. What was made by another
 * table is another's, as MPTCP's until accept().
 */
int stream_family_of(const struct sock *sk)
{
	int family = family_now(sk);

	return family < 0 || sk->sk_prot_creator == stream_base[family] ? family :
									  -1;
}

/*
 * Whether TCP signs or encrypts what it sends, or has a key for that. A listener's children have
 * its keys.
 */
static bool is_signed(const struct sock *sk)
{
	bool is = false;

#ifdef CONFIG_TCP_MD5SIG
	is |= !!rcu_access_pointer(tcp_sk(sk)->md5sig_info);
#endif
#ifdef CONFIG_TCP_AO
	is |= !!rcu_access_pointer(tcp_sk(sk)->ao_info);
#endif
#ifdef CONFIG_INET_PSP
	is |= !!rcu_access_pointer(sk->psp_assoc);
#endif
	return is;
}

/**
 * stream_is_in_use() - whether somebody else has a use for a socket
 * @sk: the socket, locked
 *
 * A ULP, a map, a filter, signatures, the kernel itself (also by a socket that a program gave it).
 */
bool stream_is_in_use(const struct sock *sk)
{
	return inet_csk(sk)->icsk_ulp_ops || sk->sk_user_data ||
	       !sk->sk_net_refcnt || sk->sk_kern_sock ||
	       sk->sk_allocation != GFP_KERNEL ||
	       sock_flag(sk, SOCK_MEMALLOC) ||
	       rcu_access_pointer(sk->sk_filter) || tcp_sk(sk)->repair ||
	       is_signed(sk);
}

/*
 * It was ours, and is disconnected: it connects again, as a new one, or listens, and its
 * children must not have its table.
 */
static void release_old(struct sock *sk, bool is_anothers)
{
	struct stream *stream = stream_is_ours(sk) ? stream_get(sk) : NULL;

	if (stream) {
		if (is_anothers) {
			set_bit(STREAM_OLD, &stream->flags);
			/* Pairs with the barrier in stream_is_anothers(). */
			smp_mb__after_atomic();
		}
		stream_release(stream);
		stream_put(stream);
	}
}

static void take_connecting(struct sock *sk)
{
	struct socket *sock = sk->sk_socket;
	int family = stream_family_of(sk);

	/*
	 * By fast open somebody is inside of TCP, and sends, or is to connect by the first
	 * send(), which waits for the peer: we would not.
	 */
	if (family < 0 || tcp_sk(sk)->fastopen_req || tcp_sk(sk)->fastopen_connect)
		return;
	/* In a call of TCP's that waits for the lock: perhaps to give it to kTLS (ulp.c). */
	if (waitqueue_active(&sk->sk_lock.wq))
		return;
	/* Without a file it is none of a program's. */
	if (!sock || !sock->file || READ_ONCE(sock->ops) != stream_base_ops[family] ||
	    stream_is_in_use(sk) || !stream_make(sk, family, true))
		return;
	WRITE_ONCE(sock->ops, stream_ops[family]);
	WRITE_ONCE(sk->sk_prot, stream_protos[family]);
	stream_count(STREAM_TAKEN, 1);
}

/* Returns whether it is ours now. */
static bool take_child(struct sock *sk, int family)
{
	u64 peer;

	if (family < 0 || stream_is_in_use(sk) || !stream_peer_of(sk, &peer) ||
	    !stream_make(sk, family, false))
		return false;
	WRITE_ONCE(sk->sk_prot, stream_protos[family]);
	stream_count(STREAM_TAKEN, 1);
	return true;
}

static void map(struct in6_addr *to, __be32 address)
{
	ipv6_addr_set_v4mapped(address, to);
}

/*
 * The connection is there. Nothing has been sent or read but by TCP's fast open; bytes may
 * have come, if it waited for accept().
 */
static void established(struct sock *sk)
{
	const struct inet_sock *inet = inet_sk(sk);
	struct stream *stream = stream_get(sk);
	struct stream_tuple *tuple;

	if (!stream)
		return;
	tuple = &stream->tuple;
	if (test_bit(STREAM_OURS, &stream->flags) ||
	    test_bit(STREAM_STAYS, &stream->flags))
		goto out;
	if (!stream_peer_of(sk, &stream->peer) || !stream_rule_allows(sk)) {
		stream_release(stream);
		goto out;
	}
	map(&tuple->local, inet->inet_rcv_saddr);
	map(&tuple->remote, inet->inet_daddr);
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6) {
		tuple->local = sk->sk_v6_rcv_saddr;
		tuple->remote = sk->sk_v6_daddr;
	}
#endif
	tuple->local_port = inet->inet_sport;
	tuple->remote_port = inet->inet_dport;
	tuple->local_first = tcp_sk(sk)->write_seq;
	tuple->remote_first = tcp_sk(sk)->copied_seq;
	stream_begin(stream);
out:
	stream_put(stream);
}

static void state_changes(void *unused, const struct sock *sock, const int from,
			  const int to)
{
	/* The tracepoint says const for the sake of those who only look. */
	struct sock *sk = (struct sock *)sock;

	/* MPTCP's own are none of ours, but its listeners have children of TCP's. */
	if (sk->sk_protocol != IPPROTO_TCP &&
	    (sk->sk_protocol != IPPROTO_MPTCP ||
	     (from != TCP_LISTEN && to != TCP_LISTEN)))
		return;
	/* Children begin as copies of a listener, without a socket; MPTCP listens twice. */
	if (from == TCP_LISTEN && to != TCP_LISTEN && sk->sk_socket)
		stream_listen_ends(sk);
	/*
	 * What is known of a connection that is over is not true of the next one. And one that
	 * never came about is nobody's.
	 */
	if (to == TCP_SYN_SENT || to == TCP_LISTEN ||
	    (from == TCP_SYN_SENT && to == TCP_CLOSE))
		release_old(sk, to != TCP_CLOSE);
	if (READ_ONCE(leaving))
		return;
	if (to == TCP_SYN_SENT) {
		take_connecting(sk);
	} else if (to == TCP_LISTEN) {
		stream_listen_begins(sk);
	} else if (to == TCP_ESTABLISHED) {
		/* By TCP fast open a program may have accepted it already, and be in a call. */
		if (from == TCP_SYN_RECV && !sk->sk_socket)
			take_child(sk, stream_family_of(sk));
		established(sk);
	}
}

/**
 * stream_take_accepted() - take over the child of a listener that was not TCP's
 * @sk: the child, locked, as accept() returns it: no program has it
 */
void stream_take_accepted(struct sock *sk)
{
	struct socket *sock = sk->sk_socket;
	int family;

	/* As in the tracepoint: stream_take_exit() waits for those who are in here. */
	rcu_read_lock();
	family = family_now(sk);
	if (!READ_ONCE(leaving) && family >= 0 && sk->sk_state == TCP_ESTABLISHED &&
	    READ_ONCE(sock->ops) == stream_base_ops[family] &&
	    take_child(sk, family)) {
		WRITE_ONCE(sock->ops, stream_ops[family]);
		established(sk);
	}
	rcu_read_unlock();
}

/**
 * stream_release() - a socket is to be TCP's alone again
 * @stream: its stream: all of it goes by TCP, and nothing is outstanding
 *
 * Calls that are under way see that the tables have changed, and go by TCP. A stream that has
 * ended has no socket to release: it may be another stream's by now.
 *
 * Context: the socket's spinlock is held, so that a BPF program that puts the socket into a sockmap
 * sees one table or the other. Or the socket is in a state in which none does that.
 */
void stream_release(struct stream *stream)
{
	unsigned int family = stream->family;
	struct sock *sk = stream->sk;
	struct socket *sock = sk->sk_socket;

	if (test_bit(STREAM_DEAD, &stream->flags))
		return;
	if (sock && sock->ops == stream_ops[family])
		WRITE_ONCE(sock->ops, stream_base_ops[family]);
	if (sk->sk_prot == stream_protos[family])
		WRITE_ONCE(sk->sk_prot, (struct proto *)stream_base[family]);
	/* One that is disconnected may be released before its work has seen that. */
	stream_listen_no_more(stream);
	stream_lower_rcvbuf(stream);
	stream_end(stream);
	if (READ_ONCE(stream->held))
		stream_queue(stream, 0);
	/* Those who wait in our calls go and call the kernel's. */
	sk->sk_state_change(sk);
}

static void give_back(struct stream *stream)
{
	struct sock *sk = stream->sk;

	stream_leave(stream);
	/*
	 * Others need not wait for a program that waits for its memory. And one that nobody has
	 * accepted must not be owned: its listener may be closed meanwhile.
	 */
	local_bh_disable();
	bh_lock_sock(sk);
	if (!sock_owned_by_user(sk) &&
	    (stream_is_plain(stream) ||
	     (!READ_ONCE(stream->held) && sk->sk_state == TCP_CLOSE)))
		stream_release(stream);
	bh_unlock_sock(sk);
	local_bh_enable();
}

static void find_point(struct tracepoint *point, void *found)
{
	if (!strcmp(point->name, "inet_sock_set_state"))
		*(struct tracepoint **)found = point;
}

/* Learn the kernel's tables of a family; a kernel without IPv6 has one. */
static int learn(unsigned int i, int family)
{
	struct socket *sock;
	int err;

	err = sock_create_kern(&init_net, family, SOCK_STREAM, IPPROTO_TCP,
			       &sock);
	if (err)
		return err;
	stream_base[i] = sock->sk->sk_prot;
	stream_base_ops[i] = sock->ops;
	stream_ulp_init(i, sock);
	/*
	 * Never freed: somebody may have copied a pointer to one that we do not know
	 * of (kTLS, ovpn). When the module goes, they are as the kernel's own.
	 */
	stream_protos[i] = kmemdup(stream_base[i], sizeof(*stream_protos[i]), GFP_KERNEL);
	stream_ops[i] = kmemdup(stream_base_ops[i], sizeof(*stream_ops[i]),
				GFP_KERNEL);
	if (!stream_protos[i] || !stream_ops[i])
		return -ENOMEM;
	kmemleak_not_leak(stream_protos[i]);
	kmemleak_not_leak(stream_ops[i]);
	stream_calls_init(i);
	return 0;
}

int stream_take_init(void)
{
	unsigned int i;
	int err;

	err = learn(0, AF_INET);
	if (err)
		goto err_learn;
	err = learn(1, AF_INET6);
	if (err && err != -EAFNOSUPPORT)
		goto err_learn;
	err = stream_listen_init();
	if (err)
		goto err_learn;
	for_each_kernel_tracepoint(find_point, &state_point);
	err = -ENOENT;
	if (state_point)
		err = tracepoint_probe_register(state_point, state_changes,
						NULL);
	else
		pr_err("vmloop_tcp: this kernel has no tracepoint sock:inet_sock_set_state: use one with CONFIG_TRACEPOINTS=y\n");
	if (!err)
		return 0;
	stream_listen_free();
err_learn:
	stream_ulp_exit();
	/* Nobody has been given one. */
	for (i = 0; i < STREAM_FAMILIES; i++) {
		kfree(stream_protos[i]);
		kfree(stream_ops[i]);
	}
	return err;
}

static void reset(struct stream *stream)
{
	stream_reset(stream, STREAM_FAULT_UNLOAD);
}

/*
 * All sockets go back. Nobody can be on the way to one of our calls, or in one,
 * when this returns.
 */
void stream_take_exit(void)
{
	unsigned long start = jiffies;
	bool lanes = true;
	unsigned int i;

	WRITE_ONCE(leaving, true);
	tracepoint_synchronize_unregister();
	synchronize_rcu();
	/* What accept() makes has our ops for a moment, and TCP's sk_prot. */
	stream_ulp_leave();
	stream_listen_leave();
	for (;;) {
		stream_each(give_back);
		if (stream_none())
			break;
		/* Their peers do not answer. */
		if (lanes && time_after(jiffies, start + LEAVE_LANES)) {
			vmloop_path_unregister(&stream_path);
			lanes = false;
		}
		/* Nor by TCP. */
		if (time_after(jiffies, start + LEAVE_TIME))
			stream_each(reset);
		schedule_timeout_uninterruptible(HZ / 100);
	}
	tracepoint_probe_unregister(state_point, state_changes, NULL);
	tracepoint_synchronize_unregister();
	if (lanes)
		vmloop_path_unregister(&stream_path);
	for (i = 0; i < STREAM_FAMILIES; i++)
		if (stream_ops[i])
			stream_calls_exit(i);
	stream_listen_exit();
	stream_ulp_leave();
	stream_ulp_exit();
	/* Whoever had loaded one of our calls is in it, or has left it. */
	synchronize_rcu_tasks();
	synchronize_srcu(&stream_users);
	/* And who has left it has returned. */
	synchronize_rcu_tasks();
	/* A work that is to run later has a timer, for which nobody else waits. */
	while (!stream_all_freed())
		schedule_timeout_uninterruptible(1);
	flush_workqueue(stream_slow_workqueue);
	flush_workqueue(stream_workqueue);
}
