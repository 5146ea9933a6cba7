# SPDX-License-Identifier: GPL-2.0
"""The page: one HTML file that needs nothing else, with its plot drawn as SVG."""

from pathlib import Path
from string import Template
from typing import Any

from ..demo.page import WIDTH, esc, nice_top
from .hosts import HOSTS
from .timeline import Timeline

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 390, 62, 16, 116, 38

LABELS = {
    "migration asked for": "asked for",
    "channel down": "channel down",
    "prepared": "",
    "arrived": "arrived",
    "channel up": "channel up",
}
"""Events that are marked, and what stands there; for "prepared" what the kind of host does then."""


def plot(timeline: Timeline, halts: str) -> str:
    """Rate over time; where a channel was up is shaded, and every moment is marked."""
    end = timeline.points[-1][0]
    ceiling, step = nice_top(max(rate for _, rate in timeline.points))

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / end

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / ceiling

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Requests and responses a second over time">']
    for begin, stop in zones(timeline.events, end):
        parts.append(
            f'<rect class="zone" x="{x(begin):.1f}" y="{TOP}" width="{x(stop) - x(begin):.1f}"'
            f' height="{HEIGHT - TOP - BOTTOM}"/>'
        )
    for n in range(round(ceiling / step) + 1):
        rate = n * step
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(rate):.1f}" y2="{y(rate):.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate:g}</text>')
    for mark in range(0, int(end) + 1, 5 if end <= 90 else 10):
        parts.append(f'<text class="tick" x="{x(mark):.1f}" y="{HEIGHT - 16}" text-anchor="middle">{mark}</text>')
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">seconds</text>')
    line = " ".join(f"{x(at):.1f},{y(rate):.1f}" for at, rate in timeline.points)
    first, last = x(timeline.points[0][0]), x(end)
    parts.append(f'<polygon class="area" points="{first:.1f},{y(0):.1f} {line} {last:.1f},{y(0):.1f}"/>')
    parts.append(f'<polyline class="line" points="{line}"/>')
    for at, rate in timeline.points:
        parts.append(
            f'<circle class="dot" cx="{x(at):.1f}" cy="{y(rate):.1f}" r="5">'
            f"<title>{at:.1f} s: {rate:.0f} a second</title></circle>"
        )
    # Labels in rows, so that moments close to each other stay apart.
    rows = {what: 14 + 22 * n for n, what in enumerate(LABELS)}
    for event in timeline.events:
        if event["what"] not in LABELS:
            continue
        place, row = x(event["at"]), rows[event["what"]]
        up = " up" if event["what"].startswith("channel") else ""
        far = place > WIDTH - 180
        parts.append(
            f'<line class="mark{up}" x1="{place:.1f}" x2="{place:.1f}" y1="{row - 10}" y2="{HEIGHT - BOTTOM}"/>'
        )
        parts.append(
            f'<text class="label{up}" x="{place + (-6 if far else 6):.1f}" y="{row}"'
            f' text-anchor="{"end" if far else "start"}">{esc(LABELS[event["what"]] or halts)}'
            f'<tspan class="when" dx="6">{event["at"]:.1f} s</tspan></text>'
        )
    parts.append("</svg>")
    return "".join(parts)


def zones(events: list[dict[str, Any]], end: float) -> list[tuple[float, float]]:
    """When a channel was up."""
    found: list[tuple[float, float]] = []
    begin: float | None = None
    for event in sorted(events, key=lambda one: float(one["at"])):
        if event["what"] == "channel up":
            begin = event["at"]
        elif event["what"] == "channel down" and begin is not None:
            found.append((begin, event["at"]))
            begin = None
    if begin is not None:
        found.append((begin, end))
    return found


def format_ms(value: float | None) -> str:
    """Milliseconds; a figure that was not measured says so."""
    return "not measured" if value is None else f"{value:.0f} ms"


def write_page(path: Path, data: dict[str, Any], timeline: Timeline) -> None:
    """Write the page."""
    rows = []
    for trip in data["trips"]:
        rise = "" if trip["rise"] is None else f"{trip['rise']:.2f}"
        rows.append(
            f"<tr><td>{esc(trip['to'])}</td><td class=n>{trip['prepared'] - trip['began']:.2f}</td>"
            f"<td class=n>{trip['arrived'] - trip['prepared']:.1f}</td><td class=n>{rise}</td>"
            f"<td class=n>{trip['work_ms']:.0f}</td><td class=n>{trip['after_ms']:.0f}</td>"
            f"<td class=n>{trip['pause_ms']:.0f}</td>"
            f"<td class=n>{'' if trip['stood_ms'] is None else format(trip['stood_ms'], '.0f')}</td>"
            f"<td class=n>{trip['lost']}</td></tr>"
        )
    facts = "".join(f"<dt>{esc(name)}</dt><dd>{esc(value)}</dd>" for name, value in data["stage"].items())
    template = Template((Path(__file__).parent / "page.html").read_text())
    path.write_text(
        template.substitute(
            plot=plot(timeline, HOSTS[data["host"]].halts),
            rows="".join(rows),
            facts=facts,
            trips=data["round_trips"],
            broken=data["connections_broken"],
            wrong=data["bytes_wrong"],
            lost=data["frames_lost_by_vmloop"],
            pause=format_ms(data["added_pause_ms"]),
            wait=format_ms(data["added_wait_ms"]),
        )
    )
