# SPDX-License-Identifier: GPL-2.0
"""Measures for how long a guest of Xen stands still, with vmloop and without.

Each guest in turn is checkpointed (`xl save -c`, the suspension of a migration
without the rest of it) while a TCP stream runs each way: as the side that
grants the channel's memory, and as the one that maps it. In virtual time, so
that what waits for a CPU of the outside does not count as the guest's.

Two figures of each: what vmloop_xen itself says that it kept the guest from
being suspended, and the longest time that the other guest's pings had no answer.
Writes out/pause.json.
"""

import argparse
import json
import signal
import sys
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from vmlab import Guest, paths
from vmlab.errors import VmlabError, story
from vmlab.progress import busy
from vmlab.xen import TOOLS

from ..path.hosts import find_host
from ..path.measure import describe_host
from ..path.stage import RING_SIZE, Stage, wait_for

INTERVAL = 0.005
"""Seconds between two pings."""
PINGS = "/run/pings"
ROLES = {"g1": "grants", "g2": "maps"}
"""What a guest does with the channel's memory: the one with the smaller id grants it."""
WAYS = ("without", "with")


def longest_gap(text: str) -> float:
    """Seconds between two answers in the output of `ping -D`, at most."""
    times = [float(line[1 : line.index("]")]) for line in text.splitlines() if line.startswith("[") and "time=" in line]
    if len(times) < 2:
        raise VmlabError(f"{len(times)} pings were answered")
    return max(later - earlier for earlier, later in pairwise(times))


def stream(stage: Stage) -> None:
    """Begin a TCP stream each way that outlasts the measurement."""
    stage.both("iperf3 -s -D >/dev/null")
    for guest, peer in (stage.guests, stage.guests[::-1]):

        def begun(guest: Guest = guest, peer: Guest = peer) -> bool:
            command = f"iperf3 -c {peer.ip} -t 1 >/dev/null && setsid -f iperf3 -c {peer.ip} -t 86000 >/dev/null 2>&1"
            return guest.run(command, check=False, timeout=stage.patient(60)).code == 0

        wait_for(begun, stage.patient(20), f"{peer.name} takes a stream")


def checkpoint(stage: Stage, guest: Guest, way: str) -> dict[str, Any]:
    """Suspend a guest once, and let it go on."""
    peer = next(one for one in stage.guests if one is not guest)
    patience = stage.patient(60)
    with peer.popen(f"exec ping -D -i {INTERVAL} {guest.ip} >{PINGS}") as pings:

        def answered() -> int:
            return int(peer.run(f"grep -c time= {PINGS} || :", timeout=patience).out)

        wait_for(lambda: answered() > 0, stage.patient(20), "a ping is answered")
        stage.both("pgrep -f '[i]perf3 -c' >/dev/null")
        stage.lab.host.run([f"{TOOLS}/xl", "save", "-c", guest.name, "/dev/null"], timeout=stage.patient(300))
        guest.run("true", timeout=patience)
        if way == "with":
            wait_for(stage.channel_is_up, stage.patient(20), "the channel is up again")
        before = answered()
        wait_for(lambda: answered() > before, stage.patient(20), "pings are answered again")
        pings.send_signal(signal.SIGINT)
        pings.wait(patience)
    text = peer.run(["cat", PINGS], timeout=patience).out
    own = int(guest.run("cat /sys/module/vmloop_xen/parameters/pause", timeout=patience).out) if way == "with" else 0
    return {
        "way": way,
        "guest": guest.name,
        "role": ROLES[guest.name],
        "own_ms": own / 1000,
        "unanswered_ms": round(longest_gap(text) * 1000, 1),
    }


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench/run pause", description="For how long a guest of Xen stands still.")
    parser.add_argument("--rounds", type=int, default=3, help="of everything (default: %(default)s)")
    parser.add_argument("--kernel", default="6.1", help="of the guests (default: %(default)s)")
    parser.add_argument("--machine", default="", help="pv or pvh (default: pv)")
    parser.add_argument("--out", type=Path, default=paths.OUT, help="directory of the results (default: out)")
    return parser


def table(taken: list[dict[str, Any]]) -> Table:
    """The medians for people."""
    found = Table(title="medians, ms of the guest's time", title_style="dim")
    for name in ("the guest", "vmloop's own account", "unanswered with vmloop", "without"):
        found.add_column(name, justify="left" if name == "the guest" else "right")
    for role in ROLES.values():
        ours, plain = (
            [one for one in taken if (one["way"], one["role"]) == (way, role)] for way in ("with", "without")
        )
        own, unanswered = (median(one[name] for one in ours) for name in ("own_ms", "unanswered_ms"))
        cells = own, unanswered, median(one["unanswered_ms"] for one in plain)
        found.add_row(f"{role} the channel's memory", *(f"{cell:.1f}" for cell in cells))
    return found


def main() -> int:
    """Entry point."""
    options = arguments().parse_args()
    console = Console()
    kind = find_host("xen")
    began = time.monotonic()
    taken: list[dict[str, Any]] = []
    try:
        with ExitStack() as stack:
            with busy(console, f"booting {kind.title} and two guests"):
                stage = stack.enter_context(Stage("pause", kind, options.kernel, options.machine))
            host = describe_host(stage)
            stage.use("channel")
            stream(stage)
            for number in range(options.rounds):
                for way in WAYS:
                    if way == "with":
                        stage.use("channel")
                    else:
                        stage.unload()
                    for guest in stage.guests:
                        with busy(console, f"round {number + 1} of {options.rounds}: {guest.name}, {way} vmloop"):
                            one = checkpoint(stage, guest, way)
                        taken.append(one)
                        console.print(
                            f"  round {number + 1} of {options.rounds}: {guest.name}, {way} vmloop: "
                            f"own {one['own_ms']:.1f} ms, unanswered {one['unanswered_ms']:.1f} ms"
                        )
    except VmlabError as error:
        console.print(f"[red]the measurement failed:[/] {story(error)}")
        return 1
    except KeyboardInterrupt:
        return 130
    seconds = round(time.monotonic() - began, 1)
    options.out.mkdir(parents=True, exist_ok=True)
    data = {"host": host, "ring_size": RING_SIZE, "checkpoints": taken, "seconds": seconds}
    (options.out / "pause.json").write_text(json.dumps(data, indent=1) + "\n")
    console.print(table(taken))
    console.print(f"{options.out}/pause.json  ({seconds:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
