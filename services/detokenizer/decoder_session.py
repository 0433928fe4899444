"""One request's decoder: token rows in any order in, text rows in position order out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

from shared.deadline import Clock, Deadline
from shared.errors import InvalidRequest, Overloaded, PenstockError, ProtocolError
from shared.messages import ALL_EMITTED, TELL_REPLAY, Mark, Open, Text, Tokens, unpack_ids
from shared.sampling.parameters import TokenLogprob
from shared.text.incremental import settled_tail
from shared.text.stopping.stop_conditions import text_stops
from shared.text.tokenizer import TextTokenizer

MAX_PROMPT_TAIL_TOKENS = 4096
"""More context than this never changes a text; a longer tail is a mistake of the sender."""
MAX_WORKERS = 16
"""Workers that may send tokens of one route of a request: who was handed over more often stays where it
is."""
MAX_ROWS_AHEAD = 64
"""Rows of one request that may wait for those before them; more is a gap for certain."""
FINISHES = ("", "stop", "length", "error")


class TokenRow(NamedTuple):
    """One row of a `Tokens` message, when it came and from which instance ("" when it did not say).

    A tuple in the order of the message's columns: these become rows, and rows columns, in one call.
    """

    request_id: str
    epoch: int
    position: int
    token_ids: tuple[int, ...]
    finish: str
    logprobs: tuple[TokenLogprob, ...]
    marks: tuple[Mark, ...]
    received_s: float
    sender: str = ""

    @property
    def end(self) -> int:
        return self.position + len(self.token_ids)

    def check(self, vocab_size: int) -> None:
        """Raise ProtocolError for a row that no decoder can take."""
        if self.position < 0 or self.finish not in FINISHES:
            raise ProtocolError(
                f"position {self.position} or finish {self.finish[:20]!r} is out of range; check the sender"
            )
        ids = self.token_ids
        if ids and not (
            0 <= ids[0] < vocab_size if len(ids) == 1 else 0 <= min(ids) <= max(ids) < vocab_size
        ):
            raise ProtocolError(
                f"a token id is outside the vocabulary of {vocab_size}; do all services use the same model?"
            )
        if self.logprobs and len(self.logprobs) != len(self.token_ids):
            raise ProtocolError(
                f"{len(self.logprobs)} logprobs for {len(self.token_ids)} tokens; check the sender"
            )

    def after(self, position: int) -> TokenRow:
        """The part of the row from `position` on."""
        seen = position - self.position
        return self._replace(
            position=position, token_ids=self.token_ids[seen:], logprobs=self.logprobs[seen:]
        )


def rows_of(message: Tokens, received_s: float, sender: str) -> Iterator[TokenRow]:
    columns = (
        message.request_ids,
        message.epochs,
        message.positions,
        message.token_ids,
        message.finish,
        message.logprobs,
        message.marks,
    )
    return map(TokenRow._make, zip(*columns, repeat(received_s), repeat(sender)))


class DecodedRow(NamedTuple):
    """One row of a `Text` message, in the order of its columns, and the gateway it goes to."""

    request_id: str
    epoch: int
    position: int
    token_ids: tuple[int, ...]
    text: str
    finish: str
    logprobs: tuple[TokenLogprob, ...]
    marks: tuple[Mark, ...]
    gateway: str


def text_of(rows: Sequence[DecodedRow]) -> Text:
    """The message of these rows, which go to one gateway."""
    *columns, _ = zip(*rows, strict=True)
    return Text(*columns)


class _Advance(NamedTuple):
    taken: int
    text: str
    finish: str


@dataclass(slots=True)
class Taken:
    """The result of a row: `row` to send (None: nothing new), and how many tokens were dropped."""

    row: DecodedRow | None = None
    duplicate_tokens: int = 0
    tokens_after_stop: int = 0


@dataclass(slots=True)
class RowsAhead:
    """Rows that wait for those before them, by position."""

    rows: dict[int, TokenRow] = field(default_factory=dict)
    since_s: float = 0.0


class DecoderSession:
    """The decoder and stop matcher of one route of a request."""

    def __init__(
        self, request_id: str, epoch: int, opened: Open, deadline: Deadline | None, tokenizer: TextTokenizer
    ) -> None:
        """Decode `opened.replay` silently. Raises InvalidRequest or ProtocolError for a malformed Open."""
        tail, replay = _checked_ids(opened, tokenizer)
        self.request_id = request_id
        self.epoch = epoch
        self.gateway = opened.gateway
        self.deadline = deadline
        self.next_position = opened.next_position
        self.ahead = RowsAhead()
        self._senders = {opened.prefill, opened.decode} - {""}
        self._decoder = tokenizer.decoder(
            settled_tail(tokenizer.piece, tail), shown_ids=frozenset(opened.shown_ids)
        )
        self._stops = bool(opened.stop or opened.stop_regex)
        self._matcher = text_stops(opened.stop, opened.stop_regex)
        self._first = True
        self._is_plain = False  # nothing comes in front of its next row or may end it, but the row itself
        replayed = self._advance(tuple(replay), "")
        emitted = opened.emitted_chars
        if emitted in (ALL_EMITTED, TELL_REPLAY):
            emitted = len(replayed.text)
        if not 0 <= emitted <= len(replayed.text):
            raise InvalidRequest(
                f"{opened.emitted_chars} characters are more than {len(replay)} replayed tokens give"
            )
        self._unsent_text = replayed.text[emitted:]
        self._told_text = replayed.text if opened.emitted_chars == TELL_REPLAY else None
        self.stopped_in_replay = replayed.finish != ""

    def is_from_its_workers(self, row: TokenRow) -> bool:
        """Whether a row comes from where this route computes; one that does not say is believed."""
        return not row.sender or not self._senders or row.sender in self._senders

    def allow_worker(self, instance: str) -> None:
        """Take rows of this instance too. Raises Overloaded at MAX_WORKERS."""
        if len(self._senders | {instance}) > MAX_WORKERS:
            raise Overloaded(
                f"{MAX_WORKERS} workers have had this route of the request; it cannot be handed over again"
            )
        if self._senders:  # else anybody's are taken
            self._senders.add(instance)

    def take_replay_row(self) -> DecodedRow | None:
        """Return the text of the replay for a gateway that reads it once more, None for any other one."""
        text, self._told_text = self._told_text, None
        if text is None:
            return None
        return DecodedRow(self.request_id, self.epoch, self.next_position, (), text, "", (), (), self.gateway)

    def stop_row(self) -> DecodedRow:
        """The end of a request whose replay already has a stop in it."""
        return DecodedRow(
            self.request_id,
            self.epoch,
            self.next_position,
            (),
            self._unsent_text,
            "stop_string",
            (),
            (),
            self.gateway,
        )

    def decode_plain(self, row: TokenRow, vocab_size: int) -> DecodedRow | None:
        """Decode what most rows are: the next token of a stream without stops, whose text needs no other.
        None, and nothing happens, for any other row."""
        request_id, epoch, position, token_ids, finish, logprobs, marks, _, sender = row
        if (
            position != self.next_position
            or epoch != self.epoch
            or finish
            or logprobs
            or len(token_ids) != 1
            or not self._is_plain
            or self.ahead.rows
            or (sender and self._senders and sender not in self._senders)
        ):
            return None
        (token_id,) = token_ids
        text = self._decoder.push_plain(token_id) if 0 <= token_id < vocab_size else None
        if text is None:
            return None
        self.next_position = position + 1
        return DecodedRow(request_id, epoch, position, token_ids, text, "", (), marks, self.gateway)

    def is_next(self, row: TokenRow) -> bool:
        """Whether it is what most other rows are: one that `decode_next` can take."""
        return row.position == self.next_position and self._is_plain

    def decode_next(self, row: TokenRow) -> DecodedRow:
        """Decode the next row as `decode_row` does; nothing of such a row is dropped."""
        request_id, epoch, position, token_ids, finish, logprobs, marks, _, _ = row
        text = self._decoder.push(token_ids)
        if finish:
            text += self._decoder.finish()
        self.next_position += len(token_ids)
        return DecodedRow(request_id, epoch, position, token_ids, text, finish, logprobs, marks, self.gateway)

    def decode_row(self, row: TokenRow, clock: Clock) -> Taken:
        """Decode a row that begins at or before `next_position`; what was seen already is left out."""
        taken = Taken()
        if row.position < self.next_position:
            taken.duplicate_tokens = min(len(row.token_ids), self.next_position - row.position)
            if row.end < self.next_position or (
                row.end == self.next_position and taken.duplicate_tokens and not row.finish
            ):
                return taken
            row = row.after(self.next_position)
        advance = self._advance(row.token_ids, row.finish)
        marks = row.marks
        if self._first:
            self._first = False
            waited_s = clock.monotonic_s() - row.received_s
            marks = (*marks, Mark("detokenize", max(0, round(waited_s * 1e6))))
        taken.row = DecodedRow(
            self.request_id,
            self.epoch,
            row.position,
            row.token_ids[: advance.taken],
            self._unsent_text + advance.text,
            advance.finish,
            row.logprobs[: advance.taken],
            marks,
            self.gateway,
        )
        taken.tokens_after_stop = len(row.token_ids) - advance.taken
        self._unsent_text = ""
        self._is_plain = not self._stops
        self.next_position += advance.taken
        return taken

    def keep_ahead(self, row: TokenRow) -> bool:
        """Keep a row that is ahead of its turn; False when too many wait."""
        waiting = self.ahead.rows
        if not waiting:
            self.ahead.since_s = row.received_s
        waiting.setdefault(row.position, row)
        return len(waiting) <= MAX_ROWS_AHEAD

    def next_ahead(self) -> TokenRow | None:
        """A kept row whose turn has come."""
        waiting = self.ahead.rows
        position = min(waiting, default=None)
        if position is None or position > self.next_position:
            return None
        row = waiting.pop(position)
        self.ahead.since_s = min((other.received_s for other in waiting.values()), default=0.0)
        return row

    def _advance(self, token_ids: tuple[int, ...], finish: str) -> _Advance:
        """Token by token where there are stops: one must end the request at the token that completes
        it."""
        if not self._stops:
            text = self._decoder.push(token_ids)
            return _Advance(len(token_ids), text + self._decoder.finish() if finish else text, finish)
        shown: list[str] = []
        for index, token_id in enumerate(token_ids):
            text, matched = self._matcher.push(self._decoder.push((token_id,)))
            shown.append(text)
            if matched is not None:
                return _Advance(index + 1, "".join(shown), "stop_string")
        if finish:
            text, matched = self._matcher.push(self._decoder.finish())
            shown.append(text)
            if matched is None:
                text, matched = self._matcher.finish()
                shown.append(text)
            finish = finish if matched is None else "stop_string"
        return _Advance(len(token_ids), "".join(shown), finish)


def _checked_ids(opened: Open, tokenizer: TextTokenizer) -> tuple[list[int], list[int]]:
    """The ids of the prompt's tail and of the replay. Raises what `DecoderSession` raises."""
    try:
        tail, replay = unpack_ids(opened.prompt_tail), unpack_ids(opened.replay)
        tokenizer.check_ids(tail)
        tokenizer.check_ids(replay)
    except PenstockError as error:
        raise InvalidRequest(f"the ids to open a decoder with are not usable: {error.message}") from error
    if len(tail) > MAX_PROMPT_TAIL_TOKENS:
        raise InvalidRequest(
            f"a prompt tail of {len(tail)} tokens is over the limit of {MAX_PROMPT_TAIL_TOKENS}; send fewer"
        )
    if opened.next_position < len(replay):
        raise InvalidRequest(
            f"next_position {opened.next_position} is before the end of {len(replay)} replayed tokens"
        )
    return tail, replay
