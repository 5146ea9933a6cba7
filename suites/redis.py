# SPDX-License-Identifier: GPL-2.0
"""redis' own tests, of Debian's source package, with Debian's server."""

import re
from collections.abc import Iterable
from pathlib import Path

from vmlab import roots

from . import debian, outside
from .result import Results, Run

FILES = (
    "unit/auth",
    "unit/protocol",
    "unit/keyspace",
    "unit/info",
    "unit/querybuf",
    "unit/pubsub",
    "unit/multi",
    "unit/quit",
    "unit/obuf-limits",
    "unit/limits",
    "unit/pendingquerybuf",
    "unit/client-eviction",
    "unit/tracking",
    "unit/networking",
    "unit/introspection-2",
    "unit/wait",
    "integration/replication",
    "integration/replication-buffer",
    "integration/block-repl",
    "integration/redis-benchmark",
    "integration/redis-cli",
    "integration/psync2-reg",
    "integration/shutdown",
)
"""Of connections, their buffers and limits, and of copies of one server in another.

unit/introspection is left out: one of its servers wants clients of the loopback interface, and the run ends without.
"""
REPEATED = {f"PSYNCN #N regression: kill {which} replica" for which in ("first", "chained")}
"""What a test does each time that a random number tells it to: one result, the worst."""
WORDS = {"ok": "passed", "err": "failed", "exception": "failed", "skip": "skipped", "ignore": "skipped"}


def run_of(text: str) -> Run:
    """What a run came to, from what the program says; of two tests with one name, both."""
    found: Results = {}
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    for word, name in re.findall(r"^\[(ok|err|exception|skip|ignore)\]: (.*)$", plain, flags=re.M):
        # Some names have a figure of this run in them.
        key = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "N", re.sub(r" \(\d+ ms\)$| in \S+/\S+\.tcl.*$", "", name)).strip()
        number = 1 + sum(1 for one in found if one.rpartition("#")[0] == key)
        if key in REPEATED and number > 1:
            if WORDS[word] == "failed":
                found[f"{key}#1"] = "failed"
            continue
        found[f"{key}#{number}"] = WORDS[word]
    ended = re.search(r"All tests passed without errors|The following tests failed", plain)
    return Run(found, int(text.rpartition("status ")[2]), "" if ended else plain[-300:])


def build(scratch: Path, source: Path) -> Iterable[str]:
    """The tests, which name the peer, and the programs where they look for them."""
    for name in ("tests", "runtest", "redis.conf", "sentinel.conf", "utils"):
        (outside.copy if (source / name).is_dir() else outside.copy_file)(source / name, scratch / name)
    outside.redirect([scratch / "tests", scratch / "redis.conf"])
    # A peer is not the loopback interface, whose clients alone need no password otherwise.
    for file in (scratch / "tests/assets").glob("*.conf"):
        with file.open("a") as settings:
            settings.write("\nprotected-mode no\n")
    (scratch / "src").mkdir()
    for name in ("server", "cli", "benchmark", "check-aof", "check-rdb", "sentinel"):
        (scratch / f"src/redis-{name}").symlink_to(f"/usr/bin/redis-{name}")
    return ["tests", "runtest", "redis.conf", "sentinel.conf", "utils", "src"]


SCRIPT = f"""\
cd /redis && rm -rf tests/tmp/*
tclsh8.6 tests/test_helper.tcl --clients 1 --no-latency {" ".join(f"--single {name}" for name in FILES)}
echo status $?
"""
SUITES = (debian.Tests("redis", "redis-server", "redis", build, SCRIPT, run_of, roots.USER),)
