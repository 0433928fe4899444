"""The books: reading them, holding some out, and turning them into token arrays and word lists."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from shared.demo.prompt import BOS, END

HELD_OUT_BOOKS_PER_MILLE = 40
MIN_SENTENCE_CHARACTERS = 30
MAX_SENTENCE_CHARACTERS = 180
CONTENT_WORD_RANKS = (150, 9000)
PIECE_CHARACTERS = 200_000

_FRONT_MATTER = re.compile(r"^#+ (Title|Author|Year): .*$|^-{3,}$", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
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


def sentences(texts: Iterable[str], count: int, seed: int) -> list[str]:
    """`count` whole sentences of middling length, drawn from all over `texts`."""
    random = Random(seed)  # noqa: S311 - draws training data, guards no secret
    found: list[str] = []
    for text in texts:
        for paragraph in text.split("\n\n"):
            if paragraph.startswith("#"):
                continue
            for sentence in _SENTENCE.split(" ".join(paragraph.split())):
                fits = MIN_SENTENCE_CHARACTERS <= len(sentence) <= MAX_SENTENCE_CHARACTERS
                if fits and sentence[0].isupper() and sentence.count('"') % 2 == 0:
                    found.append(sentence)
    random.shuffle(found)
    return found[:count]


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


def book_tokens(texts: Iterable[str], tokenizer: Tokenizer) -> NDArray[np.uint16]:
    """All books as one array of ids, each book between <|bos|> and <|end|>."""
    bos, end = tokenizer.token_to_id(BOS), tokenizer.token_to_id(END)
    parts: list[NDArray[np.uint16]] = []
    for text in texts:
        encoded = tokenizer.encode_batch_fast(list(pieces(text)), add_special_tokens=False)
        ids = [bos, *(token for piece in encoded for token in piece.ids), end]
        parts.append(np.asarray(ids, dtype=np.uint16))
    return np.concatenate(parts)
