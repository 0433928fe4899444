"""A document cut into passages that can be understood alone.

A passage stays within one section of the document, has at most MAX_WORDS words unless one sentence has more,
ends at the end of a sentence, a list item or a line of code, and begins with the last sentence of the passage
before it. The headings above it belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_WORDS = 64
MIN_WORDS = 24
"""A shorter last passage of a section becomes part of the one before it."""

OVERLAP_WORDS = 16
"""A last sentence up to this long is repeated at the beginning of the next passage."""

CHARS_PER_WORD = 7
"""Text without spaces is measured by its length."""

HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
FENCE = re.compile(r"^\s*(```|~~~)")
LINE_ITEM = re.compile(r"^\s*([-*+]\s|\d+[.)]\s|\|)")
CLOSED = r"(?<=[.!?])|(?<=[.!?][\"')\]])"
SENTENCE_END = re.compile(rf"(?:{CLOSED})\s+(?=[A-Z0-9\"'(\[`*_])|(?<=[\u3002\uff01\uff1f])")
"""A full stop with a space and a beginning after it, or one of the East Asian full stops."""

HEADING_JOIN = " > "


@dataclass(frozen=True, slots=True)
class Passage:
    """`heading` is the path of headings above it ("" for none)."""

    heading: str
    text: str

    @property
    def embedded_text(self) -> str:
        """What its vector is made of."""
        return f"{self.heading}\n{self.text}" if self.heading else self.text


@dataclass(frozen=True, slots=True)
class _Unit:
    """The smallest piece: a sentence, a list item, a line of code. `glue` joins it to the one before."""

    text: str
    glue: str
    words: int

    @classmethod
    def of(cls, text: str, glue: str) -> _Unit:
        return cls(text, glue, _word_count(text))


def _word_count(text: str) -> int:
    return max(len(text.split()), len(text) // CHARS_PER_WORD)


def split_passages(text: str, *, markdown: bool) -> list[Passage]:
    """The passages of a document, in its order."""
    sections = _markdown_sections(text) if markdown else [("", text.splitlines())]
    return [
        Passage(heading, _joined(units))
        for heading, lines in sections
        for units in _packed(list(_units(lines)))
    ]


def _markdown_sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """(heading path, lines) of every section; a # inside a code fence is no heading."""
    path: list[tuple[int, str]] = []
    lines: list[str] = []
    in_fence = False
    for line in text.splitlines():
        if FENCE.match(line):
            in_fence = not in_fence
        heading = None if in_fence else HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        yield HEADING_JOIN.join(title for _, title in path), lines
        level = len(heading[1])
        path = [(above, title) for above, title in path if above < level] + [(level, heading[2])]
        lines = []
    yield HEADING_JOIN.join(title for _, title in path), lines


def _units(lines: list[str]) -> Iterator[_Unit]:
    """Sentences of paragraphs; list items, table rows and lines of code as they are."""
    paragraph: list[str] = []
    in_fence = False
    for line in [*lines, ""]:
        fence = FENCE.match(line)
        if in_fence or fence or not line.strip() or LINE_ITEM.match(line):
            yield from _sentences(paragraph)
            paragraph = []
        if fence:
            in_fence = not in_fence
        elif in_fence:
            yield from _short(line.rstrip(), "\n")
        elif line.strip():
            paragraph.append(line.strip())


def _sentences(paragraph: list[str]) -> Iterator[_Unit]:
    glue = "\n"
    for sentence in SENTENCE_END.split(" ".join(paragraph)):
        yield from _short(sentence.strip(), glue)
        glue = " "


def _short(text: str, glue: str) -> Iterator[_Unit]:
    """The text as one unit, or cut into several when it is longer than a whole passage may be."""
    if not text.strip():
        return
    while _word_count(text) > MAX_WORDS:
        piece = " ".join(text.split(" ")[:MAX_WORDS])[: MAX_WORDS * CHARS_PER_WORD]
        yield _Unit.of(piece.strip(), glue)
        text, glue = text[len(piece) :], " "
    if text.strip():
        yield _Unit.of(text if glue == "\n" else text.strip(), glue)


def _packed(units: list[_Unit]) -> Iterator[list[_Unit]]:
    """Units gathered into passages; the last one is not shorter than it must be."""
    packed: list[list[_Unit]] = []
    current: list[_Unit] = []
    for unit in units:
        if current and _words(current) + unit.words > MAX_WORDS:
            packed.append(current)
            overlap = current[-1:] if len(current) > 1 and current[-1].words <= OVERLAP_WORDS else []
            current = overlap if _words(overlap) + unit.words <= MAX_WORDS else []
        current = [*current, unit]
    if current:
        packed.append(current)
    if len(packed) > 1 and _words(packed[-1]) < MIN_WORDS:
        packed[-2:] = [_merged(packed[-2], packed[-1])]
    yield from packed


def _merged(first: list[_Unit], last: list[_Unit]) -> list[_Unit]:
    return first + (last[1:] if last[0] is first[-1] else last)


def _words(units: list[_Unit]) -> int:
    return sum(unit.words for unit in units)


def _joined(units: list[_Unit]) -> str:
    return units[0].text + "".join(unit.glue + unit.text for unit in units[1:])
