# SPDX-License-Identifier: GPL-2.0
"""Measures TCP through what guests put above and below their interfaces, on both paths.

Writes out/tunnels.json, out/tunnels-record.json (all slices) and out/tunnels.html.
"""

import argparse
import json
import statistics
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from vmlab import paths
from vmlab.errors import VmlabError, story

from ..path.booting import boot
from ..path.hosts import HOSTS, find_host
from ..path.measure import Meter, Slice, describe_host
from ..path.progress import Steps
from ..path.rounds import order
from ..path.stage import GUEST_CPUS, PATHS, Stage
from ..path.table import number
from .kinds import KINDS, Kind, laid
from .page import write_page

PLAIN = "plain"
"""No tunnel: eth0 itself, to compare with."""


def measure(stage: Stage, meter: Meter, kind: Kind, path: str, seconds: int, notes: dict[str, Any]) -> Slice:
    """Lay something, have TCP go through it, and take it away."""
    patient = stage.patient
    with laid(kind, stage.guests, patient(1)) as (_, server):
        address = kind.target(server)
        # Until it answers: neighbours, handshakes, links that come up.
        reached = f"until {' '.join(kind.prefix)} ping -c 1 -W 1 -q {address} >/dev/null; do sleep 0.05; done"
        stage.g1.run(f"timeout {patient(20):.0f} sh -c '{reached}'", timeout=patient(60))
        with meter.towards(address, kind.prefix):
            return meter.take(path, partial(meter.tcp, seconds), notes=notes)


def results(slices: list[Slice]) -> list[dict[str, Any]]:
    """Median and values of each kind on each path, as out/tunnels.json has them."""
    found = []
    for kind in (PLAIN, *KINDS):
        for path in PATHS:
            values = [
                one.values["tcp_stream"] for one in slices if one.kept and (one.notes["kind"], one.path) == (kind, path)
            ]
            if values:
                found.append(
                    {
                        "kind": kind,
                        "title": KINDS[kind].title if kind in KINDS else "without",
                        "path": path,
                        "unit": "Gbit/s",
                        "median": round(statistics.median(values), 4),
                        "values": [round(value, 4) for value in values],
                    }
                )
    return found


def table(found: list[dict[str, Any]]) -> Table:
    """The medians for people."""
    shown = Table(title="TCP, Gbit/s, medians", title_style="dim")
    shown.add_column("through")
    for path in PATHS:
        shown.add_column(path, justify="right", style="bold" if path == "channel" else "")
    shown.add_column("channel / standard", justify="right", style="bold green")
    for title in dict.fromkeys(one["title"] for one in found):
        medians = {one["path"]: one["median"] for one in found if one["title"] == title}
        cells = [number(medians[path]) if path in medians else "" for path in PATHS]
        both = medians.get("standard") and "channel" in medians
        shown.add_row(title, *cells, f"{medians['channel'] / medians['standard']:.2f}" if both else "")
    return shown


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench/run tunnels", description=__doc__)
    parser.add_argument("--host", choices=HOSTS, default="kvm", help="kind of host (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of everything (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=2, help="of each slice (default: %(default)s)")
    parser.add_argument("--kinds", nargs="*", choices=tuple(KINDS), default=tuple(KINDS), help="(default: all)")
    parser.add_argument("--kernel", default="6.1", help="of the guests (default: %(default)s)")
    parser.add_argument("--machine", default="", help="of the guests (default: the first that the host has)")
    parser.add_argument("--guest-cpus", type=int, default=GUEST_CPUS, help="of each guest (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=paths.OUT, help="directory of the results (default: out)")
    return parser


def main() -> int:
    """Entry point."""
    options = arguments().parse_args()
    console = Console()
    host_kind = find_host(options.host)
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            stage = boot(stack, console, "tunnels", host_kind, options)
            host = describe_host(stage)
            meter = Meter(stage)
            steps = stack.enter_context(Steps(console, options.rounds * len(PATHS) * (1 + len(options.kinds))))
            for turn in range(options.rounds):
                for path in order(turn):
                    where = f"round {turn + 1} of {options.rounds}, {path}"
                    steps.say(f"{where}: without", None)
                    stage.use(path)
                    meter.take(path, partial(meter.tcp, options.seconds), notes={"kind": PLAIN})
                    for name in options.kinds:
                        steps.say(f"{where}: {KINDS[name].title}", None)
                        measure(stage, meter, KINDS[name], path, options.seconds, {"kind": name})
    except VmlabError as error:
        console.print(f"[red]the measurement failed:[/] {story(error)}")
        return 1
    except KeyboardInterrupt:
        return 130
    found = results(meter.slices)
    record = meter.record() | {"seconds": round(time.monotonic() - began, 1)}
    options.out.mkdir(parents=True, exist_ok=True)
    data: dict[str, Any] = {"host": host, "results": found}
    (options.out / "tunnels.json").write_text(json.dumps(data, indent=1) + "\n")
    (options.out / "tunnels-record.json").write_text(json.dumps(record, indent=1) + "\n")
    write_page(options.out / "tunnels.html", data, record)
    console.print(table(found))
    if record["kept_although_disturbed"]:
        console.print(
            f"[yellow]{record['kept_although_disturbed']} of {len(meter.slices)} slices were taken while others used "
            "this machine; run it again when it is idle[/]"
        )
    console.print(f"{options.out}/tunnels.html  {options.out}/tunnels.json  ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
