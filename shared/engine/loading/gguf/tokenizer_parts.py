"""Make the files about text that a model directory has, from one GGUF file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.engine.loading.gguf.parts import read_header
from shared.engine.loading.gguf.special_tokens import TOKENS, special_tokens
from shared.engine.loading.gguf.tokenizer_spec import tokenizer_spec

_PREFIX = "tokenizer."


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    spec: dict[str, Any]  # a tokenizer.json
    special_tokens: dict[str, str]  # "bos_token" → its text, …
    chat_template: str | None
    model_vocab_size: int

    def tokenizer_json(self) -> str:
        return json.dumps(self.spec, ensure_ascii=False)


def read_tokenizer_parts(path: Path) -> TokenizerParts:
    """Raises NotFound and InvalidRequest, naming what is missing or cannot be used."""
    header = read_header(path)
    template = header.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise header.refused("tokenizer.chat_template is no text")
    embedding = header.tensors.get("token_embd.weight")
    return TokenizerParts(
        tokenizer_spec(header),
        special_tokens(header, header.strings(TOKENS)),
        template,
        0 if embedding is None else embedding.shape[0],
    )


def gguf_tokenizer_digest(path: Path) -> str:
    """32 hex digits, of all that text becomes ids by, and ids text."""
    header = read_header(path)
    return header.digest(key for key in header.metadata if key.startswith(_PREFIX))
