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


@dataclass
class Comparison:
    """A suite without the stream path and with it."""

    suite: str
    version: str
    plain: Results
    stream: Results
    counted: dict[str, int]
    """The stream path's counters of the run with it."""
    seconds: tuple[float, float]
    status: tuple[int, int]
    """With which both runs ended: of errors outside of tests only that tells."""
    notes: list[str] = field(default_factory=list)

    @property
    def differences(self) -> list[str]:
        """Tests that came to something else, or that only one of the runs had."""
        names = sorted(self.plain.keys() | self.stream.keys())
        both = ((name, self.plain.get(name, "absent"), self.stream.get(name, "absent")) for name in names)
        return [f"{name}: {plain}, with streams {stream}" for name, plain, stream in both if plain != stream]

    @property
    def passed(self) -> int:
        """How many tests passed both ways."""
        return sum(word == self.stream.get(name) == "passed" for name, word in self.plain.items())

    @property
    def complaints(self) -> list[str]:
        """What is wrong beside differences: what makes them say nothing, and what no test of the suite looks at."""
        found = list(self.notes)
        # What went by no lane says nothing of lanes; nor does a suite of which little ran.
        if self.counted["rx_bytes"] < 1 << 16:
            found.append("next to nothing of it went by a lane")
        if count(self.plain)["passed"] < 50:
            found.append("few of its tests passed on TCP")
        if self.counted["reset"]:
            found.append(f"{self.counted['reset']} connections were reset, though both ends are honest")
        if self.status[0] != self.status[1]:
            found.append(f"it ended with {self.status[0]} on TCP, with {self.status[1]} with streams")
        return found

    def record(self) -> dict[str, Any]:
        """For out/suites.json."""
        return {
            "suite": self.suite,
            "version": self.version,
            "plain": count(self.plain),
            "stream": count(self.stream),
            "differences": self.differences,
            "failed": sorted(name for name, word in self.stream.items() if word == "failed"),
            "lanes": self.counted["paired"],
            "bytes_by_lanes": self.counted["rx_bytes"],
            "reset": self.counted["reset"],
            "seconds": [round(seconds) for seconds in self.seconds],
            "notes": self.complaints,
        }
