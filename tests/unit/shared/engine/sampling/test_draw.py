from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shared.engine.sampling.draw import draw, restrict, token_logprobs
from shared.engine.sampling.draw_row import DrawRow, TokenCounts
from shared.engine.sampling.id_bits import bits_of
from shared.engine.sampling.noise import gumbel_noise
from shared.sampling.parameters import SamplingParams
from tests.support.plain_draw import plain_draw

VOCAB = 24


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


@pytest.mark.parametrize("name", ["plain", "all"])
def test_the_drawn_tokens_logprob_is_the_one_told_among_the_likeliest(name: str) -> None:
    params = replace(SETTINGS["all"] if name == "all" else SamplingParams(), logprobs=VOCAB)
    for told in draw(torch.randn(20, VOCAB), [DrawRow(params, position) for position in range(20)])[1]:
        assert told is not None
        assert dict(told.top)[told.token_id] == told.logprob


def test_logprobs_of_rows_beside_others_are_their_own() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(5))
    params = [SamplingParams(logprobs=4), SamplingParams(), SamplingParams(logprobs=1)]
    told = draw(logits.clone(), [DrawRow(each, 0) for each in params])[1]
    alone = [draw(logits[[row]].clone(), [DrawRow(each, 0)])[1][0] for row, each in enumerate(params)]
    assert told == alone
    assert [None if each is None else len(each.top) for each in told] == [4, None, 1]


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


def test_only_allowed_ids_are_drawn() -> None:
    allowed = bits_of([3, 8], VOCAB)
    rows = [DrawRow(SamplingParams(temperature=5.0), position, (), None, allowed) for position in range(200)]
    assert set(draw(torch.randn(200, VOCAB), rows)[0]) == {3, 8}


def test_blocked_ids_are_not_drawn_even_when_allowed() -> None:
    row = DrawRow(SETTINGS["greedy"], 0, (3,), None, bits_of(range(5), VOCAB))
    logits = torch.arange(VOCAB, 0, -1, dtype=torch.float32)[None]
    logits[0, 3] = 100
    assert draw(logits, [row])[0] == [0]


@pytest.mark.parametrize("name", ["greedy", "temperature", "top_k", "top_p", "min_p"])
def test_a_row_of_which_nothing_is_left_draws_nothing_and_disturbs_nobody(name: str) -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(3))
    rows = [DrawRow(SETTINGS[name], position) for position in range(3)]
    alone = [draw(logits[[index]].clone(), [row])[0][0] for index, row in enumerate(rows)]
    rows[1] = rows[1]._replace(allowed=bits_of([], VOCAB))
    assert draw(logits, rows)[0] == [alone[0], None, alone[2]]


@pytest.mark.parametrize("name", ["greedy", "temperature", "top_k", "top_p", "min_p"])
def test_a_row_with_a_logit_that_is_no_number_draws_nothing(name: str) -> None:
    logits = torch.randn(2, VOCAB)
    logits[0, 7] = torch.nan
    first, second = draw(
        logits, [DrawRow(replace(SETTINGS[name], logprobs=1), position) for position in (0, 1)]
    )[0]
    assert first is None
    assert second is not None


def test_logprobs_of_given_tokens_are_those_of_their_rows() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(6))
    expected = torch.log_softmax(logits, dim=-1)
    told = token_logprobs(logits, [4, 9, 0], 2)
    assert [each.logprob for each in told] == pytest.approx(
        [float(expected[row, i]) for row, i in enumerate([4, 9, 0])]
    )
    assert [each.top[0][0] for each in told] == logits.argmax(dim=-1).tolist()
