"""Move the cells of a granted transfer, some at a time: over NATS, or announced in shared memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from shared.bus.bulk import BulkConnection
from shared.deadline import Clock
from shared.errors import Unavailable
from shared.kv.chunk import HEADER_BYTES, ChunkHeader
from shared.kv.limits import CHUNK_BYTES, SHM_RUN_BYTES
from shared.kv.memory.pool_memory import PoolMemory
from shared.kv.sending.outgoing import OutgoingTransfer
from shared.messages import KvGrant, KvReady, Message

log = structlog.get_logger()


class KvTransport(Protocol):
    """One way for cells, at their sender."""

    async def send_cells(self, outgoing: OutgoingTransfer, grant: KvGrant) -> None:
        """Send the next cells of a transfer that has some. Raises TooLarge where no chunk holds a cell."""
        ...


class NatsTransport:
    """Sends one chunk at a time, with the bytes in it."""

    def __init__(self, bulk: BulkConnection, memory: PoolMemory, clock: Clock) -> None:
        self._bulk = bulk
        self._memory = memory
        self._clock = clock

    async def send_cells(self, outgoing: OutgoingTransfer, grant: KvGrant) -> None:
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
        except Unavailable as error:
            # Counted as on the wire: it is repeated when its acknowledgement does not come.
            log.info("a KV chunk was not sent", request_id=outgoing.key[0], why=error.message)


class ShmTransport:
    """Hashes cells and announces where they lie; the receiver copies them."""

    def __init__(
        self, memory: PoolMemory, send_control: Callable[[OutgoingTransfer, Message], None], clock: Clock
    ) -> None:
        self._memory = memory
        self._tell_receiver = send_control
        self._clock = clock

    async def send_cells(self, outgoing: OutgoingTransfer, grant: KvGrant) -> None:
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
        self._tell_receiver(outgoing, ready)
        await asyncio.sleep(0)
