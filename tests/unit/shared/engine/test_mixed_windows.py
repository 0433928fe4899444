"""Models of which some layers have a window: blocks behind it are given back in their groups alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma2Config, Gemma3TextConfig, GptOssConfig, PreTrainedConfig

from shared.blocks.block_hash import BlockHasher
from shared.blocks.layer_groups import KvGroups
from shared.blocks.window import KvWindow
from shared.engine import Engine, SamplingParams
from shared.engine.block_table import NO_BLOCK
from shared.fairness.share import TenantShare
from tests.support.block_hashes import hashes_of
from tests.support.engine import (
    BACKENDS,
    FANCY,
    GREEDY,
    admit,
    drive,
    generate,
    make_engine,
    oracle,
    oracle_greedy,
    save_random_model,
    undisturbed,
)
from tests.support.engine_runs import call_in_any_order, drive_counted, drive_in_turn, prompt_of
from tests.support.poison import run_poisoned

VOCAB = 97
WINDOW = KvWindow(24)
STEP_ROWS = 32
LONG = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True, logprobs=2)
FIRST = replace(LONG, max_tokens=1)
ALONE: dict[str, Any] = {"kv_blocks": 80, "max_batch_tokens": STEP_ROWS}
"""The engine of a sequence that is not disturbed."""
GEMMA: dict[str, Any] = {"head_dim": 10, "query_pre_attn_scalar": 24, "sliding_window": WINDOW.tokens}
SHAPES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any], KvGroups]] = {
    "gemma2": (Gemma2Config, {**GEMMA, "num_hidden_layers": 4}, KvGroups(1, 1, WINDOW.tokens)),
    "gemma3": (
        Gemma3TextConfig,
        {**GEMMA, "num_hidden_layers": 7, "sliding_window_pattern": 3},
        KvGroups(1, 3, WINDOW.tokens),
    ),
    "gpt-oss": (
        GptOssConfig,
        {
            "head_dim": 10,
            "sliding_window": WINDOW.tokens,
            "num_hidden_layers": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        },
        KvGroups(1, 1, WINDOW.tokens),
    ),
}


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def groups(shape: str) -> KvGroups:
    return SHAPES[shape][2]


@pytest.fixture(scope="module")
def folder(shape: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config_class, fields, _ = SHAPES[shape]
    return save_random_model(
        tmp_path_factory.mktemp(shape), config_class, max_position_embeddings=1024, **fields
    )


def engine_of(folder: Path, *, kv_blocks: int = 80, **fields: Any) -> Engine:
    """`kv_blocks` of each group, so much memory as they take; any block may be of any group."""
    return make_engine(folder, **{**ALONE, "kv_blocks": kv_blocks, **fields})


def room_for(groups: KvGroups, num_tokens: int) -> int:
    """`kv_blocks` of a pool that holds one such sequence, even with promised KV, and hardly more."""
    turning = WINDOW.most_blocks(STEP_ROWS) + WINDOW.most_blocks(0)
    return -(-(groups.full_attention * -(-num_tokens // 16) + groups.windowed * turning) // groups.count)


@pytest.mark.thorough(but="gpt-oss-native | gemma2-native | gemma3-native | gpt-oss-torch")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sequence_that_holds_its_windows_alone_draws_what_transformers_does(
    folder: Path, groups: KvGroups, backend: str
) -> None:
    prompt, count = prompt_of(250), 150
    engine = engine_of(folder, kv_blocks=room_for(groups, 400), backend=backend, prefix_cache=False)
    assert engine.layout.groups.counts == groups
    admit(engine, "s", prompt, SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True))
    drawn = [token for output in run_poisoned(engine, ["s"])["s"] for token in output.token_ids]
    assert drawn == oracle_greedy(oracle(folder), prompt, count, drawn)


@pytest.mark.thorough(but="gemma3-int8-params1 | gemma2-auto-params1 | gpt-oss-int8-params0")
@pytest.mark.parametrize("params", [LONG, FANCY])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_a_pool_that_holds_the_windows_alone_gives_the_same_bits(
    folder: Path, groups: KvGroups, params: SamplingParams, kv_dtype: str
) -> None:
    many = {str(length): prompt_of(length, length) for length in (5, 90, 230)}
    answers = []
    for blocks in (100, sum(room_for(groups, length + 120) for length in (5, 90, 230))):
        engine = engine_of(folder, kv_blocks=blocks, kv_dtype=kv_dtype, prefix_cache=False)
        for key, prompt in many.items():
            admit(engine, key, prompt, params)
        answers.append(run_poisoned(engine, list(many)))
    whole, small = ([token for outputs in each.values() for token in outputs] for each in answers)
    assert [(output.token_ids, output.logprobs) for output in whole] == [
        (output.token_ids, output.logprobs) for output in small
    ]


def test_a_sequence_holds_all_blocks_of_the_layers_that_see_everything_and_the_window_of_the_others(
    folder: Path, groups: KvGroups
) -> None:
    engine = engine_of(folder)
    admit(engine, "s", prompt_of(300), LONG)
    while engine.has_work:
        engine.step()
        for sequence in engine._scheduler.sequences.values():
            assert sequence.num_held <= groups.most_blocks(len(sequence.tokens) + 1, STEP_ROWS)
            if not sequence.prefilling:
                assert sequence.num_held <= groups.most_blocks(len(sequence.tokens) + 1, 1)
    assert engine.blocks.num_held == 0


def test_the_longest_sequence_is_what_the_pool_holds_of_both_kinds(folder: Path, groups: KvGroups) -> None:
    blocks = 60
    engine = engine_of(folder, kv_blocks=blocks)
    turning = groups.windowed * (WINDOW.most_blocks(STEP_ROWS) + WINDOW.most_blocks(0))
    assert engine.max_model_len == min(1024, 16 * (blocks * groups.count - turning))
    assert engine.max_model_len > 16 * blocks


def test_the_longest_promised_prompt_comes_to_its_end_in_a_pool_of_its_own(folder: Path) -> None:
    engine = engine_of(folder, kv_blocks=28)
    prompt = prompt_of(engine.max_model_len - 1)
    assert len(prompt) > 28 * 16
    engine.admit("s", prompt, len(prompt), LONG, stop_after=1, on_layer=lambda *_: None)
    drawn = drive(engine, {"s": list(prompt)})["s"]
    assert drawn == undisturbed(folder, prompt, FIRST, **ALONE)


def test_a_prefix_is_found_where_its_windows_end_is_there_though_blocks_before_are_gone(
    folder: Path, groups: KvGroups
) -> None:
    prompt = prompt_of(300)
    expected = undisturbed(folder, prompt, **ALONE, prefix_cache=False)
    engine = engine_of(folder, kv_blocks=room_for(groups, 400))
    assert generate(engine, prompt) == expected
    names = BlockHasher().block_hashes(prompt, BlockHasher().seed(engine.layout.fingerprint()))
    group = groups.full_attention
    assert engine.blocks.find(names[0], group) is None
    assert engine.blocks.find(names[0], 0) is not None
    admitted = engine.admit("again", prompt, len(prompt), GREEDY)
    assert admitted.cached_tokens == 288
    assert drive(engine, {"again": list(prompt)})["again"] == expected


@pytest.mark.parametrize("kind", ["whole", "windowed"])
def test_a_prefix_that_one_kind_of_layers_has_lost_is_computed_again(
    folder: Path, groups: KvGroups, kind: str
) -> None:
    """As far as both have it, a sequence goes on behind it."""
    prompt = prompt_of(300)
    engine = engine_of(folder)
    expected = generate(engine, prompt)
    names = BlockHasher().block_hashes(prompt, BlockHasher().seed(engine.layout.fingerprint()))
    group = 0 if kind == "whole" else groups.count - 1
    lost = engine.blocks.find(names[16], group)
    assert lost is not None
    engine.blocks._cached._holdings[""].resting.move_to_end(lost, last=False)  # the next to be evicted
    taken = []
    while engine.blocks.find(names[16], group) is not None:
        taken += engine.blocks.allocate(1)
    engine.blocks.free(taken)
    admitted = engine.admit("again", prompt, len(prompt), GREEDY)
    assert admitted.cached_tokens == 16 * 16
    assert drive(engine, {"again": list(prompt)})["again"] == expected


@pytest.mark.thorough(but="gemma3-0 | gemma2-1 | gpt-oss-0")
@pytest.mark.parametrize("offload", [0, 1])
def test_preempted_sequences_draw_what_undisturbed_ones_draw(
    folder: Path, groups: KvGroups, offload: int
) -> None:
    many = {str(length): prompt_of(length, length) for length in (40, 100, 180)}
    expected = {key: undisturbed(folder, prompt, LONG, **ALONE) for key, prompt in many.items()}
    blocks = room_for(groups, 300) + 4
    engine = engine_of(folder, kv_blocks=blocks, offload_memory_mb=offload, max_sequences=4)
    drawn, preempted = drive_in_turn(engine, many, LONG)
    assert preempted
    assert drawn == expected
    if offload:
        assert engine.offload_stats is not None
        assert engine.offload_stats.restored
    engine.close()


def test_a_fork_shares_every_table(folder: Path) -> None:
    prompt = prompt_of(150)
    other = SamplingParams(temperature=1.0, seed=5, max_tokens=60, ignore_eos=True)
    expected = undisturbed(folder, prompt, other, **ALONE)
    engine = engine_of(folder)
    admit(engine, "s", prompt, LONG)
    known = {"s": list(prompt)}
    while len(known["s"]) == len(prompt):
        for output in engine.step().outputs:
            known["s"] += output.token_ids
    engine.fork("s", "fork", other)
    assert engine.held()["fork"] == engine.held()["s"]
    known["fork"] = list(prompt)
    assert drive(engine, known)["fork"] == expected


@pytest.mark.thorough(but="gemma3-1-False | gemma2-100-True | gpt-oss-100-False")
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("back", [1, 100])
def test_a_held_sequence_goes_back_past_what_its_windows_have_left(
    folder: Path, back: int, prefix_cache: bool
) -> None:
    prompt = prompt_of(100)
    engine = engine_of(folder, prefix_cache=prefix_cache, kv_blocks=40)
    engine.admit("s", prompt, len(prompt), LONG, stop_after=110)
    known = [*prompt, *drive(engine, {"s": list(prompt)})["s"]]
    base = len(known) - back
    other = [(known[base] + 1) % VOCAB]
    assert engine.revise("s", base, other, stop_after=9)
    engine.check()
    drawn = drive(engine, {"s": [*known[:base], *other]})["s"]
    alone = engine_of(folder)
    alone.admit("s", [*known[:base], *other], len(prompt), LONG)
    assert drawn == drive(alone, {"s": [*known[:base], *other]})["s"][:9]


@pytest.mark.thorough(
    but="gpt-oss-10-True | gpt-oss-80-True | gemma3-81-False | gemma2-300-False | gemma2-80-True"
)
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("length", [10, 80, 81, 300])
def test_a_sequence_moves_to_another_engine_without_what_is_behind_its_windows(
    folder: Path, groups: KvGroups, length: int, prefix_cache: bool
) -> None:
    prompt = prompt_of(length)
    expected = undisturbed(folder, prompt, LONG, **ALONE)
    source, target = (engine_of(folder, prefix_cache=prefix_cache) for _ in range(2))
    names = hashes_of(prompt)
    reserved = target.reserve("s", length, names)
    admitted = source.admit("s", prompt, length, LONG, names, stop_after=1, on_layer=lambda *_: None)
    first = WINDOW.first_block(length)
    firsts = (0,) * groups.full_attention + (first,) * groups.windowed
    assert reserved.first_blocks == admitted.first_blocks == firsts
    assert reserved.tables[-1][:first] == (NO_BLOCK,) * first
    known = {"s": list(prompt)}
    drive(source, known)
    moved = 0
    for layer, group in enumerate(source.layout.groups.group_of):
        for block in range(firsts[group], -(-length // 16)):
            theirs = source.kv_pool.block_view(layer, admitted.tables[group][block])
            target.kv_pool.block_view(layer, reserved.tables[group][block])[:] = theirs
            moved += 1
    assert source.held()["s"] == target.held()["s"]
    target.attach("s", known["s"], length, LONG)
    drive(target, known)
    assert known["s"][length:] == expected
    assert source.release("s")
    assert source.blocks.num_held == target.blocks.num_held == 0


def test_a_sequence_that_runs_while_its_kv_is_lent_leaves_what_is_behind_its_windows(folder: Path) -> None:
    length = 150
    prompt = prompt_of(length)
    expected = undisturbed(folder, prompt, LONG, **ALONE)
    source, target = engine_of(folder), engine_of(folder)
    known = {"s": list(prompt)}
    source.admit("s", prompt, length, LONG, hashes_of(prompt))
    while len(known["s"]) < length + 2:
        known["s"] += (token for output in source.step().outputs for token in output.token_ids)
    base = len(known["s"])
    source.lend("s", "lent")
    names = hashes_of(known["s"])[: (base - 1) // 16]
    reserved = target.reserve("s", base - 1, names, spare_tokens=64)
    while len(known["s"]) < base + 7:
        known["s"] += (token for output in source.step().outputs for token in output.token_ids)
    halted = source.halt("s", "lent", base)
    for layer, group in enumerate(source.layout.groups.group_of):
        for block in range(reserved.first_blocks[group], halted.end_block):
            theirs = source.kv_pool.block_view(layer, halted.tables[group][block])
            target.kv_pool.block_view(layer, reserved.tables[group][block])[:] = theirs
    target.attach("s", known["s"], length, LONG)
    assert source.release("s")
    assert source.release("lent")
    assert known["s"][length:] + drive(target, {"s": list(known["s"])})["s"] == expected
    assert source.blocks.num_held == target.blocks.num_held == 0


def test_a_cold_prefix_of_promised_prompts_is_computed_once(folder: Path) -> None:
    shared = prompt_of(240)
    many = {str(number): [*shared, *prompt_of(80 - 30 * number, number)] for number in range(2)}
    expected = {key: undisturbed(folder, prompt, FIRST, **ALONE) for key, prompt in many.items()}
    engine = engine_of(folder)
    for key, prompt in many.items():
        engine.admit(key, prompt, len(prompt), LONG, stop_after=1, on_layer=lambda *_: None)
    drawn, computed = drive_counted(engine)
    assert drawn == expected
    assert computed == 240 + 80 + 50


@pytest.mark.thorough(but="gemma3")
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_any_order_of_calls_leaves_every_block_of_both_kinds_explained(
    folder: Path, data: st.DataObject
) -> None:
    engine = engine_of(
        folder,
        kv_blocks=data.draw(st.sampled_from([24, 34])),
        max_sequences=5,
        prefix_cache=data.draw(st.booleans()),
        offload_memory_mb=data.draw(st.integers(0, 1)),
    )
    call_in_any_order(engine, data, LONG, 40)
    engine.close()


def test_a_prefix_goes_to_another_engine_without_what_is_behind_its_windows(folder: Path) -> None:
    prompt = prompt_of(163)
    names, share = hashes_of(prompt), TenantShare("", 1)
    source, target = engine_of(folder), engine_of(folder)
    source.admit("s", prompt, len(prompt), GREEDY, names, stop_after=1)
    while source.has_work:
        source.step()
    source.release("s")
    loan = source.lend_prefix("loan", names, share)
    reserved = target.reserve("fetched", len(names) * 16, names)
    assert reserved.first_blocks == loan.first_blocks
    for layer, group in enumerate(source.layout.groups.group_of):
        for block in range(loan.first_blocks[group], loan.end_block):
            theirs = source.kv_pool.block_view(layer, loan.tables[group][block])
            target.kv_pool.block_view(layer, reserved.tables[group][block])[:] = theirs
    target.take_prefix("fetched")
    assert target.admit("t", prompt, len(prompt), GREEDY, names).cached_tokens == len(names) * 16
    assert drive(target, {"t": list(prompt)})["t"] == undisturbed(folder, prompt, **ALONE)
    for engine in (source, target):
        engine.check()
