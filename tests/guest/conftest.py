# SPDX-License-Identifier: GPL-2.0
"""Fixtures of the guest tests: vmloop at work in a lab of three guests.

A stage is one lab for all tests (tests/stages.py). Without options the whole
list runs on the first stage of each kind of host. Naming stages runs it on each
of them: `--stages 6.1-pc,6.12-q35`, or `--stages debug-pc` for the debug kernel.
`--pick main` runs what `make test` does (tests/marks.py).
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from vmlab import Guest, Lab, paths

from tests import stages
from tests.guest.net import STALLS, Net, at_once, build_tools
from tests.guest.pair import standing
from tests.guest.streams import Streams
from tests.guest.toy import Toy


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_stage: does not depend on guests' kernels, runs on the first stage only")
    config.addinivalue_line(
        "markers", "loopback: both ends in one machine; on the first stage, and in one with each kernel that we build"
    )
    config.addinivalue_line("markers", "kvm_only: uses what only a QEMU has: its devices, QMP")
    config.addinivalue_line("markers", "xen_only: uses what only Xen has: grants, XenStore")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "stage" in metafunc.fixturenames:
        names = stages.names(metafunc.config.getoption("--stages", default=None), metafunc.definition.path.name)
        for mark, kind in (("kvm_only", "kvm"), ("xen_only", "xen")):
            if metafunc.definition.get_closest_marker(mark):
                names = [name for name in names if stages.kind(name) == kind]
        if metafunc.definition.get_closest_marker("one_stage"):
            names = names[:1]
        loopback = metafunc.definition.get_closest_marker("loopback") is not None
        if loopback:
            names = names[:1] + [name for name in names[1:] if stages.is_of_loopback(name)]
        marked = [
            pytest.param(name, id=name, marks=pytest.mark.lab(**stages.options(name, loopback))) for name in names
        ]
        metafunc.parametrize("stage", marked)


@pytest.fixture(scope="session")
def nets() -> Iterator[dict[int, Net]]:
    """vmloop of each lab that was booted, by the lab's identity."""
    build_tools()
    yield {}


@pytest.fixture
def streams(lab: Lab) -> Iterator[Streams]:
    """In one machine, a channel with the paths of packets and of streams. Tests of two guests have their own."""
    with standing(Streams(lab.host)) as one:
        yield one


@pytest.fixture
def net(stage: str, lab: Lab, nets: dict[int, Net]) -> Net:
    """vmloop at work: the agent runs, and each pair of guests has a channel."""
    found = nets.get(id(lab))
    if found is None or found.lab is not lab:
        nets.clear()
        found = nets[id(lab)] = Net(lab)
    found.ensure()
    return found


@pytest.fixture
def g3(lab: Lab) -> Guest:
    """The third guest."""
    return lab.guest("g3")


@pytest.fixture
def toy(net: Net, g1: Guest, g2: Guest) -> Iterator[Toy]:
    """A channel between g1 and g2, and the toy path in both."""
    at_once(*(lambda guest=guest: guest.run("modprobe vmloop_toy") for guest in (g1, g2)))
    try:
        yield Toy(net, g1, g2)
    finally:
        for guest in (g1, g2):
            guest.run("rmmod vmloop_toy", check=False)
        net.recover(g1, g2)


def pytest_sessionfinish() -> None:
    if STALLS:
        target = paths.OUT / "test" / "stalls.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(STALLS, indent=1) + "\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if STALLS:
        terminalreporter.section("longest stall of a transfer")
        for one in STALLS:
            terminalreporter.write_line(f"{one['seconds'] * 1000:6.0f} ms  {one['test']}")
