# SPDX-License-Identifier: GPL-2.0
"""What people see: tables, pages, and the errors of the command line."""

import html
import io
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from rich.console import Console

from bench.demo import page as demo_page
from bench.path.hosts import HOSTS
from bench.path.measure import KINDS
from bench.path.plots import Curve, disturbed, facts, nice_top, sizes_plot
from bench.path.table import factor, number, show
from bench.tunnels import page as tunnels_page
from tests.bench.pages import drawings, host, record

TOP = Path(__file__).resolve().parents[2]


def results():
    return [
        {"test": test, "path": path, "unit": kind.unit, "median": median, "values": [median, median * 1.1]}
        for test, kind in KINDS.items()
        for path, median in (("standard", 2.0), ("channel", 0.5 if kind.lower_is_better else 7.0), ("loopback", 3.5))
    ] + [{"test": "tcp_stream", "path": "stream", "unit": "Gbit/s", "median": 14.0, "values": [14.0, 15.0]}]


@pytest.mark.parametrize("kind", HOSTS)
def test_the_demos_page(tmp_path, kind):
    events = [
        {"at": at, "what": what}
        for at, what in ((3.0, "modprobe"), (3.5, "channel up"), (8.0, "rmmod"), (8.2, "unloaded"))
    ]
    more = {
        "timeline": {"points": [(n / 4, 1 + n % 3) for n in range(1, 48)], "events": events},
        "netpipe": {"standard": [(1, 0.1, 1e-4), (64, 2.0, 1e-4)], "channel": [(1, 0.4, 1e-5), (64, 9.0, 1e-5)]},
        "record": record(None if kind == "xen" else 0.15),
    }
    target = tmp_path / "demo.html"
    demo_page.write_page(target, {"host": host(kind), "results": results()}, more)
    text = html.unescape(target.read_text())
    assert len(drawings(target.read_text())) == 1 + len(KINDS) + 1
    assert HOSTS[kind].standard_network in text
    assert HOSTS[kind].cpu_time in text
    assert "A &lt;fast&gt; CPU" in target.read_text()
    assert ("virtual" in text) == (kind == "xen")
    assert ("3 were" in text) == (kind == "kvm")
    assert "guests' CPUs" in text and "2 each" in text and "QEMU 10.0" in text
    assert target.read_text().count("stream: 7&times;") == 1
    assert "2&times; loopback" in target.read_text() and "loopback inside" in text
    assert not re.search(r"\$[a-z]", text)
    assert ".curve" in text, "the page has its style"


def test_the_page_of_tunnels(tmp_path):
    found = [
        {"kind": kind, "title": title, "path": path, "unit": "Gbit/s", "median": median, "values": [median, median]}
        for kind, title in (("plain", "without"), ("gre", "GRE <tunnel>"))
        for path, median in (("standard", 2.0), ("channel", 5.0))
    ]
    target = tmp_path / "tunnels.html"
    tunnels_page.write_page(target, {"host": host("kvm"), "results": found}, record(0.15))
    text = target.read_text()
    assert len(drawings(text)) == 2
    assert "2.5&times;" in text and "GRE &lt;tunnel&gt;" in text
    assert not re.search(r"\$[a-z]", text)


def test_curves_are_where_their_values_are():
    svg = sizes_plot("t", [Curve("channel", [(64, 1.0), (128, 2.0), (256, 4.0)])], "bytes", "Gbit/s", log=False)
    points = [tuple(map(float, pair.split(","))) for pair in re.findall(r'points="([^"]*)"', svg)[0].split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert (y0 - y1) * 2 == pytest.approx(y1 - y2, abs=0.2)


def test_names_are_not_written_over_each_other():
    curves = [Curve(path, [(64, 1.0), (128, 2.0)]) for path in ("standard", "channel")]
    svg = ElementTree.fromstring(sizes_plot("t", curves, "bytes", "Gbit/s", log=True))
    names = [float(one.attrib["y"]) for one in svg.iter("text") if one.attrib["class"].startswith("name")]
    assert len(names) == 2
    assert abs(names[0] - names[1]) >= 14


@pytest.mark.parametrize("log", [True, False])
def test_nothing_to_draw(log):
    assert sizes_plot("t", [], "bytes", "Gbit/s", log) == ""
    assert sizes_plot("t", [Curve("channel", [(64, 0.0)])], "bytes", "Gbit/s", log) == ""
    assert drawings(sizes_plot("t", [Curve("channel", [(64, 1.0)])], "bytes", "Gbit/s", log))


@pytest.mark.parametrize(("value", "top", "step"), [(0, 1, 0.5), (0.42, 0.5, 0.1), (3.3, 4, 1), (99, 100, 20)])
def test_axes_end_at_round_numbers(value, top, step):
    assert nice_top(value) == pytest.approx((top, step))


def test_tables():
    console = Console(width=170, record=True, file=io.StringIO())
    show(console, results())
    text = console.export_text()
    assert re.search(r"TCP stream +│ Gbit/s +│ +2 +│ +7 +│ +3.50 +\(3.5 times\) │ +14 │ +2.00 │ +3.5 │ +2.00", text)
    assert re.search(r"flood ping +│ us +│ +2 +│ +0.5 +│ +0.25 +\(4.0 times less\) │ +│ +│ +3.5 │ +0.14", text)


def test_figures_from_before_loopback_was_measured():
    console = Console(width=170, record=True, file=io.StringIO())
    show(console, [one for one in results() if one["path"] != "loopback"])
    assert re.search(
        r"TCP stream +│ Gbit/s +│ +2 +│ +7 +│ +3.50 +\(3.5 times\) │ +14 │ +2.00 │ +│", console.export_text()
    )


def test_numbers():
    assert [number(value) for value in (1234.5, 12.345, 0.0012345)] == ["1,234", "12.3", "0.00123"]
    assert factor(0.25, True) == "4.0 times less"
    assert factor(2, True) == "2.0 times more"
    assert factor(2, False) == "2.0 times"


def test_what_is_said_of_others():
    assert "0.15 CPUs" in disturbed(record(0.15))
    assert "virtual" in disturbed(record(None))
    assert "netfront" in facts(host("xen"))


@pytest.mark.parametrize(("words", "status"), [([], 0), (["HOST=xen"], 0), (["HOST=hyperv"], 2), (["HOST="], 2)])
def test_make_knows_the_hosts(words, status):
    found = subprocess.run(["make", "-s", "known-host", *words], cwd=TOP, capture_output=True, text=True)
    assert found.returncode == status
    assert ("choose HOST=kvm or HOST=xen" in found.stderr) == bool(status)


def test_make_takes_no_host_from_the_environment():
    found = subprocess.run(
        ["make", "-n", "demo"],
        cwd=TOP,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOST": "my-desk"},
    )
    assert "bench/run demo --host kvm" in found.stdout


@pytest.mark.parametrize("target", ["demo", "series", "demo-migration"])
@pytest.mark.parametrize(("words", "cpus"), [([], "1"), (["GUEST_CPUS=2"], "2")])
def test_make_knows_the_guests_cpus(target, words, cpus):
    found = subprocess.run(["make", "-n", target, *words], cwd=TOP, capture_output=True, text=True)
    assert f" --guest-cpus {cpus}\n" in found.stdout
