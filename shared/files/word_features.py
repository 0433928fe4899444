"""Read a question by its words: what a classifier goes by that asks no embedder.

Words, pairs of words, the first word and the length are hashed to places of a vector (Weinberger and others
2009), which is of length 1. The same in every process, and a fraction of a millisecond.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise
from zlib import crc32

WORD_FEATURES = "hashed-words-1"
"""The name under which a classifier says that it reads these; other features have another one."""
WORD_PLACES = 1 << 14
"""The places of the vector."""
MAX_READ_CHARS = 2000
"""The characters of a question that are read: more are left out, and embedders read less."""
_WORD = re.compile(r"\w+|[^\w\s]")


def word_features(text: str) -> dict[int, float]:
    """Return what is not 0 of the vector of a text, by place; nothing for a text without words."""
    words = _WORD.findall(text[:MAX_READ_CHARS].lower())
    if not words:
        return {}
    named = [*words, *map(" ".join, pairwise(words)), f"^ {words[0]}", f"# {len(words).bit_length()}"]
    counts = Counter(crc32(name.encode(errors="replace")) % WORD_PLACES for name in named)
    values = {place: 1.0 + math.log(count) for place, count in counts.items()}
    length = math.sqrt(sum(value * value for value in values.values()))
    return {place: value / length for place, value in values.items()}
