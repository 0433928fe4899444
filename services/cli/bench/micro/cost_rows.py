"""Readings of one figure, one a turn, and their ratios to the readings of a floor in the same turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from services.cli.bench.micro.turns import TurnCost
from services.cli.bench.stats.quantiles import order_interval, sorted_quantile

MEDIAN = 0.5

TurnFigures = Mapping[str, Callable[[TurnCost], float]]
"""The figures of a turn, by their units."""


@dataclass(frozen=True, slots=True)
class MedianSpan:
    """A median with its interval at 95 % by order statistics; a side that too few turns bound is infinite."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        ascending = np.sort(np.asarray(values, dtype=np.float64))
        return cls(sorted_quantile(ascending, MEDIAN), *order_interval(ascending, MEDIAN))


@dataclass(frozen=True, slots=True)
class CostRow:
    """One figure of one side. `floors` names the sides that it is set against; a floor itself has none."""

    name: str
    unit: str
    readings: tuple[float, ...]
    floors: tuple[str, ...] = ()


def cost_rows_of(
    costs: Mapping[str, Sequence[TurnCost]], floors: Mapping[str, tuple[str, ...]], figures: TurnFigures
) -> list[CostRow]:
    """Return a row for each figure of each side, from the turns that all of them took."""
    return [
        CostRow(name, unit, tuple(map(figure, turns)), floors.get(name, ()))
        for unit, figure in figures.items()
        for name, turns in costs.items()
    ]


def floor_ratios(row: CostRow, rows: Sequence[CostRow]) -> dict[str, tuple[float, ...]]:
    """Return the row's readings over those of each of its floors, turn by turn."""
    by_name = {each.name: each.readings for each in rows if each.unit == row.unit}
    return {
        floor: tuple(
            ours / least if least > 0 else math.inf
            for ours, least in zip(row.readings, by_name[floor], strict=True)
        )
        for floor in row.floors
    }
