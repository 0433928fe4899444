from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest
from shared.sampling.parameters import (
    MAX_ALLOWED_IDS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_GRAMMAR_BYTES,
    MAX_OUTPUT_TOKENS,
    PARAMETERS,
    SCALARS,
    Bounds,
    Grammar,
    SamplingParams,
)

NUMBERS = sorted(name for name, definition in SCALARS.items() if definition.bounds is not None)
LISTS = sorted(name for name, definition in PARAMETERS.items() if definition.most is not None)
ENTRIES: dict[str, Any] = {"logit_bias": (0, 1.0), "bad_words": (0,), "allowed_ids": 0, "stop_token_ids": 0}


def test_the_defaults_are_valid() -> None:
    SamplingParams().validate(10)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", True),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("presence_penalty", 2.1),
        ("frequency_penalty", float("nan")),
        ("logit_bias", ((10, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, float("nan")),)),
        ("logit_bias", ((1, 101.0),)),
        ("logit_bias", ((1, 1.0), (1, 2.0))),
        ("logit_bias", tuple((token_id, 0.0) for token_id in range(1025))),
        ("seed", 2**64),
        ("seed", 0.5),
        ("max_tokens", 0),
        ("max_tokens", -3),
        ("max_tokens", 2**31),
        ("top_k", 2**31),
        ("temperature", 10**400),
        ("min_tokens", -1),
        ("min_tokens", 129),
        ("stop_token_ids", (10,)),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", tuple(range(129))),
        ("ignore_eos", 1),
        ("logprobs", -2),
        ("logprobs", 21),
        ("temperature", 7e-6),
        ("prompt_logprobs", -2),
        ("prompt_logprobs", 21),
        ("allowed_ids", (10,)),
        ("allowed_ids", (-1,)),
        ("allowed_ids", (1,) * (MAX_ALLOWED_IDS + 1)),
        ("bad_words", ((1, 10),)),
        ("bad_words", ((True,),)),
        ("bad_words", ((),)),
        ("bad_words", ((1,) * (MAX_BAD_WORD_TOKENS + 1),)),
        ("bad_words", ((1,),) * (MAX_BAD_WORDS + 1)),
        ("grammar", Grammar("xml", "x")),
        ("grammar", Grammar("regex", "x" * (MAX_GRAMMAR_BYTES + 1))),
        ("grammar", Grammar("regex", "é" * (MAX_GRAMMAR_BYTES // 2 + 1))),
        ("grammar", Grammar("regex")),
        ("grammar", Grammar("json_object", "{}")),
    ],
)
def test_a_wrong_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field):
        replace(SamplingParams(), **{field: value}).validate(10)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.0**-17),
        ("temperature", 1e300),
        ("repetition_penalty", 1e300),
        ("repetition_penalty", 1e-300),
        ("top_k", 2**31 - 1),
        ("max_tokens", 2**31 - 1),
        ("stop_token_ids", (1,) * 128),
        ("seed", -(2**63)),
        ("seed", 2**64 - 1),
        ("prompt_logprobs", 20),
        ("allowed_ids", (1,) * MAX_ALLOWED_IDS),
        ("bad_words", ((1,) * MAX_BAD_WORD_TOKENS,) * MAX_BAD_WORDS),
        ("grammar", Grammar("regex", "x" * MAX_GRAMMAR_BYTES)),
        ("grammar", Grammar("json_object")),
    ],
)
def test_a_value_at_the_limit_is_taken(field: str, value: Any) -> None:
    replace(SamplingParams(), **{field: value}).validate(10)


def params(**values: Any) -> SamplingParams:
    """With room for every min_tokens."""
    return replace(SamplingParams(max_tokens=MAX_OUTPUT_TOKENS), **values)


def inner_edges(bounds: Bounds) -> Iterator[float]:
    yield math.nextafter(bounds.low, math.inf) if bounds.above_low else bounds.low
    yield bounds.high
    if bounds.also is not None:
        yield bounds.also


def outer_edges(bounds: Bounds) -> Iterator[float]:
    if bounds.integer:
        yield from (bounds.low - 1, bounds.high + 1, bounds.high - 0.5)
    else:
        yield bounds.low if bounds.above_low else math.nextafter(bounds.low, -math.inf)
        yield from (math.nextafter(bounds.high, math.inf), math.nan, -math.inf)
    yield True


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_has_a_default_and_a_meaning(name: str) -> None:
    definition = PARAMETERS[name]
    assert getattr(SamplingParams(), name) == definition.default
    assert definition.help
    assert "%" not in definition.help  # argparse would take it for a format


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_taken_at_its_edges_and_refused_by_name_beyond_them(name: str) -> None:
    bounds = PARAMETERS[name].bounds
    assert bounds is not None
    for value in inner_edges(bounds):
        params(**{name: value}).validate()
    for value in outer_edges(bounds):
        with pytest.raises(InvalidRequest, match=f"^{name} is .*: send ") as caught:
            params(**{name: value}).validate()
        assert caught.value.message.endswith(str(bounds))


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_taken_with_the_most_entries_and_refused_by_name_with_one_more(name: str) -> None:
    most = PARAMETERS[name].most
    assert most is not None
    entries = [ENTRIES[name]] * most if name != "logit_bias" else [(n, 1.0) for n in range(most)]
    params(**{name: tuple(entries)}).validate()
    with pytest.raises(InvalidRequest, match=f"^{name} has {most + 1} entries: send at most {most}$"):
        params(**{name: (*entries, ENTRIES[name])}).validate()


@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_a_flag_is_true_or_false(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^ignore_eos is .*: send true or false$"):
        params(ignore_eos=value).validate()


def test_every_parameter_is_a_number_a_flag_a_list_the_grammar_or_a_rule_for_thinking() -> None:
    flags = [name for name, definition in SCALARS.items() if definition.default is False]
    kinds = [*NUMBERS, *flags, *LISTS, "grammar", "thinking"]
    assert sorted(kinds) == sorted(field.name for field in fields(SamplingParams))


def test_a_caller_is_told_by_its_own_name_for_the_field() -> None:
    with pytest.raises(InvalidRequest, match=r"^sampling\.regex is empty"):
        params(grammar=Grammar("regex")).validate(names={"grammar": "sampling.regex"})
    with pytest.raises(InvalidRequest, match=r"^top_k is "):
        params(top_k=-1).validate(names={"grammar": "sampling.regex"})


def test_the_contract_has_every_number_and_flag_and_no_other() -> None:
    contract = pb.Sampling.DESCRIPTOR
    constraints = contract.oneofs_by_name["constraint"].fields
    offered = {field.name for field in contract.fields if not field.is_repeated and field not in constraints}
    assert offered == SCALARS.keys()


def test_bad_words_that_leave_no_allowed_id_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="nothing is left"):
        SamplingParams(allowed_ids=(3, 4), bad_words=((3,), (4,))).validate(10)
    SamplingParams(allowed_ids=(3, 4), bad_words=((3,), (4, 4))).validate(10)


def test_min_tokens_that_the_allowed_ids_cannot_satisfy_are_refused() -> None:
    wanted = SamplingParams(min_tokens=1, allowed_ids=(3, 4), stop_token_ids=(3, 4, 5))
    with pytest.raises(InvalidRequest, match="min_tokens"):
        wanted.validate(10)
    replace(wanted, min_tokens=0).validate(10)


def test_min_tokens_that_no_token_can_satisfy_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="whole vocabulary"):
        SamplingParams(min_tokens=1, stop_token_ids=tuple(range(10))).validate(10)


def test_importing_sampling_params_does_not_load_torch() -> None:
    code = "import sys; from shared.engine import SamplingParams; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_importing_the_grammar_does_not_load_torch() -> None:
    code = "import sys; import shared.engine.sampling.grammar; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
