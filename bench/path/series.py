# SPDX-License-Identifier: GPL-2.0
"""Values over sizes: takes them on a stage of its own, and writes them down. `make series` and `make series-stream` do.

Files in out/, of which NAME is the benchmark's: NAME.json, NAME-record.json (all slices), NAME.html.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from vmlab import paths
from vmlab.errors import VmlabError, story

from .booting import boot
from .hosts import HOSTS, find_host
from .measure import Meter, Slice, describe_host
from .progress import Steps
from .rounds import Say
from .stage import GUEST_CPUS

Series = list[dict[str, Any]]
"""As series_of() makes them."""


def options_of(parser: argparse.ArgumentParser) -> None:
    """What all such benchmarks can be told."""
    parser.add_argument("--host", choices=HOSTS, default="kvm", help="kind of host (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of everything (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=1, help="of each slice (default: %(default)s)")
    parser.add_argument("--kernel", default="6.1", help="of the guests (default: %(default)s)")
    parser.add_argument("--machine", default="", help="of the guests (default: the first that the host has)")
    parser.add_argument("--guest-cpus", type=int, default=GUEST_CPUS, help="of each guest (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=paths.OUT, help="directory of the results (default: out)")


def series_of(slices: list[Slice], units: Mapping[str, str]) -> Series:
    """The series: for each one its points by size, with median and values; ``units`` by test.

    A point's size is null where the path knows no such size.
    """
    found: dict[tuple[str, str, str], dict[int | None, list[float]]] = {}
    for one in slices:
        notes = one.notes
        if one.kept:
            sizes = found.setdefault((notes["series"], notes["test"], one.path), {})
            sizes.setdefault(notes["size"], []).append(one.values[notes["test"]])
    return [
        {
            "series": series,
            "test": test,
            "path": path,
            "unit": units[test],
            "points": [
                {
                    "size": size,
                    "median": round(statistics.median(values), 4),
                    "values": [round(value, 4) for value in values],
                }
                for size, values in sorted(sizes.items(), key=lambda item: item[0] or 0)
            ],
        }
        for (series, test, path), sizes in sorted(found.items())
    ]


def take_series(
    name: str,
    options: argparse.Namespace,
    steps: int,
    sweep: Callable[[Meter, Say], None],
    units: Mapping[str, str],
    write_page: Callable[[Path, dict[str, Any], dict[str, Any]], None],
    tables: Callable[[Series], list[Table]],
) -> int:
    """Boot a stage, have ``sweep`` take its slices, of which it says ``steps``, and write and show them.

    Returns the program's exit status.
    """
    console = Console()
    kind = find_host(options.host)
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            stage = boot(stack, console, name, kind, options)
            host = describe_host(stage)
            meter = Meter(stage)
            with Steps(console, steps) as said:
                sweep(meter, said.say)
    except VmlabError as error:
        console.print(f"[red]the series failed:[/] {story(error)}")
        return 1
    except KeyboardInterrupt:
        return 130
    data: dict[str, Any] = {"host": host, "series": series_of(meter.slices, units)}
    record = meter.record() | {"seconds": round(time.monotonic() - began, 1)}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (options.out / f"{name}-record.json").write_text(json.dumps(record, indent=1) + "\n")
    write_page(options.out / f"{name}.html", data, record)
    for table in tables(data["series"]):
        console.print(table)
    if record["kept_although_disturbed"]:
        console.print(
            f"[yellow]{record['kept_although_disturbed']} of {len(meter.slices)} slices were taken while others used "
            "this machine; run it again when it is idle[/]"
        )
    console.print(f"{options.out}/{name}.html  {options.out}/{name}.json  ({time.monotonic() - began:.0f} s)")
    return 0
