# SPDX-License-Identifier: GPL-2.0
"""The benchmarks' own tests: everything of them that needs no machine."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.path.measure import Meter
from tests.bench.fakes import FakeOutside, FakeStage


@pytest.fixture
def meter(monkeypatch):
    """A meter that makes a stage of its own; meter(kind, *others) says what others use outside."""

    def make(kind="kvm", *others):
        monkeypatch.setattr("bench.path.measure.Outside", lambda stage: FakeOutside(*others))
        stage: Any = FakeStage(kind)
        return Meter(stage)

    return make
