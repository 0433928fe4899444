"""A mask that takes long is its own sequence's matter: the others go on, and it draws what it would have."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from shared.engine import Engine, SamplingParams, StepResult, TokenOutput
from shared.engine.sampling import grammar_row
from shared.engine.sampling.grammar import GrammarState
from shared.engine.sampling.id_bits import IdBits
from shared.engine.sampling.mask_threads import MaskThreads
from shared.errors import InvalidRequest
from shared.sampling.parameters import Grammar
from tests.support.engine import GREEDY, admit, drive, generate, make_engine, undisturbed
from tests.support.held_masks import held_masks

PROMPT = [40, 41, 42]
OTHER = [50, 51, 52]
SLOW = Grammar("regex", "[a-z]{4,30}!")
LONG = Grammar("regex", "[a-z]{40}")
UNDER = SamplingParams(max_tokens=30, seed=3, grammar=SLOW)
BESIDE = replace(GREEDY, max_tokens=20)
TIMEOUT_S = 60.0


def steps_until(engine: Engine, key: str, drawn: dict[str, list[int]]) -> None:
    """Step until `key` has ended; what all have drawn is added to `drawn`."""
    while True:
        for output in engine.step().outputs:
            drawn.setdefault(output.key, []).extend(output.token_ids)
            if output.key == key and output.finish_reason is not None:
                return
        engine.check()


@pytest.mark.parametrize("drafting", [False, True])
def test_others_draw_on_while_a_mask_is_computed(llm_dir: Path, drafting: bool) -> None:
    slow = undisturbed(llm_dir, PROMPT, UNDER)
    beside = undisturbed(llm_dir, OTHER, BESIDE)
    engine = make_engine(llm_dir)
    with held_masks(SLOW) as held:
        admit(engine, "slow", PROMPT, UNDER)
        drawn: dict[str, list[int]] = {"slow": list(engine.step().outputs[0].token_ids)}
        if drafting:
            assert engine.propose("slow", 4, slow[1:5])
        admit(engine, "beside", OTHER, BESIDE)
        held.hold()
        steps_until(engine, "beside", drawn)
        assert held.begun.is_set()
        assert drawn == {"slow": slow[:1], "beside": beside}
        assert not engine.propose("slow", 4, slow[1:3])
        assert engine.waiting_for_masks == {"slow"}
    steps_until(engine, "slow", drawn)
    assert drawn["slow"] == slow
    assert engine.held() == {}


def test_a_step_with_nothing_else_to_do_waits_and_the_draw_follows_at_once(llm_dir: Path) -> None:
    slow = undisturbed(llm_dir, PROMPT, UNDER)
    engine = make_engine(llm_dir)
    with held_masks(SLOW) as held:
        held.hold()
        admit(engine, "slow", PROMPT, UNDER)
        result = engine.step()
        assert (result.outputs, result.mask_waits, result.batch_tokens) == ((), 1, 3)
        assert engine.has_work
        assert engine.awaits_masks
        result = engine.step()
        assert (result.outputs, result.mask_waits, result.batch_tokens) == ((), 0, 0)
    assert drive(engine, {"slow": list(PROMPT)}) == {"slow": slow}


def test_a_first_token_that_waits_for_its_mask_is_the_same_and_the_prompt_is_computed_once(
    llm_dir: Path,
) -> None:
    (expected,) = generate(make_engine(llm_dir), PROMPT, replace(UNDER, max_tokens=1))
    engine = make_engine(llm_dir)
    layers: list[tuple[int, int, int]] = []
    with held_masks(SLOW) as held:
        held.hold()
        engine.admit("a", PROMPT, 3, UNDER, stop_after=1, on_layer=lambda *told: layers.append(told))
        assert [engine.step().outputs for _ in range(2)] == [(), ()]
    outputs: list[TokenOutput] = []
    drive(engine, {"a": list(PROMPT)}, outputs=outputs)
    assert [output.token_ids for output in outputs] == [(expected,)]
    assert layers == [(layer, 0, 3) for layer in range(engine.layout.num_layers)]
    assert list(engine.held()) == ["a"]


def test_a_sequence_that_is_released_while_its_mask_is_computed_leaves_nothing(llm_dir: Path) -> None:
    slow = undisturbed(llm_dir, PROMPT, UNDER)
    engine = make_engine(llm_dir)
    with held_masks(SLOW) as held:
        held.hold()
        admit(engine, "slow", PROMPT, UNDER)
        engine.step()
        assert held.begun.is_set()
        assert engine.release("slow")
        assert (engine.held(), engine.has_work, engine.waiting_for_masks) == ({}, False, frozenset())
    assert generate(engine, PROMPT, UNDER) == slow


def test_a_sequence_that_is_preempted_while_its_mask_is_computed_draws_the_same(llm_dir: Path) -> None:
    params = replace(UNDER, grammar=LONG)
    long = [60] * 20
    expected = {
        "beside": undisturbed(llm_dir, long, BESIDE),
        "slow": undisturbed(llm_dir, PROMPT, params),
    }
    engine = make_engine(llm_dir, kv_blocks=3)
    drawn: dict[str, list[int]] = {}
    preempted: list[str] = []
    with held_masks(LONG) as held:
        admit(engine, "beside", long, BESIDE)
        admit(engine, "slow", PROMPT, params)
        held.hold()
        while not drawn or "beside" in engine.held():
            result = engine.step()
            preempted += result.preempted_keys
            for output in result.outputs:
                drawn.setdefault(output.key, []).extend(output.token_ids)
            engine.check()
        assert held.begun.is_set()
        assert list(drawn) == ["beside"]
    assert preempted == ["slow"]
    steps_until(engine, "slow", drawn)
    assert drawn == expected


def test_a_fork_of_a_sequence_that_waits_draws_for_itself(llm_dir: Path) -> None:
    forked = replace(GREEDY, max_tokens=6)
    slow = undisturbed(llm_dir, PROMPT, UNDER)
    plain = undisturbed(llm_dir, PROMPT, forked)
    engine = make_engine(llm_dir)
    with held_masks(SLOW) as held:
        admit(engine, "slow", PROMPT, UNDER)
        drawn: dict[str, list[int]] = {"slow": list(engine.step().outputs[0].token_ids)}
        held.hold()
        engine.step()
        engine.fork("slow", "fork", forked)
        steps_until(engine, "fork", drawn)
        assert drawn == {"slow": slow[:1], "fork": plain}
    steps_until(engine, "slow", drawn)
    assert drawn == {"slow": slow, "fork": plain}


def test_a_mask_over_its_budget_ends_its_sequence_by_name_and_nobody_else(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_row, "MAX_MASK_S", 0.02)
    beside = undisturbed(llm_dir, OTHER, BESIDE)
    engine = make_engine(llm_dir)
    outputs: list[TokenOutput] = []
    with held_masks(SLOW, burning=True) as held:
        held.hold()
        admit(engine, "slow", PROMPT, UNDER)
        admit(engine, "beside", OTHER, BESIDE)
        drawn = drive(engine, {"slow": list(PROMPT), "beside": list(OTHER)}, outputs=outputs)
    assert drawn == {"slow": [], "beside": beside}
    (last,) = [output for output in outputs if output.key == "slow"]
    assert last.finish_reason == "error"
    assert isinstance(last.fault, InvalidRequest)
    assert last.fault.message == (
        "the grammar (regex) is too complex: to find what may follow at one place takes over 20 ms of "
        "computing; simplify it"
    )
    assert engine.held() == {}


def test_masks_over_the_budget_of_their_sequence_end_it_by_name(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_row, "MAX_MASKS_S", 0.0)
    engine = make_engine(llm_dir)
    admit(engine, "slow", PROMPT, UNDER)
    outputs: list[TokenOutput] = []
    drive(engine, {"slow": list(PROMPT)}, outputs=outputs)
    assert isinstance(outputs[-1].fault, InvalidRequest)
    assert "grammar (regex) is too complex" in outputs[-1].fault.message
    assert "in all" in outputs[-1].fault.message


@contextmanager
def held_elsewhere(lock: threading.RLock) -> Iterator[None]:
    """Another thread has the lock."""
    taken, give_back = threading.Event(), threading.Event()

    def run() -> None:
        with lock:
            taken.set()
            assert give_back.wait(60.0)

    thread = threading.Thread(target=run)
    thread.start()
    assert taken.wait(60.0)
    try:
        yield
    finally:
        give_back.set()
        thread.join()


def test_a_grammar_that_another_thread_moves_in_holds_up_its_own_sequences_alone(llm_dir: Path) -> None:
    """The library would wait for that thread with Python's lock in its hand: all of the process with it."""
    slow = undisturbed(llm_dir, PROMPT, UNDER)
    engine = make_engine(llm_dir)
    admit(engine, "slow", PROMPT, UNDER)
    drawn: dict[str, list[int]] = {"slow": list(engine.step().outputs[0].token_ids)}
    admit(engine, "beside", OTHER, BESIDE)
    with held_elsewhere(engine.grammars.compile(SLOW).matchers.lock):
        steps_until(engine, "beside", drawn)
        assert drawn["slow"] == slow[:1]
    steps_until(engine, "slow", drawn)
    assert drawn["slow"] == slow


def test_a_draft_that_makes_a_grammar_too_complex_changes_nothing_unless_it_is_right(llm_dir: Path) -> None:
    """One "{" begins each of a thousand objects at once; a string does not."""
    options = ",".join(
        f'{{"type":"object","properties":{{"p{n}":{{"type":"integer"}}}}}}' for n in range(1000)
    )
    grammar = Grammar("json_schema", f'{{"anyOf":[{{"type":"string","maxLength":9}},{options}]}}')
    brace, quote = 3 + ord("{") - 32, 3 + ord('"') - 32
    params = replace(UNDER, grammar=grammar, temperature=0.0, logit_bias=((quote, 50.0), (brace, -50.0)))
    expected = undisturbed(llm_dir, PROMPT, params)
    assert generate(make_engine(llm_dir), PROMPT, params, lambda *_: [brace, quote]) == expected
    wanted = replace(params, logit_bias=((brace, 50.0),))
    engine = make_engine(llm_dir)
    admit(engine, "a", PROMPT, wanted)
    outputs: list[TokenOutput] = []
    drive(engine, {"a": list(PROMPT)}, lambda *_: [brace, quote], outputs)
    assert isinstance(outputs[-1].fault, InvalidRequest)
    assert "too complex" in outputs[-1].fault.message


@pytest.mark.parametrize("drafting", [False, True])
def test_a_batch_whose_masks_are_all_late_draws_what_each_draws_alone(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch, drafting: bool
) -> None:
    options = {
        f"{number}": replace(UNDER, seed=number, grammar=grammar, max_tokens=20)
        for number, grammar in enumerate([SLOW, SLOW, LONG, Grammar("json_object"), None])
    }
    expected = {key: undisturbed(llm_dir, PROMPT, params) for key, params in options.items()}
    monkeypatch.setattr(MaskThreads, "wait", lambda *_: None)  # no step finds a mask that was begun with it
    engine = make_engine(llm_dir, kv_blocks=7)
    for key, params in options.items():
        admit(engine, key, PROMPT, params)
    waits, waited = 0, threading.Event()
    step, masks = engine.step, GrammarState.masks

    def counted() -> StepResult:
        nonlocal waits
        result = step()
        waits += result.mask_waits
        if waits:
            waited.set()
        return result

    def late(state: GrammarState, drafts: Sequence[int]) -> list[IdBits | None]:
        assert waited.wait(TIMEOUT_S)
        return masks(state, drafts)

    monkeypatch.setattr(engine, "step", counted)
    monkeypatch.setattr(GrammarState, "masks", late)

    def right(key: str, tokens: list[int]) -> list[int]:
        return (PROMPT + expected[key])[len(tokens) :][:3] if drafting else []

    outputs: list[TokenOutput] = []
    assert drive(engine, {key: list(PROMPT) for key in options}, right, outputs) == expected
    assert waits
    for key, drawn in expected.items():
        engine.admit(key, PROMPT + drawn[:9], len(PROMPT), options[key])
        assert drive(engine, {key: PROMPT + drawn[:9]})[key] == drawn[9:]
    assert engine.held() == {}
