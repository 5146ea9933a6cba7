# SPDX-License-Identifier: GPL-2.0
"""A benchmark's stage, and what its user is told while it boots."""

import argparse
from contextlib import ExitStack

from rich.console import Console
from vmlab.progress import busy

from .hosts import StageHost
from .stage import Stage


def boot(stack: ExitStack, console: Console, name: str, kind: StageHost, options: argparse.Namespace) -> Stage:
    """Enter a stage that is called ``name``; ``options`` have its kernel, machine and guest_cpus. Raises VmlabError."""
    with busy(console, f"booting {kind.title} and two guests"):
        stage = stack.enter_context(Stage(name, kind, options.kernel, options.machine, guest_cpus=options.guest_cpus))
    for retry in stage.retries:
        console.print(f"[yellow]the lab did not boot and was booted again: {retry}[/]")
    return stage
