# SPDX-License-Identifier: GPL-2.0
"""Rounds of slices: each round takes every test on one path, then on the other, then inside one guest."""

from collections.abc import Callable
from functools import partial

from .hosts import Lengths
from .measure import Meter, Slice
from .stage import LOOPBACK, PATHS

Say = Callable[[str, Slice | None], None]
"""Hears what is about to be done, and each slice that was taken."""

TESTS: dict[str, Callable[[Meter, Lengths], dict[str, float]]] = {
    "ping": lambda meter, lengths: meter.ping(lengths.ping),
    "request and response": lambda meter, lengths: meter.request_response(lengths.request_response),
    "TCP": lambda meter, lengths: meter.tcp(lengths.tcp),
    "UDP": lambda meter, lengths: meter.udp(lengths.udp),
    "UDP, one frame each": lambda meter, lengths: meter.udp_mtu(lengths.udp),
}

STEPS_OF_A_ROUND = (1 + len(TESTS)) * len(PATHS) + len(TESTS)
"""How often Say hears of something that is about to be done."""


def order(number: int) -> tuple[str, ...]:
    """The paths in a round's order: who begins changes from round to round."""
    return PATHS if number % 2 == 0 else PATHS[::-1]


def run_rounds(meter: Meter, rounds: int, lengths: Lengths, say: Say) -> None:
    """Take all slices, in turn."""

    def take(path: str, where: str) -> None:
        for name, test in TESTS.items():
            say(f"{where}: {name}", None)
            say(f"{where}: {name}", meter.take(path, partial(test, meter, lengths)))

    for number in range(rounds):
        where = f"round {number + 1} of {rounds}"
        for path in order(number):
            say(f"{where}, {path}: switching", None)
            meter.stage.use(path)
            take(path, f"{where}, {path}")
        with meter.inside():
            take(LOOPBACK, f"{where}, {LOOPBACK}")
