# SPDX-License-Identifier: GPL-2.0
"""What a suite is: other projects' tests, as __main__.py runs them."""

from typing import Protocol

from .machine import Machine
from .result import Run

LONGEST = 3600
"""Seconds that one of them may take in an emulated machine."""


class Suite(Protocol):
    """One run of tests, which is done on TCP and with the stream path."""

    @property
    def name(self) -> str:
        """What --only finds it by."""

    def version(self, machine: Machine) -> str:
        """Of the project, or of its package."""

    def prepare(self, machine: Machine) -> None:
        """Have it in the machine's memory, with the peer's address; built on the outside, if it must be."""

    def run(self, machine: Machine) -> Run:
        """Run it."""
