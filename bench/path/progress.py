# SPDX-License-Identifier: GPL-2.0
"""Shows how far a measurement is."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .measure import Slice


class Steps:
    """A bar on the console; a context manager."""

    def __init__(self, console: Console, total: int) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task("", total=total)

    def say(self, what: str, taken: Slice | None) -> None:
        """Hear what is about to be done, which is a step, or the slice that was taken."""
        self._progress.update(self._task, description=f"{what:48}")
        if taken is None:
            self._progress.advance(self._task)
        elif taken.notes.get("disturbed"):
            self._progress.console.print(f"  [yellow]{what}: others used {taken.others:.2f} CPUs meanwhile[/]")

    def __enter__(self) -> "Steps":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
