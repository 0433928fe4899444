"""The draw in C++ draws what the draw in torch operations draws."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from shared.engine.sampling.draw import FLOORS, draw, draw_packed, native_sampler, penalise, pick
from shared.engine.sampling.draw_row import DrawRow, TokenCounts
from shared.engine.sampling.id_bits import bits_of
from shared.engine.sampling.native_sampler import (
    LEAST_ARRAY_ROWS,
    PACKED_FILTERS,
    NativeSampler,
    PackedOptions,
    packed_at,
    packed_row,
)
from shared.sampling.parameters import FILTERS, PARAMETERS, SamplingParams
from tests.support.native_draws import (
    ROWS,
    assert_equal_draws,
    assert_logprobs_are_those_of_torch,
    random_logits,
    random_params,
)


@pytest.fixture(scope="module")
def native() -> NativeSampler:
    sampler = native_sampler()
    if sampler is None:
        pytest.skip("the C++ was not built, or this CPU cannot run it")
    return sampler


@pytest.mark.thorough(
    but="1-plain | 17-growing | 17-ties | 17-half ruled out | 512-zeros of both signs | 257-peaked | "
    "5003-plain | 5003-ties | 5003-half ruled out | 32000-growing | 32000-ties | 32000-half ruled out"
)
@pytest.mark.parametrize(
    "shape", ["plain", "peaked", "ties", "half ruled out", "zeros of both signs", "growing"]
)
@pytest.mark.parametrize("vocab_size", [1, 2, 15, 16, 17, 97, 255, 257, 512, 5003, 32000])
def test_the_same_ids_are_drawn(native: NativeSampler, vocab_size: int, shape: str) -> None:
    source = random.Random(vocab_size)
    for seed in range(12 if vocab_size < 5000 else 3):
        rows = [DrawRow(random_params(source), source.choice([0, 7, 10**9])) for _ in range(ROWS)]
        assert_equal_draws(native, random_logits(vocab_size, shape, seed), rows)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=50), SamplingParams(top_p=0.9)])
def test_a_thousand_positions_of_one_row_draw_the_same(native: NativeSampler, params: SamplingParams) -> None:
    logits = random_logits(400, "plain", 2)[:1].repeat(1000, 1)
    assert_equal_draws(native, logits, [DrawRow(params, position) for position in range(1000)])


@pytest.mark.parametrize("top_p", [0.3, 0.6, 0.9, 0.99])
def test_peaked_rows_draw_the_same_at_every_top_p(native: NativeSampler, top_p: float) -> None:
    for seed in range(10):
        params = SamplingParams(temperature=[0.5, 1.0][seed % 2], top_p=top_p, seed=seed)
        rows = [DrawRow(params, position) for position in range(ROWS)]
        assert_equal_draws(native, random_logits(8000, "peaked", seed), rows)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_draw_are_the_same(native: NativeSampler, temperature: float) -> None:
    logits = random_logits(97, "plain", 2)
    logits[0] = -torch.inf
    logits[1, 96] = torch.nan
    logits[2, 50] = torch.inf
    rows = [DrawRow(SamplingParams(temperature=temperature), position) for position in range(ROWS)]
    assert_equal_draws(native, logits, rows)
    assert native.pick(logits, rows)[:3] == [None, None, 50]


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(0.7, 40, 0.9, 0.05, seed=-3)])
def test_options_that_are_packed_once_are_those_of_each_draw(params: SamplingParams) -> None:
    packed = PackedOptions.of(params)
    for position in (0, 1, 1 << 40):
        assert packed.at(position) == packed_row(DrawRow(params, position))


@pytest.mark.parametrize("count", [1, LEAST_ARRAY_ROWS - 1, LEAST_ARRAY_ROWS, 3 * LEAST_ARRAY_ROWS])
def test_many_draws_are_packed_as_each_is(count: int) -> None:
    options = [PackedOptions.of(SamplingParams(0.7, 40, seed=index)) for index in range(count)]
    positions = [index << 33 for index in range(count)]
    each = [one.at(position) for one, position in zip(options, positions, strict=True)]
    assert bytes(packed_at(options, positions)) == b"".join(each)


def test_rows_that_are_ruled_over_draw_the_same_among_packed_ones(native: NativeSampler) -> None:
    logits = torch.randn(6, 512, generator=torch.Generator().manual_seed(5))
    plain = SamplingParams(temperature=1.0, seed=9)
    biased = replace(plain, logit_bias=((7, 40.0),))
    told = replace(plain, logprobs=2)
    rows = [DrawRow(params, 3) for params in (plain, biased, plain, told, plain)]
    rows.append(DrawRow(plain, 4, blocked_ids=range(512)))  # nothing is left
    ids, logprobs = draw(logits.clone(), rows)
    ruled = {index: rows[index] for index in (1, 3, 5)}
    packed_ids, packed_logprobs = draw_packed(native, logits.clone(), [*map(packed_row, rows)], ruled)
    assert [None if token_id < 0 else token_id for token_id in packed_ids] == ids
    assert ids[1] == 7
    assert ids[5] is None
    assert [packed_logprobs.get(index) for index in range(6)] == logprobs


def test_greedy_rows_among_others_draw_the_same(native: NativeSampler) -> None:
    plain = SamplingParams(temperature=0.0)
    rows = [DrawRow(replace(plain, temperature=float(place % 2)), place) for place in range(ROWS)]
    assert_equal_draws(native, random_logits(1000, "ties", 3), rows)


@pytest.mark.thorough(but="1.0")
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_a_vocabulary_of_many_chunks_draws_the_same(native: NativeSampler, temperature: float) -> None:
    """Of peaked rows most chunks are passed over, of flat ones none."""
    for shape, seed in (("peaked", 2), ("plain", 0), ("plain", 2), ("growing", 3)):
        rows = [
            DrawRow(SamplingParams(temperature=temperature, min_p=0.01 * (place % 2), seed=place), place)
            for place in range(ROWS)
        ]
        assert_equal_draws(native, random_logits(128_256, shape, seed), rows)


@pytest.mark.parametrize("vocab_size", [1, 15, 16, 17, 97, 5003])
def test_rows_of_allowed_ids_draw_the_same(native: NativeSampler, vocab_size: int) -> None:
    source = random.Random(vocab_size)
    for seed in range(10):
        allowed = [
            bits_of(source.sample(range(vocab_size), source.randrange(vocab_size + 1)), vocab_size)
            for _ in range(ROWS - 1)
        ]
        rows = [
            DrawRow(random_params(source), place, (), None, mask)
            for place, mask in enumerate([*allowed, None])
        ]
        logits = random_logits(vocab_size, "plain", seed)
        with torch.inference_mode():
            assert native.pick(logits.clone(), rows) == pick(logits.clone(), rows)


def test_any_number_of_threads_draws_the_same(native: NativeSampler) -> None:
    source = random.Random(3)
    rows = [DrawRow(random_params(source), place) for place in range(ROWS)]
    logits = random_logits(40_000, "peaked", 4)
    told = dict.fromkeys(range(0, ROWS, 2), 5)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = native.pick(logits, rows), native.summarise(logits, told)
        torch.set_num_threads(3)
        assert (native.pick(logits, rows), native.summarise(logits, told)) == alone
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("shape", ["plain", "peaked", "ties", "growing"])
@pytest.mark.parametrize("vocab_size", [1, 16, 97, 257, 5003, 40_000])
def test_log_probabilities_are_those_of_torch(native: NativeSampler, vocab_size: int, shape: str) -> None:
    assert_logprobs_are_those_of_torch(native, random_logits(vocab_size, shape, 2))


def test_of_equally_likely_ids_the_lowest_are_told(native: NativeSampler) -> None:
    logits = torch.zeros(1, 3000)
    logits[0, 1700] = 1.0
    ((_, top),) = native.summarise(logits, {0: 4}).values()
    assert [token_id for token_id, _ in top] == [1700, 0, 1, 2]


def test_of_ids_that_are_ruled_out_nothing_is_told(native: NativeSampler) -> None:
    logits = torch.full((1, 300), -torch.inf)
    logits[0, 270] = logits[0, 8] = 2.0
    ((total, top),) = native.summarise(logits, {0: 5}).values()
    assert total == pytest.approx(2.0 + math.log(2))
    assert [token_id for token_id, _ in top] == [8, 270]
    assert [logprob for _, logprob in top] == pytest.approx([-math.log(2)] * 2)


@pytest.mark.parametrize("vocab_size", [1, 16, 97, 5003])
def test_penalties_are_bitwise_the_same(native: NativeSampler, vocab_size: int) -> None:
    source = random.Random(vocab_size)
    for seed in range(20):
        tokens = [source.randrange(vocab_size) for _ in range(source.randrange(1, 300))]
        counts = TokenCounts(vocab_size, tokens, source.randrange(len(tokens) + 1))
        params = SamplingParams(
            repetition_penalty=source.choice([1.0, 0.7, 1.37]),
            presence_penalty=source.choice([0.0, 0.3, -1.1]),
            frequency_penalty=source.choice([0.0, 0.13, -0.7]),
        )
        row = random_logits(vocab_size, "half ruled out", seed)[0]
        expected = row.clone()
        penalise(expected, params, counts)
        native.penalise(row, params, counts.seen, counts.output)
        assert torch.equal(row, expected)


STRICT: dict[str, Any] = {"top_k": 1, "top_p": 1e-6, "min_p": 1.0}
"""A value of each filter with which only the likeliest id is left."""


def test_both_samplers_have_every_filter() -> None:
    assert set(FLOORS) == set(PACKED_FILTERS) == set(FILTERS) == set(STRICT)
    assert set(FILTERS) < set(PARAMETERS)


@pytest.mark.parametrize("name", FILTERS)
def test_each_filter_alone_is_obeyed_by_both_samplers(native: NativeSampler, name: str) -> None:
    logits = torch.randn((64, 1000), generator=torch.Generator().manual_seed(1))
    off: dict[str, Any] = {name: PARAMETERS[name].default}
    params = replace(SamplingParams(temperature=5.0), **{name: STRICT[name]})
    assert params.filters
    rows = [DrawRow(replace(params, seed=seed), position=seed) for seed in range(64)]
    likeliest = logits.argmax(-1).tolist()
    assert native.pick(logits.clone(), rows) == pick(logits.clone(), rows) == likeliest
    unfiltered = [row._replace(params=replace(row.params, **off)) for row in rows]
    assert native.pick(logits.clone(), unfiltered) != likeliest
