"""Which budgets a prompt has: those of its request, else those of the gateway."""

from __future__ import annotations

import math

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.trimming_use import LEAST_PASSAGE_SHARE, read_trimming
from shared.errors import InvalidRequest
from shared.messages import NO_TRIMMING, Trimming

USUAL = Trimming(passage_tokens=300, passage_share=0.5, duplicates=True)


def read(**asked: object) -> Trimming:
    return read_trimming(pb.GenerateRequest(trimming=pb.Trimming(**asked)), USUAL)  # type: ignore[arg-type]  # its fields


def test_a_request_that_says_nothing_has_the_budgets_of_the_gateway() -> None:
    assert read_trimming(pb.GenerateRequest(), USUAL) == USUAL
    assert read_trimming(pb.GenerateRequest(), NO_TRIMMING) == NO_TRIMMING


def test_off_leaves_nothing_out() -> None:
    assert read(off=True) == NO_TRIMMING


def test_each_budget_that_a_request_says_is_its_own() -> None:
    assert read(passage_share=1.0) == Trimming(300, 1.0, duplicates=True)
    assert read(max_passage_tokens=0, duplicates=False) == Trimming(passage_share=0.5)


@pytest.mark.parametrize("share", [LEAST_PASSAGE_SHARE, 1.0])
def test_a_share_at_the_edge_is_taken(share: float) -> None:
    assert read(passage_share=share).passage_share == share


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"off": True, "duplicates": False}, "trimming.off is set, and trimming.duplicates too"),
        ({"max_passage_tokens": -1}, "trimming.max_passage_tokens is -1"),
        ({"passage_share": LEAST_PASSAGE_SHARE - 0.01}, "trimming.passage_share is 0.04"),
        ({"passage_share": 1.01}, "trimming.passage_share is 1.01"),
        ({"passage_share": math.nan}, "trimming.passage_share is nan"),
    ],
)
def test_what_is_no_budget_is_refused_by_name(asked: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        read(**asked)
