# SPDX-License-Identifier: GPL-2.0
"""What bench/agent makes of what the simulation measured."""

import pytest

from bench.agent.__main__ import Size, entry, sizes
from bench.agent.page import write_page
from tests.bench.pages import drawings

MEASURED = {
    "guests": 100,
    "channels": 1000,
    "memory": {"rss_mb": 21.26},
    "arrivals": {"p99_ms": 12.345},
    "idle_cpu_percent": 0.01234,
}


def test_entry():
    expected = {"guests": 100, "channels": 1000, "rss_mb": 21.3, "arrival_ms": 12.3, "idle_cpu_percent": 0.012}
    assert entry(MEASURED) == expected


def test_sizes_fit_what_descriptors_there_are():
    assert sizes([100, 1000], 20000) == [Size(100), Size(1000)]
    assert Size(1000).descriptors <= 20000
    assert Size(1000).bridges == 10
    with pytest.raises(SystemExit, match="ulimit"):
        sizes([1000], 8000)


def test_page(tmp_path):
    target = tmp_path / "agent.html"
    write_page(target, [MEASURED])
    assert len(drawings(target.read_text())) == 3
    write_page(target, [MEASURED, {**MEASURED, "disturbed": {"arrivals": {"p99_ms": 99.0}}}])
    text = target.read_text()
    assert len(drawings(text)) == 4
    assert "1,000 channels" in text
