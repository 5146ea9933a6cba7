# SPDX-License-Identifier: GPL-2.0
"""CPython's own tests of sockets, as Debian packages them (libpython3.11-testsuite)."""

from .machine import THERE, Machine
from .result import Results, of_junit

PYTHON = "/usr/bin/python3.11"
LIBRARY = "/usr/lib/python3.11/test"
COPY = "/tmp/cpython"
MODULES = ("test_socket", "test_asyncio", "test_ssl")
LONGEST = 3600
"""Seconds that one of them may take in an emulated machine."""


class CPython:
    """One module of the tests.

    They name 127.0.0.1 in many places, which is the loopback interface's: their copy names the address that is
    reached through a peer.
    """

    def __init__(self, module: str) -> None:
        self.name = f"cpython {module}"
        self.module = module

    def version(self, machine: Machine) -> str:
        """Of the interpreter."""
        return machine.inside(f"{PYTHON} --version").strip()

    def prepare(self, machine: Machine) -> None:
        """Has the tests in the machine's memory, with another address."""
        machine.inside(
            f"rm -rf {COPY} && mkdir {COPY} && cp -r {LIBRARY} {COPY}/test && "
            f"find {COPY}/test -name '*.py' -exec sed -i 's/127\\.0\\.0\\.1/{THERE}/g' {{}} +",
            timeout=600,
        )

    def run(self, machine: Machine) -> tuple[Results, int]:
        """Runs it; the result of each test, and the status with which it ended."""
        report = f"{COPY}/{self.module}.xml"
        status = machine.inside(
            f"rm -f {report}; cd {COPY} && PYTHONPATH={COPY} {PYTHON} -m test -u network --junit-xml {report} "
            f"{self.module} >{COPY}/{self.module}.log 2>&1; echo $?",
            timeout=LONGEST,
        )
        return of_junit(machine.inside(f"cat {report}")), int(status)
