"""Take messages of text: plain rows go to their clients by the table, the others to their sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from services.gateway.rows.stream_table import StreamTable, Unchecked
from services.gateway.scope.recent_latencies import SLOT_S, RecentLatencies
from services.gateway.scope.report import count_generated, flush_tokens
from services.gateway.scope.text_row import TextRow, rows_by_request
from shared.bus import codec
from shared.bus.subjects import NOBODY, Claim
from shared.deadline import SYSTEM_CLOCK
from shared.messages import Text
from shared.telemetry import metrics

SHOWN_WITHIN_S = 0.1
"""The longest time until metrics show what went out by the table; where a row is not plain they do at
once."""

TakeRows = Callable[[Iterable[tuple[str, TextRow]], str, float], None]
"""Takes rows with their requests, who sent them, and when they came."""


class TextMessages:
    """`alone` says whether nobody counts what tenants have. `take_rows` gets what is not plain."""

    def __init__(
        self,
        rows: StreamTable | None,
        latencies: RecentLatencies,
        alone: Callable[[], bool],
        take_rows: TakeRows,
    ) -> None:
        self._rows = rows
        self._latencies = latencies
        self._alone = alone
        self._take_rows = take_rows
        self._unshown_s: float | None = None
        """The time of the first row that no metric shows yet; None: all are shown."""

    def take(self, subject: str, data: bytes) -> bool:
        """Do all that a message asks for, and make objects only of what is not plain. Return False, with
        nothing done, for what is to be read as other messages are. Raises what `shared.bus.codec` raises."""
        rows = self._rows
        if rows is None:
            return False
        claim = Claim.of(subject)
        if claim.message != Text.__name__:
            return False
        sender = "" if claim.sender == NOBODY else claim.sender
        now_s, alone = SYSTEM_CLOCK.monotonic_s(), self._alone()
        if self._unshown_s is not None and self._unshown_s // SLOT_S != now_s // SLOT_S:
            self.show()
        decoded = None
        try:
            left = rows.take(data, sender, now_s, alone=alone, checked=False)
        except Unchecked:
            decoded = codec.decode(data)
            left = rows.take(data, sender, now_s, alone=alone, checked=True)
        if left is None:
            return False
        if self._unshown_s is None:
            self._unshown_s = now_s
            asyncio.get_running_loop().call_later(SHOWN_WITHIN_S, self.show)
        if left:
            self.show()
            _, message = decoded or codec.decode(data)
            if isinstance(message, Text):
                every = list(rows_by_request(message))
                self._take_rows([every[place] for place in left], sender, now_s)
        return True

    def show(self) -> None:
        """Have metrics show what went out by the table."""
        shown_s, self._unshown_s = self._unshown_s, None
        tally = None if self._rows is None or shown_s is None else self._rows.take_tally()
        if tally is None or shown_s is None:
            return
        self._latencies.record_deliveries(tally.tokens, tally.bins, shown_s)
        metrics.observe_many(metrics.INTER_TOKEN_LATENCY, tally.buckets, tally.gaps_s)
        for model, tokens in tally.models.items():
            count_generated(model, tokens)
        flush_tokens()
