"""The first rule counts of which every condition holds, and nothing is asked that no rule asks for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.virtual.rule_facts import RuleFacts
from services.gateway.virtual.rule_match import first_rule, holds, needs_classifier
from shared.files.virtual_model import (
    ALWAYS,
    ModelRule,
    ModelShare,
    RuleConditions,
    TtftBound,
    VirtualModel,
)
from tests.support.text_request import text_request

PREDICTED_MS = {"small": 100.0, "large": 900.0}


def facts(*, hardness: float | None = None, tenant: str = "", weight: int = 1, **fields: object) -> RuleFacts:
    request = replace(text_request(**fields), tenant=tenant, weight=weight)
    return RuleFacts(request, 1000.0, lambda model: PREDICTED_MS.get(model, math.inf), hardness)


def chat_with_tool() -> RuleFacts:
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="Wie ist das Wetter?")])
    chat.tools.add(name="weather")
    return facts(chat=chat, text=None)


def bounds(model: str, limit_ms: float) -> tuple[TtftBound, ...]:
    return (TtftBound(model, limit_ms),)


LONG = facts(text="x" * 400)
IDS = facts(text=None, token_ids=pb.TokenIds(ids=[5] * 40))


@pytest.mark.parametrize(
    ("conditions", "asked", "expected"),
    [
        (RuleConditions(min_chars=400), LONG, True),
        (RuleConditions(min_chars=401), LONG, False),
        (RuleConditions(max_chars=399), LONG, False),
        (RuleConditions(max_chars=400), IDS, False),
        (RuleConditions(min_tokens=100, max_tokens=100), LONG, True),
        (RuleConditions(min_tokens=101), LONG, False),
        (RuleConditions(min_tokens=40, max_tokens=40), IDS, True),
        (RuleConditions(tenants=("acme", "b")), facts(tenant="acme"), True),
        (RuleConditions(tenants=("acme",)), facts(tenant="other"), False),
        (RuleConditions(min_weight=4), facts(weight=4), True),
        (RuleConditions(max_weight=3), facts(weight=4), False),
        (RuleConditions(priorities=("high",)), facts(priority=pb.PRIORITY_HIGH), True),
        (RuleConditions(priorities=("high",)), facts(), False),
        (RuleConditions(min_left_ms=1001), facts(), False),
        (RuleConditions(max_left_ms=1000), facts(), True),
        (RuleConditions(tools=True), chat_with_tool(), True),
        (RuleConditions(tools=False), chat_with_tool(), False),
        (RuleConditions(languages=("de",)), chat_with_tool(), True),
        (RuleConditions(languages=("en",)), chat_with_tool(), False),
        (RuleConditions(formats=("text",)), facts(), True),
        (RuleConditions(formats=("json_object",)), facts(sampling=pb.Sampling(json_object=True)), True),
        (RuleConditions(formats=("grammar",)), facts(sampling=pb.Sampling(grammar='root ::= "a"')), True),
        (RuleConditions(formats=("text",)), facts(sampling=pb.Sampling(regex="a")), False),
        (RuleConditions(ttft_above=bounds("large", 899)), facts(), True),
        (RuleConditions(ttft_below=bounds("large", 900)), facts(), False),
        (RuleConditions(ttft_above=bounds("gone", 10_000)), facts(), True),
        (RuleConditions(ttft_below=bounds("gone", 10_000)), facts(), False),
        (RuleConditions(hard_above=0.6), facts(hardness=0.61), True),
        (RuleConditions(hard_above=0.6), facts(hardness=0.6), False),
        (RuleConditions(hard_below=0.6), facts(hardness=0.5), True),
        (RuleConditions(hard_below=0.6), facts(), False),
    ],
)
def test_a_condition_holds_or_not(conditions: RuleConditions, asked: RuleFacts, *, expected: bool) -> None:
    assert holds(conditions, asked) is expected


def virtual(*conditions: RuleConditions) -> VirtualModel:
    rules = [
        ModelRule(str(n), (ModelShare("small", 1),), each) for n, each in enumerate((*conditions, ALWAYS))
    ]
    return VirtualModel("auto", tuple(rules))


def test_the_first_rule_that_holds_counts_and_the_last_one_always_does() -> None:
    rules = virtual(RuleConditions(tools=True), RuleConditions(max_chars=2), RuleConditions(max_chars=10))
    assert first_rule(rules, facts()).name == "1"
    assert first_rule(rules, LONG).name == "3"


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ((RuleConditions(max_chars=10), RuleConditions(hard_above=0.5)), False),
        ((RuleConditions(tools=True, hard_above=0.5),), False),
        ((RuleConditions(tools=True), RuleConditions(max_chars=10, hard_above=0.5)), True),
    ],
)
def test_the_classifier_is_asked_where_the_rule_that_counts_depends_on_it(
    conditions: tuple[RuleConditions, ...], *, expected: bool
) -> None:
    assert needs_classifier(virtual(*conditions), facts()) is expected


def test_a_prediction_is_asked_for_where_all_else_holds() -> None:
    def predict(_: str) -> float:
        raise AssertionError("nobody needs it")

    asked = RuleFacts(text_request(), 1000.0, predict)
    assert not holds(RuleConditions(tools=True, ttft_above=bounds("large", 1)), asked)
