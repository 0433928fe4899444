"""Which budgets a prompt has: those of its request, else those of the gateway."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.trimming_use import (
    LEAST_PASSAGE_SHARE,
    over_budget_warning,
    read_trimming,
)
from shared.errors import InvalidRequest
from shared.messages import NO_TRIMMING, Trimming

USUAL = Trimming(300, 0.5, duplicates=True, prompt_tokens=900, fit_context=True)


def read(**asked: object) -> Trimming:
    return read_trimming(pb.GenerateRequest(trimming=pb.Trimming(**asked)), USUAL)  # type: ignore[arg-type]  # its fields


def test_a_request_that_says_nothing_has_the_budgets_of_the_gateway() -> None:
    assert read_trimming(pb.GenerateRequest(), USUAL) == USUAL
    assert read_trimming(pb.GenerateRequest(), NO_TRIMMING) == NO_TRIMMING


def test_off_leaves_nothing_out() -> None:
    assert read(off=True) == NO_TRIMMING


def test_each_budget_that_a_request_says_is_its_own() -> None:
    assert read(passage_share=1.0) == replace(USUAL, passage_share=1.0)
    assert read(max_passage_tokens=0, duplicates=False) == replace(USUAL, passage_tokens=0, duplicates=False)
    assert read(compact=True) == replace(USUAL, compact=True)
    assert read(max_summary_tokens=60) == replace(USUAL, summary_tokens=60)
    assert read(max_tool_tokens=400) == replace(USUAL, tool_tokens=400)
    assert read(max_prompt_tokens=7, fit_context=False) == replace(USUAL, prompt_tokens=7, fit_context=False)


@pytest.mark.parametrize("share", [LEAST_PASSAGE_SHARE, 1.0])
def test_a_share_at_the_edge_is_taken(share: float) -> None:
    assert read(passage_share=share).passage_share == share


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"off": True, "duplicates": False}, "trimming.off is set, and trimming.duplicates too"),
        ({"max_prompt_tokens": -1}, "trimming.max_prompt_tokens is -1"),
        ({"max_summary_tokens": -1}, "trimming.max_summary_tokens is -1"),
        ({"max_tool_tokens": -1}, "trimming.max_tool_tokens is -1"),
        ({"max_passage_tokens": -1}, "trimming.max_passage_tokens is -1"),
        ({"passage_share": LEAST_PASSAGE_SHARE - 0.01}, "trimming.passage_share is 0.04"),
        ({"passage_share": 1.01}, "trimming.passage_share is 1.01"),
        ({"passage_share": math.nan}, "trimming.passage_share is nan"),
    ],
)
def test_what_is_no_budget_is_refused_by_name(asked: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        read(**asked)


@pytest.mark.parametrize(("tokens", "is_told"), [(900, False), (901, True)])
def test_a_chat_that_stays_longer_than_its_budget_is_told_so(tokens: int, is_told: bool) -> None:
    told = over_budget_warning(USUAL, 3, tokens)
    assert ("its budget is 900" in told) == is_told


def test_a_text_has_no_turns_that_could_be_left_out() -> None:
    assert over_budget_warning(USUAL, 0, 901) == ""
