#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The layout of include/vmloop_shm.h and include/vmloop_lanes.h, as the C compiler sees it.

    tests/layout/layout.py             print it
    tests/layout/layout.py --update    write it to include/layout.golden and include/lanes.golden

A line for each structure, member and constant, in the header's order:

    struct NAME SIZE
    field NAME.MEMBER OFFSET SIZE
    const NAME VALUE

What is asked of the compiler is generated from the header. A member that the
generator did not see would leave a hole, and holes are refused; a constant
that it did not see is one more that the preprocessor knows.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
HEADER = TOP / "include/vmloop_shm.h"
GOLDEN = TOP / "include/layout.golden"
LANES = TOP / "include/vmloop_lanes.h"
GOLDEN_OF = {HEADER: GOLDEN, LANES: TOP / "include/lanes.golden"}


class LayoutError(Exception):
    """The header has something that must not be there, or that was not understood."""


def without_comments(header: str) -> str:
    """The header without its comments; lines stay where they are."""
    return re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), header, flags=re.DOTALL)


def questions(header: str) -> list[str]:
    """What to ask the compiler, as statements of C, in the order of the header."""
    asked = []
    structure = ""
    for line in without_comments(header).splitlines():
        if found := re.match(r"#\s*define\s+(VMLOOP_\w+)\s+\S", line):
            asked.append(f'printf("const {found[1]} %llu\\n", (unsigned long long)({found[1]}));')
        elif found := re.match(r"struct (\w+) \{", line):
            structure = found[1]
            asked.append(f'printf("struct {structure} %zu\\n", sizeof(struct {structure}));')
        elif line.startswith("}"):
            structure = ""
        elif structure and (found := re.match(r"\s+[\w ]+?(\w+)(\[\w+\])*;\s*$", line)):
            member = found[1]
            asked.append(
                f'printf("field {structure}.{member} %zu %zu\\n", offsetof(struct {structure}, {member}), '
                f"sizeof(((struct {structure} *)0)->{member}));"
            )
    return asked


def constants_known_to_preprocessor(header: Path) -> set[str]:
    """Names of all macros with a value that the header defines, without those of headers that it includes."""
    listed = subprocess.run(["gcc", "-E", "-dM", header], capture_output=True, text=True, check=True)
    known = set(re.findall(r"^#define (VMLOOP_\w+) \S", listed.stdout, re.MULTILINE))
    for included in re.findall(r'^#include "(\w+\.h)"', header.read_text(), re.MULTILINE):
        known -= constants_known_to_preprocessor(header.parent / included)
    return known


def compiled_layout(header: Path) -> list[str]:
    """The lines of the layout. Raises LayoutError where the header hides something."""
    asked = questions(header.read_text())
    program = "\n".join(
        ["#include <stddef.h>", "#include <stdio.h>", f'#include "{header}"', "int main(void)", "{", *asked, "}"]
    )
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "layout.c"
        source.write_text(program + "\n")
        subprocess.run(["gcc", "-Wall", "-Werror", "-o", f"{scratch}/layout", source], check=True)
        lines = subprocess.run([f"{scratch}/layout"], capture_output=True, text=True, check=True).stdout.splitlines()
    check_no_holes(lines)
    seen = {line.split()[1] for line in lines if line.startswith("const ")}
    if missed := constants_known_to_preprocessor(header) - seen:
        raise LayoutError(f"constants that the generator does not see: {', '.join(sorted(missed))}")
    return lines


def check_no_holes(lines: list[str]) -> None:
    """Every byte of every structure belongs to a member that has a name.

    A hole is padding that two compilers may place differently, bytes that
    nobody initialises, or a member that the generator missed.
    """
    end = size = 0
    structure = ""
    for line in [*lines, "struct none 0"]:
        kind, name, *numbers = line.split()
        if kind == "struct":
            if end != size:
                raise LayoutError(f"struct {structure}: the last {size - end} bytes have no name")
            structure, size, end = name, int(numbers[0]), 0
        elif kind == "field":
            offset, length = map(int, numbers)
            if offset != end:
                raise LayoutError(f"struct {structure}: {offset - end} bytes before {name} have no name")
            end = offset + length


def main() -> int:
    """Print the layout, or make it the golden one."""
    for header, golden in GOLDEN_OF.items():
        lines = compiled_layout(header)
        if "--update" in sys.argv[1:]:
            golden.write_text("\n".join(lines) + "\n")
        else:
            print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
