"""A line of the log as people read it, and as the object that it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)
OBJECT_FIELDS = ("ts", "level", "event", "role", "instance")
"""The fields that every object of the log has, as text."""


def log_as_text(event: Mapping[str, object]) -> str:
    """`12:30:01.123 info  ready metrics=127.0.0.1:1 pid=7`, then the traceback, if there is one."""
    fields = dict(event)
    time, level, name = str(fields.pop("ts"))[11:23], fields.pop("level"), fields.pop("event")
    traceback = fields.pop("exception", None)
    for identity in ("role", "instance"):  # who runs several has a prefix of its own for each
        fields.pop(identity, None)
    values = "".join(f" {key}={_value(value)}" for key, value in fields.items())
    line = f"{time} {level:7} {' '.join(str(name).splitlines())}{values}"
    return f"{line}\n{traceback}" if traceback else line


def log_object(line: bytes) -> dict[str, Any] | None:
    """Return the object that a line of the log is; None for a line of another form."""
    if not line.startswith(b"{"):
        return None
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_ours = isinstance(said, dict) and all(isinstance(said.get(name), str) for name in OBJECT_FIELDS)
    return said if is_ours else None


class LinePrefixes:
    """Puts the name of who said it before a line, in a colour of its own where there are colours."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._colour_of: dict[str, int] = {}

    def prefixed(self, name: str, line: bytes) -> bytes:
        """Return the line behind its name, with a line end."""
        if not self._colour:
            return name.encode() + b" | " + line + b"\n"
        colour = self._colour_of.setdefault(name, COLOURS[len(self._colour_of) % len(COLOURS)])
        return b"\x1b[%dm%s |\x1b[0m %s\n" % (colour, name.encode(), line)


def _value(value: object) -> str:
    """Write a value as it is where it is one word, else in quotes: a line stays a line."""
    text = str(value)
    return text if text.isprintable() and text and " " not in text and '"' not in text else json.dumps(text)
