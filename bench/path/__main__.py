# SPDX-License-Identifier: GPL-2.0
"""The longer benchmark: python -m bench.path [--rounds N] [--kernel K] [--machine M] [--out FILE].

Emits series, and asserts nothing.
"""

import argparse
import json
from pathlib import Path

from rich.console import Console
from vmlab import paths

from .measure import Meter, Slice, describe_host
from .rounds import Lengths, run_rounds
from .stage import Stage
from .table import show


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="bench.path", description="The standard network against the channel.")
    parser.add_argument("--rounds", type=int, default=10, help="of each path, in turn (default: %(default)s)")
    parser.add_argument("--kernel", default="6.1", help="of the guests (default: %(default)s)")
    parser.add_argument("--machine", default="pc", help="of the guests (default: %(default)s)")
    parser.add_argument("--ring-size", default="4M", help="bytes of each ring (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=paths.OUT / "bench-path.json", help="(default: out/bench-path.json)"
    )
    options = parser.parse_args()

    console = Console()
    policy = f'idle_ms = 0\nring_size = "{options.ring_size}"\n'
    with Stage("bench", options.kernel, options.machine, policy) as stage:
        meter = Meter(stage)
        lengths = Lengths(ping=1000, request_response=5, tcp=5, udp=3)

        def say(what: str, taken: Slice | None) -> None:
            if taken:
                values = ", ".join(f"{test} {value:.4g}" for test, value in taken.values.items())
                console.print(f"[dim]{what}:[/] {values}" + ("" if taken.kept else " [yellow](left out)[/]"))

        run_rounds(meter, options.rounds, lengths, say)
        host = describe_host(stage) | {"ring_size": options.ring_size}
    results = meter.results()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"host": host, "results": results, "record": meter.record()}, indent=1) + "\n")
    show(console, results)
    console.print(f"series: {options.out}")


if __name__ == "__main__":
    main()
