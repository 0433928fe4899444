"""Sampling options and outputs on their way between the bus and the engine."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shared.bus.codec import decode, encode
from shared.engine.results import TokenOutput
from shared.engine.scheduling.order import NORMAL_PRIORITY
from shared.errors import InvalidRequest, ProtocolError
from shared.fairness.share import MAX_TENANT_CHARS
from shared.messages import Envelope, Prefill, pack_hashes, pack_ids
from shared.sampling.parameters import Grammar, SamplingParams
from shared.sampling.thinking import ThinkingRule
from shared.worker.wire import (
    MAX_STAY_MS,
    JobOutput,
    checked_answer_scope,
    checked_stay_s,
    engine_priority,
    read_sequence,
    tokens_messages,
)
from tests.support.sampling import OTHER_SCALARS

CONSTRAINED = SamplingParams(
    **OTHER_SCALARS,
    logit_bias=((4, 1.5),),
    stop_token_ids=(3,),
    allowed_ids=(1, 2),
    bad_words=((5,), (6, 7)),
    grammar=Grammar("regex", "a+"),
    thinking=ThinkingRule(4, (4, 3), 5, begun=True, max_tokens=6),
)


def test_every_option_crosses_the_bus_as_itself() -> None:
    sent = Prefill(pack_ids([1]), 1, pack_hashes([]), CONSTRAINED, "g", "d", "w", 0)
    _, received = decode(encode(sent, Envelope("r")))
    assert received == sent


def test_the_message_above_sets_every_option() -> None:
    for field in dataclasses.fields(SamplingParams):
        assert getattr(CONSTRAINED, field.name) != field.default, field.name


def test_every_option_reaches_the_engine() -> None:
    spec = read_sequence(pack_ids([1]), 1, pack_hashes([]), CONSTRAINED, vocab_size=10, max_model_len=64)
    assert spec.params == CONSTRAINED


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": "1"},
        {"top_k": 1.0},
        {"ignore_eos": 1},
        {"stop_token_ids": ("3",)},
        {"bad_words": ((5,), 6)},
        {"grammar": ("regex", 5)},
        {"grammar": ()},
    ],
)
def test_an_option_of_the_wrong_type_does_not_come_off_the_bus(change: dict[str, Any]) -> None:
    how = dataclasses.replace(CONSTRAINED, **change)
    sent = Prefill(pack_ids([1]), 1, pack_hashes([]), how, "g", "d", "w", 0)
    with pytest.raises(ProtocolError):
        decode(encode(sent, Envelope("r")))


@pytest.mark.parametrize(
    ("reason", "finish"), [(None, ""), ("stop", "stop"), ("length", "length"), ("error", "error")]
)
def test_a_reason_to_finish_has_a_word_on_the_bus(reason: str | None, finish: str) -> None:
    output = TokenOutput("r/1", 3, (), (), reason, 0, 0)
    ((_, tokens),) = tokens_messages([JobOutput("detokenizer-0", "r", 1, output, ())])
    assert tokens.finish == (finish,)


def test_priorities_keep_their_order_in_the_engine() -> None:
    normal, low, high = 0, 1, 2  # as penstock.v1.Priority numbers them
    assert sorted((normal, low, high), key=engine_priority) == [high, normal, low]
    assert engine_priority(normal) == NORMAL_PRIORITY
    with pytest.raises(InvalidRequest, match="priority 3"):
        engine_priority(3)


def test_kv_stays_no_longer_than_a_gateway_says() -> None:
    assert [checked_stay_s(each) for each in (0, -1, MAX_STAY_MS)] == [0.0, -0.001, 3600.0]
    with pytest.raises(InvalidRequest, match="stay_ms"):
        checked_stay_s(MAX_STAY_MS + 1)


def test_a_name_of_those_who_share_an_answer_is_taken_up_to_its_longest() -> None:
    longest = "s" * MAX_TENANT_CHARS
    assert [checked_answer_scope(each) for each in ("", longest)] == ["", longest]
    with pytest.raises(InvalidRequest, match=f"answer_scope has {MAX_TENANT_CHARS + 1} characters"):
        checked_answer_scope(longest + "s")
