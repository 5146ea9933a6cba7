# SPDX-License-Identifier: GPL-2.0
"""Tells people what takes long, without taking the CPUs that do it."""

from contextlib import AbstractContextManager, nullcontext

from rich.console import Console

REDRAWN = 4.0
"""Times a second. Rich draws three times as often, which took a third of a slow CPU that a machine wanted."""


def busy(console: Console, what: str) -> AbstractContextManager[object]:
    """Say what goes on while in the context: by something that turns on a terminal, by a line elsewhere."""
    if console.is_terminal:
        return console.status(what, refresh_per_second=REDRAWN)
    # A status would be drawn for nobody.
    console.print(f"{what} ...")
    return nullcontext()
