"""Search the fewest instances for a load by the model of `penstock capacity`, once for equal loads."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from services.cli.bench.report.service_level import ServiceLevel
from services.cli.capacity.prediction import Prediction
from services.cli.capacity.profile import DeploymentProfile
from services.cli.capacity.sizing import CapacityQuestion, fewest_instances
from services.cli.capacity.workload import Workload

RATE_STEP = 1.05
"""Rates are rounded up to a power of this: a plan is for up to 5 % more than was asked."""
LENGTH_STEP = 1.1
PLANNED_REQUESTS = 300
"""The requests that are played for each prediction: plans are made again all the time, and have spares."""
MAX_KEPT_COUNTS = 512
"""The answers that are kept."""


@dataclass(frozen=True, slots=True)
class FoundCounts:
    """The `prediction` is for the counts that were found, at `rate` requests a second."""

    rate: float
    prediction: Prediction


class CountsSearch:
    def __init__(self, levels: Sequence[ServiceLevel], hosts: int | None = None) -> None:
        self._levels = tuple(levels)
        self._hosts = hosts
        self._kept: OrderedDict[tuple[DeploymentProfile, tuple[int, ...]], FoundCounts] = OrderedDict()

    def fewest(self, profile: DeploymentProfile, workload: Workload) -> FoundCounts:
        """Return the fewest for a workload whose rate is rounded up; nearly equal ones have one answer."""
        steps = _steps(workload.rate, RATE_STEP)
        lengths = (float(workload.input_tokens.mean()), workload.mean_output_tokens)
        key = (
            profile,
            (steps, *(_steps(each, LENGTH_STEP) for each in lengths), round(20 * workload.cached_share)),
        )
        if key not in self._kept:
            rate = RATE_STEP**steps
            question = CapacityQuestion(
                profile, workload.at_rate(rate), self._levels, self._hosts, PLANNED_REQUESTS
            )
            self._kept[key] = FoundCounts(rate, fewest_instances(question))
            if len(self._kept) > MAX_KEPT_COUNTS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def _steps(value: float, step: float) -> int:
    """Return the least power of `step` that is not below the value."""
    return math.ceil(math.log(max(value, 1e-6), step) - 1e-9)
