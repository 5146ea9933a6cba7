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


def test_words_of_streams_have_one_order():
    """What vmloop_tcp says of a connection: specification, module and command number alike."""
    path = "docs/netlink/vmloop_tcp.yaml"
    lists = {
        ("name: state\n", "    name: why"): (
            "STATES: [&str;",
            "kernel/paths/tcp/list.c",
            "\tSTATE_TCP,",
            "};",
            "STATE_",
        ),
        ("name: why\n", "attribute-sets:"): (
            "WHY: [&str;",
            "kernel/paths/tcp/stream.h",
            "enum stream_why {",
            "STREAM_WHY_NONE",
            "STREAM_WHY_",
        ),
    }
    for (begin, end), (command, source, first, last, prefix) in lists.items():
        specified = re.findall(r"- name: ([a-z-]+)\n", between(path, begin, end))
        words = re.findall(rf"\b{prefix}(\w+),", first + between(source, first, last))
        assert [word.lower().replace("_", "-") for word in words] == specified
        assert re.findall(r'"([a-z-]+)"', between("host/vmloop/src/guest/streams.rs", command, "];")) == specified
        assert len(specified) > 4
    attributes = re.findall(r"\{name: ([a-z-]+), type", between(path, "name: stream\n", "    name: rule\n"))
    numbered = re.findall(r"^\tSTREAM_(\w+),", between("kernel/paths/tcp/list.c", "\tSTREAM_UNSPEC,\n", "};"), re.M)
    assert [word.lower().replace("_", "-") for word in numbered] == attributes


def test_words_of_rules_have_one_order():
    """What a rule of the stream path has: specification, module and command number alike; and so do commands."""
    path = "docs/netlink/vmloop_tcp.yaml"
    attributes = re.findall(r"\{name: ([a-z-]+), type", between(path, "    name: rule\n    doc", "operations:"))
    numbered = re.findall(r"^\tRULE_(\w+),", between("kernel/paths/tcp/rules.c", "\tRULE_UNSPEC,\n", "};"), re.M)
    assert [word.lower().replace("_", "-") for word in numbered] == attributes
    command = re.findall(
        r"^const (\w+): u16 = (\d+);", between("host/vmloop/src/guest/rules.rs", "const RULE_REMOVE", "///"), re.M
    )
    assert [(name.lower().replace("_", "-"), int(number)) for name, number in command] == [
        (name, index + 1) for index, name in enumerate(attributes)
    ]
    operations = re.findall(r"name: (rule-[a-z]+)", (TOP / path).read_text())
    commands = between("kernel/paths/tcp/stream.h", "STREAM_CMD_GET,", "};")
    module = re.findall(r"^\tSTREAM_CMD_(RULE_\w+),", commands, re.M)
    assert [word.lower().replace("_", "-") for word in module] == operations
