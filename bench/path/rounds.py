# SPDX-License-Identifier: GPL-2.0
"""Rounds of slices: each round takes every test on one path, then on the other."""

from collections.abc import Callable
from dataclasses import dataclass

from .measure import Meter, Slice
from .stage import PATHS

Say = Callable[[str, Slice | None], None]
"""Hears what is about to be done, and each slice that was taken."""

STEPS_OF_A_ROUND = 5 * len(PATHS)
"""How often Say hears of something that is about to be done."""


@dataclass(frozen=True)
class Lengths:
    """How much each slice measures: packets, and seconds."""

    ping: int = 500
    request_response: int = 2
    tcp: float = 3
    udp: float = 2


def run_rounds(meter: Meter, rounds: int, lengths: Lengths, say: Say) -> None:
    """Take all slices, in turn. Who begins changes from round to round."""
    tests = {
        "ping": lambda: meter.ping(lengths.ping),
        "request and response": lambda: meter.request_response(lengths.request_response),
        "TCP": lambda: meter.tcp(lengths.tcp),
        "UDP": lambda: meter.udp(lengths.udp),
    }
    for number in range(rounds):
        for path in PATHS if number % 2 == 0 else PATHS[::-1]:
            where = f"round {number + 1} of {rounds}, {path}"
            say(f"{where}: switching", None)
            meter.stage.use(path)
            for name, test in tests.items():
                say(f"{where}: {name}", None)
                say(f"{where}: {name}", meter.take(path, test))
