# SPDX-License-Identifier: GPL-2.0
"""Other projects' tests with the stream path and without: suites/run [--kernel K] [--only WORD] [--out FILE]."""

import argparse
import json
import sys
import time
from pathlib import Path

from vmlab import Lab, VmlabError, paths

from . import cpython, go, haproxy, libuv, postgres, redis, varnish
from .machine import Machine
from .result import Comparison, Run, count
from .suite import Suite

COMPARED: tuple[Suite, ...] = (*cpython.SUITES, *go.SUITES, *libuv.SUITES, *postgres.SUITES)
NAMED: tuple[Suite, ...] = (*haproxy.SUITES, *varnish.SUITES, *redis.SUITES)
"""Run only if they are named: what they expect within a time differs from run to run (docs/testing.md)."""
ALL = (*COMPARED, *NAMED)


def compare(machine: Machine, suite: Suite) -> Comparison:
    """A suite without and with, in turn."""
    suite.prepare(machine)
    runs: list[Run] = []
    for streams in (False, True):
        machine.have_streams(streams)
        began = time.monotonic()
        run = suite.run(machine)
        run.seconds = time.monotonic() - began
        runs.append(run)
        words = ", ".join(f"{number} {word}" for word, number in count(run.results).items())
        print(f"{suite.name}, {'with streams' if streams else 'plain'}: {words}, {run.seconds:.0f} s", flush=True)
        for name in run.again:
            print(f"  {name} failed at first", flush=True)
    counted = machine.counted()
    one = Comparison(suite.name, suite.version(machine), runs[0], runs[1], counted)
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

    suites = [suite for suite in (ALL if options.only else COMPARED) if options.only in suite.name]
    if not suites:
        parser.error(f"no suite has {options.only!r} in its name: {', '.join(suite.name for suite in ALL)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results: list[Comparison] = []
    bad: list[str] = []
    with Lab.up("suites", kind="solo", kernel=options.kernel, memory=4096, bound=True) as lab:
        machine = Machine(lab)
        print(f"kernel {machine.release}", flush=True)
        for suite in suites:
            try:
                results.append(compare(machine, suite))
            except VmlabError as error:
                # The others may run yet; without the machine they say so themselves.
                bad.append(f"{suite.name}: {error}")
            options.out.write_text(json.dumps([one.record() for one in results], indent=1) + "\n")
    # What fails both ways, or is skipped, is neither.
    same = sum(one.passed for one in results)
    differ = sum(len(one.differences) for one in results)
    bad += [f"{one.suite}: {line}" for one in results for line in one.complaints]
    for line in bad:
        print(f"FAILED {line}")
    print(f"{same} passed, {differ + len(bad)} failed")
    return int(bool(differ or bad))


if __name__ == "__main__":
    sys.exit(main())
