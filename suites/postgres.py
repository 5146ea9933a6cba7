# SPDX-License-Identifier: GPL-2.0
"""PostgreSQL's regression tests, of Debian's source package, with Debian's server; each session is a connection."""

import re
from collections.abc import Iterable
from pathlib import Path

from vmlab import roots

from . import debian, outside
from .machine import THERE
from .result import Run

LIBRARY = "usr/lib/postgresql/15"
DIRECTORIES = ("sql", "expected", "data", "input", "output")

# Without what makes a database slow and safe: it is one for a test.
SCRIPT = f"""\
set -e
export PATH=/{LIBRARY}/bin:$PATH
rm -rf /tmp/db /tmp/results && mkdir /tmp/results
initdb --no-sync -U tester -A trust -D /tmp/db >/tmp/initdb.log
printf '%s = off\\n' fsync full_page_writes jit >>/tmp/db/postgresql.conf
printf '%s\\n' "listen_addresses = '{THERE}'" "unix_socket_directories = ''" >>/tmp/db/postgresql.conf
echo 'host all all 0.0.0.0/0 trust' >>/tmp/db/pg_hba.conf
pg_ctl -w -t 120 -D /tmp/db -l /tmp/server.log start >/dev/null
cd /postgresql
status=0
/{LIBRARY}/lib/pgxs/src/test/regress/pg_regress --bindir=/{LIBRARY}/bin \
	--inputdir=/postgresql --outputdir=/tmp/results \
	--dlpath=/postgresql --host={THERE} --port=5432 --user=tester --max-concurrent-tests=20 \
	--schedule=/postgresql/parallel_schedule 2>&1 || status=$?
pg_ctl -w -D /tmp/db stop >/dev/null
[ $status = 0 ] || cat /tmp/results/regression.diffs /tmp/server.log
echo "status $status"
"""


def run_of(text: str) -> Run:
    """What a run came to, from what pg_regress says."""
    found = re.findall(r"^(?:test)?\s+(\S+)\s+\.\.\. (ok|FAILED|failed)", text, flags=re.M)
    results = {name: "passed" if word == "ok" else "failed" for name, word in found}
    planned = re.search(r"^ (?:All|\d+ of) (\d+) tests", text, flags=re.M)
    whole = planned and int(planned[1]) == len(results)
    return Run(results, int(text.rpartition("status ")[2]), "" if whole else text[-300:])


def build(scratch: Path, source: Path) -> Iterable[str]:
    """The tests, and the library of theirs that the server loads."""
    tests = source / "src/test/regress"
    files = debian.BOOKWORM.unpacked()
    for name in DIRECTORIES:
        if (tests / name).is_dir():
            outside.copy(tests / name, scratch / name)
    for name in ("parallel_schedule", "resultmap"):
        outside.copy_file(tests / name, scratch / name)
    include = files / "usr/include"
    headers: list[str | Path] = ["-I", include / "postgresql/15/server", "-I", include / "postgresql", "-I", include]
    words: list[str | Path] = [
        "cc",
        "-O2",
        "-fPIC",
        "-shared",
        *headers,
        "-o",
        scratch / "regress.so",
        tests / "regress.c",
    ]
    outside.run(words, "compile PostgreSQL's tests")
    for name in ("refint.so", "autoinc.so"):
        outside.copy_file(files / LIBRARY / "lib" / name, scratch / name)
    return [path.name for path in scratch.iterdir()]


SUITES = (debian.Tests("postgresql", "postgresql-15", "postgresql-15", build, SCRIPT, run_of, roots.USER),)
"""Its tests of SQL, as its makefile does it for a server that runs."""
