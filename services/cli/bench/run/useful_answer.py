"""Tell when an answer begins to be of use: with its first sentence or JSON value, or by a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

MAX_PATTERN_CHARS = 1000
"""The longest pattern."""
MAX_LOOKED_AT_CHARS = 1 << 16
"""The beginning of an answer that is looked at."""
SENTENCE_END = re.compile(
    "\\w[^.!?\u3002\uff01\uff1f]*(?:[.!?][\"'\u201d\u2019)\\]]*\\s|[\u3002\uff01\uff1f])"
)
"""A sentence is over where something follows: the dot of a number is none."""
OPENING, CLOSING = "{[", "}]"


@dataclass(frozen=True, slots=True)
class UsefulMarker:
    """`found(text)`: the answer so far is of use. `name`: as the user said it."""

    name: str
    found: Callable[[str], bool]

    @classmethod
    def read(cls, text: str) -> Self:
        """Read "sentence", "json" or "regex:PATTERN". Raises ValueError, which says what is possible."""
        if text == "sentence":
            return cls(text, lambda answer: SENTENCE_END.search(answer) is not None)
        if text == "json":
            return cls(text, has_json_value)
        kind, colon, pattern = text.partition(":")
        if kind != "regex" or not colon or not pattern:
            raise ValueError(f"{text!r} is no marker: write sentence, json or regex:PATTERN")
        if len(pattern) > MAX_PATTERN_CHARS:
            raise ValueError(f"the pattern has over {MAX_PATTERN_CHARS} characters")
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"the pattern {pattern!r} cannot be read: {error}") from None
        return cls(text, lambda answer: compiled.search(answer) is not None)


class UsefulWatch:
    """Looks at one answer as it comes."""

    def __init__(self, marker: UsefulMarker) -> None:
        self._marker = marker
        self._text = ""
        self.is_useful = False

    def add(self, text: str) -> bool:
        """Return whether it becomes useful by this piece."""
        if self.is_useful or len(self._text) > MAX_LOOKED_AT_CHARS:
            return False
        self._text += text
        self.is_useful = self._marker.found(self._text)
        return self.is_useful

    def end(self) -> bool:
        """Return whether it becomes useful by being whole: the last sentence has nothing behind it."""
        return self.add("\n")


def has_json_value(text: str) -> bool:
    """Whether an object or an array has been closed: brackets within strings are none."""
    depth, in_string, escaped = 0, False, False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"' and depth:
            in_string = True
        elif char in OPENING:
            depth += 1
        elif char in CLOSING and depth:
            depth -= 1
            if depth == 0:
                return True
    return False
