# SPDX-License-Identifier: GPL-2.0
"""Plots as SVG, and what the pages of all benchmarks have in common."""

import html
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .sizes import size_name
from .table import number

WIDTH = 920

STYLE = (Path(__file__).parent / "page.css").read_text()


def esc(text: object) -> str:
    """Text for HTML."""
    return html.escape(str(text))


def nice_top(value: float) -> tuple[float, float]:
    """Top of an axis, and the distance of its marks, for values up to ``value``."""
    if value <= 0:
        return 1.0, 0.5
    power = 10 ** math.floor(math.log10(value))
    for step in (0.2, 0.25, 0.5, 1, 2):
        if value / (step * power) <= 5.5:
            step *= power
            return math.ceil(value / step) * step, step
    return 10 * power, 2 * power


@dataclass(frozen=True)
class Curve:
    """One curve: a path, and a value for each size in bytes."""

    path: str
    points: list[tuple[int, float]]
    level: float | None = None
    """Instead of points: the same value for all sizes."""


def sizes_plot(title: str, curves: list[Curve], size: str, unit: str, log: bool) -> str:
    """Values over a size in bytes, which is logarithmic; with ``log`` the values are too.

    Values that are not above 0 are left out. Nothing is drawn without points.
    """
    good = [Curve(one.path, [point for point in one.points if point[1] > 0], one.level) for one in curves]
    sizes = [point[0] for one in good for point in one.points]
    values = [point[1] for one in good for point in one.points] + [one.level for one in good if one.level]
    if not sizes:
        return ""
    height, left, right, top, bottom = 310, 60, 110, 34, 40
    x_low, x_high = math.log2(min(sizes)), math.log2(max(sizes))
    if log:
        y_low, y_high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        marks = [10.0**power for power in range(y_low, y_high + 1)]
    else:
        ceiling, step = nice_top(max(values))
        marks = [n * step for n in range(round(ceiling / step) + 1)]

    def x(at: float) -> float:
        return left + (WIDTH - left - right) * (math.log2(at) - x_low) / max(x_high - x_low, 1)

    def y(value: float) -> float:
        part = (math.log10(value) - y_low) / max(y_high - y_low, 1) if log else value / ceiling
        return height - bottom - (height - top - bottom) * part

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{esc(title)}">']
    for mark in marks:
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 8}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>')
    first, last = math.ceil(x_low), math.floor(x_high)
    for power in range(first, last + 1, 1 if last - first < 10 else 2):
        place = f'x="{x(2**power):.1f}" y="{height - 20}"'
        parts.append(f'<text class="tick" {place} text-anchor="middle">{size_name(2**power)}</text>')
    parts.append(f'<text class="tick" x="{WIDTH - right}" y="{height - 3}" text-anchor="end">{esc(size)}</text>')
    parts.append(f'<text class="tick" x="{left - 8}" y="{top - 18}" text-anchor="end">{esc(unit)}</text>')
    names: list[tuple[float, float, str]] = []
    for one in good:
        if one.level:
            level = f'x1="{left}" x2="{WIDTH - right}" y1="{y(one.level):.1f}" y2="{y(one.level):.1f}"'
            parts.append(
                f'<line class="curve level {one.path}" {level}>'
                f"<title>{esc(one.path)}: {one.level:.4g} {esc(unit)}</title></line>"
            )
            names.append((y(one.level), WIDTH - right, one.path))
        if not one.points:
            continue
        line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in one.points)
        parts.append(f'<polyline class="curve {one.path}" points="{line}"/>')
        for at, value in one.points:
            parts.append(
                f'<circle class="dot" cx="{x(at):.1f}" cy="{y(value):.1f}" r="6">'
                f"<title>{esc(one.path)}, {size_name(at)} bytes: {value:.4g} {esc(unit)}</title></circle>"
            )
        names.append((y(one.points[-1][1]), x(one.points[-1][0]), one.path))
    lowest = -math.inf
    for at_y, at_x, path in sorted(names):
        # Two that end side by side are not written over each other.
        lowest = max(at_y + 4, lowest + 15)
        parts.append(f'<text class="name {path}" x="{at_x + 10:.1f}" y="{lowest:.1f}">{esc(path)}</text>')
    parts.append("</svg>")
    return "".join(parts)


def bars(title: str, unit: str, rows: list[dict[str, Any]]) -> str:
    """A bar for each row's median, with its path's colour, and a tick for each of its values."""
    ceiling = max(value for one in rows for value in one["values"]) * 1.02 or 1.0
    width, height = 560, 4 + 30 * len(rows)
    scale = (width - 150) / ceiling
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{esc(title)}">']
    for n, one in enumerate(rows):
        top = 6 + n * 30
        length = max(one["median"] * scale, 2)
        parts.append(f'<rect class="bar {one["path"]}" x="0" y="{top}" width="{length:.1f}" height="22" rx="3"><title>')
        parts.append(f"{one['path']}: median {number(one['median'])} {unit}</title></rect>")
        for value in one["values"]:
            parts.append(
                f'<line class="slice" x1="{value * scale:.1f}" x2="{value * scale:.1f}" y1="{top + 4}" y2="{top + 18}">'
                f"<title>{number(value)} {unit}</title></line>"
            )
        far = max(length, *(value * scale for value in one["values"])) + 8
        parts.append(f'<text class="value" x="{far:.1f}" y="{top + 16}">{number(one["median"])}')
        parts.append(f'<tspan class="unit" dx="4">{esc(unit)}</tspan></text>')
    parts.append("</svg>")
    return "".join(parts)


def facts(host: dict[str, Any]) -> str:
    """What the measurement ran on, as a list of HTML."""
    clock = host["clocksource"]
    lines = {
        "host": f"{host['cpu']}, {host['cpus']} CPUs, accelerator {host['accelerator']}",
        "kernels": f"host {host['host_kernel']}, guests {host['guest_kernel']} on {host['machine']}",
        "guests' CPUs": f"{host['guest_cpus']} each",
        "hypervisor": f"{host['hypervisor']}; {host['qemu']}",
        "outer machine": host["emulator"],
        "standard network": host["standard_network"],
        "time": host["time"],
        "clock source": f"host {clock['host']}, guests {clock['guest']}",
    }
    return "".join(f"<dt>{esc(key)}</dt><dd>{esc(value)}</dd>" for key, value in lines.items())


def values(all_series: list[dict[str, Any]], axes: Mapping[str, str], titles: Mapping[str, str]) -> str:
    """All values of series, as rows of a table: what each is over, by its name, and what its test is called."""
    return "".join(
        f"<tr><td>{axes[one['series']]}</td><td>{titles[one['test']]}</td><td>{esc(one['path'])}</td>"
        f"<td class=n>{'' if point['size'] is None else size_name(point['size'])}</td>"
        f"<td class=n>{number(point['median'])}</td><td>{esc(one['unit'])}</td>"
        f"<td>{', '.join(number(value) for value in point['values'])}</td></tr>"
        for one in all_series
        for point in one["points"]
    )


def disturbed(record: dict[str, Any]) -> str:
    """What was done about others that used the machine meanwhile."""
    if record["disturbed_above_cpus"] is None:
        return "Others that used this machine meanwhile made no difference, as time was virtual."
    return (
        f"Slices during which others used more than {record['disturbed_above_cpus']} CPUs of this machine are left out "
        f"and taken again: {record['repeated']} were, and {record['kept_although_disturbed']} count although they were "
        "disturbed."
    )


def figures(plots: Iterable[tuple[str, str]]) -> str:
    """Figures of a page: titles, and plots, of which some may be empty."""
    shown = [f"<figure><h3>{title}</h3>{plot}</figure>" for title, plot in plots if plot]
    return "".join(shown) or '<p class="note">Not measured this time.</p>'


def around(data: dict[str, Any], record: dict[str, Any]) -> dict[str, object]:
    """What a page of series says beside its plots; ``data``: of the series' file, ``record``: of the slices."""
    counts = [len(point["values"]) for one in data["series"] for point in one["points"]]
    return {
        "style": STYLE,
        "standard_network": esc(data["host"]["standard_network"]),
        "facts": facts(data["host"]),
        "count": max(counts, default=0),
        "disturbed": esc(disturbed(record)),
    }
