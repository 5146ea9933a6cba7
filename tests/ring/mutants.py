#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Shows that the ring's tests can fail: breaks the ring in one place at a time
and looks which test notices.

Each mutant is one replacement in ring.c. It must be killed by a test, or be
listed with the reason why nothing can kill it here; a listed one that is
killed after all is a mistake too. Output is TAP.

    tests/ring/mutants.py OUT [TEXT]            all, or those with TEXT in their name
    tests/ring/mutants.py OUT --cpus 1 [TEXT]   those whose test needs one CPU, and --cpus 2 the others

Where two parties must meet in time for a test to notice, it wants two CPUs for
itself: those mutants should not be tried while anything else runs.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
SOURCE = TOP / "kernel/core/ring.c"
INCLUDES = f"-D_GNU_SOURCE -I{TOP}/include -I{TOP}/kernel/core -I{HERE}"

# Two sides must meet within nanoseconds for a missing barrier to show. On idle
# CPUs that happens in the first runs, on busy ones it takes more of them.
SEEDS = 20

# Seconds of silence after which a doorbell is lost. Nothing is wrong with the
# ring itself: there, a machine that stood still for a while is no news.
HANG = 3
HANG_OF_THE_RING = 10


@dataclass
class Mutant:
    """One way to break the ring."""

    name: str
    old: str
    new: str
    noticed_by: str = "unit"
    """The test that should notice. It is tried first; any other will do."""
    equivalent: str = ""
    """Why nothing can notice, if so."""


FULL = "ring_mb();"
NONE = '__asm__ volatile("" ::: "memory");'

MUTANTS = [
    # What a record takes
    Mutant("span: aligned down", "size + VMLOOP_RECORD_ALIGN - 1) &", "size) &"),
    Mutant("span: aligned short by one", "VMLOOP_RECORD_ALIGN - 1) &", "VMLOOP_RECORD_ALIGN - 2) &"),
    Mutant("span: no header", "return (HEADER_SIZE + size +", "return (size +"),
    Mutant("pad where it fits exactly", "span <= to_end ? span", "span < to_end ? span"),
    Mutant("pad not counted", "span : to_end + span", "span : span"),
    Mutant("pad too long by its header", "to_end - HEADER_SIZE,\n", "to_end,\n"),
    Mutant("pad of another type", "VMLOOP_RECORD_PAD, 0);", "1, 0);"),
    Mutant("record written where the pad is", "\t\tposition += to_end;\n", ""),
    Mutant("header: info lost", " | (u64)info << 48", ""),
    Mutant(
        "header: written at the raw position",
        "(tx->data + (position & (tx->size - 1))), word)",
        "(tx->data + position % (2 * tx->size)), word)",
    ),
    # Beginnings
    Mutant("init: any size", "\t       is_power_of_2(size) &&\n", ""),
    Mutant("init: too small a ring", "size >= VMLOOP_RING_MIN &&", "size >= 16 &&"),
    Mutant("init: too large a ring", " && size <= VMLOOP_RING_MAX &&", " &&"),
    Mutant("init: any alignment", "(((unsigned long)data | start) & (grain - 1)) == 0", "1"),
    Mutant("init: any alignment of data", "((unsigned long)data | start)", "(start)"),
    Mutant("init: any alignment of the start", "((unsigned long)data | start)", "((unsigned long)data)"),
    Mutant("init: head stays", "\tring_store_once(&ours->tx_head, start);\n", ""),
    Mutant("init: tail stays", "\tring_store_once(&ours->rx_tail, start);\n", ""),
    Mutant("init: tx_wake stays", "\tring_store_once(&ours->tx_wake, start - 1);\n", ""),
    Mutant("init: rx_wake stays", "\tring_store_once(&ours->rx_wake, start);\n", ""),
    Mutant("init: tx_wake at 0", "&ours->tx_wake, start - 1);", "&ours->tx_wake, (u32)-1);"),
    Mutant("init: head at 0", "&ours->tx_head, start);", "&ours->tx_head, 0);"),
    Mutant("init: tail at 0", "&ours->rx_tail, start);", "&ours->rx_tail, 0);"),
    Mutant("init: rx_wake at 0", "&ours->rx_wake, start);", "&ours->rx_wake, 0);"),
    Mutant("max: not less the header", "return size / 4 - HEADER_SIZE;", "return size / 4;"),
    Mutant("max: half the ring", "return size / 4 - HEADER_SIZE;", "return size / 2 - HEADER_SIZE;"),
    # Doorbells
    Mutant("passed: one late", "(new - wake - 1) < (u32)(new - old)", "(new - wake - 1) <= (u32)(new - old)"),
    Mutant("passed: one early", "(u32)(new - wake - 1)", "(u32)(new - wake)"),
    Mutant("passed: always", "return (u32)(new - wake - 1) < (u32)(new - old);", "return true;"),
    Mutant("passed: compares positions", "(u32)(new - wake - 1) < (u32)(new - old)", "wake >= old && wake < new"),
    Mutant(
        "publish: rings for nothing",
        "if (tx->head == old || unlikely(tx->broken))",
        "if (unlikely(tx->broken))",
        equivalent="no move passes nothing; it only saves a barrier",
    ),
    Mutant("publish: forgets", "\ttx->published = tx->head;\n", ""),
    Mutant("publish: works when broken", "tx->head == old || unlikely(tx->broken)", "tx->head == old"),
    Mutant(
        "give back: rings for nothing",
        "if ((rx->tail == old && rx->move != VMLOOP_RING_BEHIND) || unlikely(rx->broken))",
        "if (unlikely(rx->broken))",
        equivalent="no move passes nothing; it only saves a barrier",
    ),
    Mutant("give back: forgets", "\trx->published = rx->tail;\n", ""),
    Mutant(
        "give back: works when broken",
        " || unlikely(rx->broken))\n\t\treturn false;\n\n\trx->published",
        ")\n\t\treturn false;\n\n\trx->published",
    ),
    Mutant(
        "sleep: asks too late",
        "&rx->ours->rx_wake, rx->tail + bytes - 1);",
        "&rx->ours->rx_wake, rx->tail + bytes + 15);",
    ),
    Mutant("sleep: asks for nothing", "\tring_store_once(&rx->ours->rx_wake, rx->tail + bytes - 1);\n", ""),
    Mutant(
        "sleep: though there is something",
        "return rx_available(rx, bytes) < bytes && !rx->broken;",
        "return !rx->broken;",
    ),
    Mutant(
        "sleep: though broken",
        "return rx_available(rx, bytes) < bytes && !rx->broken;",
        "return rx_available(rx, bytes) < bytes;",
    ),
    Mutant(
        "sleep: at the second byte", "return vmloop_ring_wait_bytes(rx, 1);", "return vmloop_ring_wait_bytes(rx, 2);"
    ),
    Mutant("wait after: asks for nothing", "\tring_store_once(&rx->ours->rx_wake, seen);\n", ""),
    Mutant("wait after: asks too late", "&rx->ours->rx_wake, seen);", "&rx->ours->rx_wake, seen + 4096);"),
    Mutant("wait after: never followed", "return vmloop_ring_seen(rx) == seen;", "return true;"),
    Mutant("seen: where it reads", "return ring_load_once(&rx->theirs->tx_head);", "return rx->tail;"),
    Mutant("space beside: asks for nothing", "\tring_store_once(&tx->ours->tx_wake, head - used - 1);\n", ""),
    Mutant("space beside: asks too late", "tx_wake, head - used - 1);", "tx_wake, head - used);"),
    Mutant("space beside: asks too soon", "tx_wake, head - used - 1);", "tx_wake, head - used - 2);"),
    Mutant("space beside: never room", "head - ring_load_once(&tx->theirs->rx_tail) > used", "true"),
    Mutant("space beside: always room", "head - ring_load_once(&tx->theirs->rx_tail) > used", "false"),
    Mutant("space beside: one byte less", "&tx->theirs->rx_tail) > used;", "&tx->theirs->rx_tail) >= used;"),
    Mutant("wait: asks one too late", "tx->head + want - tx->size - 1);", "tx->head + want - tx->size);"),
    Mutant("wait: asks too late", "tx->head + want - tx->size - 1);", "tx->head + want - tx->size + 15);"),
    Mutant("wait: a bell a record", "\tif (want < tx->size / 4)\n\t\twant = tx->size / 4;\n\treturn", "\treturn"),
    Mutant("wait: for half a ring", "want = tx->size / 4;\n\treturn", "want = tx->size / 2;\n\treturn"),
    Mutant("wait: padding forgotten", "\twant = tx_span(tx, size);\n", "\twant = record_span(size);\n"),
    Mutant(
        "wait: though there is room",
        "return tx_room(tx, want) < want && !tx->broken;",
        "return tx_room(tx, want) <= want && !tx->broken;",
    ),
    Mutant(
        "wait: though broken", "return tx_room(tx, want) < want && !tx->broken;", "return tx_room(tx, want) < want;"
    ),
    Mutant(
        "wait: for what never fits", "\tif (unlikely(size > vmloop_ring_max_record(tx->size)))\n\t\treturn false;\n", ""
    ),
    Mutant("watch: still rung for", "ring_load_once(&rx->tail) - VMLOOP_RECORD_ALIGN", "ring_load_once(&rx->tail)"),
    Mutant("watch: asks for nothing new", "ring_load_once(&rx->tail) - VMLOOP_RECORD_ALIGN", "rx->ours->rx_wake"),
    Mutant("moved: never", "vmloop_ring_seen(rx) != ring_load_once(&rx->tail)", "false"),
    Mutant("moved: always", "vmloop_ring_seen(rx) != ring_load_once(&rx->tail)", "true"),
    # What the consumer may say
    Mutant("tail: anything goes", "tail - tx->tail > tx->published - tx->tail ||", "0 ||"),
    Mutant("tail: past what is published", "> tx->published - tx->tail", "> tx->head - tx->tail"),
    Mutant("tail: all read is a lie", "> tx->published - tx->tail", ">= tx->published - tx->tail"),
    Mutant("tail: unaligned", "tail & (tx->grain - 1))) {\n\t\ttx", "0)) {\n\t\ttx"),
    Mutant("tail: not remembered", "\ttx->tail = tail;\n", ""),
    Mutant("tail: not latched", "\t\ttx->broken = VMLOOP_RING_TAIL;\n", ""),
    Mutant(
        "tail: looks again when broken",
        "\tif (unlikely(tx->broken))\n\t\treturn false;\n\ttail =",
        "\ttail =",
        "fuzz",
    ),
    Mutant(
        "reserve: though broken",
        "\tif (unlikely(tx->broken))\n\t\treturn -EPROTO;\n\tif (unlikely(size",
        "\tif (unlikely(size",
    ),
    Mutant(
        "reserve: any size",
        "size > vmloop_ring_max_record(tx->size)))\n\t\treturn -EMSGSIZE",
        "0))\n\t\treturn -EMSGSIZE",
    ),
    Mutant(
        "reserve: not the largest",
        "size > vmloop_ring_max_record(tx->size)))\n\t\treturn -EMSGSIZE",
        "size >= vmloop_ring_max_record(tx->size)))\n\t\treturn -EMSGSIZE",
    ),
    Mutant("reserve: never quite full", "if (tx_room(tx, span) < span)", "if (tx_room(tx, span) <= span)"),
    Mutant("reserve: overfull", "if (tx_room(tx, span) < span)", "if (tx_room(tx, span) + 16 < span)"),
    Mutant("reserve: broken is full", "return tx->broken ? -EPROTO : -EAGAIN;", "return -EAGAIN;"),
    Mutant("commit: twice", "\ttx->reserved = 0;\n", ""),
    Mutant("drained: does not look", "!tx_look(tx) || tx->head == tx->tail;", "tx->broken;"),
    Mutant("drained: once it has looked", "!tx_look(tx) || tx->head == tx->tail;", "!tx_look(tx) || 1;"),
    Mutant(
        "drained: never when broken", "!tx_look(tx) || tx->head == tx->tail;", "(tx_look(tx), tx->head == tx->tail);"
    ),
    Mutant("wait_read: a record early", "tx_wake, position - 1)", "tx_wake, position - 17)"),
    Mutant("wait_read: a record late", "tx_wake, position - 1)", "tx_wake, position)"),
    Mutant("has_read: does not look", "position))\n\t\ttx_look(tx);\n", "position))\n\t\t;\n"),
    Mutant(
        "has_read: never when broken",
        "!is_before(tx->tail, position) || tx->broken;",
        "!is_before(tx->tail, position);",
    ),
    # Bytes
    Mutant("space: over the end", "return room < to_end ? room : to_end;\n", "return room;\n"),
    Mutant("space: to the end, full or not", "return room < to_end ? room : to_end;\n", "return to_end;\n"),
    Mutant("space: though broken", "\tif (unlikely(tx->broken))\n\t\treturn 0;\n\troom =", "\troom ="),
    Mutant("space: always looks", "\troom = tx_room(tx, want);", "\troom = tx_room(tx, tx->size);"),
    Mutant("space: never looks", "\troom = tx_room(tx, want);", "\troom = tx_room(tx, 0);"),
    Mutant("space: at the start", "\t*at = tx->data + offset;\n\treturn room", "\t*at = tx->data;\n\treturn room"),
    Mutant("add: nothing", "\tring_store_once(&tx->head, tx->head + bytes);\n", "\t(void)tx, (void)bytes;\n"),
    Mutant("wait_space: a bell a byte", "\tif (want < tx->size / 4)\n\t\twant = tx->size / 4;\n\tif", "\tif"),
    Mutant("wait_space: for more than there can be", "\tif (want > tx->size)\n\t\twant = tx->size;\n", ""),
    Mutant(
        "wait_space: never for all of it",
        "\tif (want > tx->size)\n",
        "\tif (want >= tx->size)\n\t\twant = 16;\n\tif (0)\n",
    ),
    Mutant(
        "account: does not look",
        "\tif (tx->head != tx->tail)\n\t\ttx_look(tx);\n\tif (tx->straddles",
        "\tif (tx->straddles",
    ),
    Mutant("account: what is published", "return tx->head - tx->tail;\n}", "return tx->published - tx->tail;\n}"),
    Mutant("piece: from the start", "\t*at = data + offset;\n\treturn bytes", "\t*at = data;\n\treturn bytes"),
    Mutant("piece: over the end", "return bytes < size - offset ? bytes : size - offset;", "return bytes;"),
    Mutant("piece: all to the end", "return bytes < size - offset ? bytes : size - offset;", "return size - offset;"),
    Mutant("unread: skips nothing", "u32 position = tx->tail + skip;", "u32 position = tx->tail;"),
    Mutant("unread: in the new ring alone", "if (tx->straddles && is_before(position, tx->moved_at)) {", "if (0) {"),
    Mutant(
        "unread: in the old ring alone",
        "if (tx->straddles && is_before(position, tx->moved_at)) {",
        "if (tx->straddles) {",
    ),
    Mutant("unread: over the move", "\t\tif (bytes > tx->moved_at - position)\n", "\t\tif (0)\n"),
    Mutant("unread: another old ring", "\t\tsize = tx->old_size;\n", ""),
    Mutant("unread: behind the last", "\tif (skip >= unread)\n\t\treturn 0;\n", ""),
    Mutant("bytes: though broken", "\tif (unlikely(rx->broken))\n\t\treturn 0;\n\tif (want", "\tif (want"),
    Mutant("bytes: sum overflows", "\tif (want > rx->size)\n\t\twant = rx->size;\t", "\t"),
    Mutant("bytes: looks for one", "rx_available(rx, skip + want)", "rx_available(rx, 1)"),
    Mutant("bytes: forgets what is skipped", "rx_available(rx, skip + want)", "rx_available(rx, want)"),
    Mutant("bytes: behind the last", "\tif (available <= skip)\n\t\treturn 0;\n", ""),
    Mutant("bytes: not the last", "\tif (available <= skip)\n", "\tif (available <= skip + 1)\n"),
    Mutant("bytes: skips nothing", "u32 position = rx->tail + skip;", "u32 position = rx->tail;"),
    Mutant("bytes: always looks", "\tif (available >= want)\n\t\treturn available;\n", "", "unit"),
    Mutant("take: nothing", "ring_store_once(&rx->tail, rx->tail + bytes);", "(void)rx, (void)bytes;"),
    # What the producer may say
    Mutant("head: anything goes", "head - rx->head > rx_limit(rx) - rx->head ||", "0 ||"),
    Mutant("head: over what was not given back", "> rx_limit(rx) - rx->head ||", "> rx->size ||"),
    Mutant("head: a full ring is a lie", "> rx_limit(rx) - rx->head ||", ">= rx_limit(rx) - rx->head ||"),
    Mutant(
        "head: back to what is read",
        "head - rx->head > rx_limit(rx) - rx->head",
        "head - rx->tail > rx_limit(rx) - rx->tail",
    ),
    Mutant("head: unaligned", "head & (rx->grain - 1))) {\n\t\trx", "0)) {\n\t\trx"),
    Mutant("head: not remembered", "\trx->head = head;\n", ""),
    Mutant("head: not latched", "\t\trx->broken = VMLOOP_RING_HEAD;\n\t\treturn 0;\n", "\t\treturn 0;\n"),
    Mutant(
        "head: looks again when broken", "\tif (unlikely(rx->broken))\n\t\treturn 0;\n\n\thead =", "\thead =", "fuzz"
    ),
    Mutant("peek: though broken", "\tif (unlikely(rx->broken))\n\t\treturn -EPROTO;\n", ""),
    Mutant("peek: any size", "if (unlikely(record->size > vmloop_ring_max_record(rx->size)))", "if (0)"),
    Mutant("peek: not the largest", "record->size > vmloop_ring_max", "record->size >= vmloop_ring_max"),
    Mutant("peek: over the end", "span > to_end || ", ""),
    Mutant("peek: past the head", " || span > available", ""),
    Mutant("peek: short padding", "span != to_end", "0"),
    Mutant("peek: padding is a record", "record->type != VMLOOP_RECORD_PAD", "1"),
    Mutant("peek: padding forever", "\t\tring_store_once(&rx->tail, rx->tail + span);\n\t}\n", "\t}\n"),
    Mutant("peek: not latched", "broken:\n\trx->broken = fault;\n", "broken:\n"),
    Mutant("peek: too large is beyond the end", "\t\tfault = VMLOOP_RING_SIZE;\n", "\t\tfault = VMLOOP_RING_SPAN;\n"),
    Mutant("peek: beyond the end is too large", "\t\tfault = VMLOOP_RING_SPAN;\n", ""),
    Mutant("peek: padding is a record beyond the end", "\t\tfault = VMLOOP_RING_PAD;\n", ""),
    Mutant("tail: another fault", "tx->broken = VMLOOP_RING_TAIL", "tx->broken = VMLOOP_RING_HEAD"),
    Mutant("head: another fault", "rx->broken = VMLOOP_RING_HEAD", "rx->broken = VMLOOP_RING_TAIL"),
    Mutant("peek: payload at the header", "rx->data + offset + HEADER_SIZE;", "rx->data + offset;"),
    Mutant(
        "peek: size read twice",
        "\trx->taken = span;\n",
        "\trx->taken = span;\n\trecord->size = (u32)ring_load_once((const u64 *)(rx->data + offset));\n",
        "fuzz",
    ),
    Mutant("peek: broken is empty", "return rx->broken ? -EPROTO : 0;", "return 0;"),
    Mutant("release: twice", "rx->tail + rx->taken);\n\trx->taken = 0;\n", "rx->tail + rx->taken);\n"),
    Mutant("peek: what was looked at before", "\trx->taken = 0;\n\tif (unlikely(", "\tif (unlikely("),
    Mutant(
        "ready: broken is not ready",
        "return rx_available(rx, 1) != 0 || rx->broken;",
        "return rx_available(rx, 1) != 0;",
    ),
    # A ring that moves
    Mutant("move: before the last is done with", "\tif (!vmloop_ring_has_moved(tx))\n\t\treturn -EBUSY;\n", ""),
    Mutant(
        "move: before the last is read",
        "\tif (tx->straddles && (!tx_look(tx) || tx->straddles))\n\t\treturn tx->broken ? -EPROTO : -EBUSY;\n",
        "",
    ),
    Mutant("move: does not look", "tx->straddles && (!tx_look(tx) || tx->straddles)", "tx->straddles"),
    Mutant("move: broken is busy", "return tx->broken ? -EPROTO : -EBUSY;", "return -EBUSY;"),
    Mutant("move: any ring", "\tif (!ring_is_good(data, size, tx->grain, tx->head))\n\t\treturn -EINVAL;\n", ""),
    Mutant("move: though broken", "\tif (unlikely(tx->broken))\n\t\treturn -EPROTO;\n\tif (!ring", "\tif (!ring"),
    Mutant("move: not told", "&tx->ours->tx_moves, tx->moves);", "&tx->ours->tx_moves, tx->moves - 1);"),
    Mutant("move: at the tail", "&tx->ours->moved_at, tx->head);", "&tx->ours->moved_at, tx->tail);"),
    Mutant("move: where it was", "&tx->ours->moved_offset, offset);", "&tx->ours->moved_offset, 4096);"),
    Mutant("move: room of both rings", "unlikely(tx->straddles) ? tx->moved_at : tx->tail", "tx->tail"),
    Mutant("move: room of the old ring for ever", "\t\ttx->straddles = false;\n", "\t\t;\n"),
    Mutant("forget: nothing", "\tring_store_once(&tx->old, NULL);\n", "\t(void)tx;\n"),
    Mutant(
        "account: what was forgotten",
        "\t\ttx->broken = VMLOOP_RING_MOVE;\n\treturn tx->head",
        "\t\t;\n\treturn tx->head",
    ),
    Mutant(
        "account: forgotten and read", "if (tx->straddles && !ring_load_once(&tx->old)", "if (!ring_load_once(&tx->old)"
    ),
    Mutant("unread: what was forgotten", "\t\tif (!data)\n\t\t\treturn 0;\n", ""),
    Mutant("init: moves stay", "\tring_store_once(&ours->tx_moves, 0);\n", ""),
    Mutant("init: moves that were seen stay", "\tring_store_once(&ours->rx_moves, 0);\n", ""),
    Mutant("see: two at once", "moves - rx->moves != 1 ||", "0 ||"),
    Mutant("see: any position", "at - rx->head > rx->published + rx->size - rx->head ||", "0 ||"),
    Mutant(
        "see: what was seen before",
        "at - rx->head > rx->published + rx->size - rx->head",
        "at - rx->tail > rx->published + rx->size - rx->tail",
    ),
    Mutant("see: a full ring is a lie", "at - rx->head > rx->published", "at - rx->head >= rx->published"),
    Mutant("see: any offset", "offset & (VMLOOP_SHM_PAGE - 1) || ", ""),
    Mutant("see: behind the end", "offset > rx->area_size ||", "0 ||"),
    Mutant("see: over the end", "size > rx->area_size - offset || ", ""),
    Mutant("see: as large as it likes", "size > rx->most ||", "0 ||"),
    Mutant("see: any ring", "!ring_is_good(rx->area + offset, size, rx->grain, at))", "0)"),
    Mutant("see: not latched", "\t\trx->broken = VMLOOP_RING_MOVE;\n", ""),
    Mutant("see: before the last is done with", "rx->area && rx->move == VMLOOP_RING_STAYS &&", "rx->area &&"),
    Mutant("limit: of the old ring", "return rx->moved_at + rx->next_size;", "return rx->published + rx->size;"),
    Mutant("limit: by what was given back", "return rx->moved_at + rx->size;", "return rx->published + rx->size;"),
    Mutant("cross: too early", "is_before(rx->tail, rx->moved_at))\n\t\treturn;", "0)\n\t\treturn;"),
    Mutant("cross: into a ring of another size", "\tring_store_once(&rx->size, rx->next_size);\n", ""),
    Mutant("cross: twice", "\trx->move = VMLOOP_RING_BEHIND;\n", ""),
    Mutant("peek: over the move", "\t\t    available > rx->moved_at - rx->tail)\n", "\t\t    0)\n"),
    Mutant("peek: in the old ring", "\t\trx_cross(rx);\n", ""),
    Mutant("bytes: over the move", "\t\t} else if (bytes > rx->moved_at - position) {\n", "\t\t} else if (0) {\n"),
    Mutant("bytes: skips within the old ring", "if (!is_before(position, rx->moved_at)) {", "if (0) {"),
    Mutant(
        "bytes: at the move", "if (!is_before(position, rx->moved_at)) {", "if (is_before(rx->moved_at, position)) {"
    ),
    Mutant("give back: before what is read", "\trx_cross(rx);\n\tif ((rx->tail", "\tif ((rx->tail"),
    Mutant("give back: moves are not told", "&rx->ours->rx_moves, ++rx->moves);", "&rx->ours->rx_moves, rx->moves++);"),
    Mutant("give back: moves are told for ever", "\t\trx->move = VMLOOP_RING_STAYS;\n", ""),
    # Order. An x86 reorders only a store with a later load, and does that
    # before a full barrier stops it: `stress` sees the missing ones. It never
    # reorders what acquire and release order, nor may the compiler here, but
    # ThreadSanitizer knows that another machine would.
    Mutant(
        "barrier C of publish", f"{FULL}\t\t\t\t\t\t/* (C) */\n\treturn passed", f"{NONE}\n\treturn passed", "stress"
    ),
    Mutant(
        "barrier C of sleep",
        f"{FULL}\t\t\t\t\t\t/* (C) */\n\treturn rx_available",
        f"{NONE}\n\treturn rx_available",
        "stress",
    ),
    Mutant(
        "barrier D of wait_room",
        f"{FULL}\t\t\t\t\t\t/* (D) */\n\treturn tx_room",
        f"{NONE}\n\treturn tx_room",
        "stress",
    ),
    Mutant(
        "barrier D of wait_read",
        f"{FULL}\t\t\t\t\t\t/* (D) */\n\treturn !vmloop_ring_has_read",
        f"{NONE}\n\treturn !vmloop_ring_has_read",
        "stress",
    ),
    Mutant(
        "barrier D of consume_publish",
        f"{FULL}\t\t\t\t\t\t/* (D) */\n\treturn passed",
        f"{NONE}\n\treturn passed",
        "stress",
    ),
    Mutant(
        "release A of publish", "ring_store_release(&tx->ours->tx_head", "ring_store_once(&tx->ours->tx_head", "tsan"
    ),
    Mutant(
        "acquire A of rx_available",
        "ring_load_acquire(&rx->theirs->tx_head",
        "ring_load_once(&rx->theirs->tx_head",
        "tsan",
    ),
    Mutant(
        "release B of consume_publish",
        "ring_store_release(&rx->ours->rx_tail",
        "ring_store_once(&rx->ours->rx_tail",
        "tsan",
    ),
    Mutant(
        "acquire B of tx_look",
        "ring_load_acquire(&tx->theirs->rx_tail",
        "ring_load_once(&tx->theirs->rx_tail",
        "tsan",
    ),
    Mutant(
        "release E of move",
        "ring_store_release(&tx->ours->tx_moves",
        "ring_store_once(&tx->ours->tx_moves",
        equivalent="no x86 reorders these, and for ThreadSanitizer single words are atomic",
    ),
    Mutant(
        "acquire E of see_move",
        "ring_load_acquire(&rx->theirs->tx_moves",
        "ring_load_once(&rx->theirs->tx_moves",
        equivalent="no x86 reorders these, and for ThreadSanitizer single words are atomic",
    ),
    Mutant(
        "release F of consume_publish",
        "ring_store_release(&rx->ours->rx_moves",
        "ring_store_once(&rx->ours->rx_moves",
        equivalent="the ring goes by (B) as well; only the core uses the memory by this word alone",
    ),
    Mutant(
        "acquire F of has_moved",
        "ring_load_acquire(&tx->theirs->rx_moves",
        "ring_load_once(&tx->theirs->rx_moves",
        equivalent="the ring goes by (B) as well; only the core uses the memory by this word alone",
    ),
]


def attempt(command: str, seconds: int) -> str:
    """Nothing if the command succeeds, else what it said last.

    What never ends is stopped after so many seconds of CPU: on a busy machine
    the clock on the wall would kill mutants that live.
    """
    done = subprocess.run(
        ["bash", "-c", f"ulimit -t {seconds}; exec setarch -R {command}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return ""
    told = [line for line in done.stdout.splitlines() if re.match(r"# |fuzz: |SUMMARY|not ok", line)]
    return told[0].lstrip("# ") if told else f"status {done.returncode}"


def build(command: str) -> None:
    """Build, or stop everything: a mutant that does not compile proves nothing."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"mutants: {command}\n{done.stderr}")


def program(name: str, compiler: str, ring: Path, out: Path, libraries: str = "") -> Path:
    """The test of that name with one ring; what does not depend on the ring is compiled once."""
    test = out / f"{name}.o"
    if not test.exists():
        source = HERE / f"{'stress' if name == 'tsan' else name}.c"
        build(f"{compiler} {INCLUDES} -c {source} -o {test}.new && mv {test}.new {test}")
    build(f"{compiler} {INCLUDES} {ring} {test} -o {out}/{name} {libraries}")
    return out / name


def unit(ring: Path, out: Path, hang: int) -> str:
    """The unit tests, up to the first that fails; all of them take a second."""
    said = attempt(f"{program('unit', 'gcc -O1', ring, out)} --first", 6)
    return said or attempt(f"{program('move', 'gcc -O1', ring, out)} --first", 6)


def fuzz(ring: Path, out: Path, hang: int) -> str:
    """The fuzzer: first what it knows, then for a while what it finds."""
    sanitize = "-fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined"
    fuzzer = program("fuzz", f"clang -g -O1 {sanitize} -include {HERE}/fuzz_os.h", ring, out)
    flags = f"-timeout=120 -max_len=256 -artifact_prefix={out}/"
    corpus = out / "corpus"
    corpus.mkdir(exist_ok=True)
    said = attempt(f"{fuzzer} {flags} -runs=0 {HERE}/corpus", 60)
    return said or attempt(f"{fuzzer} {flags} -max_total_time=20 {corpus} {HERE}/corpus", 60)


def stress(ring: Path, out: Path, hang: int) -> str:
    """Two processes as close together as it gets."""
    command = f"{program('stress', 'gcc -O2', ring, out, '-lpthread')} --ring 4096 --bell flag --deadline {hang}"
    said = attempt(f"{command} --records 1000000", 120)
    for seed in range(SEEDS):
        said = said or attempt(f"{command} --large --records 200000 --seed {seed}", 120)
    return said


def tsan(ring: Path, out: Path, hang: int) -> str:
    """Two threads under ThreadSanitizer."""
    command = program("tsan", "clang -g -O1 -fsanitize=thread", ring, out, "-lpthread")
    options = "--threads --ring 4096 --bell flag --records 50000"
    said = attempt(f"env TSAN_OPTIONS=halt_on_error=1 {command} {options}", 60)
    return said or attempt(f"env TSAN_OPTIONS=halt_on_error=1 {command} {options} --moves --bytes", 60)


TESTS = {"unit": unit, "tsan": tsan, "fuzz": fuzz, "stress": stress}
CPUS = {"unit": 1, "tsan": 2, "fuzz": 1, "stress": 2}
"""How many each has to have for itself."""


def killed_by(ring: Path, out: Path, names: list[str], hang: int = HANG) -> tuple[str, str]:
    """The first test that the ring fails, and what that test said; or nothing."""
    for name in names:
        if said := TESTS[name](ring, out, hang):
            return name, said
    return "", ""


def order(mutant: Mutant) -> list[str]:
    """Which tests to try: first the one that should notice, then all others."""
    if mutant.equivalent:
        # What cannot be seen is not looked for long.
        return ["unit"]
    return [mutant.noticed_by, *(name for name in TESTS if name != mutant.noticed_by)]


def survives(number: int, name: str, said: str) -> bool:
    """Report on a source as it is: whether its tests pass. Else whatever they say about a mutant means nothing."""
    print(f"{'not ok' if said else 'ok'} {number} - {name} itself: {said or 'survives'}", flush=True)
    return not said


def tried(number: int, name: str, mutant: Mutant, source: str, kill: Callable[[str], str]) -> bool:
    """Report on a mutant of a source: whether what became of it is right. `kill` says what has noticed it."""
    if source.count(mutant.old) != 1:
        print(f"# it would change {source.count(mutant.old)} places, not one: {mutant.old!r}")
        print(f"not ok {number} - {name}: does not apply", flush=True)
        return False
    said = kill(source.replace(mutant.old, mutant.new))
    good = bool(said) != bool(mutant.equivalent)
    known = f", known: {mutant.equivalent}" if mutant.equivalent else ""
    what = f"killed by {said}" if said else "SURVIVES"
    print(f"{'ok' if good else 'not ok'} {number} - {name}: {what}{known}", flush=True)
    return good


def main() -> int:
    """Try the mutants that were asked for."""
    parser = argparse.ArgumentParser(description="Break the ring in one place at a time and see which test notices.")
    parser.add_argument("out", type=Path, help="directory to build in")
    parser.add_argument("only", nargs="?", default="", metavar="TEXT", help="only mutants with TEXT in their name")
    parser.add_argument("--cpus", type=int, choices=(1, 2), help="only mutants whose test needs so many")
    arguments = parser.parse_args()
    wanted = [name for name, cpus in CPUS.items() if arguments.cpus in (None, cpus)]

    out = arguments.out.resolve() / (f"mutants-{arguments.cpus}" if arguments.cpus else "mutants")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    source = SOURCE.read_text()
    ring = out / "ring.c"
    chosen = [m for m in MUTANTS if arguments.only in m.name and m.noticed_by in wanted]
    failed = 0
    by: dict[str, int] = {}

    print(f"1..{len(chosen) + 1}", flush=True)

    def kill(broken: str, names: list[str], hang: int = HANG) -> str:
        ring.write_text(broken)
        killer, why = killed_by(ring, out, names, hang)
        by[killer] = by.get(killer, 0) + 1
        return f"{killer} ({why})" if killer else ""

    failed += not survives(1, "the ring", kill(source, wanted, HANG_OF_THE_RING))
    by.clear()
    for number, mutant in enumerate(chosen, 2):
        failed += not tried(number, mutant.name, mutant, source, partial(kill, names=order(mutant)))
    counts = ", ".join(f"{n} by {name}" if name else f"{n} by nothing" for name, n in by.items())
    print(f"# killed: {counts}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
