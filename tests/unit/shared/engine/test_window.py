"""A model whose layers all have windows: blocks behind them are given back, and nothing of it shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MistralConfig

from shared.blocks.block_hash import BlockHasher
from shared.blocks.window import NO_WINDOW, KvWindow
from shared.engine import Engine, SamplingParams
from shared.engine.block_table import NO_BLOCK
from shared.errors import InvalidRequest, Overloaded
from tests.support.block_hashes import hashes_of
from tests.support.engine import (
    BACKENDS,
    FANCY,
    GREEDY,
    Drafter,
    admit,
    drive,
    generate,
    make_engine,
    oracle,
    oracle_greedy,
    prompts,
    save_random_model,
    undisturbed,
)
from tests.support.engine_runs import call_in_any_order, drive_counted, drive_in_turn, prompt_of
from tests.support.poison import run_poisoned

VOCAB = 97
WINDOW = KvWindow(24)
LONG = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True, logprobs=2)
STEP_ROWS = 32
FIRST = replace(LONG, max_tokens=1)
ALONE: dict[str, Any] = {"kv_blocks": 160, "max_batch_tokens": STEP_ROWS}
"""The engine of a sequence that is not disturbed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(
        tmp_path_factory.mktemp("windowed"),
        MistralConfig,
        sliding_window=WINDOW.tokens,
        max_position_embeddings=2048,
    )


def windowed_engine(folder: Path, *, kv_blocks: int = 160, **fields: Any) -> Engine:
    return make_engine(folder, **{**ALONE, "kv_blocks": kv_blocks, **fields})


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sequence_outgrows_the_pool_and_draws_what_transformers_does(folder: Path, backend: str) -> None:
    prompt, count = prompt_of(300), 150
    engine = windowed_engine(folder, kv_blocks=16, backend=backend, prefix_cache=False)
    assert engine.max_model_len == 2048
    admit(engine, "s", prompt, SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True))
    drawn = [token for output in run_poisoned(engine, ["s"])["s"] for token in output.token_ids]
    assert drawn == oracle_greedy(oracle(folder), prompt, count, drawn)


@pytest.mark.thorough(but="int8-params1 | auto-params1")
@pytest.mark.parametrize("params", [LONG, FANCY])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_a_pool_that_holds_the_window_alone_gives_the_same_bits(
    folder: Path, params: SamplingParams, kv_dtype: str
) -> None:
    many = {str(length): prompt_of(length, length) for length in (5, 90, 200, 330)}
    answers = []
    for blocks in (4 * 40, 4 * WINDOW.most_blocks(STEP_ROWS)):
        engine = windowed_engine(folder, kv_blocks=blocks, kv_dtype=kv_dtype, prefix_cache=False)
        for key, prompt in many.items():
            admit(engine, key, prompt, params)
        answers.append(run_poisoned(engine, list(many)))
    whole, small = ([token for outputs in each.values() for token in outputs] for each in answers)
    assert [(output.token_ids, output.logprobs) for output in whole] == [
        (output.token_ids, output.logprobs) for output in small
    ]


def test_a_sequence_never_holds_more_than_its_window_and_a_step(folder: Path) -> None:
    engine = windowed_engine(folder)
    admit(engine, "s", prompt_of(400), LONG)
    held = [engine.held()["s"]]
    while engine.has_work:
        engine.step()
        held += engine.held().values()
    assert max(held) <= WINDOW.most_blocks(STEP_ROWS)
    assert max(held[-100:]) <= WINDOW.most_blocks(1)
    assert engine.blocks.num_held == 0


def test_a_prefix_is_found_again_after_its_first_blocks_are_gone(folder: Path) -> None:
    prompt = prompt_of(300)
    expected = undisturbed(folder, prompt, **ALONE, prefix_cache=False)
    engine = windowed_engine(folder, kv_blocks=18)
    assert generate(engine, prompt) == expected
    names = engine.blocks.cached_hashes()
    chain = BlockHasher().block_hashes(prompt, BlockHasher().seed(engine.layout.fingerprint()))
    assert chain[0] not in names
    admitted = engine.admit("again", prompt, len(prompt), GREEDY)
    assert admitted.cached_tokens == 288
    assert drive(engine, {"again": list(prompt)})["again"] == expected


def test_a_prefix_without_the_window_at_its_end_is_computed_again(folder: Path) -> None:
    prompt = prompt_of(300)
    engine = windowed_engine(folder, kv_blocks=24)
    expected = generate(engine, prompt)
    generate(engine, prompt_of(300, 2))
    generate(engine, prompt_of(300, 3))
    admitted = engine.admit("again", prompt, len(prompt), GREEDY)
    assert admitted.cached_tokens == 0
    assert drive(engine, {"again": list(prompt)})["again"] == expected


@pytest.mark.thorough(but="1")
@pytest.mark.parametrize("offload", [0, 1])
def test_preempted_sequences_with_windows_draw_what_undisturbed_ones_draw(folder: Path, offload: int) -> None:
    many = {str(length): prompt_of(length, length) for length in (40, 100, 180, 250)}
    expected = {key: undisturbed(folder, prompt, LONG, **ALONE) for key, prompt in many.items()}
    engine = windowed_engine(folder, kv_blocks=18, offload_memory_mb=offload, max_sequences=4)
    drawn, preempted = drive_in_turn(engine, many, LONG)
    assert preempted
    assert drawn == expected
    if offload:
        assert engine.offload_stats is not None
        assert engine.offload_stats.restored
    engine.close()


def test_drafts_change_nothing_where_the_window_passes_blocks(folder: Path) -> None:
    prompt = prompt_of(130)
    expected = undisturbed(folder, prompt, LONG, **ALONE)
    answer = [*prompt, *expected]

    def drafter(_: str, tokens: list[int]) -> list[int]:
        right = answer[len(tokens) : len(tokens) + 20]
        return [*right[:9], *((token + 1) % VOCAB for token in right[9:])] if len(tokens) % 3 else right

    use: Drafter = drafter
    assert generate(windowed_engine(folder, kv_blocks=16), prompt, LONG, use) == expected


def test_a_fork_needs_the_window_at_the_prompt_s_end(folder: Path) -> None:
    prompt = prompt_of(150)
    other = SamplingParams(temperature=1.0, seed=5, max_tokens=60, ignore_eos=True)
    expected = undisturbed(folder, prompt, other, **ALONE)
    engine = windowed_engine(folder)
    admit(engine, "s", prompt, LONG)
    known = {"s": list(prompt)}
    while len(known["s"]) == len(prompt):
        for output in engine.step().outputs:
            known["s"] += output.token_ids
    engine.fork("s", "fork", other)
    engine.check()
    assert engine.held()["fork"] == engine.held()["s"]
    for _ in range(80):
        for output in engine.step().outputs:
            known.setdefault(output.key, list(prompt)).extend(output.token_ids)
        engine.check()
    with pytest.raises(InvalidRequest, match="behind its window"):
        engine.fork("s", "late", other)
    assert known["fork"][len(prompt) :] == expected


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("back", [1, 70, 130])
def test_a_held_sequence_goes_back_past_what_its_window_has_left(
    folder: Path, back: int, prefix_cache: bool
) -> None:
    prompt = prompt_of(100)
    engine = windowed_engine(folder, prefix_cache=prefix_cache, kv_blocks=40)
    engine.admit("s", prompt, len(prompt), LONG, stop_after=140)
    known = [*prompt, *drive(engine, {"s": list(prompt)})["s"]]
    base = len(known) - back
    other = [(known[base] + 1) % VOCAB]
    assert engine.revise("s", base, other, stop_after=30)
    engine.check()
    drawn = drive(engine, {"s": [*known[:base], *other]})["s"]
    alone = windowed_engine(folder)
    alone.admit("s", [*known[:base], *other], len(prompt), LONG)
    assert drawn == drive(alone, {"s": [*known[:base], *other]})["s"][:30]
    engine.release("s")
    assert engine.blocks.num_held == 0


def test_a_held_sequence_that_finds_no_room_behind_its_window_stays_held(folder: Path) -> None:
    prompt = prompt_of(100)
    engine = windowed_engine(folder, prefix_cache=False, kv_blocks=20)
    engine.admit("s", prompt, len(prompt), LONG, stop_after=140)
    drive(engine, {"s": list(prompt)})
    engine.reserve("t", engine.blocks.num_free * 16, [])  # not above its window: all of them are its own
    while engine.blocks.num_free:
        engine.reserve(f"t{engine.blocks.num_free}", 16, [])
    with pytest.raises(Overloaded):
        engine.revise("s", 150, [1], stop_after=30)
    engine.check()
    for key in list(engine.held()):
        if key != "s":
            engine.release(key)
    assert engine.revise("s", 150, [1], stop_after=30)
    drive(engine, {"s": [0] * 151})


class Move:
    """KV of a prompt that `source` computes for `target`, as transfers copy it: what is promised, and only
    that."""

    def __init__(self, source: Engine, target: Engine, prompt: list[int]) -> None:
        self.source, self.target, self.prompt = source, target, prompt
        self.layers: set[tuple[int, int]] = set()
        names = hashes_of(prompt)
        self.reserved = target.reserve("s", len(prompt), names)
        self.admitted = source.admit(
            "s", prompt, len(prompt), LONG, names, stop_after=1, on_layer=self.on_layer
        )

    def on_layer(self, layer: int, start: int, end: int) -> None:
        self.layers |= {(layer, position) for position in range(start, end)}

    def finish(self) -> list[int]:
        """The tokens, when they have moved."""
        known = {"s": list(self.prompt)}
        drive(self.source, known)
        ends = zip(self.admitted.tables, self.admitted.first_blocks, strict=True)
        assert self.source.held()["s"] == sum(len(blocks) - first for blocks, first in ends)
        for layer, group in enumerate(self.source.layout.groups.group_of):
            theirs, ours = self.admitted.tables[group], self.reserved.tables[group]
            for block in range(self.reserved.first_blocks[group], len(ours)):
                source = self.source.kv_pool.block_view(layer, theirs[block])
                self.target.kv_pool.block_view(layer, ours[block])[:] = source
        self.target.attach("s", known["s"], len(self.prompt), LONG)
        self.target.check()
        return known["s"]


@pytest.mark.thorough(but="81-False | 10-True | 79-False | 300-False | 80-True | 24-True")
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("length", [10, 24, 79, 80, 81, 300, 703])
def test_a_sequence_moves_to_another_engine_with_its_window_alone(
    folder: Path, length: int, prefix_cache: bool
) -> None:
    prompt = prompt_of(length)
    expected = undisturbed(folder, prompt, LONG, **ALONE)
    source, target = (windowed_engine(folder, kv_blocks=18, prefix_cache=prefix_cache) for _ in range(2))
    move = Move(source, target, prompt)
    first = WINDOW.first_block(length)
    assert move.reserved.first_blocks == move.admitted.first_blocks == (first,)
    assert move.reserved.tables[0][:first] == (NO_BLOCK,) * first
    tokens = move.finish()
    drive(target, {"s": tokens})
    assert tokens[length:] == expected
    assert source.release("s")
    assert source.blocks.num_held == target.blocks.num_held == 0


def test_what_the_target_has_of_the_window_is_not_wanted_again(folder: Path) -> None:
    prompt = prompt_of(300)
    source, target = windowed_engine(folder), windowed_engine(folder)
    Move(source, target, prompt).finish()
    source.release("s")
    target.release("s")
    again = Move(source, target, prompt)
    assert (again.reserved.first_blocks, again.reserved.num_cached_blocks) == ((18,), 2)
    assert again.admitted.cached_tokens == 288
    again.finish()


def test_kv_that_is_less_than_was_reserved_is_refused_where_its_window_is_not_there(folder: Path) -> None:
    target = windowed_engine(folder)
    target.reserve("s", 300, [])
    with pytest.raises(InvalidRequest, match="do not fit"):
        target.attach("s", prompt_of(250), 200, LONG)


def test_prompts_of_one_prefix_whose_kv_is_promised_never_run_out_of_blocks(folder: Path) -> None:
    """Each holds from the start what it needs to come to its end, whatever the others hold on to."""
    shared = prompt_of(400)
    many = {str(number): [*shared, *prompt_of(160, number)] for number in range(3)}
    expected = {key: undisturbed(folder, prompt, FIRST, **ALONE) for key, prompt in many.items()}
    engine = windowed_engine(folder, kv_blocks=3 * (WINDOW.most_blocks(STEP_ROWS) + WINDOW.most_blocks(0)))
    for key, prompt in many.items():
        engine.admit(key, prompt, len(prompt), LONG, stop_after=1, on_layer=lambda *_: None)
        while key == "0" and engine._scheduler.sequences["0"].num_computed < 3 * STEP_ROWS:
            engine.step()  # those that come later find what it has, and would hold on to it
    while engine.blocks.num_free:
        engine.reserve(f"free {engine.blocks.num_free}", 16, [])
    known = {key: list(prompt) for key, prompt in many.items()}
    assert drive(engine, known) == expected


def test_a_cached_prefix_never_keeps_a_promised_prompt_out_of_a_pool_that_fits_it(folder: Path) -> None:
    prompt = prompt_of(760)
    expected = undisturbed(folder, prompt, FIRST, **ALONE)
    engine = windowed_engine(folder, kv_blocks=WINDOW.most_blocks(STEP_ROWS) + WINDOW.most_blocks(0))
    for length in (560, 760):
        known = {"s": prompt[:length]}
        engine.admit("s", prompt[:length], length, LONG, stop_after=1, on_layer=lambda *_: None)
        drawn = drive(engine, known)["s"]
        engine.release("s")
    assert drawn == expected


@pytest.mark.parametrize("promised", [True, False])
def test_a_cold_prefix_of_long_prompts_is_computed_once(folder: Path, promised: bool) -> None:
    """The shortest and the first take turns, so that each comes to blocks that the other still holds."""
    shared = prompt_of(480)
    many = {str(number): [*shared, *prompt_of(200 - 60 * number, number)] for number in range(3)}
    expected = {key: undisturbed(folder, prompt, FIRST, **ALONE) for key, prompt in many.items()}
    engine = windowed_engine(folder)
    promise: dict[str, Any] = {"on_layer": lambda *_: None} if promised else {}
    for key, prompt in many.items():
        engine.admit(key, prompt, len(prompt), LONG, stop_after=1, **promise)
    drawn, computed = drive_counted(engine)
    assert drawn == expected
    assert computed == 480 + 200 + 140 + 80


def test_an_abandoned_prompt_leaves_what_it_has_computed_to_the_prefix_cache(folder: Path) -> None:
    prompt = prompt_of(700)
    engine = windowed_engine(folder, kv_blocks=60)
    engine.admit("s", prompt, len(prompt), LONG, stop_after=1, on_layer=lambda *_: None)
    for _ in range(5):
        engine.step()
    engine.release("s")
    engine.check()
    assert engine.admit("again", prompt, len(prompt), LONG).cached_tokens == 5 * STEP_ROWS


def test_a_model_with_a_layer_that_sees_everything_keeps_everything(tmp_path: Path) -> None:
    mixed = save_random_model(tmp_path, MistralConfig, sliding_window=None)
    engine = make_engine(mixed, kv_blocks=8)
    assert engine.layout.groups.windows == (NO_WINDOW,)
    assert engine.max_model_len == 128
    admit(engine, "s", prompts(1, VOCAB)[0] * 3, LONG)
    engine.step()


def test_workers_with_and_without_a_window_do_not_exchange_kv(folder: Path, tmp_path: Path) -> None:
    layout = windowed_engine(folder).layout
    assert layout.groups.windows == (WINDOW,)
    assert replace(layout, layer_windows=()).fingerprint() != layout.fingerprint()


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_order_of_calls_leaves_every_block_of_windows_explained(
    folder: Path, data: st.DataObject
) -> None:
    engine = windowed_engine(
        folder,
        kv_blocks=data.draw(st.sampled_from([18, 26, 40])),
        max_sequences=5,
        prefix_cache=data.draw(st.booleans()),
        offload_memory_mb=data.draw(st.integers(0, 1)),
    )
    call_in_any_order(engine, data, LONG, 60)
    engine.close()


ANSWERS: dict[tuple[int, int], list[int]] = {}


@pytest.mark.thorough
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_whatever_else_is_there_each_draws_what_it_draws_alone(folder: Path, data: st.DataObject) -> None:
    engine = windowed_engine(
        folder,
        kv_blocks=data.draw(st.sampled_from([18, 26])),
        max_sequences=5,
        offload_memory_mb=data.draw(st.integers(0, 1)),
    )
    known: dict[str, list[int]] = {}
    made: dict[str, tuple[int, int]] = {}
    for number in range(12):
        key, length, seed = str(number), data.draw(st.integers(1, 260)), data.draw(st.integers(1, 2))
        prompt = prompt_of(300, seed)[:length]
        try:
            admit(engine, key, prompt, GREEDY)
        except Overloaded:
            pass
        else:
            known[key], made[key] = prompt, (length, seed)
        for _ in range(data.draw(st.integers(0, 20))):
            for output in engine.step().outputs:
                known[output.key] += output.token_ids
            engine.check()
    drive(engine, known)
    for key, (length, seed) in made.items():
        if (length, seed) not in ANSWERS:
            ANSWERS[length, seed] = generate(windowed_engine(folder), prompt_of(300, seed)[:length])
        assert known[key][length:] == ANSWERS[length, seed]
    engine.close()
