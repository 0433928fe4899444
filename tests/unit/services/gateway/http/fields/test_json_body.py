"""A body has a bounded number of parts, whatever stands in its texts."""

from __future__ import annotations

import json

import pytest

from services.gateway.http.fields.json_body import (
    MAX_BODY_OBJECTS,
    MAX_BODY_TEXTS,
    MAX_BODY_VALUES,
    read_json_body,
)
from shared.errors import InvalidRequest

OBJECTS = "20000 arrays and objects"


def body(of: object) -> bytes:
    return json.dumps({"of": of}).encode()


@pytest.mark.parametrize(
    ("most", "over", "what"),
    [
        (body([{}] * (MAX_BODY_OBJECTS - 2)), body([{}] * (MAX_BODY_OBJECTS - 1)), OBJECTS),
        (body([[]] * (MAX_BODY_OBJECTS - 2)), body([[]] * (MAX_BODY_OBJECTS - 1)), OBJECTS),
        (body(["a"] * (MAX_BODY_TEXTS - 1)), body(["a"] * MAX_BODY_TEXTS), "100000 texts"),
        (body([1] * MAX_BODY_VALUES), body([1] * (MAX_BODY_VALUES + 1)), "1000000 values"),
    ],
)
def test_a_body_has_so_many_parts_and_not_one_more(most: bytes, over: bytes, what: str) -> None:
    read_json_body(most)
    with pytest.raises(InvalidRequest, match=f"the body has more than {what}: send less in one call"):
        read_json_body(over)


@pytest.mark.parametrize("text", ["[{", ",", '"', "\\", '\\"', '\\\\"[', 'say "[{", '])
def test_what_stands_in_a_text_does_not_count(text: str) -> None:
    of = text * (2 * MAX_BODY_VALUES // len(text))
    assert read_json_body(body(of)).raw["of"] == of
