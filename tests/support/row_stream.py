"""One stream in a table of rows, with an object in the place of all that a gateway knows of a request."""

from __future__ import annotations

from typing import Any

from services.gateway.rows.plain_stream import PlainStream
from services.gateway.rows.row_sink import CallSink, EventSink
from services.gateway.rows.row_terms import DrawnTokens, KeptRows, RowTerms
from services.gateway.rows.stream_table import StreamTable
from shared.bus import codec
from shared.messages import Envelope, Text
from tests.support.http2_wire import CodecEnd, headers, window_update

SENDER = "detokenizer-0"
PROMPT_TOKENS = 7
ENVELOPE = Envelope("", 0, 0, "", "")
Row = tuple[str, int, tuple[int, ...], str]
"""A request, a position, ids and text."""


class RowStream:
    """The request `request_id`, whose client is at `end` or, where there is none, takes events here."""

    def __init__(self, request_id: str, end: CodecEnd | None = None, resume_token: str = "") -> None:
        self.request_id, self.end = request_id, end
        self.is_open: object = True
        self.has_room = True
        self.ids, self.texts = [1], ["x"]
        self.kept: list[tuple[int, tuple[int, ...], str]] = []
        self.tokens = self.chars = self.drawn = self.kept_tokens = self.told_tokens = self.told_chars = 0
        self.came_s, self.delivered_s = 0.0, 1.0
        self.draws: list[int] = []
        self.events: list[bytes] = []
        self.flushes = 0
        self.takes = True
        self.resume_token = resume_token

    def put(self, event: bytes) -> bool:
        if self.takes:
            self.events.append(event)
        return self.takes

    def flush(self) -> None:
        self.flushes += 1

    def events_sink(self, **fields: Any) -> EventSink:
        counted = (self, "told_tokens"), (self, "told_chars")
        return EventSink(self.put, None, b"data: ", b"\n\n", self.resume_token, *counted)._replace(**fields)

    def stream(self, **fields: Any) -> PlainStream:
        sink: CallSink | EventSink = self.events_sink()
        if self.end is not None:
            sink = CallSink(self.end.codec, 1, 4 << 20, (self, "has_room"), self.flush)
        terms = RowTerms(
            ((self, "is_open", True), (self, "has_room", True)),
            ((self, "tokens"),),
            ((self, "chars"),),
            ((self, "came_s"),),
        )
        return PlainStream(
            1,
            SENDER,
            PROMPT_TOKENS,
            self.ids,
            self.texts,
            "a-model",
            terms,
            (self, "delivered_s"),
            DrawnTokens(self.draws.append, ((self, "drawn"),)),
            KeptRows(self.kept, (self, "kept_tokens"), 1000),
            sink,
        )._replace(**fields)

    def row(self, ids: tuple[int, ...], text: str) -> Row:
        """Return the row that comes next."""
        return self.request_id, PROMPT_TOKENS + len(self.ids), ids, text


def called() -> CodecEnd:
    """Return a connection of which stream 1 is a call with room."""
    end = CodecEnd()
    end.hear(window_update(0, 1 << 24), headers(), window_update(1, 1 << 24))
    end.codec.respond(1, [(":status", "200")])
    end.said()
    return end


def message(*rows: Row, **columns: Any) -> bytes:
    """Return the message of these rows; `columns` of it are others."""
    count = len(rows)
    usual: dict[str, Any] = {
        "request_ids": tuple(row[0] for row in rows),
        "epochs": (1,) * count,
        "positions": tuple(row[1] for row in rows),
        "token_ids": tuple(row[2] for row in rows),
        "texts": tuple(row[3] for row in rows),
        "finish": ("",) * count,
        "logprobs": ((),) * count,
        "marks": ((),) * count,
    }
    return codec.encode(Text(**{**usual, **columns}), ENVELOPE)


def take(table: StreamTable, data: bytes, now_s: float = 2.0, **options: Any) -> Any:
    """Return the places of the rows that are left."""
    return table.take(data, SENDER, now_s, **{"alone": True, "checked": False, **options})
