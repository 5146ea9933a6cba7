# SPDX-License-Identifier: GPL-2.0
"""Fixtures that hand a test a booted lab, and judge the consoles after it.

    @pytest.mark.lab(guests=2, kernel="6.12", machine="q35")
    def test_ping(lab):
        lab.guest("g1").run("ping -c 1 g2")

Tests whose marks are equal share one lab, as booting takes half a minute: each
finds the guests g1 to gN running and no others. What a kernel complains about
on a console fails the test during which it did so.

    @pytest.mark.keeps("r4")

says that a guest of this name, which an earlier test added, may still be there.

A test during which the emulator delivered an interrupt twice (a known fault of
its, which leaves an unmistakable trace, or stack) is run once more on new
machines, and the summary says so.
"""

import os
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from .console import interrupted_twice, stuck_where_patched
from .errors import GuestFailed, LabFailed
from .kinds import find_kind
from .lab import Lab
from .machine import Guest, Host, Machine

OPTIONS = {"kind": "kvm", "kernel": "6.1", "machine": "", "mtu": 1500}
"""Options of Lab.up() that have a pytest option --lab-NAME, with their defaults."""
GUEST_CPUS = "guest_cpus"
"""The one whose pytest option goes before what a mark says, so that any list of tests runs with any number."""


class LabPool:
    """The lab that runs, if any, and the boots that it took."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._lab: Lab | None = None
        self._options: dict[str, Any] = {}
        self._base: list[str] = []
        self._suspects: set[str] = set()
        self.notes: list[str] = []
        self.boots = 0
        """How many labs were booted."""
        self.external: str | None = config.getoption("--lab")

    def get(self, options: dict[str, Any], kept: Collection[str] = ()) -> Lab:
        """A running lab with these options whose guests are all up, and no others but those to be kept."""
        if self.external:
            if self._lab is None:
                self._lab = Lab.open(self.external)
                self._base = list(self._lab.guests)
        elif self._lab is None or self._options != options or not self._lab.running:
            self._boot_anew(options)
        answering = self._answering()
        lab = self._lab
        assert lab
        if not self.external and not answering.issuperset(lab.hosts):
            lab = self._boot_anew(options)
            answering = self._answering()
        for name in [name for name in lab.guests if name not in self._base]:
            if name not in kept or name in self._suspects or not lab.guest(name).answers():
                lab.remove_guest(name)
        for name in self._base:
            guest = lab.guest(name)
            if name in self._suspects or name not in answering:
                if guest.running:
                    guest.kill()
                guest.start()
        self._suspects.clear()
        lab.findings()  # of between the tests: nobody's
        return lab

    def _answering(self) -> set[str]:
        """The machines of the lab whose agents answer; all are asked at the same time."""
        assert self._lab
        machines = [*self._lab.hosts.values(), *map(self._lab.guest, self._base)]
        with ThreadPoolExecutor(len(machines)) as threads:
            answers = list(threads.map(Machine.answers, machines))
        return {one.name for one, well in zip(machines, answers, strict=True) if well}

    def _boot_anew(self, options: dict[str, Any]) -> Lab:
        self.drop()
        lab = self._lab = self._boot(options)
        self.boots += 1
        self._options = options
        self._base = list(lab.guests)
        return lab

    def _boot(self, options: dict[str, Any]) -> Lab:
        name = f"pytest-{os.getpid()}"
        try:
            return Lab.up(name, bound=True, **options)
        except LabFailed as error:
            self.notes.append(f"lab boot failed and was repeated: {error}")
            Lab(name).keep_evidence(f"boot-{len(self.notes)}")
            return Lab.up(name, bound=True, **options)

    def suspect(self, machines: set[str]) -> None:
        """Have these machines started anew before the next test."""
        hosts = set(self._lab.hosts) if self._lab else {"host"}
        if machines & hosts and not self.external:
            self.drop()
        self._suspects |= machines - hosts

    def drop(self) -> None:
        """End the lab."""
        if self._lab and not self.external:
            self._lab.down()
        self._lab = None


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("vmlab")
    group.addoption("--lab", metavar="NAME", help="use the running lab NAME, whatever the tests ask for")
    group.addoption("--guest-cpus", type=int, metavar="N", help="CPUs of all guests  [as marked, else 2]")
    for name, default in OPTIONS.items():
        group.addoption(f"--lab-{name}", default=default, type=type(default), help=f"{name} of tests that do not say")


POOL = pytest.StashKey[LabPool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "lab(guests=2, kind=, hosts=, kernel=, machine=, mtu=, memory=, cpus=, guest_memory=, guest_cpus=, "
        "append=, modules=, virtual_time=, init=): boots a lab",
    )
    config.addinivalue_line("markers", "keeps(name, ...): leaves guests that earlier tests added")
    config.stash[POOL] = LabPool(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses a lab, and put tests that can share one side by side."""
    for item in items:
        if "lab" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("lab"):
            item.add_marker(pytest.mark.lab)

    def shared(item: pytest.Item) -> str:
        mark = item.get_closest_marker("lab")
        return repr(sorted(mark.kwargs.items())) if mark else ""

    first = {key: n for n, key in reversed(list(enumerate(map(shared, items))))}
    items.sort(key=lambda item: first[shared(item)])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "call":
        item.stash[FAILED] = report.failed  # type: ignore[attr-defined]
    return report


FAILED = pytest.StashKey[bool]()
EMULATOR = pytest.StashKey[str]()
"""Set where the emulator, and not what is tested, broke a machine: what it did."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test, and once more if the emulator broke it."""
    if "lab" not in getattr(item, "fixturenames", ()):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if EMULATOR in item.stash and any(report.failed for report in reports):
        item.config.stash[POOL].notes.append(f"{item.nodeid} was repeated: {item.stash[EMULATOR]}")
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A booted lab, with the options of the test's ``lab`` mark."""
    pool = request.config.stash[POOL]
    options: dict[str, Any] = {name: request.config.getoption(f"--lab-{name}") for name in OPTIONS}
    for mark in reversed(list(request.node.iter_markers("lab"))):
        options |= mark.kwargs
    if cpus := request.config.getoption(GUEST_CPUS):
        options[GUEST_CPUS] = cpus
    options.setdefault("guests", 2 if find_kind(options["kind"]).has_guests else 0)
    lab = pool.get(options, {name for mark in request.node.iter_markers("keeps") for name in mark.args})
    yield lab
    found = lab.findings()
    if found or request.node.stash.get(FAILED, True):
        evidence = lab.keep_evidence(request.node.nodeid)
        where = evidence.directory
        request.node.add_report_section("teardown", "vmlab", f"evidence is in {where}")
        for machine, silence in evidence.silent.items():
            pool.notes.append(f"{request.node.nodeid}: {machine} was silent: {silence.summary}")
        silenced = {machine for machine, silence in evidence.silent.items() if silence.interrupted_while_off}
        pool.suspect(silenced)
        # What another machine complains of is its own fault.
        if silenced and silenced.issuperset(one.machine for one in found):
            broken = f"delivered an interrupt to {', '.join(silenced)} with interrupts off"
            request.node.stash[EMULATOR] = f"the emulator {broken} (evidence in {where})"
    if found:
        pool.suspect({one.machine for one in found})
        consoles = {one.machine: lab.machine(one.machine).console_text() for one in found}
        for machine, text in consoles.items():
            if interrupted_twice(text):
                broken = f"delivered an interrupt to {machine} twice"
            elif machine in lab.hosts and lab.kind.has_guests and stuck_where_patched(text):
                broken = f"left CPUs of {machine} stuck at a jump label"
            else:
                continue
            request.node.stash[EMULATOR] = f"the emulator {broken} (evidence in {where})"
            raise LabFailed(request.node.stash[EMULATOR])
        text = "\n".join(map(str, found[:20]))
        guests = not lab.kind.has_guests or any(one.machine not in lab.hosts for one in found)
        error = GuestFailed if guests else LabFailed
        raise error(f"during this test a kernel complained (evidence in {where}):\n{text}")
    if not lab.running:
        raise LabFailed(f"the outer machine ended during this test (evidence in {lab.directory})")


@pytest.fixture
def host(lab: Lab) -> Host:
    """The lab's host."""
    return lab.host


@pytest.fixture
def g1(lab: Lab) -> Guest:
    """The first guest."""
    return lab.guest("g1")


@pytest.fixture
def g2(lab: Lab) -> Guest:
    """The second guest."""
    return lab.guest("g2")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    notes = config.stash[POOL].notes
    if notes:
        terminalreporter.section("vmlab")
        for text in notes:
            terminalreporter.write_line(text)


def pytest_unconfigure(config: pytest.Config) -> None:
    pool = config.stash.get(POOL, None)
    if pool:
        pool.drop()
