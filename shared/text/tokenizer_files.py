"""Read the parts of a tokenizer from the files of its model, each checked before it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from shared.engine.loading.gguf.tokenizer_parts import read_tokenizer_parts
from shared.errors import InvalidRequest, NotFound
from shared.text.decoder_stages import DecoderStageFactory, stage_factories
from shared.text.retrieval_prompt import INSTRUCTED_FORM, RETRIEVAL_FORMS
from shared.text.token_reach import most_token_bytes

MAX_VOCABULARY_IDS = 1 << 22
"""The ids of a vocabulary: the library walks over all of them, and a mask has a bit for each."""
PANIC = "PanicException"
"""The name of what the library raises for a fault of its own, which is no Exception."""
_PROBES = ("Hello, wörld 1\n \U0001f600", "a")
"""Texts that every tokenizer can encode, in some way."""
MAX_JSON_BYTES = 256 << 20
"""Larger files are refused unread; the largest vocabularies in use need about 35 MB."""
MAX_TEMPLATE_BYTES = 4 << 20
"""The longest chat template; those in use have up to 30 kB."""


class ReadTokenizer(NamedTuple):
    """The parts of a tokenizer, without the JSON that they were read from: most of it is the vocabulary."""

    tokenizer: Tokenizer
    stages: tuple[DecoderStageFactory, ...]
    template: str | None
    special_tokens: dict[str, str]
    model_vocab_size: int
    retrieval_form: str
    most_token_bytes: int


def read_directory(path: Path) -> ReadTokenizer:
    """Read a model directory in the Hugging Face layout.

    NotFound without tokenizer.json, InvalidRequest when a file is broken.
    """
    file = path / "tokenizer.json"
    if not file.is_file():
        raise NotFound(f"{path} has no tokenizer.json; give a model directory in the Hugging Face layout")
    config = read_optional_json(path / "tokenizer_config.json")
    special_tokens = special_tokens_of(read_optional_json(path / "special_tokens_map.json") | config)
    vocab_size = read_optional_json(path / "config.json").get("vocab_size", 0)
    return _read(
        file,
        read_json_file(file),
        file.read_text("utf-8"),
        special_tokens,
        template_source(path, config),
        vocab_size if type(vocab_size) is int else 0,
        retrieval_form(path, config),
    )


def read_gguf(file: Path) -> ReadTokenizer:
    """Read what a GGUF file has of it. InvalidRequest when it is broken."""
    parts = read_tokenizer_parts(file)
    return _read(
        file,
        parts.spec,
        parts.tokenizer_json(),
        parts.special_tokens,
        parts.chat_template,
        parts.model_vocab_size,
        INSTRUCTED_FORM,
    )


def _read(
    file: Path,
    spec: dict[str, Any],
    tokenizer_json: str,
    special_tokens: dict[str, str],
    template: str | None,
    model_vocab_size: int,
    form: str,
) -> ReadTokenizer:
    try:
        tokenizer = Tokenizer.from_str(tokenizer_json)
        _check_sizes(file, tokenizer, model_vocab_size)
        stages = stage_factories(spec.get("decoder"))
        reach = most_token_bytes(spec)
        for probe in _PROBES:
            tokenizer.decode(tokenizer.encode(probe).ids)
    except InvalidRequest:
        raise
    except BaseException as error:  # the library raises plain Exception for whatever is wrong, and panics
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise InvalidRequest(f"{file} is not a tokenizer that can be used: {error}") from error
    return ReadTokenizer(tokenizer, stages, template, special_tokens, model_vocab_size, form, reach)


def _check_sizes(file: Path, tokenizer: Tokenizer, model_vocab_size: int) -> None:
    largest = max(model_vocab_size, max(tokenizer.get_vocab().values(), default=-1) + 1)
    if largest > MAX_VOCABULARY_IDS:
        raise InvalidRequest(
            f"{file} has ids up to {largest - 1}, of which there may be {MAX_VOCABULARY_IDS}; "
            "is it the right file?"
        )


def read_json_file(file: Path) -> dict[str, Any]:
    """Return the object in a file. Raises InvalidRequest for what holds none."""
    try:
        value = json.loads(_text(file, MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{file} does not hold a JSON object")
    return value


def read_optional_json(file: Path) -> dict[str, Any]:
    """Return the same, and nothing where there is no such file."""
    return read_json_file(file) if file.is_file() else {}


def retrieval_form(path: Path, config: dict[str, Any]) -> str:
    """Return the form in which a model was taught to answer from passages. Raises InvalidRequest."""
    form = config.get("retrieval_form", INSTRUCTED_FORM)
    if not isinstance(form, str) or form not in RETRIEVAL_FORMS:
        raise InvalidRequest(
            f"retrieval_form in {path / 'tokenizer_config.json'} is {str(form)[:40]!r}; "
            f"use one of {', '.join(RETRIEVAL_FORMS)}"
        )
    return form


def special_tokens_of(config: dict[str, Any]) -> dict[str, str]:
    """ "bos_token", "eos_token", … → their text; written as a string or as an object with "content"."""
    tokens: dict[str, str] = {}
    for key, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            tokens[key] = content
    return tokens


def template_source(path: Path, config: dict[str, Any]) -> str | None:
    """The template's text: of chat_template.jinja, tokenizer_config.json, chat_template.json the first.

    Raises InvalidRequest for one that is no text.
    """
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return _text(file, MAX_TEMPLATE_BYTES)
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{file} is not UTF-8 text; download the model again") from error
    template = config.get("chat_template") or read_optional_json(path / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(template, list):  # several named ones
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[-1].get("template") if named else None
    if template is not None and not isinstance(template, str):
        raise InvalidRequest(f"the chat template of {path} is not a string; correct tokenizer_config.json")
    return template


def _text(file: Path, most_bytes: int) -> str:
    if file.stat().st_size > most_bytes:
        raise InvalidRequest(f"{file} is over the limit of {most_bytes} bytes; is it the right file?")
    return file.read_text(encoding="utf-8")
