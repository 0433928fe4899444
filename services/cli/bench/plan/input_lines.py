"""Lines of a file that may be anything: bounded, and each fault said with the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest

MAX_LINE_BYTES = 16 << 20
"""The longest line of a trace or of a file of prompts."""
MAX_LINES = 2_000_000
"""The lines of such a file that are read; what is beyond is left out."""


def input_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers from 1. Raises InvalidRequest."""
    try:
        with path.open("rb") as file:
            for number in range(1, MAX_LINES + 1):
                line = file.readline(MAX_LINE_BYTES + 1)
                if not line:
                    return
                if len(line) > MAX_LINE_BYTES:
                    raise wrong_line(path, number, f"is longer than {MAX_LINE_BYTES} bytes; split the file")
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                except UnicodeDecodeError as error:
                    raise wrong_line(
                        path, number, f"is not UTF-8 ({error.reason}); convert the file"
                    ) from error
                if text:
                    yield number, text
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read ({error.strerror}); name another file") from error


def json_object(path: Path, number: int, text: str) -> dict[str, Any]:
    """Read one line. Raises InvalidRequest where it is no JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong_line(path, number, f"is no JSON ({error}); each line is one object") from error
    if not isinstance(value, dict):
        raise wrong_line(
            path, number, "is no JSON object; each line is one object, as `jq -c '.[]'` makes them"
        )
    return value


def whole_number(path: Path, number: int, row: dict[str, Any], field: str, least: int = 0) -> int:
    """Return a field of a row. Raises InvalidRequest where it is no whole number of `least` or more."""
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < least:
        raise wrong_line(path, number, f"has {field} {value!r}; it is a whole number of {least} or more")
    return int(value)


def wrong_line(path: Path, number: int, fault: str) -> InvalidRequest:
    return InvalidRequest(f"{path}, line {number}: it {fault}")
