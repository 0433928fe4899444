"""The books: reading them, holding some out, their words."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_BOOKS_PER_MILLE = 40
CONTENT_WORD_RANKS = (150, 9000)
PIECE_CHARACTERS = 200_000

_FRONT_MATTER = re.compile(r"^#+ (Title|Author|Year): .*$|^-{3,}$", re.MULTILINE)
_WORD = re.compile(r"\b[a-z]{4,12}\b")


@dataclass(frozen=True, slots=True)
class Books:
    """The texts of a folder of books, split by a hash of the file name."""

    training: tuple[str, ...]
    held_out: tuple[str, ...]


def is_held_out_book(file_name: str) -> bool:
    """Whether a book is kept out of all training; a function of its file name alone."""
    digest = hashlib.sha256(file_name.encode()).digest()
    return int.from_bytes(digest[:4], "big") % 1000 < HELD_OUT_BOOKS_PER_MILLE


def read_books(folder: Path) -> Books:
    """Read every `*.md` of `folder`. Raises FileNotFoundError where there is none."""
    paths = sorted(folder.glob("*.md"))
    if not paths:
        raise FileNotFoundError(f"no *.md books in {folder}: pass the folder that holds them with --books")
    texts = {path.name: _FRONT_MATTER.sub("", path.read_text(encoding="utf-8")).strip() for path in paths}
    return Books(
        training=tuple(text for name, text in texts.items() if not is_held_out_book(name)),
        held_out=tuple(text for name, text in texts.items() if is_held_out_book(name)),
    )


def content_words(texts: Iterable[str]) -> list[str]:
    """Lower-case words that are neither the commonest nor the rarest, commonest first."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(text))
    first, last = CONTENT_WORD_RANKS
    return [word for word, _ in counts.most_common(last)[first:]]


def pieces(text: str) -> Iterator[str]:
    """`text` cut at paragraph ends into pieces that tokenize in parallel."""
    start = 0
    while start < len(text):
        cut = text.find("\n\n", start + PIECE_CHARACTERS)
        end = len(text) if cut < 0 else cut
        yield text[start:end]
        start = end
