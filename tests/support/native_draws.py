"""Random rows and parameters of draws, and the C++ draw beside the one in torch operations."""

from __future__ import annotations

import random

import pytest
import torch

from shared.engine.sampling.draw import pick
from shared.engine.sampling.draw_row import DrawRow
from shared.engine.sampling.logprobs import summarise
from shared.engine.sampling.native_sampler import NativeSampler
from shared.sampling.parameters import SamplingParams

ROWS = 12


def random_params(source: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=source.choice([0.0, 1e-5, 0.01, 0.3, 0.7, 1.0, 1.5, 10.0, 100.0]),
        top_k=source.choice([0, 0, 1, 2, 5, 40, 1000, 10**6]),
        top_p=source.choice([1.0, 1.0, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999999, 1e-9]),
        min_p=source.choice([0.0, 0.0, 0.05, 0.2, 1.0]),
        seed=source.randrange(-(2**63), 2**64),
    )


def random_logits(vocab_size: int, shape: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, vocab_size, generator=generator) * [0.01, 0.5, 2.0, 5.0, 100.0, 1e6][seed % 6]
    match shape:
        case "ties":
            return logits.round()
        case "half ruled out":
            return logits.masked_fill(torch.rand(ROWS, vocab_size, generator=generator) < 0.5, -torch.inf)
        case "zeros of both signs":
            return torch.zeros(ROWS, vocab_size).copysign(logits)
        case "peaked":  # as a model's are: few ids hold nearly all chances
            boosts = torch.rand(ROWS, vocab_size, generator=generator).pow(40) * 25
            return torch.randn(ROWS, vocab_size, generator=generator) * 2 + boosts
        case "growing":
            return logits.sort(dim=-1).values
    return logits


def assert_equal_draws(native: NativeSampler, logits: torch.Tensor, rows: list[DrawRow]) -> None:
    with torch.inference_mode():
        assert native.pick(logits, rows) == pick(logits.clone(), rows)


def assert_logprobs_are_those_of_torch(native: NativeSampler, logits: torch.Tensor) -> None:
    """Sums and the likeliest ids of four rows; of one row all ids, where there are few."""
    vocab_size = logits.shape[1]
    num_top = {3: 5, 7: 0, 11: 20, 0: vocab_size if vocab_size < 100 else 1}
    for index, (total, top) in native.summarise(logits, num_top).items():
        expected_total, expected = summarise(logits[index], num_top[index])
        assert total == pytest.approx(expected_total, abs=1e-5)
        chances = [logprob for _, logprob in top]
        assert chances == pytest.approx([logprob for _, logprob in expected], abs=1e-5)
        assert [logits[index, token_id] - total for token_id, _ in top] == pytest.approx(chances, abs=1e-5)
        assert len({token_id for token_id, _ in top}) == len(expected)
