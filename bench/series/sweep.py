# SPDX-License-Identifier: GPL-2.0
"""Takes slices over a range of sizes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..path.measure import Meter
from ..path.rounds import Say, order
from ..path.sizes import size_name
from ..path.stage import PATHS, RING_SIZE

UDP_MAX = 65507
"""Most that a datagram of IPv4 carries, so a message of 64 KiB is sent as one of these."""

RING_DATAGRAM = 16000
"""Bytes of a datagram in the series over rings. A ring takes frames of a quarter of its size, what is larger
takes the standard network: these fit the smallest, of 64 KiB."""

MESSAGES = "message_size"
RINGS = "ring_size"

Test = Callable[[Meter, int, int | None], dict[str, float]]
"""Seconds, and the size of messages; None in the series over rings."""


def _tcp(meter: Meter, seconds: int, size: int | None) -> dict[str, float]:
    return meter.tcp(seconds, size)


def _udp(meter: Meter, seconds: int, size: int | None) -> dict[str, float]:
    return meter.udp(seconds, RING_DATAGRAM if size is None else min(size, UDP_MAX))


TESTS: dict[str, Test] = {"udp_stream": _udp, "tcp_stream": _tcp}
TITLES = {"udp_stream": "UDP", "tcp_stream": "TCP"}
UNITS = dict.fromkeys(TESTS, "Gbit/s")


@dataclass(frozen=True)
class Plan:
    """What is measured: sizes in bytes, seconds of each slice."""

    messages: tuple[int, ...]
    rings: tuple[int, ...]
    rounds: int
    seconds: int

    @property
    def steps(self) -> int:
        """How often Say hears of something that is about to be done."""
        messages = len(PATHS) * (1 + len(TESTS) * len(self.messages)) if self.messages else 0
        rings = (1 + len(self.rings)) * (1 + len(TESTS)) if self.rings else 0
        return self.rounds * (messages + rings)


class Sweep:
    """Takes the slices of a plan."""

    def __init__(self, meter: Meter, plan: Plan, say: Say) -> None:
        self.meter = meter
        self.plan = plan
        self.say = say

    def run(self) -> None:
        """Take them all, round by round."""
        for number in range(self.plan.rounds):
            where = f"round {number + 1} of {self.plan.rounds}"
            if self.plan.messages:
                self._messages(number, where)
            if self.plan.rings:
                self._rings(number, where)

    def _switch(self, where: str, path: str, ring: int) -> None:
        self.say(f"{where}: switching", None)
        self.meter.stage.set_ring_size(ring)
        self.meter.stage.use(path)

    def _take(self, where: str, series: str, path: str, test: str, message: int | None, ring: int | None) -> None:
        what = f"{where}: {TITLES[test]}" + (f", {size_name(message)}" if message else "")
        self.say(what, None)
        size = message if series == MESSAGES else ring
        run = partial(TESTS[test], self.meter, self.plan.seconds, message)
        self.say(what, self.meter.take(path, run, notes={"series": series, "test": test, "size": size}))

    def _messages(self, number: int, where: str) -> None:
        for path in order(number):
            self._switch(f"{where}, {path}", path, RING_SIZE)
            for size in self.plan.messages:
                for test in TESTS:
                    self._take(f"{where}, {path}", MESSAGES, path, test, size, None)

    def _rings(self, number: int, where: str) -> None:
        # The standard network has no rings of ours: it is measured once a round.
        sizes: list[int | None] = [None, *self.plan.rings]
        for size in sizes if number % 2 == 0 else sizes[::-1]:
            path = "standard" if size is None else "channel"
            here = f"{where}, {path}" if size is None else f"{where}, rings of {size_name(size)}"
            self._switch(here, path, size or RING_SIZE)
            for test in TESTS:
                self._take(here, RINGS, path, test, None, size)
