# SPDX-License-Identifier: GPL-2.0
"""The demo's page: one HTML file that needs nothing else, with its plots drawn as SVG."""

from collections.abc import Callable
from pathlib import Path
from string import Template
from typing import Any

from ..path.measure import KINDS, ratio
from ..path.plots import STYLE, WIDTH, Curve, bars, disturbed, esc, facts, nice_top, sizes_plot
from ..path.stage import LOOPBACK, PATHS, STREAM
from ..path.table import number


def timeline_plot(points: list[tuple[float, float]], events: list[dict[str, Any]]) -> str:
    """Throughput over time; where the channel carried it is shaded, and the moments of switching are marked."""
    height, left, right, top, bottom = 320, 52, 16, 58, 36
    at = {event["what"]: event["at"] for event in events}
    end = max(points[-1][0], at["unloaded"])
    ceiling, step = nice_top(max(rate for _, rate in points))

    def x(seconds: float) -> float:
        return left + (WIDTH - left - right) * seconds / end

    def y(rate: float) -> float:
        return height - bottom - (height - top - bottom) * rate / ceiling

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Throughput over time">']
    begin, stop = at["channel up"], at["rmmod"]
    parts.append(
        f'<rect class="zone" x="{x(begin):.1f}" y="{top}" width="{x(stop) - x(begin):.1f}"'
        f' height="{height - top - bottom}"/>'
    )
    for n in range(round(ceiling / step) + 1):
        rate = n * step
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{y(rate):.1f}" y2="{y(rate):.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate:g}</text>')
    every = 2 if end <= 40 else 5
    for mark in range(0, int(end) + 1, every):
        parts.append(f'<text class="tick" x="{x(mark):.1f}" y="{height - 14}" text-anchor="middle">{mark}</text>')
    parts.append(f'<text class="tick" x="{WIDTH - right}" y="{height - 1}" text-anchor="end">seconds</text>')
    parts.append(f'<text class="tick" x="{left - 40}" y="{top - 14}">Gbit/s</text>')
    line = " ".join(f"{x(seconds):.1f},{y(min(rate, ceiling)):.1f}" for seconds, rate in points)
    area = f"{x(points[0][0]):.1f},{y(0):.1f} {line} {x(points[-1][0]):.1f},{y(0):.1f}"
    parts.append(f'<polygon class="area" points="{area}"/><polyline class="line" points="{line}"/>')
    for seconds, rate in points:
        parts.append(
            f'<circle class="dot" cx="{x(seconds):.1f}" cy="{y(rate):.1f}" r="6">'
            f"<title>{seconds:.2f} s: {rate:.2f} Gbit/s</title></circle>"
        )
    # Pairs of marks lie close together: the labels of each grow apart.
    labels = (
        ("modprobe", "modprobe", "end", 20),
        ("channel up", "channel up", "start", 20),
        ("rmmod", "rmmod", "end", 20),
        ("unloaded", "standard again", "start", 20),
    )
    for key, label, anchor, label_y in labels:
        place = x(at[key])
        shift = -6 if anchor == "end" else 6
        strong = " up" if key == "channel up" else ""
        parts.append(
            f'<line class="mark{strong}" x1="{place:.1f}" x2="{place:.1f}" y1="{label_y - 10}" y2="{height - bottom}"/>'
        )
        parts.append(
            f'<text class="label{strong}" x="{place + shift:.1f}" y="{label_y}" text-anchor="{anchor}">{label}'
            f'<tspan class="when" x="{place + shift:.1f}" dy="15">{at[key]:.1f} s</tspan></text>'
        )
    parts.append("</svg>")
    return "".join(parts)


def bar_row(test: str, results: list[dict[str, Any]]) -> str:
    """The medians of a test as bars, each slice as a tick, and the ratio."""
    kind = KINDS[test]
    rows = {one["path"]: one for one in results if one["test"] == test}
    change = ratio(results, test)
    if change is None:
        return ""
    drawn = bars(kind.title, kind.unit, [rows[path] for path in (*PATHS, STREAM, LOOPBACK) if path in rows])
    if kind.lower_is_better:
        big, small = f"{1 / change:.1f}&times;", "less" if change < 1 else "of it"
    else:
        big, small = f"{change:.1f}&times;", "more" if change > 1 else "of it"
    of_it = ratio(results, test, LOOPBACK)
    beside = "" if of_it is None else f"<span>{number(of_it)}&times; loopback</span>"
    by_stream = ratio(results, test, path=STREAM)
    if by_stream is not None:
        factor = 1 / by_stream if kind.lower_is_better else by_stream
        beside = f"<span>stream: {number(factor)}&times;</span>{beside}"
    return (
        f'<section class="row"><div class="what"><h3>{esc(kind.title)}</h3>'
        f"<p>{'lower' if kind.lower_is_better else 'higher'} is better</p></div>"
        f'<div class="bars">{drawn}</div>'
        f'<div class="ratio"><b>{big}</b><span>{small}</span>{beside}</div></section>'
    )


def netpipe_plot(series: dict[str, list[tuple[int, float, float]]]) -> str:
    """NetPIPE: throughput over message size, both axes logarithmic."""
    curves = [Curve(path, [(size, rate) for size, rate, _ in series.get(path, [])]) for path in ("standard", "channel")]
    return sizes_plot("NetPIPE", curves, "bytes a message", "Mbit/s", log=True)


def results_table(results: list[dict[str, Any]]) -> str:
    """All values, for who wants to compute with them."""
    rows = []
    for one in results:
        values = ", ".join(number(value) for value in one["values"])
        rows.append(
            f"<tr><td>{esc(KINDS[one['test']].title)}</td><td>{esc(one['path'])}</td>"
            f"<td class=n>{number(one['median'])}</td><td>{esc(one['unit'])}</td><td>{values}</td></tr>"
        )
    return "".join(rows)


PAGE = Template((Path(__file__).parent / "page.html").read_text())


def lead(results: list[dict[str, Any]]) -> str:
    """The result in one sentence."""
    say: list[str] = []
    phrases: list[tuple[str, Callable[[float], str]]] = [
        ("tcp_stream", lambda change: f"{change:.1f} times the TCP throughput"),
        ("udp_stream", lambda change: f"{change:.0f} times the UDP throughput"),
        ("ping_rtt", lambda change: f"round trips in {change * 100:.0f} % of the time"),
        ("cpu_per_gb", lambda change: f"{change * 100:.0f} % of the CPU time per byte"),
    ]
    for test, phrase in phrases:
        change = ratio(results, test)
        if change is not None:
            say.append(phrase(change))
    if not say:
        return ""
    listed = ", ".join(say[:-1]) + " and " + say[-1] if len(say) > 1 else say[0]
    return f"Through shared memory: {listed}, compared with the standard network of the same machine."


def write_page(target: Path, data: dict[str, Any], more: dict[str, Any]) -> None:
    """Write the page. ``data`` is what out/demo.json holds, ``more`` what out/demo-record.json does."""
    results, host = data["results"], data["host"]
    counts = [len(one["values"]) for one in results]
    target.write_text(
        PAGE.substitute(
            style=STYLE,
            lead=esc(lead(results)),
            standard_network=esc(host["standard_network"]),
            timeline=timeline_plot(more["timeline"]["points"], more["timeline"]["events"]),
            rows="".join(bar_row(test, results) for test in KINDS),
            netpipe=netpipe_plot(more["netpipe"]),
            facts=facts(host),
            cpu_time=esc(host["cpu_time"]),
            table=results_table(results),
            count=max(counts, default=0),
            disturbed=esc(disturbed(more["record"])),
        )
    )
