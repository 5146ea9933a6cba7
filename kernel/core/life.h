/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * life.h - the life of one lane: opened by one side, accepted or refused by the
 * other, closed by either, and free to be opened again. docs/protocol.md,
 * section 9, has it as a diagram. lane.c has what belongs to each step.
 *
 * Pure, as ring.h. It knows two words, one of each side (vmloop_shm_entry.life),
 * and nothing of what lies in between: the caller loads the other side's word
 * (acquire) and passes it to vmloop_life_see(); it asks vmloop_life_may() whether
 * a step is its to take, does what belongs to the step, and stores what
 * vmloop_life_go() returns (release). Both need the same lock.
 *
 * The other side's word is hostile. An honest side can only be where our own
 * word has let it come, and only moves forward: whatever else is there has broken
 * the protocol. tests/lanes/life.c computes from what two honest sides can do
 * that neither more nor less than that is believed.
 */
#ifndef VMLOOP_LIFE_H
#define VMLOOP_LIFE_H

#include "ring_os.h"
#include "vmloop_lanes.h"

/**
 * struct vmloop_life - how one lane stands
 * @opens: whether this side opens the lane; the other one accepts or refuses it
 * @ours: our word, as last stored
 * @theirs: the other side's, as last seen and believed
 *
 * All zero at first, but @opens; so is a table that nobody has written to.
 */
struct vmloop_life {
	bool opens;
	u32 ours;
	u32 theirs;
};

/**
 * vmloop_life_step() - the step that a word says
 * @word: a life
 *
 * Return: VMLOOP_LIFE_*, or a number that means nothing.
 */
static inline u32 vmloop_life_step(u32 word)
{
	return word & ((1U << VMLOOP_LIFE_BITS) - 1);
}

/**
 * vmloop_life_start() - where a generation begins
 * @end: the position at which the one before ended
 *
 * A generation begins where the last one ended, whatever that carried.
 *
 * Return: @end, or the next multiple of VMLOOP_RECORD_ALIGN behind it.
 */
static inline u32 vmloop_life_start(u32 end)
{
	return (end + VMLOOP_RECORD_ALIGN - 1) & ~(VMLOOP_RECORD_ALIGN - 1U);
}

int vmloop_life_see(struct vmloop_life *life, u32 word);
bool vmloop_life_may(const struct vmloop_life *life, u32 step);
u32 vmloop_life_go(struct vmloop_life *life, u32 step);

bool vmloop_life_may_produce(const struct vmloop_life *life);
bool vmloop_life_may_consume(const struct vmloop_life *life);
bool vmloop_life_is_final(const struct vmloop_life *life);

#endif /* VMLOOP_LIFE_H */
