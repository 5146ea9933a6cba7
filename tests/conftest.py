# SPDX-License-Identifier: GPL-2.0
"""Makes the lab's fixtures known to every test."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

pytest_plugins = ["vmlab.pytest_plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stages", metavar="KERNEL-MACHINE,...", help="run all guest tests there  [6.1-pc, and some on 6.12-q35]"
    )
