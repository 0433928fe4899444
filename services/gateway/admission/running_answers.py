"""Predict when places at decode come free, from how long the answers that run may still get."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from services.gateway.admission.length_sketch import LengthEstimate
from services.gateway.fleet.model_identity import ModelIdentity
from shared.deadline import SYSTEM_CLOCK, Clock

MOST_LOOKED_AT = 32
"""The running answers by which ends are predicted; where there are more, these stand for all."""
STEPS = tuple(round(2 ** (step / 2)) for step in range(2, 36))
"""The tokens from now on at which ends are counted: between two of them it is as if they came evenly."""
PREDICTED_FOR_S = 0.1
"""A prediction is used for so long: who waits is looked at a hundred times a second."""
LEAST_RATED_TOKENS = 4
"""Fewer tokens behind the first ones do not say how fast they come."""
MAX_MODELS = 64
"""The models whose predictions are kept."""


@dataclass(slots=True, eq=False)
class RunningAnswer:
    """An answer that has a place: it has `drawn` tokens, the first at `first_s`, and is cut at
    `most_tokens`. `lengths`: None where nobody can tell how long it gets."""

    model: ModelIdentity
    lengths: LengthEstimate | None
    most_tokens: int
    drawn: int = 0
    first_s: float | None = None

    def ends_within(self, tokens: int) -> float:
        """Return the probability that it ends with one of the next tokens, so many."""
        if self.drawn + tokens >= self.most_tokens:
            return 1.0
        if self.lengths is None:
            return 0.0
        goes_on = self.lengths.longer_than(self.drawn)
        if goes_on <= 0.0:  # longer than any before: it goes on for as long again
            return min(1.0, tokens / max(1, self.drawn))
        return 1.0 - self.lengths.longer_than(self.drawn + tokens) / goes_on


@dataclass(frozen=True, slots=True)
class PredictedEnds:
    """`ends[i]` of `answers` end within STEPS[i] tokens from `at_s` on, at `tokens_per_s` each."""

    at_s: float
    tokens_per_s: float
    answers: int
    ends: Sequence[float]

    def wait_s(self, place: int) -> float:
        """Return the time to the end by number `place`, from 1. Those that take the places which come free
        first are taken to be like those that run."""
        rounds, at = divmod(place - 1, self.answers)
        whole = self._tokens_until(self.answers) if rounds else 0.0
        return (rounds * whole + self._tokens_until(at + 1)) / self.tokens_per_s

    def _tokens_until(self, ended: int) -> float:
        """Return within how many tokens as many have ended as are expected to, but for a half."""
        wanted = ended - 0.5
        place = bisect_left(self.ends, wanted)
        if place == len(STEPS):
            return float(STEPS[-1])
        end, after = STEPS[place], self.ends[place]
        start, before = (STEPS[place - 1], self.ends[place - 1]) if place else (0, 0.0)
        return start + (end - start) * (wanted - before) / (after - before)


class RunningAnswers:
    """The answers that have a place by this gateway. `contends(ahead, behind)`: whether those of `ahead` take
    places that one of `behind` waits for."""

    def __init__(
        self,
        contends: Callable[[ModelIdentity, ModelIdentity], bool],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._contends = contends
        self._clock = clock
        self._answers: dict[RunningAnswer, None] = {}
        self._predicted: LRUCache[ModelIdentity, tuple[float, PredictedEnds | None]] = LRUCache(MAX_MODELS)

    def __len__(self) -> int:
        return len(self._answers)

    def begin(self, answer: RunningAnswer) -> None:
        """It has a place."""
        self._answers[answer] = None

    def draw(self, answer: RunningAnswer, tokens: int) -> None:
        """A step drew so many tokens for it."""
        if answer.first_s is None:
            answer.first_s = self._clock.monotonic_s()
        answer.drawn += tokens

    def end(self, answer: RunningAnswer) -> None:
        """Its place is free; one that had none is fine."""
        self._answers.pop(answer, None)

    def wait_s(self, model: ModelIdentity, place: int) -> float | None:
        """Return the time until place number `place`, from 1, comes free for `model`; None where nobody can
        tell."""
        now_s = self._clock.monotonic_s()
        at_s, ends = self._predicted.get(model, (now_s - PREDICTED_FOR_S, None))
        if now_s >= at_s + PREDICTED_FOR_S:
            ends = self._predict(model, now_s)
            self._predicted[model] = now_s, ends
        return None if ends is None else max(0.0, ends.wait_s(place) - (now_s - ends.at_s))

    def _predict(self, model: ModelIdentity, now_s: float) -> PredictedEnds | None:
        answers = [each for each in self._answers if self._contends(each.model, model)]
        known = sum(each.lengths is not None for each in answers)
        rate = _tokens_per_s(answers, now_s)
        if not rate or 2 * known < len(answers):
            return None
        looked_at = answers[:: -(-len(answers) // MOST_LOOKED_AT)]
        share = len(answers) / len(looked_at)
        ends = [share * sum(each.ends_within(tokens) for each in looked_at) for tokens in STEPS]
        return PredictedEnds(now_s, rate, len(answers), ends)


def _tokens_per_s(answers: Sequence[RunningAnswer], now_s: float) -> float:
    """Return how fast tokens come for an answer, behind its first; 0 while nobody can tell."""
    begun = [(each.drawn - 1, now_s - each.first_s) for each in answers if each.first_s is not None]
    tokens, seconds = sum(drawn for drawn, _ in begun), sum(passed_s for _, passed_s in begun)
    return tokens / seconds if tokens >= LEAST_RATED_TOKENS and seconds > 0 else 0.0
