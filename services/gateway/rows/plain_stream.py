"""One stream as the table of rows knows it."""

from __future__ import annotations

from typing import NamedTuple

from services.gateway.rows.row_sink import CallSink, EventSink
from services.gateway.rows.row_terms import Attribute, DrawnTokens, KeptRows, RowTerms


class PlainStream(NamedTuple):
    """The rows of `sender` under `epoch` go on at the end of `ids`, the first of which is at
    `first_position`. `texts` and `kept`: None where nobody keeps them. `delivered` is when the client got the
    last row, `tokens` of which count for `model`."""

    epoch: int
    sender: str
    first_position: int
    ids: list[int]
    texts: list[str] | None
    model: str
    terms: RowTerms
    delivered: Attribute
    drawn: DrawnTokens
    kept: KeptRows | None
    sink: CallSink | EventSink

    def fields(self) -> tuple[object, ...]:
        """Return what `_rows.Table.follow` takes."""
        sink = self.sink
        return (
            self.epoch,
            self.sender,
            self.first_position,
            self.ids,
            self.texts,
            self.model,
            *self.terms,
            self.delivered,
            *self.drawn,
            None if self.kept is None else tuple(self.kept),
            tuple(sink) if isinstance(sink, CallSink) else None,
            _event_fields(sink) if isinstance(sink, EventSink) else None,
        )


def _event_fields(sink: EventSink) -> tuple[object, ...]:
    chunks = None if sink.chunks is None else tuple(sink.chunks)
    return (sink.put, chunks, *sink[2:])
