"""A sequence leaves one engine, in the middle of its output, and goes on in another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shared.engine import BLOCK_TOKENS, Engine, KvLoan, SamplingParams
from shared.errors import InvalidRequest, Overloaded
from shared.fairness.share import TenantShare
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


# ---- prefixes ----

PREFIX = [(7 * at) % VOCAB for at in range(48)]
LONGER = [*PREFIX, 3, 1, 4]
NO_SHARE = TenantShare("", 1)


def knows(model_dir: Path, token_ids: list[int], names: list[bytes], **fields: int) -> Engine:
    """An engine whose prefix cache has `token_ids` under `names`."""
    engine = make_engine(model_dir, **fields)
    engine.admit("before", token_ids, len(token_ids), GREEDY, names, stop_after=1)
    engine.step()
    engine.release("before")
    return engine


def test_a_prefix_that_comes_from_another_engine_is_as_if_it_had_been_computed(model_dir: Path) -> None:
    names = hashes_of(PREFIX)
    source, target = knows(model_dir, PREFIX, names), make_engine(model_dir)
    loan = source.lend_prefix("loan", names, NO_SHARE)
    reserved = target.reserve("fetched", len(PREFIX), names)
    copy(source, loan, target, reserved.tables)
    target.take_prefix("fetched")
    assert target.held() == {}
    assert target.admit("a", LONGER, len(LONGER), ENDLESS, hashes_of(LONGER)).cached_tokens == len(PREFIX)
    assert drive(target, {"a": list(LONGER)})["a"] == undisturbed(model_dir, LONGER, ENDLESS)
    for engine in (source, target):
        engine.check()


@pytest.mark.parametrize("wanted", ["more of it", "another tenant's", "nothing"])
def test_a_prefix_that_is_not_cached_in_all_is_not_lent(model_dir: Path, wanted: str) -> None:
    engine = knows(model_dir, PREFIX, hashes_of(PREFIX, tenant="one"))
    names = {
        "more of it": hashes_of([*PREFIX, *PREFIX], tenant="one"),
        "another tenant's": hashes_of(PREFIX, tenant="two"),
        "nothing": [],
    }
    with pytest.raises(Overloaded, match="are cached here; compute them"):
        engine.lend_prefix("loan", names[wanted], NO_SHARE)
    assert engine.held() == {}
    engine.check()


def test_a_prefix_that_is_lent_is_not_evicted_before_it_is_released(model_dir: Path) -> None:
    names = hashes_of(PREFIX)
    engine = knows(model_dir, PREFIX, names, kv_blocks=4)
    engine.lend_prefix("loan", names, NO_SHARE)
    with pytest.raises(InvalidRequest, match="already held"):
        engine.lend_prefix("loan", names, NO_SHARE)
    with pytest.raises(Overloaded, match="2 KV blocks are needed and 1 are free"):
        engine.reserve("other", 2 * BLOCK_TOKENS, [])
    assert engine.release("loan")
    engine.reserve("other", 2 * BLOCK_TOKENS, [])
    engine.check()


def test_a_prefix_that_was_computed_here_meanwhile_keeps_those_blocks(model_dir: Path) -> None:
    names = hashes_of(PREFIX)
    engine = make_engine(model_dir)
    engine.reserve("fetched", len(PREFIX), names)
    engine.admit("a", LONGER, len(LONGER), GREEDY, hashes_of(LONGER))
    tokens = list(LONGER)
    steps(engine, tokens, 1)
    engine.take_prefix("fetched")
    engine.check()
    drive(engine, {"a": tokens})
    assert tokens[len(LONGER) :] == undisturbed(model_dir, LONGER, GREEDY)


def test_nothing_is_taken_that_was_not_reserved(model_dir: Path) -> None:
    engine = make_engine(model_dir)
    engine.admit("a", LONGER, len(LONGER), GREEDY)
    for key in ("a", "b"):
        with pytest.raises(InvalidRequest, match="reserve before its prefix is taken"):
            engine.take_prefix(key)
