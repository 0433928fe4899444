"""What waits to be written to one client: bounded, and coalesced when the client reads slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.outcome import Outcome
from services.gateway.tool_calls import ToolCallParser
from shared.errors import Cancelled
from shared.sampling import TokenLogprob
from shared.text.tool_formats import ToolFormat

MAX_EVENT_LOGPROBS = 4096
"""Of a prompt, in one event: with twenty more beside each it is a megabyte; clients take four."""


@dataclass(frozen=True, slots=True)
class ResponsePart:
    """One turn of writing: at most one prompt, what is known of its log-probabilities, all text so far as
    one delta, at most one end."""

    prompt: pb.PromptInfo | None
    prompt_logprobs: pb.PromptLogprobs | None
    delta: pb.TextDelta | None
    end: Outcome | None


class ResponseBuffer:
    """Between the session, which never waits for its client, and the call, which does."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._prompt: pb.PromptInfo | None = None
        self._prompt_logprobs: list[TokenLogprob] = []
        self._prompt_position = 0
        self._delta: pb.TextDelta | None = None
        self._end: Outcome | None = None
        self._filled = asyncio.Event()
        self._calls: ToolCallParser | None = None

    def read_calls(self, tool_format: ToolFormat) -> None:
        """From here on the text may be calls in this format."""
        self._calls = ToolCallParser(tool_format)

    @property
    def has_called(self) -> bool:
        """Whether what was taken ends with calls."""
        return self._calls is not None and self._calls.has_called

    def put_prompt(self, prompt: pb.PromptInfo) -> None:
        self._prompt = prompt
        self._filled.set()

    def put_prompt_logprobs(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Those of the next tokens of the prompt; before any text."""
        self._prompt_logprobs += logprobs
        self._filled.set()

    def put_text(
        self, position: int, ids: tuple[int, ...], text: str, logprobs: tuple[TokenLogprob, ...]
    ) -> None:
        """Add a row that goes on where the last one ended; raises Cancelled when too much is unread."""
        if self._delta is None:
            self._delta = pb.TextDelta(position=position)
        if len(self._delta.token_ids) + len(ids) > self._max_tokens:
            raise Cancelled(
                f"the client left {self._max_tokens} tokens unread: read faster or ask for fewer tokens"
            )
        self._delta.token_ids.extend(ids)
        if text:
            self._delta.text += text
        if logprobs:
            self._delta.logprobs.extend(map(_logprob_event, logprobs))
        self._filled.set()

    def put_end(self, outcome: Outcome) -> None:
        """The last thing to be written; a second end is ignored, so the first one stands."""
        if self._end is None:
            self._end = outcome
            self._filled.set()

    async def take_response(self) -> ResponsePart:
        """Wait for something to write, then take all of it."""
        await self._filled.wait()
        told = self._take_prompt_logprobs()
        if self._prompt_logprobs:  # the rest is for the next turns, and all that follows it
            part = ResponsePart(self._prompt, told, None, None)
            self._prompt = None
            return part
        self._filled.clear()
        part = ResponsePart(self._prompt, told, self._delta_with_calls(), self._end)
        self._prompt = self._delta = None
        return part

    def _take_prompt_logprobs(self) -> pb.PromptLogprobs | None:
        """So many as fit into an event."""
        if not self._prompt_logprobs:
            return None
        taken = self._prompt_logprobs[:MAX_EVENT_LOGPROBS]
        del self._prompt_logprobs[:MAX_EVENT_LOGPROBS]
        position, self._prompt_position = self._prompt_position, self._prompt_position + len(taken)
        return pb.PromptLogprobs(position=position, logprobs=map(_logprob_event, taken))

    def _delta_with_calls(self) -> pb.TextDelta | None:
        delta = self._delta
        if self._calls is None:
            return delta
        if delta is not None:
            self._calls.parse_delta(delta)
        if self._end is not None and (held := self._calls.held_text()):
            delta = pb.TextDelta() if delta is None else delta
            delta.text += held
        return delta


def _logprob_event(logprob: TokenLogprob) -> pb.Logprob:
    top = [pb.TopLogprob(token_id=token_id, logprob=value) for token_id, value in logprob.top]
    return pb.Logprob(token_id=logprob.token_id, logprob=logprob.logprob, top=top)
