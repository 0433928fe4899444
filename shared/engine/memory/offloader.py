"""Moves the KV of sequences that give way out of the pool and back, where that is cheaper than computing."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shared.engine.cost_model import CostModel
from shared.engine.memory.kv_pool import KvPool
from shared.engine.memory.offload import OffloadStore
from shared.engine.sequence import LiveSequence, SequenceStatus, blocks_for
from shared.errors import InternalError
from shared.seams.clock import SYSTEM_CLOCK


@dataclass(frozen=True, slots=True)
class SavedKv:
    """KV of the first `num_tokens` of a sequence, group by group: as far as rows behind them read it."""

    num_tokens: int
    data: Tensor  # uint8 [block_layers, blocks, layer_block_bytes]
    pool: KvPool

    def fill(self, sequence: LiveSequence) -> None:
        """Its new blocks, behind those that came from the prefix cache."""
        end, done = blocks_for(self.num_tokens), 0
        for table in sequence.tables:
            first, begin = table.window.first_block(self.num_tokens), table.num_committed
            data = self.data[:, done : done + end - first]
            self.pool.write(table.blocks[begin:end], data[:, begin - first :])
            done += end - first
        sequence.num_computed = self.num_tokens
        sequence.prefilling = sequence.num_uncomputed > 1


class Offloader:
    """Moves KV between the pool and an OffloadStore."""

    def __init__(self, pool: KvPool, store: OffloadStore, cost: CostModel) -> None:
        self._pool = pool
        self._store = store
        self._cost = cost

    def save(self, sequence: LiveSequence) -> None:
        """Keep its KV if that is cheaper than computing it again. Call before its blocks are freed."""
        num_tokens = sequence.num_computed
        held = [
            block
            for table in sequence.tables
            for block in table.blocks[table.window.first_block(num_tokens) : blocks_for(num_tokens)]
        ]
        copy_us = self._store.cost_us(len(held) * self._pool.layout.block_bytes)
        # Until the cost model knows better, copying is believed to be faster than computing.
        if not held or copy_us is None or (self._cost.ready and copy_us > self._recompute_us(sequence)):
            return
        began_ns = SYSTEM_CLOCK.monotonic_ns()
        data = self._pool.read(held)
        if self._store.put(sequence.key, data, (SYSTEM_CLOCK.monotonic_ns() - began_ns) / 1000):
            sequence.offloaded_tokens = sequence.num_computed

    def landed(self, sequence: LiveSequence) -> bool:
        """Return whether `take` has nothing to wait for; begins to read what it would wait for."""
        return not sequence.offloaded_tokens or self._store.landed(sequence.key)

    def take(self, sequence: LiveSequence, num_cached: int) -> SavedKv | None:
        """Return what was saved, which is forgotten; None where that is no more than the first `num_cached`
        tokens, or was lost."""
        saved, sequence.offloaded_tokens = sequence.offloaded_tokens, 0
        if not saved:
            return None
        if saved <= num_cached:
            self._store.drop(sequence.key)
            return None
        data = self._store.take(sequence.key)
        return None if data is None else SavedKv(saved, data, self._pool)

    def forget(self, sequence: LiveSequence) -> None:
        if sequence.offloaded_tokens:
            self._store.drop(sequence.key)

    def check(self, sequences: list[LiveSequence]) -> None:
        """Raise InternalError unless exactly the preempted sequences that say so are in the store."""
        saved = [sequence for sequence in sequences if sequence.offloaded_tokens]
        self._store.check({sequence.key for sequence in saved})
        for sequence in saved:
            preempted = sequence.status is SequenceStatus.PREEMPTED
            if not preempted or sequence.offloaded_tokens >= len(sequence.tokens):
                raise InternalError(f"{sequence.key!r} is {sequence.status.value} and offloaded")

    def _recompute_us(self, sequence: LiveSequence) -> float:
        return self._cost.prefill_us(sequence.num_computed)
