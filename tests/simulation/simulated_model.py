"""A model whose logits are a hash of the tokens that it reads from its KV, and whose steps take virtual time.

Each token's K and V, in each layer, carry the token's name: a hash of all tokens up to it. Logits at a
position are a hash of all names that attention would read there, in all layers. So a block that holds
anything else than it should, from a wrong transfer, a reuse too early or a mixed-up table, is a wrong token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.batch import Batch, Span
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import ModelConfig
from shared.engine.loading.weights import LoadProgress
from shared.engine.memory.kv_pool import BLOCK_TOKENS, KvPool
from tests.simulation.step_profile import USUAL, StepProfile

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK = 2**64 - 1
_WORD_BYTES = 8
_LOGIT_SPAN = 8.0
"""Logits lie between 0 and this: temperatures and filters have something to do."""

Spend = Callable[[float], None]
"""(us): what runs now has taken so long."""


def spend_nothing(_us: float) -> None:
    """Let no time pass: the world has no clock of its own."""


class SimulatedModel:
    """A `Model` of the engine. Holds no state of any sequence: all that it knows is in the pool."""

    def __init__(
        self,
        config: ModelConfig,
        pool: KvPool,
        profile: StepProfile = USUAL,
        spend: Spend = spend_nothing,
    ) -> None:
        self._pool = pool
        self._vocab = np.arange(config.vocab_size, dtype=np.uint64)
        self._profile = profile
        self._spend = spend
        self._windows = [layer.window_tokens for layer in config.layers]
        layout = pool.layout
        token_bytes = layout.codes_bytes // (layout.parts * BLOCK_TOKENS)
        if token_bytes % _WORD_BYTES or layout.layer_block_bytes % _WORD_BYTES:
            raise ValueError(f"a token's K has {token_bytes} bytes: a simulated model needs a multiple of 8")
        words = token_bytes // _WORD_BYTES
        row_bytes = pool.num_blocks * layout.layer_block_bytes
        # [block_layers, num_blocks, parts, 16, words] over the memory of the pool
        self._cells: Words = np.ndarray(
            (layout.groups.block_layers, pool.num_blocks, layout.parts, BLOCK_TOKENS, words),
            np.uint64,
            buffer=pool.memory,
            strides=(
                row_bytes,
                layout.layer_block_bytes,
                BLOCK_TOKENS * token_bytes,
                token_bytes,
                _WORD_BYTES,
            ),
        )
        places = np.arange(layout.num_layers * layout.parts * words, dtype=np.uint64)
        self._marks = mixed(places + _GOLDEN).reshape(layout.num_layers, layout.parts, 1, words)
        """What is laid over a name, by layer, part and word: none can be taken for another."""

    @classmethod
    def maker(
        cls, profile: StepProfile = USUAL, spend: Spend = spend_nothing
    ) -> Callable[[EngineConfig, ModelConfig, KvPool, int, LoadProgress | None], SimulatedModel]:
        """Return what an Engine takes as `make_model`."""
        return lambda _config, model, pool, _longest, _on_loaded: cls(model, pool, profile, spend)

    def forward(self, batch: Batch) -> Tensor:
        names: list[Words] = []
        ids = np.asarray(batch.token_ids, dtype=np.uint64)
        first = 0
        for span in batch.spans:
            names.append(self._names(span, ids[first : first + span.num_rows]))
            first += span.num_rows
        layers = self._pool.layout.num_layers
        step_us = self._profile.us([(span.start, span.num_rows) for span in batch.spans])
        for layer in range(layers):
            for span, of_span in zip(batch.spans, names, strict=True):
                self._write(layer, span, of_span)
            self._spend(step_us / layers)
            if batch.on_kv_written is not None:
                batch.on_kv_written(layer)
        return torch.from_numpy(self._logits(batch))

    def close(self) -> None:
        """Nothing lies outside of this process."""

    # ---- cells ------------------------------------------------------------------------------------

    def _names(self, span: Span, ids: Words) -> Words:
        """Name each token of the span, by the name of the one before it, which is read from the pool."""
        name = int(_GOLDEN)
        if span.start:
            name = int(self._read(0, span, np.arange(span.start - 1, span.start))[0, 0, 0])
        names = np.empty(len(ids), dtype=np.uint64)
        for row, token_id in enumerate(ids.tolist()):
            name = mixed_int(name ^ mixed_int(token_id + int(_GOLDEN)))
            names[row] = name
        return names

    def _places(self, layer: int, span: Span, positions: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
        groups = self._pool.layout.groups
        table = np.asarray(span.tables[groups.group_of[layer]], dtype=np.int64)
        return groups.row_of[layer], table[positions // BLOCK_TOKENS]

    def _write(self, layer: int, span: Span, names: Words) -> None:
        positions = np.arange(span.start, span.end)
        row, blocks = self._places(layer, span, positions)
        cells = names[:, None, None] ^ self._marks[layer, :, 0]
        self._cells[row, blocks, :, positions % BLOCK_TOKENS] = cells

    def _read(self, layer: int, span: Span, positions: NDArray[np.int64]) -> Words:
        """What the cells of these tokens say that they are: [tokens, parts, words], all the same where all is
        well."""
        row, blocks = self._places(layer, span, positions)
        said: Words = self._cells[row, blocks, :, positions % BLOCK_TOKENS] ^ self._marks[layer, :, 0]
        return said

    # ---- logits -----------------------------------------------------------------------------------

    def _logits(self, batch: Batch) -> NDArray[np.float32]:
        wanted, rows, first = list(batch.logit_rows), list[Words](), 0
        for span in batch.spans:
            positions = [row - first + span.start for row in wanted if first <= row < first + span.num_rows]
            if positions:
                rows.append(self._attended(span, positions))
            first += span.num_rows
        if not rows:
            return np.empty((0, len(self._vocab)), dtype=np.float32)
        seen = np.concatenate(rows)
        noise = mixed(seen[:, None] + (self._vocab + np.uint64(1)) * _GOLDEN)
        return (noise >> np.uint64(40)).astype(np.float32) * np.float32(_LOGIT_SPAN / 2**24)

    def _attended(self, span: Span, positions: Sequence[int]) -> Words:
        """A hash of all that attention reads, at each of these positions."""
        last = max(positions)
        seen = np.zeros(len(positions), dtype=np.uint64)
        for layer, window in enumerate(self._windows):
            begin = 0 if window is None else max(0, min(positions) + 1 - window)
            keys = np.arange(begin, last + 1)
            said = mixed(self._read(layer, span, keys)).sum(axis=(1, 2), dtype=np.uint64)
            sums = np.zeros(len(keys) + 1, dtype=np.uint64)
            sums[1:] = np.cumsum(mixed(said + keys.astype(np.uint64)), dtype=np.uint64)
            for at, position in enumerate(positions):
                low = 0 if window is None else max(0, position + 1 - window)
                read = int(sums[position + 1 - begin]) - int(sums[low - begin])
                seen[at] = mixed_int(int(seen[at]) + mixed_int(read + layer))
        return mixed(seen + np.asarray(positions, dtype=np.uint64))


def mixed(values: Words) -> Words:
    """The finaliser of splitmix64: each bit of what comes out depends on all of what went in."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def mixed_int(value: int) -> int:
    """`mixed` of one."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * int(_FIRST)) & _MASK
    value = ((value ^ (value >> 27)) * int(_SECOND)) & _MASK
    return value ^ (value >> 31)
