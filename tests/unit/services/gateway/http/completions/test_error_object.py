"""The error object of OpenAI's interfaces: which field a sentence is about."""

from __future__ import annotations

from typing import Any

import pytest

from services.gateway.http.completions.error_object import error_object
from shared.errors import InvalidRequest, NotFound, PenstockError, TooLarge, Unavailable


def param_of(error: PenstockError) -> Any:
    return error_object(error)[2]["error"]["param"]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("temperature is 3: send 0 to 2", "temperature"),
        ("messages[0].content is empty: send some text", "messages[0].content"),
        ("stop has 9 entries: send at most 8", "stop"),
    ],
)
def test_a_sentence_that_begins_with_a_field_is_about_it(message: str, param: str) -> None:
    assert param_of(InvalidRequest(message)) == param


def test_a_text_that_is_too_long_is_a_field_too() -> None:
    assert param_of(TooLarge("prompt has 9 bytes: send at most 8")) == "prompt"


@pytest.mark.parametrize("message", ["gateway is draining", "nothing came in time", "the prompt is empty"])
def test_a_sentence_about_something_else_names_no_field(message: str) -> None:
    assert param_of(InvalidRequest(message)) is None


def test_a_model_that_is_not_served_is_the_field_model_and_another_lack_is_none() -> None:
    assert param_of(NotFound("model 'x' is not served: ask for one of: y")) == "model"
    assert param_of(NotFound("corpus 'x' is not searched here")) is None
    assert param_of(InvalidRequest("model 'x' cannot be read")) is None


def test_what_is_no_fault_of_the_request_names_no_field() -> None:
    assert param_of(Unavailable("prompt is fine, no worker is ready")) is None
