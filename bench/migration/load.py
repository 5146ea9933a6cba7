# SPDX-License-Identifier: GPL-2.0
"""All the traffic between g1 and g2 that goes on while g2 moves.

What ends in g1 is read as it comes; g1 does not move, and its clock is the one
that counts. What runs in g2 is detached, and judged at the end.
"""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any

from vmlab.errors import CommandFailed, VmlabError
from vmlab.process import Process

from ..path.stage import wait_for
from .stage import HERE, Detached, Stage

TURNS, BEATS_TO_G1, BEATS_TO_G2, BYTES_TO_G1, BYTES_TO_G2, IPERF_TO_G1, IPERF_TO_G2 = range(7300, 7307)
"""Ports."""

BEATS = 50
"""Numbered datagrams a second, each way."""
TENTH = 0.1
"""Seconds from line to line of who says how it stands."""


@dataclass(frozen=True)
class Turn:
    """What the asker said about a tenth of a second."""

    at: float
    """Seconds since it began."""
    count: int
    """Turns so far."""
    longest: float
    """Seconds of the longest."""


class Load:
    """The traffic. A context manager; finish() ends it in order, and judges."""

    def __init__(self, stage: Stage, everything: bool = True, rate: int = 0) -> None:
        self.stage = stage
        self.everything = everything
        """Or requests and responses only."""
        self.rate = rate
        """Requests a second at most; 0: as many as are answered."""
        self.began = 0.0
        self.report: dict[str, Any] = {}
        self._stack = ExitStack()
        self._g1: dict[str, Process] = {}
        self._g2: dict[str, Detached] = {}

    def _in_g1(self, name: str, command: str, ready: str = "") -> None:
        process = self._g1[name] = self._stack.enter_context(self.stage.g1.popen(f"exec {command}"))
        if ready:
            process.wait_for(ready, 20)

    def _in_g2(self, name: str, command: str, ready: str = "") -> None:
        process = self._g2[name] = Detached(self.stage.g2, name, command)
        self._stack.callback(process.kill)
        if ready:
            process.wait_for(ready)

    def __enter__(self) -> "Load":
        try:
            self._start()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _start(self) -> None:
        g1, g2 = self.stage.g1.ip, self.stage.g2.ip
        megabytes, megabits = self.stage.kind.megabytes, self.stage.kind.megabits
        self._in_g2("turns", f"{HERE}/turns serve {TURNS}", "ready")
        self._in_g1("turns", f"{HERE}/turns ask {g2} {TURNS} {self.rate}")
        wait_for(lambda: bool(self.turns()), 20, "turns")
        self.began = self.stage.lab.now() - self.turns()[-1].at
        if not self.everything:
            return
        self._in_g1("beats", f"{HERE}/beat receive {BEATS_TO_G1}", "ready")
        self._in_g2("beating", f"{HERE}/beat send {g1} {BEATS_TO_G1} {BEATS}")
        self._in_g2("beats", f"{HERE}/beat receive {BEATS_TO_G2}", "ready")
        self._in_g1("beating", f"{HERE}/beat send {g2} {BEATS_TO_G2} {BEATS}")
        self._in_g1("bytes", f"{HERE}/stream receive {BYTES_TO_G1}", "ready")
        self._in_g2("sending", f"{HERE}/stream send {g1} {BYTES_TO_G1} {megabytes}")
        self._in_g2("bytes", f"{HERE}/stream receive {BYTES_TO_G2}", "ready")
        self._in_g1("sending", f"{HERE}/stream send {g2} {BYTES_TO_G2} {megabytes}")
        server = "iperf3 -s -1 --forceflush -p"
        client = f"iperf3 -t 86400 -b {megabits}M --forceflush -p"
        self._in_g1("iperf", f"{server} {IPERF_TO_G1}", "listening")
        self._in_g2("iperf-client", f"{client} {IPERF_TO_G1} -c {g1}", "connected")
        self._in_g2("iperf", f"{server} {IPERF_TO_G2}", "listening")
        self._in_g1("iperf-client", f"{client} {IPERF_TO_G2} -c {g2}", "connected")
        self._in_g1("ping", f"ping -i 0.2 -n {g2}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not close(): it takes what went wrong before out of the story of what goes wrong here.
        self._stack.__exit__(kind, error, trace)

    # What it says while it goes on

    def turns(self) -> list[Turn]:
        """All tenths of a second so far."""
        lines = [line.split() for line in self._g1["turns"].out.splitlines()]
        return [Turn(float(at), int(count), float(longest)) for at, count, longest in (x for x in lines if len(x) == 3)]

    def longest(self, begin: float, end: float) -> float:
        """Seconds of the longest turn between two moments of our own clock."""
        # A line comes at the end of its tenth, and a little later here.
        found = [one.longest for one in self.turns() if begin - self.began <= one.at <= end - self.began + 2 * TENTH]
        return max(found, default=0.0)

    def first_after(self, at: float) -> float:
        """When the tenth ended in which the first turn after that was over; both in seconds since the load began."""
        turns = self.turns()
        for before, one in pairwise(turns):
            if one.at > at + TENTH and one.count > before.count:
                return one.at + TENTH / 2
        return turns[-1].at

    def _beats(self, column: int) -> tuple[int, int]:
        """A number that the receivers of datagrams have said last: g1's, and g2's."""
        lines = [line.split() for line in self._g1["beats"].out.splitlines()]
        of_g1 = [int(words[column]) for words in lines if len(words) == 4]
        words = self._g2["beats"].last()
        return of_g1[-1] if of_g1 else 0, int(words[column]) if len(words) == 4 else 0

    def received(self) -> tuple[int, int]:
        """Datagrams that have come: to g1, to g2."""
        return self._beats(1)

    def missing(self) -> tuple[int, int]:
        """Datagrams that have not come, below the last that has: to g1, to g2."""
        return self._beats(2)

    def again(self) -> None:
        """Wait until datagrams come to both: only then what is missing before them is known."""
        before = self.received()
        wait_for(
            lambda: all(n > m for n, m in zip(self.received(), before, strict=True)),
            self.stage.patient(20),
            "datagrams come both ways",
        )

    def settled(self, at_most: tuple[int, int] | None = None, seconds: float = 2.0) -> tuple[int, int]:
        """Missing datagrams once those under way have come: as few as were seen.

        Looks until there are no more than ``at_most``, or for so many seconds.
        """
        now = self.stage.lab.now
        deadline = now() + seconds
        found = self.missing()
        while now() < deadline and (at_most is None or any(n > m for n, m in zip(found, at_most, strict=True))):
            again = self.missing()
            found = min(found[0], again[0]), min(found[1], again[1])
        return found

    def check(self) -> None:
        """Raise if anything has ended; what has says why, at both ends: one of them is the cause."""
        ended = [
            f"g1: {name}: {process.err or process.out[-300:]}"
            for name, process in self._g1.items()
            if process.poll() is not None
        ]
        for name, one in self._g2.items():
            if one.has_ended():
                ended.append(f"g2: {name}: {one.out('err') or one.out()[-300:]}")
        if ended:
            raise CommandFailed("\n".join(["has ended:", *ended]))

    def bytes(self) -> int:
        """Checked bytes that have arrived at g1."""
        lines = [line.split() for line in self._g1["bytes"].out.splitlines()]
        numbers = [int(words[1]) for words in lines if len(words) == 3]
        return numbers[-1] if numbers else 0

    # The end

    def finish(self) -> dict[str, Any]:
        """End all in order.

        Returns the report: connections_broken, bytes_wrong, bytes, turns, pings_lost.
        """
        broken = wrong = 0
        report: dict[str, Any] = {}
        g1, g2 = self._g1, self._g2
        g1["turns"].terminate()
        broken += g1["turns"].wait(30).code != 0 or g2["turns"].wait() != 0
        report["turns"] = self.turns()[-1].count
        if self.everything:
            g1["sending"].terminate()
            to_g2 = g1["sending"].wait(60).code != 0 or g2["bytes"].wait(60) != 0
            to_g1 = g2["sending"].end(60) != 0 or g1["bytes"].wait(60).code != 0
            said = g1["bytes"].err + g2["bytes"].out("err")
            wrong = said.count("is wrong")
            broken += to_g1 + to_g2 - wrong
            if not (to_g1 or to_g2):
                reports = [g1["bytes"].out, g2["bytes"].out()]
                report["bytes"] = [json.loads(text.splitlines()[-1])["bytes"] for text in reports]
            for name in ("iperf-client", "iperf"):
                broken += g1[name].poll() is not None
                broken += not g2[name].guest.run(["test", "-e", f"{g2[name].file}.status"], check=False).code
            # SIGINT has ping say how many were lost.
            g1["ping"].send_signal(2)
            out = g1["ping"].wait(10).out
            sent, received = (int(word) for word in _numbers(out))
            report["pings_lost"] = sent - received
        self.report = {"connections_broken": broken, "bytes_wrong": wrong, **report}
        return self.report


def _numbers(text: str) -> tuple[str, str]:
    """Packets sent and received, from what ping says at its end."""
    for line in text.splitlines():
        if "packets transmitted" in line:
            words = line.split()
            return words[0], words[3]
    raise VmlabError(f"ping: {text[-300:]}")
