# SPDX-License-Identifier: GPL-2.0
"""What a suite's tests came to, and how two runs differ."""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

WORDS = ("passed", "failed", "skipped")
Results = dict[str, str]
"""One of WORDS, by the name of the test."""


def of_junit(text: str) -> Results:
    """The results in a JUnit report."""
    found: Results = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        words = {child.tag for child in case}
        word = "failed" if words & {"failure", "error"} else "skipped" if "skipped" in words else "passed"
        if case.get("status") == "skipped" or case.get("result") == "skipped":
            word = "skipped"
        found[f"{case.get('classname', '')}.{case.get('name', '')}".strip(".")] = word
    return found


def count(results: Results) -> dict[str, int]:
    """How many there are of each word."""
    counted = Counter(results.values())
    return {word: counted[word] for word in WORDS}


def worst(one: str | None, other: str) -> str:
    """Of two results of one test."""
    return max(one or other, other, key=("passed", "skipped", "failed").index)


@dataclass
class Run:
    """What one run of a suite came to."""

    results: Results
    status: int
    """With which it ended: of errors outside of tests only that tells."""
    cut: str = ""
    """Why not all of it ran; empty if it went to its end."""
    seconds: float = 0
    again: list[str] = field(default_factory=list)
    """Tests that failed at first, and came to what is in ``results`` when they were run again."""


@dataclass
class Comparison:
    """A suite without the stream path and with it."""

    suite: str
    version: str
    plain: Run
    stream: Run
    counted: dict[str, int]
    """The stream path's counters of the run with it."""
    notes: list[str] = field(default_factory=list)

    @property
    def differences(self) -> list[str]:
        """Tests that came to something else, or that only one of the runs had."""
        ran = (self.plain.results, self.stream.results)
        names = sorted(ran[0].keys() | ran[1].keys())
        both = ((name, ran[0].get(name, "absent"), ran[1].get(name, "absent")) for name in names)
        return [f"{name}: {plain}, with streams {stream}" for name, plain, stream in both if plain != stream]

    @property
    def passed(self) -> int:
        """How many tests passed both ways."""
        stream = self.stream.results
        return sum(word == stream.get(name) == "passed" for name, word in self.plain.results.items())

    @property
    def complaints(self) -> list[str]:
        """What is wrong beside differences: what makes them say nothing, and what no test of the suite looks at."""
        found = list(self.notes)
        # What went by no lane says nothing of lanes; nor does a suite of which little ran.
        if self.counted["rx_bytes"] < 1 << 16:
            found.append("next to nothing of it went by a lane")
        if count(self.plain.results)["passed"] < 50:
            found.append("few of its tests passed on TCP")
        if self.counted["reset"]:
            found.append(f"{self.counted['reset']} connections were reset, though both ends are honest")
        if self.plain.status != self.stream.status:
            found.append(f"it ended with {self.plain.status} on TCP, with {self.stream.status} with streams")
        for way, one in (("on TCP", self.plain), ("with streams", self.stream)):
            if one.cut:
                found.append(f"{way} not all of it ran: {one.cut}")
        return found

    def record(self) -> dict[str, Any]:
        """For out/suites.json."""
        return {
            "suite": self.suite,
            "version": self.version,
            "plain": count(self.plain.results),
            "stream": count(self.stream.results),
            "differences": self.differences,
            "failed": sorted(name for name, word in self.stream.results.items() if word == "failed"),
            "lanes": self.counted["paired"],
            "bytes_by_lanes": self.counted["rx_bytes"],
            "reset": self.counted["reset"],
            "seconds": [round(one.seconds) for one in (self.plain, self.stream)],
            "notes": self.complaints,
        }
