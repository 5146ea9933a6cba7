# SPDX-License-Identifier: GPL-2.0
"""Suites that test programs of Debian's packages: these have the peer's address in them for 127.0.0.1."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from vmlab import roots, suites

from . import outside
from .machine import THERE, Machine
from .result import Run
from .suite import LONGEST


@dataclass(frozen=True)
class Programs:
    """Packages of a suite of Debian's, which are unpacked into one root."""

    suite: str
    packages: tuple[str, ...]
    compiler: bool = False
    """They compile while they run."""

    @property
    def root(self) -> str:
        """Where they are in the machine."""
        return f"/tmp/{self.suite}"

    def unpacked(self) -> Path:
        """Their files, on the outside; not to be changed."""
        return suites.unpack(self.suite, self.packages, with_dependencies=True)

    def version(self, package: str) -> str:
        """Of one of them."""
        fetched = suites.fetch(self.suite, self.packages, with_dependencies=True)
        return next(one.version for one in fetched if one.name == package)


BOOKWORM = Programs(
    "bookworm",
    (
        "bash",
        "coreutils",
        "curl",
        "dash",
        "diffutils",
        "findutils",
        "grep",
        "haproxy",
        "hostname",
        "mawk",
        "postgresql-15",
        "postgresql-server-dev-15",
        "procps",
        "redis-server",
        "sed",
        "socat",
        "tcl",
        "util-linux",
        "varnish",
    ),
)
TRIXIE = Programs(
    "trixie",
    ("bash", "coreutils", "dash", "findutils", "grep", "hostname", "mawk", "procps", "sed", "util-linux", "varnish"),
    True,
)


def redirect(root: Path) -> None:
    """Programs and what they read name the peer."""
    outside.redirect([root / "usr", root / "etc"])


@dataclass(frozen=True)
class Tests:
    """Tests of a source package of Debian's, run on the programs of a package."""

    name: str
    package: str
    """Whose programs they test."""
    source: str
    """The source package that has them."""
    build: Callable[[Path, Path], Iterable[str]]
    """Puts the tests of the second directory, the source, into the first; says what of it is wanted, in `/NAME`."""
    script: str
    """Runs them."""
    read: Callable[[str], Run]
    """What a run came to, from what the script says."""
    user: int = 0
    """For those that do not run as root."""
    programs: Programs = BOOKWORM
    upstream: bool = False
    """The source is without Debian's patches."""

    def version(self, machine: Machine) -> str:
        """Of the package."""
        return self.programs.version(self.package)

    def prepare(self, machine: Machine) -> None:
        """The programs, and the tests below their root."""
        programs = self.programs
        place = f"{programs.root}/{self.name}"
        packed = roots.build(
            f"suites-{programs.suite}", programs.suite, programs.packages, redirect, THERE, compiler=programs.compiler
        )  # fmt: skip
        roots.place(machine.host, packed, programs.root)
        # Those of the namespace.
        machine.inside(f"cp /etc/hosts {programs.root}/etc/hosts")
        source = suites.source(programs.suite, self.source, upstream=self.upstream)
        identity = (outside.version(source), programs.unpacked().name)
        machine.unpack(outside.made(self.name, identity, self.build, source), place)
        machine.inside(f"chown -R {self.user} {place}")

    def run(self, machine: Machine) -> Run:
        """As the script does it, in the root, below the machine's namespace."""
        said = machine.inside(roots.command(self.programs.root, self.script, self.user), timeout=2 * LONGEST)
        return self.read(machine.keep(self.name, said))
