"""A text as the terms of a lexical index, in any script.

Where words are separated, a term is a word, and each run of four of its letters (McNamee and Mayfield 2004:
character n-grams find inflected and compounded words in any language, without a stemmer for it). Chinese,
Japanese and Korean become characters and pairs of them; Thai, Lao, Khmer and Burmese, which separate no words
either, clusters (a consonant with the vowels and tones around it) and pairs of these. Compatibility forms,
case and accents make no difference. Nothing here asks which language a text is in: one index holds all of
them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

WORDS_FORMAT = "1"
"""Another one where terms change: an index holds the terms of one format."""

GRAM_LETTERS = 4
MAX_WORD_CHARS = 64
"""A longer one counts by its beginning: nobody asks for it."""
WORDS_REMEMBERED = 1 << 14

PAIRED = "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
"""Kana, Han, Hangul."""
CLUSTERED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Thai and Lao; Burmese; Khmer."""
_RUN = re.compile(rf"[{PAIRED}]+|[{CLUSTERED}]+|[^\s{PAIRED}{CLUSTERED}]+")
_IS_PAIRED = re.compile(f"[{PAIRED}]")
_IS_CLUSTERED = re.compile(f"[{CLUSTERED}]")
_STACKED = "[\u1039\u17d2]."
"""A sign that puts the next consonant under this one."""
_FOLLOWS = (
    "\u0e30-\u0e3a\u0e45\u0e47-\u0e4e\u0eb0-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u1056-\u1060\u17b6-\u17d3\u17dd"
)
_CLUSTER = re.compile(rf"[\u0e40-\u0e44\u0ec0-\u0ec4]*.(?:{_STACKED}|[{_FOLLOWS}])*")
_ACCENT = re.compile("[\u0300-\u036f\u05b0-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]")
"""The accents of Latin, Greek and Cyrillic letters; vowel points of Hebrew and Arabic, and the line that
stretches Arabic words."""
_LETTERS = str.maketrans(
    dict.fromkeys("\u0622\u0623\u0625\u0671", "\u0627")
    | {"\u0649": "\u064a", "\u0629": "\u0647", "\u093c": None, "\u0901": "\u0902"}
)
"""Letters that are written one way or the other: alef, yeh and teh of Arabic; dot and nasal sign of
Devanagari."""


class _WordChars(dict[int, str]):
    """A table for `str.translate`: letters, marks and digits as they are, a space for everything else."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kept = self[code] = char if unicodedata.category(char)[0] in "LMN" else " "
        return kept


_WORD_CHARS = _WordChars()


def terms_of(text: str) -> Iterator[str]:
    """Return the terms of a text in their order, as often as they occur."""
    for run in runs_of(text):
        yield from terms_of_run(run)


def runs_of(text: str) -> list[str]:
    """Return what stands together in one kind of script: a word, or what separates no words."""
    runs: list[str] = _RUN.findall(_folded(text).translate(_WORD_CHARS))
    return runs


def terms_of_run(run: str) -> tuple[str, ...]:
    if _IS_PAIRED.match(run):
        return tuple(_with_pairs(run))
    if _IS_CLUSTERED.match(run):
        return tuple(_with_pairs(_CLUSTER.findall(run)))
    return _terms_of_word(run[:MAX_WORD_CHARS])


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKC", text).casefold()
    bare = _ACCENT.sub("", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", bare).translate(_LETTERS)


def _with_pairs(units: Sequence[str]) -> Iterator[str]:
    yield from units
    for first, second in pairwise(units):
        yield first + second


@lru_cache(WORDS_REMEMBERED)
def _terms_of_word(word: str) -> tuple[str, ...]:
    """The grams know where the word begins and ends; one of up to two letters has none."""
    bounded = f"_{word}_"
    begins = range(len(bounded) - GRAM_LETTERS + 1) if len(bounded) > GRAM_LETTERS else ()
    return word, *(bounded[begin : begin + GRAM_LETTERS] for begin in begins)
