"""Thinking within a budget, and a grammar behind it: with drafts, after recovery, at its edges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shared.engine import LLM, SamplingParams
from shared.errors import InvalidRequest
from shared.sampling.parameters import Grammar
from shared.sampling.thinking import MAX_CLOSE_TOKENS, ThinkingRule
from tests.support.engine import Drafter, admit, drive, generate, make_engine, undisturbed
from tests.support.grammar import EOS, VOCAB, id_of

PROMPT = [40, 41, 42]
BREAK, CLOSE, OPEN = id_of("~"), id_of("|"), id_of("{")
CLOSING = (BREAK, CLOSE, BREAK)
NEVER = ((BREAK,), (CLOSE,), (OPEN,))
FREE = SamplingParams(max_tokens=30, seed=5, ignore_eos=True, bad_words=NEVER)
"""The model never writes a mark by itself."""
RULE = ThinkingRule(CLOSE, CLOSING, OPEN, begun=True, max_tokens=7)
DIGITS = Grammar("regex", "[0-9]{4}")


def followed(answer: Sequence[int], length: int = 5) -> Drafter:
    whole = [*PROMPT, *answer]
    return lambda _key, tokens: whole[len(tokens) : len(tokens) + length]


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_the_model_thinks_as_it_would_and_is_closed_at_its_budget(llm_dir: Path, budget: int) -> None:
    rule = replace(RULE, max_tokens=budget)
    free = undisturbed(llm_dir, PROMPT, FREE)
    drawn = undisturbed(llm_dir, PROMPT, replace(FREE, thinking=rule))
    assert drawn[:budget] == free[:budget]
    assert tuple(drawn[budget : budget + 3]) == CLOSING
    assert len(drawn) == 30


@pytest.mark.parametrize("grammar", [None, DIGITS])
def test_whoever_goes_on_with_the_tokens_goes_on_alike(llm_dir: Path, grammar: Grammar | None) -> None:
    params = replace(FREE, thinking=RULE, grammar=grammar)
    drawn = undisturbed(llm_dir, PROMPT, params)
    engine = make_engine(llm_dir)
    known = {str(done): [*PROMPT, *drawn[:done]] for done in (0, 3, 7, 8, 9, 10, 12)}
    for key, tokens in known.items():
        engine.admit(key, tokens, len(PROMPT), params)
    drive(engine, known)
    assert all(tokens == [*PROMPT, *drawn] for tokens in known.values())


@pytest.mark.parametrize("grammar", [None, DIGITS])
@pytest.mark.parametrize("wrong", [None, 0, 2, 4])
def test_drafts_change_nothing(llm_dir: Path, grammar: Grammar | None, wrong: int | None) -> None:
    params = replace(FREE, thinking=RULE, grammar=grammar)
    drawn = undisturbed(llm_dir, PROMPT, params)

    def drafter(key: str, tokens: list[int]) -> list[int]:
        right = followed(drawn)(key, tokens)
        return [(each + (at == wrong)) % VOCAB for at, each in enumerate(right)]

    assert generate(make_engine(llm_dir), PROMPT, params, drafter) == drawn


def test_a_grammar_holds_what_follows_the_thinking_alone(llm_dir: Path) -> None:
    params = replace(FREE, thinking=RULE, grammar=DIGITS, ignore_eos=False)
    (completion,) = LLM(llm_dir).generate([PROMPT], params)
    assert completion.finish_reason == "stop"
    assert tuple(completion.token_ids[7:10]) == CLOSING
    assert re.search(r"~\|~[0-9]{4}$", completion.text)
    assert len(completion.token_ids) == 14


def test_thinking_that_the_model_closes_itself_is_closed_to_its_end_before_a_grammar(llm_dir: Path) -> None:
    liked = ((CLOSE, 100.0),)
    params = SamplingParams(max_tokens=30, thinking=RULE, grammar=DIGITS, logit_bias=liked)
    (completion,) = LLM(llm_dir).generate([PROMPT], params)
    assert re.fullmatch(r"\|~[0-9]{4}", completion.text)


@pytest.mark.parametrize(("liked", "wanted"), [(OPEN, r"\{.{7}~\|~[0-9]{4}"), (id_of("5"), r"[0-9]{4}")])
def test_before_a_grammar_the_model_may_think_or_not(llm_dir: Path, liked: int, wanted: str) -> None:
    rule = replace(RULE, begun=False)
    params = SamplingParams(
        max_tokens=30, seed=5, thinking=rule, grammar=DIGITS, logit_bias=((liked, 40.0), (EOS, -50.0))
    )
    (completion,) = LLM(llm_dir).generate([PROMPT], params)
    assert re.fullmatch(wanted, completion.text, re.DOTALL)


def test_a_thinking_is_closed_where_somebody_says_so(llm_dir: Path) -> None:
    params = replace(FREE, thinking=replace(RULE, max_tokens=-1))
    free = undisturbed(llm_dir, PROMPT, FREE)
    engine = make_engine(llm_dir)
    admit(engine, "a", PROMPT, params)
    known = {"a": list(PROMPT)}
    while len(known["a"]) < len(PROMPT) + 9:
        for output in engine.step().outputs:
            known["a"] += output.token_ids
    engine.close_thinking("a")
    engine.close_thinking("unknown")
    drawn = [*known["a"][len(PROMPT) :], *drive(engine, known)["a"]]
    assert drawn[:9] == free[:9]
    assert tuple(drawn[9:12]) == CLOSING


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        (ThinkingRule(CLOSE, ()), "closes with 0 tokens"),
        (ThinkingRule(CLOSE, (CLOSE,) * (MAX_CLOSE_TOKENS + 1)), "closes with 65 tokens"),
        (ThinkingRule(CLOSE, (BREAK,)), "the closing one among them"),
        (ThinkingRule(CLOSE, (CLOSE,), max_tokens=-2), "a budget of -2 tokens"),
        (ThinkingRule(CLOSE, (CLOSE, VOCAB)), f"outside the vocabulary of {VOCAB}"),
        (ThinkingRule(CLOSE, (CLOSE,), opening_id=VOCAB), f"outside the vocabulary of {VOCAB}"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_named(rule: ThinkingRule, wrong: str) -> None:
    SamplingParams(thinking=ThinkingRule(CLOSE, (CLOSE,) * MAX_CLOSE_TOKENS, max_tokens=0)).validate(VOCAB)
    with pytest.raises(InvalidRequest, match=wrong):
        SamplingParams(thinking=rule).validate(VOCAB)
