# SPDX-License-Identifier: GPL-2.0
"""haproxy's own tests, reg-tests of Debian's source package, run by varnishtest as clients and servers."""

import re
from collections.abc import Iterable
from pathlib import Path

from . import debian, outside
from .result import Run

LIMIT = 10
"""Seconds for one of them."""
WORDS = {0: "passed", 77: "skipped"}

LOOP = f"""\
cd /haproxy/reg-tests
for test in */*.vtc; do
	HAPROXY_PROGRAM=/usr/sbin/haproxy TMPDIR=/tmp varnishtest -t {LIMIT} "$test" >/tmp/one.log 2>&1
	status=$?
	[ $status = 0 ] || cat /tmp/one.log
	echo "$test $status"
done
echo "$(ls */*.vtc | wc -l) files"
"""


def run_of(text: str) -> Run:
    """What a run came to, from lines of a test's file and its status."""
    found = {name: WORDS.get(int(code), "failed") for name, code in re.findall(r"^(\S+\.vtc) (\d+)$", text, flags=re.M)}
    files = re.search(r"^(\d+) files$", text, flags=re.M)
    return Run(found, 0, "" if files and int(files[1]) == len(found) else f"only {len(found)} files")


def build(scratch: Path, source: Path) -> Iterable[str]:
    """The tests, which name the peer."""
    outside.copy(source / "reg-tests", scratch / "reg-tests", links=True)
    outside.redirect([scratch / "reg-tests"])
    return ["reg-tests"]


SUITES = (debian.Tests("haproxy", "haproxy", "haproxy", build, LOOP, run_of),)
"""All of its tests; those that its package's features or this varnishtest do not allow fail."""
