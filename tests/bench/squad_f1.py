"""How near an answer is to those that a person marked: the token F1 of SQuAD 1.1 (Rajpurkar et al. 2016)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_f1(answer: str, marked: Iterable[str]) -> float:
    """0 to 1: the best F1 of words between `answer` and any of `marked`.

    Case, punctuation, articles and spacing do not count; words do as often as they stand there. Two texts
    without a word are equal.
    """
    given = _words(answer)
    return max(_f1(given, _words(text)) for text in marked)


def _f1(given: list[str], wanted: list[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    shared = (Counter(given) & Counter(wanted)).total()
    return 2 * shared / (len(given) + len(wanted))


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()
