"""Sampling options of a request, read by the definition in shared.sampling.parameters; nothing is clamped."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sized
from functools import cache
from typing import Any, TypeVar

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest
from shared.sampling.defaults import DEFAULT_MAX_TOKENS
from shared.sampling.parameters import (
    MAX_TOP_LOGPROBS,
    PARAMETERS,
    SCALARS,
    Grammar,
    SamplingParams,
    check_word_length,
)

H = TypeVar("H", bound=Hashable)

CONTRACT_NAMES = {"allowed_ids": "allowed_token_ids", "bad_words": "bad_word_ids"}
"""The contract's names of fields that have another name in `SamplingParams`."""
LISTS = ("logit_bias", "stop_token_ids", "allowed_token_ids", "bad_word_ids")
"""The contract's names of what is no single value; most requests have none of them."""


def validate_sampling(
    options: pb.Sampling, *, drawn_seed: int, max_tokens: int = DEFAULT_MAX_TOKENS
) -> SamplingParams:
    """Return the parameters that go to the workers; raises InvalidRequest that names the field and its
    limits.

    `drawn_seed` is used when the request sets no seed, so that the answer can be had again, and `max_tokens`
    when it sets none. What else it leaves open is as it is built in.
    """
    said = {field.name: value for field, value in options.ListFields()}
    for name in ("logprobs", "prompt_logprobs"):
        if said.get(name, 0) < 0:
            raise InvalidRequest(
                f"sampling.{name} is {said[name]}: send an integer from 0 to "
                f"{MAX_TOP_LOGPROBS}, or leave it out"
            )
    constraint = options.WhichOneof("constraint")
    names = _names(constraint)
    values: dict[str, Any] = {"seed": drawn_seed, "max_tokens": max_tokens}
    values |= {name: value for name, value in said.items() if name in SCALARS}
    if not said.keys().isdisjoint(LISTS):
        _check_lengths(options, names)
        values |= _read_lists(options)
    if constraint is not None:
        values["grammar"] = _grammar(options)
    sampling = SamplingParams(**values)
    sampling.validate(names=names)
    if not (sampling.stop_token_ids or sampling.allowed_ids or sampling.bad_words):
        return sampling
    return dataclasses.replace(
        sampling,
        stop_token_ids=_once(sampling.stop_token_ids),
        allowed_ids=_once(sampling.allowed_ids),
        bad_words=_once(sampling.bad_words),
    )


def _read_lists(options: pb.Sampling) -> dict[str, Any]:
    return {
        "logit_bias": tuple(sorted(options.logit_bias.items())),
        "stop_token_ids": tuple(options.stop_token_ids),
        "allowed_ids": tuple(options.allowed_token_ids),
        "bad_words": tuple(tuple(word.ids) for word in options.bad_word_ids),
    }


def _check_lengths(options: pb.Sampling, names: Mapping[str, str]) -> None:
    """Raise InvalidRequest for a list that is too long before it is copied, which holds up the event loop."""
    lists: dict[str, Sized] = {
        "logit_bias": options.logit_bias,
        "stop_token_ids": options.stop_token_ids,
        "allowed_ids": options.allowed_token_ids,
        "bad_words": options.bad_word_ids,
    }
    for name, entries in lists.items():
        PARAMETERS[name].check_entries(names[name], len(entries))
    for index, word in enumerate(options.bad_word_ids):
        check_word_length(f"{names['bad_words']}[{index}]", len(word.ids))


def _grammar(options: pb.Sampling) -> Grammar | None:
    """Whether its text is a grammar is for the workers, which have the tokenizer, to say."""
    match options.WhichOneof("constraint"):
        case None:
            return None
        case "json_object":
            return Grammar("json_object") if options.json_object else None
        case "grammar":
            return Grammar("ebnf", options.grammar)
        case kind:
            return Grammar(kind, getattr(options, kind))


@cache
def _names(constraint: str | None) -> Mapping[str, str]:
    """Return the client's name for each field; `constraint` is the one of them that is set."""
    names = CONTRACT_NAMES | {"grammar": constraint or "grammar"}
    return {name: f"sampling.{names.get(name, name)}" for name in PARAMETERS}


def _once(values: Iterable[H]) -> tuple[H, ...]:
    return tuple(dict.fromkeys(values))
