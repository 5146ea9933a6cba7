# SPDX-License-Identifier: GPL-2.0
"""What `make test` runs: the marks `main` and `core`.

    @pytest.mark.main("nobody else looks at frames larger than the MTU")
    @pytest.mark.main("grants are Xen's own", on="both")

makes a test part of `make test`, with the reason. It runs there once, on a KVM
host if it can; `on` says "xen" or "both" where that is not enough. All others run
in `make test-all`. Both marks may stand at a parameter, or at a whole file:

    @pytest.mark.parametrize("who", [pytest.param("sender", marks=pytest.mark.main("...")), "receiver"])
    pytestmark = pytest.mark.main("...")

    @pytest.mark.core("modules come and go under load", on="both")

is the same for the few tests without which a run has shown nothing: they run
first, and `make test` fails if there was no time for one of them.
"""

from collections.abc import Callable

import pytest


def kind_of(item: pytest.Item) -> str:
    """The kind of host that a test boots, a machine by itself counting as kvm; empty if it boots none."""
    mark = item.get_closest_marker("lab")
    if not mark and "lab" not in getattr(item, "fixturenames", ()):
        return ""
    kind = str(mark.kwargs.get("kind", "kvm")) if mark else "kvm"
    return "kvm" if kind == "solo" else kind


def default_kind(item: pytest.Item) -> str:
    """Where a test runs whose mark does not say it."""
    if "stage" not in getattr(item, "fixturenames", ()):
        return kind_of(item)
    return "xen" if item.get_closest_marker("xen_only") else "kvm"


def rank(item: pytest.Item) -> int:
    """0 for the core list, 1 for the main list, 2 for all others, on the kind of host that the test is here for."""
    kind = kind_of(item)
    found = 2
    for number, name in enumerate(("core", "main")):
        for mark in item.iter_markers(name):
            if not mark.args or not isinstance(mark.args[0], str):
                raise pytest.UsageError(f"{item.nodeid}: the mark {name} wants its reason")
            on = mark.kwargs.get("on") or default_kind(item)
            if on not in ("kvm", "xen", "both", kind):
                raise pytest.UsageError(f"{item.nodeid}: the mark {name} has on={on!r}: it is kvm, xen or both")
            if on in (kind, "both"):
                found = min(found, number)
    return found


FIRST = (
    "test_traffic.py",
    "test_transitions.py",
    "test_pairs.py",
    "test_xen.py",
    "test_hostile.py",
    "test_routed.py",
)
"""Files in the order in which their main tests run; then come all others."""


def importance(item: pytest.Item) -> tuple[int, int]:
    """For sorting: what counts most is least. Tests of one file stay in its order."""
    name = item.path.name
    return rank(item), FIRST.index(name) if name in FIRST else len(FIRST)


PICKS: dict[str, Callable[[pytest.Item], bool]] = {
    "main": lambda item: bool(kind_of(item)) and rank(item) < 2,
    "units": lambda item: not kind_of(item),
    "labs": lambda item: bool(kind_of(item)),
}
"""What --pick picks."""
