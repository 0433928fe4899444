"""Read the text of an answer: what its model thinks, what it says, which tools it calls. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.answer.thinking_parser import ThinkingParser
from services.gateway.request.tool_calls import ToolCallParser, new_call_id
from shared.messages import NO_THINKING, PromptThinking
from shared.sampling.thinking import OPENING_TOKENS
from shared.text.thinking_formats import THINKING_FORMATS
from shared.text.tool_formats import ToolFormat


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The way in which an answer is written.

    `thinking`: how the model thinks before it answers; `tool_format`: how it calls tools, None where it
    was told of none.
    """

    thinking: PromptThinking = NO_THINKING
    tool_format: ToolFormat | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the text is the answer as it comes."""
        return self.tool_format is None and self.thinking.format not in THINKING_FORMATS

    def reader(self, new_id: Callable[[], str] = new_call_id) -> AnswerReader:
        """Return what reads one answer; `new_id` makes the ids of its calls."""
        thinking = THINKING_FORMATS.get(self.thinking.format)
        return AnswerReader(
            None if thinking is None else ThinkingParser(thinking, begun=self.thinking.begun),
            None if self.tool_format is None else ToolCallParser(self.tool_format, new_id),
        )

    def read_whole(self, text: str, new_id: Callable[[], str] = new_call_id) -> pb.TextDelta:
        """Read a whole text at once."""
        delta, reader = pb.TextDelta(text=text), self.reader(new_id)
        reader.read_delta(delta)
        reader.end_delta(delta)
        return delta

    def count_thinking(self, token_ids: Sequence[int]) -> int:
        """Count the tokens of an output that are its thinking, with its markers, where they are tokens of
        their own; 0 where they are not."""
        thinking = self.thinking
        if thinking.closing_id < 0:
            return 0
        begun = thinking.begun or thinking.opening_id in token_ids[:OPENING_TOKENS]
        if not begun:
            return 0
        try:
            return token_ids.index(thinking.closing_id) + 1
        except ValueError:
            return len(token_ids)


PLAIN_ANSWER = AnswerFormat()


class AnswerReader:
    """Reads one answer: its thinking first, and calls in what follows that."""

    def __init__(self, thinking: ThinkingParser | None, calls: ToolCallParser | None) -> None:
        self._thinking = thinking
        self._calls = calls

    @property
    def has_called(self) -> bool:
        """Whether what was read ends with calls."""
        return self._calls is not None and self._calls.has_called

    @property
    def call_ids(self) -> Sequence[str]:
        """Return the ids of the calls that were read, in order."""
        return () if self._calls is None else self._calls.call_ids

    def read_delta(self, delta: pb.TextDelta) -> None:
        """Leave in `delta` the text that is said, and add what is thought and what is called."""
        if self._thinking is not None:
            delta.reasoning, delta.text = self._thinking.read(delta.text)
        if self._calls is not None:
            self._calls.parse_delta(delta)

    def end_delta(self, delta: pb.TextDelta) -> None:
        """Add to the last delta what was kept back, as it might have become something else."""
        rest = pb.TextDelta()
        if self._thinking is not None:
            rest.reasoning, rest.text = self._thinking.end()
        if self._calls is not None:
            self._calls.parse_delta(rest)
            rest.text += self._calls.held_text()
        delta.reasoning += rest.reasoning
        delta.text += rest.text
        delta.tool_calls.extend(rest.tool_calls)
