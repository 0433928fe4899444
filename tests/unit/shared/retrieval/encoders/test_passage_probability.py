"""Probabilities of passages: more of anything known makes one likelier, and they fall in their order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.retrieval.encoders.passage_probability import PassageEvidence, falling, lead_of

SOME = PassageEvidence(cosine=0.4, words=0.3, fused=0.5, known=0.9, lead=0.1)


@pytest.mark.parametrize("more", [{"cosine": 0.6}, {"words": 0.5}, {"fused": 1.0}, {"lead": 0.3}])
def test_whatever_speaks_for_a_passage_makes_it_likelier(more: dict[str, float]) -> None:
    assert 0.0 < SOME.probability < replace(SOME, **more).probability < 1.0


def test_a_vector_of_a_language_that_the_encoder_does_not_know_says_nothing() -> None:
    unknown = replace(SOME, known=0.0)
    assert unknown.probability == replace(unknown, cosine=0.9).probability


@pytest.mark.parametrize(
    ("evidence", "probability"),
    [
        (PassageEvidence(cosine=0.0, words=0.0, fused=0.0, known=1.0, lead=0.0), 0.0002),
        (PassageEvidence(cosine=0.7, words=0.5, fused=1.0, known=1.0, lead=0.3), 0.9643),
        (PassageEvidence(cosine=0.7, words=0.5, fused=1.0, known=1.0, lead=0.05), 0.8510),
        (PassageEvidence(cosine=0.4, words=0.2, fused=0.4, known=0.9, lead=0.05), 0.0295),
        (PassageEvidence(cosine=0.1, words=0.6, fused=0.9, known=0.1, lead=0.4), 0.8223),
        (PassageEvidence(cosine=0.1, words=0.1, fused=0.9, known=0.1, lead=0.0), 0.1422),
    ],
)
def test_probabilities_are_those_that_were_learned(evidence: PassageEvidence, probability: float) -> None:
    assert evidence.probability == pytest.approx(probability, abs=1e-4)


def test_the_lead_is_what_the_first_passage_has_before_the_ten_behind_it() -> None:
    assert lead_of([6.0, *[2.0] * 10, 0.0], 8.0) == pytest.approx(0.5)
    assert lead_of([6.0, *[2.0] * 5], 8.0) == pytest.approx(5 / 8)
    assert lead_of([3.0], 6.0) == pytest.approx(0.5)
    assert lead_of([], 1.0) == 0.0


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
