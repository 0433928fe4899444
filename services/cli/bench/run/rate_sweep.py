"""Loads of rising rates, until goodput stops to grow: the knee."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

LEAST_GROWTH = 1.03
"""Goodput that grows by less has not grown."""
BEYOND_KNEE = 2
"""The rates without growth in a row that end a sweep: one alone may be chance."""

Step = TypeVar("Step")


@dataclass(frozen=True, slots=True)
class SweepPlan:
    first_rate: float
    last_rate: float
    factor: float

    def rates(self) -> list[float]:
        found, rate = [], self.first_rate
        while rate <= self.last_rate * (1 + 1e-9):
            found.append(rate)
            rate *= self.factor
        return found


@dataclass(frozen=True, slots=True)
class SweepResult(Generic[Step]):
    """The measured rates in rising order.

    `knee` is the index of the step behind which goodput grew no more, None where no step had any goodput.
    `reached` says that steps behind the knee were measured.
    """

    steps: list[tuple[float, Step]]
    knee: int | None
    reached: bool

    @property
    def shown(self) -> int:
        """Return the index of the step that a report describes: the knee, without one the last."""
        return len(self.steps) - 1 if self.knee is None else self.knee


async def sweep_rates(
    plan: SweepPlan,
    run: Callable[[float], Awaitable[Step]],
    goodput: Callable[[Step], float],
    is_cut: Callable[[], bool] = lambda: False,
) -> SweepResult[Step]:
    """Run rate after rate, each when the one before has drained; none behind one that `is_cut`."""
    steps: list[tuple[float, Step]] = []
    best = 0.0
    knee: int | None = None
    for index, rate in enumerate(plan.rates()):
        step = await run(rate)
        steps.append((rate, step))
        if goodput(step) > best * LEAST_GROWTH:
            best, knee = goodput(step), index
        elif index - (knee or 0) >= BEYOND_KNEE:
            break
        if is_cut():
            break
    return SweepResult(steps, knee, reached=knee is not None and len(steps) - 1 > knee)
