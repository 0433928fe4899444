"""Draws and log-probabilities from rows of every served vocabulary."""

from __future__ import annotations

import random

import pytest

from shared.engine.sampling.draw import native_sampler
from shared.engine.sampling.draw_row import DrawRow
from shared.engine.sampling.native_sampler import NativeSampler
from tests.support.native_draws import (
    ROWS,
    assert_equal_draws,
    assert_logprobs_are_those_of_torch,
    random_logits,
    random_params,
)
from tests.support.served_shapes import VOCABULARIES


@pytest.fixture(scope="module")
def native() -> NativeSampler:
    sampler = native_sampler()
    if sampler is None:
        pytest.skip("the C++ was not built, or this CPU cannot run it")
    return sampler


@pytest.mark.parametrize("shape", ["plain", "peaked", "half ruled out"])
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_the_same_ids_are_drawn(native: NativeSampler, vocab: int, shape: str) -> None:
    source = random.Random(vocab)
    for seed in range(4):
        rows = [DrawRow(random_params(source), source.choice([0, 7, 10**9])) for _ in range(ROWS)]
        assert_equal_draws(native, random_logits(vocab, shape, seed), rows)


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_log_probabilities_are_those_of_torch(native: NativeSampler, vocab: int) -> None:
    assert_logprobs_are_those_of_torch(native, random_logits(vocab, "peaked", 2))
