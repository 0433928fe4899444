"""Where chunk bodies go: into the pool when they are wanted, else nowhere.

Every chunk is looked up among the live transfers before a byte of it lands, so a chunk of an aborted,
finished or unknown transfer, or of an old epoch, can never touch the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.errors import ChecksumMismatch, PenstockError, ProtocolError
from shared.kv import metrics
from shared.kv.cells import Run
from shared.kv.chunk import HEADER_BYTES, ChunkHeader, parse_header
from shared.kv.ingress import Ingress, IngressPhase
from shared.kv.limits import CHUNK_BYTES
from shared.kv.pool_memory import PoolMemory


class LandingOwner(Protocol):
    """The receiver, as its sink sees it."""

    def cells_verified(self, ingress: Ingress, run: Run) -> None: ...
    def cells_corrupt(self, ingress: Ingress, run: Run) -> None: ...
    def chunk_unneeded(self, ingress: Ingress) -> None: ...
    def fail(self, ingress: Ingress, error: PenstockError) -> None: ...


@dataclass(frozen=True, slots=True)
class _Body:
    """The chunk that is landing."""

    ingress: Ingress
    header: ChunkHeader
    run: Run
    views: list[memoryview]
    checksum: int


class Landing:
    """A BulkSink."""

    header_bytes = HEADER_BYTES

    def __init__(
        self, memory: PoolMemory, find: Callable[[int], Ingress | None], owner: LandingOwner
    ) -> None:
        self._memory = memory
        self._find = find
        self._owner = owner
        # Cells that are verified already arrive a second time here, so that a bad copy cannot harm them.
        self._scratch = memoryview(bytearray(max(CHUNK_BYTES, memory.cell_bytes)))
        self._body: _Body | None = None

    @property
    def current(self) -> Ingress | None:
        """The transfer whose body is landing."""
        return self._body.ingress if self._body else None

    def open(self, header: bytes, body_bytes: int) -> Sequence[memoryview] | None:
        try:
            chunk, checksum = parse_header(header)
        except ProtocolError:
            metrics.CHUNKS_DISCARDED.labels("malformed").inc()
            return None
        ingress = self._find(chunk.transfer)
        live = ingress is not None and ingress.phase is IngressPhase.RECEIVING
        if ingress is None or not live or ingress.key[1] != chunk.epoch:
            metrics.CHUNKS_DISCARDED.labels("stale").inc()
            return None
        try:
            run, wanted = ingress.accept(chunk, body_bytes)
        except ProtocolError as error:
            metrics.CHUNKS_DISCARDED.labels("refused").inc()
            self._owner.fail(ingress, error)
            return None
        if not wanted:
            metrics.CHUNKS_DISCARDED.labels("duplicate").inc()
            ingress.saw(chunk)
            self._owner.chunk_unneeded(ingress)
            return None
        views = self._views(ingress, run)
        self._body = _Body(ingress, chunk, run, views, checksum)
        return views

    def _views(self, ingress: Ingress, run: Run) -> list[memoryview]:
        views: list[memoryview] = []
        at = run.first
        for missing in ingress.missing_runs(run):
            views.extend(self._aside(run, at, missing.first))
            blocks = ingress.block_ids[missing.first : missing.end]
            views.extend(self._memory.views(run.layer, blocks))
            at = missing.end
        views.extend(self._aside(run, at, run.end))
        return views

    def _aside(self, run: Run, first: int, end: int) -> list[memoryview]:
        if first == end:
            return []
        size = self._memory.cell_bytes
        if run.count * size > self._scratch.nbytes:
            self._scratch = memoryview(bytearray(run.count * size))
        return [self._scratch[(first - run.first) * size : (end - run.first) * size]]

    def done(self) -> None:
        body, self._body = self._body, None
        assert body is not None
        body.ingress.saw(body.header)
        try:
            body.header.verify(body.views, body.checksum)
        except ChecksumMismatch:
            self._owner.cells_corrupt(body.ingress, body.run)
        else:
            self._owner.cells_verified(body.ingress, body.run)

    def lost(self) -> None:
        self._body = None
