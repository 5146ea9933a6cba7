# SPDX-License-Identifier: GPL-2.0
"""The streams' series: how they are taken on a stage without machines, and shown; and the program that talks."""

import io
import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from rich.console import Console
from vmlab.errors import VmlabError

from bench.path.series import series_of
from bench.streams.__main__ import BLOCK_SIZES, FILE_SIZES, MESSAGE_SIZES, RING_SIZES, arguments, tables
from bench.streams.files import TIMES, rate
from bench.streams.page import write_page
from bench.streams.sweep import ALL, BETWEEN, UNITS, Plan, Sweep
from tests.bench.pages import drawings, host, record

TOP = Path(__file__).resolve().parents[2]
PLAN = Plan((64, 65536), (1, 1 << 20), (1, 4096), (4096, 65536), rounds=2, seconds=1)


class FakeFiles:
    """Files that come at once."""

    def __init__(self, log):
        self.log = log

    def fetch(self, size):
        self.log.append(f"file of {size}")
        return 3.0


def sweep(one, plan):
    steps: list[str] = []
    say = lambda what, taken: steps.append(what) if taken is None else None  # noqa: E731
    Sweep(one, plan, say, FakeFiles(one.stage.log)).run()
    return steps


@pytest.mark.parametrize(
    "plan", [PLAN, Plan((64,), (), (), (), 1, 1), Plan((), (1,), (), (), 1, 1), Plan((), (), (1,), (4096,), 3, 1)]
)
def test_a_sweep_counts_its_steps(meter, plan):
    assert len(sweep(meter(), plan)) == plan.steps


def test_a_sweep(meter):
    one = meter()
    sweep(one, PLAN)
    switches = [line for line in one.stage.log if line.startswith(("use", "lanes"))]
    forth = [line for path in BETWEEN for line in ("lanes of 0", f"use {path}")]
    rings = [line for size in (4096, 65536) for line in (f"lanes of {size}", "use stream")]
    back = [line for path in BETWEEN[::-1] for line in ("lanes of 0", f"use {path}")]
    assert switches == [*forth, *rings, *back, *rings[2:], *rings[:2]]
    said = [line.split()[1:] for line in one.stage.log if "/talk " in line]
    assert ["stream", "unix:/run/talk", "64", "1", "1"] in said
    assert ["trips", "127.0.0.1:7400", "65536", "1"] in said
    assert ["blocks", "10.77.0.12:7400", "1048576", "1", "8"] in said
    points = {(one_["series"], one_["test"], one_["path"]): one_["points"] for one_ in series_of(one.slices, UNITS)}
    assert one.stage.log.count("file of 4096") == 2 * len(BETWEEN)
    assert len(points) == 2 * len(ALL) + 5 * len(BETWEEN) + 1
    assert points["file_size", "ftp", "channel"][0] == {"size": 1, "median": 3.0, "values": [3.0, 3.0]}
    assert points["message_size", "tcp_rr", "unix"][0] == {"size": 64, "median": 20.0, "values": [20.0, 20.0]}
    assert points["block_size", "blocks_8", "stream"][1]["median"] == 2.0
    assert [point["size"] for point in points["stream_ring_size", "tcp_stream_4", "stream"]] == [4096, 65536]


def test_the_page_and_tables(meter, tmp_path):
    one = meter()
    sweep(one, PLAN)
    series = series_of(one.slices, UNITS)
    target = tmp_path / "streams.html"
    write_page(target, {"host": host("xen"), "series": series}, record(None))
    text = target.read_text()
    assert len(drawings(text)) == 2 + 4 + 1 + 1
    assert not re.search(r"\$[a-z]", text)
    assert len(re.findall("<tr><td>", text)) == sum(len(one_["points"]) for one_ in series)
    console = Console(width=120, record=True, file=io.StringIO())
    for table in tables(series):
        console.print(table)
    assert re.search(r"64K +│ +20 +│ +20 +│ +20 +│ +20 +│ +20", console.export_text())


def test_what_was_not_measured(meter, tmp_path):
    one = meter()
    sweep(one, Plan((), (), (), (4096, 65536), 1, 1))
    target = tmp_path / "streams.html"
    write_page(target, {"host": host("kvm"), "series": series_of(one.slices, UNITS)}, record(0.15))
    assert len(drawings(target.read_text())) == 1
    assert target.read_text().count("Not measured this time") == 3


def test_options():
    plain = arguments().parse_args([])
    assert (plain.messages, plain.blocks, plain.files, plain.rings) == (
        MESSAGE_SIZES,
        BLOCK_SIZES,
        FILE_SIZES,
        RING_SIZES,
    )
    assert arguments().parse_args(["--messages", "--rings", "4K"]).rings == [4096]


def test_the_rate_of_files():
    assert rate("0.5 1000000\n" * TIMES) == pytest.approx(0.016)
    for text in ("", "0.5 1000000\n" * (TIMES - 1), "0.5 0\n" * TIMES):
        with pytest.raises(VmlabError, match="did not fetch"):
            rate(text)


@pytest.fixture(scope="session")
def talk():
    subprocess.run(["make", "-s", "-C", str(TOP / "bench/streams"), "talk"], check=True)
    return str(TOP / "out/bench/talk")


@pytest.mark.parametrize("address", ["127.0.0.1:0", "unix:"])
def test_talk(talk, tmp_path, address):
    """It measures something, also blocks with fewer bytes than connections."""
    address = f"{address}{tmp_path}/socket" if address == "unix:" else "127.0.0.1:17400"
    with subprocess.Popen([talk, "serve", address], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == "ready\n"
            for words in ("stream 4096 0.1 3", "trips 100 0.1", "blocks 3 0.1 8", "blocks 300000 0.1 2"):
                what, *rest = words.split()
                began = time.monotonic()
                done = subprocess.run(
                    [talk, what, address, *rest], capture_output=True, text=True, check=True, timeout=60
                )
                found = json.loads(done.stdout)
                assert 0.1 <= found["seconds"] <= time.monotonic() - began
                assert found["trips" if what == "trips" else "bytes"] > 0
        finally:
            server.kill()


def test_talk_says_what_is_wrong(talk):
    for words in (["stream"], ["stream", "127.0.0.1:1", "0", "1", "1"], ["stream", "127.0.0.1:1", "1", "1", "65"]):
        done = subprocess.run([talk, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.split(":")[0]) == (2, "usage")
    done = subprocess.run([talk, "trips", "127.0.0.1:1", "1", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "connect: Connection refused" in done.stderr
