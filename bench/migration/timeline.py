# SPDX-License-Identifier: GPL-2.0
"""Requests and responses over time while g2 comes and goes: XenLoop's Figure 11."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..path.stage import wait_for
from .load import Load, Turn
from .stage import Stage
from .trips import Trip, go

INTERVAL = 0.5
"""Seconds of a point."""


@dataclass
class Timeline:
    """What the picture shows."""

    points: list[tuple[float, float]] = field(default_factory=list)
    """End of each interval in seconds, and turns a second in it."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """When what was: at (seconds), what."""

    def mean(self, begin: float, end: float) -> float:
        """Mean rate between two moments."""
        values = [rate for at, rate in self.points if begin < at <= end]
        return sum(values) / len(values) if values else 0.0

    def at(self, what: str, nth: int = 0) -> float:
        """When something was for the n-th time, from 0 on."""
        return [float(one["at"]) for one in self.events if one["what"] == what][nth]


def rates(turns: list[Turn], interval: float = INTERVAL) -> list[tuple[float, float]]:
    """Turns a second, interval by interval."""
    points: list[tuple[float, float]] = []
    at, count = 0.0, 0
    for turn in turns:
        # Tenths are never cut: an interval ends with the first that reaches its end.
        if turn.at >= at + interval - 0.05:
            points.append((turn.at, (turn.count - count) / (turn.at - at)))
            at, count = turn.at, turn.count
    return points


def record(
    stage: Stage, before: float, during: float, after: float, show: Callable[[str], None]
) -> tuple[Timeline, list[Trip], dict[str, Any]]:
    """So many seconds apart, together, and apart again. g2 must be apart."""
    timeline = Timeline()
    with Load(stage, everything=False) as load:

        def say(what: str, at: float) -> None:
            timeline.events.append({"at": at, "what": what})
            show(f"{what} ({at:.1f} s)")

        def wait_until(seconds: float) -> None:
            wait_for(lambda: load.turns()[-1].at >= seconds, seconds + 60, "requests are answered")

        wait_until(before)
        trips = [go(stage, load, say)]
        wait_until((trips[0].up or trips[0].arrived) + during)
        trips.append(go(stage, load, say))
        wait_until(trips[1].arrived + after)
        timeline.points = rates(load.turns())
        report = load.finish()
    return timeline, trips, report
