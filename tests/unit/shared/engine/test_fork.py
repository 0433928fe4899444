from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shared.engine import Engine, SamplingParams
from shared.errors import InvalidRequest, Overloaded
from tests.support.engine import (
    FANCY,
    GREEDY,
    admit,
    drive,
    generate,
    make_engine,
    undisturbed,
)

SAMPLED = SamplingParams(max_tokens=40, ignore_eos=True, seed=3)


def running(
    engine: Engine, prompt: list[int], params: SamplingParams, steps: int = 1
) -> dict[str, list[int]]:
    """Sequence "a" after `steps` steps, and its tokens."""
    admit(engine, "a", prompt, params)
    known = {"a": list(prompt)}
    for _ in range(steps):
        for output in engine.step().outputs:
            known[output.key] += output.token_ids
    return known


@pytest.mark.thorough(but="1-32-False | 1-1-False | 4-17-False | 4-16-True | 4-15-True | 4-40-True")
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 40])
@pytest.mark.parametrize("steps", [1, 4, 20])
def test_forks_draw_what_sequences_of_their_own_draw(
    model_dir: Path, length: int, steps: int, *, prefix_cache: bool
) -> None:
    prompt = [(7 * number + 3) % 97 for number in range(length)]
    params = {"a": SAMPLED, "b": replace(SAMPLED, seed=4), "c": GREEDY, "d": FANCY}
    expected = {key: undisturbed(model_dir, prompt, each) for key, each in params.items()}
    engine = make_engine(model_dir, prefix_cache=prefix_cache)
    known = running(engine, prompt, params["a"], steps)
    for key in "bcd":
        engine.fork("a", key, params[key])
        engine.check()
        known[key] = list(prompt)
    drive(engine, known)
    assert {key: tokens[length:] for key, tokens in known.items()} == expected
    assert engine.blocks.num_held == 0


def test_a_fork_shares_blocks_and_computes_one_token(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    running(engine, [5] * 40, GREEDY)
    held = engine.blocks.num_held
    engine.fork("a", "b", SAMPLED)
    assert engine.blocks.num_held == held == 3
    result = engine.step()
    assert (result.num_decode, result.num_prefill_tokens) == (1, 1)
    assert engine.blocks.num_held == 4  # the tail was copied when one of them wrote


def test_full_blocks_that_are_shared_are_never_written(model_dir: Path) -> None:
    engine = make_engine(model_dir, prefix_cache=False)
    known = running(engine, [5] * 32, GREEDY)
    blocks = list(engine._scheduler.sequences["a"].tables[0].blocks[:2])
    before = engine.kv_pool.read(blocks)
    engine.fork("a", "b", SAMPLED)
    drive(engine, {**known, "b": [5] * 32})
    assert torch.equal(engine.kv_pool.read(blocks), before)


def test_a_fork_outlives_what_it_was_made_from(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    expected = undisturbed(model_dir, [5] * 20, SAMPLED)
    running(engine, [5] * 20, GREEDY)
    engine.fork("a", "b", SAMPLED)
    assert engine.release("a")
    engine.check()
    assert drive(engine, {"b": [5] * 20})["b"] == expected


def test_a_fork_of_a_fork_is_a_fork(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    expected = undisturbed(model_dir, [5] * 20, SAMPLED)
    known = running(engine, [5] * 20, GREEDY)
    engine.fork("a", "b", GREEDY)
    engine.fork("b", "c", SAMPLED)  # b has computed nothing of its own yet
    assert drive(engine, {**known, "b": [5] * 20, "c": [5] * 20})["c"] == expected


def test_forks_of_a_full_pool_preempt_and_still_draw_the_same(model_dir: Path) -> None:
    params = {key: replace(SAMPLED, seed=number) for number, key in enumerate("abcd")}
    expected = {key: undisturbed(model_dir, [5] * 30, each) for key, each in params.items()}
    engine = make_engine(model_dir, kv_blocks=6)
    known = running(engine, [5] * 30, params["a"])
    for key in "bcd":
        engine.fork("a", key, params[key])
        known[key] = [5] * 30
    drive(engine, known)
    assert {key: tokens[30:] for key, tokens in known.items()} == expected


def test_only_a_running_sequence_with_its_prompt_computed_is_forked(model_dir: Path) -> None:
    engine = make_engine(model_dir, max_batch_tokens=16, max_sequences=3)
    with pytest.raises(InvalidRequest, match="not running"):
        engine.fork("a", "b", GREEDY)
    admit(engine, "a", [5] * 40)
    engine.step()
    with pytest.raises(InvalidRequest, match="not computed yet"):
        engine.fork("a", "b", GREEDY)
    engine.admit("p", [6] * 10, 10, GREEDY, stop_after=2)
    with pytest.raises(InvalidRequest, match="not running"):
        engine.fork("p", "b", GREEDY)
    engine.check()


def test_a_fork_needs_a_free_place_and_a_key_of_its_own(model_dir: Path) -> None:
    engine = make_engine(model_dir, max_sequences=2)
    running(engine, [5] * 10, GREEDY)
    with pytest.raises(InvalidRequest, match="already held"):
        engine.fork("a", "a", GREEDY)
    engine.fork("a", "b", GREEDY)
    with pytest.raises(Overloaded):
        engine.fork("a", "c", GREEDY)
    engine.check()


class Sequences(RuleBasedStateMachine):
    """Admissions, forks, releases and steps, with drafts or without, in any order on a small pool: counts
    stay explained, and everybody draws what they would draw alone.

    Rules have no preconditions: what a step takes in depends on how long steps took, and rules must not.
    """

    model_dir: Path
    alone: dict[tuple[Any, ...], list[int]] = {}  # noqa: RUF012 (answers are the same in every run)

    @initialize(cache=st.booleans(), offload=st.booleans(), blocks=st.integers(5, 12))
    def start(self, *, cache: bool, offload: bool, blocks: int) -> None:
        self.engine = make_engine(
            self.model_dir,
            kv_blocks=blocks,
            prefix_cache=cache,
            offload_memory_mb=int(offload),
            max_sequences=6,
            max_batch_tokens=20,
            max_step_ms=1.0,
        )
        self.number = 0
        self.known: dict[str, list[int]] = {}
        self.made: dict[str, tuple[int, int, int]] = {}  # key -> prompt length, first token, seed

    def params(self, seed: int) -> SamplingParams:
        return SamplingParams(max_tokens=24, ignore_eos=True, seed=seed)

    @rule(
        length=st.sampled_from([1, 15, 16, 17, 33]),
        first=st.integers(0, 1),
        seed=st.integers(0, 3),
        priority=st.integers(0, 2),
    )
    def admit(self, length: int, first: int, seed: int, priority: int) -> None:
        self.number += 1
        key = str(self.number)
        prompt = [first, *range(length - 1)]
        try:
            self.engine.admit(key, prompt, length, self.params(seed), priority=priority)
        except Overloaded:
            return
        self.known[key], self.made[key] = prompt, (length, first, seed)

    @rule(choice=st.integers(0, 5), seed=st.integers(0, 3))
    def fork(self, choice: int, seed: int) -> None:
        if not self.known:
            return
        source = list(self.known)[choice % len(self.known)]
        self.number += 1
        key = str(self.number)
        try:
            self.engine.fork(source, key, self.params(seed))
        except (Overloaded, InvalidRequest):
            return
        length, first, _ = self.made[source]
        self.known[key], self.made[key] = self.known[source][:length], (length, first, seed)

    @rule(choice=st.integers(0, 5))
    def release(self, choice: int) -> None:
        if self.known:
            key = list(self.known)[choice % len(self.known)]
            assert self.engine.release(key)
            del self.known[key]

    @rule(times=st.integers(1, 12), num_drafts=st.integers(0, 4), wrong=st.integers(0, 6))
    def step(self, times: int, num_drafts: int, wrong: int) -> None:
        for _ in range(times):
            for key, tokens in self.known.items():
                drafts = self.answer(key)[len(tokens) : len(tokens) + num_drafts]
                drafts = [(draft + (place == wrong)) % 97 for place, draft in enumerate(drafts)]
                self.engine.propose(key, len(tokens), drafts)
            for output in self.engine.step().outputs:
                self.known[output.key] += output.token_ids
                if output.finish_reason is not None:
                    assert self.known.pop(output.key) == self.answer(output.key)
            self.engine.check()

    def answer(self, key: str) -> list[int]:
        made = length, first, seed = self.made[key]
        if made not in self.alone:
            prompt = [first, *range(length - 1)]
            self.alone[made] = prompt + generate(make_engine(self.model_dir), prompt, self.params(seed))
        return self.alone[made]

    @invariant()
    def explained(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        drive(self.engine, self.known)
        assert all(tokens == self.answer(key) for key, tokens in self.known.items())
        assert self.engine.blocks.num_held == 0
        self.engine.close()


def test_any_order_of_admissions_forks_and_releases_keeps_counts_and_tokens_right(model_dir: Path) -> None:
    class OnThisModel(Sequences):
        pass

    OnThisModel.model_dir = model_dir
    limits = settings(
        max_examples=15,
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    from hypothesis.stateful import run_state_machine_as_test  # noqa: PLC0415 (used by this test alone)

    run_state_machine_as_test(OnThisModel, settings=limits)
