from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from shared.errors import InvalidRequest
from shared.sampling import (
    MAX_ALLOWED_IDS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_GRAMMAR_BYTES,
    Grammar,
    SamplingParams,
)


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
        ("prompt_logprobs", 20),
        ("allowed_ids", (1,) * MAX_ALLOWED_IDS),
        ("bad_words", ((1,) * MAX_BAD_WORD_TOKENS,) * MAX_BAD_WORDS),
        ("grammar", Grammar("regex", "x" * MAX_GRAMMAR_BYTES)),
        ("grammar", Grammar("json_object")),
    ],
)
def test_a_value_at_the_limit_is_taken(field: str, value: Any) -> None:
    replace(SamplingParams(), **{field: value}).validate(10)


def test_bad_words_that_leave_no_allowed_id_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="nothing is left"):
        SamplingParams(allowed_ids=(3, 4), bad_words=((3,), (4,))).validate(10)
    SamplingParams(allowed_ids=(3, 4), bad_words=((3,), (4, 4))).validate(10)


def test_min_tokens_that_the_allowed_ids_cannot_satisfy_are_refused() -> None:
    params = SamplingParams(min_tokens=1, allowed_ids=(3, 4), stop_token_ids=(3, 4, 5))
    with pytest.raises(InvalidRequest, match="min_tokens"):
        params.validate(10)
    replace(params, min_tokens=0).validate(10)


def test_min_tokens_that_no_token_can_satisfy_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="whole vocabulary"):
        SamplingParams(min_tokens=1, stop_token_ids=tuple(range(10))).validate(10)


def test_importing_sampling_params_does_not_load_torch() -> None:
    code = "import sys; from shared.engine import SamplingParams; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_importing_the_grammar_does_not_load_torch() -> None:
    code = "import sys; import shared.engine.sampling.grammar; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
