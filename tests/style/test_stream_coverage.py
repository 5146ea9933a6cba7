# SPDX-License-Identifier: GPL-2.0
"""docs/stream-coverage.toml names tests that are there, and all cases of tools/sockets.py and tools/rare.py."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.style.rules import TOP

TOOLS = ("sockets.py", "rare.py")
WHAT = {"accelerated", "passed", "back", "stays", "refused", "exception"}
CALLS: list[dict[str, Any]] = tomllib.loads((TOP / "docs/stream-coverage.toml").read_text(encoding="utf-8"))["call"]


def cases() -> set[str]:
    """Of the tools: the keys of their tables."""
    tables = [table for tool in TOOLS for table in tables_of(TOP / "tests/guest/tools" / tool)]
    assert len(tables) == len(TOOLS)
    keys = [key.value for table in tables for key in table.keys if isinstance(key, ast.Constant)]
    names = {key for key in keys if isinstance(key, str)}
    assert len(names) == len(keys), "a case is there twice"
    return names


def tables_of(tool: Path) -> list[ast.Dict]:
    """What a tool calls CASES."""
    tree = ast.parse(tool.read_text(encoding="utf-8"))
    values = [
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "CASES"
    ]
    return [value for value in values if isinstance(value, ast.Dict)]


def is_there(test: str) -> bool:
    """Whether a function of a file of tests/guest/ is."""
    file, _, function = test.partition("::")
    path = TOP / "tests/guest" / file
    return path.is_file() and bool(re.search(rf"^def {re.escape(function)}\(", path.read_text(encoding="utf-8"), re.M))


def wrong(call: dict[str, Any], known: set[str]) -> list[str]:
    """What is wrong with an entry."""
    found = [f"no {key}" for key in ("name", "what", "tests") if key not in call]
    if found:
        return found
    if call["what"] not in WHAT:
        found.append(f"what is {call['what']!r}?")
    if not call["tests"] and not call.get("note"):
        found.append("neither a test nor why there is none")
    if call["what"] == "exception" and not call.get("note"):
        found.append("an exception without saying which")
    return found + [f"no test {one}" for one in call["tests"] if one not in known and not is_there(one)]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.get("name", "?"))
def test_entry(call: dict[str, Any]) -> None:
    assert not wrong(call, cases())


def test_each_case_is_named() -> None:
    named = {test for call in CALLS for test in call["tests"]}
    assert cases() <= named, f"of the tools, and not in docs/stream-coverage.toml: {sorted(cases() - named)}"
    names = [call["name"] for call in CALLS]
    assert len(names) == len(set(names)), "a name is there twice"


def test_what_is_wrong_is_seen() -> None:
    good = {"name": "x", "what": "passed", "tests": ["peek", "test_stream.py::test_ends"]}
    assert not wrong(good, {"peek"})
    bad: list[dict[str, Any]] = [
        {"what": "fast"},
        {"tests": ["pique"]},
        {"tests": ["test_stream.py::test_end"]},
        {"tests": []},
        {"what": "exception"},
    ]
    for changed in bad:
        assert wrong(good | changed, {"peek"}), changed
    assert wrong({"name": "x"}, set())
