"""Record how the model of a request was chosen, and to which others it may still fall back. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from protos.penstock.v1 import inference_pb2 as pb
from shared.files.virtual_model import Cascade

SHED, DOWN, SLOW, CONTEXT, FAILED = "shed", "down", "slow", "context", "failed"
UNSURE = "unsure"
"""Why a model is passed over: it has no room, no worker, no time, a shorter context; its workers failed
before the first token, or its answer was one that it was not sure of."""
PASSED_OVER = (SHED, DOWN, SLOW, CONTEXT, FAILED, UNSURE)
RULE, SHARE, NAMED = "rule", "share", "named"
"""The reasons to take a model: a rule, a rule's shares, the request itself."""


@dataclass(frozen=True, slots=True)
class SkippedModel:
    """A model that would have been taken, and `why` it was not."""

    model: str
    why: str


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model that a request named (`asked`), the one that it got, and why.

    `rule` is the name of the rule, "" where the request named the model itself; `share` is the part of
    requests that get this model by that rule, 1 for all. `hardness` is the classifier's estimate, None where
    it was not asked; `note` says what the client should know of it. `left` are the models that the request
    may still go on to, in order, and `max_ttft_ms` the limit on the predicted first token until the
    choice is settled. `took_us` is how long the choice took.
    `cascade`: who answers anew where this model is unsure, None for nobody.
    """

    asked: str
    model: str
    rule: str = ""
    share: float = 1.0
    hardness: float | None = None
    note: str = ""
    skipped: tuple[SkippedModel, ...] = ()
    left: tuple[str, ...] = ()
    max_ttft_ms: float | None = None
    took_us: int = 0
    cascade: Cascade | None = None

    @property
    def by(self) -> str:
        """Return why the first model was passed over, else RULE, SHARE or NAMED."""
        if self.skipped:
            return self.skipped[0].why
        if not self.rule:
            return NAMED
        return RULE if self.share >= 1.0 else SHARE

    @property
    def sentence(self) -> str:
        """Say it for people, as in `auto is large by rule paying; small was shed`."""
        said = f"{self.asked} is {self.model}"
        if self.rule:
            said += f" by rule {self.rule}"
        if self.share < 1.0:
            said += f" ({100 * self.share:.3g} % of its requests)"
        if self.hardness is not None:
            said += f", {self.hardness:.2f} hard"
        if self.skipped:
            said += "; " + ", ".join(f"{each.model} was {_WORDS[each.why]}" for each in self.skipped)
        return f"{said}; {self.note}" if self.note else said

    def next(self, why: str) -> ModelChoice:
        """Return the choice of the first model that is left, where this one is passed over."""
        model, *left = self.left
        skipped = (*self.skipped, SkippedModel(self.model, why))
        return replace(self, model=model, left=tuple(left), skipped=skipped, share=1.0, cascade=None)

    def settle(self) -> ModelChoice:
        """Return the choice of this model, whatever comes: none is left to go on to, so no limit counts."""
        return replace(self, left=(), max_ttft_ms=None)

    def escalate(self, cascade: Cascade) -> ModelChoice:
        """Return the choice of the model that answers anew."""
        return replace(self, left=(cascade.to,)).next(UNSURE).settle()

    def message(self) -> pb.ModelChoice:
        """Return it as the client is told."""
        return pb.ModelChoice(
            asked=self.asked,
            rule=self.rule,
            why=self.sentence,
            hardness=self.hardness,
            skipped=[pb.SkippedModel(model=each.model, why=each.why) for each in self.skipped],
        )


_WORDS = {
    SHED: "shed",
    DOWN: "down",
    SLOW: "too slow",
    CONTEXT: "too short for the prompt",
    FAILED: "lost before its first token",
    UNSURE: "unsure of its answer",
}
