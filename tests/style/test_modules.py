# SPDX-License-Identifier: GPL-2.0
"""No circle between the files of a Rust crate."""

import re
import sys
from pathlib import Path, PurePosixPath

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.style.modules import Crate, bare, crates, leaves
from tests.style.rules import TOP, tracked_files

FILES = {path: (TOP / path).read_text(encoding="utf-8") for path in tracked_files() if path.suffix == ".rs"}
CRATES = crates(FILES)


def test_crates_are_seen() -> None:
    assert {"abi", "api", "policy", "qmp", "vmloop", "vmloopd", "xenstore"} <= CRATES.keys()
    broker = CRATES["vmloopd"].needs()[("broker", "run")]
    assert {("broker",), ("broker", "api"), ("event",)} <= broker


@pytest.mark.parametrize("name", CRATES)
def test_no_circle(name: str) -> None:
    circles = CRATES[name].circles()
    assert not circles, f"host/{name}:\n" + "\n".join(circles)


def pictures(text: str) -> list[list[list[str]]]:
    """Names in the rows of each picture of the agent: what stands before the explanations, which begin where the
    first row's does."""
    found = []
    section = text.split("\n## The agent\n")[1].split("\n## ")[0]
    for block in section.split("```\n")[1::2]:
        lines = block.splitlines()
        column = [gap.end() for gap in re.finditer(" {3,}", lines[0])][-1]
        found.append([re.findall(r"[a-z_]+(?:::[a-z_]+)?", line[:column]) for line in lines])
    return found


def arrows_up(rows: list[list[str]], room: str, needs: dict[tuple[str, ...], set[tuple[str, ...]]]) -> list[str]:
    """Modules that need one of a higher row; ``room`` is where most of the names are."""
    level: dict[tuple[str, ...], int] = {}
    for number, row in enumerate(rows):
        for name in row:
            path = tuple(name.split("::"))
            for module in ((room, *path), path):
                if any(one[: len(module)] == module for one in needs):
                    level.setdefault(module, number)

    def row_of(module: tuple[str, ...]) -> int | None:
        return next((level[module[:end]] for end in range(len(module), 0, -1) if module[:end] in level), None)

    return [
        f"{'::'.join(one)} -> {'::'.join(other)}"
        for one in sorted(needs)
        for other in sorted(needs[one])
        if (above := row_of(other)) is not None and (below := row_of(one)) is not None and above < below
    ]


AGENT, NETWORK = pictures((TOP / "ARCHITECTURE.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("rows", "room"), [(AGENT, "broker"), (NETWORK, "network")])
def test_pictures_are_what_files_import(rows: list[list[str]], room: str) -> None:
    needs = CRATES["vmloopd"].needs()
    assert not arrows_up(rows, room, needs)
    assert arrows_up(rows[::-1], room, needs), "the test sees none at all"


def test_picture_has_all_rooms() -> None:
    names = {name.split("::")[-1] for row in AGENT for name in row}
    rooms = {module[1] for module in CRATES["vmloopd"].needs() if module[:1] == ("broker",) and len(module) > 1}
    assert rooms <= names, rooms - names


def crate(**files: str) -> Crate:
    return Crate({PurePosixPath(name.replace("__", "/") + ".rs"): text for name, text in files.items()})


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        # Two that import each other, a child and its parent, by a path in the code.
        (
            {"a": "use crate::b::B;\n", "b": "use crate::a::A;\n"},
            {"a": "use crate::b::B;\n", "b": "use other::a::A;\n"},
        ),
        (
            {"a__mod": "mod b;\nuse b::B;\n", "a__b": "use super::A;\n"},
            {"a__mod": "mod b;\n", "a__b": "use super::A;\n"},
        ),
        (
            {"a": "fn f() { crate::b::g() }\n", "b": "use super::a;\n"},
            {"a": "// crate::b::g\n", "b": "use super::a;\n"},
        ),
        # Three, in a list of lists.
        (
            {"a": "use crate::{c::{C, D}, x};\n", "b": "use crate::a::A;\n", "c": "use crate::b::{self, B};\n"},
            {"a": "use crate::{c::{C, D}, x};\n", "b": 'let x = "crate::a::A";\n', "c": "use crate::b::{self, B};\n"},
        ),
        # Methods of one type in several files.
        (
            {
                "a": "struct T;\n",
                "b": "use crate::a::T;\nimpl T {\n    fn f(&self) { self.g() }\n}\n",
                "c": "use crate::a::T;\nimpl T {\n    async fn g(&self) { self.f() }\n}\n",
            },
            {
                "a": "struct T;\n",
                "b": "use crate::a::T;\nimpl T {\n    fn f(&self) { self.g() }\n}\n",
                "c": "use crate::a::T;\nimpl T {\n    async fn g(&self) { self.f.clone() }\n}\n",
            },
        ),
        # What is used in tests only makes none.
        (
            {"a": "use crate::b::B;\n", "b": "use crate::a::A;\n"},
            {"a": "use crate::b::B;\n", "b": "\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"},
        ),
    ],
)
def test_circles_are_found(bad: dict[str, str], good: dict[str, str]) -> None:
    assert crate(**bad).circles()
    assert not crate(**good).circles()


def test_types_of_one_name_are_apart() -> None:
    """Two types called T have nothing to do with each other."""
    files = dict.fromkeys("ab", "struct T;\nimpl T {\n    fn %s(&self) { self.%s() }\n}\n")
    assert not crate(a=files["a"] % ("f", "g"), b=files["b"] % ("g", "f")).circles()


def test_parts() -> None:
    assert list(leaves("a::{self, b, c::{d, e as f}}")) == [("a",), ("a", "b"), ("a", "c", "d"), ("a", "c", "e")]
    assert bare('f("x // y"); // z\n') == 'f(""); \n'
