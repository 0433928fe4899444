"""Buffer what waits to be written to one client: bounded, and coalesced when the client reads slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.answer.answer_format import PLAIN_ANSWER, AnswerFormat, AnswerReader
from services.gateway.rows.row_sink import RowSink
from services.gateway.rows.row_terms import RowTerms
from services.gateway.scope.outcome import Outcome
from shared.errors import Cancelled
from shared.sampling.parameters import TokenLogprob

MAX_EVENT_LOGPROBS = 4096
"""The most log-probabilities of a prompt in one event: with twenty more beside each it is a megabyte; clients
take four."""
PROMPT_S = 0.003
"""The prompt's event waits so long for the route of its request."""

PutText = Callable[[int, tuple[int, ...], str], bool]
"""Writes a row (its position, ids and text) to the client at once; returns whether it did."""
FindSink = Callable[[], RowSink | None]
"""Returns the place that `PutText` writes to, None where it does more than write."""


class ResponsePart(NamedTuple):
    """One turn of writing: at most one prompt, what is known of its log-probabilities, all text so far as
    one event, at most one end."""

    prompt: pb.PromptInfo | None
    prompt_logprobs: pb.PromptLogprobs | None
    text: pb.GenerateEvent | None
    end: Outcome | None

    @property
    def delta(self) -> pb.TextDelta | None:
        return None if self.text is None else self.text.text


class ResponseBuffer:
    """A buffer between the session, which never waits for its client, and the call, which does."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._prompt: pb.PromptInfo | None = None
        self._prompt_logprobs: list[TokenLogprob] = []
        self._prompt_position = 0
        self._text: pb.GenerateEvent | None = None
        self._text_tokens = 0
        """The tokens of the text that waits."""
        self._end: Outcome | None = None
        self._filled = False
        self._waiting: asyncio.Future[None] | None = None
        """The future of the reader, while there is nothing to read."""
        self._waits = False
        """The reader does, and has not been told that something is there."""
        self.answer_format = PLAIN_ANSWER
        self._reader: AnswerReader | None = None
        self._is_whole = self._is_read = False
        """The last row is there; the reader has told all that it kept back."""
        self._held = False
        self._put_through: PutText | None = None
        self._find_sink: FindSink | None = None

    def write_through(self, put_text: PutText | None, find_sink: FindSink | None = None) -> None:
        """Hand rows to `put_text` from now on while whoever takes responses waits, and nothing else does."""
        self._put_through, self._find_sink = put_text, find_sink

    def row_sink(self) -> RowSink | None:
        """Return where rows are written now, with when that is so; None where they are not, or not simply."""
        if self._find_sink is None or not self._waits or self._reader is not None:
            return None
        found = self._find_sink()
        if found is None:
            return None
        terms = (
            (self, "_waits", True),
            (self, "_put_through", self._put_through),
            (self, "_text", None),
            (self, "_prompt", None),
            (self, "_reader", None),
            (self, "_held", False),
        )
        return RowSink(found.sink, RowTerms.of_all((RowTerms(terms), found.terms)))

    def hold(self) -> None:
        """Keep what comes from here on until `release`, or the end: another answer may take its place."""
        self._held = True

    def release(self) -> None:
        """Let out what was held."""
        if self._held:
            self._held = False
            self._fill()

    def read_answer(self, answer_format: AnswerFormat) -> None:
        """Read the text, of which nothing has come yet, in this format."""
        self.answer_format = answer_format
        self._reader = None if answer_format.is_plain else answer_format.reader()
        self._is_whole = self._is_read = False

    @property
    def has_called(self) -> bool:
        """Whether what was taken ends with calls."""
        return self._reader is not None and self._reader.has_called

    @property
    def call_ids(self) -> Sequence[str]:
        """Return the ids of the calls that were taken, in order."""
        return () if self._reader is None else self._reader.call_ids

    def _fill(self) -> None:
        self._filled, self._waits = True, False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def put_prompt(self, prompt: pb.PromptInfo, *, may_change: bool = False) -> None:
        """It goes out a moment later: until then the request is on its way to its workers, and they come
        first. One that `may_change` goes out with what follows it, unless another one takes its place."""
        self._prompt = prompt
        if may_change:
            return
        asyncio.get_running_loop().call_later(PROMPT_S, self._fill)

    def take_back_prompt(self) -> None:
        """Forget the prompt of a model that does not answer, and what it has said; it has not gone out
        yet."""
        self._prompt = self._text = None
        self._held = False
        self.read_answer(PLAIN_ANSWER)

    def put_prompt_logprobs(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Put the log-probabilities of the prompt's next tokens; they go before any text."""
        self._prompt_logprobs += logprobs
        self._fill()

    def skip_text(self, text: str, *, whole: bool = False) -> None:
        """Read text that the client has of another gateway; nothing was put before. `whole`: it has all."""
        if self._reader is not None:
            delta = pb.TextDelta(text=text)
            self._reader.read_delta(delta)
            self._is_read = whole

    def put_text(
        self,
        position: int,
        ids: tuple[int, ...],
        text: str,
        logprobs: tuple[TokenLogprob, ...],
        *,
        whole: bool = False,
    ) -> None:
        """Add a row that goes on where the last one ended, and is the last one with `whole`; raises Cancelled
        when too much is unread."""
        self._is_whole = whole
        if not logprobs and self._is_written_through(position, ids, text):
            return
        if self._text is None:
            self._text = pb.GenerateEvent()  # filled in place: a delta put into it would be copied
            self._text.text.position = position
            self._text_tokens = 0
        self._text_tokens += len(ids)
        if self._text_tokens > self._max_tokens:
            raise Cancelled(
                f"the client left {self._max_tokens} tokens unread: read faster or ask for fewer tokens"
            )
        delta = self._text.text
        delta.token_ids.extend(ids)
        if text:
            delta.text += text
        if logprobs:
            delta.logprobs.extend(map(_logprob_event, logprobs))
        if not self._held:
            self._fill()

    def _is_written_through(self, position: int, ids: tuple[int, ...], text: str) -> bool:
        """Write a row at once where the reader waits, and would get it alone and as it is."""
        return (
            self._put_through is not None
            and self._waiting is not None
            and not self._waiting.done()
            and self._text is None
            and self._prompt is None
            and self._reader is None
            and not self._held
            and self._put_through(position, ids, text)
        )

    def put_end(self, outcome: Outcome) -> None:
        """The last thing to be written; a second end is ignored, so the first one stands."""
        if self._end is None:
            self._end = outcome
            self._fill()

    async def take_response(self) -> ResponsePart:
        """Wait for something to write, then take all of it."""
        if not self._filled:
            self._waiting = asyncio.get_running_loop().create_future()
            self._waits = True
            try:
                await self._waiting
            finally:
                self._waits = False
        told = self._take_prompt_logprobs()
        if self._prompt_logprobs:  # the rest is for the next turns, and all that follows it
            part = ResponsePart(self._prompt, told, None, None)
            self._prompt = None
            return part
        self._filled = False
        part = ResponsePart(self._prompt, told, self._read_text(), self._end)
        self._prompt = self._text = None
        return part

    def _take_prompt_logprobs(self) -> pb.PromptLogprobs | None:
        """Take as many as fit into an event."""
        if not self._prompt_logprobs:
            return None
        taken = self._prompt_logprobs[:MAX_EVENT_LOGPROBS]
        del self._prompt_logprobs[:MAX_EVENT_LOGPROBS]
        position, self._prompt_position = self._prompt_position, self._prompt_position + len(taken)
        return pb.PromptLogprobs(position=position, logprobs=map(_logprob_event, taken))

    def _read_text(self) -> pb.GenerateEvent | None:
        """Return the text that waits, read as the answer's format says."""
        event = self._text
        if self._reader is None:
            return event
        if event is not None:
            self._reader.read_delta(event.text)
        if self._is_read or (self._end is None and not self._is_whole):
            return event
        self._is_read = True  # with the last tokens: who has those has all, and may go on from there
        last = pb.GenerateEvent() if event is None else event
        self._reader.end_delta(last.text)
        return event if last.text == pb.TextDelta() else last


def _logprob_event(logprob: TokenLogprob) -> pb.Logprob:
    top = [pb.TopLogprob(token_id=token_id, logprob=value) for token_id, value in logprob.top]
    return pb.Logprob(token_id=logprob.token_id, logprob=logprob.logprob, top=top)
