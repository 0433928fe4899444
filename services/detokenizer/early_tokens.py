"""Tokens that overtook the Open of their request: kept for a bounded time, in a bounded number."""

from __future__ import annotations

from collections import OrderedDict

from services.detokenizer.decoder_session import TokenRow


class EarlyTokens:
    """Rows by request, in the order in which the requests came."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._rows: OrderedDict[str, list[TokenRow]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: TokenRow) -> list[TokenRow]:
        """Keep `row`; returns the first row of each request that had to make room."""
        self._rows.setdefault(row.request_id, []).append(row)
        self._count += 1
        given_up = []
        while self._count > self._max_rows:
            given_up.append(self.pop(next(iter(self._rows)))[0])
        return given_up

    def pop(self, request_id: str) -> list[TokenRow]:
        """Take out all rows of a request."""
        rows = self._rows.pop(request_id, [])
        self._count -= len(rows)
        return rows

    def drop(self, request_id: str, epoch: int) -> bool:
        """Forget the rows of epochs up to `epoch`; whether there were any."""
        rows = self.pop(request_id)
        later = [row for row in rows if row.epoch > epoch]
        if later:
            self._rows[request_id] = later
            self._count += len(later)
        return len(later) < len(rows)

    def expired(self, before_s: float) -> list[TokenRow]:
        """Take out the requests whose first row came before `before_s`; the first row of each."""
        old = [request_id for request_id, rows in self._rows.items() if rows[0].received_s <= before_s]
        return [self.pop(request_id)[0] for request_id in old]

    def counts(self) -> dict[str, int]:
        return {request_id: len(rows) for request_id, rows in self._rows.items()}
