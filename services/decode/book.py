"""All requests of a decode worker, and the rule by which new ones are let in. No I/O."""

from __future__ import annotations

from services.decode.row import Phase, Row
from shared.errors import Overloaded
from shared.messages import Held
from shared.worker.gateway_leases import IsAlive
from shared.worker.placed import PlacedBook

RETRY_AFTER_MS = 100


class RowBook(PlacedBook[Row]):
    """Rows by key. A row is let in only if all rows, grown as long as they may, fit into the pool.

    So the engine never has to preempt a running sequence for another one; the price is room that
    requests reserve and do not use.
    """

    def __init__(self, *, max_rows: int, kv_blocks: int, is_alive: IsAlive) -> None:
        super().__init__("decode", is_alive)
        self._max_rows = max_rows
        self._kv_blocks = kv_blocks
        self._promised_blocks = 0

    def add(self, row: Row) -> None:
        """Raises Overloaded, changing nothing."""
        if len(self.placed) >= self._max_rows:
            raise Overloaded(
                f"all {self._max_rows} sequences are taken; try another worker or later",
                hop="decode",
                retry_after_ms=RETRY_AFTER_MS,
            )
        if row.worst_blocks > self.free_blocks:
            raise Overloaded(
                f"{row.worst_blocks} KV blocks may be needed and {self.free_blocks} are not promised; "
                "try another worker, later, or fewer max_tokens",
                hop="decode",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._take_in(row)
        self._promised_blocks += row.worst_blocks

    def remove(self, key: str) -> Row | None:
        """The row holds nothing any more."""
        row = self._let_go(key)
        if row is not None:
            self._promised_blocks -= row.worst_blocks
        return row

    @property
    def free_blocks(self) -> int:
        """Blocks that are not promised to any row."""
        return self._kv_blocks - self._promised_blocks

    def in_phase(self, phase: Phase) -> list[Row]:
        return [row for row in self.placed.values() if row.phase is phase]

    def held(self) -> list[Held]:
        """For audits: one lease per row."""
        return [Held(row.request_id, "lease", 1, row.phase.value) for row in self.placed.values()]

    def expired(self) -> list[Row]:
        """Rows past their deadline that are still at work."""
        return [
            row for row in self.placed.values() if row.phase is not Phase.STOPPING and row.deadline.expired()
        ]
