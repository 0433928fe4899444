"""Say how the prompt after an answer begins, as its client will send it. Pure.

What follows is not known: a tool's result, or what the user says next. Two prompts that differ in that alone
begin alike for as long as everything is known, whatever the chat template writes around an answer or a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from services.gateway.answer.answer_format import AnswerFormat
from services.gateway.request.request import Request
from shared.messages import ChatTurn, ToolCall

UNKNOWN = ("a", "0")
"""Two texts that begin differently, in the place of what is not known yet."""


def next_prompts(request: Request, answer: ChatTurn, answer_ids: Sequence[int]) -> list[Request]:
    """Return requests that begin as the one after this `answer` will, and differ in what nobody knows; none
    where nothing follows from the answer, as with passages, which are found anew."""
    if request.retrieval.passages:
        return []
    if request.token_ids is not None:
        return [replace(request, token_ids=(*request.token_ids, *answer_ids))]
    if not request.chat:
        return [replace(request, text=f"{request.text}{answer.content}{unknown}") for unknown in UNKNOWN]
    said = (*request.chat, answer)
    return [replace(request, chat=(*said, *_what_follows(answer, unknown))) for unknown in UNKNOWN]


def answer_turn(text: str, answer_format: AnswerFormat, call_ids: Sequence[str]) -> ChatTurn:
    """Return an answer as a client says it in its next prompt; `call_ids` are those that it knows the calls
    by. What was thought is left out, as templates leave it out."""
    ids = iter(call_ids)
    delta = answer_format.read_whole(text, lambda: next(ids, ""))
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in delta.tool_calls)
    return ChatTurn("assistant", delta.text, tool_calls=calls)


def common_blocks(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Return how many blocks two prompts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _what_follows(answer: ChatTurn, unknown: str) -> list[ChatTurn]:
    if not answer.tool_calls:
        return [ChatTurn("user", unknown)]
    return [ChatTurn("tool", unknown, tool_call_id=call.id) for call in answer.tool_calls]
