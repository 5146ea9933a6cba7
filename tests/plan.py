# SPDX-License-Identifier: GPL-2.0
"""How long tests take, as it was once seen, and how a run is divided by that.

tests/durations.json has the seconds of each step of scripts/run-tests, of each
test that boots a lab, and of each lab's boot. `scripts/run-tests --record` writes
there what the last runs took. The figures say beforehand how long a run takes,
divide it into parts, and tell a run with a deadline what it can still begin; so
it does little harm if they are somewhat old.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

RECORDED = Path(__file__).resolve().parent / "durations.json"
UNKNOWN = {"steps": 60.0, "tests": 15.0, "boots": 90.0}
"""Seconds of what was never seen."""

T = TypeVar("T")


@dataclass
class Durations:
    """Seconds by name."""

    steps: dict[str, float] = field(default_factory=dict)
    tests: dict[str, float] = field(default_factory=dict)
    boots: dict[str, float] = field(default_factory=dict)
    """By the lab's name, as lab_name() says it."""

    @classmethod
    def load(cls, path: Path = RECORDED) -> "Durations":
        """What was recorded there: nothing, if there is no such file."""
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def save(self, path: Path = RECORDED) -> None:
        """Write it so that a difference is easy to read."""
        rounded = {
            kind: {name: round(seconds, 1) for name, seconds in sorted(getattr(self, kind).items())} for kind in UNKNOWN
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rounded, indent=1) + "\n")

    def update(self, other: "Durations") -> None:
        """Take over what another has."""
        for kind in UNKNOWN:
            getattr(self, kind).update(getattr(other, kind))

    def step(self, name: str) -> float:
        """Seconds of a step."""
        return self.steps.get(name, UNKNOWN["steps"])

    def boot(self, lab: str) -> float:
        """Seconds from nothing to a lab whose guests all run."""
        return self.boots.get(lab, max(self.boots.values(), default=UNKNOWN["boots"]))

    def test(self, name: str) -> float:
        """Seconds of a test; of one that was never seen, what it takes on another stage, or with other parameters."""
        if name in self.tests:
            return self.tests[name]
        alike = [seconds for other, seconds in self.tests.items() if function(other) == function(name)]
        return max(alike, default=UNKNOWN["tests"])


def function(name: str) -> str:
    """A test's name without its parameters."""
    return name.partition("[")[0]


def lab_name(options: Mapping[str, object]) -> str:
    """A name for the labs that these options of Lab.up() make, short enough for a table."""
    words = [f"{name}={value}" for name, value in sorted(options.items()) if name not in ("append", "modules")]
    return " ".join(words)


@dataclass(frozen=True)
class Planned:
    """A test that a run has before it."""

    name: str
    group: str
    """The step that runs it; tests of one group are side by side."""
    lab: str
    seconds: float
    kernel: str = ""


def split(things: Sequence[T], seconds: Callable[[T], float], count: int) -> list[list[T]]:
    """Divide things into so many parts that take about the same time, keeping their order.

    Each is in exactly one part: the one in which its middle falls, if all of the time is cut in equal pieces.
    """
    total = sum(map(seconds, things))
    found: list[list[T]] = [[] for _ in range(count)]
    before = 0.0
    for thing in things:
        middle = before + seconds(thing) / 2
        before += seconds(thing)
        found[min(count - 1, int(middle * count / total)) if total else 0].append(thing)
    return found


def part(text: str) -> tuple[int, int]:
    """The numbers of PART=2/4."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"no part {text!r}: it is K/N, as in 2/4")
    return int(found[1]), int(found[2])


def spoken(seconds: float) -> str:
    """A duration for people."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
