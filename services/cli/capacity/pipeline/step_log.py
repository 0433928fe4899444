"""The ends of the steps of one decode worker."""

from __future__ import annotations

import numpy as np

from services.cli.bench.stats.quantiles import Floats


class StepLog:
    """Runs of steps that took equally long are one entry each."""

    __slots__ = ("_ends_s", "_runs", "count")

    def __init__(self) -> None:
        self.count = 0
        """The steps that have ended."""
        self._runs: list[tuple[float, float, int]] = []
        self._ends_s: Floats | None = None

    def add(self, began_s: float, step_s: float, steps: int) -> None:
        """Note `steps` that followed each other from `began_s` on."""
        self._runs.append((began_s, step_s, steps))
        self.count += steps
        self._ends_s = None

    def ends_s(self) -> Floats:
        """Return the end of each step, which rise."""
        if self._ends_s is None:
            runs = np.array(self._runs, dtype=np.float64).reshape(-1, 3)
            steps = runs[:, 2].astype(np.int64)
            before = np.repeat(np.cumsum(steps) - steps, steps)
            number = np.arange(1, self.count + 1) - before
            self._ends_s = np.repeat(runs[:, 0], steps) + number * np.repeat(runs[:, 1], steps)
        return self._ends_s
