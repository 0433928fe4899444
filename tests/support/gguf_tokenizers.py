"""Metadata of GGUF files for tokenizers: a small one in the way of SentencePiece, and any byte-level one."""

from __future__ import annotations

import json
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
PIECES = ("▁", "a", "b", "c", "▁a", "ab", "▁ab", "abc", "▁abc", "bc", "ca", "aa", "aaaa")
TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"


def sentencepiece_metadata(**others: Any) -> dict[str, Any]:
    """Longer pieces have the higher scores here."""
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *PIECES,
        "<tool>",
        "[PAD0]",
    ]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(PIECES), USER_DEFINED, UNUSED]
    scores = [0.0] * 259 + [float(len(piece)) - 100.0 - index / 64 for index, piece in enumerate(PIECES)]
    metadata = {
        "ggml.model": "llama",
        "ggml.tokens": tokens,
        "ggml.token_type": kinds,
        "ggml.scores": [*scores, 0.0, -1000.0],
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.unknown_token_id": 0,
        "chat_template": TEMPLATE,
        **others,
    }
    return {f"tokenizer.{key}": value for key, value in metadata.items() if value is not None}


def byte_level_metadata(tokenizer_json: str, pre: str, **others: Any) -> dict[str, Any]:
    """What llama.cpp's conversion says of a byte-level tokenizer.json."""
    spec = json.loads(tokenizer_json)
    vocabulary = dict(spec["model"]["vocab"])
    special = {token["content"]: token["special"] for token in spec["added_tokens"]}
    vocabulary |= {token["content"]: token["id"] for token in spec["added_tokens"]}
    tokens = sorted(vocabulary, key=lambda token: int(vocabulary[token]))
    kinds = [CONTROL if special.get(each) else USER_DEFINED if each in special else NORMAL for each in tokens]
    merges = [each if isinstance(each, str) else " ".join(each) for each in spec["model"]["merges"]]
    metadata = {
        "ggml.model": "gpt2",
        "ggml.pre": pre,
        "ggml.tokens": tokens,
        "ggml.token_type": kinds,
        "ggml.merges": merges,
        **others,
    }
    return {f"tokenizer.{key}": value for key, value in metadata.items() if value is not None}
