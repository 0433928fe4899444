"""A model is as sure of an answer as the mean of its tokens."""

from __future__ import annotations

from services.gateway.scope.answer_confidence import AnswerConfidence
from shared.sampling.parameters import TokenLogprob


def test_an_answer_is_as_sure_as_the_mean_of_its_tokens() -> None:
    confidence = AnswerConfidence(hidden=True)
    confidence.add([TokenLogprob(1, -0.2, ()), TokenLogprob(2, -0.8, ())])
    confidence.add([TokenLogprob(3, -0.5, ())])
    assert confidence.is_below(-0.49)
    assert not confidence.is_below(-0.51)


def test_an_answer_without_tokens_is_not_unsure() -> None:
    assert not AnswerConfidence(hidden=True).is_below(0.0)
