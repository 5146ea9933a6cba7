# SPDX-License-Identifier: GPL-2.0
"""This build beside an earlier one: bench/run earlier TREE [--host H] [--rounds N] [--guest-cpus N] [--kernel K].

TREE is a checkout of the other commit in which its modules (scripts/build-modules RELEASE) and its programs
(scripts/build-host) are built. Both builds' modules take turns in the same guests, with the agent of this one, so that
neither the machine nor the day makes a difference. Emits series, and asserts nothing.
"""

import argparse
import json
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from vmlab import paths
from vmlab.errors import VmlabError, story

from ..path.hosts import HOSTS, find_host
from ..path.measure import ALL_KINDS, Meter, describe_host, ratio
from ..path.progress import Steps
from ..path.rounds import TESTS, order
from ..path.stage import EARLIER, EARLIER_BUILD, GUEST_CPUS, Stage
from ..path.table import number

TURNS = ("standard", EARLIER, "channel")


def copy_build(tree: Path, release: str) -> Path:
    """Put a checkout's modules and command where the guests see them. Raises VmlabError when it is not built."""
    modules = tree / "out/modules" / release
    command = tree / "out/bin/vmloop"
    if not command.exists() or not modules.is_dir():
        raise VmlabError(f"{tree} is not built: run scripts/build-host and scripts/build-modules {release} there")
    target = paths.OUT / "earlier"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in (command, *modules.glob("*.ko")):
        shutil.copy(file, target)
    return target


def commit(tree: Path) -> str:
    """The commit that is checked out there, and whether something has been changed since; empty if nobody can say."""
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def show(console: Console, results: list[dict[str, Any]]) -> None:
    """Print the medians, and what this build's are of the others'."""
    table = Table(title="median of the slices, in one boot, in turn", title_style="dim")
    table.add_column("test")
    table.add_column("unit", style="dim")
    for name in (*TURNS, "channel / earlier", "channel / standard"):
        table.add_column(name, justify="right")
    for test, kind in ALL_KINDS.items():
        medians = {one["path"]: number(one["median"]) for one in results if one["test"] == test}
        ratios = [ratio(results, test, base) for base in (EARLIER, "standard")]
        table.add_row(
            kind.title,
            kind.unit,
            *(medians.get(path, "") for path in TURNS),
            *("" if one is None else f"{one:.2f}" for one in ratios),
        )
    console.print(table)


ALL_TESTS = TESTS | {"TCP, 4 streams": lambda meter, lengths: meter.tcp_flows(lengths.tcp)}


def take(meter: Meter, rounds: int, tests: list[str], steps: Steps) -> None:
    """These tests, on each of the three in turn."""
    lengths = meter.stage.kind.lengths
    for turn in range(rounds):
        for path in order(turn, TURNS):
            where = f"round {turn + 1} of {rounds}, {path}"
            steps.say(f"{where}: switching", None)
            # Each begins with modules that have just been loaded.
            if meter.stage.loaded:
                meter.stage.unload()
            meter.stage.use(path)
            for name in tests:
                steps.say(f"{where}: {name}", None)
                steps.say(f"{where}: {name}", meter.take(path, partial(ALL_TESTS[name], meter, lengths)))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="bench/run earlier", description="This build of vmloop beside another.")
    parser.add_argument("tree", type=Path, help="a checkout of the other commit, built; relative to this one")
    parser.add_argument("--host", choices=HOSTS, default="kvm", help="kind of host (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="of each, in turn (default: %(default)s)")
    parser.add_argument("--kernel", default="6.1", help="of the guests (default: %(default)s)")
    parser.add_argument("--machine", default="", help="of the guests (default: the first that the host has)")
    parser.add_argument("--guest-cpus", type=int, default=GUEST_CPUS, help="of each guest (default: %(default)s)")
    parser.add_argument(
        "--tests", nargs="*", choices=ALL_TESTS, default=list(ALL_TESTS), metavar="TEST", help="(default: all)"
    )
    parser.add_argument(
        "--out", type=Path, default=paths.OUT / "bench-earlier.json", help="(default: out/bench-earlier.json)"
    )
    options = parser.parse_args()
    console = Console()
    kind = find_host(options.host)
    try:
        with Stage("earlier", kind, options.kernel, options.machine, guest_cpus=options.guest_cpus) as stage:
            host = describe_host(stage) | {"earlier": commit(options.tree), "now": commit(paths.REPO)}
            build = copy_build(options.tree.resolve(), host["guest_kernel"])
            stage.both(f"rm -rf {EARLIER_BUILD} && cp -r {build} {EARLIER_BUILD}")
            meter = Meter(stage)
            with Steps(console, options.rounds * len(TURNS) * (len(options.tests) + 1)) as steps:
                take(meter, options.rounds, options.tests, steps)
    except VmlabError as error:
        console.print(f"[red]the benchmark failed:[/] {story(error)}")
        return 1
    results = meter.results()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"host": host, "results": results, "record": meter.record()}, indent=1) + "\n")
    show(console, results)
    console.print(f"series: {options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
