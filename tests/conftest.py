# SPDX-License-Identifier: GPL-2.0
"""Makes the lab's fixtures known to every test."""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

pytest_plugins = ["vmlab.pytest_plugin", "pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stages",
        metavar="KERNEL-MACHINE,...",
        help="run all guest tests there  [6.1-pc, and some on 6.12-q35 and 6.1-pv]",
    )
    parser.addoption(
        "--kinds", metavar="KIND,...", help="kinds of host to boot: kvm, xen  [both, but the lab's own tests kvm only]"
    )
    parser.addoption(
        "--destroys",
        type=int,
        default=1,
        metavar="N",
        help="destroy each side of a channel on Xen N times  [%(default)s]",
    )
    parser.addoption("--migrations", action="store_true", help="run the tests of two hosts, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "migrations: needs two hosts; runs with --migrations")
    config.addinivalue_line("markers", "kvm_only: uses what only a QEMU has: its devices, QMP")
    # Who ends the tests gets their report, and labs are taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def is_wanted(config: pytest.Config, item: pytest.Function) -> bool:
    """Whether the options ask for a test."""
    lab = item.get_closest_marker("lab")
    kinds = config.getoption("--kinds") or ("kvm,xen" if "stage" in item.fixturenames else "kvm")
    if lab and lab.kwargs.get("kind", "kvm") not in kinds.split(","):
        return False
    return bool(config.getoption("--migrations")) or not item.get_closest_marker("migrations")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs hosts that were not asked for."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        wanted = not isinstance(item, pytest.Function) or is_wanted(config, item)
        (kept if wanted else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
