# SPDX-License-Identifier: GPL-2.0
"""Debian's own programs that suites test, with the peer's address in them for 127.0.0.1."""

from pathlib import Path

from vmlab import roots, suites

from . import outside
from .machine import PATIENCE, THERE, Machine

SUITE = "bookworm"
PACKAGES = (
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
)
ROOT = "/tmp/debian"


def version(package: str) -> str:
    """Of one of the packages."""
    fetched = suites.fetch(SUITE, PACKAGES, with_dependencies=True)
    return next(one.version for one in fetched if one.name == package)


def unpacked() -> Path:
    """Their files, on the outside; not to be changed."""
    return suites.unpack(SUITE, PACKAGES, with_dependencies=True)


def redirect(root: Path) -> None:
    """Programs and what they read name the peer."""
    outside.redirect([root / "usr", root / "etc"])


def prepare(machine: Machine) -> None:
    """Have them in the machine."""
    roots.place(machine.host, roots.build("suites", SUITE, PACKAGES, redirect, THERE), ROOT)
    # Those of the namespace.
    machine.inside(f"cp /etc/hosts {ROOT}/etc/hosts")


def run(machine: Machine, script: str, user: int = 0, timeout: float = PATIENCE) -> str:
    """Run a script in their root, below the machine's namespace; its output."""
    return machine.inside(roots.command(ROOT, script, user), timeout=timeout)
