# SPDX-License-Identifier: GPL-2.0
"""Slices of measurement between the two guests of a stage, and the load outside meanwhile."""

import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .parse import GIGA, TICKS, iperf_received, netpipe_rows, ping_mean, proc_stat, sockperf_latency
from .stage import EARLIER, LOOPBACK, PATHS, STREAM, Stage

DISTURBED = 0.15
"""CPUs used by others outside, above which a slice does not count."""


@dataclass(frozen=True)
class Kind:
    """What a test measures."""

    unit: str
    title: str
    lower_is_better: bool


KINDS = {
    "ping_rtt": Kind("us", "round trip, flood ping", True),
    "tcp_rr": Kind("us", "round trip, TCP request and response", True),
    "tcp_stream": Kind("Gbit/s", "TCP stream", False),
    "udp_stream": Kind("Gbit/s", "UDP, datagrams of 60 KB", False),
    "udp_mtu": Kind("Gbit/s", "UDP, datagrams of one frame", False),
    "cpu_per_gb": Kind("s/GB", "CPU time of the whole host per GB of TCP", True),
}
"""What the rounds of rounds.py measure."""

ALL_KINDS = KINDS | {"tcp_flows": Kind("Gbit/s", "TCP, 4 streams at the same time", False)}


@dataclass
class Slice:
    """One measurement."""

    path: str
    values: dict[str, float]
    """By test."""
    began: float
    seconds: float
    others: float
    """CPUs that others used outside meanwhile."""
    kept: bool = True
    notes: dict[str, Any] = field(default_factory=dict)


class Outside:
    """Watches what others than the lab do with the CPUs outside."""

    def __init__(self, stage: Stage) -> None:
        state = stage.lab.state
        self._pids = [state["qemu"][0], state["switch"][0], os.getpid()]

    def _used(self, pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def sample(self) -> tuple[float, float]:
        """Time, and CPU-seconds used by others so far."""
        busy = proc_stat(Path("/proc/stat").read_text())
        return time.monotonic(), busy - sum(map(self._used, self._pids))


class Meter:
    """Takes slices on a stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.outside = Outside(stage)
        # Nothing outside reaches into virtual time.
        self.limit = None if stage.kind.virtual_time else DISTURBED
        self.slices: list[Slice] = []
        self.repeated = 0
        self._near, self._far, self._address = stage.g1, stage.g2, stage.g2.ip
        self._prefix: tuple[str, ...] = ()

    @contextmanager
    def towards(self, address: str, prefix: tuple[str, ...] = ()) -> Iterator[None]:
        """Have iperf3 talk to another address of the second guest; ``prefix`` begins the client's command."""
        before = self._address, self._prefix
        self._address, self._prefix = address, prefix
        try:
            yield
        finally:
            self._address, self._prefix = before

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Have the tests take place inside one guest, over its loopback interface."""
        between = self._near, self._far, self._address
        self._far, self._address = self._near, "127.0.0.1"
        try:
            yield
        finally:
            self._near, self._far, self._address = between

    # The tests

    def ping(self, count: int) -> dict[str, float]:
        """Flood ping: the next request goes out when the reply is there."""
        words = ["ping", "-f", "-q", "-c", str(count), self._address]
        return {"ping_rtt": ping_mean(self._near.run(words, timeout=self.stage.patient(60)).out)}

    def request_response(self, seconds: int) -> dict[str, float]:
        """sockperf's ping-pong over TCP. Its figure is one way: half of a round trip."""
        patient = self.stage.patient
        with self._far.popen(["sockperf", "server", "--tcp", "-i", self._address, "-p", "11111"]) as server:
            server.wait_for("to terminate the server|Warmup|listen", patient(20))
            words = ["sockperf", "ping-pong", "--tcp", "-i", self._address, "-p", "11111", "-t", str(seconds)]
            out = self._near.run(words, timeout=patient(60 + seconds)).out
        return {"tcp_rr": sockperf_latency(out) * 2}

    def _iperf(self, seconds: int, *words: str) -> tuple[dict[str, float], float]:
        """What the receiver got, and the CPU-seconds that the whole host used meanwhile."""
        stage = self.stage
        with self._far.popen(["iperf3", "-s", "-1", "--forceflush"]) as server:
            server.wait_for("Server listening", stage.patient(20))
            before = stage.processors.read()
            command = [*self._prefix, "iperf3", "-c", self._address, "-J", "-t", str(seconds), *words]
            out = self._near.run(command, timeout=stage.patient(120)).out
            used = stage.processors.read() - before
        return iperf_received(out), used

    def tcp(self, seconds: int, size: int | None = None) -> dict[str, float]:
        """iperf3 with writes of ``size`` bytes, and what the host's CPUs did: guests, back ends, bridge, everything."""
        received, used = self._iperf(seconds, *(["-l", str(size)] if size else []))
        found = {"tcp_stream": received["bits_per_second"] / GIGA}
        if received["bytes"]:
            found["cpu_per_gb"] = used / (received["bytes"] / GIGA)
        return found

    def tcp_flows(self, seconds: int, flows: int = 4) -> dict[str, float]:
        """All that so many streams carry at the same time."""
        received, _ = self._iperf(seconds, "-P", str(flows))
        return {"tcp_flows": received["bits_per_second"] / GIGA}

    def udp(self, seconds: int, size: int = 60000) -> dict[str, float]:
        """Datagrams of ``size`` bytes as fast as they go; the receiver's figure counts."""
        received, _ = self._iperf(seconds, "-u", "-b", "0", "-l", str(size))
        return {"udp_stream": received["bits_per_second"] / GIGA}

    def udp_mtu(self, seconds: int) -> dict[str, float]:
        """The same with the largest datagrams that fit one Ethernet frame of 1,500 bytes."""
        return {"udp_mtu": self.udp(seconds, 1472)["udp_stream"]}

    def netpipe(self, largest: int = 65536, repeats: int = 10) -> list[tuple[int, float, float]]:
        """NetPIPE: message size in bytes, Mbit/s, seconds one way; a bounded number of each."""
        bounds = ["-u", str(largest), "-n", str(repeats), "-p", "0"]
        target = "/run/vmloop/np.out"
        patient = self.stage.patient
        with self.stage.g2.popen(["sh", "-c", f"exec NPtcp {' '.join(bounds)} >/dev/null"]) as server:
            # It says nothing when it listens, and its other half does not wait.
            wait = "until ss -Hltn sport = :5002 | grep -q LISTEN; do sleep 0.05; done"
            self.stage.g2.run(f"timeout {patient(20):.0f} sh -c '{wait}'", timeout=patient(60))
            self.stage.g1.run(f"NPtcp -h {self.stage.g2.ip} {' '.join(bounds)} -o {target}", timeout=patient(180))
            server.wait(patient(30))
        return netpipe_rows(self.stage.g1.run(["cat", target], timeout=patient(60)).out)

    # Slices

    def take(
        self, path: str, test: Callable[[], dict[str, float]], retries: int = 2, notes: dict[str, Any] | None = None
    ) -> Slice:
        """Run one test on the path that is in use. ``notes`` go into the record.

        A slice during which others used the CPUs outside is left out, and
        taken again, at most ``retries`` times; the last one counts then, and
        says so. What it measured plays no part in that. In virtual time no
        slice is disturbed.
        """
        for attempt in range(retries + 1):
            began, before = self.outside.sample()
            values = test()
            ended, after = self.outside.sample()
            others = (after - before) / (ended - began)
            one = Slice(path, values, began, ended - began, others, notes=dict(notes or {}))
            self.slices.append(one)
            if self.limit is None or one.others <= self.limit:
                break
            one.notes["disturbed"] = True
            one.kept = attempt == retries
            self.repeated += not one.kept
        return one

    def results(self) -> list[dict[str, Any]]:
        """Median and values of each test on each path, as out/demo.json has them."""
        found = []
        for test, kind in ALL_KINDS.items():
            for path in (PATHS[0], EARLIER, *PATHS[1:], STREAM, LOOPBACK):
                values = [
                    one.values[test] for one in self.slices if one.kept and one.path == path and test in one.values
                ]
                if values:
                    found.append(
                        {
                            "test": test,
                            "path": path,
                            "unit": kind.unit,
                            "median": round(statistics.median(values), 4),
                            "values": [round(value, 4) for value in values],
                        }
                    )
        return found

    def record(self) -> dict[str, Any]:
        """All slices, also those that were left out, and why."""
        return {
            "disturbed_above_cpus": self.limit,
            "repeated": self.repeated,
            "kept_although_disturbed": sum(one.kept and "disturbed" in one.notes for one in self.slices),
            "slices": [asdict(one) for one in self.slices],
        }


def ratio(results: list[dict[str, Any]], test: str, base: str = "standard", path: str = "channel") -> float | None:
    """How many times a path's median is that of another."""
    medians = {one["path"]: one["median"] for one in results if one["test"] == test}
    if path not in medians or not medians.get(base):
        return None
    return float(medians[path] / medians[base])


def describe_host(stage: Stage) -> dict[str, Any]:
    """What the measurement ran on."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    source = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    host = stage.lab.host
    state = stage.lab.state
    return {
        "cpu": model[1].strip() if model else "unknown",
        "cpus": os.cpu_count(),
        "accelerator": state["accelerator"],
        "host_kernel": state["host_kernel"],
        "guest_kernel": stage.g1.run(["uname", "-r"]).out.strip(),
        "guest_cpus": int(stage.g1.run(["nproc"]).out),
        "kind": stage.kind.name,
        "hypervisor": stage.kind.version(stage.lab),
        "virtual_time": stage.kind.virtual_time,
        "time": stage.lab.clocks,
        "machine": stage.machine,
        "qemu": host.run("qemu-system-x86_64 --version | head -n 1").out.strip(),
        "emulator": f"QEMU {state['emulator']}",
        "standard_network": stage.kind.standard_network,
        "cpu_time": stage.kind.cpu_time,
        "clocksource": {
            "host": host.run(["cat", source]).out.strip(),
            "guest": stage.g1.run(["cat", source]).out.strip(),
        },
        "lab_retries": stage.retries,
    }
