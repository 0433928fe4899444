"""Say how much of a text one token can stand for: its size alone proves how many tokens it has at least.

What counts are the bytes of a text that are printable ASCII: of others a vocabulary may lack some, and they
are then left out of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

SURE_BYTES = bytes(range(0x20, 0x7F))
_OTHER_BYTES = bytes(set(range(256)) - set(SURE_BYTES))
_SURE_TOKENS = frozenset(SURE_BYTES.decode().replace(" ", "\u0120"))
"""Their tokens: a tokenizer of bytes writes a space as this."""
BYTE_LEVEL = "ByteLevel"
_KEEP_ALL = {"Split", "Digits", "Punctuation", BYTE_LEVEL}
"""Ways to cut a text that lose nothing of it, but for a Split or Punctuation that removes what it finds."""


def most_token_bytes(spec: Mapping[str, Any]) -> int:
    """Return the most bytes of a text that a token of this tokenizer.json stands for, 0 where nobody knows.

    It is of one that works on bytes, those of printable ASCII among its tokens, and that changes and leaves
    out nothing: no normalizer, nothing removed where the text is cut, no token that takes the spaces around
    it along.
    """
    model, added = spec.get("model") or {}, spec.get("added_tokens") or []
    vocabulary = model.get("vocab")
    cuts = list(_flat(spec.get("pre_tokenizer")))
    if spec.get("normalizer") or model.get("type") != "BPE" or not isinstance(vocabulary, dict):
        return 0
    if not cuts or cuts[-1].get("type") != BYTE_LEVEL or not all(map(_keeps_all, cuts)):
        return 0
    if not vocabulary.keys() >= _SURE_TOKENS:
        return 0
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        return 0
    return max(chain(map(len, vocabulary), (len(token["content"].encode()) for token in added)))


def sure_bytes(text: str) -> int:
    """Count the bytes of a text that are in its tokens whatever the vocabulary lacks."""
    return len(text.encode(errors="surrogatepass").translate(None, _OTHER_BYTES))


def _flat(cut: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if cut is None:
        return
    if cut.get("type") == "Sequence":
        for each in cut.get("pretokenizers") or []:
            yield from _flat(each)
    else:
        yield cut


def _keeps_all(cut: Mapping[str, Any]) -> bool:
    return cut.get("type") in _KEEP_ALL and cut.get("behavior") != "Removed"
