from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from shared.engine.noise import gumbel_noise
from shared.engine.sampler import DrawRow, TokenCounts, draw, restrict
from shared.engine.sampling_params import SamplingParams

VOCAB = 24
MASK = 2**64 - 1


def splitmix(value: int) -> int:
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def plain_noise(seed: int, position: int, token_id: int) -> float:
    key = splitmix(splitmix(seed + 0x9E3779B97F4A7C15) + position)
    bits = splitmix(key + (token_id + 1) * 0x9E3779B97F4A7C15)
    return -math.log(-math.log(((bits >> 12) + 0.5) * 2.0**-52))


def plain_scores(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int]
) -> list[float]:
    """Penalties, bias and min_tokens, id by id, as the documentation says it; -inf is 'not allowed'."""
    scores = list(logits)
    for token_id in range(len(scores)):
        if token_id in prompt or token_id in output:
            penalty = params.repetition_penalty
            scores[token_id] = (
                scores[token_id] / penalty if scores[token_id] > 0 else scores[token_id] * penalty
            )
        scores[token_id] -= params.frequency_penalty * output.count(token_id)
        scores[token_id] -= params.presence_penalty * (token_id in output)
    for token_id, bias in params.logit_bias:
        scores[token_id] += bias
    if len(output) < params.min_tokens:
        for token_id in params.stop_token_ids:
            scores[token_id] = -math.inf
    return scores


def plain_filtered(scores: list[float], params: SamplingParams) -> list[float]:
    """Temperature, top-k, top-p and min-p."""
    scores = [score / params.temperature for score in scores]
    if params.top_k:
        kth = sorted(scores, reverse=True)[min(params.top_k, len(scores)) - 1]
        scores = [score if score >= kth else -math.inf for score in scores]
    if params.top_p < 1:
        total, kept = 0.0, set()
        for token_id in sorted(range(len(scores)), key=lambda index: -scores[index]):
            if total >= params.top_p:
                break
            kept.add(token_id)
            total += softmax(scores)[token_id]
        scores = [score if token_id in kept else -math.inf for token_id, score in enumerate(scores)]
    if params.min_p:
        chances = softmax(scores)
        floor = params.min_p * max(chances)
        scores = [
            score if chance >= floor else -math.inf for score, chance in zip(scores, chances, strict=True)
        ]
    return scores


def softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return [weight / sum(weights) for weight in weights]


def plain_draw(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int], position: int
) -> int:
    scores = plain_scores(logits, params, prompt, output)
    if params.temperature > 0:
        scores = plain_filtered(scores, params)
        scores = [score + plain_noise(params.seed, position, index) for index, score in enumerate(scores)]
    return max(range(len(scores)), key=lambda index: (scores[index], -index))


SETTINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.7, seed=3),
    "negative seed": SamplingParams(seed=-5),
    "large seed": SamplingParams(seed=2**64 - 1),
    "top_k": SamplingParams(top_k=5),
    "top_k over vocab": SamplingParams(top_k=1000),
    "top_p": SamplingParams(top_p=0.7),
    "tiny top_p": SamplingParams(top_p=1e-9),
    "min_p": SamplingParams(min_p=0.2),
    "repetition": SamplingParams(temperature=0.0, repetition_penalty=1.7),
    "presence": SamplingParams(temperature=0.0, presence_penalty=1.5),
    "frequency": SamplingParams(temperature=0.0, frequency_penalty=-0.8),
    "bias": SamplingParams(temperature=0.0, logit_bias=((3, 4.0), (8, -2.0))),
    "min_tokens": SamplingParams(min_tokens=9, stop_token_ids=(1, 2, 3)),
    "all": SamplingParams(
        temperature=1.3,
        top_k=12,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias=((0, 1.0),),
        seed=99,
        min_tokens=9,
        stop_token_ids=(1, 4),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_draws_equal_the_plain_reference(name: str) -> None:
    params = SETTINGS[name]
    generator = torch.Generator().manual_seed(5)
    prompt = [1, 1, 2, 10]
    rows, expected, logits = [], [], torch.randn(60, VOCAB, generator=generator) * 2
    for index in range(60):
        output = torch.randint(0, VOCAB, (index % 12,), generator=generator).tolist()
        blocked = params.stop_token_ids if len(output) < params.min_tokens else ()
        counts = TokenCounts(VOCAB, prompt + output, len(prompt)) if params.has_penalties else None
        rows.append(DrawRow(params, index, blocked, counts))
        expected.append(plain_draw(logits[index].tolist(), params, prompt, output, index))
    assert draw(logits, rows)[0] == expected


def test_a_row_draws_the_same_in_any_batch() -> None:
    logits = torch.randn(len(SETTINGS), VOCAB, generator=torch.Generator().manual_seed(1))
    rows = [DrawRow(params, 7) for params in SETTINGS.values()]
    together = draw(logits.clone(), rows)[0]
    alone = [draw(logits[[index]].clone(), [row])[0][0] for index, row in enumerate(rows)]
    assert together == alone


def test_equal_maxima_go_to_the_lowest_id() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [9, 4, 20]] = 1.0
    assert draw(logits, [DrawRow(SETTINGS["greedy"], 0)])[0] == [4]


def test_a_blocked_id_is_never_drawn() -> None:
    logits = torch.zeros(200, 3)
    rows = [DrawRow(SamplingParams(), position, (0, 2)) for position in range(200)]
    assert set(draw(logits, rows)[0]) == {1}


CHI_SQUARE_SETTINGS = {
    "temperature 1": SamplingParams(seed=1),
    "temperature 0.6": SamplingParams(temperature=0.6, seed=2),
    "top_k 4": SamplingParams(top_k=4, seed=3),
    "top_p 0.8": SamplingParams(top_p=0.8, seed=4),
    "min_p 0.1": SamplingParams(min_p=0.1, seed=5),
    "all": SamplingParams(
        temperature=1.2, top_k=9, top_p=0.95, min_p=0.05, repetition_penalty=1.2, presence_penalty=0.5, seed=6
    ),
}


@pytest.mark.parametrize("name", CHI_SQUARE_SETTINGS)
def test_the_distribution_over_positions_is_the_softmax(name: str) -> None:
    """Chi-square over 1e5 draws; the bound is mean + 5 standard deviations of the chi-square law."""
    params = CHI_SQUARE_SETTINGS[name]
    num_draws, prompt, output = 100_000, [1, 2], [3, 3, 5]
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(8))
    scores = plain_filtered(plain_scores(logits.tolist(), params, prompt, output), params)
    chances = torch.tensor(softmax(scores), dtype=torch.float64)
    counts = TokenCounts(VOCAB, prompt + output, len(prompt)) if params.has_penalties else None
    observed = torch.zeros(VOCAB, dtype=torch.float64)
    # 1e5 rows through `draw` take long; the last lines prove that it picks exactly these ids.
    batch = torch.tensor(scores, dtype=torch.float64).expand(num_draws, VOCAB)
    noise = gumbel_noise([params.seed] * num_draws, range(num_draws), torch.arange(VOCAB))
    observed += torch.bincount((batch + noise).argmax(dim=-1), minlength=VOCAB)
    allowed = chances > 0
    assert not observed[~allowed].any()
    expected = chances[allowed] * num_draws
    statistic = float(((observed[allowed] - expected) ** 2 / expected).sum())
    freedom = int(allowed.sum()) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)
    sampled = draw(logits.repeat(500, 1), [DrawRow(params, index, (), counts) for index in range(500)])[0]
    assert sampled == (batch + noise).argmax(dim=-1)[:500].tolist()


def test_the_distribution_over_seeds_at_one_position_is_the_softmax() -> None:
    num_draws = 100_000
    logits = torch.randn(VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    drawn = (logits + gumbel_noise(range(num_draws), [17] * num_draws, torch.arange(VOCAB))).argmax(dim=-1)
    expected = torch.softmax(logits, dim=-1) * num_draws
    statistic = float(((torch.bincount(drawn, minlength=VOCAB) - expected) ** 2 / expected).sum())
    assert statistic < (VOCAB - 1) + 5 * math.sqrt(2 * (VOCAB - 1))


def test_noise_of_an_id_does_not_depend_on_which_other_ids_are_asked_for() -> None:
    some = torch.tensor([7, 3, 999])
    assert torch.equal(gumbel_noise([4], [9], some), gumbel_noise([4], [9], torch.arange(1000))[:, some])


def test_noise_differs_by_seed_position_and_id() -> None:
    noise = gumbel_noise([0, 0, 1, 1], [0, 1, 0, 1], torch.arange(5000))
    assert len(set(noise.flatten().tolist())) == 4 * 5000
    assert torch.isfinite(noise).all()


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2))
    params = replace(SETTINGS["all"], logprobs=3)
    expected = torch.log_softmax(logits[0], dim=-1)
    token_ids, logprobs = draw(logits.clone(), [DrawRow(params, 0)])
    assert logprobs[0] is not None
    assert logprobs[0].token_id == token_ids[0]
    assert logprobs[0].logprob == pytest.approx(float(expected[token_ids[0]]))
    assert [token_id for token_id, _ in logprobs[0].top] == expected.topk(3).indices.tolist()


def test_without_logprobs_there_are_none() -> None:
    params = [SamplingParams(temperature=0.0), SamplingParams(temperature=0.0, logprobs=0)]
    _, logprobs = draw(torch.randn(2, VOCAB), [DrawRow(each, 0) for each in params])
    assert logprobs[0] is None
    assert logprobs[1] is not None
    assert logprobs[1].top == ()


def test_counts_after_drafts_equal_counts_of_the_longer_sequence() -> None:
    tokens = [1, 2, 3, 2]
    counts = TokenCounts(VOCAB, tokens, 2)
    longer, rebuilt = counts.plus([3, 9]), TokenCounts(VOCAB, [*tokens, 3, 9], 2)
    assert torch.equal(longer.seen, rebuilt.seen)
    assert torch.equal(longer.output, rebuilt.output)
    assert counts.output[9] == 0


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999, 0.999999])
def test_top_p_over_a_large_flat_vocabulary_keeps_the_fewest_ids_that_reach_it(top_p: float) -> None:
    """Flat enough that the first look at the best ids does not suffice."""
    scores = torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 0.1
    probabilities = torch.softmax(scores, dim=-1)
    restrict(scores, SamplingParams(top_p=top_p))
    kept = torch.isfinite(scores)
    assert probabilities[kept].sum() >= top_p
    assert probabilities[kept].sum() - probabilities[kept].min() < top_p
    assert kept.all() or probabilities[kept].min() > probabilities[~kept].max()


def test_a_large_vocabulary_draws_the_same_in_any_batch() -> None:
    logits = torch.randn(9, 30_000, generator=torch.Generator().manual_seed(4))
    rows = [DrawRow(SamplingParams(seed=index), 3) for index in range(9)]
    together = draw(logits.clone(), rows)[0]
    assert together == [draw(logits[[index]].clone(), [row])[0][0] for index, row in enumerate(rows)]


def test_top_k_keeps_every_id_that_ties_with_the_kth() -> None:
    scores = torch.tensor([1.0, 3.0, 2.0, 2.0])
    restrict(scores, SamplingParams(top_k=2))
    assert torch.isfinite(scores).tolist() == [False, True, True, True]
