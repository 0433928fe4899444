"""Read the files that lie beside a tokenizer.json, each checked before it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest
from shared.text.retrieval_prompt import INSTRUCTED_FORM, RETRIEVAL_FORMS

MAX_JSON_BYTES = 256 << 20
"""Larger files are refused unread; the largest vocabularies in use need about 35 MB."""
MAX_TEMPLATE_BYTES = 4 << 20
"""The longest chat template; those in use have up to 30 kB."""


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
