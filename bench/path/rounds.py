# SPDX-License-Identifier: GPL-2.0
"""Rounds of slices: each round takes the tests on one path, then on the next, then inside one guest."""

from collections.abc import Callable
from functools import partial

from .hosts import Lengths
from .measure import Meter, Slice
from .stage import LOOPBACK, PATHS, STREAM

Say = Callable[[str, Slice | None], None]
"""Hears what is about to be done, and each slice that was taken."""

TESTS: dict[str, Callable[[Meter, Lengths], dict[str, float]]] = {
    "ping": lambda meter, lengths: meter.ping(lengths.ping),
    "request and response": lambda meter, lengths: meter.request_response(lengths.request_response),
    "TCP": lambda meter, lengths: meter.tcp(lengths.tcp),
    "UDP": lambda meter, lengths: meter.udp(lengths.udp),
    "UDP, one frame each": lambda meter, lengths: meter.udp_mtu(lengths.udp),
}

STREAM_TESTS = ("request and response", "TCP")
"""Those that the stream path carries; the others are packets."""

STEPS_OF_A_ROUND = (1 + len(TESTS)) * len(PATHS) + 1 + len(STREAM_TESTS) + len(TESTS)
"""How often Say hears of something that is about to be done."""


def order(number: int, paths: tuple[str, ...] = PATHS) -> tuple[str, ...]:
    """The paths in a round's order: which one is first changes from round to round."""
    return paths if number % 2 == 0 else paths[::-1]


def run_rounds(meter: Meter, rounds: int, lengths: Lengths, say: Say) -> None:
    """Take all slices, in turn."""

    def take(path: str, where: str) -> None:
        for name, test in TESTS.items():
            if path == STREAM and name not in STREAM_TESTS:
                continue
            say(f"{where}: {name}", None)
            say(f"{where}: {name}", meter.take(path, partial(test, meter, lengths)))

    for number in range(rounds):
        where = f"round {number + 1} of {rounds}"
        for path in order(number, (*PATHS, STREAM)):
            say(f"{where}, {path}: switching", None)
            meter.stage.use(path)
            take(path, f"{where}, {path}")
        with meter.inside():
            take(LOOPBACK, f"{where}, {LOOPBACK}")
