# SPDX-License-Identifier: GPL-2.0
"""Slices of measurement between the two guests of a stage, and the load outside meanwhile."""

import json
import os
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vmlab.errors import VmlabError

from .stage import Stage

GIGA = 1e9
TICKS = os.sysconf("SC_CLK_TCK")

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
    "cpu_per_gb": Kind("s/GB", "CPU time of the whole host per GB of TCP", True),
}


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


def proc_stat(text: str) -> float:
    """CPU-seconds that a machine was busy, from its /proc/stat.

    `user` and `nice` already contain what guests used, so those two columns
    are not added; idle and iowait are no work.
    """
    words = text.splitlines()[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


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
        self.slices: list[Slice] = []
        self.repeated = 0

    # The tests

    def ping(self, count: int) -> dict[str, float]:
        """Flood ping: the next request goes out when the reply is there."""
        out = self.stage.g1.run(["ping", "-f", "-q", "-c", str(count), self.stage.g2.ip], timeout=60).out
        found = re.search(r"= [\d.]+/([\d.]+)/", out)
        if not found:
            raise VmlabError(f"ping: {out}")
        return {"ping_rtt": float(found[1]) * 1000}

    def request_response(self, seconds: int) -> dict[str, float]:
        """sockperf's ping-pong over TCP. Its figure is one way: half of a round trip."""
        with self.stage.g2.popen(["sockperf", "server", "--tcp", "-i", self.stage.g2.ip, "-p", "11111"]) as server:
            server.wait_for("to terminate the server|Warmup|listen", 20)
            words = ["sockperf", "ping-pong", "--tcp", "-i", self.stage.g2.ip, "-p", "11111", "-t", str(seconds)]
            out = self.stage.g1.run(words, timeout=60 + seconds).out
        found = re.search(r"Latency is ([\d.]+)", re.sub(r"\x1b\[[\d;]*m", "", out))
        if not found:
            raise VmlabError(f"sockperf: {out}")
        return {"tcp_rr": float(found[1]) * 2}

    def _iperf(self, *words: str) -> dict[str, Any]:
        with self.stage.g2.popen(["iperf3", "-s", "-1", "--forceflush"]) as server:
            server.wait_for("Server listening", 20)
            out = self.stage.g1.run(["iperf3", "-c", self.stage.g2.ip, "-J", *words], timeout=120).out
        return dict(json.loads(out)["end"])

    def tcp(self, seconds: float) -> dict[str, float]:
        """iperf3, and what the host's CPUs did meanwhile: guests, vhost, bridge, everything."""
        read = ["cat", "/proc/stat"]
        host = self.stage.lab.host
        with self.stage.g2.popen(["iperf3", "-s", "-1", "--forceflush"]) as server:
            server.wait_for("Server listening", 20)
            before = proc_stat(host.run(read).out)
            out = self.stage.g1.run(["iperf3", "-c", self.stage.g2.ip, "-J", "-t", f"{seconds:g}"], timeout=120).out
            after = proc_stat(host.run(read).out)
        received = json.loads(out)["end"]["sum_received"]
        return {
            "tcp_stream": received["bits_per_second"] / GIGA,
            "cpu_per_gb": (after - before) / (received["bytes"] / GIGA),
        }

    def udp(self, seconds: float) -> dict[str, float]:
        """Datagrams of 60,000 bytes as fast as they go; the receiver's figure counts."""
        end = self._iperf("-u", "-b", "0", "-l", "60000", "-t", f"{seconds:g}")
        return {"udp_stream": end["sum_received"]["bits_per_second"] / GIGA}

    def netpipe(self, largest: int = 65536, repeats: int = 10) -> list[tuple[int, float, float]]:
        """NetPIPE: message size in bytes, Mbit/s, seconds one way; a bounded number of each."""
        bounds = ["-u", str(largest), "-n", str(repeats), "-p", "0"]
        target = "/run/vmloop/np.out"
        with self.stage.g2.popen(["sh", "-c", f"exec NPtcp {' '.join(bounds)} >/dev/null"]) as server:
            # It says nothing when it listens, and its other half does not wait.
            wait = "until ss -Hltn sport = :5002 | grep -q LISTEN; do sleep 0.05; done"
            self.stage.g2.run(f"timeout 20 sh -c '{wait}'")
            self.stage.g1.run(f"NPtcp -h {self.stage.g2.ip} {' '.join(bounds)} -o {target}", timeout=180)
            server.wait(30)
        rows = [line.split() for line in self.stage.g1.run(["cat", target]).out.splitlines()]
        return [(int(size), float(rate), float(seconds)) for size, rate, seconds in rows]

    # Slices

    def take(self, path: str, test: Callable[[], dict[str, float]], retries: int = 2) -> Slice:
        """Run one test on the path that is in use.

        A slice during which others used the CPUs outside is left out, and
        taken again, at most ``retries`` times; the last one counts then, and
        says so. What it measured plays no part in that.
        """
        for attempt in range(retries + 1):
            began, before = self.outside.sample()
            values = test()
            ended, after = self.outside.sample()
            one = Slice(path, values, began, ended - began, (after - before) / (ended - began))
            self.slices.append(one)
            if one.others <= DISTURBED:
                break
            one.notes["disturbed"] = True
            one.kept = attempt == retries
            self.repeated += not one.kept
        return one

    def results(self) -> list[dict[str, Any]]:
        """Median and values of each test on each path, as out/demo.json has them."""
        found = []
        for test, kind in KINDS.items():
            for path in ("standard", "channel"):
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
            "disturbed_above_cpus": DISTURBED,
            "repeated": self.repeated,
            "kept_although_disturbed": sum(one.kept and "disturbed" in one.notes for one in self.slices),
            "slices": [asdict(one) for one in self.slices],
        }


def ratio(results: list[dict[str, Any]], test: str) -> float | None:
    """How many times the channel's median is the standard network's."""
    medians = {one["path"]: one["median"] for one in results if one["test"] == test}
    if len(medians) < 2 or not medians["standard"]:
        return None
    return float(medians["channel"] / medians["standard"])


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
        "machine": stage.machine,
        "qemu": host.run("qemu-system-x86_64 --version | head -n 1").out.strip(),
        "standard_network": "virtio-net, vhost-net, bridge",
        "clocksource": {
            "host": host.run(["cat", source]).out.strip(),
            "guest": stage.g1.run(["cat", source]).out.strip(),
        },
        "lab_retries": stage.retries,
    }
