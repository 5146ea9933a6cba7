// SPDX-License-Identifier: GPL-2.0
/*
 * listen.c - sockets that listen, and what accept() makes of their children.
 *
 * A listener gets a copy of its ops, in which accept() is ours. Its sk_prot stays: requests,
 * children and TIME_WAIT sockets have theirs from it.
 *
 * - TCP's listener: the child was taken over when its connection was there (take.c), and
 *   accept() gives it the listener's ops; one that was not taken over gets the kernel's.
 * - MPTCP's, as Go's servers have: where the client does not speak MPTCP, the child is a
 *   socket of TCP's. MPTCP's accept() looks at its tables, so it is taken over after that,
 *   by ours, when no program has it yet.
 *
 * Owns the table of listeners, and MPTCP's tables. Lock order: a socket's lock,
 * listeners_lock. Contexts: the tracepoint has the listener locked, by a task; accept() is
 * in process context, and may sleep.
 */
#include <linux/hashtable.h>
#include <linux/kmemleak.h>
#include <linux/net.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/wait.h>
#include <net/tcp.h>

#include "stream.h"
#include "compat.h"

/**
 * struct listener - a listening socket that has our ops
 * @sk: the socket; it cannot go before it is taken out of the table
 * @base: the kernel's ops of it
 * @ours: and ours
 * @node: in the table
 */
struct listener {
	struct sock *sk;
	const struct proto_ops *base;
	const struct proto_ops *ours;
	struct hlist_node node;
};

/* By socket: a program may have as many as it may have files. */
static DEFINE_HASHTABLE(listeners, STREAM_BUCKET_BITS);
static DEFINE_SPINLOCK(listeners_lock);

/* By family; NULL where the kernel has no MPTCP, or has it switched off. */
static const struct proto *mptcp_base[STREAM_FAMILIES];
static const struct proto_ops *mptcp_base_ops[STREAM_FAMILIES];
static struct proto_ops *mptcp_ops[STREAM_FAMILIES];

static bool is_mptcp(const struct sock *sk)
{
	return sk->sk_protocol == IPPROTO_MPTCP;
}

static unsigned int index_of(const struct sock *sk)
{
	return sk->sk_family == AF_INET6;
}

static const struct proto_ops *base_ops_of(const struct sock *sk)
{
	return is_mptcp(sk) ? mptcp_base_ops[index_of(sk)] :
			      stream_base_ops[index_of(sk)];
}

/* Whether a listener is the kernel's own, and nobody else has a use for it. */
static bool is_plain(const struct sock *sk)
{
	const struct proto *base = mptcp_base[index_of(sk)];

	if (!is_mptcp(sk))
		return stream_family_of(sk) >= 0 && !stream_is_in_use(sk);
	/* What else is set there its children have, and are looked at for it. */
	return base && sk->sk_prot == base && sk->sk_prot_creator == base &&
	       !sk->sk_user_data && sk->sk_net_refcnt && !sk->sk_kern_sock;
}

/**
 * stream_listen_begins() - a socket listens
 * @sk: the socket, locked; none of ours (stream_release())
 */
void stream_listen_begins(struct sock *sk)
{
	struct listener *listener;
	struct socket *sock = sk->sk_socket;

	/* Without a file it is none of a program's, and the kernel waits in accept(). */
	if (!is_plain(sk) || !sock || !sock->file || READ_ONCE(sock->ops) != base_ops_of(sk))
		return;
	listener = kmalloc(sizeof(*listener), GFP_ATOMIC);
	if (!listener)
		return;
	listener->sk = sk;
	listener->base = base_ops_of(sk);
	listener->ours = is_mptcp(sk) ? mptcp_ops[index_of(sk)] :
					stream_ops[index_of(sk)];
	spin_lock_bh(&listeners_lock);
	hash_add(listeners, &listener->node, (unsigned long)sk);
	WRITE_ONCE(sock->ops, listener->ours);
	spin_unlock_bh(&listeners_lock);
}

/*
 * Takes a listener out of the table; its socket has the kernel's ops again. All programs that
 * wait in our accept() look again: TCP wakes one of them.
 */
static void listener_release(struct listener *listener)
{
	struct sock *sk = listener->sk;
	struct socket *sock = sk->sk_socket;

	lockdep_assert_held(&listeners_lock);
	if (sock && sock->ops == listener->ours)
		WRITE_ONCE(sock->ops, listener->base);
	hash_del(&listener->node);
	kfree(listener);
	sk->sk_state_change(sk);
}

/**
 * stream_listen_ends() - a socket does not listen any more
 * @sk: the socket, locked
 */
void stream_listen_ends(struct sock *sk)
{
	struct listener *listener;

	spin_lock_bh(&listeners_lock);
	hash_for_each_possible(listeners, listener, node, (unsigned long)sk) {
		if (listener->sk == sk) {
			listener_release(listener);
			break;
		}
	}
	spin_unlock_bh(&listeners_lock);
}

/*
 * The socket that accept() has made, or none, has the listener's ops, which are ours, or
 * those that MPTCP gave a child of TCP's.
 */
static void settle(const struct sock *sk, struct socket *newsock)
{
	const struct proto_ops *base = base_ops_of(sk);
	struct sock *newsk = newsock->sk;
	struct stream *stream;

	/* No program has it. */
	if (!newsk || newsock->ops == mptcp_ops[index_of(sk)]) {
		WRITE_ONCE(newsock->ops, base);
		return;
	}
	lock_sock(newsk);
	if (is_mptcp(sk)) {
		stream_take_accepted(newsk);
	} else {
		stream = stream_get(newsk);
		if (!stream || stream_leaving())
			WRITE_ONCE(newsock->ops, base);
		if (stream)
			stream_put(stream);
	}
	release_sock(newsk);
}

/*
 * The kernel accepts, by a listener that a program made (NFS). It would give the child the
 * listener's ops, whatever accept() gave it, and then perhaps to kTLS, which copies them for
 * all its sockets: the listener is the kernel's alone from now on. The caller has looked at
 * our ops already, and comes again.
 */
static int accept_for_kernel(struct sock *sk, int flags)
{
	lock_sock(sk);
	stream_listen_ends(sk);
	release_sock(sk);
	if (!(flags & O_NONBLOCK))
		return -ERESTARTSYS;
	/* As TCP calls it. */
	local_bh_disable();
	sk->sk_data_ready(sk);
	local_bh_enable();
	return -EAGAIN;
}

static int wait_and_accept(struct socket *sock, struct socket *newsock,
			   struct proto_accept_arg *arg)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	int users = srcu_read_lock(&stream_users);
	struct sock *sk = sock->sk;
	const struct proto_ops *base = base_ops_of(sk);
	bool waits = false;
	long left;
	int err;

	if (arg->kern) {
		err = accept_for_kernel(sk, arg->flags);
		srcu_read_unlock(&stream_users, users);
		return err;
	}
	left = sock_rcvtimeo(sk, arg->flags & O_NONBLOCK);
	for (;;) {
		err = compat_accept(base, sock, newsock, arg);
		if (err != -EAGAIN || !left)
			break;
		if (!waits) {
			/* MPTCP's listener of TCP has the same queue. */
			add_wait_queue_exclusive(sk_sleep(sk), &wait);
			waits = true;
			continue;
		}
		if (signal_pending(current)) {
			err = sock_intr_errno(left);
			break;
		}
		if (READ_ONCE(sock->ops) == base) {
			err = stream_may_make_anew() ? stream_make_anew() :
						       -ERESTARTSYS;
			break;
		}
		left = wait_woken(&wait, TASK_INTERRUPTIBLE, left);
	}
	if (waits)
		remove_wait_queue(sk_sleep(sk), &wait);
	settle(sk, newsock);
	srcu_read_unlock(&stream_users, users);
	return err;
}

#ifdef HAVE_PROTO_ACCEPT_ARG
static int call_accept(struct socket *sock, struct socket *newsock,
		       struct proto_accept_arg *arg)
{
	return wait_and_accept(sock, newsock, arg);
}
#else
static int call_accept(struct socket *sock, struct socket *newsock, int flags,
		       bool kern)
{
	struct proto_accept_arg arg = { .flags = flags, .kern = kern };

	return wait_and_accept(sock, newsock, &arg);
}
#endif

/**
 * stream_listen_calls() - put our accept() into a copy of a listener's ops
 * @ops: the copy
 */
void stream_listen_calls(struct proto_ops *ops)
{
	ops->accept = call_accept;
}

/* Learn MPTCP's tables of a family. */
static int learn(unsigned int i, int family)
{
	struct socket *sock;
	int err;

	err = sock_create_kern(&init_net, family, SOCK_STREAM, IPPROTO_MPTCP, &sock);
	/* The kernel has none, or the administrator has switched it off. */
	if (err == -EPROTONOSUPPORT || err == -EAFNOSUPPORT || err == -ENOPROTOOPT)
		return 0;
	if (err)
		return err;
	mptcp_base[i] = sock->sk->sk_prot;
	mptcp_base_ops[i] = sock->ops;
	sock_release(sock);
	/* Never freed but by stream_listen_free(): as stream_ops. */
	mptcp_ops[i] = kmemdup(mptcp_base_ops[i], sizeof(*mptcp_ops[i]),
			       GFP_KERNEL);
	if (!mptcp_ops[i])
		return -ENOMEM;
	kmemleak_not_leak(mptcp_ops[i]);
	stream_listen_calls(mptcp_ops[i]);
	return 0;
}

/** stream_listen_init() - before the first socket is taken over; process context */
int stream_listen_init(void)
{
	int err = learn(0, AF_INET) ?: learn(1, AF_INET6);

	if (err)
		stream_listen_free();
	return err;
}

/** stream_listen_free() - nobody has been given one of our tables */
void stream_listen_free(void)
{
	unsigned int i;

	for (i = 0; i < STREAM_FAMILIES; i++)
		kfree(mptcp_ops[i]);
}

/**
 * stream_listen_leave() - the module goes: all listeners are the kernel's again
 *
 * Programs that wait in our accept() go and wait in the kernel's.
 */
void stream_listen_leave(void)
{
	struct listener *listener;
	struct hlist_node *next;
	unsigned int i;

	spin_lock_bh(&listeners_lock);
	hash_for_each_safe(listeners, i, next, listener, node)
		listener_release(listener);
	spin_unlock_bh(&listeners_lock);
}

/** stream_listen_exit() - a program that still has our copy of the ops has MPTCP's accept() */
void stream_listen_exit(void)
{
	unsigned int i;

	for (i = 0; i < STREAM_FAMILIES; i++)
		if (mptcp_ops[i])
			WRITE_ONCE(mptcp_ops[i]->accept, mptcp_base_ops[i]->accept);
}
