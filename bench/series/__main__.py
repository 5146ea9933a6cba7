# SPDX-License-Identifier: GPL-2.0
"""Measures throughput over the size of messages and over the size of the rings.

Writes out/series.json, out/series-record.json (all slices) and
out/series.html.
"""

import argparse
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from vmlab import paths
from vmlab.errors import VmlabError, story
from vmlab.progress import busy

from ..path.hosts import HOSTS, find_host
from ..path.measure import Meter, describe_host
from ..path.progress import Steps
from ..path.sizes import parse_ring_size, parse_size, size_name
from ..path.stage import GUEST_CPUS, PATHS, Stage
from ..path.table import number
from .page import write_page
from .sweep import MESSAGES, RINGS, TESTS, TITLES, Plan, Sweep, series_of

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
    parser.add_argument("--host", choices=HOSTS, default="kvm", help="kind of host (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of everything (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=1, help="of each slice (default: %(default)s)")
    sizes: dict[str, Any] = {"metavar": "SIZE", "nargs": "*"}
    parser.add_argument(
        "--messages", type=parse_size, default=MESSAGE_SIZES, help="sizes of messages (default: 64 to 64K)", **sizes
    )
    parser.add_argument(
        "--rings", type=parse_ring_size, default=RING_SIZES, help="sizes of rings (default: 64K to 4M)", **sizes
    )
    parser.add_argument("--kernel", default="6.1", help="of the guests (default: %(default)s)")
    parser.add_argument("--machine", default="", help="of the guests (default: the first that the host has)")
    parser.add_argument("--guest-cpus", type=int, default=GUEST_CPUS, help="of each guest (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=paths.OUT, help="directory of the results (default: out)")
    return parser


def main() -> int:
    """Entry point."""
    options = arguments().parse_args()
    console = Console()
    kind = find_host(options.host)
    plan = Plan(tuple(options.messages), tuple(options.rings), options.rounds, options.seconds)
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            with busy(console, f"booting {kind.title} and two guests"):
                stage = stack.enter_context(
                    Stage("series", kind, options.kernel, options.machine, guest_cpus=options.guest_cpus)
                )
            for retry in stage.retries:
                console.print(f"[yellow]the lab did not boot and was booted again: {retry}[/]")
            host = describe_host(stage)
            meter = Meter(stage)
            with Steps(console, plan.steps) as steps:
                Sweep(meter, plan, steps.say).run()
    except VmlabError as error:
        console.print(f"[red]the series failed:[/] {story(error)}")
        return 1
    except KeyboardInterrupt:
        return 130
    data: dict[str, Any] = {"host": host, "series": series_of(meter.slices)}
    record = meter.record() | {"seconds": round(time.monotonic() - began, 1)}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "series.json").write_text(json.dumps(data, indent=1) + "\n")
    (options.out / "series-record.json").write_text(json.dumps(record, indent=1) + "\n")
    write_page(options.out / "series.html", data, record)
    for table in tables(data["series"]):
        console.print(table)
    if record["kept_although_disturbed"]:
        console.print(
            f"[yellow]{record['kept_although_disturbed']} of {len(meter.slices)} slices were taken while others used "
            "this machine; run it again when it is idle[/]"
        )
    console.print(f"{options.out}/series.html  {options.out}/series.json  ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
