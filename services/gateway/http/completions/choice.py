"""One choice of an answer: what its session says, kept to be told at once, or told as it comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.completion import AnswerShape, Echo
from services.gateway.http.completions.event_stream import EventPlace
from services.gateway.http.completions.token_text import (
    FetchTokenBytes,
    TokenText,
    bytes_of_ids,
    show_token,
    texts_of_logprobs,
)
from services.gateway.http.fields.chat_tools import add_calls
from services.gateway.http.fields.penstock_options import event_id
from services.gateway.request.resume_token import ResumePoint
from services.gateway.rows.row_sink import EventSink, RowSink

FINISH_REASONS = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


class ChunkSender(Protocol):
    """Sends choices of chunks to the client, in one write."""

    async def send_chunks(self, model: str, chunks: Sequence[Mapping[str, Any]], last_id: str = "") -> None:
        """`last_id`: that of the last chunk's event, "" for none."""

    async def send_text(self, model: str, index: int, text: str, event_id: str = "") -> None:
        """Send the chunk of a choice that has begun, with nothing but its text."""

    def put_text(self, model: str, index: int, text: str, event_id: str = "") -> bool:
        """Write the same chunk at once, and return whether there was room for it."""

    def text_place(self, model: str, index: int) -> EventPlace | None:
        """Return where that writes, None where it does not, or where other choices are written beside it."""


class Choice:
    """A `ResponseWriter`. Without a `sender` it keeps its text until the end; `logprobs`: they are shown."""

    def __init__(
        self,
        index: int,
        echo: Echo,
        shape: AnswerShape,
        sender: ChunkSender | None,
        fetch_bytes: FetchTokenBytes,
        *,
        logprobs: bool,
    ) -> None:
        self.index = index
        self.prompt = pb.PromptInfo()
        self.end = pb.Terminal()
        self.told_tokens = 0
        """The tokens of the answer that were written so far."""
        self._echo = echo
        self._echoed = echo.text
        self._shape = shape
        self._sender = sender
        self._fetch_bytes = fetch_bytes
        self._logprobs = logprobs
        self._prompt_tokens: list[TokenText] = []
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._tokens: list[TokenText] = []
        self._calls: list[pb.ToolCall] = []
        self._model = self._resume_token = ""
        self._chars = 0
        self._begun = False

    @property
    def finish_reason(self) -> str:
        return FINISH_REASONS.get(self.end.finish_reason, "stop")

    def go_on(self, point: ResumePoint) -> None:
        """The client has the stream up to there."""
        self.told_tokens, self._chars = point.received_tokens, point.received_chars
        self._begun = point.received_tokens > 0

    # ---- what a session says ---------------------------------------------------------------------------

    async def write_prompt(self, prompt: pb.PromptInfo) -> None:
        self.prompt = prompt
        self._model, self._resume_token = prompt.model, prompt.resume_token
        if self._echo.token_ids:
            token_bytes = await bytes_of_ids(self._fetch_bytes, prompt.model, self._echo.token_ids)
            self._echoed = show_token(b"".join(token_bytes))

    async def write_prompt_logprobs(self, told: pb.PromptLogprobs) -> None:
        tokens = await texts_of_logprobs(self._fetch_bytes, self.prompt.model, told.logprobs)
        if told.position == 0:
            tokens[0] = replace(tokens[0], logprob=None)
        self._prompt_tokens += tokens

    def put_text(self, position: int, token_ids: tuple[int, ...], text: str) -> bool:  # noqa: ARG002 - a row has it
        sender = self._sender
        if sender is None or not self._begun or self._logprobs:
            return False
        tokens, chars = self.told_tokens + len(token_ids), self._chars + len(text)
        if text:
            place = event_id(self._resume_token, tokens, chars) if self._resume_token else ""
            if not sender.put_text(self._model, self.index, text, place):
                return False
        self.told_tokens, self._chars = tokens, chars
        return True

    def row_sink(self) -> RowSink | None:
        if self._sender is None or not self._begun or self._logprobs:
            return None
        place = self._sender.text_place(self._model, self.index)
        if place is None:
            return None
        counted = (self, "told_tokens"), (self, "_chars")
        return RowSink(
            EventSink(place.put, place.chunks, place.before, place.after, self._resume_token, *counted),
            place.terms,
        )

    async def write_text(self, event: pb.GenerateEvent) -> None:
        delta = event.text
        text = delta.text
        self.told_tokens += len(delta.token_ids)
        more = self._logprobs or delta.tool_calls or delta.reasoning
        if self._begun and self._sender is not None and not more:
            if text:
                self._chars += len(text)
                await self._sender.send_text(self.prompt.model, self.index, text, self._place_id())
            return
        tokens = None
        if self._logprobs:
            tokens = await texts_of_logprobs(self._fetch_bytes, self.prompt.model, delta.logprobs)
        if self._sender is None:
            self._keep(delta, tokens)
            return
        chunks = self._first_chunks()
        if text or tokens or delta.tool_calls or delta.reasoning:
            chunks.append(
                self._shape.text_chunk(
                    self.index, text, tokens, self._chars, delta.tool_calls, delta.reasoning
                )
            )
            self._chars += len(text)
        if chunks:
            await self._sender.send_chunks(self.prompt.model, chunks, self._place_id())

    def _place_id(self) -> str:
        """Name the place that the client has come to, "" where nobody can go on from there."""
        token = self._resume_token
        return event_id(token, self.told_tokens, self._chars) if token else ""

    async def write_end(self, end: pb.Terminal) -> None:
        self.end = end
        self.told_tokens = end.usage.completion_tokens
        if self._sender is not None and end.outcome == pb.OUTCOME_FINISHED:
            chunks = [*self._first_chunks(), self._shape.end_chunk(self.index, self.finish_reason)]
            await self._sender.send_chunks(self.prompt.model, chunks)

    # ---- the answer ------------------------------------------------------------------------------------

    def whole(self) -> Mapping[str, Any]:
        tokens = [*self._prompt_tokens, *self._tokens] if self._logprobs else None
        text = self._echoed + "".join(self._texts)
        return self._shape.whole(
            self.index,
            text,
            tokens,
            self.finish_reason,
            self._first_offset(),
            self._calls,
            "".join(self._thoughts),
        )

    def _first_offset(self) -> int:
        """Return the offset of the prompt's first token: tokens end where the text does, and may begin with
        a special one."""
        if not self._prompt_tokens:
            return len(self._echoed)
        return len(self._echoed) - sum(len(token.shown) for token in self._prompt_tokens)

    def _keep(self, delta: pb.TextDelta, tokens: Sequence[TokenText] | None) -> None:
        self._texts.append(delta.text)
        self._thoughts.append(delta.reasoning)
        self._tokens.extend(tokens or ())
        add_calls(self._calls, delta.tool_calls)

    def _first_chunks(self) -> list[Mapping[str, Any]]:
        """Return the chunks that come before the text of this choice; none when it has begun."""
        if self._begun:
            return []
        self._begun = True
        chunks = list(self._shape.first_chunks(self.index))
        if self._echoed:
            tokens = self._prompt_tokens or None
            chunks.append(self._shape.text_chunk(self.index, self._echoed, tokens, self._first_offset()))
            self._chars = len(self._echoed)
        return chunks
