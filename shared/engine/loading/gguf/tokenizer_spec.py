"""The tokenizer of a GGUF file as a tokenizer.json. Needs neither torch nor the tokenizers library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.engine.loading.families.raw_config import shown
from shared.engine.loading.gguf.header import GgufHeader
from shared.engine.loading.gguf.pre_tokenizers import find_pre_tokenizer
from shared.engine.loading.gguf.special_tokens import (
    CONTROL,
    NORMAL,
    TOKEN_TYPES,
    TOKENS,
    UNUSED,
    USER_DEFINED,
    token_id,
)

MAX_TOKENS = 1 << 20
"""The most tokens of a vocabulary."""
MAX_TOKEN_CHARS = 1024
"""The longest token."""
MAX_VOCABULARY_CHARS = 32 << 20
"""The most characters of all tokens together: each way to cut a token is looked up where the file lists no
merges."""
SPACE = "\u2581"

_Spec = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    header: GgufHeader
    tokens: list[str]
    kinds: list[int]

    def of_kind(self, *kinds: int) -> list[tuple[int, str]]:
        return [
            (index, token)
            for index, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind in kinds
        ]

    def ids(self) -> dict[str, int]:
        """The ids by token; those that fill the vocabulary up stand for nothing. Of two tokens alike the
        first
        counts."""
        used = [
            (token, index)
            for index, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind != UNUSED
        ]
        return dict(reversed(used))


def tokenizer_spec(header: GgufHeader) -> _Spec:
    """Raises InvalidRequest, naming the key, for a tokenizer that cannot be built as it is meant."""
    model = header.metadata.get("tokenizer.ggml.model")
    vocabulary = _read_vocabulary(header)
    if model == "gpt2":
        return _byte_level(vocabulary)
    if model == "llama":
        return _sentencepiece(vocabulary)
    raise header.refused(
        f"tokenizer.ggml.model {shown(model)} is not supported; use a model with gpt2 or llama"
    )


def _read_vocabulary(header: GgufHeader) -> _Vocabulary:
    tokens = header.strings(TOKENS)
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise header.refused(f"{TOKENS} has {len(tokens)} tokens, not 1 to {MAX_TOKENS}")
    if max(map(len, tokens)) > MAX_TOKEN_CHARS or sum(map(len, tokens)) > MAX_VOCABULARY_CHARS:
        raise header.refused(
            f"tokens may have {MAX_TOKEN_CHARS} characters each and {MAX_VOCABULARY_CHARS} together"
        )
    types = header.numbers(TOKEN_TYPES)
    kinds = [NORMAL] * len(tokens) if types is None else [int(kind) for kind in types]
    if len(kinds) != len(tokens):
        raise header.refused(f"{TOKEN_TYPES} has {len(kinds)} entries for {len(tokens)} tokens")
    return _Vocabulary(header, tokens, kinds)


def _byte_level(vocabulary: _Vocabulary) -> _Spec:
    header = vocabulary.header
    cut = find_pre_tokenizer(header.metadata.get("tokenizer.ggml.pre", "default"))
    ids = vocabulary.ids()
    merges = []
    for merge in header.strings("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise header.refused(f"merge {shown(merge)} is not of two tokens that make a third")
        merges.append([left, right])
    return {
        **_around(vocabulary, adds_bos=cut.adds_bos),
        "normalizer": {"type": "NFC"} if cut.composes else None,
        "pre_tokenizer": cut.spec(),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe(ids, merges, ignore_merges=cut.whole_tokens_first),
    }


def _sentencepiece(vocabulary: _Vocabulary) -> _Spec:
    """SentencePiece's BPE: spaces are a character, what is in no token becomes bytes."""
    header = vocabulary.header
    prefix = header.metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    normalizers = [{"type": "Prepend", "prepend": SPACE}, replace] if prefix else [replace]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    decoders = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *strip,
    ]
    unknown = token_id(header, "unknown_token_id")
    unk_token = (
        vocabulary.tokens[unknown] if unknown is not None and unknown < len(vocabulary.tokens) else None
    )
    ids = vocabulary.ids()
    return {
        **_around(vocabulary, adds_bos=True),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(
            ids, _merges_by_score(vocabulary), byte_fallback=True, fuse_unk=True, unk_token=unk_token
        ),
    }


def _merges_by_score(vocabulary: _Vocabulary) -> list[list[str]]:
    """Every way to put a token together from two, those of the best tokens first.

    SentencePiece merges the two neighbours that make the token of the highest score. A byte-pair encoder
    takes the first merge of a list, which comes to the same as long as scores differ.
    """
    header, ids = vocabulary.header, vocabulary.ids()
    scores = header.numbers("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise header.refused("tokenizer.ggml.scores has no score for each token")
    normal = vocabulary.of_kind(NORMAL)
    id_of = {token: ids[token] for _, token in normal}
    found: list[tuple[float, int, int]] = []
    for index, token in normal:
        if ids[token] != index:
            continue
        score = -scores[index]
        for cut in range(1, len(token)):  # Gemma has 1.7 million: the second half is not always looked up
            left = id_of.get(token[:cut])
            if left is not None and (right := id_of.get(token[cut:])) is not None:
                found.append((score, left, right))
    found.sort()
    tokens = vocabulary.tokens
    return [[tokens[left], tokens[right]] for _, left, right in found]


def _bpe(ids: dict[str, int], merges: list[list[str]], **settings: Any) -> _Spec:
    return {"type": "BPE", "unk_token": None, "vocab": ids, "merges": merges, **settings}


def _around(vocabulary: _Vocabulary, *, adds_bos: bool) -> _Spec:
    """Return what both kinds have: tokens that are matched whole, and those that stand around a text."""
    added = [(index, token, True) for index, token in vocabulary.of_kind(CONTROL)]
    added += [(index, token, False) for index, token in vocabulary.of_kind(USER_DEFINED)]
    whole = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, "special": special, **whole}
            for index, token, special in sorted(added)
            if token
        ],
        "post_processor": _template(vocabulary, adds_bos=adds_bos),
    }


def _template(vocabulary: _Vocabulary, *, adds_bos: bool) -> _Spec | None:
    before = _edge(vocabulary, "bos", adds=adds_bos)
    after = _edge(vocabulary, "eos", adds=False)
    if before is None and after is None:
        return None
    pieces: list[_Spec] = [{"Sequence": {"id": "A", "type_id": 0}}]
    special: _Spec = {}
    for edge, place in ((before, 0), (after, len(pieces) + (before is not None))):
        if edge is not None:
            index, token = edge
            pieces.insert(place, {"SpecialToken": {"id": token, "type_id": 0}})
            special[token] = {"id": token, "ids": [index], "tokens": [token]}
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": special}


def _edge(vocabulary: _Vocabulary, name: str, *, adds: bool) -> tuple[int, str] | None:
    """The token that every text begins or ends with, where there is one."""
    header = vocabulary.header
    if header.metadata.get(f"tokenizer.ggml.add_{name}_token", adds) is not True:
        return None
    index = token_id(header, f"{name}_token_id")
    if index is None:
        return None
    if not 0 <= index < len(vocabulary.tokens):
        raise header.refused(
            f"tokenizer.ggml.{name}_token_id {index} is none of {len(vocabulary.tokens)} tokens"
        )
    return index, vocabulary.tokens[index]
