# SPDX-License-Identifier: GPL-2.0
"""The page of the agent's figures: bars by number of guests, drawn as SVG."""

from pathlib import Path
from typing import Any

from ..path.plots import STYLE, esc
from ..path.table import number

FIGURES = (
    ("Memory", "MB", lambda one: one["memory"]["rss_mb"]),
    ("An arrival in all directories of its bridge, 99th percentile", "ms", lambda one: one["arrivals"]["p99_ms"]),
    ("The same beside bad guests", "ms", lambda one: (one.get("disturbed") or {}).get("arrivals", {}).get("p99_ms")),
    ("CPU while nothing happens", "% of one", lambda one: one["idle_cpu_percent"]),
)
"""Title, unit, and where it is in what was measured."""

WIDTH, ROW, LABEL = 720, 28, 220


def bars(title: str, unit: str, rows: list[tuple[str, float]]) -> str:
    """A labelled bar for each row."""
    ceiling = max(value for _, value in rows) or 1.0
    parts = [f'<svg viewBox="0 0 {WIDTH} {4 + ROW * len(rows)}" role="img" aria-label="{esc(title)}">']
    for n, (label, value) in enumerate(rows):
        top = 4 + n * ROW
        length = max((WIDTH - LABEL - 130) * value / ceiling, 2)
        parts.append(f'<text class="tick" x="{LABEL - 10}" y="{top + 15}" text-anchor="end">{esc(label)}</text>')
        parts.append(f'<rect class="bar channel" x="{LABEL}" y="{top}" width="{length:.1f}" height="20" rx="3"/>')
        parts.append(
            f'<text class="value" x="{LABEL + length + 8:.1f}" y="{top + 15}">{number(value)} {esc(unit)}</text>'
        )
    parts.append("</svg>")
    return "".join(parts)


def write_page(target: Path, measured: list[dict[str, Any]]) -> None:
    """Write the page."""
    figures = []
    for title, unit, value in FIGURES:
        rows = [(f"{one['guests']:,} guests, {one['channels']:,} channels", value(one)) for one in measured]
        known = [(label, float(found)) for label, found in rows if found is not None]
        if known:
            figures.append(f"<figure><h3>{esc(title)}</h3>{bars(title, unit, known)}</figure>")
    target.write_text(
        "<!doctype html>\n<!-- SPDX-License-Identifier: GPL-2.0 -->\n"
        f'<html lang="en"><meta charset="utf-8"><title>vmloop agent</title><style>{STYLE}</style><main>'
        "<h1>The agent with many guests</h1>"
        '<p class="lead">Guests without kernels on QEMUs without machines (host/simulation): '
        "all of the agent but for what looks at the host's network.</p>"
        f"{''.join(figures)}</main></html>\n"
    )
