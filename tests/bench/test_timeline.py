# SPDX-License-Identifier: GPL-2.0
"""The timeline: lines of iperf3 as they come, by the guests' clock."""

from typing import Any

import pytest
from vmlab.errors import VmlabError

from bench.path.timeline import CALIBRATE, Recorder, Timeline
from tests.bench.fakes import Running


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self):
        self.at = 0.0
        self.looks = 0

    def __call__(self):
        self.looks += 1
        return self.at


def line(begin, end, rate="1.50 Gbits/sec"):
    return f"[  5]   {begin:.2f}-{end:.2f}   sec  44.7 MBytes  {rate}\n"


@pytest.fixture
def recorder():
    server: Any = Running()
    return Recorder(server, lambda *_: None, Clock())


def test_units(recorder):
    recorder.server.out = line(0, 0.25) + line(0.25, 0.5, "500 Mbits/sec") + line(0.5, 0.75, "2.00 Kbits/sec")
    recorder.server.out += line(0.75, 1, "0.00 bits/sec")
    assert recorder.age() == 1
    assert [rate for _, rate in recorder.points] == pytest.approx([1.5, 0.5, 2e-6, 0])


def test_sums_and_repetitions_are_left_out(recorder):
    recorder.server.out = "Accepted connection\n" + line(0, 0.25) + line(0.25, 0.5) + line(0.25, 0.5) + line(0, 0.5)
    recorder.server.out += line(0.5, 0.5) + line(0, 0.75)
    recorder.poll()
    assert [at for at, _ in recorder.points] == [0.25, 0.5]


def test_moments_are_by_the_guests_clock(recorder):
    """The connection began when the line that came soonest says so."""
    assert recorder.moment() == 0
    recorder.now.at = 100.5  # this line comes late
    recorder.server.out = line(0, 0.25)
    recorder.poll()
    recorder.now.at = 100.55
    recorder.server.out += line(0.25, 0.5)
    assert recorder.moment() == pytest.approx(0.5)
    recorder.now.at = 101  # late again
    recorder.server.out += line(0.5, 0.75)
    recorder.poll()
    recorder.now.at = 103
    assert recorder.moment() == pytest.approx(2.95)


def test_the_clock_is_not_asked_for_ever(recorder):
    for n in range(CALIBRATE + 5):
        recorder.server.out += line(n / 4, (n + 1) / 4)
    recorder.poll()
    assert recorder.now.looks == CALIBRATE


def test_a_connection_that_stands_still(recorder, monkeypatch):
    monkeypatch.setattr(
        "bench.path.timeline.wait_for", lambda look, seconds, what: (_ for _ in ()).throw(VmlabError(what))
    )
    with pytest.raises(VmlabError, match="iperf3 goes on"):
        recorder.wait_until(5)


def test_means():
    timeline = Timeline(points=[(0.25, 1.0), (0.5, 2.0), (0.75, 4.0), (1.0, 8.0)])
    assert timeline.mean(0.25, 0.75) == 3
    assert timeline.mean(5, 6) == 0
