"""The likeliest outcomes of a draw, beside scores that are sorted as a whole."""

from __future__ import annotations

import pytest
import torch

from shared.engine.sampling import candidates, draw
from shared.engine.sampling.candidates import rank_draws
from shared.engine.sampling.draw_row import DrawRow
from shared.engine.sampling.id_bits import bits_of
from shared.engine.sampling.noise import gumbel_noise
from shared.sampling.parameters import SamplingParams

VOCAB = 300


def logits_of(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(5)) * 3


@pytest.mark.parametrize("native", [True, False])
def test_they_are_the_greatest_scores_in_order_with_their_shares(
    monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    if not native:
        monkeypatch.setattr(candidates, "native_sampler", lambda: None)
        monkeypatch.setattr(draw, "native_sampler", lambda: None)
    logits = logits_of(3)
    rows = [
        DrawRow(SamplingParams(temperature=0.8, seed=4), 17),
        DrawRow(SamplingParams(temperature=0.0), 18),
        DrawRow(SamplingParams(temperature=1.0, seed=9), 19),
    ]
    scores = logits.double()
    scores[0] = scores[0] / 0.8 + gumbel_noise([4], [17], torch.arange(VOCAB))[0]
    scores[2] += gumbel_noise([9], [19], torch.arange(VOCAB))[0]
    best = torch.topk(scores, 4)
    left = logits.clone()
    drawn, _ = draw.draw(left, rows)
    ranked = rank_draws(left, rows, drawn, 4)
    assert [[each.token_id for each in row] for row in ranked] == best.indices.tolist()
    chances = torch.tensor([[each.chance for each in row] for row in ranked])
    torch.testing.assert_close(chances.double(), torch.softmax(best.values, -1), rtol=1e-4, atol=1e-6)


def test_only_what_may_be_drawn_is_told() -> None:
    logits = logits_of(2)
    rows = [DrawRow(SamplingParams(seed=1), 3, allowed=bits_of([7, 9], VOCAB)), DrawRow(SamplingParams(), 3)]
    logits[1] = torch.nan
    drawn, _ = draw.draw(logits, rows)
    first, second = rank_draws(logits, rows, drawn, 4)
    assert {each.token_id for each in first} == {7, 9}
    assert second == ()
