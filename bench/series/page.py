# SPDX-License-Identifier: GPL-2.0
"""The page of the series: one HTML file that needs nothing else, with its plots drawn as SVG."""

from pathlib import Path
from string import Template
from typing import Any

from ..path.plots import STYLE, Curve, disturbed, esc, facts, sizes_plot, values
from .sweep import MESSAGES, RINGS, TESTS, TITLES

PAGE = Template((Path(__file__).parent / "page.html").read_text())

AXES = {MESSAGES: ("bytes a message", True), RINGS: ("bytes a ring", False)}
"""What a series is over, and whether its values have a logarithmic axis."""


def curves(all_series: list[dict[str, Any]], series: str, test: str) -> list[Curve]:
    """The curves of one plot."""
    found = []
    for path in ("standard", "channel"):
        for one in all_series:
            if (one["series"], one["test"], one["path"]) != (series, test, path):
                continue
            points = [(point["size"], point["median"]) for point in one["points"] if point["size"] is not None]
            level = next((point["median"] for point in one["points"] if point["size"] is None), None)
            found.append(Curve(path, points, level))
    return found


def plots(all_series: list[dict[str, Any]], series: str) -> str:
    """The plots of a series, one for each test."""
    size, log = AXES[series]
    figures = []
    for test in TESTS:
        plot = sizes_plot(f"{TITLES[test]} over {size}", curves(all_series, series, test), size, "Gbit/s", log)
        if plot:
            figures.append(f"<figure><h3>{TITLES[test]}</h3>{plot}</figure>")
    return "".join(figures) or '<p class="note">Not measured this time.</p>'


def write_page(target: Path, data: dict[str, Any], record: dict[str, Any]) -> None:
    """Write the page. ``data`` is what out/series.json holds, ``record`` what is known of the slices."""
    all_series, host = data["series"], data["host"]
    counts = [len(point["values"]) for one in all_series for point in one["points"]]
    target.write_text(
        PAGE.substitute(
            style=STYLE,
            standard_network=esc(host["standard_network"]),
            messages=plots(all_series, MESSAGES),
            rings=plots(all_series, RINGS),
            facts=facts(host),
            count=max(counts, default=0),
            disturbed=esc(disturbed(record)),
            table=values(all_series, {series: size for series, (size, _) in AXES.items()}, TITLES),
        )
    )
