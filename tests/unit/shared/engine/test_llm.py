"""The in-process API: several completions of a prompt, log-probabilities, words that must not come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from shared.engine import LLM, SamplingParams
from shared.engine.llm import MAX_COMPLETIONS
from shared.errors import InvalidRequest, NotFound, Overloaded
from tests.support.engine import FANCY, GREEDY, oracle, oracle_logits, prompts, save_random_model
from tests.support.grammar import VOCAB

PLAIN = SamplingParams(max_tokens=12, ignore_eos=True, seed=2**64 - 2)


@pytest.fixture(scope="module")
def reference(llm_dir: Path) -> PreTrainedModel:
    return oracle(llm_dir)


# --- n ---


@pytest.mark.parametrize("params", [PLAIN, replace(FANCY, max_tokens=15), replace(GREEDY, max_tokens=9)])
def test_completion_i_is_what_seed_plus_i_alone_draws(llm_dir: Path, params: SamplingParams) -> None:
    many = prompts(3, VOCAB)
    together = LLM(llm_dir).generate(many, params, n=4)
    expected = [
        LLM(llm_dir).generate([prompt], replace(params, seed=(params.seed + index) % 2**64))[0].token_ids
        for prompt in many
        for index in range(4)
    ]
    assert [each.token_ids for each in together] == expected
    assert [each.index for each in together] == [0, 1, 2, 3] * 3


def test_different_seeds_draw_different_completions(llm_dir: Path) -> None:
    completions = LLM(llm_dir).generate([[40, 41]], PLAIN, n=5)
    assert len({each.token_ids for each in completions}) == 5


def test_more_completions_than_fit_at_once_all_come(llm_dir: Path) -> None:
    llm = LLM(llm_dir, kv_blocks=16, max_sequences=3)
    together = llm.generate(prompts(4, VOCAB), PLAIN, n=5)
    roomy = LLM(llm_dir).generate(prompts(4, VOCAB), PLAIN, n=5)
    assert [each.token_ids for each in together] == [each.token_ids for each in roomy]
    assert llm.engine.held() == {}


def test_the_prompt_is_computed_once_for_all_completions(llm_dir: Path) -> None:
    llm = LLM(llm_dir, prefix_cache=False)
    steps = []
    original = llm.engine.step
    llm.engine.step = lambda: steps.append(original()) or steps[-1]  # type: ignore[method-assign,func-returns-value]  # counts
    llm.generate([list(range(3, 90))], PLAIN, n=4)
    assert sum(step.num_prefill_tokens for step in steps) == 87 + 3  # each fork computes the last token anew


def test_completions_of_one_token_come_all_the_same(llm_dir: Path) -> None:
    completions = LLM(llm_dir).generate([[40, 41]], replace(PLAIN, max_tokens=1), n=3)
    assert [len(each.token_ids) for each in completions] == [1, 1, 1]


@pytest.mark.parametrize("n", [0, -1, MAX_COMPLETIONS + 1])
def test_a_wrong_number_of_completions_is_refused(llm_dir: Path, n: int) -> None:
    with pytest.raises(InvalidRequest, match="completions"):
        LLM(llm_dir).generate([[3]], PLAIN, n=n)


# --- log-probabilities ---


def test_prompt_logprobs_are_the_models_own(llm_dir: Path, reference: PreTrainedModel) -> None:
    prompt = prompts(1, VOCAB)[0]
    expected = torch.log_softmax(oracle_logits(reference, prompt), dim=-1)
    (completion,) = LLM(llm_dir).generate([prompt], replace(FANCY, prompt_logprobs=2, max_tokens=11))
    told = completion.prompt_logprobs
    assert [each.token_id for each in told] == prompt[1:]
    for place, each in enumerate(told):
        assert each.logprob == pytest.approx(float(expected[place, each.token_id]), abs=1e-3)
        assert [top_id for top_id, _ in each.top] == expected[place].topk(2).indices.tolist()


def test_every_completion_has_the_prompts_logprobs_and_its_own(llm_dir: Path) -> None:
    completions = LLM(llm_dir).generate([[40, 41, 42]], replace(PLAIN, prompt_logprobs=0, logprobs=1), n=3)
    assert len({each.prompt_logprobs for each in completions}) == 1
    for completion in completions:
        assert len(completion.prompt_logprobs) == 2
        assert tuple(each.token_id for each in completion.logprobs) == completion.token_ids


def test_without_being_asked_for_there_are_no_logprobs(llm_dir: Path) -> None:
    (completion,) = LLM(llm_dir).generate([[40, 41]], PLAIN)
    assert (completion.logprobs, completion.prompt_logprobs) == ((), ())


def test_a_prompt_of_one_token_has_no_prompt_logprobs(llm_dir: Path) -> None:
    (completion,) = LLM(llm_dir).generate([[40]], replace(PLAIN, prompt_logprobs=1))
    assert completion.prompt_logprobs == ()


# --- words ---


def test_words_become_ids_with_and_without_a_space_before_them(llm_dir: Path) -> None:
    llm = LLM(llm_dir)
    assert llm.tokenizer is not None
    words = llm.bad_words(["true", "true", "b"])
    assert [llm.tokenizer.decode(list(ids)) for ids in words] == ["true", " true", "b", " b"]


def test_bad_words_do_not_come(llm_dir: Path) -> None:
    llm = LLM(llm_dir, kv_blocks=64)
    params = SamplingParams(max_tokens=100, allowed_ids=tuple(llm.tokenizer.encode("abc ").ids))  # type: ignore[union-attr]  # it has one
    assert "ab" in llm.generate([[40]], params)[0].text
    assert "ab" not in llm.generate([[40]], replace(params, bad_words=llm.bad_words(["ab"])))[0].text


def test_words_need_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"tokenizer\.json"):
        LLM(save_random_model(tmp_path)).bad_words(["word"])


def test_blocks_that_others_hold_end_the_call_and_not_in_a_wait_for_ever(llm_dir: Path) -> None:
    llm = LLM(llm_dir, kv_blocks=4, max_batch_tokens=64, max_sequences=4)
    llm.engine.reserve("theirs", 32, [])
    with pytest.raises(Overloaded, match="release them"):
        llm.generate([[1, 2, 3] * 8], SamplingParams(temperature=0.0, max_tokens=39, ignore_eos=True))
    assert list(llm.engine.held()) == ["theirs"]
