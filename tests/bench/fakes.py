# SPDX-License-Identifier: GPL-2.0
"""A stage without machines: what a measurement does there is written down."""

from collections.abc import Iterator
from typing import Any

from bench.path.hosts import HOSTS

IPERF = '{"end": {"sum_received": {"bytes": 500000000, "bits_per_second": 2e9}}}'
PING = "rtt min/avg/max/mdev = 0.1/0.250/0.4/0.1 ms, ipg/ewma 0.2/0.2 ms\n"
SOCKPERF = "sockperf: \x1b[2;35mSummary: Latency is 12.500 usec\x1b[0m\n"
TALK = '{"bytes": 500000000, "seconds": 2.0, "trips": 100000, "blocks": 5}'
ANSWERS = {"ping": PING, "iperf3": IPERF, "sockperf": SOCKPERF, "talk": TALK}


class Running:
    """A command that runs."""

    def __init__(self, code: int | None = None) -> None:
        self.code = code
        self.out = ""
        self.err = ""
        self.machine = "a machine"

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_for(self, _pattern: str, _timeout: float = 30) -> None:
        pass

    def wait(self, _timeout: float = 60) -> "Ended":
        return Ended("")

    def poll(self) -> int | None:
        return self.code


class Ended:
    """A command that has ended well."""

    def __init__(self, out: str) -> None:
        self.out = out
        self.code = 0


class FakeGuest:
    """Answers as the programs that measure do."""

    ip = "10.77.0.12"

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def run(self, command: str | list[str], **_: Any) -> Ended:
        text = command if isinstance(command, str) else " ".join(command)
        self.log.append(text)
        return Ended(ANSWERS[text.split()[0].rpartition("/")[2]])

    def popen(self, command: str | list[str]) -> Running:
        return Running()


class FakeProcessors:
    """A host that uses two CPU-seconds between any two looks."""

    def __init__(self) -> None:
        self.used = 0.0

    def read(self) -> float:
        self.used += 2.0
        return self.used


class FakeStage:
    """The two guests of a stage, and a log of what was done."""

    def __init__(self, kind: str = "kvm") -> None:
        self.kind = HOSTS[kind]
        self.log: list[str] = []
        self.g1 = self.g2 = FakeGuest(self.log)
        self.processors = FakeProcessors()

    def patient(self, seconds: float) -> float:
        return seconds * self.kind.patience

    def use(self, path: str) -> None:
        self.log.append(f"use {path}")

    def set_stream_ring(self, size: int) -> None:
        self.log.append(f"lanes of {size}")

    def set_ring_size(self, size: int) -> None:
        self.log.append(f"rings of {size}")


class FakeOutside:
    """The load outside: CPUs that others use during each slice, in turn; none after that."""

    def __init__(self, *others: float) -> None:
        self.now = self.used = 0.0
        self.others: Iterator[float] = iter(others)
        self.begin = True

    def sample(self) -> tuple[float, float]:
        if not self.begin:
            self.now += 1
            self.used += next(self.others, 0.0)
        self.begin = not self.begin
        return self.now, self.used
