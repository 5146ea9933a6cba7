# SPDX-License-Identifier: GPL-2.0
"""Makes the lab's fixtures known to every test, and chooses what runs."""

import signal
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "lab")]

from tests.marks import PICKS, importance, kind_of, rank  # noqa: E402

pytest_plugins = ["vmlab.pytest_plugin", "tests.deadline", "pytester"]


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
    parser.addoption(
        "--switches",
        type=int,
        default=30,
        metavar="N",
        help="have test_stream.py's connections go to lanes and back N times  [%(default)s]",
    )
    parser.addoption(
        "--loads",
        type=int,
        default=3,
        metavar="N",
        help="have test_stream.py load its module N times under connections  [%(default)s]",
    )
    parser.addoption(
        "--lane-seconds",
        type=float,
        default=8.0,
        metavar="S",
        help="open and close lanes of the toy path beside traffic for so long  [%(default)g]",
    )
    parser.addoption(
        "--load-seconds",
        type=float,
        default=15.0,
        metavar="S",
        help="keep the load of test_load.py up for so long  [%(default)g]",
    )
    parser.addoption(
        "--flood-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="have a guest of test_xen_flood.py flood XenStore for so long  [%(default)g]",
    )
    parser.addoption("--migrations", action="store_true", help="run the tests of two hosts, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "migrations: needs two hosts; runs with --migrations")
    config.addinivalue_line("markers", "kvm_only: uses what only a QEMU has: its devices, QMP")
    config.addinivalue_line("markers", "main(why, on=kvm|xen|both): `make test` runs it (tests/marks.py)")
    config.addinivalue_line("markers", "core(why, on=kvm|xen|both): as main, and `make test` fails if it did not run")
    # Who ends the tests gets their report, and labs are taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def is_wanted(config: pytest.Config, item: pytest.Function) -> bool:
    """Whether the options ask for a test."""
    pick = config.getoption("--pick")
    if pick and not PICKS[pick](item):
        return False
    kinds = config.getoption("--kinds")
    if kinds:
        if kind_of(item) not in ("", *kinds.split(",")):
            return False
    elif kind_of(item) == "xen" and "stage" not in item.fixturenames and rank(item) == 2:
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
        items.sort(key=importance)
