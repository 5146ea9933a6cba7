// SPDX-License-Identifier: GPL-2.0
/*
 * life.c - two honest sides of one lane, in every order in which they can act:
 * what they can do is what a side must believe, and nothing else.
 *
 * A side acts by what it has last seen of the other. What it sees may be older
 * than what the other has stored meanwhile, so all words since are kept.
 */
#include "../ring/tap.h"
#include "life.h"

#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))
#define STEPS		(1U << VMLOOP_LIFE_BITS)
#define WORDS		8	/* that a side can store before the other looks */
#define STATES_MAX	20000

static const char *const step_name[] = { "free", "open", "closing", "closed", "refused" };

/* One side, and what it has stored that the other has not seen. */
struct side {
	struct vmloop_life life;
	u32 words[WORDS];
	u32 count;
};

struct state {
	struct side side[2];
};

static struct state states[STATES_MAX];
static u32 state_count;

/* What can be seen by a side, by where it is: a bit for each word. */
#define HERE	16	/* the bit of the first word of one's own generation */
static u64 believable[2][STEPS][64];

static u32 generation_of(u32 word)
{
	return word & ~(STEPS - 1);
}

static void store(struct side *side, u32 word)
{
	CHECK(side->count < WORDS);
	side->words[side->count++] = word;
}

/* Words are the same wherever they are counted from. */
static void shift(struct state *state, u32 by)
{
	for (u32 s = 0; s < 2; s++) {
		struct side *side = &state->side[s];

		side->life.ours += by;
		side->life.theirs += by;
		for (u32 i = 0; i < WORDS; i++)
			side->words[i] = i < side->count ? side->words[i] + by : 0;
	}
}

/* Remembers a state that was not met before. */
static void meet(struct state state, u32 begin)
{
	shift(&state, begin - generation_of(state.side[0].life.ours));
	for (u32 i = 0; i < state_count; i++) {
		if (!memcmp(&states[i], &state, sizeof(state)))
			return;
	}
	CHECK(state_count < STATES_MAX);
	states[state_count++] = state;
}

static u64 *believed_by(const struct vmloop_life *life)
{
	u32 theirs = life->theirs - generation_of(life->ours) + HERE;

	CHECK(theirs < 64);
	return &believable[life->opens][vmloop_life_step(life->ours)][theirs];
}

/* The steps that a side may take, each of which leads to a state. */
static void all_steps(const struct state *state, u32 s, u32 begin)
{
	const struct side *other = &state->side[!s];

	for (u32 step = 0; step < STEPS; step++) {
		struct state next = *state;
		struct side *side = &next.side[s];

		if (!vmloop_life_may(&side->life, step))
			continue;
		CHECK(step < COUNT(step_name));
		store(side, vmloop_life_go(&side->life, step));
		CHECK(vmloop_life_step(side->life.ours) == step);
		if (step == VMLOOP_LIFE_OPEN) {
			/*
			 * Our positions are written over: the other has its account
			 * of the last generation.
			 */
			CHECK(generation_of(other->life.ours) == generation_of(side->life.ours));
		}
		if (step == VMLOOP_LIFE_FREE) {
			u32 theirs = vmloop_life_step(other->life.ours);

			/* The other reads nothing of ours any more, nor will it. */
			CHECK(theirs != VMLOOP_LIFE_OPEN && theirs != VMLOOP_LIFE_CLOSING);
		}
		meet(next, begin);
	}
}

/* What a side may see of the other: any of its words that it has not seen. */
static void all_looks(const struct state *state, u32 s, u32 begin)
{
	const struct side *other = &state->side[!s];

	for (u32 i = 0; i < other->count; i++) {
		struct state next = *state;
		struct side *from = &next.side[!s];
		struct vmloop_life *life = &next.side[s].life;
		u32 word = other->words[i];

		*believed_by(life) |= 1ULL << (word - generation_of(life->ours) + HERE);
		CHECK(vmloop_life_see(life, word) == 1);
		CHECK(life->theirs == word && vmloop_life_see(life, word) == 0);
		from->count -= i + 1;
		memmove(from->words, from->words + i + 1, from->count * sizeof(u32));
		meet(next, begin);
	}
}

/* What may be done while a lane is open holds of what the other side really is. */
static void check_promises(const struct state *state, u32 s)
{
	const struct vmloop_life *life = &state->side[s].life;
	u32 theirs = state->side[!s].life.ours - generation_of(life->ours);

	if (vmloop_life_may_produce(life))
		CHECK(theirs >= VMLOOP_LIFE_OPEN && theirs <= VMLOOP_LIFE_CLOSED);
	if (vmloop_life_may_consume(life)) {
		CHECK(theirs >= VMLOOP_LIFE_OPEN && theirs <= VMLOOP_LIFE_CLOSED);
		CHECK(!vmloop_life_may(life, VMLOOP_LIFE_FREE));
	}
	if (vmloop_life_is_final(life))
		CHECK(theirs >= VMLOOP_LIFE_CLOSED && theirs <= STEPS);
}

/* Both sides want to be done, and are, whatever went before. */
static void check_end(struct state state)
{
	for (u32 round = 0; round < 8; round++) {
		for (u32 s = 0; s < 2; s++) {
			struct vmloop_life *life = &state.side[s].life;

			CHECK(vmloop_life_see(life, state.side[!s].life.ours) >= 0);
			if (vmloop_life_may(life, VMLOOP_LIFE_FREE))
				vmloop_life_go(life, VMLOOP_LIFE_FREE);
			else if (vmloop_life_may(life, VMLOOP_LIFE_CLOSED))
				vmloop_life_go(life, VMLOOP_LIFE_CLOSED);
		}
	}
	CHECK(state.side[0].life.ours == state.side[1].life.ours);
	CHECK(vmloop_life_step(state.side[0].life.ours) == VMLOOP_LIFE_FREE);
}

/* All states that two honest sides can be in, from both at the start of @begin. */
static void explore(u32 begin)
{
	struct state first;

	memset(&first, 0, sizeof(first));
	first.side[0].life.opens = true;
	memset(believable, 0, sizeof(believable));
	state_count = 0;
	meet(first, begin);
	for (u32 i = 0; i < state_count; i++) {
		for (u32 s = 0; s < 2; s++) {
			const struct vmloop_life *life = &states[i].side[s].life;

			tap_note("%s at %s, theirs %+d", life->opens ? "opener" : "acceptor",
				 step_name[vmloop_life_step(life->ours)],
				 (int)(life->theirs - generation_of(life->ours)));
			all_steps(&states[i], s, begin);
			all_looks(&states[i], s, begin);
			check_promises(&states[i], s);
		}
		check_end(states[i]);
	}
}

static const u32 begins[] = { 0, STEPS, 0U - STEPS, 1U << 31 };

static void test_honest(void)
{
	u32 found = 0;

	for (size_t i = 0; i < COUNT(begins); i++) {
		explore(begins[i]);
		/* Wherever it is counted from, and more than one path through it. */
		CHECK(i == 0 || state_count == found);
		found = state_count;
	}
	printf("# %u states\n", found);
	CHECK(found > 50);
}

/* A side that has never been there is believed nothing. */
static void check_view(u32 opens, u32 step, u32 theirs, u32 begin)
{
	u64 can = believable[opens][step][theirs];

	for (u32 bit = 0; bit < 64; bit++) {
		struct vmloop_life life = {
			.opens = opens,
			.ours = begin + step,
			.theirs = begin + theirs - HERE,
		};
		struct vmloop_life before = life;
		u32 word = begin + bit - HERE;
		int expected = word == life.theirs ? 0 : can >> bit & 1 ? 1 : -EPROTO;

		tap_note("%s at %s, theirs %+d becomes %+d", opens ? "opener" : "acceptor",
			 step_name[step], (int)theirs - HERE, (int)bit - HERE);
		CHECK(vmloop_life_see(&life, word) == expected);
		CHECK(life.ours == before.ours);
		CHECK(life.theirs == (expected == 1 ? word : before.theirs));
		/* The same far away: half the circle, and a generation that is not ours. */
		for (u32 far = 64; far; far <<= 1) {
			life = before;
			CHECK(vmloop_life_see(&life, word + far) == -EPROTO);
			CHECK(!memcmp(&life, &before, sizeof(life)));
		}
	}
}

/* Each place that a side can be in, and each word: as above, or it is refused. */
static void test_hostile(void)
{
	u32 views = 0;

	for (size_t i = 0; i < COUNT(begins); i++) {
		bool done[2][STEPS][64] = { };

		explore(begins[i]);
		for (u32 n = 0; n < 2 * state_count; n++) {
			const struct vmloop_life *life = &states[n / 2].side[n % 2].life;
			u32 step = vmloop_life_step(life->ours);
			u32 theirs = life->theirs - generation_of(life->ours) + HERE;

			if (done[life->opens][step][theirs])
				continue;
			done[life->opens][step][theirs] = true;
			views++;
			check_view(life->opens, step, theirs, begins[i]);
		}
	}
	printf("# %u views\n", views);
	CHECK(views > 50);
}

/* Steps that nobody has may not be taken. */
static void test_no_such_step(void)
{
	explore(0);
	for (u32 n = 0; n < 2 * state_count; n++) {
		for (u32 step = VMLOOP_LIFE_REFUSED + 1; step < 4 * STEPS; step++)
			CHECK(!vmloop_life_may(&states[n / 2].side[n % 2].life, step));
	}
}

/* What each side may do, by hand: the life of a lane as docs/protocol.md draws it. */
static void test_by_hand(void)
{
	struct vmloop_life a = { .opens = true };
	struct vmloop_life b = { };
	u32 word;

	CHECK(!vmloop_life_may_produce(&a) && !vmloop_life_may_consume(&a));
	/* The opener opens, the other accepts. */
	CHECK(!vmloop_life_may(&b, VMLOOP_LIFE_OPEN));
	CHECK(vmloop_life_may(&a, VMLOOP_LIFE_OPEN));
	word = vmloop_life_go(&a, VMLOOP_LIFE_OPEN);
	CHECK(word == VMLOOP_LIFE_OPEN);
	CHECK(!vmloop_life_may_produce(&a));
	CHECK(vmloop_life_see(&b, word) == 1);
	CHECK(!vmloop_life_may_produce(&b) && !vmloop_life_may_consume(&b));
	CHECK(vmloop_life_may(&b, VMLOOP_LIFE_OPEN) && vmloop_life_may(&b, VMLOOP_LIFE_REFUSED));
	word = vmloop_life_go(&b, VMLOOP_LIFE_OPEN);
	CHECK(vmloop_life_may_produce(&b) && vmloop_life_may_consume(&b));
	CHECK(vmloop_life_see(&a, word) == 1);
	CHECK(vmloop_life_may_produce(&a) && vmloop_life_may_consume(&a));
	/* One stops to produce, and goes on consuming. */
	CHECK(vmloop_life_may(&a, VMLOOP_LIFE_CLOSING));
	word = vmloop_life_go(&a, VMLOOP_LIFE_CLOSING);
	CHECK(!vmloop_life_may_produce(&a) && vmloop_life_may_consume(&a));
	CHECK(vmloop_life_see(&b, word) == 1);
	CHECK(vmloop_life_may_produce(&b) && vmloop_life_may_consume(&b));
	/* The other closes: its positions are final, what it produced can be read. */
	word = vmloop_life_go(&b, VMLOOP_LIFE_CLOSED);
	CHECK(!vmloop_life_may_produce(&b) && !vmloop_life_may_consume(&b));
	CHECK(!vmloop_life_is_final(&b) && !vmloop_life_may(&b, VMLOOP_LIFE_FREE));
	CHECK(vmloop_life_see(&a, word) == 1);
	CHECK(vmloop_life_is_final(&a) && vmloop_life_may_consume(&a));
	CHECK(!vmloop_life_may(&a, VMLOOP_LIFE_FREE));
	word = vmloop_life_go(&a, VMLOOP_LIFE_CLOSED);
	CHECK(vmloop_life_may(&a, VMLOOP_LIFE_FREE));
	CHECK(vmloop_life_see(&b, word) == 1 && vmloop_life_is_final(&b));
	/* The next generation begins when both have let go of this one. */
	word = vmloop_life_go(&a, VMLOOP_LIFE_FREE);
	CHECK(word == STEPS);
	CHECK(!vmloop_life_may(&a, VMLOOP_LIFE_OPEN));
	CHECK(vmloop_life_see(&b, word) == 1 && vmloop_life_is_final(&b));
	CHECK(vmloop_life_may(&b, VMLOOP_LIFE_FREE));
	word = vmloop_life_go(&b, VMLOOP_LIFE_FREE);
	CHECK(vmloop_life_see(&a, word) == 1 && !vmloop_life_is_final(&a));
	CHECK(vmloop_life_may(&a, VMLOOP_LIFE_OPEN));
	/* And is refused. */
	CHECK(vmloop_life_see(&b, vmloop_life_go(&a, VMLOOP_LIFE_OPEN)) == 1);
	word = vmloop_life_go(&b, VMLOOP_LIFE_REFUSED);
	CHECK(word == STEPS + VMLOOP_LIFE_REFUSED && !vmloop_life_may(&b, VMLOOP_LIFE_FREE));
	CHECK(vmloop_life_see(&a, word) == 1);
	CHECK(!vmloop_life_may_produce(&a) && !vmloop_life_may_consume(&a));
	CHECK(vmloop_life_is_final(&a) && vmloop_life_may(&a, VMLOOP_LIFE_FREE));
}

static void test_start(void)
{
	static const u32 rows[][2] = {
		{ 0, 0 }, { 1, 16 }, { 15, 16 }, { 16, 16 }, { 17, 32 }, { 0xfffffff0, 0xfffffff0 },
		{ 0xfffffff1, 0 }, { 0xffffffff, 0 },
	};

	for (size_t i = 0; i < COUNT(rows); i++)
		CHECK(vmloop_life_start(rows[i][0]) == rows[i][1]);
}

static const struct tap_test tests[] = {
	{ "life: two honest sides, in every order", test_honest },
	{ "life: a hostile side is believed what an honest one can say", test_hostile },
	{ "life: no such step", test_no_such_step },
	{ "life: by hand", test_by_hand },
	{ "life: where a generation begins", test_start },
};

int main(int argc, char **argv)
{
	return tap_run(tests, COUNT(tests), argc > 1 ? argv[1] : NULL);
}
