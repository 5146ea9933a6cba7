# SPDX-License-Identifier: GPL-2.0
"""The specification of netlink and everything that counts or reads counters name them alike, in one order."""

import re
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]


def between(path: str, begin: str, end: str) -> str:
    """Text of a file after ``begin`` and before the next ``end``."""
    _, _, rest = (TOP / path).read_text().partition(begin)
    found, mark, _ = rest.partition(end)
    assert mark, f"{path} has no {begin!r} with {end!r} after it"
    return found


def test_counters_have_one_order():
    """A counter's place in each list is its number on the wire."""
    specified = re.findall(
        r"name: ([a-z-]+), type: u64", between("docs/netlink/vmloop.yaml", "name: stats\n", "operations:")
    )
    enum = between("kernel/core/vmloop.h", "enum vmloop_counter {", "VMLOOP_COUNTERS,")
    counted = [name.lower().replace("_", "-") for name in re.findall(r"^\tVMLOOP_(\w+),", enum, re.M)]
    command = re.findall(r'"([a-z-]+)"', between("host/vmloop/src/guest/netlink.rs", "COUNTERS: [&str;", "];"))
    tool = re.findall(r'"(\w+)", U64', between("tests/guest/tools/control.c", "stats_fields[] = {", "};"))
    assert len(specified) > 16
    assert counted == specified
    assert command == specified
    assert [name.replace("_", "-") for name in tool] == specified
