# SPDX-License-Identifier: GPL-2.0
"""Measures how long after its arrival a guest of Xen has its channel, in virtual time.

Two hosts have no virtual time in common, so g2 leaves by `xl save`, and comes
back to the same host as one that migrates. What the receiving host does is what
it does in a migration (`arrive.py`). Under all traffic of bench/run migration,
which leaves no CPU idle, or with a few requests a second. Writes out/arrival.json.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from vmlab import Lab, paths
from vmlab.errors import VmlabError, story
from vmlab.progress import busy
from vmlab.xen import XL

from ..migration.hosts import HOSTS
from ..migration.load import Load
from ..migration.stage import HERE, Stage, build_tools
from ..path.stage import GUEST_CPUS, wait_for

FILE = f"{HERE}/saved"
ARRIVE = Path(__file__).with_name("arrive.py")
LAB = HOSTS["xen"].lab
"""What the guests of bench/run migration are."""
BETWEEN = 3.0
"""Seconds of traffic in the channel before the guest leaves again, by g1's clock."""


def go(stage: Stage, load: Load) -> dict[str, Any]:
    """g2 leaves and comes back; returns moments, in seconds since it went on, of what the agent told."""
    host, g2 = stage.lab.host, stage.g2
    clock = stage.clock(host)
    host.run([XL, "save", g2.name, FILE], timeout=stage.patient(300))
    receive = ["/usr/bin/python3", str(ARRIVE), FILE, XL, "migrate-receive", "-e"]
    resumed = float(host.run(receive, timeout=stage.patient(300)).out)
    # Nothing is asked of the guests until then: that would take their CPUs.
    up = stage.first(host, "channel-up", resumed)
    g2.wait_booted()
    moments = [
        {"event": one["event"], "at": round(one["time"] - resumed, 3)}
        for one in stage.told(host)
        if clock <= one["time"] <= up
    ]
    end = load.turns()[-1].at + BETWEEN
    wait_for(lambda: load.turns()[-1].at >= end, stage.patient(60), "requests are answered")
    load.check()
    return {"rise_s": round(up - resumed, 3), "moments": moments}


def remember(stage: Stage) -> None:
    """Have g1 go on sending to g2's address while it is away, as to a guest that another host still runs."""
    g2 = stage.g2
    stage.g1.run(["ip", "neigh", "replace", g2.ip, "lladdr", g2.mac, "dev", "eth0", "nud", "permanent"])


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench/run arrival", description="How soon an arrived guest has its channel.")
    parser.add_argument("--arrivals", type=int, default=10, help="how many (default: %(default)s)")
    parser.add_argument("--requests", type=int, help="so many a second (0: all that are answered) and nothing else")
    parser.add_argument("--kernel", default="6.1", help="of the guests (default: %(default)s)")
    parser.add_argument("--machine", default=LAB["machine"], help="pv or pvh (default: %(default)s)")
    parser.add_argument(
        "--real-time", dest="virtual_time", action="store_false", help="by clocks that count what the outside does, too"
    )
    parser.add_argument("--out", type=Path, default=paths.OUT, help="directory of the results (default: out)")
    return parser


def main() -> int:
    """Entry point."""
    options = arguments().parse_args()
    console = Console()
    began = time.monotonic()
    taken: list[dict[str, Any]] = []
    try:
        build_tools()
        with busy(console, "booting a Xen host and two guests"):
            lab = Lab.up(
                "arrival",
                0,
                kind="xen",
                virtual_time=options.virtual_time,
                bound=True,
                kernel=options.kernel,
                machine=options.machine,
                guest_memory=LAB["guest_memory"],
                guest_cpus=GUEST_CPUS,
            )
        with lab:
            for name in ("g1", "g2"):
                lab.add_guest(name, movable=True)
            stage = Stage(lab)
            stage.ensure()
            console.print(f"two guests; up after {time.monotonic() - began:.0f} s")
            remember(stage)
            with Load(stage, everything=options.requests is None, rate=options.requests or 0) as load:
                wait_for(stage.is_up, stage.patient(20), "the channel is up")
                for number in range(options.arrivals):
                    taken.append(go(stage, load))
                    console.print(f"  {number + 1:2}: channel after {taken[-1]['rise_s']:.2f} s")
                report = load.finish()
            version, clocks = stage.kind.version(lab), lab.clocks
    except VmlabError as error:
        console.print(f"[red]the measurement failed:[/] {story(error)}")
        return 1
    except KeyboardInterrupt:
        return 130
    rises = [one["rise_s"] for one in taken]
    seconds = round(time.monotonic() - began, 1)
    options.out.mkdir(parents=True, exist_ok=True)
    data = {
        "hypervisor": version,
        "kernel": options.kernel,
        "machine": options.machine,
        "virtual_time": options.virtual_time,
        "time": clocks,
        "requests_a_second": options.requests,
        "arrivals": taken,
        "report": report,
        "seconds": seconds,
    }
    (options.out / "arrival.json").write_text(json.dumps(data, indent=1) + "\n")
    console.print(
        f"[bold]{len(rises)}[/] arrivals: {min(rises):.2f} to {max(rises):.2f} s, median {median(rises):.2f} s; "
        f"{report['connections_broken']} connections broken, {report['bytes_wrong']} bytes wrong"
    )
    console.print(f"{options.out}/arrival.json  ({seconds:.0f} s)")
    return 1 if report["connections_broken"] or report["bytes_wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
