# SPDX-License-Identifier: GPL-2.0
"""Round trips: how many of them are made."""

from typing import Any

import pytest
from rich.console import Console

from bench.migration import __main__ as migration
from bench.migration.trips import Trip

EACH = 300
"""Bytes that g1 receives during one way."""


class FakeLoad:
    """A load of which each way lets some bytes through."""

    def __init__(self, stage: Any):
        self.ways = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def check(self):
        self.ways += 1

    def bytes(self):
        return self.ways * EACH

    def finish(self):
        return {"bytes": [self.bytes()] * 2}


@pytest.mark.parametrize(
    ("enough", "ways"),
    [(0, 4), (4 * EACH, 4), (4 * EACH + 1, 6), (5 * EACH, 6), (6 * EACH, 6)],
)
def test_more_until_enough_is_checked(monkeypatch, enough, ways):
    """Never fewer than asked for, and always there and back."""
    monkeypatch.setattr(migration, "Load", FakeLoad)
    monkeypatch.setattr(migration, "go", lambda stage, load: Trip("host"))
    stage: Any = None
    trips, report = migration.round_trips(Console(quiet=True), stage, 2, enough)
    assert len(trips) == ways
    assert report["bytes"] == [ways * EACH] * 2
