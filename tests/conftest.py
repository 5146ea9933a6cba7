# SPDX-License-Identifier: GPL-2.0
"""Makes the lab's fixtures known to every test, and chooses what runs.

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

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

pytest_plugins = ["vmlab.pytest_plugin", "pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stages",
        metavar="KERNEL-MACHINE,...",
        help="run guest tests there; 'all': each that tests/stages.py knows, with what is for it  [6.1-pc,6.1-pv]",
    )
    parser.addoption(
        "--pick",
        choices=list(PICKS),
        help="main: what `make test` runs in labs; units: what needs no lab; labs: what needs one  [everything]",
    )
    parser.addoption(
        "--kinds", metavar="KIND,...", help="kinds of host to boot: kvm, xen  [both, but the lab's own tests kvm only]"
    )
    parser.addoption(
        "--destroys",
        type=int,
        default=1,
        metavar="N",
        help="destroy each side of a channel on Xen N times  [%(default)s]",
    )
    parser.addoption("--migrations", action="store_true", help="run the tests of two hosts, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "migrations: needs two hosts; runs with --migrations")
    config.addinivalue_line("markers", "kvm_only: uses what only a QEMU has: its devices, QMP")
    config.addinivalue_line("markers", "main(why, on=kvm|xen|both): `make test` runs it, not only `make test-all`")
    config.addinivalue_line("markers", "core(why, on=kvm|xen|both): as main, and `make test` fails if it did not run")
    # Who ends the tests gets their report, and labs are taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def kind_of(item: pytest.Item) -> str:
    """The kind of host that a test boots; empty if it boots none."""
    mark = item.get_closest_marker("lab")
    if mark or "lab" in getattr(item, "fixturenames", ()):
        return str(mark.kwargs.get("kind", "kvm")) if mark else "kvm"
    return ""


def rank(item: pytest.Item) -> int:
    """0 for the core list, 1 for the main list, 2 for all others, on the kind of host that the test is here for."""
    kind = kind_of(item)
    found = 2
    for number, name in enumerate(("core", "main")):
        for mark in item.iter_markers(name):
            if not mark.args or not isinstance(mark.args[0], str):
                raise pytest.UsageError(f"{item.nodeid}: the mark {name} wants its reason")
            only = "xen" if item.get_closest_marker("xen_only") else "kvm"
            on = mark.kwargs.get("on", only)
            if on not in ("kvm", "xen", "both"):
                raise pytest.UsageError(f"{item.nodeid}: the mark {name} has on={on!r}: it is kvm, xen or both")
            if on in (kind, "both"):
                found = min(found, number)
    return found


PICKS: dict[str, Callable[[pytest.Item], bool]] = {
    "main": lambda item: bool(kind_of(item)) and rank(item) < 2,
    "units": lambda item: not kind_of(item),
    "labs": lambda item: bool(kind_of(item)),
}
"""What --pick picks."""


def is_wanted(config: pytest.Config, item: pytest.Function) -> bool:
    """Whether the options ask for a test."""
    pick = config.getoption("--pick")
    if pick and not PICKS[pick](item):
        return False
    lab = item.get_closest_marker("lab")
    kinds = config.getoption("--kinds") or ("kvm,xen" if "stage" in item.fixturenames else "kvm")
    if lab and lab.kwargs.get("kind", "kvm") not in kinds.split(","):
        return False
    return bool(config.getoption("--migrations")) or not item.get_closest_marker("migrations")


@pytest.hookimpl(tryfirst=True)  # tests that share a lab come side by side afterwards
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not asked for, and put what counts most first."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        wanted = not isinstance(item, pytest.Function) or is_wanted(config, item)
        (kept if wanted else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
    if config.getoption("--pick") == "main":
        items.sort(key=rank)
