"""Read what a Markdown file says of itself above its text, between two lines of `---`: a part of YAML.

Read are fields with a text, a number or a truth value, as they are written, and lists of these: `[a, b]`, or
lines of `- a` below the field. Fields with anything else, such as tables and texts of several lines, are left
out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from shared.retrieval.documents.metadata import Pairs, tidied_metadata

MARK, ENDS = "---", ("---", "...")
QUOTES = ("'", '"')
MAX_LINES = 256
"""The most lines of front matter: what is longer is text."""

_ITEM = re.compile(r"\s*-(?:\s+(.*))?$")
_MORE = re.compile(r"\s")
"""Begins a line that belongs to the field above it."""
_COMMENT = re.compile(r"(^|\s)#.*$")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'")
_NO_FIELD = re.compile(r"[\s#:\-\[\]{}\"'&*!|>%@`]")
"""Begins a line that is no plain field."""
_SPACES = re.compile(r"\s*")
_PLAIN_ITEM = re.compile(r"[^,\"'\[\]{}]*")
_NOTHING = ("", "~", "null", "Null", "NULL")
_UNREAD = tuple("{[&*!|>%@`")
"""The characters that no plain text begins with."""


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """`end` is the character of the text behind it; 0: there is none."""

    metadata: Pairs
    end: int


NO_FRONT_MATTER = FrontMatter((), 0)


def read_front_matter(text: str) -> FrontMatter:
    """Read the front matter of a text whose lines end with \\n. What is not all of such fields is no front
    matter, but text."""
    lines = text.split("\n", MAX_LINES + 1)[: MAX_LINES + 1]
    if lines[0].rstrip() != MARK:
        return NO_FRONT_MATTER
    last = next((number for number, line in enumerate(lines) if number and line.rstrip() in ENDS), 0)
    values: dict[str, list[str]] = {}
    field = ""
    for line in lines[1:last]:
        if not line.strip() or line.startswith("#"):
            continue
        if item := _ITEM.match(line):
            if not field:
                return NO_FRONT_MATTER
            values[field] += _scalar(item[1] or "")
        elif not _MORE.match(line):
            found = _field(line)
            if found is None:
                return NO_FRONT_MATTER
            field = found[0]
            values[field] = list(_values(found[1]))
    if not values:
        return NO_FRONT_MATTER
    pairs = [(name, value) for name, of in values.items() for value in of]
    return FrontMatter(tidied_metadata(pairs), sum(len(line) + 1 for line in lines[: last + 1]))


def _field(line: str) -> tuple[str, str] | None:
    """Return the name and the value of a line, None for one that is no field."""
    quoted = _QUOTED.match(line)
    if quoted is None and _NO_FIELD.match(line):
        return None
    name, colon, value = line[quoted.end() if quoted else 0 :].partition(":")
    if not colon or (value and not value[0].isspace()) or (quoted and name.strip()):
        return None
    return "".join(_unquoted(quoted[0])) if quoted else name.rstrip(), value.strip()


def _values(text: str) -> Iterator[str]:
    text = text.strip()
    listed = text if text.startswith(QUOTES) else _COMMENT.sub("", text).strip()
    if not (listed.startswith("[") and listed.endswith("]")):
        yield from _scalar(text)
        return
    at, end = 1, len(listed) - 1
    while at < end:
        at = _after_spaces(listed, at, end)
        found = _QUOTED.match(listed, at, end) or _PLAIN_ITEM.match(listed, at, end)
        assert found is not None  # the second fits anything
        after = _after_spaces(listed, found.end(), end)
        if after < end and listed[after] != ",":
            return
        yield from _scalar(found[0])
        at = after + 1


def _after_spaces(text: str, at: int, end: int) -> int:
    found = _SPACES.match(text, at, end)
    return at if found is None else found.end()


def _scalar(text: str) -> list[str]:
    """The value, if it is one that is read."""
    text = text.strip()
    if quoted := _QUOTED.match(text):
        return _unquoted(quoted[0])
    text = _COMMENT.sub("", text).strip()
    if text in _NOTHING or text.startswith(_UNREAD) or ": " in text or text.endswith(":"):
        return []
    return [text]


def _unquoted(text: str) -> list[str]:
    if text.startswith("'"):
        return [text[1:-1].replace("''", "'")]
    try:
        return [json.loads(text)]
    except ValueError:  # an escape that only YAML has
        return []
