"""A sequence leaves one engine, in the middle of its output, and goes on in another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shared.engine import BLOCK_TOKENS, Engine, KvLoan, SamplingParams
from shared.errors import InvalidRequest, Overloaded
from tests.support.block_hashes import hashes_of
from tests.support.engine import FANCY, GREEDY, drive, make_engine, prompts, undisturbed

VOCAB = 97
SPARE = 32
ENDLESS = replace(FANCY, stop_token_ids=(), ignore_eos=True)


def steps(engine: Engine, tokens: list[int], count: int) -> None:
    """Let the one sequence of the engine draw `count` tokens, which follow `tokens`."""
    for _ in range(count):
        for output in engine.step().outputs:
            tokens += output.token_ids


def started(model_dir: Path, length: int, drawn: int, params: SamplingParams) -> tuple[Engine, list[int]]:
    prompt = (prompts(1, VOCAB)[0] * length)[:length]
    engine, tokens = make_engine(model_dir), list(prompt)
    engine.admit("a", prompt, length, params, hashes_of(prompt))
    steps(engine, tokens, drawn)
    return engine, tokens


def copy(source: Engine, loan: KvLoan, target: Engine, tables: Sequence[Sequence[int]]) -> None:
    for layer, group in enumerate(source.layout.groups.group_of):
        for block in range(loan.first_blocks[group], loan.end_block):
            theirs = source.kv_pool.block_view(layer, loan.tables[group][block])
            target.kv_pool.block_view(layer, tables[group][block])[:] = theirs


@pytest.mark.parametrize("params", [GREEDY, ENDLESS], ids=["greedy", "fancy"])
@pytest.mark.parametrize("length", [1, 15, 16, 40])
def test_a_sequence_that_runs_while_its_kv_is_lent_goes_on_elsewhere_undisturbed(
    model_dir: Path, params: SamplingParams, length: int
) -> None:
    source, tokens = started(model_dir, length, 2, params)
    expected = undisturbed(model_dir, tokens[:length], params)
    base = len(tokens)
    target = make_engine(model_dir)
    names = hashes_of(tokens)[: (base - 1) // BLOCK_TOKENS]
    reserved = target.reserve("a", base - 1, names, spare_tokens=SPARE)
    source.lend("a", "loan")
    steps(source, tokens, 9)
    source.lend("a", "loan")
    steps(source, tokens, 5)
    halted = source.halt("a", "loan", base)
    assert [*tokens[:base], *halted.token_ids] == tokens
    assert not source.has_work
    copy(source, halted, target, reserved.tables)
    source.check()
    for key in ("a", "loan"):
        assert source.release(key)
    assert source.held() == {}
    source.check()
    target.attach("a", tokens, length, params)
    rest = drive(target, {"a": list(tokens)})["a"]
    assert tokens[length:] + rest == expected


def test_blocks_that_are_lent_stay_when_their_sequence_is_released(model_dir: Path) -> None:
    engine, _ = started(model_dir, 40, 1, GREEDY)
    loan = engine.lend("a", "loan")
    assert engine.release("a")
    assert engine.held() == {"loan": loan.end_block}
    engine.check()


def test_a_sequence_that_is_lent_again_holds_what_was_filled_meanwhile(model_dir: Path) -> None:
    engine, tokens = started(model_dir, 16, 1, GREEDY)
    first = engine.lend("a", "loan")
    steps(engine, tokens, BLOCK_TOKENS)
    second = engine.lend("a", "loan")
    assert (first.end_block, second.end_block) == (1, 2)
    assert second.tables[0][:1] == first.tables[0]
    engine.check()


def test_what_does_not_decode_here_is_not_lent(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    with pytest.raises(InvalidRequest, match="is not running here"):
        engine.lend("a", "loan")
    engine.admit("a", [1, 2, 3], 3, GREEDY)
    with pytest.raises(Overloaded, match="not complete here now"):
        engine.lend("a", "loan")
    engine.step()
    with pytest.raises(InvalidRequest, match="nothing of 'a' is lent"):
        engine.halt("a", "loan", 3)
    assert engine.has_work


def test_a_reservation_has_room_for_what_may_come_but_no_longer_than_the_model_allows(
    model_dir: Path,
) -> None:
    engine = make_engine(model_dir)
    assert len(engine.reserve("a", 16, [], spare_tokens=SPARE).tables[0]) == 3
    longest = engine.max_model_len - 2
    assert engine.reserve("b", longest, [], spare_tokens=10 * SPARE).tables[0]
