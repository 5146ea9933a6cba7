// SPDX-License-Identifier: GPL-2.0
/*
 * ulp.c - kTLS that was given a socket of ours.
 *
 * A program that asks for kTLS (TCP_ULP) has its socket given back to TCP first (calls.c). But
 * a program may ask before the socket is ours: it is in TCP's call then, which reads "tls" from
 * the program's memory, waits for the socket's lock, and calls kTLS. Where another thread
 * connects meanwhile, take.c leaves a socket alone for whose lock somebody waits. It cannot
 * see a thread that still reads memory: kTLS gets a socket of ours then. kTLS
 *
 * - remembers our sk_prot as the socket's own, as ovpn does: our table is never freed, and has
 *   TCP's calls when the module has gone (stream_calls_exit());
 * - copies our tables into its own, which all its sockets have. It makes those anew when it gets
 *   a socket with another sk_prot: stream_ulp_leave() gives it one of TCP's.
 *
 * kTLS changes tables that are in use: a program that sends meanwhile, some nanoseconds, may send
 * unencrypted. Nobody but kTLS can mend that. A program may make that race on purpose
 * (docs/stream.md). stream_ulp_leave() changes nothing where the tables are made from TCP's.
 *
 * espintcp copies the tables of its first IPv6 socket, once, and cannot be made to do so again.
 * Debian's kernels do not have it.
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
