"""One choice of an answer: what its session says, kept to be told at once, or told as it comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.chat_tools import add_calls
from services.gateway.http.completion import AnswerShape
from services.gateway.http.token_text import Spell, TokenText, spell_logprobs

FINISH_REASONS = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


class ChunkSender(Protocol):
    """Sends choices of chunks to the client, in one write."""

    async def send_chunks(self, model: str, chunks: Sequence[Mapping[str, Any]]) -> None: ...


class Choice:
    """A `ResponseWriter`. Without a `sender` it keeps its text until the end."""

    def __init__(
        self,
        index: int,
        echo: str,
        shape: AnswerShape,
        sender: ChunkSender | None,
        spell: Spell | None,
    ) -> None:
        """`spell` None: no log-probabilities are wanted."""
        self.index = index
        self.prompt = pb.PromptInfo()
        self.end = pb.Terminal()
        self._echo = echo
        self._shape = shape
        self._sender = sender
        self._spell = spell
        self._texts: list[str] = []
        self._tokens: list[TokenText] = []
        self._calls: list[pb.ToolCall] = []
        self._chars = 0
        self._begun = False

    @property
    def finish_reason(self) -> str:
        return FINISH_REASONS.get(self.end.finish_reason, "stop")

    # ---- what a session says ---------------------------------------------------------------------------

    async def write_prompt(self, prompt: pb.PromptInfo) -> None:
        self.prompt = prompt

    async def write_delta(self, delta: pb.TextDelta) -> None:
        tokens = None
        if self._spell is not None:
            tokens = await spell_logprobs(self._spell, self.prompt.model, delta.logprobs)
        if self._sender is None:
            self._keep(delta, tokens)
            return
        chunks = self._first_chunks()
        if delta.text or tokens or delta.tool_calls:
            chunks.append(
                self._shape.text_chunk(self.index, delta.text, tokens, self._chars, delta.tool_calls)
            )
            self._chars += len(delta.text)
        if chunks:
            await self._sender.send_chunks(self.prompt.model, chunks)

    async def write_end(self, end: pb.Terminal) -> None:
        self.end = end
        if self._sender is not None and end.outcome == pb.OUTCOME_FINISHED:
            chunks = [*self._first_chunks(), self._shape.end_chunk(self.index, self.finish_reason)]
            await self._sender.send_chunks(self.prompt.model, chunks)

    # ---- the answer ------------------------------------------------------------------------------------

    def whole(self) -> Mapping[str, Any]:
        tokens = None if self._spell is None else self._tokens
        text = self._echo + "".join(self._texts)
        return self._shape.whole(self.index, text, tokens, self.finish_reason, self._calls)

    def _keep(self, delta: pb.TextDelta, tokens: Sequence[TokenText] | None) -> None:
        self._texts.append(delta.text)
        self._tokens.extend(tokens or ())
        add_calls(self._calls, delta.tool_calls)

    def _first_chunks(self) -> list[Mapping[str, Any]]:
        """Before the text of this choice; nothing when it has begun."""
        if self._begun:
            return []
        self._begun = True
        chunks = list(self._shape.first_chunks(self.index))
        if self._echo:
            chunks.append(self._shape.text_chunk(self.index, self._echo, None, 0))
            self._chars = len(self._echo)
        return chunks
