# SPDX-License-Identifier: GPL-2.0
"""Other projects' tests with the stream path and without: suites/run [--kernel K] [--only WORD] [--out FILE]."""

import argparse
import json
import sys
import time
from pathlib import Path

from vmlab import Lab, paths

from .cpython import MODULES, CPython
from .machine import Machine
from .result import Comparison, Results, count


def compare(machine: Machine, suite: CPython) -> Comparison:
    """A suite without and with, in turn."""
    suite.prepare(machine)
    found: list[Results] = []
    seconds: list[float] = []
    status: list[int] = []
    for streams in (False, True):
        machine.have_streams(streams)
        began = time.monotonic()
        results, ended = suite.run(machine)
        found.append(results)
        status.append(ended)
        seconds.append(time.monotonic() - began)
        words = ", ".join(f"{number} {word}" for word, number in count(found[-1]).items())
        print(f"{suite.name}, {'with streams' if streams else 'plain'}: {words}, {seconds[-1]:.0f} s", flush=True)
    counted = machine.counted()
    one = Comparison(
        suite.name,
        suite.version(machine),
        found[0],
        found[1],
        counted,
        (seconds[0], seconds[1]),
        (status[0], status[1]),
    )
    for line in one.differences:
        print(f"  {line}", flush=True)
    print(f"  {counted['paired']} ends of lanes, {counted['rx_bytes']} bytes by them", flush=True)
    one.notes += [f"kernel: {line}" for line in machine.complaints()]
    return one


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="suites/run", description="Other projects' tests, with streams and without.")
    parser.add_argument("--kernel", default="6.1", help="of the machine (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="WORD", help="only suites with that in their name")
    parser.add_argument("--out", type=Path, default=paths.OUT / "suites.json", help="(default: out/suites.json)")
    options = parser.parse_args()

    suites = [suite for suite in map(CPython, MODULES) if options.only in suite.name]
    with Lab.up("suites", kind="solo", kernel=options.kernel, memory=4096, bound=True) as lab:
        machine = Machine(lab)
        print(f"kernel {machine.release}", flush=True)
        results = [compare(machine, suite) for suite in suites]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([one.record() for one in results], indent=1) + "\n")
    # What fails both ways, or is skipped, is neither.
    same = sum(one.passed for one in results)
    differ = sum(len(one.differences) for one in results)
    bad = [f"{one.suite}: {line}" for one in results for line in one.complaints]
    for line in bad:
        print(f"FAILED {line}")
    print(f"{same} passed, {differ + len(bad)} failed")
    return int(bool(differ or bad))


if __name__ == "__main__":
    sys.exit(main())
