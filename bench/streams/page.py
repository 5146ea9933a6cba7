# SPDX-License-Identifier: GPL-2.0
"""The page of the streams' series: one HTML file that needs nothing else, with its plots drawn as SVG."""

from pathlib import Path
from string import Template
from typing import Any

from ..path.plots import Curve, around, figures, sizes_plot, values
from .sweep import ALL, BLOCKS, BLOCKS_OF, FILES, FOUR, FTP, MESSAGES, RINGS, STREAMS, TITLES, TRIPS

PAGE = Template((Path(__file__).parent / "page.html").read_text())

TESTS = {MESSAGES: (STREAMS, TRIPS), BLOCKS: tuple(BLOCKS_OF), FILES: (FTP,), RINGS: (FOUR,)}
"""What is plotted of a series."""
AXES = {MESSAGES: "bytes a message", BLOCKS: "bytes a block", FILES: "bytes a file", RINGS: "bytes a ring"}


def curves(all_series: list[dict[str, Any]], series: str, test: str) -> list[Curve]:
    """The curves of one plot."""
    found = {one["path"]: one for one in all_series if (one["series"], one["test"]) == (series, test)}
    return [
        Curve(path, [(point["size"], point["median"]) for point in found[path]["points"]])
        for path in ALL
        if path in found
    ]


def plots(all_series: list[dict[str, Any]], series: str) -> str:
    """The plots of a series, one for each test."""
    found = []
    for test in TESTS[series]:
        unit = next((one["unit"] for one in all_series if one["test"] == test), "")
        title = f"{TITLES[test]} over {AXES[series]}"
        plot = sizes_plot(title, curves(all_series, series, test), AXES[series], unit, series != RINGS)
        found.append((TITLES[test], plot))
    return figures(found)


def write_page(target: Path, data: dict[str, Any], record: dict[str, Any]) -> None:
    """Write the page. ``data`` is what out/series-stream.json holds, ``record`` what is known of the slices."""
    all_series = data["series"]
    target.write_text(
        PAGE.substitute(
            around(data, record),
            messages=plots(all_series, MESSAGES),
            blocks=plots(all_series, BLOCKS),
            files=plots(all_series, FILES),
            rings=plots(all_series, RINGS),
            table=values(all_series, AXES, TITLES),
        )
    )
