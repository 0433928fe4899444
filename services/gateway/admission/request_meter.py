"""Tell what one request uses of its tenant's share, as it becomes known."""

from __future__ import annotations

from services.gateway.admission.running_answers import RunningAnswer, RunningAnswers
from services.gateway.admission.taken_slots import TakenSlots
from services.gateway.rows.row_terms import DrawnTokens, RowTerms
from shared.fairness.service_counters import ServiceCounters
from shared.fairness.share import OPEN_SHARE, TenantShare
from shared.fairness.token_cost import prompt_cost, request_cost, step_cost


class RequestMeter:
    """The prompt counts when the request gets its first slot, what was cached of it comes back when the
    worker has said so, and tokens count as they come. Routes that replace a failed one cost nothing: what
    fails is not the tenant's doing. `running` hears of the answer, None: nobody predicts by it."""

    def __init__(
        self,
        counters: ServiceCounters,
        slots: TakenSlots,
        share: TenantShare = OPEN_SHARE,
        running: RunningAnswers | None = None,
    ) -> None:
        self.share = share
        self._slots = slots
        self._counters = counters
        self._running = running
        self._answer: RunningAnswer | None = None
        self._charged = 0.0  # in the counters' period, and may be given back
        self._period = 0
        self._held_tokens = 0

    def expect_answer(self, answer: RunningAnswer) -> None:
        """The request is to be routed, for this answer; an earlier one is not wanted any more."""
        self._end_answer()
        self._answer = answer

    def take_turn(self, prompt_tokens: int) -> None:
        """It has a slot; only the first one counts."""
        if self._running is not None and self._answer is not None:
            self._running.begin(self._answer)
        if not self._held_tokens:
            self._held_tokens = prompt_tokens
            self._slots.take(self.share.tenant)
            self._charged, self._period = prompt_cost(prompt_tokens), self._counters.period
            self._counters.charge(self.share, self._charged)

    def record_cached(self, tokens: int) -> None:
        """Give back what was counted for tokens of the prompt that a worker had."""
        self._give_back(prompt_cost(tokens))

    def draw(self, tokens: int) -> None:
        """A step drew so many tokens for it."""
        self._charged = 0.0  # what computes is not given back any more
        self._held_tokens += tokens
        if self._running is not None and self._answer is not None:
            self._running.draw(self._answer, tokens)
        if not self._counters.alone:
            self._counters.charge(self.share, step_cost(tokens, self._held_tokens))

    def row_terms(self) -> RowTerms:
        return RowTerms(((self, "_answer", self._answer),))

    def drawn(self) -> DrawnTokens:
        """Return what a plain row counts up, once a token was drawn: all of `draw` for one tenant alone."""
        if self._running is None or self._answer is None:
            return DrawnTokens(self.draw, ((self, "_held_tokens"),))
        return DrawnTokens(self.draw, ((self, "_held_tokens"), (self._answer, "drawn")))

    def end(self) -> None:
        """The request is over: one that never came to its first token has had nothing."""
        self._end_answer()
        self._give_back(self._charged)
        if self._held_tokens:
            self._held_tokens = 0
            self._slots.give_back(self.share.tenant)

    def whole_cost(self, output_tokens: float, prompt_tokens: int) -> float:
        """Return what the request would add to its tenant's counter with so long an answer."""
        return request_cost(prompt_tokens, output_tokens) / self.share.weight

    def _end_answer(self) -> None:
        if self._running is not None and self._answer is not None:
            self._running.end(self._answer)
        self._answer = None

    def _give_back(self, cost: float) -> None:
        cost = min(cost, self._charged)
        self._charged -= cost
        if cost > 0 and self._period == self._counters.period:
            self._counters.charge(self.share, -cost)
