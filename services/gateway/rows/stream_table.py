"""Take whole messages of text: plain rows go to their clients at once, the others are Python's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

from services.gateway.rows.plain_stream import PlainStream
from shared.built_extension import built_extension
from shared.bus.codec import MAX_MESSAGE_BYTES
from shared.http2.native_codec import has_codec
from shared.messages import MEANING_VERSION
from shared.telemetry.metrics import ITL_BUCKETS

ABI = 1
"""The version of what the extension takes and says, as `native/module.cpp` has it."""


class RowTally(NamedTuple):
    """The deliveries of a while: `tokens`, and those of each model; the gaps between deliveries, `gaps_s` in
    all, by the buckets of their metric and by the bins of `RecentLatencies`."""

    tokens: int
    gaps_s: float
    buckets: Sequence[int]
    bins: Mapping[int, int]
    models: Mapping[str, int]


def _extension() -> ModuleType | None:
    return built_extension("services.gateway.rows._rows", ABI, "stream_table_stale")


def has_stream_table() -> bool:
    """Return whether the extension was built here, of sources like these."""
    return _extension() is not None


class Unchecked(Exception):
    """The message is to be decoded, and so judged, before any row of it is taken."""


class StreamTable:
    """The streams whose plain rows go without Python, by request."""

    def __init__(self) -> None:
        """Raises RuntimeError where there is no extension."""
        extension = _extension()
        if extension is None:
            raise RuntimeError("the table of rows was not built: a C++ compiler was missing")
        has_codec()  # where there is one it is imported now, and found by the extension
        self._table = extension.Table(version=MEANING_VERSION, bounds=ITL_BUCKETS)

    def __len__(self) -> int:
        return len(self._table)

    def follow(self, request_id: str, stream: PlainStream) -> None:
        """Take its plain rows from now on."""
        self._table.follow(request_id, stream.fields())

    def leave(self, request_id: str) -> None:
        """Forget a request; one that is unknown is fine."""
        self._table.leave(request_id)

    def take(
        self, data: bytes, sender: str, now_s: float, *, alone: bool, checked: bool
    ) -> Sequence[int] | None:
        """Write what is plain of a message of text, and return which rows are left for Python, in order; None
        where this is none that is read here.

        `alone`: nobody counts what tenants have. Raises Unchecked, with nothing done, where something of it
        is not judged here and is not yet `checked`.
        """
        if len(data) > MAX_MESSAGE_BYTES:
            return None
        left = self._table.take(data, sender, now_s, alone, checked)
        if left is False:
            raise Unchecked
        return left  # type: ignore[no-any-return]  # the extension's stub says so

    def take_tally(self) -> RowTally | None:
        """Return what was delivered since somebody asked, None for nothing."""
        tally = self._table.take_tally()
        return None if tally is None else RowTally(*tally)
