"""Parse calls of tools out of a model's text while the text comes. Pure.

The grammar of the request (`tool_grammar`) lets the model write calls in its format alone, so nothing is
guessed here: a call can be cut short, and nothing else can be wrong with it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from enum import Enum, auto

from protos.penstock.v1 import inference_pb2 as pb
from shared.seams.chance import CHANCE
from shared.text.tool_formats import ToolFormat

CALL_ID_CHARS = 9
"""Letters and digits; some templates take ids of no other length."""
TOOL_NAME = r"[a-zA-Z0-9_-]{1,64}"


def new_call_id() -> str:
    return "".join(CHANCE.one_of(string.ascii_letters + string.digits) for _ in range(CALL_ID_CHARS))


class _Place(Enum):
    """The place in an answer where the unread text begins."""

    TEXT = auto()
    CALL = auto()
    ARGUMENTS = auto()
    TAIL = auto()
    NEXT_CALL = auto()


class ToolCallParser:
    """A parser for one answer; `new_id` makes the ids of its calls."""

    def __init__(self, tool_format: ToolFormat, new_id: Callable[[], str] = new_call_id) -> None:
        self._format = tool_format
        self._new_id = new_id
        self._place = _Place.TEXT
        self._call = _begin_of_call(tool_format, first=True)
        self._is_text = False
        self._unread = ""
        self._held = ""
        self._calls = 0
        self._json = _JsonObject()
        self.call_ids: list[str] = []
        """The ids of the calls, in order."""
        self._text: list[str] = []
        self._deltas: list[pb.ToolCallDelta] = []

    @property
    def has_called(self) -> bool:
        """Whether there are calls, and none is cut short."""
        return self._calls > 0 and self._place is _Place.NEXT_CALL

    def parse_delta(self, delta: pb.TextDelta) -> None:
        """Leave in `delta` the text that is none of a call, and add what is called."""
        self._unread += delta.text
        steps = {
            _Place.TEXT: self._find_call,
            _Place.CALL: self._begin_call,
            _Place.ARGUMENTS: self._read_arguments,
            _Place.TAIL: self._end_call,
            _Place.NEXT_CALL: self._find_next_call,
        }
        while self._unread and steps[self._place]():
            pass
        delta.text = "".join(self._text)
        delta.tool_calls.extend(self._deltas)
        self._text, self._deltas = [], []

    def held_text(self) -> str:
        """Return, at the end of the answer, the text that was kept back because it might have become a
        call."""
        if self._place in (_Place.TEXT, _Place.CALL):
            return self._held + self._unread
        return ""

    # ---- steps: each takes some of the unread text, or returns False to wait for more ------------------

    def _find_call(self) -> bool:
        if not self._format.opening:
            return self._find_head()
        text, opening, rest = self._unread.partition(self._format.opening)
        if opening:
            self._text.append(text.rstrip())
            self._held = text[len(text.rstrip()) :] + opening
            self._unread, self._place = rest, _Place.CALL
            return True
        keep = _possible_opening(self._unread, self._format.opening)
        self._text.append(self._unread[: len(self._unread) - keep])
        self._unread = self._unread[len(self._unread) - keep :]
        return False

    def _find_head(self) -> bool:
        """Return whether the text begins with a call; only its first characters tell."""
        head = self._format.head
        if not self._is_text and self._unread.startswith(head):
            self._place = _Place.CALL
            return True
        if not self._is_text and head.startswith(self._unread):
            return False
        self._is_text = True
        self._text.append(self._unread)
        self._unread = ""
        return False

    def _begin_call(self) -> bool:
        found = self._call.match(self._unread)
        if found is None:
            return False
        self.call_ids.append(self._new_id())
        self._deltas.append(pb.ToolCallDelta(index=self._calls, id=self.call_ids[-1], name=found[1]))
        self._calls += 1
        self._json = _JsonObject()
        self._unread, self._place = self._unread[found.end() :], _Place.ARGUMENTS
        return True

    def _read_arguments(self) -> bool:
        part = self._json.take(self._unread)
        index = self._calls - 1
        if self._deltas and self._deltas[-1].index == index:
            self._deltas[-1].arguments += part
        else:
            self._deltas.append(pb.ToolCallDelta(index=index, arguments=part))
        self._unread = self._unread[len(part) :]
        if self._json.complete:
            self._place = _Place.TAIL
        return True

    def _end_call(self) -> bool:
        if not self._unread.startswith(self._format.tail):
            return False
        self._unread = self._unread[len(self._format.tail) :]
        self._place = _Place.NEXT_CALL
        return True

    def _find_next_call(self) -> bool:
        between = self._format.between
        if not between or not self._unread.startswith(between):
            return False
        self._held, self._unread = between, self._unread[len(between) :]
        self._call = _begin_of_call(self._format, first=False)
        self._place = _Place.CALL
        return True


class _JsonObject:
    """A scanner that finds the end of a JSON object which comes in parts."""

    def __init__(self) -> None:
        self.complete = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def take(self, text: str) -> str:
        """Return as much of `text` as belongs to the object."""
        for place, char in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = char == "\\"
                self._in_string = char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    self.complete = True
                    return text[: place + 1]
        return text


def _begin_of_call(tool_format: ToolFormat, *, first: bool) -> re.Pattern[str]:
    begin = (" ?" if tool_format.spaced else "") + re.escape(tool_format.begin) if first else ""
    return re.compile(f"{begin}{re.escape(tool_format.head)}({TOOL_NAME}){re.escape(tool_format.middle)}")


def _possible_opening(text: str, opening: str) -> int:
    """Count the last characters in which an opening may begin, with the white space before it."""
    sizes = range(min(len(opening) - 1, len(text)), 0, -1)
    begun = next((size for size in sizes if text.endswith(opening[:size])), 0)
    before = text[: len(text) - begun]
    return begun + len(before) - len(before.rstrip())
