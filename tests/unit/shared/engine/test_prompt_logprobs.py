"""Log-probabilities of a prompt's own tokens: whole and exact, however the prompt comes to be computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from shared.engine import Engine, SamplingParams, StepResult
from shared.engine.scheduling import scheduler
from shared.sampling.parameters import TokenLogprob
from tests.support.engine import GREEDY, admit, make_engine, oracle, oracle_logits

VOCAB = 97
SCORED = replace(GREEDY, prompt_logprobs=2, max_tokens=6)
LONG = [(11 * number + 3) % VOCAB for number in range(70)]


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> PreTrainedModel:
    return oracle(model_dir)


class Told:
    """What an engine said of its prompts; a part that does not follow the last one fails."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.logprobs: dict[str, list[TokenLogprob]] = {}
        self.tokens: dict[str, list[int]] = {}

    def step(self) -> StepResult:
        result = self.engine.step()
        self.engine.check()
        for scores in result.prompt_scores:
            known = self.logprobs.setdefault(scores.key, [])
            assert scores.position == 1 + len(known)
            known += scores.logprobs
        for output in result.outputs:
            self.tokens.setdefault(output.key, []).extend(output.token_ids)
        return result

    def run(self) -> Told:
        while self.engine.has_work:
            self.step()
        return self


def check_exact(told: list[TokenLogprob], reference: PreTrainedModel, prompt: list[int]) -> None:
    expected = torch.log_softmax(oracle_logits(reference, prompt), dim=-1)
    assert [each.token_id for each in told] == prompt[1:]
    for place, each in enumerate(told):
        assert each.logprob == pytest.approx(float(expected[place, each.token_id]), abs=1e-3)
        assert [top_id for top_id, _ in each.top] == expected[place].topk(2).indices.tolist()


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("max_batch_tokens", [7, 64, 256])
def test_those_of_a_prompt_in_chunks_are_the_models_own(
    model_dir: Path, reference: PreTrainedModel, backend: str, max_batch_tokens: int
) -> None:
    told = Told(make_engine(model_dir, backend=backend, max_batch_tokens=max_batch_tokens, max_sequences=4))
    admit(told.engine, "a", LONG, SCORED)
    told.run()
    check_exact(told.logprobs["a"], reference, LONG)
    assert len(told.tokens["a"]) == SCORED.max_tokens


def test_a_step_scores_no_more_than_its_limit_and_none_of_it_twice(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MAX_SCORED_TOKENS", 20)
    told = Told(make_engine(model_dir))
    for key in "abc":
        admit(told.engine, key, [*LONG, ord(key) % VOCAB], SCORED)
    admit(told.engine, "plain", LONG)
    results = [told.step()]
    assert results[0].num_prefill_tokens == 20 + len(LONG)  # what is not scored comes at once
    while told.engine.has_work:
        results.append(told.step())
    sizes = [sum(len(scores.logprobs) for scores in result.prompt_scores) for result in results]
    assert max(sizes) == 20
    assert [len(told.logprobs[key]) for key in "abc"] == [len(LONG)] * 3
    assert "plain" not in told.logprobs


def test_a_cached_prefix_is_computed_again_for_them_and_serves_whoever_wants_none(
    model_dir: Path, reference: PreTrainedModel
) -> None:
    told = Told(make_engine(model_dir))
    for key, params, cached in (("a", GREEDY, 0), ("b", SCORED, 0), ("c", GREEDY, 64)):
        admitted = told.engine.admit(key, LONG, len(LONG), params)
        assert admitted.cached_tokens == cached
        told.run()
    check_exact(told.logprobs["b"], reference, LONG)
    assert told.logprobs.keys() == {"b"}


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("offload", [True, False])
def test_a_prompt_that_is_preempted_halfway_is_told_whole_and_once(
    model_dir: Path, reference: PreTrainedModel, tmp_path: Path, prefix_cache: bool, offload: bool
) -> None:
    fields: dict[str, Any] = {"offload_dir": str(tmp_path), "offload_disk_mb": 1} if offload else {}
    engine = make_engine(
        model_dir, kv_blocks=8, max_batch_tokens=17, max_sequences=4, prefix_cache=prefix_cache, **fields
    )
    told = Told(engine)
    admit(engine, "first", LONG[:47], replace(GREEDY, max_tokens=30))
    while "first" not in told.tokens:
        told.step()
    admit(engine, "late", [5, *LONG], SCORED)
    preempted: list[str] = []
    while engine.has_work:
        preempted += told.step().preempted_keys
    assert "late" in preempted
    check_exact(told.logprobs["late"], reference, [5, *LONG])


def test_after_a_preemption_what_others_cached_serves_up_to_what_was_told(
    model_dir: Path, reference: PreTrainedModel
) -> None:
    told = Told(make_engine(model_dir, max_batch_tokens=24))
    admit(told.engine, "before", LONG)
    told.run()
    admit(told.engine, "a", LONG, SCORED)
    told.step()
    told.engine._block_manager.preempt(told.engine._scheduler.sequences["a"])
    resumed = told.step()
    assert resumed.computed[0].start_token == 16  # of 24 that were told, and 64 in the cache
    told.run()
    check_exact(told.logprobs["a"], reference, LONG)


def test_after_a_recovery_the_prompt_alone_is_told(model_dir: Path, reference: PreTrainedModel) -> None:
    told = Told(make_engine(model_dir, max_batch_tokens=24))
    told.engine.admit("a", LONG, 50, replace(SCORED, max_tokens=40))
    told.run()
    check_exact(told.logprobs["a"], reference, LONG[:50])


def test_who_gets_the_kv_of_a_prompt_does_not_tell_it_even_after_a_preemption(model_dir: Path) -> None:
    told = Told(make_engine(model_dir))
    engine = told.engine
    reserved = engine.reserve("a", 33, [])
    assert reserved.num_cached_blocks == 0
    engine.attach("a", LONG[:34], 34, SCORED)
    told.step()
    engine._block_manager.preempt(engine._scheduler.sequences["a"])
    told.run()
    assert told.logprobs == {}
    assert len(told.tokens["a"]) == SCORED.max_tokens


def test_sequences_beside_it_draw_what_they_draw_alone(model_dir: Path) -> None:
    sampled = SamplingParams(max_tokens=20, ignore_eos=True, seed=3, logprobs=1)
    alone = Told(make_engine(model_dir))
    admit(alone.engine, "a", LONG[:9], sampled)
    alone.run()
    beside = Told(make_engine(model_dir, max_batch_tokens=24))
    admit(beside.engine, "a", LONG[:9], sampled)
    beside.step()
    admit(beside.engine, "scored", LONG, SCORED)
    beside.run()
    assert beside.tokens["a"] == alone.tokens["a"]
    assert len(beside.logprobs["scored"]) == len(LONG) - 1
