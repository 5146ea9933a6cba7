# SPDX-License-Identifier: GPL-2.0
"""vmlab: a small data centre inside QEMU, for tests, demos and benchmarks."""

from .errors import CommandFailed, CommandTimeout, ConsoleFailed, GuestFailed, LabFailed, VmlabError
from .lab import Lab
from .machine import Guest, Host, Machine
from .process import Process, Result

__all__ = [
    "CommandFailed",
    "CommandTimeout",
    "ConsoleFailed",
    "Guest",
    "GuestFailed",
    "Host",
    "Lab",
    "LabFailed",
    "Machine",
    "Process",
    "Result",
    "VmlabError",
]
