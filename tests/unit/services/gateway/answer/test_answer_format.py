"""An answer's thinking, text and calls are read together, and its tokens of thinking counted."""

from __future__ import annotations

from itertools import count

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.answer.answer_format import PLAIN_ANSWER, AnswerFormat
from shared.messages import PromptThinking
from shared.text.tool_formats import HERMES, LLAMA

OPENING, CLOSING = 7, 8
THINKING = PromptThinking("think", opening_id=OPENING, closing_id=CLOSING)
BEGUN = PromptThinking("think", begun=True, opening_id=OPENING, closing_id=CLOSING)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TEXT = f"<think>\nIs <tool_call> what I want?\n</think>\n\nI look.\n{CALL}"


def read(answer_format: AnswerFormat, parts: list[str]) -> pb.TextDelta:
    """Return all deltas as one, each call as one delta of it."""
    ids = count()
    reader = answer_format.reader(lambda: f"id{next(ids)}")
    deltas = [pb.TextDelta(text=part) for part in parts]
    for delta in deltas:
        reader.read_delta(delta)
    reader.end_delta(deltas[-1])
    whole = pb.TextDelta()
    for delta in deltas:
        whole.reasoning += delta.reasoning
        whole.text += delta.text
        for call in delta.tool_calls:
            if call.id:
                whole.tool_calls.add(index=call.index, id=call.id, name=call.name)
            whole.tool_calls[-1].arguments += call.arguments
    return whole


def test_thinking_and_calls_are_the_same_however_the_text_is_cut() -> None:
    call = pb.ToolCallDelta(index=0, id="id0", name="f", arguments='{"a": 1}')
    wanted = pb.TextDelta(reasoning="Is <tool_call> what I want?", text="I look.", tool_calls=[call])
    for at in range(len(TEXT) + 1):
        assert read(AnswerFormat(THINKING, HERMES), [TEXT[:at], TEXT[at:]]) == wanted, at
    assert read(AnswerFormat(THINKING, HERMES), list(TEXT)) == wanted


def test_a_call_that_is_the_whole_answer_is_found_behind_the_thinking() -> None:
    text = 'so</think>\n\n{"name": "f", "parameters": {}}'
    assert read(AnswerFormat(BEGUN, LLAMA), list(text)) == pb.TextDelta(
        reasoning="so", tool_calls=[pb.ToolCallDelta(id="id0", name="f", arguments="{}")]
    )


def test_a_plain_answer_is_read_as_it_is() -> None:
    assert PLAIN_ANSWER.is_plain
    assert not AnswerFormat(THINKING).is_plain
    assert PLAIN_ANSWER.read_whole(TEXT) == pb.TextDelta(text=TEXT)
    assert AnswerFormat(PromptThinking("of a later version")).is_plain


@pytest.mark.parametrize(
    ("thinking", "ids", "counted"),
    [
        (BEGUN, [1, 2, CLOSING, 3], 3),
        (BEGUN, [1, 2], 2),
        (THINKING, [OPENING, 1, CLOSING, 3], 3),
        (THINKING, [5, OPENING, 1], 3),
        (THINKING, [1, 2, 3, 4, OPENING, 1], 0),
        (THINKING, [1, CLOSING], 0),
        (PromptThinking("think", begun=True), [1, 2], 0),
        (PLAIN_ANSWER.thinking, [1, 2], 0),
    ],
)
def test_tokens_of_thinking_are_counted_with_its_marks(
    thinking: PromptThinking, ids: list[int], counted: int
) -> None:
    assert AnswerFormat(thinking).count_thinking(ids) == counted
