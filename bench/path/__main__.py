# SPDX-License-Identifier: GPL-2.0
"""The longer benchmark: bench/run path [--host H] [--rounds N] [--kernel K] [--machine M] [--out FILE].

Emits series, and asserts nothing.
"""

import argparse
import json
from pathlib import Path

from rich.console import Console
from vmlab import paths

from .hosts import HOSTS, find_host
from .measure import Meter, Slice, describe_host
from .rounds import run_rounds
from .sizes import parse_ring_size
from .stage import GUEST_CPUS, RING_SIZE, Stage
from .table import show


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="bench/run path", description="The standard network against the channel.")
    parser.add_argument("--host", choices=HOSTS, default="kvm", help="kind of host (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="of each path, in turn (default: %(default)s)")
    parser.add_argument("--kernel", default="6.1", help="of the guests (default: %(default)s)")
    parser.add_argument("--machine", default="", help="of the guests (default: the first that the host has)")
    parser.add_argument(
        "--ring-size", type=parse_ring_size, default=RING_SIZE, metavar="SIZE", help="of each ring (default: 4M)"
    )
    parser.add_argument("--guest-cpus", type=int, default=GUEST_CPUS, help="of each guest (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=paths.OUT / "bench-path.json", help="(default: out/bench-path.json)"
    )
    options = parser.parse_args()

    console = Console()
    kind = find_host(options.host)
    with Stage("bench", kind, options.kernel, options.machine, options.ring_size, options.guest_cpus) as stage:
        meter = Meter(stage)

        def say(what: str, taken: Slice | None) -> None:
            if taken:
                values = ", ".join(f"{test} {value:.4g}" for test, value in taken.values.items())
                console.print(f"[dim]{what}:[/] {values}" + ("" if taken.kept else " [yellow](left out)[/]"))

        run_rounds(meter, options.rounds, kind.lengths.times(2), say)
        host = describe_host(stage) | {"ring_size": options.ring_size}
    results = meter.results()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"host": host, "results": results, "record": meter.record()}, indent=1) + "\n")
    show(console, results)
    console.print(f"series: {options.out}")


if __name__ == "__main__":
    main()
