"""Say how byte-level tokenizers cut a text before they merge, by the names that GGUF files have for it.

The expressions are those of the models' own tokenizer.json, in the spelling that the `tokenizers` library
takes; where llama.cpp has one of its own, it stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.engine.loading.families.raw_config import shown
from shared.errors import InvalidRequest

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_FIRST = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = rf"{_FIRST}{_UPPER}*{_LOWER}+|{_FIRST}{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_REST}"
_GPT4O = (
    rf"{_FIRST}{_UPPER}*{_LOWER}+{_ENDINGS}?|{_FIRST}{_UPPER}+{_LOWER}*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}|{_CASED_REST}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`splits` are applied one after another, each to what the one before left whole or cut out."""

    splits: tuple[str, ...]
    whole_tokens_first: bool = False  # a piece that is a token is not merged together
    adds_bos: bool = False  # unless the file says so itself
    composes: bool = False  # Unicode's NFC before anything else

    def spec(self) -> dict[str, Any]:
        """The `pre_tokenizer` of a tokenizer.json."""
        if self.splits == (_GPT2,):
            return _byte_level(use_regex=True)
        splits = [
            {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
            for each in self.splits
        ]
        return {"type": "Sequence", "pretokenizers": [*splits, _byte_level(use_regex=False)]}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    """The library's own expression, which `use_regex` turns on, is GPT-2's."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_LLAMA3_LIKE = PreTokenizer((_LLAMA3,), whole_tokens_first=True, adds_bos=True)

PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer((_GPT2,)),
    "phi-2": PreTokenizer((_GPT2,)),
    "olmo": PreTokenizer((_GPT2,)),
    "exaone4": PreTokenizer((_GPT2,)),
    # llama.cpp takes this one for files that name none.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    "starcoder": PreTokenizer((r"\p{N}", _GPT2)),
    "refact": PreTokenizer((r"\p{N}", _GPT2)),
    "command-r": PreTokenizer((r"\p{N}", _GPT2)),
    "glm4": PreTokenizer((_LLAMA3,)),
    "chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "llama-bpe": _LLAMA3_LIKE,
    "llama-v3": _LLAMA3_LIKE,
    "llama3": _LLAMA3_LIKE,
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "dbrx": PreTokenizer((_LLAMA3,)),
    "tekken": PreTokenizer((_TEKKEN,), whole_tokens_first=True, adds_bos=True),
    "gpt-4o": PreTokenizer((_GPT4O,)),
    "qwen2": PreTokenizer((_QWEN2,), composes=True),
    "deepseek-r1-qwen": PreTokenizer((_QWEN2,), composes=True),
}


def find_pre_tokenizer(name: object) -> PreTokenizer:
    """Raises InvalidRequest with the name where it is not known."""
    found = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidRequest(
            f"tokenizer.ggml.pre {shown(name)} is not supported; use one of {', '.join(PRE_TOKENIZERS)}, "
            "or the Hugging Face directory of the model"
        )
    return found
