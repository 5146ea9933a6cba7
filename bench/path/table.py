# SPDX-License-Identifier: GPL-2.0
"""Results for people: a table with ratios."""

from typing import Any

from rich.console import Console
from rich.table import Table

from .measure import KINDS, ratio
from .stage import LOOPBACK, STREAM


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def factor(value: float, lower_is_better: bool) -> str:
    """A ratio, said so that it reads as what was gained."""
    if lower_is_better:
        return f"{1 / value:.1f} times less" if value < 1 else f"{value:.1f} times more"
    return f"{value:.1f} times"


def show(console: Console, results: list[dict[str, Any]]) -> None:
    """Print the medians of all paths and of loopback, and what one is of another."""
    table = Table(title="median of the slices, in one boot, in turn", title_style="dim")
    table.add_column("test")
    table.add_column("unit", style="dim")
    table.add_column("standard", justify="right")
    table.add_column("channel", justify="right", style="bold")
    table.add_column("channel / standard", justify="right", style="bold green")
    table.add_column("stream", justify="right", style="bold")
    table.add_column("stream / channel", justify="right", style="green")
    table.add_column("loopback", justify="right")
    table.add_column("channel / loopback", justify="right")
    for test, kind in KINDS.items():
        medians = {one["path"]: one["median"] for one in results if one["test"] == test}
        change = ratio(results, test)
        if change is None:
            continue
        table.add_row(
            kind.title,
            kind.unit,
            number(medians["standard"]),
            number(medians["channel"]),
            f"{change:.2f}  ({factor(change, kind.lower_is_better)})",
            number(medians[STREAM]) if STREAM in medians else "",
            "" if (of_it := ratio(results, test, "channel", STREAM)) is None else f"{of_it:.2f}",
            number(medians[LOOPBACK]) if LOOPBACK in medians else "",
            "" if (of_it := ratio(results, test, LOOPBACK)) is None else f"{of_it:.2f}",
        )
    console.print(table)
