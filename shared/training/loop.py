"""The loop of every training run: steps until the time is spent, progress lines, checkpoints, resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from shared.training.checkpoint import TrainingProgress

Made = TypeVar("Made")
"""The batch that a step learns from."""

CHECKPOINT_EVERY_S = 180.0
LOG_EVERY_STEPS = 20
AVERAGE_OVER_STEPS = 20


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The figures of a step; the figures are averaged over steps for the progress line."""

    tokens: int
    figures: dict[str, float]


class TrainingLoop:
    """Runs steps and keeps `progress`; the time of all runs together is the budget."""

    def __init__(self, progress: TrainingProgress, budget_s: float, save: Callable[[], None]) -> None:
        self.progress = progress
        self._budget_s = budget_s
        self._save = save

    @property
    def share(self) -> float:
        """The part of the budget that is spent."""
        return self.progress.elapsed_s / self._budget_s

    def run(
        self,
        name: str,
        batches: Iterable[Made],
        take_step: Callable[[Made], StepFigures],
    ) -> None:
        """Train until the end of `batches` or of the budget."""
        progress = self.progress
        average: dict[str, float] = {}
        tokens = 0
        began = saved = last = time.monotonic()
        for steps, batch in enumerate(batches, start=1):
            report = take_step(batch)
            now = time.monotonic()
            progress.elapsed_s += now - last
            last = now
            progress.step += 1
            progress.tokens += report.tokens
            tokens += report.tokens
            blend = max(1 / steps, 1 / AVERAGE_OVER_STEPS)
            for figure, value in report.figures.items():
                before = average.get(figure, value)
                average[figure] = before + blend * (value - before)
            if progress.step % LOG_EVERY_STEPS == 0:
                figures = " ".join(f"{figure} {value:.3f}" for figure, value in average.items())
                print(
                    f"{name} step {progress.step} {progress.elapsed_s:.0f}/{self._budget_s:.0f} s {figures}"
                    f" tokens {progress.tokens / 1e6:.2f} M {tokens / (now - began):.0f}/s",
                    flush=True,
                )
            if now - saved > CHECKPOINT_EVERY_S:
                self._save()
                saved = now
            if self.share >= 1.0:
                break
        self._save()
