"""Probabilities of passages: more of anything known makes one likelier, and they fall in their order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.retrieval.encoders.passage_probability import PassageEvidence, falling

SOME = PassageEvidence(cosine=0.4, words=0.3, fused=0.5, known=0.9)


@pytest.mark.parametrize("more", [{"cosine": 0.6}, {"words": 0.5}, {"fused": 1.0}])
def test_whatever_speaks_for_a_passage_makes_it_likelier(more: dict[str, float]) -> None:
    assert 0.0 < SOME.probability < replace(SOME, **more).probability < 1.0


def test_a_vector_of_a_language_that_the_encoder_does_not_know_says_nothing() -> None:
    unknown = replace(SOME, known=0.0)
    assert unknown.probability == replace(unknown, cosine=0.9).probability


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], []),
        ([0.5], [0.5]),
        ([0.9, 0.5, 0.1], [0.9, 0.5, 0.1]),
        ([0.5, 0.7, 0.1], [0.6, 0.6, 0.1]),
        ([0.1, 0.2, 0.6], [0.3, 0.3, 0.3]),
        ([0.9, 0.2, 0.4, 0.6], [0.9, 0.4, 0.4, 0.4]),
    ],
)
def test_probabilities_that_rise_are_evened_out(given: list[float], told: list[float]) -> None:
    assert falling(given) == pytest.approx(told)
