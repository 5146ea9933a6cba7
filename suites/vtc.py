# SPDX-License-Identifier: GPL-2.0
"""Tests that varnishtest runs, one file each: clients and servers of HTTP, and a program between them."""

import re

from .result import Run

LIMIT = 60
"""Seconds for one of them: on a machine that is busy varnish takes many to compile its programs."""
LOG = "10M"
"""What a test may say at most: with a megabyte, its default, haproxy's log/load_balancing.vtc fails at times."""
TRIES = 3
"""So often one that fails is run: many expect something within a time. What was run again is told of."""
WORDS = {0: "passed", 77: "skipped"}


def script(place: str, files: str, environment: str = "", options: str = "") -> str:
    """Runs the files of a pattern, in a directory, and says how each ended."""
    return f"""\
cd {place}
for test in {files}; do
	for try in $(seq {TRIES}); do
		TMPDIR=/tmp {environment} varnishtest -b {LOG} -t {LIMIT} {options} "$test" >/tmp/one.log 2>&1
		status=$?
		case $status in
		0|77) break ;;
		*) echo "$test failed, try $try"; cat /tmp/one.log ;;
		esac
	done
	echo "$test $status"
done
echo "$(ls {files} | wc -l) files"
"""


def run_of(text: str) -> Run:
    """What a run came to, from lines of a test's file and its status."""
    found = {name: WORDS.get(int(code), "failed") for name, code in re.findall(r"^(\S+\.vtc) (\d+)$", text, flags=re.M)}
    again = re.findall(r"^(\S+\.vtc) failed, try 1$", text, flags=re.M)
    files = re.search(r"^(\d+) files$", text, flags=re.M)
    cut = "" if files and int(files[1]) == len(found) else f"only {len(found)} files"
    return Run(found, 0, cut, again=[name for name in again if found.get(name) != "failed"])
