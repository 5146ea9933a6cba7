#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Shows that the tests of the lane table's parts can fail, as tests/ring/mutants.py does for the ring.

    tests/lanes/mutants.py OUT [TEXT]    all, or those with TEXT in their name

Each mutant is killed by the test of its own file, which takes less than a second.
"""

import argparse
import shutil
import sys
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
sys.path.insert(0, str(TOP))

from tests.ring.mutants import FULL, NONE, Mutant, attempt, build, survives, tried  # noqa: E402

INCLUDES = f"-D_GNU_SOURCE -I{TOP}/include -I{TOP}/kernel/core"


def life(name: str, old: str, new: str) -> Mutant:
    """A mutant of life.c, where ~ stands for what all its constants begin with."""
    return Mutant(name, old.replace("~", "VMLOOP_LIFE_"), new.replace("~", "VMLOOP_LIFE_"))


def without(who: str, step: str, row: str, word: str) -> Mutant:
    """The row of a table without one of its words."""
    start = f"\t[~{step}] = {row}"
    words = row.split(" | ")
    less = " | ".join(other for other in words if other != word) or "0"
    return life(f"{who} at {step}: {word} is not believed", start, f"\t[~{step}] = {less}")


LIFE = [
    life("see: anything goes", " || to >= 2 * STEPS || !(may & 1U << to))", ")"),
    life("see: what no honest side can say", " || !(may & 1U << to))", ")"),
    Mutant(
        "see: another generation",
        " || to >= 2 * STEPS || ",
        " || ",
        equivalent="a shift by more than a word has bits, which this CPU takes modulo 32: only the sanitizer minds",
    ),
    life("see: backwards", "word - life->theirs >= 2 * STEPS || ", ""),
    life("see: by the other's rules", "(life->opens ? accepting : opening)", "(life->opens ? opening : accepting)"),
    life("see: refused after it was opened", "if (to == ~REFUSED &&", "if (0 &&"),
    life(
        "see: never refused",
        "if (to == ~REFUSED &&\n\t    vmloop_life_step(life->theirs) != ~FREE)",
        "if (to == ~REFUSED)",
    ),
    life("see: not remembered", "\tlife->theirs = word;\n", ""),
    life("see: no change is a fault", "\tif (word == life->theirs)\n\t\treturn 0;\n", ""),
    life("see: moved is the same", "\tlife->theirs = word;\n\treturn 1;", "\tlife->theirs = word;\n\treturn 0;"),
    life("accepting at FREE: FREE is not believed", "[~FREE] = NOW(FREE),", "[~FREE] = 0,"),
    life("accepting at FREE: opens by itself", "[~FREE] = NOW(FREE),", "[~FREE] = NOW(FREE) | NOW(OPEN),"),
    life("accepting at OPEN: lets go", "| NOW(REFUSED),\n\t[~CLOSING]", "| NOW(REFUSED) | NEXT(FREE),\n\t[~CLOSING]"),
    without("accepting", "OPEN", "NOW(OPEN) | NOW(CLOSING) | NOW(CLOSED) | NOW(REFUSED)", "NOW(OPEN)"),
    without("accepting", "OPEN", "NOW(OPEN) | NOW(CLOSING) | NOW(CLOSED) | NOW(REFUSED)", "NOW(CLOSING)"),
    without("accepting", "OPEN", "NOW(OPEN) | NOW(CLOSING) | NOW(CLOSED) | NOW(REFUSED)", "NOW(CLOSED)"),
    without("accepting", "OPEN", "NOW(OPEN) | NOW(CLOSING) | NOW(CLOSED) | NOW(REFUSED)", "NOW(REFUSED)"),
    without("accepting", "CLOSED", "NOW(OPEN) | NOW(CLOSING) | NOW(CLOSED)", "NOW(OPEN)"),
    without("accepting", "CLOSED", "NOW(OPEN) | NOW(CLOSING) | NOW(CLOSED)", "NOW(CLOSING)"),
    life("accepting at CLOSED: REFUSED is not believed", "NOW(REFUSED) | NEXT(FREE),\n};", "NEXT(FREE),\n};"),
    life("accepting at CLOSED: FREE is not believed", "NOW(REFUSED) | NEXT(FREE),\n};", "NOW(REFUSED),\n};"),
    without("opening", "FREE", "NOW(FREE) | NOW(OPEN) | NOW(CLOSED)", "NOW(FREE)"),
    without("opening", "FREE", "NOW(FREE) | NOW(OPEN) | NOW(CLOSED)", "NOW(OPEN)"),
    without("opening", "FREE", "NOW(FREE) | NOW(OPEN) | NOW(CLOSED)", "NOW(CLOSED)"),
    life(
        "opening at FREE: closes what nobody accepted",
        "NOW(OPEN) | NOW(CLOSED),",
        "NOW(OPEN) | NOW(CLOSING) | NOW(CLOSED),",
    ),
    life(
        "opening at OPEN: lets go",
        "[~OPEN] = NOW(CLOSING) | NOW(CLOSED),",
        "[~OPEN] = NOW(CLOSING) | NOW(CLOSED) | NEXT(FREE),",
    ),
    without("opening", "OPEN", "NOW(CLOSING) | NOW(CLOSED)", "NOW(CLOSING)"),
    without("opening", "CLOSED", "NOW(CLOSING) | NOW(CLOSED) | NEXT(FREE)", "NOW(CLOSING)"),
    without("opening", "CLOSED", "NOW(CLOSING) | NOW(CLOSED) | NEXT(FREE)", "NOW(CLOSED)"),
    without("opening", "CLOSED", "NOW(CLOSING) | NOW(CLOSED) | NEXT(FREE)", "NEXT(FREE)"),
    without("opening", "REFUSED", "NOW(CLOSED) | NEXT(FREE)", "NOW(CLOSED)"),
    without("opening", "REFUSED", "NOW(CLOSED) | NEXT(FREE)", "NEXT(FREE)"),
    life("may: open though it is open", "return ours == ~FREE &&\n\t\t       theirs == (", "return theirs == ("),
    life("may: open a lane of the other's", "(life->opens ? ~FREE : ~OPEN)", "~FREE"),
    life("may: open before the other is done", "theirs == (life->opens ? ~FREE : ~OPEN)", "true"),
    life("may: refuse what is open", "return ours == ~FREE && theirs == ~OPEN;", "return theirs == ~OPEN;"),
    life("may: refuse what is not opened", "return ours == ~FREE && theirs == ~OPEN;", "return ours == ~FREE;"),
    life("may: close before it is accepted", "ours == ~OPEN && theirs >= ~OPEN &&", "ours == ~OPEN &&"),
    life("may: close what is refused", "&&\n\t\t       theirs <= ~CLOSED;\n\tcase", ";\n\tcase"),
    life("may: close twice", "return ours == ~OPEN && theirs >=", "return theirs >="),
    life("may: closed from closing only", "return ours == ~OPEN || ours == ~CLOSING;", "return ours == ~CLOSING;"),
    life("may: closed from open only", "return ours == ~OPEN || ours == ~CLOSING;", "return ours == ~OPEN;"),
    life("may: closed from anywhere", "return ours == ~OPEN || ours == ~CLOSING;", "return true;"),
    life("may: any step", "\tdefault:\n\t\treturn false;\n\t}\n\n\t/*", "\tdefault:\n\t\treturn true;\n\t}\n\n\t/*"),
    life(
        "may: free without a withdrawal",
        "\t\treturn theirs == ~CLOSED;\n\tcase ~OPEN:",
        "\t\treturn true;\n\tcase ~OPEN:",
    ),
    life(
        "may: no withdrawal is seen", "\t\treturn theirs == ~CLOSED;\n\tcase ~OPEN:", "\t\treturn false;\n\tcase ~OPEN:"
    ),
    life("may: free while it is open", "\t\treturn theirs == ~REFUSED;\n", "\t\treturn true;\n"),
    life("may: free not when it was refused", "\t\treturn theirs == ~REFUSED;\n", "\t\treturn false;\n"),
    life("may: free before the other has closed", "\t\treturn theirs == ~CLOSED ||", "\t\treturn true ||"),
    life("may: free not behind the other's free", "~REFUSED || theirs == STEPS;\n\tdefault", "~REFUSED;\n\tdefault"),
    life(
        "may: free not when closed and refused", "theirs == ~REFUSED || theirs == STEPS;\n\td", "theirs == STEPS;\n\td"
    ),
    life("go: the same generation", "\t\tgeneration += STEPS;\n", "\t\t;\n"),
    life("go: another generation always", "\tif (step == ~FREE)\n", ""),
    life(
        "go: not remembered", "\tlife->ours = generation | step;\n\treturn life->ours;", "\treturn generation | step;"
    ),
    life("produce: before it is accepted", "== ~OPEN &&\n\t       (theirs ==", "== ~OPEN || (theirs =="),
    life("produce: not to one that is closing", "(theirs == ~OPEN || theirs == ~CLOSING);", "theirs == ~OPEN;"),
    life("consume: not while closing", "return (ours == ~OPEN || ours == ~CLOSING) &&", "return ours == ~OPEN &&"),
    life("consume: what is closed", "return (ours == ~OPEN || ours == ~CLOSING) &&\n\t       theirs", "return theirs"),
    life("consume: not what a closed side left", "theirs <= ~CLOSED;\n}", "theirs < ~CLOSED;\n}"),
    life(
        "final: while it still reads",
        "return theirs == ~CLOSED || theirs == ~REFUSED ||\n\t       t",
        "return theirs >= ~CLOSING || t",
    ),
    life("final: not when let go of", "theirs == ~REFUSED ||\n\t       theirs == STEPS;\n}", "theirs == ~REFUSED;\n}"),
    life(
        "final: not when closed",
        "return theirs == ~CLOSED || theirs == ~REFUSED ||\n\t       t",
        "return theirs == ~REFUSED || t",
    ),
    life(
        "final: not when refused",
        "return theirs == ~CLOSED || theirs == ~REFUSED ||\n\t       t",
        "return theirs == ~CLOSED || t",
    ),
]

SAME_BIT = "\tif ((*told ^ ring_load_once(taken)) & bit)\n\t\treturn false;\n"
LANES = "take(&rx->lanes[group], &rx->ours->lanes_taken[group],\n\t\t\t&rx->theirs->lanes[group]);"
E_OF_TELL = "\t\t\t\t\t\t/* (E) */\n\tif"
F_OF_TELL = "\t\t\t\t\t\t/* (F) */\n\treturn differ"
F_OF_GROUPS = "\t\t\t\t\t\t/* (F) */\n\treturn news"
E_OF_LANES = "\t\t\t\t\t\t/* (E) */\n\treturn news"

NEWS = [
    Mutant("tell: flips always", SAME_BIT, ""),
    Mutant("tell: flips never", "\t*told ^= bit;\n", ""),
    Mutant("tell: not shown", "\tring_store_once(ours, *told);\n", ""),
    Mutant("tell: other lanes are news as well", "ring_load_once(taken)) & bit)", "ring_load_once(taken)))"),
    Mutant("tell: every time a doorbell", "\t\treturn false;\n\tring_mb();", "\t\treturn true;\n\tring_mb();"),
    Mutant("tell: the first lane of the group", "1ULL << lane % VMLOOP_NEWS_BITS", "1ULL"),
    Mutant("tell: the first group", "\t\t      1ULL << group);", "\t\t      1ULL);"),
    Mutant("tell: reads back", "\t*told ^= bit;\n", "\t*told = *ours ^ bit;\n"),
    Mutant("take: forgets", "\t\t*taken = word;\n", ""),
    Mutant("take: not shown", "\t\tring_store_once(ours, word);\n", ""),
    Mutant("take: all that is told", "word ^ *taken;", "word;"),
    Mutant("take: nothing", "word ^ *taken;", "0;"),
    Mutant("take: reads back", "word ^ *taken;", "word ^ *ours;"),
    Mutant("take: of the first group", LANES, "take(rx->lanes, rx->ours->lanes_taken, rx->theirs->lanes);"),
    Mutant("barrier E of tell", FULL + E_OF_TELL, NONE + E_OF_TELL, "threads"),
    Mutant("barrier F of tell", FULL + F_OF_TELL, NONE + F_OF_TELL, "threads"),
    Mutant("barrier F of groups", FULL + F_OF_GROUPS, NONE + F_OF_GROUPS, "threads"),
    Mutant("barrier E of lanes", FULL + E_OF_LANES, NONE + E_OF_LANES, "threads"),
]

ALONE = "if (left == order && right == order)\n"
DESCEND = "if (left <= order || (right > order && right < left))"

AREA = [
    Mutant("init: none", "if (!pages || pages", "if (pages"),
    Mutant("init: too many", " || pages > VMLOOP_AREA_MAX)", ")"),
    Mutant("init: not the largest", "pages > VMLOOP_AREA_MAX", "pages >= VMLOOP_AREA_MAX"),
    Mutant("init: pages that there are not", "= n < pages;", "= 1;"),
    Mutant("init: a page more", "= n < pages;", "= n <= pages;"),
    Mutant("init: half of each level", "n < 2U << (order - level)", "n < 3U << (order - level) >> 1"),
    Mutant("nodes: too few", "return 2U << order_of(pages);", "return 1U << order_of(pages);"),
    Mutant("order: rounded down", "while (1U << order < pages)", "while (2U << order <= pages)"),
    Mutant("take: any size", "if (size < VMLOOP_SHM_PAGE || !is_power_of_2(size))", "if (size < VMLOOP_SHM_PAGE)"),
    Mutant("take: less than a page", "if (size < VMLOOP_SHM_PAGE || !", "if (!"),
    Mutant("take: whatever is aside", "\tif (area->aside > area->aside_most)\n\t\treturn -EBUSY;\n", ""),
    Mutant(
        "take: not when all is aside that may be", "area->aside > area->aside_most", "area->aside >= area->aside_most"
    ),
    Mutant("take: more than there is", "if (largest(area, 1) <= order)", "if (largest(area, 1) < order)"),
    Mutant("take: not the last", "if (largest(area, 1) <= order)", "if (largest(area, 1) <= order + 1)"),
    Mutant("take: leftmost", DESCEND, "if (left <= order)"),
    Mutant("take: rightmost", DESCEND, "if (right > order)"),
    Mutant("take: from the largest", "right < left))", "right > left))"),
    Mutant("take: too small a left", "if (left <= order || ", "if (left < order || "),
    Mutant("take: too small a right", "right > order &&", "right >= order &&"),
    Mutant("largest: twice as much", "1U << (largest(area, 1) - 1)", "1U << largest(area, 1)"),
    Mutant("largest: one of nothing", "return largest(area, 1) ? 1U", "return true ? 1U"),
    Mutant("take: not counted", "\tarea->left -= 1U << order;\n", ""),
    Mutant("give: not counted", "\tarea->left += 1U << order;\n", ""),
    Mutant("init: nothing is free", "\t\t.left = pages,\n", ""),
    Mutant("take: not marked", "\tarea->node[node] = TAKEN;\n", ""),
    Mutant("take: not told above", "* VMLOOP_SHM_PAGE;\n\tupdate_above(area, node, order);\n", "* VMLOOP_SHM_PAGE;\n"),
    Mutant(
        "take: another place", "((node << order) - (1U << area->order))", "((node << order) % (1U << area->order) / 2)"
    ),
    Mutant("largest: what was taken is free", "& (TAKEN | ASIDE) ? 0 : area", "& 0 ? 0 : area"),
    Mutant(
        "largest: what is aside is free", "return area->node[node] & (TAKEN | ASIDE)", "return area->node[node] & TAKEN"
    ),
    Mutant("above: two are never one", ALONE, "if (0)\n"),
    Mutant("above: two are one when the left is free", ALONE, "if (left == order)\n"),
    Mutant("above: two are one when they are alike", ALONE, "if (left == right)\n"),
    Mutant("above: the smaller", "left > right ? left : right;", "left < right ? left : right;"),
    Mutant("init: not the root", "level <= order; level++", "level < order; level++"),
    Mutant("above: one level", "while (node > 1) {", "if (node > 1) {"),
    Mutant("find: any offset", "offset % VMLOOP_SHM_PAGE || ", ""),
    Mutant("find: outside", " || node >> area->order != 1)", ")"),
    Mutant("find: in the middle", "\t\tif (node & 1)\n", "\t\tif (node == 1)\n"),
    Mutant(
        "find: not what is aside",
        "while (!(area->node[node] & (TAKEN | ASIDE)))",
        "while (!(area->node[node] & TAKEN))",
    ),
    Mutant("find: always a page", "\t\t++*order;\n", ""),
    Mutant("aside: twice", "if (!node || area->node[node] == ASIDE)", "if (!node)"),
    Mutant("aside: nothing", "\tarea->node[node] = ASIDE;\n", ""),
    Mutant("aside: not counted", "\tarea->aside += 1U << order;\n", ""),
    Mutant("aside: counted in blocks", "area->aside += 1U << order;", "area->aside += 1;"),
    Mutant("give: what was not taken", "\tif (!node)\n\t\treturn -EINVAL;\n\tif (area", "\tif (area"),
    Mutant("give: still aside", "\t\tarea->aside -= 1U << order;\n", "\t\t;\n"),
    Mutant("give: never was aside", "\tif (area->node[node] == ASIDE)\n", ""),
    Mutant("give: half of it", "area->node[node] = order + 1;\n\tupdate", "area->node[node] = order;\n\tupdate"),
    Mutant("give: not told above", "= order + 1;\n\tupdate_above(area, node, order);\n", "= order + 1;\n"),
]

OWNER = [
    Mutant("whose: what is nobody's", "\tif (one->kind == VMLOOP_OWNER_NONE)\n\t\treturn false;\n", ""),
    Mutant("whose: of any kind", "owners[i].kind == one->kind && ", ""),
    Mutant("whose: any of that kind", " && owners[i].id == one->id)", ")"),
    Mutant("whose: half of the number", "owners[i].id == one->id", "(u32)owners[i].id == (u32)one->id"),
    Mutant("whose: the first one's", "for (i = 0; i < VMLOOP_OWNERS; i++)\n\t\tif (owners", "i = 0;\n\t\tif (owners"),
    Mutant("add: for everybody", "if (is_one_of(&sum->owners[i], owners))", "if (owners)"),
    Mutant("add: for the first", "for (i = 0; i < VMLOOP_OWNERS; i++)\n\t\tif (is", "i = 0;\n\t\tif (is"),
    Mutant("add: the last one alone", "sum->bytes[i] += size;", "sum->bytes[i] = size;"),
    Mutant("left: of what is free", "(bytes + unused) / VMLOOP", "unused / VMLOOP"),
    Mutant("left: in bytes", "pages * share / 100 * VMLOOP_SHM_PAGE", "pages * VMLOOP_SHM_PAGE * share / 100"),
    Mutant("left: rounded down first", "pages * share / 100", "pages / 100 * share"),
    Mutant("left: half of a share is none", "\tif (limit < VMLOOP_OWNER_LEAST)\n", "\tif (0)\n"),
    Mutant("left: never more than the least", "if (limit < VMLOOP_OWNER_LEAST)", "if (limit > VMLOOP_OWNER_LEAST)"),
    Mutant("left: less than nothing", "return limit > bytes ? limit - bytes : 0;", "return limit - bytes;"),
    Mutant("left: as if one had nothing", "? limit - bytes : 0", "? limit : 0"),
    Mutant("left: nobody has a share", "\t\tif (sum->owners[i].kind == VMLOOP_OWNER_NONE)\n\t\t\tcontinue;\n", ""),
    Mutant("left: of the last", "if (left < least)", "if (left)"),
    Mutant("left: of who has most", "if (left < least)", "if (least == ~0U || left > least)"),
    Mutant("left: the first one's", "for (i = 0; i < VMLOOP_OWNERS; i++) {", "for (i = 0; i < 1; i++) {"),
]

FILES = {"area": AREA, "life": LIFE, "news": NEWS, "owner": OWNER}


def killed_by(source: str, name: str, noticed_by: str, out: Path) -> str:
    """What the test of that file says of a source; nothing if it passes."""
    broken = out / f"{name}.c"
    broken.write_text(source)
    build(f"gcc -O1 -w {INCLUDES} {HERE}/{name}.c {broken} -o {out}/{name} -lpthread")
    if noticed_by == "threads":
        return attempt(f"{out}/{name} --threads", 60)
    return attempt(f"{out}/{name} --first", 20)


def main() -> int:
    """Try the mutants that were asked for."""
    parser = argparse.ArgumentParser(
        description="Break a file in one place at a time and see whether its test notices."
    )
    parser.add_argument("out", type=Path, help="directory to build in")
    parser.add_argument("only", nargs="?", default="", metavar="TEXT", help="only mutants with TEXT in their name")
    arguments = parser.parse_args()
    out = arguments.out.resolve() / "mutants"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)

    chosen = [(name, mutant) for name, mutants in FILES.items() for mutant in mutants if arguments.only in mutant.name]
    failed = 0
    print(f"1..{len(chosen) + len(FILES)}", flush=True)
    sources = {name: (TOP / f"kernel/core/{name}.c").read_text() for name in FILES}
    for number, (name, source) in enumerate(sources.items(), 1):
        failed += not survives(number, f"{name}.c", killed_by(source, name, "unit", out))
    for number, (name, mutant) in enumerate(chosen, len(FILES) + 1):
        kill = partial(killed_by, name=name, noticed_by=mutant.noticed_by, out=out)
        failed += not tried(number, f"{name}: {mutant.name}", mutant, sources[name], kill)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
