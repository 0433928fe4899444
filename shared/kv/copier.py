"""The shm transport at the receiver: find out who shares memory with us, and copy what they announce."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from shared.errors import PenstockError, ProtocolError, Unavailable
from shared.kv.cells import Run
from shared.kv.chunk import checksum
from shared.kv.ingress import Copy, Ingress, IngressPhase
from shared.kv.peers import Peer, Peers
from shared.kv.pool_memory import PoolMemory, copy_blocks
from shared.messages import KvReady


class CopierOwner(Protocol):
    """The receiver, as its copier sees it."""

    def choose_transport(self, ingress: Ingress, peer: Peer) -> None: ...
    def cells_verified(self, ingress: Ingress, run: Run) -> None: ...
    def cells_corrupt(self, ingress: Ingress, run: Run) -> None: ...
    def fail(self, ingress: Ingress, error: PenstockError) -> None: ...


class Copier:
    """`transfers` is the receiver's own table, looked at anew for every piece of work."""

    def __init__(
        self, peers: Peers, memory: PoolMemory, transfers: Mapping[int, Ingress], owner: CopierOwner
    ) -> None:
        self._peers = peers
        self._memory = memory
        self._transfers = transfers
        self._owner = owner
        self._probing: set[tuple[str, int]] = set()
        self._work = asyncio.Event()

    def choose_transport(self, ingress: Ingress) -> None:
        """Tell the owner, now or after a probe, whether this transfer can use shared memory."""
        peer = self._peers.get(ingress.prefill, ingress.incarnation)
        if peer is not None:
            self._owner.choose_transport(ingress, peer)
        else:
            ingress.probing = True
            self._work.set()

    def take_ready(self, ingress: Ingress, ready: KvReady) -> None:
        """Queue the announced copies. Raises ProtocolError or InvalidRequest when they do not fit."""
        mapping = self._mapping(ingress)
        if ingress.transport != "shm" or mapping is None:
            raise ProtocolError("KvReady came for a transfer that does not use shared memory")
        mapping.check_blocks(ready.source_blocks)
        ingress.take_ready(ready)
        self._work.set()

    async def run(self) -> None:
        """One piece of at most SHM_RUN_BYTES at a time, with a turn of the event loop between two."""
        self._probing.clear()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._start_probes(tasks)
                ingress = next((i for i in self._transfers.values() if i.copies), None)
                if ingress is None:
                    self._work.clear()
                    if not self._to_probe():
                        await self._work.wait()
                    continue
                self._copy(ingress, ingress.copies.popleft())
                await asyncio.sleep(0)

    def _to_probe(self) -> set[tuple[str, int]]:
        waiting = (i for i in self._transfers.values() if i.probing and i.phase is IngressPhase.WAITING)
        return {(i.prefill, i.incarnation) for i in waiting} - self._probing

    def _start_probes(self, tasks: asyncio.TaskGroup) -> None:
        for sender in self._to_probe():
            self._probing.add(sender)
            tasks.create_task(self._probe(*sender))

    async def _probe(self, prefill: str, incarnation: int) -> None:
        peer = await self._peers.probe(prefill, incarnation)
        self._probing.discard((prefill, incarnation))
        for ingress in tuple(self._transfers.values()):
            same = (ingress.prefill, ingress.incarnation) == (prefill, incarnation)
            if same and ingress.probing and ingress.phase is IngressPhase.WAITING:
                ingress.probing = False
                self._owner.choose_transport(ingress, peer)

    def _mapping(self, ingress: Ingress) -> PoolMemory | None:
        peer = self._peers.get(ingress.prefill, ingress.incarnation)
        return peer.mapping.memory if peer is not None and peer.mapping is not None else None

    def _copy(self, ingress: Ingress, copy: Copy) -> None:
        """One run of cells out of the sender's mapped pool; what is verified already stays as it is."""
        mapping, run = self._mapping(ingress), copy.run
        if mapping is None:
            self._owner.fail(ingress, Unavailable("the sender's shared pool is gone", hop="prefill"))
            return
        for missing in ingress.missing_runs(run):
            source = copy.source_blocks[missing.first - run.first : missing.end - run.first]
            target = ingress.block_ids[missing.first : missing.end]
            copy_blocks(run.layer, mapping, source, self._memory, target)
        blocks = ingress.block_ids[run.first : run.end]
        # What was copied is what is hashed: the sender may have changed its memory meanwhile.
        if checksum(self._memory.views(run.layer, blocks)) == copy.checksum:
            self._owner.cells_verified(ingress, run)
        else:
            self._owner.cells_corrupt(ingress, run)
