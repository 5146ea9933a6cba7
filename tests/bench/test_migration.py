# SPDX-License-Identifier: GPL-2.0
"""Round trips: how many of them are made."""

from typing import Any

import pytest
from rich.console import Console
from vmlab.errors import VmlabError

from bench.migration import __main__ as migration
from bench.migration.trips import Trip

EACH = 300
"""Bytes that g1 receives during one way."""
STALLS = 3
"""Ways after which it receives none, where the stream stalls."""


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


class StalledLoad(FakeLoad):
    """A load of which nothing comes through any more."""

    def bytes(self):
        assert self.ways < 10, "it went on all the same"
        return min(self.ways, STALLS) * EACH


def run(monkeypatch, load, enough):
    """Two round trips or more."""
    monkeypatch.setattr(migration, "Load", load)
    monkeypatch.setattr(migration, "go", lambda stage, load: Trip("host"))
    stage: Any = None
    return migration.round_trips(Console(quiet=True), stage, 2, enough)


@pytest.mark.parametrize(
    ("enough", "ways"),
    [(0, 4), (4 * EACH, 4), (4 * EACH + 1, 6), (5 * EACH, 6), (6 * EACH, 6)],
)
def test_more_until_enough_is_checked(monkeypatch, enough, ways):
    """Never fewer than asked for, and always there and back."""
    trips, report = run(monkeypatch, FakeLoad, enough)
    assert len(trips) == ways
    assert report["bytes"] == [ways * EACH] * 2


def test_a_stream_that_stalls(monkeypatch):
    """It does not go on forever."""
    with pytest.raises(VmlabError, match="no checked byte"):
        run(monkeypatch, StalledLoad, (STALLS + 1) * EACH)
