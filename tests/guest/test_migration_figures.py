# SPDX-License-Identifier: GPL-2.0
"""How the figures of migrations are made from what was seen; needs no lab."""

import re
import xml.dom.minidom
from contextlib import ExitStack
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from vmlab.errors import VmlabError, story

from bench.migration.__main__ import summary
from bench.migration.hosts import HOSTS
from bench.migration.load import Load, Turn
from bench.migration.page import write_page, zones
from bench.migration.timeline import Timeline, rates
from bench.migration.trips import Trip, _more, added_pause_ms, added_wait_ms

EVENTS: list[dict[str, Any]] = [
    {"at": at, "what": what}
    for at, what in (
        (8.0, "migration asked for"),
        (8.6, "prepared"),
        (12.5, "arrived"),
        (14.6, "channel up"),
        (31.5, "migration asked for"),
        (31.6, "channel down"),
        (32.1, "prepared"),
        (36.5, "arrived"),
    )
]


def turns():
    """300 a second apart, 1,600 together; the machine stands still from 12.0 to 12.6 s."""
    found, count = [], 0
    for tenth in range(1, 500):
        at = tenth / 10
        rate = 0 if 12.0 < at < 12.55 else 1600 if 14.6 < at < 31.6 else 300
        count += rate // 10
        found.append(Turn(at, count, 0.6 if tenth == 126 else 0.003))
    return found


def load_of(found):
    load = Load.__new__(Load)
    load.began = 100.0
    load.turns = lambda: found  # type: ignore[method-assign]
    return load


def test_rates():
    points = rates(turns())
    assert all(0.45 < two[0] - one[0] < 0.55 for one, two in pairwise(points))
    timeline = Timeline(points, EVENTS)
    assert abs(timeline.mean(1, 8) - 300) < 1
    assert abs(timeline.mean(15.2, 31.5) - 1600) < 1
    assert timeline.at("migration asked for", 1) == 31.5


def test_the_turn_that_the_machine_itself_held_up_is_not_ours():
    load = load_of(turns())
    assert load.longest(112.5, 112.9) == 0.6
    assert load.longest(101, 105) == 0.003
    first = load.first_after(12.3)
    assert 12.6 < first < 12.8
    assert load.longest(100 + first, 115) == 0.003


def test_the_pause_is_measured_against_the_same_without_vmloop():
    def trips(*pauses, own=0.0):
        return [Trip("host", pause_ms=pause, own_pause_ms=own) for pause in pauses]

    assert added_pause_ms(trips(430, 410, 2000), trips(400, 380, 390)) == 40
    assert added_pause_ms(trips(300, 310), trips(400, 380)) == 0
    assert added_pause_ms(trips(300, 310, own=12.5), trips(400, 380)) == 12.5


def test_who_stands_still_is_asked_the_hypervisor():
    def trips(*stood, own=0.0):
        return [Trip("host", stood_ms=one, pause_ms=5000, own_pause_ms=own) for one in stood]

    assert added_pause_ms(trips(330, 310, 900), trips(300, 280, 700)) == 30
    assert added_pause_ms(trips(300, 310, own=12.5), trips(400, 380)) == 12.5
    # Some have no account: waits are compared, of all.
    assert added_pause_ms(trips(330, None), trips(300)) == 0
    assert added_wait_ms(trips(330), [Trip("host", pause_ms=5200)]) == -200


def test_only_what_is_missing_since_counts():
    assert _more((3, 5), (3, 5)) == 0
    assert _more((3, 5), (2, 9)) == 4


def test_when_a_domain_went_on_is_read_from_what_xl_said(tmp_path):
    here = SimpleNamespace(directory=tmp_path)
    guest: Any = SimpleNamespace(name="g2", lab=here, host=SimpleNamespace(name="host2"), own_file=str)
    (tmp_path / "g2").mkdir()
    log = tmp_path / "g2" / "xl.log"
    log.write_text("1700000000.5 xc: info: Restoring domain\n")
    with pytest.raises(VmlabError, match="has not arrived on host2"):
        HOSTS["xen"].resumed(guest)
    for line in (
        "1700000002.5 vmlab: it has arrived",
        "1700000001.25 migration target: Got permission, starting domain.",
    ):
        log.write_text(f"{line}\n1700000003.5 vmlab: it has arrived\n")
        assert HOSTS["xen"].resumed(guest) == float(line.split()[0])


def test_a_channel_is_shaded_from_its_rise_to_its_fall():
    assert zones(EVENTS, 50) == [(14.6, 31.6)]
    assert zones(EVENTS[:4], 50) == [(14.6, 50)]
    assert zones(EVENTS[:3], 50) == []


def test_the_page_and_the_summary(tmp_path):
    trips = [
        Trip("host", began=8.0, prepared=8.6, arrived=12.5, up=14.6, rise=2.1, work_ms=12, pause_ms=412, lost=1),
        Trip("host2", began=31.5, fell=31.6, prepared=32.1, arrived=36.5, work_ms=3, pause_ms=404),
    ]
    plain = [Trip("host", pause_ms=pause) for pause in (390, 400, 900)]
    data = summary(
        "kvm",
        trips,
        trips,
        plain,
        [{"connections_broken": 0, "bytes_wrong": 0}, {"connections_broken": 1, "bytes_wrong": 2}],
    )
    assert data == {
        "host": "kvm", "round_trips": 2, "connections_broken": 1, "bytes_wrong": 2, "frames_lost_by_vmloop": 2,
        "added_pause_ms": 8.0, "added_wait_ms": 8.0,
    }  # fmt: skip
    assert summary("kvm", trips, [], [], [])["added_pause_ms"] is None
    data |= {"stage": {"hosts": "<two>"}, "trips": [trip.record() for trip in trips]}
    write_page(tmp_path / "page.html", data, Timeline(rates(turns()), EVENTS))
    text = (tmp_path / "page.html").read_text()
    plot = re.search(r"<svg.*</svg>", text, re.DOTALL)
    assert plot and xml.dom.minidom.parseString(plot[0])
    assert "&lt;two&gt;" in text and "$" not in text
    for event in EVENTS:
        assert f"{event['at']:.1f} s" in text


def test_what_went_wrong_first_is_told_when_cleaning_up_fails_too():
    def cannot():
        raise VmlabError("cannot be stopped")

    load = Load.__new__(Load)
    load._start = lambda: None  # type: ignore[method-assign]
    load._stack = ExitStack()
    load._stack.callback(cannot)
    with pytest.raises(VmlabError) as found, load:
        raise VmlabError("broke first")
    assert story(found.value) == "broke first\n  and then: cannot be stopped"
