"""A request that takes engines down: it, and not its neighbours, ends after the second one.

Whoever was being computed in an engine that failed is a suspect, neighbours too. Suspects are routed one
after another: the next when the one before has shown by its tokens that it was not it. So a second
failure has one suspect that was there and had not shown so: it is the poison request.

A worker's last words name whom its engine was computing. One that dies without a word names nobody; then
the evidence is weaker: a request is struck when it had just begun to be computed, and is the poison
request when it alone was struck twice. Where several were, they take turns as well. A stream that got
tokens of its route is never struck by a silent death, so that killed workers do not end it.
"""

from __future__ import annotations

import asyncio

import structlog

from services.gateway.fleet.crash_record import CrashRecord
from services.gateway.fleet.waiting import POLL_S
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import InternalError

log = structlog.get_logger()

POISON_STRIKES = 2
TURN_S = 5.0
"""A suspect that has been routed and has shown nothing by then does not keep the others waiting."""
MAX_TURN_S = 30.0
"""A suspect that is not routed by then loses its turn: the engines may still be starting again."""


class PoisonRequests:
    """The records of all requests of this gateway. Two gateways' suspects do not wait for each other."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._records: dict[str, CrashRecord] = {}
        self._turn_of: CrashRecord | None = None
        self._taken_s = 0.0

    def open_record(self, request_id: str) -> CrashRecord:
        record = self._records[request_id] = CrashRecord(request_id, self._clock)
        return record

    def close_record(self, record: CrashRecord) -> None:
        self._records.pop(record.request_id, None)
        self._end_turn(record)

    async def take_turn(self, record: CrashRecord) -> None:
        """Wait for the request's turn to be routed: a suspect waits until no other one is on trial."""
        self._end_turn(record)
        while _is_suspect(record) and self._on_trial() is not None:  # noqa: ASYNC110 - time ends it, too
            await asyncio.sleep(POLL_S)
        if _is_suspect(record):
            self._turn_of, self._taken_s = record, self._clock.monotonic_s()

    def record_tokens(self, record: CrashRecord, epoch: int, tokens: int) -> None:
        """Note how many tokens came of its latest route."""
        record.record_tokens(epoch, tokens)
        if not record.strikes:
            self._end_turn(record)

    def record_fault(self, record: CrashRecord, epoch: int) -> bool:
        """A worker named the request in its last words; True when it is the poison request."""
        record.record_fault(epoch)
        return record.strikes >= POISON_STRIKES and record is self._turn_of

    def record_death(self, role: str, instance: str) -> str:
        """An instance lives anew and had not said that it ends; the poison request's id, "" for none."""
        struck = [record for record in self._records.values() if record.record_death(role, instance)]
        guilty = [record for record in struck if record.strikes >= POISON_STRIKES]
        if len(guilty) > 1:
            guilty = [record for record in guilty if record is self._turn_of]
        return guilty[0].request_id if guilty else ""

    def _on_trial(self) -> CrashRecord | None:
        """Return the record whose turn it is, None for nobody's."""
        record = self._turn_of
        if record is None:
            return None
        until_s = self._taken_s + MAX_TURN_S
        if record.routed_s >= self._taken_s:
            until_s = min(until_s, record.routed_s + TURN_S)
        return record if self._clock.monotonic_s() < until_s else None

    def _end_turn(self, record: CrashRecord) -> None:
        if self._turn_of is record:
            self._turn_of = None


def _is_suspect(record: CrashRecord) -> bool:
    return record.named or record.strikes >= POISON_STRIKES


def poison_request_error(hop: str) -> InternalError:
    """Return the error with which a request ends that took engines down."""
    return InternalError(
        f"{POISON_STRIKES} workers failed while they computed this request: it is not tried again", hop=hop
    )
