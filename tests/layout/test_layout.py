# SPDX-License-Identifier: GPL-2.0
"""C, the golden file, Rust and the protocol's text agree about the layout."""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.layout.layout import GOLDEN_OF, HEADER, LANES, TOP, LayoutError, check_no_holes, compiled_layout

PROTOCOL = TOP / "docs/protocol.md"
RUST = "cargo run -q -p vmloop-abi --bin layout"

# Those whose offsets the protocol's text must give, every one of them.
DESCRIBED = {"vmloop_shm_header", "vmloop_shm_side", "vmloop_shm_lane", "vmloop_shm_entry", "vmloop_shm_news"}


def difference(ours: list[str], theirs: list[str], ours_name: str, theirs_name: str) -> str:
    """What to show of two layouts that differ; nothing if they do not."""
    return "\n".join(difflib.unified_diff(ours, theirs, ours_name, theirs_name, lineterm="", n=1))


def golden(header: Path = HEADER) -> list[str]:
    return GOLDEN_OF[header].read_text().splitlines()


def all_golden() -> list[str]:
    return [line for header in GOLDEN_OF for line in golden(header)]


def facts_of_text(text: str) -> list[str]:
    """What a text in the style of docs/protocol.md says, as lines of a layout."""
    facts = []
    plain = " ".join(text.split())
    for found in re.finditer(r"`struct (\w+)`: ([^;`]+); (\d+) bytes", plain):
        structure, members, size = found.groups()
        facts.append(f"struct {structure} {size}")
        for member in members.split(","):
            name, offset = member.split()
            facts.append(f"field {structure}.{name} {offset}")
    for found in re.finditer(r"`struct (\w+)` \((\d+) bytes\)", plain):
        facts.append(f"struct {found[1]} {found[2]}")
    return facts


def wrong_in_text(text: str, layout: list[str]) -> list[str]:
    """What the text says wrongly, and what it must say and does not."""
    without_sizes = [re.sub(r"^(field \S+ \d+) \d+$", r"\1", line) for line in layout]
    facts = facts_of_text(text)
    wrong = [f"not so: {fact}" for fact in facts if fact not in without_sizes]
    for line in without_sizes:
        kind, name, *_ = line.split()
        structure, _, member = name.partition(".")
        filler = re.fullmatch(r"pad\d*|reserved\d*", member)
        if kind in ("struct", "field") and structure in DESCRIBED and not filler and line not in facts:
            wrong.append(f"missing: {line}")
    return wrong


@pytest.mark.parametrize("header", GOLDEN_OF, ids=lambda header: header.stem)
def test_c_is_golden(header: Path) -> None:
    differs = difference(golden(header), compiled_layout(header), GOLDEN_OF[header].name, "the C compiler")
    assert not differs, (
        "The layout of shared memory changed. If that is meant, run tests/layout/layout.py --update, think of "
        f"VMLOOP_SHM_MAJOR and MINOR, and change docs/protocol.md and the Rust mirror with it.\n{differs}"
    )


def test_rust_is_golden() -> None:
    done = subprocess.run(RUST.split(), cwd=TOP / "host", capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{RUST}:\n{done.stderr}"
    # The order is that of the header; it means nothing.
    differs = difference(sorted(golden()), sorted(done.stdout.splitlines()), "include/layout.golden", RUST)
    assert not differs, differs


def test_protocol_text() -> None:
    wrong = wrong_in_text(PROTOCOL.read_text(), all_golden())
    assert not wrong, "\n".join(wrong)


def test_clang_agrees() -> None:
    """A second compiler, for a machine whose longs are 32 bits wide."""
    asserts = []
    for line in all_golden():
        kind, name, *numbers = line.split()
        if kind == "struct":
            asserts.append(f'_Static_assert(sizeof(struct {name}) == {numbers[0]}, "{name}");')
        elif kind == "field":
            structure, _, member = name.partition(".")
            asserts.append(
                f'_Static_assert(__builtin_offsetof(struct {structure}, {member}) == {numbers[0]}, "{name}");'
            )
    types = "".join(
        f"typedef {kind} __{sign}{bits};\n"
        for bits, base in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
        for sign, kind in (("u", f"unsigned {base}"), ("s", f"signed {base}"))
    )
    header = HEADER.read_text().replace("#include <linux/types.h>", types)
    lanes = LANES.read_text().replace('#include "vmloop_shm.h"', "")
    program = header + lanes + "\n".join(asserts) + "\n"
    for target in ("i386-linux-gnu", "armv7-linux-gnueabihf", "x86_64-linux-gnu"):
        done = subprocess.run(
            ["clang", f"--target={target}", "-fsyntax-only", "-x", "c", "-"],
            input=program, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{target}:\n{done.stderr}"


# The checks above can fail: each is shown a header or a text that is wrong.


def altered(tmp_path: Path, old: str, new: str) -> Path:
    text = HEADER.read_text()
    assert text.count(old) == 1, old
    header = tmp_path / "vmloop_shm.h"
    header.write_text(text.replace(old, new))
    return header


@pytest.mark.parametrize(
    ("old", "new", "shows"),
    [
        (
            "\t__u32 tx_wake;\n\t__u32 rx_wake;\n",
            "\t__u32 rx_wake;\n\t__u32 tx_wake;\n",
            "field vmloop_shm_lane.rx_wake",
        ),
        ("\t__u32 lanes;\n", "\t__u32 lane_count;\n", "field vmloop_shm_side.lane_count"),
        ("#define VMLOOP_MSG_WANT\t\t3", "#define VMLOOP_MSG_WANT\t\t6", "const VMLOOP_MSG_WANT 6"),
        (
            "\t__u32 size;\n\t__u16 type;\n\t__u16 info;\n",
            "\t__u16 type;\n\t__u16 info;\n\t__u32 size;\n",
            "record.size 4",
        ),
        ("#define VMLOOP_RECORD_ALIGN\t16", "#define VMLOOP_RECORD_ALIGN\t16\n#define VMLOOP_NEW 7", "VMLOOP_NEW"),
    ],
    ids=["swapped", "renamed", "value", "moved", "new constant"],
)
def test_a_change_is_noticed(tmp_path: Path, old: str, new: str, shows: str) -> None:
    assert shows in difference(golden(), compiled_layout(altered(tmp_path, old, new)), "golden", "altered")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("\t__u16 vlan_tci;\n\t__u16 reserved;\n", "\t__u32 vlan_tci;\n\t__u16 reserved;\n", "have no name"),
        ("\t__u8 pad0[40];\n", "\t__u8 pad0[40]; __u32 hidden;\n", "have no name"),
        ("\t__u8 pad[32];\n", "\t__u8 pad[24];\n\tint (*hidden)(void);\n", "have no name"),
        ("#define VMLOOP_RECORD_ALIGN\t16", "#define VMLOOP_RECORD_ALIGN\\\n\t16", "does not see"),
    ],
    ids=["hole", "two on a line", "function pointer", "constant over two lines"],
)
def test_what_hides_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        compiled_layout(altered(tmp_path, old, new))


def test_a_hole_at_the_end_is_refused() -> None:
    with pytest.raises(LayoutError, match="last 4 bytes"):
        check_no_holes(["struct a 8", "field a.b 0 4"])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("tx_head 64", "tx_head 68", "not so: field vmloop_shm_lane.tx_head 68"),
        ("incarnation 24, ", "", "missing: field vmloop_shm_side.incarnation 24"),
        ("; 80 bytes", "; 81 bytes", "not so: struct vmloop_shm_header 81"),
        ("`struct vmloop_shm_frame` (16 bytes)", "`struct vmloop_shm_frame` (12 bytes)", "struct vmloop_shm_frame 12"),
    ],
    ids=["offset", "left out", "size", "size in passing"],
)
def test_a_wrong_text_is_noticed(old: str, new: str, says: str) -> None:
    text = " ".join(PROTOCOL.read_text().split())
    assert text.count(old) == 1, old
    assert any(says in line for line in wrong_in_text(text.replace(old, new), all_golden()))
