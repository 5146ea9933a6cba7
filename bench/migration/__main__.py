# SPDX-License-Identifier: GPL-2.0
"""The demo of migrations: two hosts, a guest that moves, and what its traffic notices of that.

Writes out/migration.json and out/migration.html.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from vmlab import Lab, paths
from vmlab.errors import VmlabError, story
from vmlab.progress import busy

from ..path.stage import GUEST_CPUS
from .hosts import HOSTS
from .load import Load
from .page import format_ms, write_page
from .stage import Stage, build_tools
from .timeline import Timeline, record
from .trips import Trip, added_pause_ms, added_wait_ms, go, go_plainly

BEFORE, DURING, AFTER = 8.0, 10.0, 8.0
"""Seconds of the picture apart, together, and apart again."""


def describe(stage: Stage) -> dict[str, str]:
    """What it ran on."""
    state, spec = stage.lab.state, stage.g2.spec
    kernel = stage.g1.run(["uname", "-r"]).out.strip()
    return {
        "hosts": f"2, kernel {state['host_kernel']}, {state['memory']} MiB each, {state['accelerator']}",
        "guests": f"kernel {kernel}, {spec.memory} MiB, CPUs: {spec.cpus}, {spec.machine}",
        "hypervisor": stage.kind.version(stage.lab),
        "time": stage.lab.clocks,
        "standard network": f"{stage.kind.standard_network} over both hosts",
    }


def waits(trip: Trip) -> str:
    """What a way cost who waits."""
    stood = "" if trip.stood_ms is None else f"stood still {trip.stood_ms:.0f} ms, "
    return f"{stood}longest wait {trip.pause_ms:.0f} ms"


def round_trips(console: Console, stage: Stage, count: int, enough: int) -> tuple[list[Trip], dict[str, Any]]:
    """So many under every kind of traffic, and more until g1 has received ``enough`` checked bytes.

    Raises VmlabError if none come any more.
    """
    trips: list[Trip] = []
    with Load(stage) as load:
        while len(trips) < 2 * count or load.bytes() < enough:
            before = load.bytes()
            for _ in ("there", "back"):
                trips.append(go(stage, load))
                load.check()
                rise = "" if trips[-1].rise is None else f", channel after {trips[-1].rise:.2f} s"
                console.print(f"  {len(trips):2}: to {trips[-1].to}{rise}, {waits(trips[-1])}")
            if load.bytes() == before:
                raise VmlabError("g1 received no checked byte during a round trip")
        return trips, load.finish()


def plain_trips(console: Console, stage: Stage, count: int) -> list[Trip]:
    """The same without vmloop on any host."""
    trips: list[Trip] = []
    stage.without()
    with Load(stage) as load:
        for n in range(2 * count):
            trips.append(go_plainly(stage, load))
            console.print(f"  {n + 1:2}: to {trips[-1].to}, {waits(trips[-1])}")
    return trips


def summary(
    host: str, picture: list[Trip], loaded: list[Trip], plain: list[Trip], reports: list[dict[str, Any]]
) -> dict[str, Any]:
    """The figures that out/migration.json begins with: of the picture's trips, those under all traffic, those without.

    ``host`` is kvm or xen. The pause is measured under all traffic; None without such trips.
    """
    trips = picture + loaded
    return {
        "host": host,
        "round_trips": len(trips) // 2,
        "connections_broken": sum(report["connections_broken"] for report in reports),
        "bytes_wrong": sum(report["bytes_wrong"] for report in reports),
        "frames_lost_by_vmloop": sum(trip.lost for trip in trips),
        "added_pause_ms": added_pause_ms(loaded, plain) if loaded and plain else None,
        "added_wait_ms": added_wait_ms(loaded, plain) if loaded and plain else None,
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="make demo-migration", description="A guest moves between two hosts.")
    parser.add_argument("--host", default="kvm", choices=tuple(HOSTS), help="kind of the hosts (default: kvm)")
    parser.add_argument("--round-trips", type=int, default=2, help="under all traffic (default: %(default)s)")
    parser.add_argument(
        "--mib", type=int, default=0, help="more of them until g1 received so many checked MiB (default: %(default)s)"
    )
    parser.add_argument("--plain-round-trips", type=int, help="the same without vmloop (default: as many)")
    parser.add_argument("--guest-cpus", type=int, default=GUEST_CPUS, help="of each guest (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=paths.OUT, help="directory of the results (default: out)")
    options = parser.parse_args()
    without = options.round_trips if options.plain_round_trips is None else options.plain_round_trips
    console = Console()
    kind = HOSTS[options.host]
    began = time.monotonic()
    try:
        build_tools()
        with busy(console, f"booting {kind.title} and two guests"):
            lab = Lab.up("migration", bound=True, guest_cpus=options.guest_cpus, **kind.lab)
        with lab:
            stage = Stage(lab)
            stage.ensure()
            console.print(f"two hosts, two guests; up after {time.monotonic() - began:.0f} s")
            console.rule("[bold]apart, together, apart again", align="left", style="dim")
            timeline, trips, report = record(stage, BEFORE, DURING, AFTER, lambda text: console.print(f"  {text}"))
            show(console, timeline)
            console.rule("[bold]round trips under every kind of traffic", align="left", style="dim")
            count, enough = options.round_trips, options.mib << 20
            more, reports = round_trips(console, stage, count, enough) if count else ([], {})
            facts = describe(stage)
            console.rule("[bold]the same without vmloop", align="left", style="dim")
            plain = plain_trips(console, stage, without) if without else []
    except VmlabError as error:
        console.print(f"[red]the demo failed:[/] {story(error)}")
        return 1
    except KeyboardInterrupt:
        return 130
    data: dict[str, Any] = summary(kind.name, trips, more, plain, [report, *([reports] if reports else [])])
    data |= {
        "stage": facts,
        "trips": [trip.record() for trip in trips + more],
        "plain_trips": [trip.record() for trip in plain],
        "timeline": {"points": timeline.points, "events": timeline.events},
        "reports": [report, reports],
        "seconds": round(time.monotonic() - began, 1),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "migration.json").write_text(json.dumps(data, indent=1) + "\n")
    write_page(options.out / "migration.html", data, timeline)
    console.print(
        f"[bold]{data['round_trips']}[/] round trips: {data['connections_broken']} connections broken, "
        f"{data['bytes_wrong']} bytes wrong, {data['frames_lost_by_vmloop']} frames lost by vmloop, "
        f"pause added {format_ms(data['added_pause_ms'])}, to the longest wait {format_ms(data['added_wait_ms'])}"
    )
    console.print(f"{options.out}/migration.html  {options.out}/migration.json  ({data['seconds']:.0f} s)")
    bad = data["connections_broken"] or data["bytes_wrong"] or data["frames_lost_by_vmloop"]
    return 1 if bad else 0


def show(console: Console, timeline: Timeline) -> None:
    """The picture in one line."""
    up, leaves = timeline.at("channel up"), timeline.at("migration asked for", 1)
    console.print(
        f"  apart [bold]{timeline.mean(1, timeline.at('migration asked for')):.0f}[/] turns a second, "
        f"together [bold green]{timeline.mean(up + 0.5, leaves):.0f}[/], "
        f"apart again [bold]{timeline.mean(timeline.at('arrived', 1) + 0.5, timeline.points[-1][0]):.0f}[/]"
    )


if __name__ == "__main__":
    sys.exit(main())
