# SPDX-License-Identifier: GPL-2.0
"""Measures throughput over the size of messages and over the size of the rings.

Writes out/series.json, out/series-record.json (all slices) and
out/series.html.
"""

import argparse
import sys
from typing import Any

from rich.table import Table

from ..path.series import options_of, take_series
from ..path.sizes import parse_ring_size, parse_size, size_name
from ..path.stage import PATHS
from ..path.table import number
from .page import write_page
from .sweep import MESSAGES, RINGS, TESTS, TITLES, UNITS, Plan, Sweep

MESSAGE_SIZES = tuple(map(parse_size, ("64", "256", "1K", "4K", "16K", "64K")))
RING_SIZES = tuple(map(parse_ring_size, ("64K", "128K", "256K", "512K", "1M", "2M", "4M")))


def tables(all_series: list[dict[str, Any]]) -> list[Table]:
    """The medians for people, a table for each series."""
    found = []
    for series, title in ((MESSAGES, "size of a message"), (RINGS, "size of a ring")):
        medians = {
            (point["size"], one["test"], one["path"]): point["median"]
            for one in all_series
            if one["series"] == series
            for point in one["points"]
        }
        if not medians:
            continue
        table = Table(title=f"Gbit/s by {title}, medians", title_style="dim")
        table.add_column("size", justify="right")
        columns = [(test, path) for test in TESTS for path in PATHS]
        for test, path in columns:
            table.add_column(f"{TITLES[test]}, {path}", justify="right", style="bold" if path == "channel" else "")
        for size in sorted({key[0] for key in medians}, key=lambda size: size or 0):
            cells = [medians.get((size, test, path)) for test, path in columns]
            shown = ["" if cell is None else number(cell) for cell in cells]
            table.add_row("any" if size is None else size_name(size), *shown)
        found.append(table)
    return found


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make series", description="Throughput over the size of messages and rings.")
    options_of(parser)
    sizes: dict[str, Any] = {"metavar": "SIZE", "nargs": "*"}
    parser.add_argument(
        "--messages", type=parse_size, default=MESSAGE_SIZES, help="sizes of messages (default: 64 to 64K)", **sizes
    )
    parser.add_argument(
        "--rings", type=parse_ring_size, default=RING_SIZES, help="sizes of rings (default: 64K to 4M)", **sizes
    )
    return parser


def main() -> int:
    """Entry point."""
    options = arguments().parse_args()
    plan = Plan(tuple(options.messages), tuple(options.rings), options.rounds, options.seconds)
    return take_series(
        "series", options, plan.steps, lambda meter, say: Sweep(meter, plan, say).run(), UNITS, write_page, tables
    )


if __name__ == "__main__":
    sys.exit(main())
