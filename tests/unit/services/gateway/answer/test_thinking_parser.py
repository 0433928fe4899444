"""Thinking is told from the answer however the text is cut into parts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.answer.thinking_parser import ThinkingParser
from shared.text.thinking_formats import (
    COHERE,
    GRANITE,
    HARMONY,
    RESPONSE,
    THINK,
    THINKING_FORMATS,
    ThinkingFormat,
)

FINAL = "<|start|>assistant<|channel|>final<|message|>"
TEXTS = {
    "opened and closed": (THINK, False, "<think>\nSo  \n< 2.\n</think>\n\nYes.", ("So  \n< 2.", "Yes.")),
    "opened by the prompt": (THINK, True, "So.\n</think>\n\nYes.", ("So.", "Yes.")),
    "opened by both": (THINK, True, "<think>\nSo.\n</think>\n\nYes.", ("So.", "Yes.")),
    "nothing thought": (THINK, False, "<think>\n\n</think>\n\nYes.", ("", "Yes.")),
    "no thinking": (THINK, False, " \n<thin ice</think>", ("", " \n<thin ice</think>")),
    "white space alone": (THINK, False, " \n", ("", " \n")),
    "never closed": (THINK, True, "So </thin", ("So </thin", "")),
    "cut in its opening": (THINK, False, "<thi", ("", "<thi")),
    "closed at the end": (THINK, False, "<think>So.</think>\n", ("So.", "")),
    "another one later": (THINK, False, "<think>a</think>b<think>c</think>", ("a", "b<think>c</think>")),
    "an answer in marks": (
        RESPONSE,
        False,
        "<think>a</think>\n<response>It </resp.\n</response>\n",
        ("a", "It </resp."),
    ),
    "an answer without marks": (RESPONSE, False, "<think>a</think> <resp", ("a", "<resp")),
    "words for marks": (
        GRANITE,
        False,
        "Here is my thought process: a. Here is my response: b.",
        ("a.", "b."),
    ),
    "two channels": (
        HARMONY,
        False,
        f"<|channel|>analysis<|message|>a<|end|>{FINAL}b",
        ("a", "b"),
    ),
    "one channel": (HARMONY, False, "<|channel|>final<|message|>b", ("", "b")),
    "marks of all kinds": (
        COHERE,
        True,
        "a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>",
        ("a", "b"),
    ),
}


def read(parser: ThinkingParser, parts: list[str]) -> tuple[str, str]:
    got = [*map(parser.read, parts), parser.end()]
    return "".join(thought for thought, _ in got), "".join(said for _, said in got)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_the_same_however_it_is_cut(name: str) -> None:
    thinking_format, begun, text, wanted = TEXTS[name]
    for parts in [list(text), *([text[:at], text[at:]] for at in range(len(text) + 1))]:
        assert read(ThinkingParser(thinking_format, begun=begun), parts) == wanted, parts


@given(
    thinking_format=st.sampled_from(list(THINKING_FORMATS.values())),
    begun=st.booleans(),
    pieces=st.lists(st.sampled_from(["a", " ", "\n", "<", "OPEN", "CLOSE", "BEGIN", "END"]), max_size=9),
    data=st.data(),
)
def test_any_transcript_is_the_same_however_it_is_cut(
    thinking_format: ThinkingFormat, begun: bool, pieces: list[str], data: st.DataObject
) -> None:
    words = {
        "OPEN": thinking_format.opening,
        "CLOSE": thinking_format.closing,
        "BEGIN": "".join(thinking_format.answer_openings[:1]),
        "END": thinking_format.answer_closing,
    }
    text = "".join(words.get(piece, piece) for piece in pieces)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    parts = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
    whole = read(ThinkingParser(thinking_format, begun=begun), [text])
    assert read(ThinkingParser(thinking_format, begun=begun), parts) == whole


def test_nothing_is_held_back_that_can_be_no_mark() -> None:
    parser = ThinkingParser(THINK, begun=False)
    got = [parser.read(part) for part in ("<think>", "\nI ", "see <", "b> a", ".</think>", "\n", "Yes", "<")]
    assert got == [
        ("", ""),
        ("I", ""),
        (" see", ""),
        (" <b> a", ""),
        (".", ""),
        ("", ""),
        ("", "Yes"),
        ("", "<"),
    ]
