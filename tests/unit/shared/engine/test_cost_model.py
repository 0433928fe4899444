from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from shared.engine.cost_model import MIN_OBSERVATIONS, NOTHING, CostModel, Features, span_features

TRUE = (3000.0, 400.0, 50.0, 0.02)
PREFILL = span_features(1024, 256)
DECODE = Features(8, 8, 8 * 700)


def cost_us(features: Features, scale: float = 1.0) -> float:
    a, b, c, d = TRUE
    return scale * (a + b * features.tokens + c * features.sequences + d * features.keys)


def mixed_steps(count: int, seed: int = 1) -> Iterator[Features]:
    """Decode rows of some sequences and, in every other step, a chunk of a prompt."""
    source = random.Random(seed)
    for number in range(count):
        features = NOTHING
        for _ in range(source.randint(1, 32)):
            features = features.plus(span_features(source.randint(1, 4000), 1))
        if number % 2:
            features = features.plus(span_features(source.randint(0, 4000), source.randint(16, 512)))
        yield features


def fitted(noise: float = 0.0, scale: float = 1.0, count: int = 300) -> CostModel:
    source, model = random.Random(2), CostModel(512)
    for features in mixed_steps(count):
        model.observe(features, cost_us(features, scale) * (1 + source.uniform(-noise, noise)))
    return model


def test_costs_are_recovered() -> None:
    for found, true in zip(fitted().coefficients(), TRUE, strict=True):
        assert found == pytest.approx(true, rel=0.05)


def test_noise_of_a_tenth_changes_predictions_by_less_than_a_twentieth() -> None:
    model = fitted(noise=0.1)
    for features in (PREFILL, DECODE, Features(1, 1, 100)):
        assert model.predict_us(features) == pytest.approx(cost_us(features), rel=0.05)


def test_steps_that_were_slow_by_accident_hardly_count() -> None:
    source, model = random.Random(3), CostModel(512)
    for features in mixed_steps(400):
        model.observe(features, cost_us(features) * (20 if source.random() < 0.05 else 1))
    for features in (PREFILL, DECODE):
        assert model.predict_us(features) == pytest.approx(cost_us(features), rel=0.1)


def test_a_machine_that_became_slower_is_followed() -> None:
    model = fitted()
    for features in mixed_steps(500, seed=4):
        model.observe(features, cost_us(features, 2.0))
    for features in (PREFILL, DECODE):
        assert model.predict_us(features) == pytest.approx(cost_us(features, 2.0), rel=0.05)


def test_what_long_decoding_does_not_show_is_not_forgotten() -> None:
    model = fitted()
    for number in range(5000):
        features = Features(4, 4, 4 * (500 + number % 7))
        model.observe(features, cost_us(features))
    assert model.predict_us(PREFILL) == pytest.approx(cost_us(PREFILL), rel=0.05)


def test_equal_steps_are_predicted_although_they_tell_no_coefficient_apart() -> None:
    model = CostModel(512)
    for _ in range(100):
        model.observe(DECODE, 7000)
    assert model.predict_us(DECODE) == pytest.approx(7000, rel=0.01)
    assert min(model.coefficients()) >= 0


def test_no_coefficient_is_negative_when_the_observations_ask_for_one() -> None:
    model = CostModel(512)
    for features in mixed_steps(200):
        model.observe(features, 50_000 - 50 * features.tokens)
    assert min(model.coefficients()) >= 0
    assert model.predict_us(DECODE) > 0


def test_nothing_is_predicted_before_enough_steps_were_seen() -> None:
    model = CostModel(512)
    for _ in range(MIN_OBSERVATIONS - 1):
        model.observe(DECODE, 7000)
    assert (model.ready, model.predict_us(DECODE), model.prefill_us(100)) == (False, 0.0, 0.0)
    model.observe(DECODE, 7000)
    assert model.ready


@pytest.mark.parametrize("us", [0, -5])
def test_a_step_that_took_no_time_says_nothing(us: float) -> None:
    model = CostModel(512)
    model.observe(DECODE, us)
    model.observe(NOTHING, 100)
    assert model.coefficients() == (0, 0, 0, 0)


@pytest.mark.parametrize("start", [0, 100, 4000])
@pytest.mark.parametrize("budget_us", [20_000, 60_000, 150_000])
def test_the_longest_chunk_within_a_budget_is_found(start: int, budget_us: float) -> None:
    model = fitted()
    tokens = model.max_prefill_tokens(budget_us, DECODE, start)
    assert 0 < tokens < 512
    assert model.predict_us(DECODE.plus(span_features(start, tokens))) <= budget_us
    assert model.predict_us(DECODE.plus(span_features(start, tokens + 1))) > budget_us


def test_a_chunk_never_exceeds_the_batch_and_may_be_nothing() -> None:
    model = fitted()
    assert model.max_prefill_tokens(1e12, DECODE, 0) == 512
    assert model.max_prefill_tokens(10, DECODE, 0) == 0


def test_chunks_are_found_where_attention_costs_nothing() -> None:
    model = CostModel(512)
    for features in mixed_steps(200):
        model.observe(features, 1000 + 100 * features.tokens)
    assert model.max_prefill_tokens(21_000, Features(1, 1, 10), 0) == pytest.approx(199, abs=2)


def test_a_whole_prompt_costs_its_chunks() -> None:
    expected = sum(cost_us(span_features(start, size)) for start, size in ((0, 512), (512, 512), (1024, 76)))
    assert fitted().prefill_us(1100) == pytest.approx(expected, rel=0.05)


def test_a_cached_prefix_costs_nothing_but_is_read() -> None:
    model = fitted()
    assert model.prefill_us(1100, 1000) == pytest.approx(cost_us(span_features(1000, 100)), rel=0.05)
    assert model.prefill_us(1000, 1000) == 0


def test_it_vouches_only_for_prompts_like_those_it_has_seen() -> None:
    model = CostModel(512)
    for _ in range(MIN_OBSERVATIONS):
        model.observe(span_features(0, 20), 1000.0)
    assert model.vouches_for(80)
    assert not model.vouches_for(81)
    model.observe(span_features(0, 128), 5000.0)
    assert model.vouches_for(10_000)  # whose steps have 512 tokens


def test_the_first_step_of_more_sequences_than_ever_is_followed_at_once() -> None:
    model = CostModel(512)
    for _ in range(40):  # prompts alone
        model.observe(span_features(0, 96), cost_us(span_features(0, 96)))
    rows = Features(32, 32, 32 * 96)
    model.observe(rows, cost_us(rows))
    a, b, c, d = model.last_coefficients()
    assert a + b * rows.tokens + c * rows.sequences + d * rows.keys == pytest.approx(cost_us(rows), rel=0.1)


def test_while_steps_are_few_each_is_followed_at_once() -> None:
    model = fitted(count=MIN_OBSERVATIONS - 1)
    assert model.last_coefficients() == (0, 0, 0, 0)
    for features in mixed_steps(10, seed=2):
        model.observe(features, cost_us(features))
        assert model.last_coefficients() == model.coefficients()


def test_prices_are_of_what_steps_compute_and_predictions_of_what_they_take() -> None:
    model, quiet, source = CostModel(512), CostModel(512), random.Random(4)
    for features in [DECODE, Features(4, 1, 500), Features(64, 8, 9000)] * 20:
        us = cost_us(features)
        model.observe(features, us * source.choice((2.0, 4.0)), us)
        quiet.observe(features, us)
    assert model.last_coefficients() == pytest.approx(quiet.last_coefficients())
    assert 2.0 < model.predict_us(DECODE) / quiet.predict_us(DECODE) < 4.0


def test_a_step_computes_no_longer_than_it_takes() -> None:
    model, quiet = CostModel(512), CostModel(512)
    for features in [DECODE, Features(4, 1, 500)] * 10:
        model.observe(features, cost_us(features), 3 * cost_us(features))
        quiet.observe(features, cost_us(features))
    assert model.predict_us(DECODE) == quiet.predict_us(DECODE)
