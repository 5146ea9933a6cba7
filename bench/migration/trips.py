# SPDX-License-Identifier: GPL-2.0
"""One way of g2 from host to host under load, and what it cost."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from vmlab import Host

from ..path.stage import wait_for
from .load import Load
from .stage import Stage

RISE = 20.0
"""Seconds within which a channel must be there at all."""

AFTER = 1.0
"""Seconds for which a channel's rise may be noticed."""

FOLLOWS = 3.0
"""Seconds after an arrival of which the longest turn is told, with vmloop and without."""


@dataclass
class Trip:
    """What one way cost. Moments are seconds since the load began; None where there was no channel."""

    to: str
    began: float = 0.0
    fell: float | None = None
    """The channel is closed."""
    prepared: float = 0.0
    """vmloop has let go; QEMU begins, or Xen has the guest halt."""
    arrived: float = 0.0
    """The machine goes on."""
    down: bool = True
    """No guest had a channel when QEMU began."""
    clean: bool = True
    """Nothing of vmloop's was in the machine when QEMU began, or after it arrived alone."""
    up: float | None = None
    """Both guests have the channel."""
    rise: float | None = None
    """Seconds from the machine's going on to that, by the clock of its host."""
    lost: int = 0
    """Datagrams that were lost while it was prepared, or after it had arrived; and frames that a channel dropped."""
    quiet_ms: float = 0.0
    """The longest turn in the seconds before, while nothing was done."""
    work_ms: float = 0.0
    """The longest turn while vmloop prepared the machine, which ran."""
    after_ms: float = 0.0
    """The longest turn in the seconds after it went on, but for the one that its own pause held up."""
    pause_ms: float = 0.0
    """The longest turn of all, which ordinarily is the one that the machine's own pause held up."""
    stood_ms: float | None = None
    """For how long the machine stood still, by its hypervisor's account; None if that has none."""
    own_pause_ms: float = 0.0
    """For how long vmloop kept the machine standing still, by its own account."""

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def added_pause_ms(trips: list[Trip], plain: list[Trip]) -> float:
    """For how much longer a machine stands still when it moves than it does without vmloop.

    By the median of its hypervisor's account; by added_wait_ms() if that has
    none. Never less than vmloop itself says.
    """
    stood, without = ([one.stood_ms for one in kind if one.stood_ms is not None] for kind in (trips, plain))
    own = median(trip.own_pause_ms for trip in trips)
    if len(stood) < len(trips) or len(without) < len(plain):
        return round(max(own, added_wait_ms(trips, plain)), 1)
    return round(max(own, median(stood) - median(without)), 1)


def added_wait_ms(trips: list[Trip], plain: list[Trip]) -> float:
    """By how much the longest wait for an answer is longer than without vmloop; less than 0 if it is shorter.

    Of each kind the median of the longest turns: single ones depend on where
    the machine's own pause falls. Most of a turn is the connection's recovery:
    TCP doubles its timeout as long as nothing comes back.
    """
    with_vmloop, without = (median(trip.pause_ms for trip in kind) for kind in (trips, plain))
    return round(with_vmloop - without, 1)


def _stood_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)


def go_plainly(stage: Stage, load: Load) -> Trip:
    """Migrate g2 to the host on which it is not, where there is no vmloop: the measure of the others."""
    trip = Trip(stage.other.name)
    quiet = stage.lab.now()
    trip.quiet_ms = 1000 * load.longest(quiet - 3, quiet)
    trip.began = trip.prepared = round(quiet - load.began, 2)
    trip.stood_ms = _stood_ms(stage.lab.migrate(stage.g2.name, trip.to, lambda uri: stage.kind.begin(stage.g2, uri)))
    trip.arrived = round(stage.lab.now() - load.began, 2)
    _settle(load, trip)
    return trip


def _settle(load: Load, trip: Trip) -> None:
    """Wait until an arrival, and what came of it, are well over; look for the longest turns."""
    end = max(trip.arrived + FOLLOWS, (trip.up or 0.0) + AFTER)
    wait_for(lambda: load.turns()[-1].at >= end, 60, "requests are answered")
    trip.pause_ms = 1000 * load.longest(load.began + trip.began, load.began + end)
    # The turn that the machine's own pause held up is the hypervisor's.
    first = load.first_after(trip.arrived)
    trip.after_ms = 1000 * load.longest(load.began + first, load.began + end)


def go(stage: Stage, load: Load, say: Callable[[str, float], None] = lambda what, at: None) -> Trip:
    """Migrate g2 to the host on which it is not, by what its hypervisor has for that.

    Where there is a hook it is called before. ``say`` hears of each step: what,
    and when.
    """
    g1, g2, kind = stage.g1, stage.g2, stage.kind
    here, there = g2.host, stage.other
    trip = Trip(there.name)
    quiet = stage.lab.now()
    trip.quiet_ms = 1000 * load.longest(quiet - 3, quiet)
    before = load.settled(seconds=0.5) if load.everything else (0, 0)

    def since() -> float:
        return round(stage.lab.now() - load.began, 2)

    def at(host: Host, clock: float) -> float:
        """The same for a moment by a host's clock: this program sees late what happens there."""
        return round(since() - (stage.clock(host) - clock), 2)

    def start(uri: str) -> None:
        began, clock = stage.lab.now(), stage.clock(here)
        had_channel = stage.is_up()
        trip.began = since()
        say("migration asked for", trip.began)
        if kind.has_hook:
            stage.command(here, "prepare", g2.name)
            done = stage.lab.now()
            trip.prepared = since()
            trip.down = "up" not in (stage.state(g1, g2), stage.state(g2, g1))
            trip.clean = not kind.left_behind(g2)
            if load.everything:
                after = load.settled(before)
                trip.lost += _more(before, after)
            trip.work_ms = 1000 * load.longest(began, done)
            if had_channel:
                trip.fell = at(here, stage.first(here, "channel-closing", clock))
        else:
            # The guest itself lets go, when Xen has it halt.
            kind.begin(g2, uri)
            trip.prepared = at(here, stage.first(here, "channel-closing" if had_channel else "guest-leaving", clock))
            trip.fell = trip.prepared if had_channel else None
        if trip.fell is not None:
            say("channel down", trip.fell)
        say("prepared", trip.prepared)
        if kind.has_hook:
            kind.begin(g2, uri)

    trip.stood_ms = _stood_ms(stage.lab.migrate(g2.name, there.name, start))
    resumed = kind.resumed(g2)
    trip.arrived = at(there, resumed)
    say("arrived", trip.arrived)
    trip.own_pause_ms = round(1000 * kind.own_pause(g2), 1)
    if there is not g1.host:
        if not kind.has_hook:
            trip.clean = not kind.left_behind(g2)
        _settle(load, trip)
        return trip

    # What the standard network lost while the machine stood still is over.
    if load.everything:
        load.again()
    before = load.settled(seconds=0.3) if load.everything else (0, 0)
    wait_for(stage.is_up, stage.patient(RISE), "the channel is up")
    up = stage.first(there, "channel-up", resumed)
    trip.rise = round(up - resumed, 2)
    trip.up = at(there, up)
    say("channel up", trip.up)
    trip.lost += stage.drops(g1, g2) + stage.drops(g2, g1)
    if load.everything:
        trip.lost += _more(before, load.settled(before))
    _settle(load, trip)
    return trip


def _more(before: tuple[int, int], after: tuple[int, int]) -> int:
    """Datagrams that are missing since."""
    return sum(max(0, n - m) for m, n in zip(before, after, strict=True))
