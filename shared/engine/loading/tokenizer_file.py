"""The tokenizer.json of a model, wherever it is. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from shared.engine.loading.gguf.find_file import find_gguf
from shared.engine.loading.gguf.tokenizer_parts import read_tokenizer_parts


def read_tokenizer_json(model: str | Path) -> str | None:
    """Read tokenizer.json of a directory, or what a GGUF file says in its place; None where there is none.

    Raises InvalidRequest for a GGUF file whose tokenizer cannot be used.
    """
    gguf = find_gguf(model)
    if gguf is not None:
        return read_tokenizer_parts(gguf).tokenizer_json()
    path = Path(model) / "tokenizer.json"
    return path.read_text("utf-8") if path.is_file() else None
