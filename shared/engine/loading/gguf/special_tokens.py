"""Find the ids of a GGUF file's vocabulary that end an answer, and which tokens have a part of their own."""

from __future__ import annotations

from shared.engine.loading.gguf.header import GgufHeader

TOKENS, TOKEN_TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""The kinds of token in `tokenizer.ggml.token_type`."""

ENDS = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<end_of_turn>")
)
"""Control tokens that end a turn wherever they are: the file names one or two of a model's ends, and of
generation_config.json, which had all, nothing is left in it."""

_PARTS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def end_ids(header: GgufHeader) -> tuple[int, ...]:
    """Return the end ids in order, each once. Raises InvalidRequest for what is no id."""
    named = [token_id(header, f"{end}_token_id") for end in ("eos", "eot", "eom")]
    ids = [each for each in named if each is not None]
    types = header.numbers(TOKEN_TYPES)
    if types is not None:
        tokens = enumerate(zip(header.strings(TOKENS), types, strict=False))
        ids += [each for each, (token, kind) in tokens if kind == CONTROL and token in ENDS]
    return tuple(dict.fromkeys(ids))


def token_id(header: GgufHeader, name: str) -> int | None:
    """The id at tokenizer.ggml.`name`; None where there is none."""
    value = header.metadata.get(f"tokenizer.ggml.{name}")
    if value is not None and type(value) is not int:
        raise header.refused(f"tokenizer.ggml.{name} is {value!r}, which is no token id")
    return value


def special_tokens(header: GgufHeader, tokens: list[str]) -> dict[str, str]:
    """ "bos_token" and the like → their text, as tokenizer_config.json has them."""
    found = {part: token_id(header, name) for part, name in _PARTS.items()}
    return {
        part: tokens[index] for part, index in found.items() if index is not None and 0 <= index < len(tokens)
    }
