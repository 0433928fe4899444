"""The time of a decode step by how many sequences are in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.cli.bench.stats.quantiles import Floats


@dataclass(frozen=True, slots=True)
class StepCurve:
    """`points` are (sequences, ms), sequences rising and ms not falling.

    Between two points it is a line, below the first it is flat, and beyond the last it goes on as steep as
    from the first point to the last: one point alone is flat, which flatters large batches.
    """

    points: tuple[tuple[int, float], ...]

    def step_s(self, sequences: Floats) -> Floats:
        """Return the time of steps with so many sequences; fewer than one count as one."""
        batches = np.array([batch for batch, _ in self.points], dtype=np.float64)
        times_ms = np.array([time_ms for _, time_ms in self.points])
        within: Floats = np.interp(np.maximum(1.0, sequences), batches, times_ms)
        slope = (times_ms[-1] - times_ms[0]) / max(1.0, batches[-1] - batches[0])
        beyond = np.maximum(0.0, sequences - batches[-1])
        longer: Floats = within + slope * beyond
        return longer / 1e3

    @property
    def largest_batch(self) -> int:
        return self.points[-1][0]
