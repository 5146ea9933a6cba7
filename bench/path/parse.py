# SPDX-License-Identifier: GPL-2.0
"""What the programs that measure print, and what of it counts. All raise VmlabError for what they cannot read."""

import json
import os
import re
from typing import Any

from vmlab.errors import VmlabError

GIGA = 1e9
TICKS = os.sysconf("SC_CLK_TCK")


def proc_stat(text: str) -> float:
    """CPU-seconds that a machine was busy, from its /proc/stat.

    `user` and `nice` already contain what guests used, so those two columns
    are not added; idle and iowait are no work.
    """
    words = text.split("\n", 1)[0].split()
    if len(words) < 9 or words[0] != "cpu" or not all(word.isdigit() for word in words[1:9]):
        raise VmlabError(f"/proc/stat begins with {text[:80]!r}")
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


def domain_seconds(text: str) -> dict[int, float]:
    """CPU-seconds by domain, from words like 0:1500000000: domain and nanoseconds."""
    found = {}
    for word in text.split():
        pair = re.fullmatch(r"(\d+):(\d+)", word)
        if not pair:
            raise VmlabError(f"the CPU time of Xen's domains: {text!r}")
        found[int(pair[1])] = int(pair[2]) / GIGA
    if 0 not in found:
        raise VmlabError(f"the CPU time of Xen's domains lacks dom0's: {text!r}")
    return found


def ping_mean(text: str) -> float:
    """Mean round trip in microseconds, from ping's summary."""
    found = re.search(r"= [\d.]+/([\d.]+)/", text)
    if not found:
        raise VmlabError(f"ping: {text}")
    return float(found[1]) * 1000


def sockperf_latency(text: str) -> float:
    """sockperf's mean latency in microseconds: one way, half of a round trip."""
    found = re.search(r"Latency is ([\d.]+)", re.sub(r"\x1b\[[\d;]*m", "", text))
    if not found:
        raise VmlabError(f"sockperf: {text}")
    return float(found[1])


def iperf_received(text: str) -> dict[str, float]:
    """What iperf3's receiver got, from the sender's JSON: bytes, bits_per_second."""
    try:
        end: dict[str, Any] = json.loads(text)["end"]["sum_received"]
        return {key: float(end[key]) for key in ("bytes", "bits_per_second")}
    except (KeyError, TypeError, ValueError) as error:
        raise VmlabError(f"iperf3: {text.strip()[-500:]}") from error


def netpipe_rows(text: str) -> list[tuple[int, float, float]]:
    """NetPIPE's file: message size in bytes, Mbit/s, seconds one way."""
    try:
        rows = [line.split() for line in text.splitlines()]
        return [(int(size), float(rate), float(seconds)) for size, rate, seconds in rows]
    except ValueError as error:
        raise VmlabError(f"NetPIPE: {text.strip()[-500:]}") from error
