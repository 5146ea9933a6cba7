# SPDX-License-Identifier: GPL-2.0
"""vmlab: a small data centre inside QEMU, for tests, demos and benchmarks."""

from .errors import CommandFailed, GuestFailed, LabFailed, VmlabError
from .lab import Lab
from .process import Process, Result

__all__ = [
    "CommandFailed",
    "GuestFailed",
    "Lab",
    "LabFailed",
    "Process",
    "Result",
    "VmlabError",
]
