# SPDX-License-Identifier: GPL-2.0
"""The series: how they are taken on a stage without machines, and shown."""

import io
import re

import pytest
from rich.console import Console

from bench.path.measure import Slice
from bench.path.series import series_of
from bench.path.stage import RING_SIZE
from bench.series import page as series_page
from bench.series.__main__ import MESSAGE_SIZES, RING_SIZES, arguments, tables
from bench.series.sweep import UNITS, Plan, Sweep
from tests.bench.pages import drawings, host, record


def sweep(one, plan):
    steps: list[str] = []
    Sweep(one, plan, lambda what, taken: steps.append(what) if taken is None else None).run()
    return steps


def test_a_sweep_over_messages(meter):
    one = meter()
    plan = Plan((64, 65536), (), rounds=2, seconds=1)
    assert len(sweep(one, plan)) == plan.steps
    uses = [line for line in one.stage.log if line.startswith("use")]
    assert uses == ["use standard", "use channel", "use channel", "use standard"]
    assert not [line for line in one.stage.log if line.startswith("rings") and line != f"rings of {RING_SIZE}"]
    sent = [line.split() for line in one.stage.log if line.startswith("iperf3")]
    sizes = {("-u" in words, words[words.index("-l") + 1]) for words in sent}
    assert sizes == {(False, "64"), (False, "65536"), (True, "64"), (True, "65507")}
    points = {
        (series["test"], series["path"]): [(point["size"], len(point["values"])) for point in series["points"]]
        for series in series_of(one.slices, UNITS)
    }
    both = [(64, 2), (65536, 2)]
    assert points == {(test, path): both for test in ("tcp_stream", "udp_stream") for path in ("standard", "channel")}


def test_a_sweep_over_rings(meter):
    one = meter()
    plan = Plan((), (65536, 131072), rounds=2, seconds=1)
    assert len(sweep(one, plan)) == plan.steps
    switches = [line for line in one.stage.log if line.startswith(("use", "rings"))]
    forth = [
        (f"rings of {RING_SIZE}", "use standard"),
        ("rings of 65536", "use channel"),
        ("rings of 131072", "use channel"),
    ]
    assert switches == [line for pair in [*forth, *forth[::-1]] for line in pair]
    sent = [line.split() for line in one.stage.log if "-u" in line]
    assert {words[words.index("-l") + 1] for words in sent} == {"16000"}, "they fit the smallest ring"
    series = {(one_["test"], one_["path"]): one_["points"] for one_ in series_of(one.slices, UNITS)}
    assert [point["size"] for point in series["udp_stream", "channel"]] == [65536, 131072]
    assert series["udp_stream", "standard"] == [{"size": None, "median": 2.0, "values": [2.0, 2.0]}]


def test_a_sweep_over_both_counts_its_steps(meter):
    plan = Plan((64,), (65536,), rounds=3, seconds=1)
    assert len(sweep(meter(), plan)) == plan.steps


def test_series_leave_out_what_was_disturbed(meter):
    one = meter("kvm", 0.5, 0.0)
    notes = {"series": "message_size", "test": "tcp_stream", "size": 64}
    answers = iter([1.0, 3.0])
    one.take("channel", lambda: {"tcp_stream": next(answers)}, notes=notes)
    (series,) = series_of(one.slices, UNITS)
    assert series["points"] == [{"size": 64, "median": 3.0, "values": [3.0]}]
    assert series["unit"] == "Gbit/s"


def slices():
    """A slice of each point of small series."""
    found = []
    for test in ("tcp_stream", "udp_stream"):
        for series, sizes in (("message_size", (64, 1024, 65536)), ("ring_size", (65536, 1 << 20))):
            for path in ("standard", "channel"):
                over = (None,) if (series, path) == ("ring_size", "standard") else sizes
                for size in over:
                    rate = 0.2 if path == "standard" else (size or 0) / 65536
                    notes = {"series": series, "test": test, "size": size}
                    found.append(Slice(path, {test: rate}, 0, 1, 0, notes=notes))
    return found


def test_the_series_page(tmp_path):
    target = tmp_path / "series.html"
    series_page.write_page(target, {"host": host("xen"), "series": series_of(slices(), UNITS)}, record(None))
    text = target.read_text()
    assert len(drawings(text)) == 4
    assert text.count('class="curve level standard"') == 2
    assert not re.search(r"\$[a-z]", text)
    assert len(re.findall("<tr><td>", text)) == len(slices())


def test_a_series_that_was_not_measured(tmp_path):
    target = tmp_path / "series.html"
    only = [one for one in series_of(slices(), UNITS) if one["series"] == "ring_size"]
    series_page.write_page(target, {"host": host("kvm"), "series": only}, record(0.15))
    assert len(drawings(target.read_text())) == 2
    assert "Not measured this time" in target.read_text()


def test_tables():
    console = Console(width=120, record=True, file=io.StringIO())
    for table in tables(series_of(slices(), UNITS)):
        console.print(table)
    text = console.export_text()
    assert re.search(r"64K +│ +0.2 +│ +1 +│ +0.2 +│ +1", text)
    assert re.search(r"any +│ +0.2 +│ +│ +0.2 +│", text)


def test_options_of_the_series(capsys):
    plain = arguments().parse_args([])
    assert (plain.host, plain.messages, plain.rings) == ("kvm", MESSAGE_SIZES, RING_SIZES)
    chosen = arguments().parse_args(["--host", "xen", "--messages", "--rings", "64K", "1M"])
    assert (chosen.host, chosen.messages, chosen.rings) == ("xen", [], [65536, 1 << 20])
    with pytest.raises(SystemExit):
        arguments().parse_args(["--rings", "3M"])
    assert "power of two" in capsys.readouterr().err
