# SPDX-License-Identifier: GPL-2.0
"""Measures the agent with pretended guests (host/simulation): QEMUs without machines, modules without kernels.

For each size it brings up guests and channels, waits, and has guests come and go; then
the same beside a guest that floods, a QEMU that hangs, and a guest that never answers.
Writes out/agent.json, out/agent.html, and all that was measured into out/agent-details.json.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmlab import paths

from .page import write_page

GUESTS_ON_A_BRIDGE = 100
CHANNELS_OF_A_GUEST = 10
"""That it asks for; as many more are asked for by others."""
OF_A_GUEST = 18
"""Descriptors of the agent: 4, and 7 for each channel in the making, 4 at once for each guest, in two of them."""
SPARE = 1500
"""Descriptors that the agent has beyond that, also of guests that come and go."""


@dataclass(frozen=True)
class Size:
    """A host."""

    guests: int

    @property
    def bridges(self) -> int:
        """With as many guests each as fit."""
        return max(1, self.guests // GUESTS_ON_A_BRIDGE)

    @property
    def descriptors(self) -> int:
        """That the agent needs at most (host/vmloopd/src/limits.rs)."""
        return OF_A_GUEST * self.guests + SPARE


def sizes(guests: list[int], most: int) -> list[Size]:
    """Hosts with so many guests, for which ``most`` descriptors of the agent suffice."""
    found = [Size(count) for count in guests]
    for size in found:
        if size.descriptors > most:
            raise SystemExit(f"{size.guests} guests may take over {most} descriptors; raise the limit (ulimit -Hn)")
    return found


def entry(measured: dict[str, Any]) -> dict[str, Any]:
    """What out/agent.json says of a size."""
    return {
        "guests": measured["guests"],
        "channels": measured["channels"],
        "rss_mb": round(measured["memory"]["rss_mb"], 1),
        "arrival_ms": round(measured["arrivals"]["p99_ms"], 1),
        "idle_cpu_percent": round(measured["idle_cpu_percent"], 3),
    }


def measure(program: Path, size: Size, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one size."""
    words = {
        "guests": size.guests,
        "bridges": size.bridges,
        "channels": CHANNELS_OF_A_GUEST,
        "rounds": options.rounds,
        "disturbed": options.disturbed,
    }
    command = [str(program), "measure", *(f"--{name}={value}" for name, value in words.items())]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def build() -> Path:
    """The program, as it is released."""
    host = paths.REPO / "host"
    target = Path(os.environ.get("CARGO_TARGET_DIR", host / "target"))
    words = ["cargo", "build", "-q", "--release", "--locked", "-p", "vmloop-simulation"]
    subprocess.run(words, cwd=host, check=True)
    return target / "release/vmloop-simulation"


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="bench/run agent", description="What the agent takes for many guests.")
    parser.add_argument("--guests", type=int, nargs="+", default=[100, 300, 1000], help="(default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=4, help="times that each of 50 guests comes (default: %(default)s)"
    )
    parser.add_argument("--disturbed", type=int, default=30, help="seconds beside bad guests (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=paths.OUT, help="directory of the results (default: out)")
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    program = build()
    options.out.mkdir(parents=True, exist_ok=True)
    all_measured: list[dict[str, Any]] = []
    for size in sizes(options.guests, most):
        all_measured.append(measure(program, size, options))
        (options.out / "agent.json").write_text(json.dumps([entry(one) for one in all_measured], indent=1) + "\n")
        (options.out / "agent-details.json").write_text(json.dumps(all_measured, indent=1) + "\n")
    write_page(options.out / "agent.html", all_measured)
    for one in all_measured:
        print(json.dumps(entry(one)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
