"""A chat in fewer tokens: JSON of tools, space that says nothing, and never what the model wrote."""

from __future__ import annotations

import pytest

from shared.messages import ChatTurn, TrimmedPart
from shared.trimming.compact_chat import compact_chat

WIDE = '{\n  "rain": [1, 2],\n  "note": "a  b"\n}'
SHORT = '{"rain":[1,2],"note":"a  b"}'
LOOSE, TIGHT = "one  \n\n\n\ntwo", "one\n\ntwo"


@pytest.mark.parametrize(
    ("turn", "content", "what"),
    [
        (ChatTurn("tool", WIDE, tool_call_id="1"), SHORT, "json"),
        (ChatTurn("function", WIDE), SHORT, "json"),
        (ChatTurn("user", LOOSE), TIGHT, "whitespace"),
        (ChatTurn("system", LOOSE), TIGHT, "whitespace"),
        (ChatTurn("tool", LOOSE), TIGHT, "whitespace"),
    ],
)
def test_a_turn_is_written_shorter_and_what_that_saved_is_told(
    turn: ChatTurn, content: str, what: str
) -> None:
    left = compact_chat([turn], len)
    assert [each.content for each in left.turns] == [content]
    assert left.parts == (TrimmedPart(what, 1, len(turn.content) - len(content)),)


@pytest.mark.parametrize(
    "turn",
    [ChatTurn("assistant", LOOSE), ChatTurn("user", WIDE), ChatTurn("user", TIGHT), ChatTurn("tool", SHORT)],
)
def test_what_may_be_meant_as_it_is_stays_letter_by_letter(turn: ChatTurn) -> None:
    assert compact_chat([turn], len).turns == (turn,)


def test_a_turn_that_has_no_fewer_tokens_stays_as_it_is() -> None:
    left = compact_chat([ChatTurn("user", LOOSE)], lambda _: 1)
    assert (left.turns[0].content, left.parts) == (LOOSE, ())
