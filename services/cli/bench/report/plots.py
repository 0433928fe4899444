"""Curves as inline SVG: whole by themselves, in the colours of the page that they stand on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from services.cli.bench.report.load_words import number

WIDTH, HEIGHT = 360.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 8.0, 34.0
TICKS = 4
MOST_POINTS = 400
"""The points of a curve that are drawn: evenly spread where it has more."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PlotCurve:
    """`dots`: its points stand alone, no line joins them."""

    name: str
    points: Sequence[Point]
    dots: bool = False


def plot(title: str, x_name: str, y_name: str, curves: Sequence[PlotCurve], *, log_x: bool = False) -> str:
    """Return a figure, or nothing where no curve has a point. `log_x` leaves out points at 0 and below."""
    shown = [PlotCurve(c.name, _thinned(_finite(c.points, log_x=log_x)), c.dots) for c in curves]
    points = [point for curve in shown for point in curve.points]
    if not points:
        return ""
    x_axis = _Axis.over([x for x, _ in points], LEFT, WIDTH - RIGHT, log=log_x)
    y_axis = _Axis.over([0.0, *(y for _, y in points)], HEIGHT - BOTTOM, TOP)
    parts = [*_grid(x_axis, y_axis), *(_drawn(index, c, x_axis, y_axis) for index, c in enumerate(shown))]
    names = "".join(
        f'<span class="c{index}">{escape(curve.name)}</span>'
        for index, curve in enumerate(shown)
        if curve.points
    )
    labels = (
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(x_name)}</text>'
        f'<text x="{LEFT + 4}" y="{TOP + 10}">{escape(y_name)}</text>'
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{escape(title)}">'
        f'{"".join(parts)}{labels}</svg><div class="names">{names}</div></figure>'
    )


def distribution(name: str, values: Sequence[float]) -> PlotCurve:
    """Return the share of values up to each."""
    ascending = sorted(value for value in values if not math.isnan(value))
    return PlotCurve(name, [(value, (i + 1) / len(ascending)) for i, value in enumerate(ascending)])


@dataclass(frozen=True, slots=True)
class _Axis:
    least: float
    most: float
    begin: float
    end: float
    log: bool
    step: float = 0.0
    """The distance of ticks on an axis that is even."""

    @classmethod
    def over(cls, values: Sequence[float], begin: float, end: float, *, log: bool = False) -> _Axis:
        least, most = min(values), max(values)
        if log:
            return cls(math.log10(least), max(math.log10(most), math.log10(least) + 0.1), begin, end, log)
        step = _round_step((most - least or 1.0) / TICKS)
        bottom, top = math.floor(least / step) * step, math.ceil(most / step) * step
        return cls(bottom, max(top, bottom + step), begin, end, log, step)

    def at(self, value: float) -> float:
        place = math.log10(value) if self.log else value
        return self.begin + (place - self.least) / (self.most - self.least) * (self.end - self.begin)

    def ticks(self) -> list[float]:
        if not self.log:
            return [
                self.least + n * self.step for n in range(round((self.most - self.least) / self.step) + 1)
            ]
        round_ones = [digit * 10.0**power for power in range(-6, 9) for digit in (1, 2, 5)]
        within = [value for value in round_ones if self.least <= math.log10(value) <= self.most]
        return within if len(within) > 1 else [10**self.least, 10**self.most]


def _round_step(step: float) -> float:
    """Return the next larger of 1, 2, 2.5 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= step * (1 - 1e-9))


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    parts = []
    for value in x_axis.ticks():
        x = x_axis.at(value)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 20}" text-anchor="middle">{number(value)}</text>')
    for value in y_axis.ticks():
        y = y_axis.at(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 4}" y="{y + 3:.1f}" text-anchor="end">{number(value)}</text>')
    return parts


def _drawn(index: int, curve: PlotCurve, x_axis: _Axis, y_axis: _Axis) -> str:
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in curve.points]
    if curve.dots:
        return "".join(f'<circle class="c{index}" cx="{x:.1f}" cy="{y:.1f}" r="1.6"/>' for x, y in places)
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="c{index}" points="{line}"/>'


def _finite(points: Sequence[Point], *, log_x: bool) -> list[Point]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_x)]


def _thinned(points: list[Point]) -> list[Point]:
    """Return points spread evenly, the first and the last among them."""
    if len(points) <= MOST_POINTS:
        return points
    step = (len(points) - 1) / (MOST_POINTS - 1)
    return [points[round(index * step)] for index in range(MOST_POINTS)]
