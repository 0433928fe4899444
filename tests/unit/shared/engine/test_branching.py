"""Branches of sequences that are held: what they draw, what they share, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import MistralConfig

from shared.engine import Engine, SamplingParams
from shared.errors import InvalidRequest, Overloaded
from tests.support.engine import FANCY, GREEDY, make_engine, save_random_model

SAMPLED = SamplingParams(max_tokens=200, ignore_eos=True, seed=3)
PROMPT = [(7 * number + 3) % 97 for number in range(20)]


def draw_all(engine: Engine) -> dict[str, list[int]]:
    """What is drawn until nothing is left to do."""
    drawn: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            drawn.setdefault(output.key, []).extend(output.token_ids)
        engine.check()
    return drawn


def held(engine: Engine, params: SamplingParams = SAMPLED, stop_after: int = 14) -> list[int]:
    """Sequence "a", held after as many draws; returns its tokens."""
    engine.admit("a", PROMPT, len(PROMPT), params, stop_after=stop_after)
    draw_all(engine)
    return engine.tokens_since("a", 0)


def anew(engine: Engine, tokens: list[int], params: SamplingParams, count: int) -> list[int]:
    engine.admit("anew", tokens, len(PROMPT), params, stop_after=count)
    drawn = draw_all(engine)["anew"]
    engine.release("anew")
    return drawn


@pytest.mark.parametrize("params", [SAMPLED, GREEDY, replace(FANCY, max_tokens=200, min_tokens=60)])
def test_branches_draw_what_sequences_of_their_own_draw(model_dir: Path, params: SamplingParams) -> None:
    engine, other = make_engine(model_dir), make_engine(model_dir)
    tokens = held(engine, params)
    places = [20, 22, 31, 32, 33]  # of 34 tokens; the last has no KV
    for base in places:
        engine.branch("a", f"b{base}", base, (50 + base % 7,), stop_after=5)
        engine.check()
    assert engine.revise("a", len(tokens), (), stop_after=6)  # the source goes on beside them
    drawn = draw_all(engine)
    for base in places:
        assert drawn[f"b{base}"] == anew(other, [*tokens[:base], 50 + base % 7], params, 5)
    assert drawn["a"] == anew(other, tokens, params, 6)
    for key in list(engine.held()):
        engine.release(key)
    engine.check()
    assert engine.blocks.num_held == 0


def test_a_branch_off_a_sequence_that_draws_and_off_another_branch(model_dir: Path) -> None:
    engine, other = make_engine(model_dir), make_engine(model_dir)
    engine.admit("a", PROMPT, len(PROMPT), SAMPLED, stop_after=8)
    for _ in range(3):
        engine.step()
    tokens = engine.tokens_since("a", 0)
    engine.branch("a", "b", len(tokens) - 1, (9,), stop_after=4)
    drawn = draw_all(engine)
    assert drawn["b"] == anew(other, [*tokens[:-1], 9], SAMPLED, 4)
    assert [*tokens, *drawn["a"]] == [*PROMPT, *anew(other, PROMPT, SAMPLED, 8)]
    of_b = engine.tokens_since("b", 0)
    engine.branch("b", "c", len(of_b) - 2, (8,), stop_after=3)
    assert draw_all(engine)["c"] == anew(other, [*of_b[:-2], 8], SAMPLED, 3)


def test_a_branch_shares_full_blocks_and_computes_its_own_tokens_alone(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    held(engine)
    before = engine.blocks.num_held
    engine.branch("a", "b", 33, (9,), stop_after=4)
    assert engine.blocks.num_held == before + 1
    result = engine.step()
    assert (result.num_decode, result.num_prefill_tokens) == (1, 0)


def test_branches_of_a_sequence_with_windows(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, MistralConfig, sliding_window=24)
    engine, other = make_engine(folder), make_engine(folder)
    tokens = held(engine, stop_after=60)
    for base in (40, 78):
        engine.branch("a", "b", base, (9,), stop_after=20)
        assert draw_all(engine)["b"] == anew(other, [*tokens[:base], 9], SAMPLED, 20)
        engine.release("b")


def test_what_has_no_room_changes_nothing(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=4)
    held(engine)
    with pytest.raises(Overloaded):
        engine.branch("a", "b", 33, (9,), stop_after=20)
    engine.check()
    assert set(engine.held()) == {"a"}


@pytest.mark.parametrize(
    ("key", "base", "token_ids", "stop_after", "why"),
    [
        ("nobody", 30, (9,), 2, "not held here"),
        ("runs", 21, (9,), 2, "not held here"),
        ("a", 34, (9,), 2, "33 computed tokens"),
        ("a", 19, (9,), 2, "behind the prompt"),
        ("a", 30, (), 2, "a token of its own"),
        ("a", 30, (9,), 0, "one to draw"),
        ("a", 30, (1 << 20,), 2, "token ids must be"),
    ],
)
def test_what_is_no_branch_is_refused(
    model_dir: Path, key: str, base: int, token_ids: tuple[int, ...], stop_after: int, why: str
) -> None:
    engine = make_engine(model_dir)
    held(engine)
    engine.admit("runs", PROMPT, len(PROMPT), SAMPLED)
    engine.step()
    with pytest.raises(InvalidRequest, match=why):
        engine.branch(key, "b", base, token_ids, stop_after=stop_after)
    engine.check()


def test_a_sequence_that_is_held_early_goes_on_as_if_it_had_not_been(model_dir: Path) -> None:
    engine, other = make_engine(model_dir), make_engine(model_dir)
    engine.admit("a", PROMPT, len(PROMPT), SAMPLED, stop_after=8)
    assert not engine.hold("a")  # its prompt is to be computed
    engine.step()
    assert engine.hold("a")
    assert engine.hold("a")
    assert not engine.has_work
    assert not engine.hold("nobody")
    tokens = engine.tokens_since("a", 0)
    assert engine.revise("a", len(tokens), (), stop_after=5)
    assert draw_all(engine)["a"] == anew(other, tokens, SAMPLED, 5)


def test_draws_tell_their_likeliest_outcomes_where_that_is_wanted(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    for key in "ab":
        engine.admit(key, PROMPT, len(PROMPT), SAMPLED, stop_after=3)
    engine.rank_draws("a", 4)
    engine.rank_draws("nobody", 4)
    while engine.has_work:
        for output in engine.step().outputs:
            ranked = [[each.token_id for each in candidates] for candidates in output.candidates]
            assert [ids[0] for ids in ranked] == (list(output.token_ids) if output.key == "a" else [])
            assert [len(set(ids)) for ids in ranked] == [4] * len(ranked)
