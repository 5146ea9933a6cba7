# SPDX-License-Identifier: GPL-2.0
"""Measures connections of TCP on all paths, over the size of messages, of blocks, of files, and of rings.

Writes out/series-stream.json, out/series-stream-record.json (all slices) and
out/series-stream.html.
"""

import argparse
import sys
from contextlib import ExitStack
from typing import Any

from rich.table import Table

from ..path.measure import Meter
from ..path.rounds import Say
from ..path.series import Series, options_of, take_series
from ..path.sizes import parse_size, size_name
from ..path.stage import STREAM
from ..path.table import number
from .files import Files
from .page import AXES, TESTS, write_page
from .sweep import ALL, TITLES, UNITS, Plan, Sweep

MESSAGE_SIZES = tuple(map(parse_size, ("1", "64", "512", "1K", "4K", "16K", "64K")))
BLOCK_SIZES = tuple(map(parse_size, ("1", "4K", "64K", "1M", "16M")))
FILE_SIZES = tuple(map(parse_size, ("1", "4K", "64K", "1M", "16M")))
RING_SIZES = tuple(map(parse_size, ("4K", "16K", "64K", "256K", "1M")))


def tables(all_series: Series) -> list[Table]:
    """The medians for people, a table for each test."""
    found = []
    for series, tests in TESTS.items():
        for test in tests:
            mine = {one["path"]: one for one in all_series if (one["series"], one["test"]) == (series, test)}
            if not mine:
                continue
            table = Table(title=f"{TITLES[test]} in {UNITS[test]} by {AXES[series]}, medians", title_style="dim")
            table.add_column("size", justify="right")
            columns = [path for path in ALL if path in mine]
            for path in columns:
                table.add_column(path, justify="right", style="bold" if path == STREAM else "")
            medians = {(path, point["size"]): point["median"] for path in columns for point in mine[path]["points"]}
            for size in sorted({size for _, size in medians}):
                cells = [medians.get((path, size)) for path in columns]
                table.add_row(size_name(size), *("" if cell is None else number(cell) for cell in cells))
            found.append(table)
    return found


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="make series-stream", description="Connections of TCP over the size of messages, blocks, files and rings."
    )
    options_of(parser)
    for name, sizes, what in (
        ("messages", MESSAGE_SIZES, "messages (default: 1 to 64K)"),
        ("blocks", BLOCK_SIZES, "blocks (default: 1 to 16M)"),
        ("files", FILE_SIZES, "files (default: 1 to 16M)"),
        ("rings", RING_SIZES, "rings of lanes, powers of two from 4K (default: 4K to 1M)"),
    ):
        more: dict[str, Any] = {"metavar": "SIZE", "nargs": "*", "type": parse_size, "default": sizes}
        parser.add_argument(f"--{name}", help=f"sizes of {what}", **more)
    return parser


def main() -> int:
    """Entry point."""
    options = arguments().parse_args()
    plan = Plan(
        tuple(options.messages),
        tuple(options.blocks),
        tuple(options.files),
        tuple(options.rings),
        options.rounds,
        options.seconds,
    )

    def sweep(meter: Meter, say: Say) -> None:
        with ExitStack() as stack:
            files = stack.enter_context(Files(meter.stage)) if plan.files else None
            Sweep(meter, plan, say, files).run()

    return take_series("series-stream", options, plan.steps, sweep, UNITS, write_page, tables)


if __name__ == "__main__":
    sys.exit(main())
