"""Allowed ids and bad words: in one sequence, with drafts, after recovery, and when nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shared.engine import SamplingParams, TokenOutput
from tests.support.engine import (
    FANCY,
    Drafter,
    admit,
    drive,
    generate,
    make_engine,
    prompts,
    undisturbed,
)

VOCAB = 97
ALLOWED = (3, 4, 5, 6, 7, 11, 12)
BAD_WORDS = ((3,), (4, 5), (6, 6), (7, 11, 12), (4, 4, 4, 4))
FEW = SamplingParams(temperature=2.0, max_tokens=120, allowed_ids=ALLOWED, bad_words=BAD_WORDS)
WORDS = {
    "few ids": FEW,
    "few ids, greedy": replace(FEW, temperature=0.0),
    "only allowed ids": replace(FEW, bad_words=()),
    "only bad words": replace(FEW, allowed_ids=(), bad_words=(*BAD_WORDS, *((one,) for one in range(60)))),
    "everything": replace(FANCY, allowed_ids=(*ALLOWED, *range(40, 60)), bad_words=BAD_WORDS, max_tokens=60),
}


def contains(tokens: Sequence[int], word: Sequence[int]) -> bool:
    return any(tuple(tokens[at : at + len(word)]) == tuple(word) for at in range(len(tokens)))


@pytest.mark.parametrize("name", WORDS)
def test_the_output_has_only_allowed_ids_and_no_bad_word(model_dir: Path, name: str) -> None:
    params = WORDS[name]
    for prompt in prompts(4, VOCAB):
        drawn = generate(make_engine(model_dir), prompt, params)
        assert not params.allowed_ids or set(drawn) <= set(params.allowed_ids)
        assert not any(contains(drawn, word) for word in params.bad_words)


def test_bad_words_bind_where_they_would_have_come(model_dir: Path) -> None:
    free = generate(make_engine(model_dir), [9], replace(FEW, bad_words=()))
    word = tuple(free[10:13])
    bound = generate(make_engine(model_dir), [9], replace(FEW, bad_words=(word,)))
    first = next(at for at in range(len(free)) if tuple(free[at : at + 3]) == word)
    assert bound[: first + 2] == free[: first + 2]
    assert bound[first + 2] != free[first + 2]


def test_a_bad_word_may_begin_in_the_prompt(model_dir: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3)
    prompt = [3, 4, 5]
    plain = undisturbed(model_dir, prompt, params)
    assert generate(make_engine(model_dir), prompt, replace(params, bad_words=((5, plain[0]),))) == plain


def good(answer: list[int], length: int) -> Drafter:
    return lambda _key, tokens: answer[len(tokens) : len(tokens) + length]


@pytest.mark.parametrize("name", WORDS)
def test_drafts_never_change_what_is_drawn(model_dir: Path, name: str) -> None:
    prompt, params = prompts(1, VOCAB)[0], WORDS[name]
    plain = undisturbed(model_dir, prompt, params)
    answer = prompt + plain
    wrong = [(token + (place % 5 == 4)) % VOCAB for place, token in enumerate(answer)]
    for drafter in (good(answer, 1), good(answer, 9), good(wrong, 9), lambda *_: [4, 5, 6, 6]):
        assert generate(make_engine(model_dir), prompt, params, drafter) == plain


@pytest.mark.parametrize("name", WORDS)
def test_a_recovered_sequence_continues_as_if_undisturbed(model_dir: Path, name: str) -> None:
    prompt, params = prompts(1, VOCAB)[0], WORDS[name]
    whole = undisturbed(model_dir, prompt, params)
    for done in range(1, min(len(whole), 20), 3):
        engine, known = make_engine(model_dir), prompt + whole[:done]
        engine.admit("b", known, len(prompt), params)
        assert whole[:done] + drive(engine, {"b": list(known)})["b"] == whole


def test_a_sequence_of_which_nothing_is_left_ends_in_an_error_and_disturbs_nobody(model_dir: Path) -> None:
    stuck = SamplingParams(max_tokens=9, allowed_ids=(5,), bad_words=((5, 5, 5),), logprobs=0)
    expected = undisturbed(model_dir, [8, 9])
    engine = make_engine(model_dir)
    admit(engine, "stuck", [8, 9], stuck)
    admit(engine, "beside", [8, 9])
    outputs: list[TokenOutput] = []
    drawn = drive(engine, {"stuck": [8, 9], "beside": [8, 9]}, outputs=outputs)
    assert drawn == {"stuck": [5, 5], "beside": expected}
    last = [output for output in outputs if output.key == "stuck"][-1]
    assert (last.token_ids, last.logprobs, last.finish_reason) == ((), (), "error")
    assert engine.held() == {}


def test_a_sequence_that_gets_stuck_among_right_drafts_keeps_what_came_before(model_dir: Path) -> None:
    stuck = SamplingParams(max_tokens=9, allowed_ids=(5,), bad_words=((5, 5, 5),))
    engine = make_engine(model_dir)
    admit(engine, "stuck", [8, 9], stuck)
    engine.step()
    engine.propose("stuck", 3, [5, 5, 5])
    (output,) = engine.step().outputs
    assert (output.token_ids, output.accepted_drafts, output.finish_reason) == ((5,), 1, "error")
    assert engine.held() == {}


def test_a_held_sequence_that_gets_stuck_keeps_its_blocks_until_released(model_dir: Path) -> None:
    stuck = SamplingParams(max_tokens=9, allowed_ids=(5,), bad_words=((5, 5),))
    engine = make_engine(model_dir)
    engine.admit("held", [8, 9], 2, stuck, stop_after=3)
    reasons = [engine.step().outputs[0].finish_reason for _ in range(2)]
    assert reasons == [None, "error"]
    engine.check()
    assert list(engine.held()) == ["held"]
    assert not engine.has_work
    assert engine.release("held")
