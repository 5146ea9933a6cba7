// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * life.c - the life of one lane; see life.h for the rules.
 */
#include "life.h"

#define STEPS		(1U << VMLOOP_LIFE_BITS)

/*
 * Where the other side may move to, as bits: its step in our generation, and in
 * the one behind.
 */
#define NOW(step)	(1U << VMLOOP_LIFE_##step)
#define NEXT(step)	(1U << (STEPS + VMLOOP_LIFE_##step))

/* Where the side that accepts may move to, by the step of the side that opens. */
static const u32 accepting[STEPS] = {
	[VMLOOP_LIFE_FREE] = NOW(FREE),
	[VMLOOP_LIFE_OPEN] = NOW(OPEN) | NOW(CLOSING) | NOW(CLOSED) | NOW(REFUSED),
	[VMLOOP_LIFE_CLOSING] = NOW(CLOSING) | NOW(CLOSED),
	[VMLOOP_LIFE_CLOSED] = NOW(OPEN) | NOW(CLOSING) | NOW(CLOSED) |
			       NOW(REFUSED) | NEXT(FREE),
};

/* Where the side that opens may move to, by the step of the side that accepts. */
static const u32 opening[STEPS] = {
	[VMLOOP_LIFE_FREE] = NOW(FREE) | NOW(OPEN) | NOW(CLOSED),
	[VMLOOP_LIFE_OPEN] = NOW(CLOSING) | NOW(CLOSED),
	[VMLOOP_LIFE_CLOSING] = NOW(CLOSING) | NOW(CLOSED),
	[VMLOOP_LIFE_CLOSED] = NOW(CLOSING) | NOW(CLOSED) | NEXT(FREE),
	[VMLOOP_LIFE_REFUSED] = NOW(CLOSED) | NEXT(FREE),
};

/* The first word of the generation that a word belongs to. */
static u32 generation_of(u32 word)
{
	return word & ~(STEPS - 1);
}

/**
 * vmloop_life_see() - what the other side's word says now
 * @life: the lane
 * @word: the word, loaded once
 *
 * Return: 1 if the other side has moved; 0 if it is where it was; -EPROTO for
 * what it cannot say: @life is as it was.
 */
int vmloop_life_see(struct vmloop_life *life, u32 word)
{
	u32 may = (life->opens ? accepting : opening)[vmloop_life_step(life->ours)];
	u32 to = word - generation_of(life->ours);

	if (word == life->theirs)
		return 0;
	if (word - life->theirs >= 2 * STEPS || to >= 2 * STEPS || !(may & 1U << to))
		return -EPROTO;
	/* What was opened cannot be refused any more. */
	if (to == VMLOOP_LIFE_REFUSED &&
	    vmloop_life_step(life->theirs) != VMLOOP_LIFE_FREE)
		return -EPROTO;
	life->theirs = word;
	return 1;
}

/**
 * vmloop_life_may() - whether a step is ours to take
 * @life: the lane
 * @step: VMLOOP_LIFE_*
 *
 * FREE is the next generation's: the other side's positions are final by then,
 * and the caller must have its account of them, as the other side may write over
 * them next.
 *
 * Return: true if it is.
 */
bool vmloop_life_may(const struct vmloop_life *life, u32 step)
{
	/* The other side's step, counted from the start of our generation. */
	u32 theirs = life->theirs - generation_of(life->ours);
	u32 ours = vmloop_life_step(life->ours);

	switch (step) {
	case VMLOOP_LIFE_OPEN:
		return ours == VMLOOP_LIFE_FREE &&
		       theirs == (life->opens ? VMLOOP_LIFE_FREE : VMLOOP_LIFE_OPEN);
	case VMLOOP_LIFE_REFUSED:
		return ours == VMLOOP_LIFE_FREE && theirs == VMLOOP_LIFE_OPEN;
	case VMLOOP_LIFE_CLOSING:
		return ours == VMLOOP_LIFE_OPEN && theirs >= VMLOOP_LIFE_OPEN &&
		       theirs <= VMLOOP_LIFE_CLOSED;
	case VMLOOP_LIFE_CLOSED:
		return ours == VMLOOP_LIFE_OPEN || ours == VMLOOP_LIFE_CLOSING;
	case VMLOOP_LIFE_FREE:
		break;
	default:
		return false;
	}

	/* The other side is done with it, or has never begun. */
	switch (ours) {
	case VMLOOP_LIFE_FREE:
		return theirs == VMLOOP_LIFE_CLOSED;
	case VMLOOP_LIFE_OPEN:
		return theirs == VMLOOP_LIFE_REFUSED;
	case VMLOOP_LIFE_CLOSED:
	case VMLOOP_LIFE_REFUSED:
		return theirs == VMLOOP_LIFE_CLOSED ||
		       theirs == VMLOOP_LIFE_REFUSED || theirs == STEPS;
	default:
		return false;
	}
}

/**
 * vmloop_life_go() - take a step
 * @life: the lane
 * @step: VMLOOP_LIFE_*, which vmloop_life_may() has allowed
 *
 * Return: the word to store (release) when all that belongs to the step is there.
 */
u32 vmloop_life_go(struct vmloop_life *life, u32 step)
{
	u32 generation = generation_of(life->ours);

	if (step == VMLOOP_LIFE_FREE)
		generation += STEPS;
	life->ours = generation | step;
	return life->ours;
}

/**
 * vmloop_life_may_produce() - whether the other side will read what we write
 * @life: the lane
 *
 * Not before the other side has opened the lane as well: until then its
 * positions are those of the generation before.
 *
 * Return: true while it will.
 */
bool vmloop_life_may_produce(const struct vmloop_life *life)
{
	u32 theirs = life->theirs - generation_of(life->ours);

	return vmloop_life_step(life->ours) == VMLOOP_LIFE_OPEN &&
	       (theirs == VMLOOP_LIFE_OPEN || theirs == VMLOOP_LIFE_CLOSING);
}

/**
 * vmloop_life_may_consume() - whether there is, or may come, something to read
 * @life: the lane
 *
 * Also when the other side has closed the lane: it leaves alone what it has
 * produced until we have closed it, too.
 *
 * Return: true until we close the lane.
 */
bool vmloop_life_may_consume(const struct vmloop_life *life)
{
	u32 theirs = life->theirs - generation_of(life->ours);
	u32 ours = vmloop_life_step(life->ours);

	return (ours == VMLOOP_LIFE_OPEN || ours == VMLOOP_LIFE_CLOSING) &&
	       theirs >= VMLOOP_LIFE_OPEN && theirs <= VMLOOP_LIFE_CLOSED;
}

/**
 * vmloop_life_is_final() - whether the other side's positions are final
 * @life: the lane, with a word of the other side's that was loaded (acquire)
 *	before its position is
 *
 * What it has published as read then is the exact account of what it read, and
 * memory that it had read from is free to be used again.
 *
 * Return: true once it has closed the lane, refused it, or let go of it.
 */
bool vmloop_life_is_final(const struct vmloop_life *life)
{
	u32 theirs = life->theirs - generation_of(life->ours);

	return theirs == VMLOOP_LIFE_CLOSED || theirs == VMLOOP_LIFE_REFUSED ||
	       theirs == STEPS;
}
