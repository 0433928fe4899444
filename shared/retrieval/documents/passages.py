"""A document cut into passages that can be understood alone.

A passage stays within one section of the document, has at most MAX_WORDS words unless one sentence has more,
ends at the end of a sentence, a list item or a line of code, and begins with the last sentence of the passage
before it. The headings above it belong to it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

MAX_WORDS = 64
MIN_WORDS = 24
"""A shorter last passage of a section becomes part of the one before it."""

OVERLAP_WORDS = 16
"""A last sentence up to this long is repeated at the beginning of the next passage."""

CHARS_PER_WORD = 7
"""Text without spaces is measured by its length."""
MAX_CHARS = MAX_WORDS * CHARS_PER_WORD

MAX_HEADING_LEVEL = 6
MAX_HEADING_CHARS = 512
"""The characters of a heading that count: each passage below repeats it."""
FENCE = re.compile(r"^\s*(```|~~~)")
LINE_ITEM = re.compile(r"^\s*([-*+]\s|\d+[.)]\s|\|)")
CLOSED = r"(?<=[.!?])|(?<=[.!?][\"')\]])"
SENTENCE_END = re.compile(rf"(?:{CLOSED})\s+(?=[A-Z0-9\"'(\[`*_])|(?<=[\u3002\uff01\uff1f])")
"""A full stop with a space and a beginning after it, or one of the East Asian full stops."""

HEADING_JOIN = " > "


@dataclass(frozen=True, slots=True)
class Passage:
    """`heading` is the path of headings above it ("" for none). It was made of the characters `start` to
    `end` of the document's text."""

    heading: str
    text: str
    start: int = 0
    end: int = 0

    @property
    def embedded_text(self) -> str:
        """Return what its vector and its terms are made of."""
        return f"{self.heading}\n{self.text}" if self.heading else self.text


@dataclass(frozen=True, slots=True)
class _Line:
    """It begins at this character of the document."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class _Unit:
    """The smallest piece: a sentence, a list item, a line of code. `glue` joins it to the one before."""

    text: str
    glue: str
    words: int
    start: int
    end: int


class _Joined:
    """Lines as one text, which knows where in the document its characters stand."""

    def __init__(self, lines: list[_Line]) -> None:
        self.text = " ".join(line.text for line in lines)
        self._lines = lines
        self._begins = [0, *accumulate(len(line.text) + 1 for line in lines)][:-1]

    def unit(self, start: int, end: int, glue: str, *, indented: bool = False) -> _Unit:
        """Return the unit without the spaces around it, unless those before it are to stay."""
        text = self.text[start:end].rstrip()
        last = start + len(text) - 1
        if not indented:
            start += len(text) - len(text.lstrip())
            text = text.lstrip()
        return _Unit(text, glue, _word_count(text), self._place(start), self._place(max(start, last)) + 1)

    def _place(self, at: int) -> int:
        line = bisect_right(self._begins, at) - 1
        return self._lines[line].start + at - self._begins[line]


def _word_count(text: str) -> int:
    return max(len(text.split()), len(text) // CHARS_PER_WORD)


def split_passages(text: str, *, markdown: bool, title: str = "") -> list[Passage]:
    """The passages of a document, in its order. Its title stands above all headings."""
    sections = _markdown_sections(text) if markdown else [("", list(_lines(text)))]
    return [
        Passage(
            HEADING_JOIN.join(filter(None, (title, heading))), _text_of(units), units[0].start, units[-1].end
        )
        for heading, lines in sections
        for units in _packed(list(_units(lines)))
    ]


def has_title(text: str) -> bool:
    """Return whether Markdown has a heading of the first level."""
    in_fence = False
    for line in text.splitlines():
        if FENCE.match(line):
            in_fence = not in_fence
        elif not in_fence and (heading := read_heading(line)) is not None and heading[0] == 1:
            return True
    return False


def read_heading(line: str) -> tuple[int, str] | None:
    """Return the level and the words of a heading in Markdown, None for another line."""
    level = len(line) - len(line.lstrip("#"))
    if not 1 <= level <= MAX_HEADING_LEVEL or not line[level : level + 1].isspace():
        return None
    return level, line[level:].strip().rstrip("#").rstrip()[:MAX_HEADING_CHARS]


def _lines(text: str) -> Iterator[_Line]:
    start = 0
    for line in text.splitlines(keepends=True):
        yield _Line(line.splitlines()[0], start)
        start += len(line)


def _markdown_sections(text: str) -> Iterator[tuple[str, list[_Line]]]:
    """(heading path, lines) of every section; a # inside a code fence is no heading."""
    path: list[tuple[int, str]] = []
    lines: list[_Line] = []
    in_fence = False
    for line in _lines(text):
        if FENCE.match(line.text):
            in_fence = not in_fence
        heading = None if in_fence else read_heading(line.text)
        if heading is None:
            lines.append(line)
            continue
        yield HEADING_JOIN.join(title for _, title in path), lines
        level = heading[0]
        path = [(above, title) for above, title in path if above < level] + [heading]
        lines = []
    yield HEADING_JOIN.join(title for _, title in path), lines


def _units(lines: list[_Line]) -> Iterator[_Unit]:
    """Sentences of paragraphs; list items, table rows and lines of code as they are."""
    paragraph: list[_Line] = []
    in_fence = False
    for line in [*lines, _Line("", 0)]:
        fence = FENCE.match(line.text)
        if in_fence or fence or not line.text.strip() or LINE_ITEM.match(line.text):
            yield from _sentences(paragraph)
            paragraph = []
        if fence:
            in_fence = not in_fence
        elif in_fence:
            yield from _short(_Joined([line]), 0, len(line.text.rstrip()), "\n")
        elif line.text.strip():
            indent = len(line.text) - len(line.text.lstrip())
            paragraph.append(_Line(line.text.strip(), line.start + indent))


def _sentences(paragraph: list[_Line]) -> Iterator[_Unit]:
    joined = _Joined(paragraph)
    glue, start = "\n", 0
    ends = [match.span() for match in SENTENCE_END.finditer(joined.text)]
    for end, after in [*ends, (len(joined.text), 0)]:
        indent = len(joined.text[start:end]) - len(joined.text[start:end].lstrip())
        yield from _short(joined, start + indent, end, glue)
        glue, start = " ", after


def _short(joined: _Joined, start: int, end: int, glue: str) -> Iterator[_Unit]:
    """These characters as one unit, or as several when they are longer than a whole passage may be."""
    while end - start > MAX_CHARS + CHARS_PER_WORD or _word_count(joined.text[start:end]) > MAX_WORDS:
        piece = " ".join(joined.text[start : min(end, start + MAX_CHARS)].split(" ")[:MAX_WORDS])
        if piece.strip():
            yield joined.unit(start, start + len(piece), glue)
        start, glue = start + len(piece), " "
    if joined.text[start:end].strip():
        yield joined.unit(start, end, glue, indented=glue == "\n")


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


def _text_of(units: list[_Unit]) -> str:
    return units[0].text + "".join(unit.glue + unit.text for unit in units[1:])
