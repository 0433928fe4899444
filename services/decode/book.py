"""All requests of a decode worker, and the rule by which new ones are let in. No I/O."""

from __future__ import annotations

from services.decode.row import Phase, Row
from shared.actor import Tombstones
from shared.errors import Cancelled, Overloaded, StaleEpoch
from shared.messages import Held
from shared.telemetry import metrics
from shared.worker.gateway_leases import GatewayLeases, IsAlive

RETRY_AFTER_MS = 100


class RowBook:
    """Rows by key. A row is let in only if all rows, grown as long as they may, fit into the pool.

    So the engine never has to preempt a running sequence for another one; the price is room that
    requests reserve and do not use.
    """

    def __init__(self, *, max_rows: int, kv_blocks: int, is_alive: IsAlive) -> None:
        self.rows: dict[str, Row] = {}
        self.tombstones = Tombstones()
        self._max_rows = max_rows
        self._kv_blocks = kv_blocks
        self._promised_blocks = 0
        self._leases = GatewayLeases(is_alive)

    def check_epoch(self, request_id: str, epoch: int) -> None:
        """Raises Cancelled or StaleEpoch when this placement is over before it came."""
        reason = self.tombstones.refuses(request_id, epoch)
        if reason:
            raise Cancelled(f"the request was cancelled before it arrived ({reason})", hop="decode")
        if any(row.epoch > epoch for row in self.of_request(request_id)):
            metrics.STALE_MESSAGES.inc()
            raise StaleEpoch("a later placement of this request is here already", hop="decode")

    def add(self, row: Row) -> None:
        """Raises Overloaded, changing nothing."""
        if len(self.rows) >= self._max_rows:
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
        self.rows[row.key] = row
        self._promised_blocks += row.worst_blocks
        self._leases.grant(row.key, row.gateway)

    def remove(self, key: str) -> Row | None:
        """The row holds nothing any more."""
        row = self.rows.pop(key, None)
        if row is not None:
            self._promised_blocks -= row.worst_blocks
            self._leases.drop(key)
        return row

    @property
    def free_blocks(self) -> int:
        """Blocks that are not promised to any row."""
        return self._kv_blocks - self._promised_blocks

    def of_request(self, request_id: str) -> list[Row]:
        return [row for row in self.rows.values() if row.request_id == request_id]

    def in_phase(self, phase: Phase) -> list[Row]:
        return [row for row in self.rows.values() if row.phase is phase]

    def abandoned(self) -> list[Row]:
        """Rows whose gateway has not been heard for a lease."""
        return [self.rows[key] for key in self._leases.expired()]

    def held(self) -> list[Held]:
        """For audits: one lease per row."""
        return [Held(row.request_id, "lease", 1, row.phase.value) for row in self.rows.values()]

    def expired(self) -> list[Row]:
        """Rows past their deadline that are still at work."""
        return [
            row for row in self.rows.values() if row.phase is not Phase.STOPPING and row.deadline.expired()
        ]
