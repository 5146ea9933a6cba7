// SPDX-License-Identifier: GPL-2.0
/*
 * ulp.c - kTLS that was given a socket of ours.
 *
 * A program that asks for an upper layer protocol (TCP_ULP) has its socket be TCP's first
 * (calls.c). But one that asks before it is connected is in TCP's call, which reads the
 * protocol's name from the program's memory and then waits for the socket's lock, and another
 * thread may connect meanwhile. A socket for whose lock somebody waits is not taken over
 * (take.c); one whose caller is not so far yet is, and is given to kTLS as it is. kTLS
 *
 * - remembers our table as the one of that socket, as others do (ovpn): it is never freed, and as
 *   TCP's when the module has gone (stream_calls_exit());
 * - copies our tables into its own, which all its sockets have, and makes them anew as soon as
 *   it is given a socket with another sk_prot: stream_ulp_leave() gives it one of TCP's.
 *
 * While kTLS makes its tables, programs that send by it may find TCP's call in them for some
 * nanoseconds, and what they send then goes unencrypted. A program that makes that race on purpose
 * can have it happen to others; the fault is in kTLS, which changes tables that are in use. Here
 * they are not made where they are TCP's.
 *
 * espintcp copies the tables of the first socket of IPv6 that it is given, once. No kernel of
 * Debian's has it, and its first socket would have to come about by that race.
 */
#include <linux/cred.h>
#include <net/tcp.h>

#include "stream.h"

/* Not connected, and in no use. */
static struct socket *plain[STREAM_FAMILIES];

/**
 * stream_ulp_init() - keep a socket for stream_ulp_leave()
 * @family: index of its tables
 * @sock: a socket of the kernel's, not connected; released by stream_ulp_exit()
 */
void stream_ulp_init(unsigned int family, struct socket *sock)
{
	plain[family] = sock;
}

/** stream_ulp_exit() - nothing is to be told to kTLS any more */
void stream_ulp_exit(void)
{
	unsigned int i;

	for (i = 0; i < STREAM_FAMILIES; i++)
		if (plain[i])
			sock_release(plain[i]);
}

/**
 * stream_ulp_leave() - the module goes: kTLS has no call of ours in its tables
 *
 * Until it is given a socket of ours again. Context: process context.
 */
void stream_ulp_leave(void)
{
	struct cred *user = prepare_creds();
	const struct cred *old = NULL;
	unsigned int i;

	if (user) {
		/* kTLS that is not loaded has copied nothing, and is not to be loaded for this. */
		cap_clear(user->cap_effective);
		old = override_creds(user);
	}
	for (i = 0; i < STREAM_FAMILIES; i++) {
		char name[] = "tls";
		int err;

		if (!plain[i])
			continue;
		/* kTLS looks at its tables first, and at the socket's state then. */
		err = plain[i]->ops->setsockopt(plain[i], SOL_TCP, TCP_ULP, KERNEL_SOCKPTR(name),
						sizeof(name) - 1);
		WARN_ON_ONCE(err != -ENOTCONN && err != -ENOENT);
	}
	if (user) {
		revert_creds(old);
		put_cred(user);
	}
}
