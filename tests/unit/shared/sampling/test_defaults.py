"""Defaults of sampling: what may be said, what counts, and what of it reaches a request."""

from __future__ import annotations

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest
from shared.sampling.defaults import (
    DEFAULTED,
    OPENAI,
    SamplingDefault,
    all_defaults,
    parse_default_sampling,
    sampling_default,
)
from shared.sampling.parameters import MAX_TOP_K, MIN_TEMPERATURE, PARAMETERS


def values(defaults: tuple[SamplingDefault, ...]) -> dict[str, float]:
    return {each.name: each.value for each in defaults}


def test_without_a_word_all_are_those_of_openai() -> None:
    assert values(all_defaults()) == {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    assert {each.source for each in all_defaults()} == {"built in"}


def test_each_parameter_is_that_of_the_last_layer_which_has_it() -> None:
    model = [SamplingDefault("temperature", 0.7, "model"), SamplingDefault("top_p", 0.8, "model")]
    found = all_defaults(model, [SamplingDefault("top_p", 0.5, "file")])
    assert [each.name for each in found] == list(DEFAULTED)
    said = {each.name: (each.value, each.source) for each in found}
    assert said["temperature"] == (0.7, "model")
    assert said["top_p"] == (0.5, "file")
    assert said["min_p"] == (0.0, "built in")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", MIN_TEMPERATURE),
        ("top_k", MAX_TOP_K),
        ("top_p", 1),
        ("min_p", 1.0),
        ("repetition_penalty", 0.5),
        ("presence_penalty", -2.0),
        ("frequency_penalty", 2.0),
    ],
)
def test_what_a_request_may_have_may_be_a_default(name: str, value: float) -> None:
    assert sampling_default(name, value, "s").value == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", MIN_TEMPERATURE / 2),
        ("temperature", True),
        ("temperature", "0.7"),
        ("temperature", None),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 10**400),
        ("temperature", 1e300),  # no float32
        ("top_p", 0),
        ("top_p", 1e-50),  # 0 as a float32
        ("top_p", 1.01),
        ("top_k", 1.0),
        ("top_k", -1),
        ("top_k", MAX_TOP_K + 1),
        ("min_p", [0.1]),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.1),
    ],
)
def test_what_no_request_may_have_is_refused_by_name_and_place(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"^there: {name} is .*, and has to be "):
        sampling_default(name, value, "there")


def test_the_configuration_says_numbers_by_name() -> None:
    found = parse_default_sampling(("temperature=0.2", "top_k = 40"), "file")
    assert found == (SamplingDefault("temperature", 0.2, "file"), SamplingDefault("top_k", 40.0, "file"))


def test_openai_stands_for_all_that_nothing_else_is_said_of() -> None:
    found = parse_default_sampling(("top_p=0.5", OPENAI), "file")
    assert values(found) == values(all_defaults()) | {"top_p": 0.5}
    assert {each.source for each in found} == {"file"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("temperature",), "'temperature'"),
        (("temperature=",), "'temperature='"),
        (("seed=1",), "'seed=1'"),
        (("max_tokens=1",), "'max_tokens=1'"),
        (("temperature=warm",), "temperature is 'warm'"),
        (("top_k=1.5",), "top_k is '1.5'"),
        (("top_p=2",), r"top_p is 2\.0"),
        (("top_p=0.1", "top_p=0.2"), "top_p twice"),
    ],
)
def test_a_word_that_cannot_be_meant_is_refused_with_its_place(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as caught:
        parse_default_sampling(words, "penstock.toml:3")
    assert caught.value.message.startswith("penstock.toml:3")


def test_a_default_draws_as_a_request_that_says_the_same() -> None:
    """Both are the contract's float32, or a seed would draw another text."""
    said = pb.Sampling(temperature=0.2, top_k=40, top_p=0.9)
    for name, value in (("temperature", 0.2), ("top_k", 40), ("top_p", 0.9)):
        default = sampling_default(name, value, "s")
        assert default.in_force == getattr(said, name)
        assert type(default.in_force) is type(PARAMETERS[name].default)
