# SPDX-License-Identifier: GPL-2.0
"""Throughput of one long connection over time, while the modules come and go under it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vmlab.errors import VmlabError
from vmlab.process import Process

from .hosts import Spans
from .stage import Stage, wait_for

INTERVAL = 0.25

CALIBRATE = 8
"""Lines by which the connection's start is found: asking for the time disturbs, where it is asked in a machine."""

LINE = re.compile(r"^\[ *\d+\] +([\d.]+)-([\d.]+) +sec +[\d.]+ \w+ +([\d.]+) ([KMG]?)bits/sec", re.MULTILINE)
SCALE = {"": 1e-9, "K": 1e-6, "M": 1e-3, "G": 1.0}


@dataclass
class Timeline:
    """What a timeline shows."""

    points: list[tuple[float, float]] = field(default_factory=list)
    """End of each interval in seconds, and Gbit/s that arrived in it."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """When what was done: at (seconds), what."""
    broke: bool = False

    def mean(self, begin: float, end: float) -> float:
        """Mean throughput between two moments."""
        values = [rate for at, rate in self.points if begin < at <= end]
        return sum(values) / len(values) if values else 0.0


class Recorder:
    """Reads an iperf3 server's lines as they come."""

    def __init__(
        self, server: Process, show: Callable[[float, float], None], now: Callable[[], float], patience: float = 1
    ) -> None:
        self.server = server
        self.show = show
        self.now = now
        """The guests' clock, which need not go as ours does."""
        self.patience = patience
        self.zero: float | None = None
        """The connection's start on that clock: the earliest that any line allows."""
        self.points: list[tuple[float, float]] = []

    def poll(self) -> None:
        """Take in what has come."""
        for begin, end, rate, scale in LINE.findall(self.server.out):
            last = self.points[-1][0] if self.points else 0.0
            # Neither the line that sums up, nor one that is repeated at the end.
            if float(end) <= last or float(begin) < last - INTERVAL / 2:
                continue
            if len(self.points) < CALIBRATE:
                zero = self.now() - float(end)
                self.zero = zero if self.zero is None else min(self.zero, zero)
            self.points.append((float(end), float(rate) * SCALE[scale]))
            self.show(*self.points[-1])

    def age(self) -> float:
        """Seconds of the connection that are recorded."""
        self.poll()
        return self.points[-1][0] if self.points else 0.0

    def wait_until(self, seconds: float) -> None:
        """Go on recording until the connection is so old."""
        wait_for(lambda: self.age() >= seconds, (seconds + 60) * self.patience, "iperf3 goes on")

    def moment(self) -> float:
        """How old the connection is now; 0 before its first line."""
        self.poll()
        return 0.0 if self.zero is None else self.now() - self.zero


def record(stage: Stage, spans: Spans, show: Callable[[float, float], None]) -> Timeline:
    """A connection: so long without the modules, with them, and without them again."""
    timeline = Timeline()
    # It is ended when all is seen; switching takes its time too.
    most = spans.before + spans.during + spans.after + 60
    with stage.g2.popen(["iperf3", "-s", "-1", "-i", str(INTERVAL), "--forceflush"]) as server:
        server.wait_for("Server listening", stage.patient(20))
        with stage.g1.popen(["iperf3", "-c", stage.g2.ip, "-t", f"{most:.0f}", "-i", "0"]) as client:
            recorder = Recorder(server, show, stage.now, stage.kind.patience)

            def happened(what: str) -> float:
                now = recorder.moment()
                timeline.events.append({"at": round(now, 2), "what": what})
                return now

            recorder.wait_until(spans.before)
            happened("modprobe")
            stage.load()
            wait_for(lambda: recorder.age() >= 0 and stage.channel_is_up(), stage.patient(20), "the channel is up")
            up = happened("channel up")
            recorder.wait_until(up + spans.during)
            happened("rmmod")
            stage.unload()
            down = happened("unloaded")
            recorder.wait_until(down + spans.after)
            # It has shown that it lives; its own end would come later.
            if client.poll() is not None:
                timeline.broke = True
                raise VmlabError(f"the connection broke: {client.err}")
            client.terminate()
            client.wait(stage.patient(20))
    timeline.points = recorder.points
    return timeline
