"""Cut a text into sentences, by their places in it, in any script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

WIDE_ENDS = "\u3002\uff01\uff1f\u0964"
"""Points of Chinese, Japanese and Hindi: no space need follow."""
MARKS = re.compile(r"\[[1-9][0-9]?\]")
"""Numbers of passages, as a model may write them itself."""
_END = re.compile(
    r"(?:(?:[.!?…]+[\"'”\u2019»)\]]*|[:;]?(?=\s*\n))(?:\s*\[[1-9][0-9]?\])*(?=\s|\Z)"
    rf"|[{WIDE_ENDS}]+[”\u2019\u300d\u300f\uff09]*)"
)
_OPEN_END = re.compile(
    r"(?:^|[\s(\"'“])(?:[^\W\d_]|[0-9]{1,3}|[A-Za-z](?:\.[A-Za-z])+"
    r"|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Rev|Gen|Col|Capt|Lt|Sgt|Hon|Mt|Fig|Inc|Ltd|Corp|Co|etc|vs|approx|ca"
    r"|Jan|Feb|Mar|Apr|Aug|Sept?|Oct|Nov|Dec)\.$"
)
"""Initials, numbers of a list and short forms: their point ends nothing where something else follows."""


@dataclass(frozen=True, slots=True)
class TextSpan:
    """The characters `start` to `end` of a text."""

    start: int
    end: int

    def of(self, text: str) -> str:
        return text[self.start : self.end]


def sentence_spans(text: str, most: int) -> list[TextSpan]:
    """Return the first `most` sentences without the space around them; every sentence has a letter or a
    digit."""
    spans = []
    for span in _spans(text):
        if any(char.isalnum() for char in MARKS.sub("", span.of(text))):
            spans.append(span)
            if len(spans) == most:
                break
    return spans


def _spans(text: str) -> Iterator[TextSpan]:
    begin = 0
    for match in _END.finditer(text):
        if match.end() > begin and (match.end() == len(text) or _ends(text, begin, match)):
            yield from _stripped(text, begin, match.end())
            begin = match.end()
    yield from _stripped(text, begin, len(text))


def _ends(text: str, begin: int, match: re.Match[str]) -> bool:
    after = text[match.end() : match.end() + 80]
    if not after.strip() or "\n" in after[: len(after) - len(after.lstrip())] or match[0][:1] in WIDE_ENDS:
        return True
    if after.lstrip()[0].islower():
        return False
    if not match[0].startswith(".") or match[0].startswith(".."):
        return True
    return _OPEN_END.search(text[max(begin, match.start() - 12) : match.start() + 1]) is None


def _stripped(text: str, begin: int, end: int) -> Iterator[TextSpan]:
    part = text[begin:end]
    if bare := part.strip():
        start = begin + part.index(bare)
        yield TextSpan(start, start + len(bare))
