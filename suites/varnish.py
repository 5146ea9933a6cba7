# SPDX-License-Identifier: GPL-2.0
"""varnish's own tests, of its source as its project has it: a mirror may lack Debian's patches of it."""

from collections.abc import Iterable
from pathlib import Path

from . import debian, outside, vtc

LETTERS = "abot"
"""Tests of varnishtest, of what varnish does at all, of PROXY's protocol, and of what carries HTTP, version 2 among it.

The others are about what it keeps, and what its language says: the same connections again, and hours of compiling.
"""


def build(scratch: Path, source: Path) -> Iterable[str]:
    """The tests, which name the peer."""
    outside.copy(source / "bin/varnishtest/tests", scratch / "tests")
    outside.redirect([scratch / "tests"])
    return ["tests"]


COMPILER = "exec x86_64-linux-gnu-gcc -O0 -w -pthread -fpic -shared -Wl,-x -o %o %s"
"""Compiles varnish's programs in a third of the time that varnish's own command takes, which optimizes them."""
# varnishtest has a shell read the value again.
SCRIPT = vtc.script("/varnish/tests", f"[{LETTERS}]*.vtc", options=f"-p \"cc_command='{COMPILER}'\"")
SUITES = (
    debian.Tests(
        "varnish", "varnish", "varnish", build, SCRIPT, vtc.run_of, programs=debian.TRIXIE, upstream=True
    ),
)  # fmt: skip
