# SPDX-License-Identifier: GPL-2.0
"""How the figures of migrations are made from what was seen; needs no lab."""

import re
import xml.dom.minidom
from itertools import pairwise
from typing import Any

from bench.migration.__main__ import summary
from bench.migration.load import Load, Turn
from bench.migration.page import write_page, zones
from bench.migration.timeline import Timeline, rates
from bench.migration.trips import Trip, _more

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


def test_only_what_is_missing_since_counts():
    assert _more((3, 5), (3, 5)) == 0
    assert _more((3, 5), (2, 9)) == 4


def test_a_channel_is_shaded_from_its_rise_to_its_fall():
    assert zones(EVENTS, 50) == [(14.6, 31.6)]
    assert zones(EVENTS[:4], 50) == [(14.6, 50)]
    assert zones(EVENTS[:3], 50) == []


def test_the_page_and_the_summary(tmp_path):
    trips = [
        Trip("host", began=8.0, prepared=8.6, arrived=12.5, up=14.6, rise=2.1, longest_ms=12, quiet_ms=4, lost=1),
        Trip("host2", began=31.5, fell=31.6, prepared=32.1, arrived=36.5, longest_ms=3, quiet_ms=4),
    ]
    data = summary(trips, [{"connections_broken": 0, "bytes_wrong": 0}, {"connections_broken": 1, "bytes_wrong": 2}])
    assert data == {
        "host": "kvm", "round_trips": 1, "connections_broken": 1, "bytes_wrong": 2, "frames_lost_by_vmloop": 1,
        "added_pause_ms": 8.0,
    }  # fmt: skip
    data |= {"stage": {"hosts": "<two>"}, "trips": [trip.record() for trip in trips]}
    write_page(tmp_path / "page.html", data, Timeline(rates(turns()), EVENTS))
    text = (tmp_path / "page.html").read_text()
    plot = re.search(r"<svg.*</svg>", text, re.DOTALL)
    assert plot and xml.dom.minidom.parseString(plot[0])
    assert "&lt;two&gt;" in text and "$" not in text
    for event in EVENTS:
        assert f"{event['at']:.1f} s" in text
