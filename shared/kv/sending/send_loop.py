"""The sender's work: the cells that are ready, onto the wire or announced in shared memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from shared.bus.bulk import BulkConnection
from shared.deadline import Clock
from shared.errors import PenstockError, TooLarge, Unavailable
from shared.kv.chunk import HEADER_BYTES, ChunkHeader
from shared.kv.limits import CHUNK_BYTES, SHM_RUN_BYTES
from shared.kv.memory.pool_memory import PoolMemory
from shared.kv.sending.outgoing import OutgoingTransfer
from shared.kv.transfer_key import TransferKey
from shared.messages import KvGrant, KvReady, Message

log = structlog.get_logger()


class SendLoopOwner(Protocol):
    """The sender, as its send loop sees it."""

    def tell_receiver(self, outgoing: OutgoingTransfer, message: Message) -> None: ...
    def settle_transfer(self, outgoing: OutgoingTransfer) -> None: ...
    def fail_transfer(self, outgoing: OutgoingTransfer, error: PenstockError) -> None: ...


class SendLoop:
    """`transfers` is the sender's own table, in the order of their offers."""

    def __init__(
        self,
        bulk: BulkConnection,
        memory: PoolMemory,
        transfers: Mapping[TransferKey, OutgoingTransfer],
        owner: SendLoopOwner,
        clock: Clock,
    ) -> None:
        self._bulk = bulk
        self._memory = memory
        self._transfers = transfers
        self._owner = owner
        self._clock = clock
        self._work = asyncio.Event()
        self.wake: Callable[[], None] = self._work.set

    async def run(self) -> None:
        while True:
            # The oldest transfer with credit goes first: finishing one early beats starting two late.
            outgoing = next(
                (t for t in self._transfers.values() if t.has_work(self._memory.cell_bytes)), None
            )
            if outgoing is None:
                self._work.clear()
                await self._work.wait()
                continue
            assert outgoing.grant is not None
            if outgoing.grant.transport == "shm":
                self._announce(outgoing, outgoing.grant)
                await asyncio.sleep(0)
            else:
                await self._send_chunk(outgoing, outgoing.grant)
            if self._is_live(outgoing):
                self._owner.settle_transfer(outgoing)

    async def _send_chunk(self, outgoing: OutgoingTransfer, grant: KvGrant) -> None:
        cell_bytes = self._memory.cell_bytes
        payload = min(CHUNK_BYTES, self._bulk.max_payload - HEADER_BYTES)
        taken = outgoing.take_run(cell_bytes, max(1, payload // cell_bytes), self._clock.monotonic_s())
        assert taken is not None
        offset, run = taken
        body = self._memory.read(run.layer, outgoing.blocks.of_run(run))
        header = ChunkHeader(
            grant.transfer, outgoing.key[1], offset, run.layer, run.first, run.count, run.count * cell_bytes
        )
        try:
            await self._bulk.send(grant.subject, header.pack(body), [body])
        except TooLarge as error:
            if self._is_live(outgoing):
                self._owner.fail_transfer(outgoing, error)
        except Unavailable as error:
            # Counted as on the wire: it is repeated when its acknowledgement does not come.
            log.info("a KV chunk was not sent", request_id=outgoing.key[0], why=error.message)

    def _announce(self, outgoing: OutgoingTransfer, grant: KvGrant) -> None:
        """Hash cells and tell the receiver where they lie."""
        cell_bytes = self._memory.cell_bytes
        taken = outgoing.take_run(cell_bytes, max(1, SHM_RUN_BYTES // cell_bytes), self._clock.monotonic_s())
        assert taken is not None
        _, first = taken
        blocks = outgoing.blocks.of_run(first)
        last = first
        checksums = [self._memory.checksum(first.layer, blocks)]
        while (len(checksums) + 1) * first.count * cell_bytes <= SHM_RUN_BYTES:
            following = outgoing.take_next_layer(last)
            if following is None:
                break
            last = following
            checksums.append(self._memory.checksum(last.layer, blocks))
        ready = KvReady(grant.transfer, first.layer, last.layer + 1, first.first, blocks, tuple(checksums))
        self._owner.tell_receiver(outgoing, ready)

    def _is_live(self, outgoing: OutgoingTransfer) -> bool:
        return self._transfers.get(outgoing.key) is outgoing
