# SPDX-License-Identifier: GPL-2.0
"""CPython's own tests of sockets, as Debian packages them (libpython3.11-testsuite)."""

from pathlib import Path

from vmlab import VmlabError

from .machine import THERE, Machine
from .result import Run, of_junit
from .suite import LONGEST

PYTHON = "/usr/bin/python3.11"
LIBRARY = "/usr/lib/python3.11/test"
COPY = "/tmp/cpython"
MODULES = ("test_socket", "test_asyncio", "test_ssl")


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
        """Has the tests in the machine's memory, with another address; the package must be installed."""
        # The interpreter's own package has the folder as well, with little in it.
        if not Path(LIBRARY, f"{self.module}.py").exists() and not Path(LIBRARY, self.module).is_dir():
            raise VmlabError(f"no {self.module} in {LIBRARY}: install libpython3.11-testsuite, as `make suites` does")
        machine.inside(
            f"rm -rf {COPY} && mkdir {COPY} && cp -r {LIBRARY} {COPY}/test && "
            f"find {COPY}/test -name '*.py' -exec sed -i 's/127\\.0\\.0\\.1/{THERE}/g' {{}} +",
            timeout=600,
        )

    def run(self, machine: Machine) -> Run:
        """Run it; without its report it has not come to its end."""
        report = f"{COPY}/{self.module}.xml"
        status = machine.inside(
            f"rm -f {report}; cd {COPY} && PYTHONPATH={COPY} {PYTHON} -m test -u network --junit-xml {report} "
            f"{self.module} >{COPY}/{self.module}.log 2>&1; echo $?",
            timeout=LONGEST,
        )
        machine.keep(self.name, machine.inside(f"cat {COPY}/{self.module}.log"))
        report = machine.inside(f"cat {report} || true")
        return Run(of_junit(report), int(status)) if report else Run({}, int(status), "no report")


SUITES = tuple(map(CPython, MODULES))
