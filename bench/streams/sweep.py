# SPDX-License-Identifier: GPL-2.0
"""Takes slices of streams over ranges of sizes.

- Messages: throughput and round trips, as in Figures 7 and 8 of the paper of XenVMC, on one stage with the packet path
  and with what needs no way to go: loopback, and a socket of the file system.
- Blocks in memory: fast-IVC's first experiment (Figure 10), by one to eight connections for each block.
- Files: its second (Figure 11), by vsftpd.
- Rings: its third (Figure 12), with four connections as there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..path.measure import Meter
from ..path.rounds import Say, order
from ..path.sizes import size_name
from ..path.stage import LOOPBACK, PATHS, STREAM, UNIX
from .talk import Talk

MESSAGES = "message_size"
BLOCKS = "block_size"
FILES = "file_size"
RINGS = "stream_ring_size"

STREAMS, TRIPS, FTP, FOUR = "tcp_stream", "tcp_rr", "ftp", "tcp_stream_4"
CONNECTIONS = (1, 2, 4, 8)
"""Of a block; fast-IVC had 2, 4 and 8 channels."""
BLOCKS_OF = {f"blocks_{count}": count for count in CONNECTIONS}

TITLES = {
    STREAMS: "throughput",
    TRIPS: "round trip",
    FTP: "files by FTP",
    FOUR: "throughput of four connections",
    **{name: f"by {count} connection{'s' if count > 1 else ''}" for name, count in BLOCKS_OF.items()},
}
UNITS = {STREAMS: "Gbit/s", TRIPS: "us", FTP: "Gbit/s", FOUR: "Gbit/s", **dict.fromkeys(BLOCKS_OF, "Gbit/s")}

BETWEEN = (*PATHS, STREAM)
"""Paths between two guests."""
ALL = (*BETWEEN, LOOPBACK, UNIX)

RING_MESSAGE = 16 << 10
"""Bytes that are written at a time in the series over rings."""


class Fetches(Protocol):
    """Fetches files: files.Files."""

    def fetch(self, size: int) -> float:
        """Gbit/s at which a file of ``size`` bytes comes."""


@dataclass(frozen=True)
class Plan:
    """What is measured: sizes in bytes, seconds of each slice."""

    messages: tuple[int, ...]
    blocks: tuple[int, ...]
    files: tuple[int, ...]
    rings: tuple[int, ...]
    rounds: int
    seconds: int

    @property
    def steps(self) -> int:
        """How often Say hears of something that is about to be done."""
        between = 2 * len(self.messages) + len(CONNECTIONS) * len(self.blocks) + len(self.files)
        switches = len(BETWEEN) if between else 0
        inside = 2 * len(self.messages)
        return self.rounds * (
            switches + len(BETWEEN) * between + (len(ALL) - len(BETWEEN)) * inside + 2 * len(self.rings)
        )


class Sweep:
    """Takes the slices of a plan."""

    def __init__(self, meter: Meter, plan: Plan, say: Say, files: Fetches | None = None) -> None:
        self.meter = meter
        self.files = files
        self.talk = Talk(meter.stage)
        self.plan = plan
        self.say = say

    def run(self) -> None:
        """Take them all, round by round."""
        for number in range(self.plan.rounds):
            where = f"round {number + 1} of {self.plan.rounds}"
            if self.plan.messages or self.plan.blocks or self.plan.files:
                self._paths(number, where)
            self._rings(number, where)

    def _take(self, where: str, series: str, path: str, test: str, size: int, run: Callable[[], float]) -> None:
        what = f"{where}: {TITLES[test]}, {size_name(size)}"
        self.say(what, None)
        notes = {"series": series, "test": test, "size": size}
        self.say(what, self.meter.take(path, lambda: {test: run()}, notes=notes))

    def _switch(self, where: str, path: str, ring: int = 0) -> None:
        self.say(f"{where}: switching", None)
        self.meter.stage.set_stream_ring(ring)
        self.meter.stage.use(path)

    def _messages(self, where: str, path: str) -> None:
        seconds = self.plan.seconds
        for size in self.plan.messages:
            self._take(where, MESSAGES, path, STREAMS, size, partial(self.talk.stream, path, size, seconds))
            self._take(where, MESSAGES, path, TRIPS, size, partial(self.talk.trip, path, size, seconds))

    def _paths(self, number: int, where: str) -> None:
        for path in order(number, BETWEEN):
            here = f"{where}, {path}"
            self._switch(here, path)
            self._messages(here, path)
            for size in self.plan.blocks:
                for test, count in BLOCKS_OF.items():
                    run = partial(self.talk.blocks, path, size, self.plan.seconds, count)
                    self._take(here, BLOCKS, path, test, size, run)
            if self.files:
                for size in self.plan.files:
                    self._take(here, FILES, path, FTP, size, partial(self.files.fetch, size))
        for path in ALL[len(BETWEEN) :]:
            self._messages(f"{where}, {path}", path)

    def _rings(self, number: int, where: str) -> None:
        for size in self.plan.rings if number % 2 == 0 else self.plan.rings[::-1]:
            here = f"{where}, rings of {size_name(size)}"
            self._switch(here, STREAM, size)
            run = partial(self.talk.stream, STREAM, RING_MESSAGE, self.plan.seconds, 4)
            self._take(here, RINGS, STREAM, FOUR, size, run)
