"""What a request says of other models is read, or refused with the field's name."""

from __future__ import annotations

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.fallback_use import (
    MAX_FALLBACK_MODEL_CHARS,
    MAX_FALLBACK_MODELS,
    MAX_STICKY_KEY_CHARS,
    FallbackUse,
)
from shared.errors import InvalidRequest
from tests.support.text_request import text_request


def test_a_request_that_says_nothing_has_none() -> None:
    assert (text_request().fallback, text_request().sticky_key) == (None, "")


def test_models_are_kept_in_order_each_once() -> None:
    asked = pb.Fallback(allowed=True, models=["b", "a", "b"])
    assert text_request(fallback=asked).fallback == FallbackUse(True, ("b", "a"))
    assert text_request(fallback=pb.Fallback()).fallback == FallbackUse(False)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"fallback": pb.Fallback(models=["a"])}, "fallback.allowed"),
        ({"fallback": pb.Fallback(allowed=True, models=[""])}, r"fallback.models\[0\]"),
        ({"fallback": pb.Fallback(allowed=True, models=["a" * (MAX_FALLBACK_MODEL_CHARS + 1)])}, "models"),
        ({"fallback": pb.Fallback(allowed=True, models=["a"] * (MAX_FALLBACK_MODELS + 1))}, "models"),
        ({"sticky_key": "a" * (MAX_STICKY_KEY_CHARS + 1)}, "sticky_key"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        text_request(**fields)


def test_the_longest_of_each_is_taken() -> None:
    models = [f"{number}".ljust(MAX_FALLBACK_MODEL_CHARS, "x") for number in range(MAX_FALLBACK_MODELS)]
    taken = text_request(
        fallback=pb.Fallback(allowed=True, models=models), sticky_key="k" * MAX_STICKY_KEY_CHARS
    )
    assert taken.fallback == FallbackUse(True, tuple(models))
