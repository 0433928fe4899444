"""How often drafts are right, what they cost, and whether they pay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shared.engine import LLM, SamplingParams
from shared.errors import InvalidRequest
from shared.training.acceptance import (
    LONGEST_DRAFT,
    DraftAcceptance,
    TargetAnswer,
    accept_draft_model,
    accept_ngrams,
    target_answers,
)
from shared.training.draft_worth import worth_of
from shared.training.model_card import MeasuredAcceptance, verdicts
from shared.training.step_times import StepTimes, measure_steps, never_shorter
from shared.training.taught_rows import TOP, answer_prompts, load_rows, save_rows
from tests.support.engine import save_random_model

PROMPTS = [[5, 9, 11], [40, 41, 42, 43], [7]]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(save_random_model(tmp_path_factory.mktemp("target")), threads=1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_the_target_is_always_right(llm: LLM, temperature: float) -> None:
    answers = target_answers(llm, PROMPTS, temperature, 40, seed=3)
    accepted = accept_draft_model(llm, answers)
    assert accepted.drafts == sum(len(answer.places) for answer in answers) > 0
    assert accepted.together == accepted.alone == (1.0,) * LONGEST_DRAFT
    assert accepted.tokens_per_step(4) == 5


def test_another_model_is_seldom_right(llm: LLM, tmp_path: Path) -> None:
    other = LLM(save_random_model(tmp_path, seed=9), threads=1)
    accepted = accept_draft_model(other, target_answers(llm, PROMPTS, 1.0, 40, seed=3))
    assert accepted.alone[0] < 0.5


def test_a_lookup_is_right_in_a_text_that_repeats_itself() -> None:
    answer = TargetAnswer((1, 2, 3, 4), (5, *(1, 2, 3, 4, 5) * 8), SamplingParams())
    accepted = accept_ngrams([answer])
    assert accepted.together[0] >= 0.8


def test_shares_are_of_the_drafts_that_got_there() -> None:
    said = tuple(range(100, 101 + 3 * LONGEST_DRAFT))
    # at the first place the lookup finds two right tokens and a wrong one, at the others nothing
    prompt = (55, *said[:3], 77, 55)
    accepted = accept_ngrams([TargetAnswer(prompt, said, SamplingParams())])
    assert accepted.drafts == 3
    assert accepted.together[:3] == pytest.approx((1 / 3, 1 / 3, 0.0))
    assert accepted.alone[:4] == pytest.approx((1 / 3, 1.0, 0.0, 0.0))
    assert accepted.offered == pytest.approx(1 / 3)


def test_steps_are_timed_with_as_many_drafts_as_were_asked_for(llm: LLM) -> None:
    times = measure_steps(llm, llm, PROMPTS[0])
    assert min(times.target_us, times.draft_us, *times.verify_us.values()) > 0
    assert not llm.engine.has_work


def test_no_step_that_verifies_more_is_taken_for_a_shorter_one() -> None:
    assert never_shorter(10.0, {1: 9.0, 2: 12.0, 4: 11.0}) == {1: 10.0, 2: 12.0, 4: 12.0}


@pytest.mark.parametrize(
    ("share", "better"), [(0.9, "the draft is the better"), (0.1, "it is the better of")]
)
def test_the_verdict_says_which_of_draft_and_lookup_is_better(share: float, better: str) -> None:
    times = StepTimes(1000.0, {1: 1000.0, 4: 1100.0}, 10.0)
    assert better in verdicts(MeasuredAcceptance("x", 0.0, accepted(share), accepted(0.5)), times)[1]


def accepted(share: float) -> DraftAcceptance:
    return DraftAcceptance(100, (share,) * 8, tuple(share ** (n + 1) for n in range(8)))


def test_the_best_number_of_drafts_is_where_tokens_cost_least() -> None:
    times = StepTimes(1000.0, {1: 1000.0, 2: 1050.0, 4: 1200.0}, 100.0)
    worth = worth_of(accepted(0.8), times, draft_us=100.0)
    assert worth.length == 4
    assert worth.speedup == pytest.approx((1 + 0.8 + 0.64 + 0.512 + 0.4096) * 1000 / 1600)
    assert worth.pays


def test_a_step_that_nothing_is_drafted_for_costs_no_more_than_one_without_drafts() -> None:
    times = StepTimes(1000.0, {1: 1500.0}, 0.0)
    seldom = DraftAcceptance(100, (0.1,) * 8, (0.1,) * 8, offered=0.1)
    assert worth_of(seldom, times, 0.0).speedup == pytest.approx(1.1 * 1000 / 1050)


@pytest.mark.parametrize("draft_us", [900.0, 5000.0])
def test_a_draft_that_costs_more_than_it_saves_does_not_pay(draft_us: float) -> None:
    worth = worth_of(accepted(0.5), StepTimes(1000.0, {1: 1000.0, 4: 1100.0}, draft_us), draft_us)
    assert worth.length == 0
    assert worth.speedup == 1.0
    assert not worth.pays


# --- what the target taught ---


def test_taught_rows_hold_the_targets_own_distribution(llm: LLM) -> None:
    rows = answer_prompts(llm, PROMPTS, (0.0, 0.7), seed=1)
    assert [row.temperature for row in rows] == [0.0, 0.7, 0.0]
    for row, prompt in zip(rows, PROMPTS, strict=True):
        assert row.ids[: row.prompt_tokens].tolist() == prompt
        logprobs = llm.logits(row.ids.tolist())[len(prompt) - 1 : -1].log_softmax(-1)
        torch.testing.assert_close(row.top_logprobs, logprobs.topk(TOP).values, atol=1e-3, rtol=1e-3)


def test_rows_come_back_from_their_file(llm: LLM, tmp_path: Path) -> None:
    rows = answer_prompts(llm, PROMPTS, (1.0,), seed=1)
    save_rows(tmp_path / "answers.safetensors", rows, 2.5)
    found, seconds = load_rows(tmp_path / "answers.safetensors")
    assert seconds == 2.5
    assert [path.name for path in tmp_path.iterdir()] == ["answers.safetensors"]
    for ours, theirs in zip(found, rows, strict=True):
        assert torch.equal(ours.ids, theirs.ids)
        assert torch.equal(ours.top_ids, theirs.top_ids)
        assert (ours.prompt_tokens, ours.temperature) == (theirs.prompt_tokens, theirs.temperature)


@pytest.mark.parametrize("kept_bytes", [0, 7, 300])
def test_a_file_of_answers_that_was_cut_is_refused(llm: LLM, kept_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "answers.safetensors"
    save_rows(path, answer_prompts(llm, PROMPTS[:1], (1.0,), seed=1), 1.0)
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(
        InvalidRequest, match=r"answers.safetensors is damaged .*; remove it, it is made again"
    ):
        load_rows(path)
