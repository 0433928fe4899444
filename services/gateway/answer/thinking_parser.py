"""Tell what a model thinks from what it answers, while its text comes. Pure.

However the text is cut into parts, all of them together give the same two texts, and nothing is held back but
what may still become a marker, and white space around one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from shared.text.thinking_formats import ThinkingFormat


class _ThinkingPlace(Enum):
    """The place in a text where the unread part of it begins."""

    HEAD = auto()
    THINKING = auto()
    BREAK = auto()
    ANSWER = auto()
    TAIL = auto()


class ThinkingParser:
    """A parser for one text. `begun`: the prompt has opened the thinking already."""

    def __init__(self, thinking_format: ThinkingFormat, *, begun: bool) -> None:
        self._format = thinking_format
        self._begun = begun
        self._place = _ThinkingPlace.HEAD
        self._unread = ""
        self._thought: list[str] = []
        self._said: list[str] = []
        self._has_thought = False
        """Whether some of the thinking has been told, behind the white space that it begins with."""

    def read(self, text: str) -> tuple[str, str]:
        """Return what is known by the next part of the text: of the thinking, and of the answer."""
        if self._place is _ThinkingPlace.ANSWER and not self._format.answer_closing:
            return "", text
        self._unread += text
        steps = {
            _ThinkingPlace.HEAD: self._find_head,
            _ThinkingPlace.THINKING: self._find_closing,
            _ThinkingPlace.BREAK: self._find_answer,
            _ThinkingPlace.ANSWER: self._find_end,
            _ThinkingPlace.TAIL: self._drop_tail,
        }
        while self._unread and steps[self._place]():
            pass
        return self._take()

    def end(self) -> tuple[str, str]:
        """Return, at the end of the text, what was held back as long as a marker could have begun in it."""
        if self._place is _ThinkingPlace.THINKING or (self._place is _ThinkingPlace.HEAD and self._begun):
            self._think(self._unread)
        elif self._place in (_ThinkingPlace.HEAD, _ThinkingPlace.ANSWER):
            self._said.append(self._unread)
        elif self._place is _ThinkingPlace.BREAK:
            self._said.append(self._unread.lstrip())
        self._unread = ""
        return self._take()

    def _take(self) -> tuple[str, str]:
        parts = "".join(self._thought), "".join(self._said)
        self._thought, self._said = [], []
        return parts

    def _think(self, text: str) -> None:
        if not self._has_thought:
            text = text.lstrip()
        self._has_thought = self._has_thought or bool(text)
        self._thought.append(text)

    # ---- steps: each takes some of the unread text, or returns False to wait for more ------------------

    def _find_head(self) -> bool:
        """Find which opening the text begins with, that of the thinking, of the answer, or neither."""
        found = _first_of((self._format.opening, *self._format.answer_openings), self._unread)
        if found is None:
            return False
        if not found:
            self._place = _ThinkingPlace.THINKING if self._begun else _ThinkingPlace.ANSWER
            return True
        self._unread = self._unread.lstrip()[len(found) :]
        self._place = _ThinkingPlace.THINKING if found == self._format.opening else _ThinkingPlace.ANSWER
        return True

    def _find_closing(self) -> bool:
        thought, closing, rest = self._unread.partition(self._format.closing)
        if closing:
            self._think(thought.rstrip())
            self._unread, self._place = rest, _ThinkingPlace.BREAK
            return True
        self._unread = _behind_sure_text(self._unread, self._format.closing, self._think)
        return False

    def _find_answer(self) -> bool:
        found = _first_of(self._format.answer_openings, self._unread)
        if found is None:
            return False
        self._unread = self._unread.lstrip()[len(found) :]
        self._place = _ThinkingPlace.ANSWER
        return True

    def _find_end(self) -> bool:
        closing = self._format.answer_closing
        if not closing:
            self._said.append(self._unread)
            self._unread = ""
            return False
        said, found, rest = self._unread.partition(closing)
        if found:
            self._said.append(said.rstrip())
            self._unread, self._place = rest, _ThinkingPlace.TAIL
            return True
        self._unread = _behind_sure_text(self._unread, closing, self._said.append)
        return False

    def _drop_tail(self) -> bool:
        self._unread = ""
        return False


def _first_of(markers: tuple[str, ...], text: str) -> str | None:
    """Return the marker that `text` begins with behind its white space, "" for none of them, None while
    nobody can tell."""
    begun = text.lstrip()
    for marker in markers:
        if begun.startswith(marker):
            return marker
    if not begun or any(marker.startswith(begun) for marker in markers):
        return None
    return ""


def _behind_sure_text(text: str, marker: str, take: Callable[[str], None]) -> str:
    """Let `take` have the text in which the marker cannot begin any more; return the rest of it."""
    sizes = range(min(len(marker) - 1, len(text)), 0, -1)
    begun = next((size for size in sizes if text.endswith(marker[:size])), 0)
    sure = text[: len(text) - begun].rstrip()
    take(sure)
    return text[len(sure) :]
