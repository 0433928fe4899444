"""What a draft learns in a step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shared.training.draft_trainer import (
    GREEDY_TEMPERATURE,
    LENGTH_TOKENS,
    TaughtBatches,
    calibrate_draft,
    divergence_gradient,
    learn_batch,
)
from shared.training.llama import Llama, LlamaShape
from shared.training.optimizer import Optimizer
from shared.training.taught_rows import TOP, TaughtRow

VOCABULARY = 200
SMALL = LlamaShape(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=LENGTH_TOKENS,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def events(logprobs: Tensor, top_ids: Tensor) -> Tensor:
    """Probabilities of the TOP tokens and of all others together, [N, TOP + 1]."""
    top = logprobs.exp().gather(1, top_ids)
    return torch.cat((top, (1 - top.sum(1, keepdim=True)).clamp_min(1e-9)), 1)


def test_the_gradient_is_that_of_the_divergence_over_the_top_tokens_and_the_rest() -> None:
    target, said = torch.randn(5, VOCABULARY).log_softmax(-1), torch.randn(5, VOCABULARY, requires_grad=True)
    top_logprobs, top_ids = target.topk(TOP)
    wanted, given = events(target, top_ids), events(said.log_softmax(-1), top_ids)
    divergence = (wanted * (wanted / given).log()).sum(1)
    (expected,) = torch.autograd.grad(divergence.sum(), said)
    losses, gradient = divergence_gradient(said.detach(), top_ids, top_logprobs, torch.ones(5))
    torch.testing.assert_close(losses, divergence.detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)


def test_below_temperature_one_the_top_tokens_are_all_there_is() -> None:
    said = torch.randn(3, VOCABULARY, requires_grad=True)
    top_logprobs, top_ids = torch.randn(3, VOCABULARY).log_softmax(-1).topk(TOP)
    wanted = (top_logprobs / 0.6).softmax(-1)
    divergence = (wanted * (wanted.log() - (said / 0.6).log_softmax(-1).gather(1, top_ids))).sum()
    (expected,) = torch.autograd.grad(divergence, said)
    losses, gradient = divergence_gradient(said.detach(), top_ids, top_logprobs, torch.full((3,), 0.6))
    torch.testing.assert_close(losses.sum(), divergence.detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)


def row(prompt_tokens: int, generated: int, temperature: float = 1.0) -> TaughtRow:
    """A row whose tokens count up from 10; the likeliest at each generated position is the token itself."""
    ids = torch.arange(10, 10 + prompt_tokens + generated, dtype=torch.int32) % VOCABULARY
    top_ids = (ids[prompt_tokens:, None] + torch.arange(TOP, dtype=torch.int32)) % VOCABULARY
    return TaughtRow(ids, prompt_tokens, temperature, top_ids, torch.randn(generated, TOP).log_softmax(-1))


def test_every_learned_position_stands_before_the_token_that_was_generated() -> None:
    rows = [row(7, 40), row(30, 5, 0.0), row(1, 90, 0.7)]
    batch = next(TaughtBatches(rows, seed=3))
    ids = batch.ids.flatten()
    assert len(batch.positions) == len(batch.top_ids) == len(batch.top_logprobs) == len(batch.temperatures)
    assert torch.equal(ids[batch.positions + 1], batch.top_ids[:, 0])
    assert {round(value, 3) for value in batch.temperatures.tolist()} == {1.0, GREEDY_TEMPERATURE, 0.7}


def test_another_seed_gives_other_batches() -> None:
    rows = [row(7, 40), row(30, 50), row(1, 90)]
    one, same, other = (next(TaughtBatches(rows, seed)).ids for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("sureness", [1.0, 8.0])
def test_a_draft_that_is_too_sure_is_made_less_so_before_it_learns(sureness: float) -> None:
    """Its layers start as the identity: what it says depends on the last token alone, wherever that is."""
    draft = Llama(SMALL)
    with torch.no_grad():
        draft.model.embed_tokens.weight.mul_(50)
        ids = torch.arange(10, 90)
        top = draft(ids[None])[0, :-1].log_softmax(-1).topk(TOP)
        taught = TaughtRow(ids.int(), 1, 1.0, top.indices.int(), top.values)
        draft.model.norm.weight.mul_(sureness)
    calibrate_draft(draft, next(TaughtBatches([taught], seed=0)))
    assert torch.equal(draft.model.norm.weight, torch.ones(32))


def test_learning_brings_the_draft_nearer() -> None:
    draft = Llama(SMALL)
    optimizer = Optimizer.of_model(draft)
    batches = TaughtBatches([row(5, 60)], seed=0)
    measured = []
    for _ in range(12):
        measured.append(learn_batch(draft, next(batches)))
        optimizer.step(3.0)
    assert measured[-1][0] < 0.7 * measured[0][0]
    assert measured[-1][1] > measured[0][1]
