"""Tell when an answer begins to be of use: with its first sentence or JSON value, behind its thinking, or by
a pattern."""

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
THINKING_END = re.compile(r"</think>|\[/THINK\]")
"""The end of what a model thinks, where a server leaves that in the text of the answer."""
LONGEST_THINKING_END = 8
FORMS = "sentence, json, thinking or regex:PATTERN"


@dataclass(frozen=True, slots=True)
class UsefulMarker:
    """`found(text)`: the answer so far is of use. `behind_thinking`: it is with the first text behind the end
    of its thinking, and never where it does not think. `name`: as the user said it."""

    name: str
    found: Callable[[str], bool]
    behind_thinking: bool = False

    @classmethod
    def read(cls, text: str) -> Self:
        """Read "sentence", "json", "thinking" or "regex:PATTERN". Raises ValueError, which says what is
        possible."""
        if text == "sentence":
            return cls(text, lambda answer: SENTENCE_END.search(answer) is not None)
        if text == "json":
            return cls(text, has_json_value)
        if text == "thinking":
            return cls(text, lambda behind: bool(behind.strip()), behind_thinking=True)
        kind, colon, pattern = text.partition(":")
        if kind != "regex" or not colon or not pattern:
            raise ValueError(f"{text!r} is no marker: write {FORMS}")
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
        self._thought = not marker.behind_thinking
        """The thinking that the marker waits for is over."""
        self.is_useful = False

    def add(self, text: str, *, thinking: bool = False) -> bool:
        """Return whether it becomes useful by this piece; a piece of `thinking` is none of the answer."""
        if self.is_useful or len(self._text) > MAX_LOOKED_AT_CHARS:
            return False
        if thinking:
            self._thought = True
            return False
        self._text += text
        if not self._thought:
            self._look_for_end()
        self.is_useful = self._thought and self._marker.found(self._text)
        return self.is_useful

    def end(self) -> bool:
        """Return whether it becomes useful by being whole: the last sentence has nothing behind it."""
        return self.add("\n")

    def _look_for_end(self) -> None:
        """Leave out what was thought; of thinking that goes on keep what its end may begin in."""
        end = THINKING_END.search(self._text)
        self._thought = end is not None
        self._text = self._text[end.end() :] if end else self._text[-LONGEST_THINKING_END:]


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
