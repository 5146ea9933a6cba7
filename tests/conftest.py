# SPDX-License-Identifier: GPL-2.0
"""Makes the lab's fixtures known to every test."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

pytest_plugins = ["vmlab.pytest_plugin", "pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stages", metavar="KERNEL-MACHINE,...", help="run all guest tests there  [6.1-pc, and some on 6.12-q35]"
    )
    parser.addoption(
        "--kinds", default="kvm", metavar="KIND,...", help="kinds of host to boot: kvm, xen  [%(default)s]"
    )
    parser.addoption(
        "--destroys",
        type=int,
        default=1,
        metavar="N",
        help="destroy each side of a channel on Xen N times  [%(default)s]",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a host of a kind that was not asked for."""
    kinds = config.getoption("--kinds").split(",")
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        mark = item.get_closest_marker("lab")
        (kept if not mark or mark.kwargs.get("kind", "kvm") in kinds else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
