"""Lines of the log as objects and as text."""

from __future__ import annotations

import json

import pytest

from shared.telemetry.log_text import OBJECT_FIELDS, LinePrefixes, log_as_text, log_object

SAID = {
    "tokens": 3,
    "event": "ready",
    "role": "decode",
    "instance": "decode-0",
    "level": "info",
    "ts": "2026-01-01T12:30:01.123456Z",
}


def test_an_object_of_the_log_is_text_with_its_fields_in_their_order() -> None:
    said = log_object(json.dumps(SAID | {"why": "two words", "at": "\x1b[2J"}).encode())
    assert said is not None
    assert log_as_text(said) == '12:30:01.123 info    ready tokens=3 why="two words" at="\\u001b[2J"'
    assert log_as_text(SAID | {"exception": "line 1\nline 2"}).endswith("ready tokens=3\nline 1\nline 2")


@pytest.mark.parametrize("field", OBJECT_FIELDS)
def test_what_lacks_a_field_is_no_object_of_the_log(field: str) -> None:
    assert log_object(json.dumps({**SAID, field: 1}).encode()) is None
    assert log_object(json.dumps({name: SAID[name] for name in SAID if name != field}).encode()) is None


@pytest.mark.parametrize("line", [b"", b"hello", b"{", b"[1]", b"{" * 100_000, b'{"a": 1}', b"\xff{}"])
def test_lines_of_another_form_are_no_objects(line: bytes) -> None:
    assert log_object(line) is None


def test_each_name_keeps_a_colour_of_its_own() -> None:
    prefixes = LinePrefixes(colour=True)
    said = [prefixes.prefixed(name, b"x") for name in ("a", "b", "a")]
    assert said == [b"\x1b[36ma |\x1b[0m x\n", b"\x1b[32mb |\x1b[0m x\n", b"\x1b[36ma |\x1b[0m x\n"]
