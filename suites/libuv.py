# SPDX-License-Identifier: GPL-2.0
"""libuv's own tests, of Debian's source package."""

import re
from collections.abc import Iterable
from pathlib import Path

from vmlab import suites

from . import outside
from .machine import Machine
from .result import Results, Run
from .suite import LONGEST

SUITE = "bookworm"
COPY = "/tmp/libuv"
TESTS = "uv_run_tests_a"
"""With libuv in itself."""
SLOW = 20
"""By how much its deadlines are longer: an emulated machine is that slow."""
USER = 65534
"""Not root: some tests are of what is not allowed."""


def run_of(text: str, status: int) -> Run:
    """What a run came to, from TAP."""
    found: Results = {}
    for failed, name, skipped in re.findall(r"^(not )?ok \d+ - (\S+)(?: *# (SKIP)\b)?", text, flags=re.MULTILINE):
        found[name] = "skipped" if skipped else "failed" if failed else "passed"
    planned = re.search(r"^1\.\.(\d+)$", text, flags=re.MULTILINE)
    whole = planned and int(planned[1]) == len(found)
    return Run(found, status, "" if whole else f"{len(found)} tests of {planned[1] if planned else 'none'}")


def build(scratch: Path, source: Path) -> Iterable[str]:
    """Compile the tests, which name the peer."""
    tree, build = scratch / "source", scratch / "build"
    outside.copy(source, tree, links=True)
    outside.redirect([tree / "test"])
    outside.run(["cmake", "-S", tree, "-B", build, "-DLIBUV_BUILD_TESTS=ON"], "configure libuv")
    outside.run(["cmake", "--build", build, "--parallel", "2", "--target", TESTS], "compile libuv's tests")
    return [f"build/{TESTS}", "source/test/fixtures"]


class Libuv:
    """All of its tests."""

    name = "libuv"

    def version(self, machine: Machine) -> str:
        """As the source says."""
        return outside.version(suites.source(SUITE, "libuv1"))

    def prepare(self, machine: Machine) -> None:
        """They look for test/fixtures where they run, and write there."""
        source = suites.source(SUITE, "libuv1")
        archive = outside.made("libuv", self.version(machine), build, source)
        machine.unpack(archive, COPY)
        machine.inside(f"cd {COPY} && mv source/test build/test && chown -R {USER} {COPY}")

    def run(self, machine: Machine) -> Run:
        """One after the other, each in a process of its own."""
        log = f"{COPY}/log"
        environment = f"HOME={COPY} UV_TEST_TIMEOUT_MULTIPLIER={SLOW}"
        as_user = f"setpriv --reuid={USER} --regid={USER} --clear-groups"
        status = machine.inside(
            f"cd {COPY}/build && rm -rf /tmp/uv_* && {environment} {as_user} ./{TESTS} >{log} 2>&1; echo $?",
            timeout=LONGEST,
        )
        return run_of(machine.keep(self.name, machine.inside(f"cat {log}")), int(status))


SUITES = (Libuv(),)
