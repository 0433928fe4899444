"""How long a model may think: what is read, what it is held to, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.thinking_use import (
    DEFAULT_THINKING,
    MAX_THINKING_DEADLINE_MS,
    ThinkingUse,
    read_thinking_use,
)
from shared.errors import InvalidRequest
from shared.messages import NO_THINKING, PromptThinking
from shared.sampling.parameters import MAX_OUTPUT_TOKENS
from shared.sampling.thinking import ANY_LENGTH, ThinkingRule

THINKING = PromptThinking("think", True, (), 7, 8, (6, 8, 6))
UNMARKED = PromptThinking("granite", begun=True)
RULE = ThinkingRule(8, (6, 8, 6), 7, True, ANY_LENGTH)


def read(**fields: object) -> ThinkingUse:
    thinking = pb.Thinking(**fields)  # type: ignore[arg-type]  # its fields
    return read_thinking_use(pb.GenerateRequest(thinking=thinking))


def test_what_says_nothing_leaves_the_model_as_it_is() -> None:
    assert read_thinking_use(pb.GenerateRequest()) == DEFAULT_THINKING == read()
    assert DEFAULT_THINKING.rule(THINKING, 100, holds_behind=False) is None


@pytest.mark.parametrize(
    ("effort", "budget"), [("NONE", 0), ("MINIMAL", 10), ("LOW", 20), ("MEDIUM", 50), ("HIGH", 80)]
)
def test_an_effort_is_a_share_of_the_answer(effort: str, budget: int) -> None:
    use = read(effort=f"REASONING_EFFORT_{effort}")
    assert use.effort == effort.lower()
    assert use.rule(THINKING, 100, holds_behind=False) == replace(RULE, max_tokens=budget)


def test_tokens_that_are_said_go_before_those_of_an_effort() -> None:
    use = read(effort="REASONING_EFFORT_LOW", max_tokens=0)
    assert use.rule(THINKING, 100, holds_behind=False) == replace(RULE, max_tokens=0)


def test_a_deadline_or_a_grammar_needs_a_rule_without_a_budget() -> None:
    assert ThinkingUse(deadline_ms=1).rule(THINKING, 100, holds_behind=False) == RULE
    assert DEFAULT_THINKING.rule(THINKING, 100, holds_behind=True) == RULE


def test_a_model_that_does_not_think_keeps_to_everything() -> None:
    assert ThinkingUse("none", 0, 1).rule(NO_THINKING, 100, holds_behind=True) is None


@pytest.mark.parametrize("use", [ThinkingUse(max_tokens=1), ThinkingUse(deadline_ms=1)])
def test_a_limit_is_refused_where_no_token_ends_the_thinking(use: ThinkingUse) -> None:
    with pytest.raises(InvalidRequest, match="cannot be closed in time: the mark"):
        use.rule(UNMARKED, 100, holds_behind=False)


def test_so_is_a_grammar_behind_thinking_that_has_begun() -> None:
    assert ThinkingUse("low").rule(UNMARKED, 100, holds_behind=False) is None
    assert DEFAULT_THINKING.rule(replace(UNMARKED, begun=False), 100, holds_behind=True) is None
    with pytest.raises(InvalidRequest, match=r"send thinking\.effort none"):
        DEFAULT_THINKING.rule(UNMARKED, 100, holds_behind=True)


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [("max_tokens", 0, MAX_OUTPUT_TOKENS), ("deadline_ms", 1, MAX_THINKING_DEADLINE_MS)],
)
def test_limits_have_limits(name: str, lowest: int, highest: int) -> None:
    assert getattr(read(**{name: lowest}), name) == lowest
    assert getattr(read(**{name: highest}), name) == highest
    wrong = [lowest - 1] if name == "max_tokens" else [lowest - 1, highest + 1]
    for value in wrong:  # no int32 is above the most tokens
        with pytest.raises(InvalidRequest, match=rf"thinking\.{name} is {value}: send"):
            read(**{name: value})


def test_an_effort_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"thinking\.effort is 9: send"):
        read(effort=9)
