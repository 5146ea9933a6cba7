# SPDX-License-Identifier: GPL-2.0
"""One way of g2 from host to host under load, and what it cost."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ..path.stage import wait_for
from .load import Load
from .stage import Stage, now

RISE = 20.0
"""Seconds within which a channel must be there at all."""

AFTER = 1.0
"""Seconds for which its rise may be noticed."""


@dataclass
class Trip:
    """What one way cost. Moments are seconds since the load began; None where there was no channel."""

    to: str
    began: float = 0.0
    fell: float | None = None
    """The channel is closed."""
    prepared: float = 0.0
    """vmloop's devices are gone; QEMU begins."""
    arrived: float = 0.0
    """QEMU says that it is done."""
    down: bool = True
    """No guest had a channel when QEMU began."""
    clean: bool = True
    """Nothing of vmloop's was in the machine when QEMU began."""
    up: float | None = None
    """Both guests have the channel."""
    rise: float | None = None
    """Seconds from the machine's going on to that, by the clock of its host."""
    lost: int = 0
    """Datagrams that were lost while it was prepared, or after it had arrived; and frames that a channel dropped."""
    longest_ms: float = 0.0
    """The longest turn meanwhile."""
    quiet_ms: float = 0.0
    """The longest turn in the seconds before, while nothing was done."""
    downtime_ms: int = 0
    """For how long the machine stood still, as QEMU says."""

    @property
    def added_pause_ms(self) -> float:
        """By how much a turn took longer while vmloop worked than while it did not."""
        return max(0.0, self.longest_ms - self.quiet_ms)

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "added_pause_ms": round(self.added_pause_ms, 2)}


def go(stage: Stage, load: Load, say: Callable[[str, float], None] = lambda what, at: None) -> Trip:
    """Migrate g2 to the host on which it is not, prepared by the hook and begun by plain QMP.

    ``say`` hears of each step: what, and when.
    """
    g1, g2 = stage.g1, stage.g2
    here, there = g2.host, stage.other
    trip = Trip(there.name)
    quiet = now()
    trip.quiet_ms = 1000 * load.longest(quiet - 3, quiet)
    before = load.settled(seconds=0.5) if load.everything else (0, 0)

    def since() -> float:
        return round(now() - load.began, 2)

    def start(uri: str) -> None:
        began, clock = now(), stage.clock(here)
        had_channel = stage.is_up()
        trip.began = since()
        say("migration asked for", trip.began)
        stage.command(here, "prepare", g2.name)
        done = now()
        trip.prepared = since()
        if had_channel:
            fell = stage.first(here, "channel-closing", clock)
            trip.fell = round(since() - (stage.clock(here) - fell), 2)
            say("channel down", trip.fell)
        say("prepared", trip.prepared)
        trip.down = "up" not in (stage.state(g1, g2), stage.state(g2, g1))
        trip.clean = not stage.left_behind(g2)
        if load.everything:
            after = load.settled(before)
            trip.lost += _more(before, after)
        trip.longest_ms = 1000 * load.longest(began, done)
        g2.qmp("migrate", {"uri": uri})

    stage.lab.migrate(g2.name, there.name, start)
    # By the clock of the host where it happened: this program sees it late.
    resumed = stage.resumed(g2)
    trip.arrived = round(since() - (stage.clock(there) - resumed), 2)
    say("arrived", trip.arrived)
    if there is not g1.host:
        return trip

    # What the standard network lost while the machine stood still is over.
    before = load.settled(seconds=0.3) if load.everything else (0, 0)
    wait_for(stage.is_up, RISE, "the channel is up")
    up = stage.first(there, "channel-up", resumed)
    trip.rise = round(up - resumed, 2)
    trip.up = round(since() - (stage.clock(there) - up), 2)
    say("channel up", trip.up)
    trip.lost += stage.drops(g1, g2) + stage.drops(g2, g1)
    if load.everything:
        trip.lost += _more(before, load.settled(before))
    end = trip.up + AFTER
    wait_for(lambda: load.turns()[-1].at >= end, 60, "requests are answered")
    # The turn that the machine's own pause held up is QEMU's.
    first = load.first_after(trip.arrived)
    trip.longest_ms = max(trip.longest_ms, 1000 * load.longest(load.began + first, load.began + end))
    return trip


def _more(before: tuple[int, int], after: tuple[int, int]) -> int:
    """Datagrams that are missing since."""
    return sum(max(0, n - m) for m, n in zip(before, after, strict=True))
