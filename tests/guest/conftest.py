# SPDX-License-Identifier: GPL-2.0
"""Fixtures of the guest tests: vmloop at work in a lab of three guests.

A stage is one lab for all tests. Without options the whole list runs on the
first of STAGES, and on the others what depends on kernel and machine (ON_EACH)
or on the kind of host (ON_XEN). Naming stages runs the whole list on each of them:
`--stages 6.1-pc,6.12-q35`, or `--stages debug-pc` for the debug kernel.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from vmlab import Guest, Lab, paths
from vmlab.xen import Xen

from tests.guest.net import STALLS, Net, build_tools

STAGES = ("6.1-pc", "6.12-q35", "6.1-pv")

ON_EACH = {
    "test_ping",
    "test_ping6",
    "test_tcp_of_all_sizes",
    "test_udp_of_all_sizes",
    "test_large_datagrams_stay_whole",
    "test_vlan",
    "test_modprobe",
    "test_rmmod_everywhere",
    "test_agent_killed_and_started",
}
"""Tests that run on every stage."""

ON_XEN = {
    "test_unloaded_modules_hold_nothing",
    "test_no_guest_reads_anothers_nodes",
    "test_no_guest_writes_what_dom0_says",
    "test_pages_of_one_state_only",
    "test_each_pair_has_pages_of_its_own",
    "test_peer_that_stands_still",
    "test_policy_takes_the_channel_away",
    "test_guest_outside_of_the_group",
}
"""What runs on a Xen host besides."""


def on_xen(stage: str) -> bool:
    """Whether the host of a stage is a Xen host: its guests' machines say so."""
    return stage.rpartition("-")[2] in Xen.machines


def options(stage: str) -> dict[str, Any]:
    """The lab of a stage. Files of 1 GiB are kept in guests' memory."""
    kernel, _, machine = stage.rpartition("-")
    if on_xen(stage):
        return {
            "kind": "xen",
            "guests": 3,
            "kernel": kernel,
            "machine": machine,
            "memory": 10240,
            "guest_memory": 1536,
        }
    return {
        "guests": 3,
        "kernel": kernel,
        "machine": machine,
        "memory": 8192 if kernel == "debug" else 6144,
        "guest_memory": 2304 if kernel == "debug" else 1536,
        "append": "iomem=relaxed",  # shm writes to regions that the modules use
    }


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_stage: does not depend on guests' kernels, runs on the first stage only")
    config.addinivalue_line("markers", "kvm_only: uses what only a QEMU has: its devices, QMP")
    config.addinivalue_line("markers", "xen_only: uses what only Xen has: grants, XenStore")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "stage" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("--stages", default=None)
        stages = wanted.split(",") if wanted else STAGES
        for mark, xen in (("kvm_only", False), ("xen_only", True)):
            if metafunc.definition.get_closest_marker(mark):
                stages = [stage for stage in stages if on_xen(stage) == xen]
        if metafunc.definition.get_closest_marker("one_stage"):
            stages = stages[:1]
        marked = [pytest.param(stage, id=stage, marks=pytest.mark.lab(**options(stage))) for stage in stages]
        metafunc.parametrize("stage", marked)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--stages", default=None):
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        stage = getattr(item, "callspec", None) and item.callspec.params.get("stage")  # type: ignore[attr-defined]
        name = getattr(item, "originalname", item.name)
        wanted = stage not in STAGES[1:] or name in ON_EACH or (on_xen(stage) and name in ON_XEN)
        (kept if wanted else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture(scope="session")
def nets() -> Iterator[dict[int, Net]]:
    """vmloop of each lab that was booted, by the lab's identity."""
    build_tools()
    yield {}


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
