# SPDX-License-Identifier: GPL-2.0
"""The demo: boots a host with two guests, switches vmloop on and off under load, and measures.

Writes out/demo.json, out/demo-record.json (all slices, and the timeline) and
out/demo.html.
"""

import argparse
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text
from vmlab import paths
from vmlab.errors import VmlabError, story

from ..path.booting import boot
from ..path.hosts import HOSTS, find_host
from ..path.measure import KINDS, Meter, describe_host
from ..path.progress import Steps
from ..path.rounds import STEPS_OF_A_ROUND, run_rounds
from ..path.stage import GUEST_CPUS, PATHS, Stage
from ..path.table import number, show
from ..path.timeline import Timeline, record
from .page import write_page

BARS = "▁▂▃▄▅▆▇█"


def sparkline(points: list[tuple[float, float]], width: int = 60) -> str:
    """The last throughputs as a line of bars."""
    rates = [rate for _, rate in points[-width:]]
    top = max([*rates, 0.001])
    return "".join(BARS[min(len(BARS) - 1, int(rate / top * len(BARS)))] for rate in rates)


def under_load(console: Console, stage: Stage) -> Timeline:
    """Load and unload the modules under a running connection, and show it."""
    console.rule("[bold]one TCP connection, while the modules are loaded and unloaded", align="left", style="dim")
    points: list[tuple[float, float]] = []
    with Live(console=console, refresh_per_second=8) as live:

        def show_point(at: float, rate: float) -> None:
            points.append((at, rate))
            live.update(Text.assemble((sparkline(points), "cyan"), f" {at:5.1f} s  {rate:5.2f} Gbit/s"))

        timeline = record(stage, stage.kind.spans, show_point)
    at = {event["what"]: event["at"] for event in timeline.events}
    console.print(
        f"  standard [bold]{number(timeline.mean(1, at['modprobe']))}[/] Gbit/s, "
        f"channel [bold green]{number(timeline.mean(at['channel up'] + 0.5, at['rmmod']))}[/], "
        f"standard again [bold]{number(timeline.mean(at['unloaded'] + 0.5, timeline.points[-1][0]))}[/]; "
        "the connection never broke"
    )
    return timeline


def in_turn(console: Console, stage: Stage, rounds: int) -> tuple[Meter, dict[str, list[tuple[int, float, float]]]]:
    """All tests on both paths, in turn."""
    console.rule("[bold]both paths in turn", align="left", style="dim")
    meter = Meter(stage)
    netpipe: dict[str, list[tuple[int, float, float]]] = {}
    with Steps(console, rounds * STEPS_OF_A_ROUND + len(PATHS)) as steps:
        run_rounds(meter, rounds, stage.kind.lengths, steps.say)
        for path in PATHS[::-1]:  # the channel is what the last round ended with, or not
            steps.say(f"NetPIPE, {path}", None)
            stage.use(path)
            netpipe[path] = meter.netpipe()
    return meter, netpipe


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="make demo", description="Two guests talk, with vmloop and without.")
    parser.add_argument("--host", choices=HOSTS, default="kvm", help="kind of host (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of all tests on both paths (default: %(default)s)")
    parser.add_argument("--kernel", default="6.1", help="of the guests (default: %(default)s)")
    parser.add_argument("--machine", default="", help="of the guests (default: the first that the host has)")
    parser.add_argument("--guest-cpus", type=int, default=GUEST_CPUS, help="of each guest (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=paths.OUT, help="directory of the results (default: out)")
    options = parser.parse_args()
    console = Console()
    kind = find_host(options.host)
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            stage = boot(stack, console, "demo", kind, options)
            host = describe_host(stage)
            console.print(
                f"{kind.title} on {host['cpus']} CPUs ({host['accelerator']}), two guests of {host['guest_cpus']} "
                f"with kernel {host['guest_kernel']}{', in virtual time' if kind.virtual_time else ''}; "
                f"up after {time.monotonic() - began:.0f} s"
            )
            timeline = under_load(console, stage)
            meter, netpipe = in_turn(console, stage, options.rounds)
    except VmlabError as error:
        console.print(f"[red]the demo failed:[/] {story(error)}")
        return 1
    except KeyboardInterrupt:
        return 130
    results = meter.results()
    data: dict[str, Any] = {"host": host, "results": results}
    more: dict[str, Any] = {
        "timeline": {"points": timeline.points, "events": timeline.events},
        "netpipe": netpipe,
        "record": meter.record(),
        "seconds": round(time.monotonic() - began, 1),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "demo.json").write_text(json.dumps(data, indent=1) + "\n")
    (options.out / "demo-record.json").write_text(json.dumps(more, indent=1) + "\n")
    write_page(options.out / "demo.html", data, more)
    show(console, results)
    disturbed = more["record"]["kept_although_disturbed"]
    if disturbed:
        console.print(
            f"[yellow]{disturbed} of {len(meter.slices)} slices were taken while others used this machine; "
            "run it again when it is idle[/]"
        )
    missing = [test for test in KINDS if not any(one["test"] == test for one in results)]
    console.print(f"{options.out}/demo.html  {options.out}/demo.json  ({time.monotonic() - began:.0f} s)")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
