# SPDX-License-Identifier: GPL-2.0
"""The page of tunnels: one HTML file that needs nothing else."""

from pathlib import Path
from string import Template
from typing import Any

from ..path.plots import STYLE, bars, disturbed, esc, facts
from ..path.table import number

PAGE = Template((Path(__file__).parent / "page.html").read_text())


def row(title: str, results: list[dict[str, Any]]) -> str:
    """Bars of both paths through one thing, and the ratio."""
    those = [one for one in results if one["title"] == title]
    medians = {one["path"]: one["median"] for one in those}
    ratio = ""
    if medians.get("standard") and "channel" in medians:
        ratio = f"<b>{number(medians['channel'] / medians['standard'])}&times;</b><span>of the standard network</span>"
    return (
        f'<section class="row"><div class="what"><h3>{esc(title)}</h3></div>'
        f'<div class="bars">{bars(title, those[0]["unit"], those)}</div><div class="ratio">{ratio}</div></section>'
    )


def table(results: list[dict[str, Any]]) -> str:
    """All values, for who wants to compute with them."""
    rows = []
    for one in results:
        values = ", ".join(number(value) for value in one["values"])
        rows.append(
            f"<tr><td>{esc(one['title'])}</td><td>{esc(one['path'])}</td>"
            f"<td class=n>{number(one['median'])}</td><td>{esc(one['unit'])}</td><td>{values}</td></tr>"
        )
    return "".join(rows)


def write_page(target: Path, data: dict[str, Any], record: dict[str, Any]) -> None:
    """Write the page. ``data`` is what out/tunnels.json holds, ``record`` what is known of the slices."""
    results, host = data["results"], data["host"]
    target.write_text(
        PAGE.substitute(
            style=STYLE,
            standard_network=esc(host["standard_network"]),
            rows="".join(row(title, results) for title in dict.fromkeys(one["title"] for one in results)),
            facts=facts(host),
            count=max((len(one["values"]) for one in results), default=0),
            disturbed=esc(disturbed(record)),
            table=table(results),
        )
    )
