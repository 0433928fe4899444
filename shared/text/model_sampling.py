"""Read what a model's makers say of sampling: in generation_config.json, in a GGUF file's metadata, on its
card.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shared.engine.loading.config import GENERATION_CONFIG, read_json_object
from shared.engine.loading.gguf.find_file import find_gguf
from shared.engine.loading.gguf.parts import read_header
from shared.errors import InvalidRequest
from shared.sampling.defaults import (
    OPENAI,
    TOP_K_OFF,
    SamplingDefault,
    parse_default_sampling,
    sampling_default,
)
from shared.text.model_source import ModelSource

SETTING = "default_sampling"
CONFIG_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""The fields of generation_config.json, by the names that they have here."""
GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""The keys under which llama.cpp's converter puts the fields of generation_config.json."""


def served_sampling(model: ModelSource, words: Sequence[str]) -> tuple[SamplingDefault, ...]:
    """Return what requests for this model take that do not say, where that is not built in: the model's, and
    over it
    that of the setting `words`.

    Raises InvalidRequest for what no request could say. What the setting is about is not read of the model.
    """
    stated = {each.name: each for each in parse_default_sampling(words, SETTING)}
    found: dict[str, SamplingDefault] = {}
    if OPENAI not in words:
        try:
            for name, value, source in _said_by_makers(model):
                if name not in stated:
                    found[name] = sampling_default(name, value, source)
        except InvalidRequest as error:
            raise InvalidRequest(f"{error.message}; mend that, or say {SETTING} under [model]") from error
    return tuple((found | stated).values())


def _said_by_makers(model: ModelSource) -> Iterator[tuple[str, Any, str]]:
    """(parameter, value, who says it); what is said later counts."""
    gguf = find_gguf(model.path)
    if gguf is not None:
        metadata = read_header(gguf).metadata
        for name, key in GGUF_KEYS.items():
            if key in metadata:
                yield name, _without_off(name, metadata[key]), key
    else:
        yield from _of_config(read_json_object(model.path / GENERATION_CONFIG) or {})
    for name, value in model.card_sampling:
        yield name, value, "the model's card"


def _of_config(fields: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
    for name in CONFIG_FIELDS:
        if fields.get(name) is not None:
            yield name, _without_off(name, fields[name]), GENERATION_CONFIG
    do_sample = fields.get("do_sample")
    if do_sample is not None and not isinstance(do_sample, bool):
        raise InvalidRequest(
            f"{GENERATION_CONFIG}: do_sample is {repr(do_sample)[:40]}, and has to be true or false"
        )
    if do_sample is False:
        yield "temperature", 0.0, f"{GENERATION_CONFIG}, do_sample false"


def _without_off(name: str, value: Any) -> Any:
    """Their -1 for no top-k is 0 here."""
    return 0 if name == "top_k" and value == TOP_K_OFF and type(value) is int else value
