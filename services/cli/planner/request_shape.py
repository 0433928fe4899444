"""Lengths of requests lately, of which a workload is made beside its rate."""

from __future__ import annotations

import math

from services.cli.capacity.workload import Workload
from services.cli.planner.arrival_window import ArrivalWindow

HALF_S = 600.0
"""The age at which an answer counts half."""
POINTS = 64
"""The pairs of lengths that stand for all requests."""
SHUFFLE = 29
"""Has no factor with POINTS: it pairs each prompt's length with another answer's."""
LEAST_ANSWERED = 1.0


class RequestShape:
    """Sums of requests that were answered, newer ones counting more.

    Metrics tell prompts' lengths by buckets and answers' by their mean alone: an answer is taken for as
    long as a geometric law says, independent of its prompt.
    """

    def __init__(self) -> None:
        self._answered = self._prompt = self._cached = self._output = 0.0
        self._lengths: dict[float, float] = {}
        self._ended_s = 0.0

    @property
    def known(self) -> bool:
        return self._answered >= LEAST_ANSWERED

    @property
    def mean_prompt_tokens(self) -> float:
        return self._prompt / self._answered

    @property
    def mean_output_tokens(self) -> float:
        return max(1.0, self._output / self._answered)

    @property
    def cached_share(self) -> float:
        return min(1.0, self._cached / self._prompt) if self._prompt else 0.0

    def add(self, window: ArrivalWindow) -> None:
        """Count what was answered in a window; one without anything makes nothing older."""
        if window.answered <= 0:
            return
        passed_s = max(0.0, window.ended_s - self._ended_s) if self._ended_s else 0.0
        kept = 0.5 ** (passed_s / HALF_S)
        self._ended_s = window.ended_s
        self._answered = kept * self._answered + window.answered
        self._prompt = kept * self._prompt + window.prompt_tokens
        self._cached = kept * self._cached + window.cached_tokens
        self._output = kept * self._output + window.output_tokens
        for edge in {*self._lengths, *window.prompt_lengths}:
            self._lengths[edge] = kept * self._lengths.get(edge, 0.0) + window.prompt_lengths.get(edge, 0.0)

    def workload(self, rate: float, arrival_scv: float = 1.0) -> Workload:
        """Return the load of so many such requests a second; `known` has to be true."""
        prompts, outputs = self._prompt_points(), self._output_points()
        pairs = [
            (max(1, round(prompt)), max(1, round(outputs[SHUFFLE * place % POINTS])))
            for place, prompt in enumerate(prompts)
        ]
        return Workload.of_pairs(rate, arrival_scv, pairs, self.cached_share)

    def _prompt_points(self) -> list[float]:
        """Return lengths of prompts whose buckets are as full as they were, and whose mean is right."""
        total = sum(self._lengths.values())
        if total <= 0:
            return [self.mean_prompt_tokens] * POINTS
        edges = sorted(edge for edge, count in self._lengths.items() if count > 0)
        points: list[float] = []
        reached, below = 0.0, 1.0
        for edge in edges:
            reached += self._lengths[edge] / total
            middle = math.sqrt(below * edge) if math.isfinite(edge) else 2 * below
            points += [middle] * (round(reached * POINTS) - len(points))
            below = edge if math.isfinite(edge) else below
        scale = self.mean_prompt_tokens / (sum(points) / len(points))
        return [scale * point for point in points]

    def _output_points(self) -> list[float]:
        mean = self.mean_output_tokens
        points = [-mean * math.log1p(-(place + 0.5) / POINTS) for place in range(POINTS)]
        scale = mean / (sum(points) / POINTS)
        return [max(1.0, scale * point) for point in points]
