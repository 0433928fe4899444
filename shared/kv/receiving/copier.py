"""The shm transport at the receiver: find out who shares memory with us, and copy what they announce."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from shared.errors import PenstockError, ProtocolError, Unavailable
from shared.kv.cells import Run
from shared.kv.memory.mapped_pools import MappedPools, ProbeResult
from shared.kv.memory.pool_memory import PoolMemory
from shared.kv.receiving.incoming import Copy, IncomingPhase, IncomingTransfer
from shared.kv.transports import SHM
from shared.messages import KvReady


class CopierOwner(Protocol):
    """The receiver, as its copier sees it."""

    def choose_transport(self, incoming: IncomingTransfer, probed: ProbeResult) -> None: ...
    def cells_verified(self, incoming: IncomingTransfer, run: Run) -> None: ...
    def cells_corrupt(self, incoming: IncomingTransfer, run: Run) -> None: ...
    def fail_transfer(self, incoming: IncomingTransfer, error: PenstockError) -> None: ...


class Copier:
    """`transfers` is the receiver's own table, looked at anew for every piece of work."""

    def __init__(
        self,
        mapped_pools: MappedPools,
        memory: PoolMemory,
        transfers: Mapping[int, IncomingTransfer],
        owner: CopierOwner,
    ) -> None:
        self._mapped_pools = mapped_pools
        self._memory = memory
        self._transfers = transfers
        self._owner = owner
        self._probing: set[tuple[str, int]] = set()
        self._work = asyncio.Event()

    def choose_transport(self, incoming: IncomingTransfer) -> None:
        """Tell the owner, now or after a probe, whether this transfer can use shared memory."""
        probed = self._mapped_pools.get(incoming.peer, incoming.incarnation)
        if probed is not None:
            self._owner.choose_transport(incoming, probed)
        else:
            incoming.probing = True
            self._work.set()

    def take_ready(self, incoming: IncomingTransfer, ready: KvReady) -> None:
        """Queue the announced copies. Raises ProtocolError or InvalidRequest when they do not fit."""
        mapping = self._mapping(incoming)
        if incoming.transport is not SHM or mapping is None:
            raise ProtocolError("KvReady came for a transfer that does not use shared memory")
        mapping.check_blocks(ready.source_blocks)
        incoming.take_ready(ready)
        self._work.set()

    async def run(self) -> None:
        """One piece of at most SHM_RUN_BYTES at a time, with a turn of the event loop between two."""
        self._probing.clear()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._start_probes(tasks)
                incoming = next((i for i in self._transfers.values() if i.copies), None)
                if incoming is None:
                    self._work.clear()
                    if not self._to_probe():
                        await self._work.wait()
                    continue
                self._copy(incoming, incoming.copies.popleft())
                await asyncio.sleep(0)

    def _to_probe(self) -> set[tuple[str, int]]:
        waiting = (i for i in self._transfers.values() if i.probing and i.phase is IncomingPhase.WAITING)
        return {(i.peer, i.incarnation) for i in waiting} - self._probing

    def _start_probes(self, tasks: asyncio.TaskGroup) -> None:
        for sender in self._to_probe():
            self._probing.add(sender)
            tasks.create_task(self._probe(*sender))

    async def _probe(self, prefill: str, incarnation: int) -> None:
        probed = await self._mapped_pools.probe(prefill, incarnation)
        self._probing.discard((prefill, incarnation))
        for incoming in tuple(self._transfers.values()):
            same = (incoming.peer, incoming.incarnation) == (prefill, incarnation)
            if same and incoming.probing and incoming.phase is IncomingPhase.WAITING:
                incoming.probing = False
                self._owner.choose_transport(incoming, probed)

    def _mapping(self, incoming: IncomingTransfer) -> PoolMemory | None:
        probed = self._mapped_pools.get(incoming.peer, incoming.incarnation)
        return probed.mapping.memory if probed is not None and probed.mapping is not None else None

    def _copy(self, incoming: IncomingTransfer, copy: Copy) -> None:
        """One run of cells out of the sender's mapped pool; what is verified already stays as it is."""
        mapping, run = self._mapping(incoming), copy.run
        if mapping is None:
            self._owner.fail_transfer(
                incoming, Unavailable("the sender's shared pool is gone", hop="prefill")
            )
            return
        # What was copied is what is hashed: the sender may change its memory meanwhile.
        copied, missing = 0, incoming.missing_runs(run)
        for part in missing:
            theirs = copy.source_blocks[part.first - run.first : part.end - run.first]
            ours = incoming.blocks.of_run(part)
            copied = self._memory.copy_from(mapping, run.layer, theirs, ours)
        if missing != (run,):
            copied = self._memory.checksum(run.layer, incoming.blocks.of_run(run))
        if copied == copy.checksum:
            self._owner.cells_verified(incoming, run)
        else:
            self._owner.cells_corrupt(incoming, run)
