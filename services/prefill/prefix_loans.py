"""Lend cached prefixes to other prefill workers: their blocks stay what they are until these have them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from services.prefill.driver import PrefillDriver
from shared.bus import Bus, Delivery
from shared.deadline import Deadline
from shared.engine import KvLoan
from shared.errors import InvalidRequest, Overloaded, PenstockError, ProtocolError
from shared.kv.chunk import MAX_EPOCH
from shared.kv.sending.sender import KvSender
from shared.kv.transfer_key import TransferKey
from shared.messages import Accepted, Held, LendPrefix, unpack_hashes
from shared.tasks import Tasks, cancel_until_done
from shared.telemetry import metrics
from shared.worker.wire import checked_share, sequence_key

MAX_LOANS = 8
"""The prefixes that are lent at a time."""
MAX_LOAN_S = 5.0
"""The longest that blocks are kept for somebody who fetches them, beside the lease of an aborted transfer."""


class PrefixLoans:
    """`sender` sends what is lent, and `end` hears of the transfers that are released."""

    def __init__(self, bus: Bus, driver: PrefillDriver, sender: KvSender, wake: Callable[[], None]) -> None:
        self._bus = bus
        self._driver = driver
        self._sender = sender
        self._wake = wake
        self._tasks = Tasks()
        self._lending: set[asyncio.Task[None]] = set()
        self._lent: dict[TransferKey, int] = {}

    def __len__(self) -> int:
        return len(self._lent)

    def lend(self, delivery: Delivery, request: LendPrefix) -> None:
        """Begin to lend, or refuse at once; the answer follows when the engine has found the blocks. Raises
        Overloaded, InvalidRequest, ProtocolError or DeadlineExpired."""
        envelope, key = delivery.envelope, (delivery.envelope.request_id, delivery.envelope.epoch)
        if delivery.sender not in ("", request.receiver):
            metrics.DROPPED_MESSAGES.labels(reason="foreign_kv").inc()
            raise InvalidRequest(f"{delivery.sender} asks for {request.receiver}; a worker asks for itself")
        until = self._bus.deadline_of(envelope)
        if until is None or not envelope.request_id or not 0 < envelope.epoch <= MAX_EPOCH:
            raise ProtocolError(
                "LendPrefix needs a request_id, an epoch from 1 and a deadline in its envelope"
            )
        until.check("prefill")
        if len(self._lent) >= MAX_LOANS or key in self._lent:
            raise Overloaded(f"{len(self._lent)} prefixes are being sent from here; compute this one")
        names = unpack_hashes(request.block_hashes)
        share, until = checked_share(request.share), until.shrink(MAX_LOAN_S)
        self._lent[key] = len(names)
        loan = self._driver.call_soon(
            lambda engine: engine.lend_prefix(sequence_key(*key), names, share), between_layers=True
        )
        task = self._tasks.start(f"lend-{key[0]}", self._offer(delivery, request.receiver, loan, until))
        self._lending.add(task)
        task.add_done_callback(self._lending.discard)

    def end(self, key: TransferKey) -> bool:
        """Nobody reads the blocks of a transfer any more; returns whether they were lent here."""
        if self._lent.pop(key, None) is None:
            return False
        self._driver.release_later(sequence_key(*key))
        self._wake()
        return True

    def held(self) -> Iterable[Held]:
        for (request_id, _), blocks in self._lent.items():
            yield Held(request_id, "transfer", blocks, "lent")

    async def close(self) -> None:
        """Begin no transfer any more."""
        await cancel_until_done(*self._lending)

    async def _offer(
        self, delivery: Delivery, receiver: str, lent: asyncio.Future[KvLoan], until: Deadline
    ) -> None:
        """Let all of it go as soon as there is a grant, and say so."""
        envelope = delivery.envelope
        key = envelope.request_id, envelope.epoch
        try:
            loan = await lent
            self._sender.offer_transfer(
                *key,
                envelope.origin,
                receiver,
                loan.tables,
                loan.first_blocks,
                until,
                receiver_role="prefill",
            )
        except PenstockError as error:
            self.end(key)
            await self._bus.answer(envelope, error, hop="prefill")
            return
        for layer in range(self._driver.engine.layout.num_layers):
            self._sender.layer_ready(key, layer, 0, loan.end_block)
        self._sender.finish_transfer(key, (), "")
        await self._bus.answer(envelope, Accepted())
