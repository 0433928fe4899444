"""The sender's work: the cells that are ready, onto the wire or announced in shared memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from shared.bus.bulk import BulkConnection
from shared.deadline import Clock
from shared.errors import PenstockError, TooLarge, Unavailable
from shared.kv.chunk import HEADER_BYTES, ChunkHeader, checksum
from shared.kv.egress import Egress
from shared.kv.limits import CHUNK_BYTES, SHM_RUN_BYTES
from shared.kv.pool_memory import PoolMemory
from shared.messages import KvGrant, KvReady, Message

log = structlog.get_logger()


class PumpOwner(Protocol):
    """The sender, as its pump sees it."""

    def tell(self, egress: Egress, message: Message) -> None: ...
    def settle(self, egress: Egress) -> None: ...
    def fail(self, egress: Egress, error: PenstockError) -> None: ...


class Pump:
    """`transfers` is the sender's own table, in the order of their offers."""

    def __init__(
        self,
        bulk: BulkConnection,
        memory: PoolMemory,
        transfers: Mapping[tuple[str, int], Egress],
        owner: PumpOwner,
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
            egress = next((e for e in self._transfers.values() if e.has_work(self._memory.cell_bytes)), None)
            if egress is None:
                self._work.clear()
                await self._work.wait()
                continue
            assert egress.grant is not None
            if egress.grant.transport == "shm":
                self._announce(egress, egress.grant)
                await asyncio.sleep(0)
            else:
                await self._send_chunk(egress, egress.grant)
            if self._is_live(egress):
                self._owner.settle(egress)

    async def _send_chunk(self, egress: Egress, grant: KvGrant) -> None:
        cell_bytes = self._memory.cell_bytes
        payload = min(CHUNK_BYTES, self._bulk.max_payload - HEADER_BYTES)
        taken = egress.take_run(cell_bytes, max(1, payload // cell_bytes), self._clock.monotonic_s())
        assert taken is not None
        offset, run = taken
        body = self._memory.views(run.layer, egress.block_ids[run.first : run.end])
        header = ChunkHeader(
            grant.transfer, egress.key[1], offset, run.layer, run.first, run.count, run.count * cell_bytes
        )
        try:
            await self._bulk.send(grant.subject, header.pack(body), body)
        except TooLarge as error:
            if self._is_live(egress):
                self._owner.fail(egress, error)
        except Unavailable as error:
            # Counted as on the wire: it is repeated when its acknowledgement does not come.
            log.info("a KV chunk was not sent", request_id=egress.key[0], why=error.message)

    def _announce(self, egress: Egress, grant: KvGrant) -> None:
        """Hash cells and tell the receiver where they lie."""
        cell_bytes = self._memory.cell_bytes
        taken = egress.take_run(cell_bytes, max(1, SHM_RUN_BYTES // cell_bytes), self._clock.monotonic_s())
        assert taken is not None
        _, first = taken
        blocks = egress.block_ids[first.first : first.end]
        last = first
        checksums = [checksum(self._memory.views(first.layer, blocks))]
        while (len(checksums) + 1) * first.count * cell_bytes <= SHM_RUN_BYTES:
            following = egress.take_next_layer(last)
            if following is None:
                break
            last = following
            checksums.append(checksum(self._memory.views(last.layer, blocks)))
        ready = KvReady(grant.transfer, first.layer, last.layer + 1, first.first, blocks, tuple(checksums))
        self._owner.tell(egress, ready)

    def _is_live(self, egress: Egress) -> bool:
        return self._transfers.get(egress.key) is egress
