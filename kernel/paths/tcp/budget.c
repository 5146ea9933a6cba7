// SPDX-License-Identifier: GPL-2.0
/*
 * budget.c - how much the connections to a peer may have of what all of them share.
 *
 * Of what is free or its own already one peer has SHARE quarters: peers that never answer,
 * however many, leave something for the others. Peers are told apart by a number, which two of
 * them may have in common.
 *
 * Owns the counts. Context: any.
 */
#include <linux/hash.h>
#include <linux/log2.h>

#include "stream.h"

#define PEERS	64
#define SHARE	3

/* Sockets that were closed, as many as TCP has for those that are its own (tcp_max_orphans). */
#define ORPHANS_MAX	4096

struct budget {
	spinlock_t lock;	/* protects both; bottom halves off */
	u64 all;
	u64 of[PEERS];
};

static struct budget budgets[] = {
	[STREAM_BUDGET_UNSENT].lock = __SPIN_LOCK_UNLOCKED(unsent_lock),
	[STREAM_BUDGET_PENDING].lock = __SPIN_LOCK_UNLOCKED(pending_lock),
	[STREAM_BUDGET_KEPT].lock = __SPIN_LOCK_UNLOCKED(kept_lock),
	[STREAM_BUDGET_ORPHANS].lock = __SPIN_LOCK_UNLOCKED(orphans_lock),
};

/*
 * A program can wait until there is room for what is pending, while a connection without memory
 * for what is unsent is reset: the former has half as much, beside it.
 */
static u64 most_of(enum stream_budget what)
{
	switch (what) {
	case STREAM_BUDGET_UNSENT:
		return READ_ONCE(stream_unsent_max);
	case STREAM_BUDGET_PENDING:
		return READ_ONCE(stream_unsent_max) / 2;
	case STREAM_BUDGET_KEPT:
		return STREAM_KEPT_MAX;
	default:
		return ORPHANS_MAX;
	}
}

/**
 * stream_budget_peer() - the number of the peer to which a connection's lane leads
 * @stream: the connection
 *
 * Return: the number, for the other functions here.
 */
u8 stream_budget_peer(const struct stream *stream)
{
	return hash_64(READ_ONCE(stream->peer), ilog2(PEERS));
}

/**
 * stream_budget_take() - have some of what is shared
 * @what: of what
 * @peer: for whom
 * @size: bytes, or sockets
 *
 * Return: whether there is as much, and the peer may have it.
 */
bool stream_budget_take(enum stream_budget what, u8 peer, u32 size)
{
	struct budget *budget = &budgets[what];
	u64 own, others, most = most_of(what);
	bool may;

	spin_lock_bh(&budget->lock);
	own = budget->of[peer] + size;
	others = budget->all - budget->of[peer];
	may = others < most && own <= (most - others) / 4 * SHARE;
	if (may) {
		WRITE_ONCE(budget->of[peer], budget->of[peer] + size);
		WRITE_ONCE(budget->all, budget->all + size);
	}
	spin_unlock_bh(&budget->lock);
	return may;
}

/**
 * stream_budget_give() - give back what stream_budget_take() gave
 * @what: of what
 * @peer: for whom it was taken
 * @size: of it
 */
void stream_budget_give(enum stream_budget what, u8 peer, u32 size)
{
	struct budget *budget = &budgets[what];

	spin_lock_bh(&budget->lock);
	WRITE_ONCE(budget->of[peer], budget->of[peer] - size);
	WRITE_ONCE(budget->all, budget->all - size);
	spin_unlock_bh(&budget->lock);
}

/** stream_budget_taken() - how much of it a peer has, as a look tells */
u64 stream_budget_taken(enum stream_budget what, u8 peer)
{
	return READ_ONCE(budgets[what].of[peer]);
}
