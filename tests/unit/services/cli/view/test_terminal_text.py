"""Text of others on a terminal."""

from __future__ import annotations

import io
import json

import pytest

from services.cli.view.terminal_text import (
    TextSink,
    escaped_controls,
    escaped_in_json,
    json_sink,
    text_sink,
)

CONTROLS = "".join(map(chr, [*range(0x20), 0x7F, *range(0x80, 0xA0)]))


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_every_control_but_newline_and_tab_is_shown_as_its_escape() -> None:
    shown = escaped_controls(CONTROLS)
    assert [each for each in shown if not each.isprintable()] == ["\t", "\n"]
    assert shown.startswith("\\x00\\x01")
    assert shown.endswith("\\x9e\\x9f")


@pytest.mark.parametrize("text", ["plain", "wörld 🙂 日本", "a\tb\nc", "\\x1b", "\u00a0\u200d"])
def test_other_text_is_shown_as_it_is(text: str) -> None:
    assert escaped_controls(text) == escaped_in_json(text) == text


def test_json_means_the_same() -> None:
    told = json.dumps({"text": CONTROLS}, ensure_ascii=False)
    escaped = escaped_in_json(told)
    assert escaped.isprintable()
    assert json.loads(escaped) == {"text": CONTROLS}


@pytest.mark.parametrize("sink", [text_sink, json_sink])
def test_a_terminal_gets_escapes_and_a_pipe_the_text(sink: object) -> None:
    assert callable(sink)
    for stream, controlled in ((Screen(), False), (io.StringIO(), True)):
        to: TextSink = sink(stream)
        assert to.write("a\x1b[2J") == 5
        to.flush()
        assert ("\x1b" in stream.getvalue()) is controlled
