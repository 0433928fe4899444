"""Compare facts that two questions must share to have one answer, however near their vectors are.

An encoder puts "in 1974" next to "in 1975" and "is it" next to "is it not". So numbers, negations and
opposites have to be the same words, and the names of each question stand in the other one. Names are known by
their capitals: of two questions without any capitals all words are compared but those that only put a
question, and of what is not in Latin letters, which the encoder has hardly seen, all words.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

_WORD = re.compile(r"\w+(?:[.,]\d+)*(?:'\w+)?")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NUMBERS = _words(
    """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million
    billion first second third fourth fifth sixth seventh eighth ninth tenth last once twice"""
)
_NEGATIONS = _words("no not never none nothing nobody neither nor without except cannot")
_OPPOSITES = _words(
    """before after more less most least fewer largest smallest highest lowest biggest longest shortest oldest
    youngest newest earliest latest best worst min minimum max maximum increase decrease increased decreased
    above below over under north south east west northern southern eastern western left right male female men
    women win won lose lost allow allowed forbid forbidden enable disable start end begin buy sell"""
)
_PLAIN = _words(
    """a an the this that these those it its he she they his her their we our i me my you your who whom whose
    what which when where why how is are was were be been being am do does did done has have had can could
    should would will shall may might must of in on at to for from by with as into about than then there and
    or if so please tell know name give list describe explain say show find us let want like wonder wondering
    many much thanks thank what's who's where's when's how's it's i'd"""
)
"""These change with the way that a question is put."""


@dataclass(frozen=True, slots=True)
class QuestionFacts:
    """`fixed`: its numbers, negations and opposites, and how often each is there; `names` is None where it
    has no capitals to tell them."""

    fixed: frozenset[tuple[str, int]]
    names: frozenset[str] | None
    words: frozenset[str]
    is_latin: bool

    def agree_with(self, other: QuestionFacts) -> bool:
        if not (self.is_latin and other.is_latin):
            return self.words == other.words
        if self.fixed != other.fixed:
            return False
        if self.names is None and other.names is None:
            return self.words - _PLAIN == other.words - _PLAIN
        return (self.names or frozenset()) <= other.words and (other.names or frozenset()) <= self.words


def facts_of(question: str) -> QuestionFacts:
    text = unicodedata.normalize("NFKC", question).replace("\u2019", "'")
    found = _WORD.findall(text)
    stems = Counter(map(_stem, found))
    has_capitals = text != text.lower() and text != text.upper()
    return QuestionFacts(
        fixed=frozenset((stem, count) for stem, count in stems.items() if _is_fixed(stem)),
        names=frozenset(_stem(word) for word in found if _is_name(word)) if has_capitals else None,
        words=frozenset(stems),
        is_latin=all(unicodedata.name(each, "").startswith("LATIN") for each in text if each.isalpha()),
    )


def _is_fixed(stem: str) -> bool:
    return (
        stem in _NUMBERS
        or stem in _OPPOSITES
        or stem in _NEGATIONS
        or any(letter.isdigit() for letter in stem)
    )


def _is_name(word: str) -> bool:
    return word[:1].isupper() and _stem(word) not in _PLAIN


def _stem(word: str) -> str:
    low = word.casefold()
    if low.endswith("n't") or low in _NEGATIONS:
        return "not"
    if any(letter.isdigit() for letter in low):
        return low.replace(",", "")
    return low if low in _PLAIN else low.removesuffix("'s")
