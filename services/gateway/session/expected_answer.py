"""Expect how long the answer to one request gets, by answers of its kind."""

from __future__ import annotations

from typing import Self

from services.gateway.admission.answer_lengths import SURE_SHARE, AnswerKind, AnswerLengths
from services.gateway.admission.running_answers import RunningAnswer
from services.gateway.prompt.preparation import PreparedPrompt
from services.gateway.request_scope import RequestScope
from services.gateway.scope.session_state import SessionState

ENDED = ("stop", "stop_string")
"""The words of answers that ended by themselves."""


class ExpectedAnswer:
    """The expectation that a request is routed by. It changes nothing of the answer: one that gets longer
    goes on, and `max_tokens` is the bound that it was."""

    def __init__(
        self,
        lengths: AnswerLengths,
        kind: AnswerKind,
        max_tokens: int,
        state: SessionState,
        *,
        predicts: bool = True,
    ) -> None:
        """The state hears what is expected. Where it `predicts` not, that is `max_tokens`."""
        self._state = state
        self._lengths = lengths
        self._kind = kind
        self._max_tokens = max_tokens
        self.estimate = lengths.estimate(kind) if predicts else None
        self._mean, self.most_tokens = float(max_tokens), 0
        """`most_tokens`: the length that it is not expected to exceed, 0 where nobody can tell."""
        if self.estimate is not None:
            self._mean = self.estimate.mean(max_tokens)
            self.most_tokens = self.estimate.at_most(SURE_SHARE, max_tokens)
            state.record_expected(round(self._mean), self.most_tokens)

    @classmethod
    def of(cls, scope: RequestScope, prepared: PreparedPrompt) -> Self:
        """Return what is expected of a request that is to be routed; its meter hears of it."""
        request, thinking = prepared.request, prepared.answer_format.thinking
        kind = AnswerKind.of(request, prepared.model, len(prepared.token_ids), thinking)
        lengths, max_tokens = scope.context.answer_lengths, request.sampling.max_tokens
        expected = cls(lengths, kind, max_tokens, scope.state, predicts=scope.config.predict_answers)
        drawn = len(scope.state.log.ids)
        scope.meter.expect_answer(RunningAnswer(prepared.model, expected.estimate, max_tokens, drawn))
        return expected

    @property
    def mean_left(self) -> float:
        """The tokens that are still to come, in the mean; as many as may come where nobody can tell."""
        return max(1.0, self._mean - len(self._state.log.ids))

    @property
    def most_left(self) -> int:
        """The tokens that room is made for, from what has come on."""
        return self.left_after(len(self._state.log.ids))

    def left_after(self, drawn: int) -> int:
        """Return the same behind so many tokens: all that may come once it is longer than was expected."""
        most = self.most_tokens if self.most_tokens > drawn else self._max_tokens
        return most - drawn

    def record_end(self) -> None:
        """The answer has its end, or is given up: later ones are expected to be like it."""
        cut = self._state.finish not in ENDED
        self._lengths.record(self._kind, len(self._state.log.ids), cut=cut)
