"""Write chunk bodies into the pool when they are wanted, else nowhere.

Every chunk is looked up among the live transfers before a byte of it lands, so a chunk of an aborted,
finished or unknown transfer, or of an old epoch, can never touch the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.errors import ChecksumMismatch, ProtocolError
from shared.kv.cells import Run
from shared.kv.chunk import HEADER_BYTES, ChunkHeader, parse_header
from shared.kv.limits import CHUNK_BYTES
from shared.kv.memory.pool_memory import PoolMemory
from shared.kv.receiving.incoming import IncomingPhase, IncomingTransfer
from shared.telemetry import metrics


class ChunkWriterOwner(Protocol):
    """The receiver, as its chunk writer sees it."""

    def cells_verified(self, incoming: IncomingTransfer, run: Run) -> None: ...
    def cells_corrupt(self, incoming: IncomingTransfer, run: Run) -> None: ...
    def chunk_unneeded(self, incoming: IncomingTransfer) -> None: ...
    def chunk_refused(self, incoming: IncomingTransfer, error: ProtocolError) -> None: ...


@dataclass(frozen=True, slots=True)
class _Body:
    """The chunk whose body is arriving."""

    incoming: IncomingTransfer
    header: ChunkHeader
    run: Run
    place: memoryview
    aside: bool
    """Whether `place` is not in the pool, so that the body must be put there."""
    checksum: int


class ChunkWriter:
    """A BulkSink."""

    header_bytes = HEADER_BYTES

    def __init__(
        self, memory: PoolMemory, find: Callable[[int], IncomingTransfer | None], owner: ChunkWriterOwner
    ) -> None:
        self._memory = memory
        self._find = find
        self._owner = owner
        self._aside = memoryview(bytearray(max(CHUNK_BYTES, memory.cell_bytes)))
        self._body: _Body | None = None

    @property
    def current(self) -> IncomingTransfer | None:
        """The transfer whose body is arriving."""
        return self._body.incoming if self._body else None

    def open(self, header: bytes, body_bytes: int) -> Sequence[memoryview] | None:
        try:
            chunk, checksum = parse_header(header)
        except ProtocolError:
            metrics.KV_CHUNKS_DISCARDED.labels("malformed").inc()
            return None
        incoming = self._find(chunk.transfer)
        live = incoming is not None and incoming.phase is IncomingPhase.RECEIVING
        if incoming is None or not live or incoming.key[1] != chunk.epoch:
            metrics.KV_CHUNKS_DISCARDED.labels("stale").inc()
            return None
        try:
            run, wanted = incoming.accept(chunk, body_bytes)
        except ProtocolError as error:
            metrics.KV_CHUNKS_DISCARDED.labels("refused").inc()
            self._owner.chunk_refused(incoming, error)
            return None
        if not wanted:
            metrics.KV_CHUNKS_DISCARDED.labels("duplicate").inc()
            incoming.saw(chunk)
            self._owner.chunk_unneeded(incoming)
            return None
        place, aside = self._place(incoming, run)
        self._body = _Body(incoming, chunk, run, place, aside, checksum)
        return [place]

    def _place(self, incoming: IncomingTransfer, run: Run) -> tuple[memoryview, bool]:
        """Return the memory that a run goes to, and whether it is aside: it goes to the pool where all of the
        run is missing and lies together there, and needs no copy; else aside, so that it comes in few large
        reads and a bad copy cannot harm what is verified already."""
        if incoming.missing_runs(run) == (run,):
            blocks = incoming.blocks.of_run(run)
            together = self._memory.neighbours(run.layer, blocks)
            if together is not None:
                return together, False
        size = run.count * self._memory.cell_bytes
        if size > self._aside.nbytes:
            self._aside = memoryview(bytearray(size))
        return self._aside[:size], True

    def done(self) -> None:
        body, self._body = self._body, None
        assert body is not None
        incoming, run = body.incoming, body.run
        incoming.saw(body.header)
        try:
            body.header.verify(body.place, body.checksum)
        except ChecksumMismatch:
            self._owner.cells_corrupt(incoming, run)
            return
        if body.aside:
            self._put_missing(incoming, run, body.place)
        self._owner.cells_verified(incoming, run)

    def _put_missing(self, incoming: IncomingTransfer, run: Run, data: memoryview) -> None:
        size = self._memory.cell_bytes
        for missing in incoming.missing_runs(run):
            blocks = incoming.blocks.of_run(missing)
            cells = data[(missing.first - run.first) * size : (missing.end - run.first) * size]
            self._memory.write(run.layer, blocks, cells)

    def lost(self) -> None:
        self._body = None
