"""How long an answer gets is estimated from answers that ended and from those that were cut."""

from __future__ import annotations

import pytest

from services.gateway.admission.length_sketch import (
    EDGES,
    MOST_SEEN,
    LengthEstimate,
    LengthSketch,
)


def sketch_of(*lengths: int, cut: tuple[int, ...] = ()) -> LengthSketch:
    sketch = LengthSketch()
    for tokens in lengths:
        sketch.add(tokens, cut=False)
    for tokens in cut:
        sketch.add(tokens, cut=True)
    return sketch


def estimate_of(*lengths: int, cut: tuple[int, ...] = ()) -> LengthEstimate:
    return LengthEstimate.of(sketch_of(*lengths, cut=cut))


def test_most_answers_are_no_longer_than_most_were() -> None:
    estimate = estimate_of(*[16] * 90, *[1024] * 10)
    assert estimate.at_most(0.9, 4096) == 16
    assert estimate.at_most(0.95, 4096) == 1024


def test_nothing_is_longer_than_max_tokens() -> None:
    estimate = estimate_of(*[1024] * 10)
    assert estimate.at_most(0.95, 100) == 100
    assert estimate.mean(100) <= 100


def test_the_mean_is_that_of_the_lengths_to_about_a_bucket() -> None:
    assert estimate_of(10, 20, 40, 80, 160).mean(4096) == pytest.approx(62, rel=0.1)


def test_an_answer_that_was_cut_is_taken_to_have_gone_on() -> None:
    """As many were cut at 16 as ended at 64: that says of 64 what ended there, and of 16 nothing."""
    estimate = estimate_of(*[64] * 10, cut=(16,) * 10)
    assert estimate.longer_than(16) == 1.0
    assert estimate.at_most(0.95, 4096) == 64


def test_where_all_were_cut_nobody_knows_an_end() -> None:
    estimate = estimate_of(cut=(32,) * 20)
    assert estimate.at_most(0.95, 500) == 500
    assert estimate.mean(500) == 500.0


def test_within_a_bucket_lengths_are_equally_likely() -> None:
    estimate = estimate_of(*[1024] * 10)
    start = EDGES[EDGES.index(1024) - 1]
    assert estimate.longer_than(start) == 1.0
    assert estimate.longer_than((start + 1024) / 2) == pytest.approx(0.5)


def test_what_is_longer_than_the_last_edge_is_in_the_last_bucket() -> None:
    assert estimate_of(10 * EDGES[-1]).longer_than(20 * EDGES[-1]) == 0.0


def test_what_was_long_ago_counts_less() -> None:
    sketch = sketch_of(*[1024] * int(MOST_SEEN), *[16] * int(MOST_SEEN))
    assert sketch.seen <= MOST_SEEN
    assert LengthEstimate.of(sketch).longer_than(16) < 0.4


def test_a_prior_counts_as_few_answers_and_the_own_ones_as_they_are() -> None:
    prior = sketch_of(*[1024] * 100)
    few, many = sketch_of(16), sketch_of(*[16] * 200)
    assert LengthEstimate.of(few.beside(prior, 10)).longer_than(16) == pytest.approx(10 / 11, rel=1e-3)
    assert LengthEstimate.of(many.beside(prior, 10)).longer_than(16) == pytest.approx(10 / 210, rel=1e-3)


def test_an_empty_prior_changes_nothing() -> None:
    assert sketch_of(16, 32).beside(LengthSketch(), 10).seen == 2.0
