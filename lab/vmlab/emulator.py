# SPDX-License-Identifier: GPL-2.0
"""Which QEMU runs the outer machines.

Not every one will do: QEMU 7.2 freezes an emulated machine, both CPUs at one
jump label, when a kernel in it changes its own code under load (docs/lab.md).
So the outside's is used if it is new enough, and another one out of Debian 13's
packages if not, unpacked into the cache and run by its own loader with its own
libraries. Inner QEMUs are always the outside's.

The other way round for Xen's PVH guests, which run by the emulated SVM: in one of
QEMU 10.0 they end before their first line.
"""

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from . import suites
from .errors import VmlabError
from .qemu import PROGRAM

OLDEST = 10
"""Major version of the oldest that is good enough."""
SUITE = "trixie"
SVM_SUITE = "bookworm"
"""Whose QEMU emulates SVM well enough for Xen's guests."""
PACKAGE = "qemu-system-x86"
CHOICE = "VMLAB_QEMU"
"""In the environment: ``system`` for the outside's, whatever its version, or the path of a QEMU."""
LIBRARIES = "usr/lib/x86_64-linux-gnu"
FIRMWARE = ("usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu")


@dataclass(frozen=True)
class Emulator:
    """A QEMU that can be run here."""

    command: tuple[str, ...] = (PROGRAM,)
    """What a command line begins with."""
    environment: dict[str, str] = field(default_factory=dict)
    """What is to be added to its environment."""

    def version(self) -> str:
        """Its version as it says it, such as ``10.0.7 (Debian 1:10.0.7+ds-0+deb13u1)``."""
        try:
            done = subprocess.run(
                [*self.command, "--version"], env={**os.environ, **self.environment}, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
        except OSError as error:
            raise VmlabError(f"{self.command[0]} cannot be run ({error.strerror}): install qemu-system-x86") from error
        found = re.search(r"version (.*)", done.stdout)
        if not found:
            raise VmlabError(f"{self.command[0]} is no QEMU that works: {done.stderr.strip() or done.stdout.strip()}")
        return found.group(1)


def is_new(version: str) -> bool:
    """Whether a QEMU of this version is good enough."""
    found = re.match(r"\d+", version)
    return found is not None and int(found[0]) >= OLDEST


def unpacked(root: Path) -> Emulator:
    """The QEMU below a directory with its packages and all that they need."""
    firmware = [word for name in FIRMWARE for word in ("-L", str(root / name))]
    return Emulator(
        (
            str(root / "lib64/ld-linux-x86-64.so.2"), "--library-path", str(root / LIBRARIES), "--argv0", PROGRAM,
            str(root / "usr/bin" / PROGRAM), *firmware,
        ),
        {"QEMU_MODULE_DIR": str(root / LIBRARIES / "qemu")},
    )  # fmt: skip


def find(svm: bool = False) -> Emulator:
    """The QEMU of outer machines, unpacked first if it has to be. Raises VmlabError if there is none.

    ``svm``: guests of the outer machine run by the SVM that it emulates, under Xen.
    """
    choice = os.environ.get(CHOICE, "")
    if choice not in ("", "system"):
        return Emulator((choice,))
    if choice == "system" or is_new(Emulator().version()) is not svm:
        return Emulator()
    try:
        return unpacked(suites.unpack(SVM_SUITE if svm else SUITE, [PACKAGE], with_dependencies=True))
    except VmlabError as error:
        wanted = f"QEMU older than {OLDEST}" if svm else f"QEMU {OLDEST} or newer"
        raise VmlabError(f"{wanted} is needed: {error} ({CHOICE}=system does with the one that is here)") from error
