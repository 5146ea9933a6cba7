# SPDX-License-Identifier: GPL-2.0
"""A run that ends in time: what cannot be done by a deadline is not begun.

    --within SECONDS   begin no test that would not be over by then
    --pace FACTOR      begin with the belief that all takes so many times as long as was recorded
    --listed FILE      only the tests that are named there, one a line
    --plan FILE        write there what would run, and run nothing
    --account FILE     write there what was not run, and how long what was run took

A test may begin if there is time for it, for all core tests that are still to
come, for the boots of their labs, and for taking labs down. The times expected
are those of tests/durations.json, multiplied by how this run compares to them
so far. Core tests begin as long as any time is left.
"""

import json
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from vmlab.pytest_plugin import POOL

from tests.marks import rank
from tests.plan import RECORDED, Durations, lab_name

TAKEN_DOWN = 30.0
"""Seconds in which labs are taken down and the report is written."""
PRIOR = 60.0
"""How many seconds of tests the pace at the beginning counts for."""


@dataclass
class Account:
    """What a run has done, and what it has left."""

    until: float | None
    pace: float
    recorded: Durations
    begun: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    """Tests that failed, and labs whose first test failed before it began: what they took is nobody's."""
    took: Durations = field(default_factory=Durations)
    expected_so_far: float = 0.0
    took_so_far: float = 0.0
    lab: str = ""
    """The lab of the test that was begun last."""
    boots: int = 0
    """How many labs had been booted by then."""

    def now_pace(self) -> float:
        """How many times as long as recorded things take."""
        return (self.pace * PRIOR + self.took_so_far) / (PRIOR + self.expected_so_far)

    def add(self, item: pytest.Item, call: pytest.CallInfo[None], boots: int) -> None:
        """Note how long a phase of a test took; a setup that booted its lab counts as that boot."""
        name, lab = name_of(item), lab_of(item)
        if call.when == "setup" and boots != self.boots:
            self.boots = boots
            self.took.boots[lab] = call.duration
            self.expected_so_far += self.recorded.boot(lab)
        elif call.when == "setup":
            self.took.tests[name] = call.duration
        else:
            self.took.tests[name] = self.took.tests.get(name, 0) + call.duration
        if call.when == "teardown":
            self.expected_so_far += self.recorded.test(name)
        self.took_so_far += call.duration
        self.lab = lab or self.lab

    def good(self) -> Durations:
        """How long took what did not fail."""
        tests = {name: seconds for name, seconds in self.took.tests.items() if name not in self.failed}
        return Durations(tests=tests, boots={k: v for k, v in self.took.boots.items() if k not in self.failed})

    def boot_before(self, lab: str, running: str) -> float:
        """Seconds of the boot that a test needs where another lab runs."""
        return self.recorded.boot(lab) if lab and lab != running else 0.0

    def seconds_of(self, items: list[pytest.Item]) -> float:
        """What tests are expected to take one after the other, at the recorded pace."""
        total, running = 0.0, self.lab
        for item in items:
            total += self.boot_before(lab_of(item), running) + self.recorded.test(name_of(item))
            running = lab_of(item) or running
        return total

    def fits(self, item: pytest.Item) -> bool:
        """Whether there is time for a test."""
        if self.until is None:
            return True
        left = self.until - time.monotonic() - TAKEN_DOWN * self.now_pace()
        if is_core(item):
            return left > 0
        ahead = [one for one in item.session.items if is_core(one) and one.nodeid not in self.begun]
        return self.seconds_of([item, *ahead]) * self.now_pace() <= left


ACCOUNT = pytest.StashKey[Account]()
LEFT = pytest.StashKey[list[pytest.Item]]()


def name_of(item: pytest.Item) -> str:
    """A test's name in the record."""
    return item.nodeid.removeprefix("tests/")


def lab_of(item: pytest.Item) -> str:
    """The name of the lab that a test boots, or finds running; empty if it has none."""
    mark = item.get_closest_marker("lab")
    return lab_name(mark.kwargs) if mark else ""


def is_core(item: pytest.Item) -> bool:
    """Whether a run without this test has failed."""
    return rank(item) == 0


def group_of(item: pytest.Item) -> str:
    """The step of `make test-all` that runs a test: its stage, or the kind of its host."""
    stage = item.callspec.params.get("stage") if hasattr(item, "callspec") else None
    if stage:
        return str(stage)
    mark = item.get_closest_marker("lab")
    options = mark.kwargs if mark else {}
    kind = options.get("kind", "kvm")
    if item.get_closest_marker("migrations"):
        return f"migrations {kind}"
    # A machine by itself may have any kernel: what one of them lacks is not to hold up the others.
    return f"lab {kind} {options.get('kernel', '')}".rstrip() if kind == "solo" else f"lab {kind}"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("deadline")
    group.addoption("--within", type=float, metavar="SECONDS", help="begin no test that would not be over by then")
    group.addoption("--pace", type=float, default=1.0, metavar="FACTOR", help="times as long as recorded, at first")
    group.addoption("--listed", type=Path, metavar="FILE", help="only tests that are named there")
    group.addoption("--plan", type=Path, metavar="FILE", help="write there what would run, and run nothing")
    group.addoption(
        "--recorded", type=Path, default=RECORDED, metavar="FILE", help="how long tests take  [%(default)s]"
    )
    group.addoption("--account", type=Path, metavar="FILE", help="write there what was not run, and what took how long")


def pytest_configure(config: pytest.Config) -> None:
    within = config.getoption("--within")
    until = time.monotonic() + within if within is not None else None
    config.stash[ACCOUNT] = Account(until, config.getoption("--pace"), Durations.load(config.getoption("--recorded")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    listed = config.getoption("--listed")
    if listed:
        names = set(listed.read_text().splitlines())
        left_out = [item for item in items if name_of(item) not in names]
        items[:] = [item for item in items if name_of(item) in names]
        config.hook.pytest_deselected(items=left_out)
        if missing := names - {name_of(item) for item in items}:
            raise pytest.UsageError(f"{listed} names tests that there are not: {', '.join(sorted(missing))}")


def pytest_collection_finish(session: pytest.Session) -> None:
    target = session.config.getoption("--plan")
    if target:
        target.write_text(json.dumps([planned(session.config, item) for item in session.items], indent=1))
        session.items.clear()


def planned(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """What scripts/run-tests wants to know of a test."""
    mark = item.get_closest_marker("lab")
    kernel = mark.kwargs.get("kernel") if mark else None
    return {
        "name": name_of(item),
        "group": group_of(item),
        "lab": lab_of(item),
        "seconds": config.stash[ACCOUNT].recorded.test(name_of(item)),
        "kernel": kernel or config.getoption("--lab-kernel"),
    }


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Leave a test alone for which there is no time."""
    account = item.config.stash[ACCOUNT]
    if account.fits(item):
        account.begun.add(item.nodeid)
        return None
    # What the test before has left for this one.
    item.session._setupstate.teardown_exact(nextitem)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how long each phase took."""
    account = item.config.stash[ACCOUNT]
    account.add(item, call, item.config.stash[POOL].boots)
    report = yield
    if report.failed:
        account.failed.add(name_of(item))
        account.failed.add(lab_of(item) if call.when == "setup" else "")
    return report


def not_run(session: pytest.Session) -> list[pytest.Item]:
    """What was left alone, or not come to."""
    return [item for item in session.items if item.nodeid not in session.config.stash[ACCOUNT].begun]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[LEFT] = left = not_run(session)
    target = session.config.getoption("--account")
    if target:
        account = session.config.stash[ACCOUNT]
        found = {
            "not_run": [name_of(item) for item in left],
            "core_not_run": [name_of(item) for item in left if is_core(item)],
            "took": asdict(account.good()),
        }
        target.write_text(json.dumps(found, indent=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash.get(LEFT, [])
    if left:
        terminalreporter.section("not run: no time was left")
        for item in left:
            terminalreporter.write_line(("core: " if is_core(item) else "") + name_of(item))
