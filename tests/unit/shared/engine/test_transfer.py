from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine import Engine, SamplingParams
from shared.errors import InvalidRequest, Overloaded
from tests.support.block_hashes import hashes_of, numbered_hashes
from tests.support.engine import (
    FANCY,
    GREEDY,
    admit,
    drive,
    generate,
    make_engine,
    prompts,
    undisturbed,
)

VOCAB = 97


def prefill(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[tuple[int, ...], list[int]]:
    """Blocks and tokens of a held prefill of one drawn token."""
    blocks = engine.admit("p", prompt, len(prompt), params, hashes_of(prompt), stop_after=1).tables[0]
    known = {"p": list(prompt)}
    drive(engine, known)
    return blocks, known["p"]


def copy_kv(
    source: Engine, source_blocks: tuple[int, ...], target: Engine, target_blocks: tuple[int, ...]
) -> None:
    for layer in range(source.layout.num_layers):
        for mine, theirs in zip(source_blocks, target_blocks, strict=True):
            target.kv_pool.block_view(layer, theirs)[:] = source.kv_pool.block_view(layer, mine)


@pytest.mark.thorough(but="15-params1 | 16-params2 | 17-params0 | 63-params1")
@pytest.mark.parametrize("params", [GREEDY, FANCY, SamplingParams(max_tokens=40, ignore_eos=True, seed=1)])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 63])
def test_a_sequence_moved_to_another_engine_goes_on_undisturbed(
    model_dir: Path, params: SamplingParams, length: int
) -> None:
    prompt = (prompts(1, VOCAB)[0] * 63)[:length]
    alone = undisturbed(model_dir, prompt, params)
    source, target = make_engine(model_dir), make_engine(model_dir)
    blocks, tokens = prefill(source, prompt, params)
    reservation = target.reserve("d", length, hashes_of(prompt))
    assert reservation.num_cached_blocks == 0
    assert not target.has_work
    copy_kv(source, blocks, target, reservation.tables[0])
    assert source.release("p")
    assert source.held() == {}
    target.attach("d", tokens, length, params)
    assert tokens[length:] + drive(target, {"d": list(tokens)})["d"] == alone
    assert target.held() == {}


@pytest.mark.parametrize("length", [1, 16, 40])
def test_int8_blocks_moved_to_another_engine_give_the_same_tokens(model_dir: Path, length: int) -> None:
    prompt = list(range(length))
    alone = undisturbed(model_dir, prompt, kv_dtype="int8")
    source, target = make_engine(model_dir, kv_dtype="int8"), make_engine(model_dir, kv_dtype="int8")
    blocks, tokens = prefill(source, prompt, GREEDY)
    reservation = target.reserve("d", length, hashes_of(prompt))
    copy_kv(source, blocks, target, reservation.tables[0])
    target.attach("d", tokens, length, GREEDY)
    assert tokens[length:] + drive(target, {"d": list(tokens)})["d"] == alone


def test_engines_with_another_kv_dtype_have_another_fingerprint(model_dir: Path) -> None:
    plain, coded = make_engine(model_dir), make_engine(model_dir, kv_dtype="int8")
    assert plain.layout.fingerprint() != coded.layout.fingerprint()
    assert coded.layout.block_bytes < plain.layout.block_bytes


def test_blocks_that_arrived_enter_the_prefix_cache_when_attached(model_dir: Path) -> None:
    prompt = list(range(40))
    source, target = make_engine(model_dir), make_engine(model_dir)
    blocks, tokens = prefill(source, prompt, GREEDY)
    hashes = hashes_of(prompt)
    first = target.reserve("a", 40, hashes)
    assert target.reserve("early", 40, hashes).num_cached_blocks == 0  # not filled yet
    copy_kv(source, blocks, target, first.tables[0])
    target.attach("a", tokens, 40, GREEDY)
    second = target.reserve("b", 40, hashes)
    assert second.num_cached_blocks == 2
    assert second.tables[0][:2] == first.tables[0][:2]
    copy_kv(source, blocks[2:], target, second.tables[0][2:])
    target.attach("b", tokens, 40, GREEDY)
    target.release("early")
    drawn = drive(target, {"a": list(tokens), "b": list(tokens)})
    assert drawn["a"] == drawn["b"] == undisturbed(model_dir, prompt)[1:]


def test_a_held_prefill_keeps_its_blocks_until_released(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    prefill(engine, list(range(20)), GREEDY)
    assert engine.held() == {"p": 2}
    assert not engine.has_work
    assert engine.release("p")
    assert engine.blocks.num_held == 0


def test_a_prefill_that_ends_at_its_first_token_says_so_and_is_held(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    engine.admit("p", [1, 2], 2, replace(GREEDY, max_tokens=1), stop_after=1)
    (output,) = engine.step().outputs
    assert output.finish_reason == "length"
    assert engine.held() == {"p": 1}


def test_stop_after_counts_new_tokens_on_recovery(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    whole = generate(engine, [1, 2])
    known = {"p": [1, 2, *whole[:5]]}
    engine.admit("p", list(known["p"]), 2, GREEDY, stop_after=2)
    assert drive(engine, known)["p"] == whole[5:7]


@pytest.mark.parametrize("chunk", [5, 16, 512])
def test_layers_are_announced_in_order_when_their_kv_is_written(model_dir: Path, chunk: int) -> None:
    engine = make_engine(model_dir, max_batch_tokens=chunk, max_sequences=2)
    reference = make_engine(model_dir)
    prompt = list(range(40))
    blocks, _ = prefill(reference, prompt, GREEDY)
    calls: list[tuple[int, int, int]] = []
    seen: dict[tuple[int, int], bytes] = {}

    def on_layer(layer: int, start: int, end: int) -> None:
        calls.append((layer, start, end))
        for index in range(start // 16, end // 16):
            seen[layer, index] = bytes(engine.kv_pool.block_view(layer, result.tables[0][index]))

    result = engine.admit("p", prompt, 40, GREEDY, stop_after=1, on_layer=on_layer)
    drive(engine, {"p": list(prompt)})
    starts = list(range(0, 40, chunk))
    assert calls == [(layer, at, min(at + chunk, 40)) for at in starts for layer in range(3)]
    for (layer, index), data in seen.items():
        final = bytes(engine.kv_pool.block_view(layer, result.tables[0][index]))
        assert data == final  # nothing is written to a full block after it was announced
    for part in ("keys", "values"):
        ours = getattr(engine.kv_pool, part)[:, list(result.tables[0])]
        theirs = getattr(reference.kv_pool, part)[:, list(blocks)]
        assert (ours[:, :2] - theirs[:, :2]).abs().max() < 1e-4


def test_a_cached_prefix_is_not_announced_again(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    prompt = list(range(40))
    generate(engine, prompt)
    calls: list[tuple[int, int, int]] = []
    result = engine.admit(
        "p",
        prompt,
        40,
        GREEDY,
        stop_after=1,
        on_layer=lambda layer, start, end: calls.append((layer, start, end)),
    )
    drive(engine, {"p": list(prompt)})
    assert result.cached_tokens == 32
    assert calls == [(layer, 32, 40) for layer in range(3)]


def test_the_callers_memory_holds_the_kv(model_dir: Path) -> None:
    buffers: list[bytearray] = []

    def allocate(nbytes: int) -> memoryview:
        buffers.append(bytearray(nbytes))
        return memoryview(buffers[0])

    from shared.engine import EngineConfig  # noqa: PLC0415  (used by this test alone)

    engine = Engine(EngineConfig(str(model_dir), kv_blocks=8), allocate)
    (block,) = engine.admit("p", [1, 2, 3], 3, GREEDY, stop_after=1).tables[0]
    engine.step()
    size = engine.layout.layer_block_bytes
    assert len(buffers[0]) == 8 * engine.layout.block_bytes
    assert any(buffers[0][block * size : (block + 1) * size])


def test_attaching_without_a_reservation_is_refused(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    with pytest.raises(InvalidRequest, match="no KV is reserved"):
        engine.attach("d", [1, 2], 1, GREEDY)
    admit(engine, "a", [1, 2])
    with pytest.raises(InvalidRequest, match="no KV is reserved"):
        engine.attach("a", [1, 2], 1, GREEDY)


@pytest.mark.parametrize("tokens", [[1], [1] * 34, [1] * 300])
def test_attaching_another_length_is_refused_and_the_reservation_stays(
    model_dir: Path, tokens: list[int]
) -> None:
    engine = make_engine(model_dir)
    engine.reserve("d", 20, [])
    with pytest.raises(InvalidRequest):
        engine.attach("d", tokens, 1, GREEDY)
    assert engine.held() == {"d": 2}
    engine.check()


def test_reservations_that_cannot_be_are_refused(model_dir: Path) -> None:
    engine = make_engine(model_dir, kv_blocks=4)
    with pytest.raises(InvalidRequest, match="cannot reserve 0"):
        engine.reserve("d", 0, [])
    with pytest.raises(InvalidRequest, match="cannot reserve 64"):
        engine.reserve("d", 64, [])
    with pytest.raises(InvalidRequest, match="too many"):
        engine.reserve("d", 17, numbered_hashes([1, 2]))
    engine.reserve("d", 50, [])
    with pytest.raises(Overloaded):
        engine.reserve("e", 5, [])
    assert engine.held() == {"d": 4}


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_order_of_calls_leaves_every_block_explained(model_dir: Path, data: st.DataObject) -> None:
    engine = make_engine(model_dir, kv_blocks=10, max_sequences=5, max_batch_tokens=20)
    keys = st.sampled_from("abcdef")
    for _ in range(40):
        key, length = data.draw(keys), data.draw(st.integers(1, 60))
        prompt = [length % 3] * length
        call = data.draw(
            st.sampled_from(["admit", "hold", "reserve", "attach", "step", "step", "propose", "release"])
        )
        try:
            if call == "admit":
                admit(engine, key, prompt)
            elif call == "hold":
                engine.admit(key, prompt, length, GREEDY, stop_after=2)
            elif call == "reserve":
                engine.reserve(key, length, hashes_of(prompt))
            elif call == "attach":
                engine.attach(key, [*prompt, 1], length, GREEDY)
            elif call == "propose":
                engine.propose(key, length, [1, 2])
            elif call == "release":
                engine.release(key)
            else:
                engine.step()
        except (InvalidRequest, Overloaded):
            pass  # refused calls must leave everything explained, too
        engine.check()
    for key in list(engine.held()):
        engine.release(key)
    engine.check()
    assert engine.blocks.num_held == 0
