"""The sender's work: the cells that are ready, by the transport that was granted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from shared.errors import PenstockError, TooLarge
from shared.kv.sending.kv_transport import KvTransport
from shared.kv.sending.outgoing import OutgoingTransfer
from shared.kv.transfer_key import TransferKey


class SendLoopOwner(Protocol):
    """The sender, as its send loop sees it."""

    def finish_if_ready(self, outgoing: OutgoingTransfer) -> None: ...
    def fail_transfer(self, outgoing: OutgoingTransfer, error: PenstockError, /) -> None: ...


class SendLoop:
    """`transfers` is the sender's own table, in the order of their offers; `transports` are by name."""

    def __init__(
        self,
        transports: Mapping[str, KvTransport],
        cell_bytes: int,
        transfers: Mapping[TransferKey, OutgoingTransfer],
        owner: SendLoopOwner,
    ) -> None:
        self._transports = transports
        self._cell_bytes = cell_bytes
        self._transfers = transfers
        self._owner = owner
        self._work = asyncio.Event()
        self.wake: Callable[[], None] = self._work.set

    async def run(self) -> None:
        """Send until cancelled, with a turn of the event loop after each piece."""
        while True:
            # The oldest transfer with credit goes first: finishing one early beats starting two late.
            outgoing = next((t for t in self._transfers.values() if t.has_work(self._cell_bytes)), None)
            if outgoing is None:
                self._work.clear()
                await self._work.wait()
                continue
            await self._send_cells(outgoing)

    async def _send_cells(self, outgoing: OutgoingTransfer) -> None:
        assert outgoing.grant is not None
        try:
            await self._transports[outgoing.grant.transport].send_cells(outgoing, outgoing.grant)
        except TooLarge as error:
            if self._is_live(outgoing):
                self._owner.fail_transfer(outgoing, error)
        if self._is_live(outgoing):
            self._owner.finish_if_ready(outgoing)

    def _is_live(self, outgoing: OutgoingTransfer) -> bool:
        return self._transfers.get(outgoing.key) is outgoing
