# SPDX-License-Identifier: GPL-2.0
"""The page of the series: one HTML file that needs nothing else, with its plots drawn as SVG."""

from pathlib import Path
from string import Template
from typing import Any

from ..path.plots import Curve, around, figures, sizes_plot, values
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
    return figures(
        (TITLES[test], sizes_plot(f"{TITLES[test]} over {size}", curves(all_series, series, test), size, "Gbit/s", log))
        for test in TESTS
    )


def write_page(target: Path, data: dict[str, Any], record: dict[str, Any]) -> None:
    """Write the page. ``data`` is what out/series.json holds, ``record`` what is known of the slices."""
    all_series = data["series"]
    target.write_text(
        PAGE.substitute(
            around(data, record),
            messages=plots(all_series, MESSAGES),
            rings=plots(all_series, RINGS),
            table=values(all_series, {series: size for series, (size, _) in AXES.items()}, TITLES),
        )
    )
