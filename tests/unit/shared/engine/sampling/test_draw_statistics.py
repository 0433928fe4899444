"""What is drawn, against exact probabilities: 1e5 draws a setting, and exactly which ids may be drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.engine.sampling import draw as draw_module
from shared.engine.sampling.draw import draw, restrict
from shared.engine.sampling.draw_row import DrawRow, TokenCounts
from shared.engine.sampling.id_bits import bits_of
from shared.engine.sampling.noise import gumbel_noise
from shared.sampling.parameters import SamplingParams
from tests.support.plain_draw import plain_filtered, plain_scores, softmax

VOCAB = 24
DRAWS = 100_000
PROMPT, OUTPUT = [1, 2], [3, 3, 5]
DRAW_FIELDS = ("temperature", "top_k", "top_p", "min_p", "seed")
LOGITS = torch.randn(VOCAB, generator=torch.Generator().manual_seed(8))

SETTINGS = {
    "plain": SamplingParams(seed=1),
    "cool": SamplingParams(temperature=0.6, seed=2),
    "hot": SamplingParams(temperature=3.0, seed=3),
    "top_k": SamplingParams(top_k=4, seed=4),
    "top_p": SamplingParams(top_p=0.8, seed=5),
    "min_p": SamplingParams(min_p=0.1, seed=6),
    "top_k, top_p": SamplingParams(top_k=9, top_p=0.7, seed=7),
    "top_p, min_p": SamplingParams(temperature=1.4, top_p=0.9, min_p=0.15, seed=8),
    "top_k, top_p, min_p": SamplingParams(temperature=1.2, top_k=12, top_p=0.95, min_p=0.05, seed=9),
    "repetition": SamplingParams(repetition_penalty=1.5, seed=10),
    "presence, frequency": SamplingParams(presence_penalty=0.9, frequency_penalty=0.4, seed=11),
    "bias": SamplingParams(logit_bias=((0, 2.0), (7, -1.5)), seed=12),
    "allowed ids": SamplingParams(allowed_ids=(0, 3, 5, 8, 21), seed=13),
    "everything": SamplingParams(
        temperature=1.2,
        top_k=9,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.1,
        logit_bias=((4, 1.0),),
        allowed_ids=tuple(range(1, 20)),
        seed=14,
    ),
}


def adjusted_logits(params: SamplingParams) -> torch.Tensor:
    """float32 [VOCAB]: what penalties and bias make of LOGITS."""
    counts = TokenCounts(VOCAB, PROMPT + OUTPUT, len(PROMPT)) if params.has_penalties else None
    logits = LOGITS.clone()
    draw_module._adjust(logits, DrawRow(params, 0, (), counts))
    return logits


def exact_chances(params: SamplingParams) -> torch.Tensor:
    """float64 [VOCAB], by the plain reference."""
    scores = plain_scores(LOGITS.tolist(), params, PROMPT, OUTPUT)
    if params.allowed_ids:
        scores = [score if index in params.allowed_ids else -math.inf for index, score in enumerate(scores)]
    return torch.tensor(softmax(plain_filtered(scores, params)), dtype=torch.float64)


def drawn_counts(params: SamplingParams) -> torch.Tensor:
    """float64 [VOCAB]: how often each id was drawn at DRAWS positions."""
    if draw_module.native_sampler() is not None:
        logits = adjusted_logits(params)  # once: it is the same for all positions
        rest = replace(SamplingParams(), **{name: getattr(params, name) for name in DRAW_FIELDS})
        allowed = bits_of(params.allowed_ids, VOCAB) if params.allowed_ids else None
        rows = [DrawRow(rest, position, (), None, allowed) for position in range(DRAWS)]
        token_ids = torch.tensor(draw(logits.repeat(DRAWS, 1), rows)[0])
    else:
        # Row by row 1e5 draws take minutes in torch: the ids left are found once, the noise at once. What
        # `draw` itself draws is held to the plain reference in test_draw.
        scores = exact_chances(params).log()
        noise = gumbel_noise([params.seed] * DRAWS, range(DRAWS), torch.arange(VOCAB))
        token_ids = (scores + noise).argmax(dim=-1)
    return torch.bincount(token_ids, minlength=VOCAB).double()


def assert_distributed(observed: torch.Tensor, chances: torch.Tensor) -> None:
    """Chi-square; the bound is mean + 5 standard deviations of the chi-square law."""
    possible = chances > 0
    assert not observed[~possible].any()
    expected = chances[possible] * observed.sum()
    statistic = float(((observed[possible] - expected) ** 2 / expected).sum())
    freedom = int(possible.sum()) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.thorough(but="plain | repetition | min_p | top_k, top_p, min_p | everything")
@pytest.mark.parametrize("name", SETTINGS)
def test_the_draws_over_positions_follow_the_exact_probabilities(name: str) -> None:
    assert_distributed(drawn_counts(SETTINGS[name]), exact_chances(SETTINGS[name]))


def test_the_draws_over_seeds_at_one_position_follow_the_exact_probabilities() -> None:
    noise = gumbel_noise(range(DRAWS), [17] * DRAWS, torch.arange(VOCAB))
    token_ids = (LOGITS.double() + noise).argmax(dim=-1)
    assert_distributed(torch.bincount(token_ids, minlength=VOCAB).double(), exact_chances(SETTINGS["plain"]))


def test_the_check_notices_a_wrong_distribution() -> None:
    with pytest.raises(AssertionError):
        assert_distributed(drawn_counts(SETTINGS["cool"]), exact_chances(SETTINGS["plain"]))


LOGIT_LISTS = st.lists(
    st.floats(-20, 20, width=32) | st.sampled_from([0.0, -0.0, 1.0, 2.0, -5.0]), min_size=1, max_size=40
)


@settings(max_examples=150, deadline=None)
@given(
    logits=LOGIT_LISTS,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 0.9]),
)
def test_exactly_the_ids_of_the_plain_reference_may_be_drawn(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assume(not on_an_edge(logits, params))
    scores = torch.tensor(logits, dtype=torch.float64) / temperature
    restrict(scores, params)
    expected = [score > -math.inf for score in plain_filtered(logits, params)]
    assert torch.isfinite(scores).tolist() == expected


def on_an_edge(logits: list[float], params: SamplingParams) -> bool:
    """Whether rounding decides: a sum of chances meets top_p, or a chance min_p times the best."""
    chances = softmax(
        plain_filtered(logits, SamplingParams(temperature=params.temperature, top_k=params.top_k))
    )
    sums = np.cumsum(sorted(chances, reverse=True))
    relative = np.array(chances) / max(chances)
    return bool(
        (np.abs(sums[:-1] - params.top_p) < 1e-9).any()
        or (np.abs(1.0 - sums[:-1]) < 1e-9).any()
        or (params.min_p > 0 and (np.abs(relative / params.min_p - 1.0) < 1e-9).any())
    )
